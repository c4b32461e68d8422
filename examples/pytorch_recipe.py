"""Sharper attention in PyTorch: parameter groups in which the query-key circuit learns r times as fast as the output-value one.

A small causal model of characters learns a story of 10 kB, at r = 1 and at r = 10 from the same start. Compared at equal
loss on text it has not seen, attention is sharper at r = 10. Query, key and value are fused in one c_attn, as in GPT-2, which
cannot stand in two parameter groups: `split_fused` makes its parts parameters of their own, and the model does not notice.
Lines marked qkdyn are all that is added to a training loop.

Command:  pip install torch; python examples/pytorch_recipe.py [--steps 400] [--out FOLDER] [--unfused]
Expect:   within a minute on two cores the rates, the comparison, and the figure pytorch_recipe.png. With --unfused the model
          has q_proj, k_proj and v_proj instead, started at the same numbers, and learns the same but for rounding
          (losses 0.01 apart after 400 steps).
"""

import sys

import numpy as np
from common import EVERY, MEASURES, options, progress, read_text, report

from qkdyn.metrics.sharpness import attention_entropy, effective_tokens, top_k_mass

try:
    import torch
except ModuleNotFoundError:
    sys.exit("examples/pytorch_recipe.py needs PyTorch, which is an extra: .venv/bin/pip install torch")
from torch import nn

from qkdyn.torch_groups import circuit_groups, merge_fused, split_fused

RATIOS = (1.0, 10.0)
LENGTH, BATCH, WIDTH, HEADS, LAYERS = 32, 16, 64, 4, 2
RATE = 1e-3


class Attention(nn.Module):
    """Attention to earlier characters, query, key and value fused or not; keeps its last map, (batch, heads, ...)."""

    def __init__(self, fused):
        super().__init__()
        whole, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if fused:
            self.c_attn = whole
        else:
            self.q_proj, self.k_proj, self.v_proj = (nn.utils.skip_init(nn.Linear, WIDTH, WIDTH) for _ in range(3))
            for name, part in whole.named_parameters():
                for own, numbers in zip((self.q_proj, self.k_proj, self.v_proj), part.detach().chunk(3), strict=True):
                    getattr(own, name).data.copy_(numbers)

    def forward(self, x):
        if hasattr(self, "c_attn"):
            q, k, v = self.c_attn(x).chunk(3, -1)
        else:
            q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        self.map = scores.softmax(-1)
        return self.c_proj((self.map @ v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, fused):
        super().__init__()
        self.attention, self.norms = Attention(fused), nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Model(nn.Module):
    """Logits (batch, LENGTH, characters) of the next character."""

    def __init__(self, characters, fused):
        super().__init__()
        self.letters, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.out, self.norm = nn.Linear(WIDTH, characters), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block(fused) for _ in range(LAYERS))

    def forward(self, tokens):
        x = self.letters(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def loss_of(model, windows):
    return nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def measure(model, windows):
    """Loss, and the means over layers, heads and queries of what is measured of attention."""
    loss = float(loss_of(model, windows))
    maps = np.stack([block.attention.map.numpy() for block in model.blocks])
    values = attention_entropy(maps), effective_tokens(maps), top_k_mass(maps, 1)
    return {"loss": loss, **{name: float(value.mean()) for name, value in zip(MEASURES, values, strict=True)}}


def train(r, text, fused):
    """One run from the start that every ratio has."""
    torch.manual_seed(0)
    model = Model(len(text.characters), fused)
    split_fused(model)  # qkdyn
    # freeze=("rest",) leaves a part out of the groups, not out of clip_grad_norm_(model.parameters()): clip the groups' own.
    groups = circuit_groups(model, learning_rate=RATE, multipliers={"qk": r, "ov": 1.0, "rest": 1.0})  # qkdyn
    print("; ".join(f"{g['label']}: {sum(p.numel() for p in g['params']):,} at {g['lr']:g}" for g in groups))
    optimizer, records = torch.optim.Adam(groups), []
    held_out = torch.tensor(text.held_out, dtype=torch.long)
    for step, windows in enumerate(torch.tensor(text.batches, dtype=torch.long), 1):
        optimizer.zero_grad()
        loss_of(model, windows).backward()
        optimizer.step()
        if step % EVERY == 0:
            records.append({"step": step, **measure(model, held_out)})
            progress(r, step, records[-1]["loss"])
    merge_fused(model)  # qkdyn: c_attn again, as checkpoints want it
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def main(steps=400, out=".", unfused=False):
    """Train at both ratios; print and draw the comparison."""
    torch.set_num_threads(1)  # a model as small as this is slower on several
    text = read_text(steps, BATCH, LENGTH)
    return report({r: train(r, text, not unfused) for r in RATIOS}, "pytorch_recipe.png", out)


if __name__ == "__main__":
    main(**options(__doc__, steps=400, unfused="query, key and value not fused"))
