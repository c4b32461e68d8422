"""Query-key learning that outpaces output-value learning sharpens attention at equal loss: the whole idea in one file.

An attention layer has two circuits. Query-key (W_QK) decides where to look, output-value (W_OV) what to say about what
was seen. Give them two learning rates, eta_QK = r eta_OV. Every ratio r reaches every loss, but the attention found
there is not the same: alpha, the share that falls on the tokens that matter, grows with r. Theorem 1 says by how much.

Command:  python examples/minimal.py [picture.png]
Expect:   within half a minute on two cores a table (simulation beside theory) and the picture, by default minimal.png.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# The setting: a context has m tokens of one of M classes and n background tokens; each class owns b different tokens.
m, n, b, M = 4, 8, 4, 4
BACKGROUNDS, BATCH, STEPS = 16, 64, 2500
RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0)
LOSS = 0.1  # where the runs are compared; it starts near ln M = 1.39

# F = factorized, C = collapsed; A = attention (query-key circuit), O = output-value circuit. The number is eta_OV:
# small steps, so that descent stays close to the gradient flow of the theory, and no smaller, so that nobody waits.
ETA_OV = {"FAFO": 0.25, "CAFO": 0.25, "FACO": 1.0, "CACO": 2.0}
START = 0.1  # strength of a factorized circuit at step 0; at zero it would never learn, each factor waits for the other


def factorized(form):
    """Whether the query-key and the output-value circuit are products of two matrices."""
    return form.startswith("FA"), form.endswith("FO")


# 1. The data: orthogonal tokens ---------------------------------------------------------------------------------------
d = M * b + BACKGROUNDS  # every token its own direction of R^d: first class by class, then the backgrounds
S = np.zeros((M, d))  # S_y, the sum of class y's tokens
S[:, : M * b] = np.repeat(np.eye(M), b, axis=1)


def draw_batch(key):
    """Draw contexts X (BATCH, m + n, d), queries x_T (BATCH, d), classes y (BATCH,); the query is not in its context."""
    # Balanced: each class with each of its queries equally often, each context with all tokens of its class equally
    # often (m a multiple of b, BATCH of 2 M b). What the theory assumes of an average then holds in every batch.
    y, query = np.divmod(np.arange(BATCH // 2) % (M * b), b)
    class_tokens = y[:, None] * b + np.arange(m) % b
    signed = jax.random.randint(key, (BATCH // 2, n), 0, 2 * BACKGROUNDS)
    nu = (1.0 - 2.0 * (signed % 2))[..., None] * jax.nn.one_hot(M * b + signed // 2, d)
    # Antithetic: each context once more with its backgrounds' signs turned. Their mean is zero, so that they predict
    # nothing; left to chance, a background would look useful, attract attention, and look more useful.
    signal = jax.nn.one_hot(class_tokens, d)
    X = jnp.concatenate([jnp.concatenate([signal, sign * nu], axis=1) for sign in (1, -1)])
    return X, jnp.tile(jax.nn.one_hot(y * b + query, d), (2, 1)), np.tile(y, 2)


# 2. The model: one attention layer, eq. (1), in four parameterizations ------------------------------------------------
def forward(params, X, x_T):
    """Logits W_OV X^T softmax(X W_QK x_T) and attention of one sequence, W_QK and W_OV being one matrix or two."""
    qk, ov = params["qk"], params["ov"]
    W_QK = qk["W_K"] @ qk["W_Q"].T if "W_K" in qk else qk["W_QK"]
    W_OV = ov["W_O"] @ ov["W_V"] if "W_O" in ov else ov["W_OV"]
    attention = jax.nn.softmax(X @ (W_QK @ x_T))
    return W_OV @ (X.T @ attention), attention


def initial(form):
    """Collapsed circuits start at zero; factorized ones at START times the directions W_QK and W_OV grow along."""
    D = S.T @ S  # sum_y S_y S_y^T: look at tokens of the query's class
    Sbar = S - S.mean(0)  # S_k less the mean over classes: vote for the class that was seen
    # Balanced factors, W_K^T W_K = W_Q^T W_Q and W_O^T W_O = W_V W_V^T: Lemmas 1 and 4 say that training keeps them so.
    # D D = b D and Sbar Sbar^T Sbar = b Sbar, so the products are START D and START Sbar.
    qk = {"W_K": (START / b) ** 0.5 * D, "W_Q": (START / b) ** 0.5 * D}
    ov = {"W_O": START**0.5 * b**-0.25 * Sbar, "W_V": START**0.5 * b**-0.75 * Sbar.T @ Sbar}
    factorized_qk, factorized_ov = factorized(form)
    params = {
        "qk": qk if factorized_qk else {"W_QK": np.zeros((d, d))},
        "ov": ov if factorized_ov else {"W_OV": np.zeros((M, d))},
    }
    return jax.tree.map(lambda W: jnp.asarray(W, jnp.float32), params)


# 3. Training: plain gradient descent, two learning rates --------------------------------------------------------------
def loss_and_alpha(params, X, x_T, y):
    """Mean cross entropy of a batch (nats), and alpha: mean attention on the m class tokens."""
    logits, attention = jax.vmap(forward, in_axes=(None, 0, 0))(params, X, x_T)
    right = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1)
    return -right.mean(), attention[:, :m].sum(1).mean()


def sgd_step(params, batch, eta_QK, eta_OV):
    """Take one step on one batch; also the batch's loss and alpha before the step."""
    measured, gradient = jax.value_and_grad(loss_and_alpha, has_aux=True)(params, *batch)
    rate = {"qk": eta_QK, "ov": eta_OV}  # this line is the intervention
    moved = {c: jax.tree.map(lambda W, dW, c=c: W - rate[c] * dW, params[c], gradient[c]) for c in rate}
    return moved, measured


def train(form, ratios, steps=STEPS, seed=0):
    """Loss and alpha at every step, each (ratios, steps), on batches not seen before; all ratios run side by side."""
    keys = jax.random.split(jax.random.key(seed), steps)

    def run(r):
        def step(params, key):
            return sgd_step(params, draw_batch(key), r * ETA_OV[form], ETA_OV[form])

        return jax.lax.scan(step, initial(form), keys)[1]

    return [np.asarray(x) for x in jax.jit(jax.vmap(run))(jnp.asarray(ratios, jnp.float32))]


def simulated_alpha(losses, alphas, loss):
    """Alpha when a run first reaches `loss`, interpolated in ln(loss); nan if it never does."""
    i = int(np.argmax(losses <= loss))
    if losses[i] > loss or i == 0:
        return np.nan
    return np.interp(-np.log(loss), -np.log(losses[i - 1 : i + 1]), alphas[i - 1 : i + 1])


# 4. The theory: two scalars (Theorem 1) -------------------------------------------------------------------------------
# On such data gradient flow never leaves W_OV = mu_OV Sbar, W_QK = mu_QK D: thousands of weights are two numbers. A
# class token then scores mu_QK and a background 0, and the loss is ln(1 + (M-1) e^(-alpha mu_OV)).
def attention_of(mu_QK):
    """The softmax of Theorem 1: alpha = m e^mu_QK / (m e^mu_QK + n)."""
    return m / (m + n * np.exp(-mu_QK))


def velocity(form, r, mu_OV, mu_QK):
    """The time derivatives of mu_OV and mu_QK in Theorem 1, at eta_OV = 1 and eta_QK = r."""
    alpha = attention_of(mu_QK)
    rest = np.exp(alpha * mu_OV) + M - 1
    f = alpha / (b * rest)
    g = r * (M - 1) * alpha * (1 - alpha) * mu_OV / (M * b**2 * rest)
    # A factorized circuit moves at a pace that grows with its own size (Lemmas 2 and 5).
    factorized_qk, factorized_ov = factorized(form)
    return np.array([2 * b**0.5 * mu_OV * f if factorized_ov else f, 2 * b * mu_QK * g if factorized_qk else g])


def theory_path(form, ratios, length=20.0, steps=1000):
    """Loss and alpha along the solutions of Theorem 1's equations, each (steps, ratios), by Runge and Kutta's rule."""
    r = np.asarray(ratios, float)
    factorized_qk, factorized_ov = factorized(form)

    def slope(state):
        # Loss against alpha does not ask when, so walk the path at unit speed instead of waiting where it is slow.
        v = velocity(form, r, *state)
        return v / np.hypot(*v)

    states, h = [np.array([START * factorized_ov + 0 * r, START * factorized_qk + 0 * r])], length / steps
    for _ in range(steps - 1):
        k1 = slope(states[-1])
        k2 = slope(states[-1] + h / 2 * k1)
        k3 = slope(states[-1] + h / 2 * k2)
        k4 = slope(states[-1] + h * k3)
        states.append(states[-1] + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
    mu_OV, mu_QK = np.moveaxis(np.array(states), 1, 0)
    alpha = attention_of(mu_QK)
    return np.log1p((M - 1) * np.exp(-alpha * mu_OV)), alpha


def theory_alpha(form, r, loss):
    """Alpha at `loss` without integrating anything; r and loss broadcast."""
    # Divide the two equations: time and loss drop out, and with K = r (M-1)/(M b) and 1 - alpha = 1/(1 + (m/n) e^mu_QK)
    #     (1 + (m/n) e^mu_QK) d mu_QK = K mu_OV d mu_OV      both circuits collapsed; factorized ones each add a factor
    # where the variables are separate, so both sides integrate: G(mu_QK) - G(at the start) fixes mu_OV.
    factorized_qk, factorized_ov = factorized(form)
    mu_start, q_start = START * factorized_ov, np.array(START * factorized_qk)
    K = np.asarray(r) * (M - 1) / (M * b)

    def G(q):
        if not factorized_qk:
            return q + m / n * np.exp(q)
        k = np.arange(1, 160)  # the integral of e^q / q is ln q + sum_k q^k / (k k!)
        return np.log(q) + m / n * (np.log(q) + (np.cumprod(q[..., None] / k, axis=-1) / k).sum(-1))

    def mu_OV_at(q):
        gain = (G(q) - G(q_start)) / K * 2 / (2 * b if factorized_qk else 1)
        return mu_start + b**0.5 * gain if factorized_ov else np.sqrt(mu_start**2 + gain)

    # This loss means alpha mu_OV = A. Along the path alpha mu_OV only grows, so halve the interval that holds mu_QK.
    A = np.log((M - 1) / np.expm1(loss))
    low, high, _ = np.broadcast_arrays(q_start, 40.0, K * A)
    for _ in range(60):
        q = (low + high) / 2
        early = attention_of(q) * mu_OV_at(q) < A
        low, high = np.where(early, q, low), np.where(early, high, q)
    return attention_of((low + high) / 2)


# 5. The picture and the table -----------------------------------------------------------------------------------------
# Okabe and Ito's colours, told apart by the colour-blind, from cold to warm.
COLOURS = dict(zip(RATIOS, ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00"), strict=True))
INK = "#222222"


def draw(runs, path):
    """Alpha against loss, one panel a parameterization: training as lines, theory as dashes."""
    figure = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    titles = {"CACO": r"$W_{QK}$,  $W_{OV}$ (CACO)", "FAFO": r"$W_{QK} = W_K W_Q^T$,  $W_{OV} = W_O W_V$ (FAFO)"}
    for axes, (form, title) in zip(panels, titles.items(), strict=True):
        for i, r in enumerate(RATIOS):
            axes.plot(runs[form][0][i], runs[form][1][i], color=COLOURS[r], linewidth=4.5)
        axes.plot(*theory_path(form, RATIOS), color=INK, linewidth=1.1, linestyle=(0, (5, 3)))
        axes.axvline(LOSS, color="#999999", linewidth=1, zorder=0)
        axes.annotate(
            f"compare at loss {LOSS:g}", (LOSS, 0.03), (-6, 0), textcoords="offset points", ha="right", color="#555555"
        )
        axes.set_title(title, fontsize=13)
        axes.set_xlabel("loss (nats; training goes to the right)", fontsize=12)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xscale="log", xlim=(1.5, 0.02), ylim=(0, 1.04))
        axes.set_xticks([1, 0.5, 0.2, 0.1, 0.05, 0.02], ["1", "0.5", "0.2", "0.1", "0.05", "0.02"])
        axes.minorticks_off()
    panels[0].set_ylabel(r"attention on the class tokens, $\alpha$", fontsize=12)
    keys = [Line2D([], [], color=COLOURS[r], linewidth=4.5, label=f"r = {r:g}") for r in reversed(RATIOS)]
    keys.append(Line2D([], [], color=INK, linewidth=1.1, linestyle=(0, (5, 3)), label="Theorem 1"))
    title = r"$r = \eta_{QK}/\eta_{OV}$"
    figure.legend(handles=keys, loc="outside right center", frameon=False, fontsize=12, title=title, title_fontsize=14)
    figure.suptitle("Faster query-key learning: sharper attention at equal loss", fontsize=15)
    figure.savefig(path)


def main(path="minimal.png"):
    """Train everything, lay the theory over it, print the table and draw the picture."""
    # Elsewhere than on CPUs matrix products may be rounded to 3 digits, too few to be held against a theory.
    with jax.default_matmul_precision("highest"):
        runs = {form: train(form, RATIOS) for form in ETA_OV}
    print(f"alpha at loss {LOSS:g}" + "".join(f"{f'r = {r:g}':>11}" for r in RATIOS))
    worst = 0.0
    for form, (losses, alphas) in runs.items():
        seen = np.array([simulated_alpha(*run, LOSS) for run in zip(losses, alphas, strict=True)])
        told = theory_alpha(form, RATIOS, LOSS)
        worst = max(worst, np.abs(seen / told - 1).max())
        print(f"{form} simulated   " + "".join(f"{x:11.4f}" for x in seen))
        print("     theory      " + "".join(f"{x:11.4f}" for x in told))
    print(f"largest relative difference: {100 * worst:.2g}%; uniform attention: m/(m+n) = {m / (m + n):.4f}")
    draw(runs, path)
    print(f"picture: {path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
