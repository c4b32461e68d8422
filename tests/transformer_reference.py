"""The transformer by hand, in numpy: one post, one head, one position at a time, in the precision of its parameters."""

import math

import numpy as np


def forward(params, config, tokens, length, queries):
    """Logits (B, Q, M) at `queries`, and attention of every layer (B, H, T, T)."""
    posts = [post(params, config, tokens[b], int(length[b])) for b in range(len(tokens))]
    logits = np.stack([out[[int(q) for q in queries[b]]] for b, (out, _) in enumerate(posts)])
    return logits, [np.stack([maps[layer] for _, maps in posts]) for layer in range(config.n_layers)]


def post(params, config, tokens, length):
    """All logits (T, M) and attention maps of one post."""
    T = len(tokens)
    x = [np.array(params["embed"]["W_E"][token]) for token in tokens]
    if config.positions:
        x = [vector + params["embed"]["W_pos"][t] for t, vector in enumerate(x)]
    maps = []
    for layer in params["layers"]:
        read = [normed(config, layer, "1", vector) for vector in x]
        attended, attention = heads(config, layer, read, length)
        maps.append(attention)
        x = [x[t] + attended[t] if config.residual else attended[t] for t in range(T)]
        if config.d_mlp is not None:
            out = [mlp(config, layer["mlp"], normed(config, layer, "2", vector)) for vector in x]
            x = [x[t] + out[t] if config.residual else out[t] for t in range(T)]
    x = [normed(config, params, "f", vector) for vector in x]
    W_U = params["embed"]["W_E"].T if config.tied else params["head"]["W_U"]
    return np.stack([vector @ W_U + params["head"].get("b_U", 0.0) for vector in x]), maps


def heads(config, layer, x, length):
    """What every position gets from attention, and the attention (H, T, T)."""
    qk, ov, T = layer["qk"], layer["ov"], len(x)
    zero = np.zeros((config.n_heads, config.d_head))
    attention = np.zeros((config.n_heads, T, T))
    attended = [ov.get("b_O", 0.0) + np.zeros(config.d_model) for _ in range(T)]
    for h in range(config.n_heads):
        key = [x[t] @ qk["W_K"][h] + qk.get("b_K", zero)[h] for t in range(T)]
        value = [x[t] @ ov["W_V"][h] + ov.get("b_V", zero)[h] for t in range(T)]
        for i in range(T):
            query = x[i] @ qk["W_Q"][h] + qk.get("b_Q", zero)[h]
            seen = [t for t in range(T) if (t <= i or not config.causal) and (t < length or not config.mask_padding)]
            score = np.array([query @ key[t] / math.sqrt(config.d_head) for t in seen])
            weight = np.exp(score - score.max())
            attention[h, i, seen] = weight / weight.sum()
            attended[i] = attended[i] + sum(attention[h, i, t] * value[t] for t in seen) @ ov["W_O"][h]
    return attended, attention


def mlp(config, mlp, x):
    hidden = x @ mlp["W_in"] + mlp.get("b_in", 0.0)
    if config.activation == "gelu":
        active = np.array([0.5 * u * (1 + math.erf(u / math.sqrt(2))) for u in hidden])
    else:
        active = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    return active @ mlp["W_out"] + mlp.get("b_out", 0.0)


def normed(config, layer, name, x):
    if config.layer_norm == "none":
        return x
    norm = layer["rest"]
    return (x - x.mean()) / math.sqrt(x.var() + 1e-5) * norm[f"g_{name}"] + norm.get(f"b_{name}", 0.0)


def loss(params, config, tokens, length, queries, labels):
    """Mean over posts and rows of -log softmax(logits)_label."""
    logits, _ = forward(params, config, tokens, length, queries)
    logits = logits - logits.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.mean([log_p[b, q, labels[b, q]] for b in range(labels.shape[0]) for q in range(labels.shape[1])])
