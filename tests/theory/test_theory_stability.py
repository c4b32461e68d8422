"""The two instabilities, against gradient flow on full matrices that carry the perturbation."""

import math

import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp

from qkdyn.errors import InputError, RangeError
from qkdyn.theory import Setting, at_loss, background_rate, class_competition, stability
from qkdyn.theory.curve import Curve
from qkdyn.theory.stability import background_amplification

PAPER = Setting(5, 50, 50, 5)
SMALL = Setting(2, 3, 2, 3)
STARTS = {"CACO": (0, 0), "CAFO": (0.05, 0), "FACO": (0, 0.05), "FAFO": (0.05, 0.05)}


def _options(which):
    return {"parameterization": which, "initial": STARTS[which]}


class Matrices:
    """Gradient flow on W_QK and W_OV (or their factors) for M classes whose b = m tokens are all in the context.

    Queries are class means outside the context; the n background tokens have score and value zero, which stays so
    where the background is symmetric. Tokens are unit vectors. The classes' first two tokens differ by 2 delta.
    """

    def __init__(self, setting, r, which):
        self.setting, self.r, self.which = setting, r, which
        self.b, self.classes = setting.b, setting.M
        self.tokens = np.eye(self.b * self.classes).reshape(self.classes, self.b, -1)
        self.centred = np.eye(self.classes) - 1 / self.classes
        self.sums = self.tokens.sum(1)
        self.odd = self.tokens[:, 0] - self.tokens[:, 1]

    def start(self, initial, seed):
        ov = self.centred @ (initial[0] * self.sums + seed * self.odd)
        qk = initial[1] * self.sums.T @ self.sums
        parts = []
        if self.which.startswith("FA"):
            values, vectors = np.linalg.eigh(qk)
            factor = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
            parts += [factor, factor.T]
        else:
            parts += [qk]
        if self.which.endswith("FO"):
            left, values, right = np.linalg.svd(ov, full_matrices=False)
            parts += [left * np.sqrt(values), np.sqrt(values)[:, None] * right]
        else:
            parts += [ov]
        self.shapes = [part.shape for part in parts]
        return np.concatenate([part.ravel() for part in parts])

    def circuits(self, flat):
        ends = np.cumsum([0] + [math.prod(shape) for shape in self.shapes])
        parts = [flat[a:z].reshape(shape) for a, z, shape in zip(ends, ends[1:], self.shapes, strict=False)]
        qk, ov = parts[: -2 if self.which.endswith("FO") else -1], parts[-2 if self.which.endswith("FO") else -1 :]
        return qk, ov

    def flow(self, _, flat):
        qk, ov = self.circuits(flat)
        w_qk, w_ov = (part[0] @ part[1] if len(part) == 2 else part[0] for part in (qk, ov))
        down_qk, down_ov = np.zeros_like(w_qk), np.zeros_like(w_ov)
        for label in range(self.classes):
            x, query = self.tokens[label], self.sums[label] / self.b
            weight = np.exp(x @ w_qk @ query)
            weight = weight / (weight.sum() + self.setting.n)
            logits = w_ov @ (weight @ x)
            residual = np.eye(self.classes)[label] - np.exp(logits) / np.exp(logits).sum()
            pull = x @ (w_ov.T @ residual)
            down_ov += np.outer(residual, weight @ x) / self.classes
            down_qk += np.outer((weight * (pull - weight @ pull)) @ x, query) / self.classes
        moves = []
        for part, down, rate in ((qk, down_qk, self.r), (ov, down_ov, 1.0)):
            moves += [rate * down @ part[1].T, rate * part[0].T @ down] if len(part) == 2 else [rate * down]
        return np.concatenate([move.ravel() for move in moves])

    def read(self, flat):
        """(mu_ov, mu_qk, delta, epsilon) of the first class."""
        qk, ov = self.circuits(flat)
        w_qk, w_ov = (part[0] @ part[1] if len(part) == 2 else part[0] for part in (qk, ov))
        row, column = self.centred[0] @ w_ov / self.centred[0, 0], w_qk @ self.sums[0] / self.b
        return [
            row @ self.sums[0] / self.b,
            column @ self.sums[0] / self.b,
            row @ self.odd[0] / 2,
            column @ self.odd[0] / 2,
        ]


@pytest.mark.parametrize("which", STARTS)
@pytest.mark.parametrize("r", [0.5, 5.0])
def test_matrices_amplify_as_predicted(which, r):
    options = {"parameterization": which, "initial": STARTS[which]}
    state = at_loss(SMALL, r, 0.1, **options)
    system, seed = Matrices(SMALL, r, which), 1e-7
    start = system.start(STARTS[which], seed)
    end = solve_ivp(system.flow, (0, float(state.t)), start, method="DOP853", rtol=1e-11, atol=1e-15).y[:, -1]
    mu_ov, mu_qk, delta, epsilon = system.read(end)
    # The scalars of all four parameterizations, from matrices that know nothing of them.
    assert mu_ov == pytest.approx(float(state.mu_ov), rel=1e-6)
    assert mu_qk == pytest.approx(float(state.mu_qk), rel=1e-6)
    predicted = class_competition(SMALL, r, 0.1, **options)
    assert math.log(delta / seed) == pytest.approx(float(predicted.log_delta), abs=1e-5)
    assert math.log(epsilon / seed) == pytest.approx(float(predicted.log_epsilon), abs=1e-5)


def test_equations_of_both_collapsed():
    """The unscaled pair: d delta/d mu = epsilon, d epsilon/d mu = K [(1-alpha) mu epsilon + delta]."""
    coupling = 10.0 * 4 / 250

    def slopes(mu, y):
        q, delta, epsilon = y
        rest = 10 / (math.exp(q) + 10)
        return [coupling * rest * mu, epsilon, coupling * (rest * mu * epsilon + delta)]

    end = float(at_loss(PAPER, 10.0, 0.01).mu_ov)
    expected = solve_ivp(slopes, (0, end), [0, 1, 0], method="DOP853", rtol=1e-12, atol=1e-12).y[1:, -1]
    grown = class_competition(PAPER, 10.0, 0.01)
    np.testing.assert_allclose(np.array([grown.log_delta, grown.log_epsilon]), np.log(expected), rtol=1e-9)


def test_early_growth_rate():
    """Initially at (alpha0/(bM)) sqrt(eta_qk eta_ov (M-1)/(Mb)): delta is the hyperbolic cosine of it times t."""
    state = at_loss(PAPER, 1e4, 1.609)
    rate = PAPER.alpha0 / 250 * math.sqrt(1e4 * 4 / 250)
    grown = class_competition(PAPER, 1e4, 1.609)
    assert float(grown.log_delta) == pytest.approx(math.log(math.cosh(rate * float(state.t))), rel=0.02)


@pytest.mark.parametrize("which", STARTS)
def test_every_ratio_in_few_steps(which, monkeypatch):
    """Without a warning (pytest makes them errors)."""
    r, options = np.array([1e-30, 1.0, 1e10, 1e20, 1e30]), {"parameterization": which, "initial": STARTS[which]}
    monkeypatch.setattr(stability, "STEPS", 20_000)
    grown = class_competition(PAPER, r[:, None], [1.0, 0.1, 1e-3], **options)
    assert np.isfinite(grown.log_delta).all()
    assert (np.diff(grown.log_delta) > 0).all()


@pytest.mark.parametrize("which", STARTS)
@pytest.mark.parametrize("r", [1e8])
def test_stiff_ratios_against_another_integrator(which, r):
    """The slope of ln delta by Radau, from mu_qk in closed form."""
    curve, loss = Curve.start(PAPER, which, STARTS[which]), 0.1
    bent, turned, root_b, b = curve.parameterization.factorized_qk, which.endswith("FO"), math.sqrt(50), 50
    coupling, end = float(curve.coupling(r)), float(at_loss(PAPER, r, loss, **_options(which)).mu_ov)

    def slopes(x, y):
        # In ln mu_ov, from where nothing has happened yet; share is scaled by the rate at which it settles.
        mu = math.exp(x)
        q = float(curve.mu_qk(r, max(mu - curve.mu0, 0.0)))
        rest, share = float(PAPER.inattention(q)), y[1]
        force = coupling * (rest * mu * share + 1)
        epsilon = b * (q * force + coupling * rest * mu * share) if bent else force
        delta = root_b * (mu * share + 1) if turned else share
        pace = 2 * root_b if turned else 1 / mu
        return [delta / pace, (epsilon - share * delta) / pace]

    begin = math.log(curve.mu0) if curve.mu0 else math.log(end) - 32
    start = [0.0, coupling * math.exp(begin) * (1 if not bent else b * curve.q0)] if not curve.mu0 else [0.0, 0.0]
    theirs = solve_ivp(slopes, (begin, math.log(end)), start, method="Radau", rtol=1e-8, atol=1e-12).y[:, -1]
    grown = class_competition(PAPER, r, loss, **_options(which))
    np.testing.assert_allclose(grown.log_delta, theirs[0], rtol=1e-6)
    np.testing.assert_allclose(grown.log_epsilon - grown.log_delta, math.log(theirs[1]), atol=1e-6)


@pytest.mark.parametrize("which", ["CACO", "CAFO"])
def test_largest_ratios_scale(which):
    """Where the QK circuit is collapsed, ln delta grows like sqrt(r)."""
    r = np.array([1e40, 1e60, 1e75])
    grown = class_competition(PAPER, r, 0.1, **_options(which)).log_delta / np.sqrt(r)
    np.testing.assert_allclose(grown, grown[0], rtol=1e-9)


@pytest.mark.parametrize("which", ["FACO", "FAFO", "CAFO"])
def test_smallest_starts_grow_in_logarithms(which):
    """At r = 1e-6 attention does not move: mu_ov and delta keep their ratio, scores stay below 1e-60 of delta."""
    options = {"parameterization": which, "initial": tuple(1e-60 if form == "F" else 0.0 for form in which[2::-2])}
    grown = class_competition(PAPER, [1e-6, 1e6], 0.1, **options)
    assert np.isfinite(grown).all()
    if which.endswith("FO"):
        expected = 0.5 * math.log(float(at_loss(PAPER, 1e-6, 0.1, **options).mu_ov) / 1e-60)
        assert grown.log_delta[0] == pytest.approx(expected, rel=1e-6)
    if which.startswith("FA"):
        assert grown.log_epsilon[0] - grown.log_delta[0] < math.log(1e-60)


@pytest.mark.parametrize(("which", "gap"), [("CACO", 1.0), ("FACO", 1e-75)])
def test_slowest_attention_circuits(which, gap):
    """To first order in K: d epsilon/d mu_ov = K, or b mu_qk K at a factorized circuit's start."""
    r = np.array([1e-75, 1e-30, 1e-13])
    options = {"parameterization": which, "initial": (0.0, gap if which == "FACO" else 0.0)}
    grown = class_competition(PAPER, r, 0.1, **options)
    speed = r * 4 / 250 * (50 * gap if which == "FACO" else 1.0)
    mu = at_loss(PAPER, r, 0.1, **options).mu_ov
    np.testing.assert_allclose(grown.log_epsilon, np.log(speed * mu), rtol=1e-11)
    np.testing.assert_allclose(grown.log_delta, speed * mu**2 / 2, rtol=1e-9)


def test_smallest_gap_keeps_its_growth():
    """While mu_qk << 1: mu_qk = q0 e^(c mu^2) and epsilon = b K q0 e^(c mu^2/2) int_0^mu e^(c s^2/2) ds, c = b K (1-alpha0)."""
    for r in (1e-4, 1e-2):
        options = {"parameterization": "FACO", "initial": (0.0, 1e-75)}
        mu = float(at_loss(PAPER, r, 0.1, **options).mu_ov)
        drive = 50 * r * 4 / 250
        c = drive * 10 / 11
        inside = quad(lambda s, c=c: math.exp(c * s * s / 2), 0, mu, epsrel=1e-12)[0]
        expected = math.log(drive * 1e-75) + c * mu**2 / 2 + math.log(inside)
        grown = class_competition(PAPER, r, 0.1, **options)
        assert float(grown.log_epsilon) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("sizes", [(1, 10**15, 10**15, 10**15), (10**15, 1, 1, 2)])
def test_largest_settings_end_in_numbers(sizes):
    setting = Setting(*sizes)
    for which, start in STARTS.items():
        grown = class_competition(setting, [1e-75, 1e75], 0.1, parameterization=which, initial=start)
        assert not np.isnan(grown).any()
    # Here a step tries to go e^700 ahead.
    begin = {"parameterization": "FAFO", "initial": (1e-75, 1e-75)}
    assert not np.isnan(class_competition(setting, 1e-55, setting.initial_loss / 20, **begin)).any()


def test_an_integrator_that_gives_up_leaves_nan(monkeypatch):
    monkeypatch.setattr(stability, "STEPS", 400)
    grown = class_competition(PAPER, [1e-3, 1e8], 0.5)
    assert np.isfinite(grown.log_delta[0])
    assert np.isnan(grown.log_delta[1])
    assert np.isnan(grown.log_epsilon[1])


def test_broadcasting_and_large_amplifications():
    grown = class_competition(PAPER, [[1.0], [1e6]], [1.0, 0.1, 0.01])
    assert grown.log_delta.shape == grown.log_epsilon.shape == (2, 3)
    assert (np.diff(grown.log_delta) > 0).all()
    assert 700 < grown.log_delta[1, 2] < np.inf
    assert class_competition(PAPER, 1, 0.1).log_delta.shape == ()


@pytest.mark.parametrize(
    ("r", "k", "predicted"), [(1, 1, 0.02571), (1, 5, 0.00514), (0.01, 1, 0.00257), (100, 5, 0.0514)]
)
def test_background_rate(r, k, predicted):
    assert float(background_rate(PAPER, r, kappa=1 / k)) == pytest.approx(predicted, rel=2e-3)
    assert float(background_rate(PAPER, r, kappa=1 / k, eta_ov=3)) == pytest.approx(3 * predicted, rel=2e-3)


@pytest.mark.parametrize("r", [0.3, 20.0])
def test_backgrounds_are_amplified_as_predicted(r):
    """Both parts of the perturbation, against the flow of all matrices on a design that lists both signs."""
    from qkdyn.tasks.designs import Population
    from qkdyn.theory.matrix_flow import at_losses

    design = Population(m=2, n=4, b=3, M=3, backgrounds=2, query="mean").balanced().unfolded()
    seed, v = 1e-7 * np.array([1.0, 0.5, -1.5]), np.eye(11)[9]
    start = {
        "qk": {"W_QK": np.outer(v, math.sqrt(r / 3) * seed @ design.S)},
        "ov": {"W_OV": np.outer(seed, v)},
    }
    flow = at_losses(design, start, [0.8, 0.1], eta_qk=r, eta_ov=1.0).params
    predicted = background_amplification(Setting(2, 4, 3, 3), r, [0.8, 0.1], kappa=0.5)
    u, beta = flow["ov"]["W_OV"][:, 0, 9] / seed[0], flow["qk"]["W_QK"][:, 9, 0] / seed[0] / math.sqrt(r / 3)
    np.testing.assert_allclose(np.log([u, beta]), predicted, atol=1e-5)


@pytest.mark.parametrize(
    ("kappa", "reference"),
    [
        (1, [249, 489, 643, 702, 719]),
        (0.1, [24.9, 48.9, 64.3, 70.2, 71.9]),
        (0.02, [5.0, 9.8, 12.9, 14.0, 14.4]),
        (0.004, [1.0, 2.0, 2.6, 2.8, 2.8]),
    ],
)
def test_background_amplification_at_the_papers_sizes(kappa, reference):
    """Of the pair (u, beta) by an integration in time: ln of its norm, over that of the start."""
    grown = background_amplification(PAPER, [0.01, 0.1, 1, 10, 100], 0.1, kappa=kappa)
    pair = (np.logaddexp(2 * grown.log_u, 2 * grown.log_beta) - math.log(2)) / 2
    np.testing.assert_allclose(pair, reference, atol=0.5 if kappa == 1 else 0.051)


def test_background_amplification_begins_at_its_rate():
    r, kappa = np.array([[1e-3], [1.0], [1e3]]), np.array([0.1, 1e-3])
    rate = background_rate(PAPER, r, kappa=kappa)
    state = at_loss(PAPER, r, 1.609)
    grown = background_amplification(PAPER, r, 1.609, kappa=kappa)
    assert grown.log_u.shape == (3, 2)
    np.testing.assert_allclose(grown.log_u, rate * state.t, rtol=5e-4)


def test_background_amplification_of_extreme_ratios(monkeypatch):
    ratios = [1e-75, 1e-6, 1e8, 1e30, 1e75]
    grown = background_amplification(PAPER, ratios, 0.1, kappa=[[1.0], [1e-3]])
    assert np.isfinite(grown).all()
    # Attention that is there at once ends the growth: there is a largest amplification.
    assert (np.diff(grown.log_u) > -1e-6).all() and grown.log_u[0, -1] == pytest.approx(grown.log_u[0, -2], rel=1e-6)
    monkeypatch.setattr(stability, "STEPS", 10)
    assert np.isnan(background_amplification(PAPER, 1.0, 0.1, kappa=1.0)).all()


def test_wrong_input():
    with pytest.raises(InputError, match=r"kappa must be positive and finite, got -1\.0"):
        background_amplification(PAPER, 1.0, 0.1, kappa=-1.0)
    with pytest.raises(RangeError, match="loss must be between 0 and the loss at the start"):
        background_amplification(PAPER, 1.0, 2.0, kappa=1.0)
    with pytest.raises(InputError, match="such that they broadcast"):
        background_amplification(PAPER, [1.0, 2.0], 0.1, kappa=[1.0, 1.0, 1.0])
    with pytest.raises(InputError, match=r"kappa must be positive and finite, got 0\.0"):
        background_rate(PAPER, 1.0, kappa=0.0)
    with pytest.raises(InputError, match=r"r must be positive and finite, got -1\.0"):
        class_competition(PAPER, -1.0, 0.1)
    with pytest.raises(RangeError, match="loss must be between 0 and the loss at the start"):
        class_competition(PAPER, 1.0, 2.0)
    with pytest.raises(InputError, match=r"initial must be given.*saddle"):
        class_competition(PAPER, 1.0, 0.1, parameterization="CAFO")
