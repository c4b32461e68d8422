"""What training and reading on text is measured against: the same model in PyTorch, a run at a time, posts one by one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from qkdyn.metrics.cores import top_count
from qkdyn.text.encoded import Encoded
from qkdyn.train.text_batches import Batches
from qkdyn.train.text_engine import TextJob, cosine
from qkdyn.transformer import TransformerConfig

# Tokens, lengths and labels of some posts.
Batch = tuple[torch.Tensor, ...]
Trainer = Callable[[Sequence[Batch]], np.ndarray]

use_threads = torch.set_num_threads


class Transformer(nn.Module):
    """The controlled recipe's model: one layer, causal, padding masked, no LayerNorm.

    Computes every row of attention and of the MLP, and reads one of them; or, with `one_row`, only that one.
    """

    def __init__(self, config: TransformerConfig, params: dict[str, Any], one_row: bool = False) -> None:
        super().__init__()
        self.heads, self.one_row = config.n_heads, one_row
        (layer,) = params["layers"]
        qk, ov, mlp, head = layer["qk"], layer["ov"], layer["mlp"], params["head"]
        self.embed = nn.Embedding.from_pretrained(tensor(params["embed"]["W_E"]), freeze=False)
        self.positions = nn.Parameter(tensor(params["embed"]["W_pos"]))
        self.query, self.key = (linear(joined(qk[f"W_{name}"]), qk[f"b_{name}"].ravel()) for name in "QK")
        self.value = linear(joined(ov["W_V"]), ov["b_V"].ravel())
        self.out = linear(ov["W_O"].reshape(-1, config.d_model), ov["b_O"])
        self.up, self.down = (linear(mlp[f"W_{name}"], mlp[f"b_{name}"]) for name in ("in", "out"))
        self.head = linear(head["W_U"], head["b_U"])

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each circuit."""
        layers = {"qk": (self.query, self.key), "ov": (self.value, self.out), "mlp": (self.up, self.down)}
        layers["head"] = (self.head,)
        groups = {name: [p for part in parts for p in part.parameters()] for name, parts in layers.items()}
        return {"embed": [self.embed.weight, self.positions], **groups}

    def forward(self, tokens: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits at the last real token, (B, M), and attention, (B, H, rows, T)."""
        B, T = tokens.shape
        every, place, last = torch.arange(B), torch.arange(T), length - 1
        x = self.embed(tokens) + self.positions[:T]
        rows, at = (x[every, last][:, None], last[:, None]) if self.one_row else (x, place[None])
        allowed = (place <= at[:, :, None]) & (place < length[:, None, None])
        query, key, value = (
            part(of).view(B, -1, self.heads, part.out_features // self.heads).transpose(1, 2)
            for part, of in ((self.query, rows), (self.key, x), (self.value, x))
        )
        score = query @ key.mT / key.shape[-1] ** 0.5
        attention = score.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
        rows = rows + self.out((attention @ value).transpose(1, 2).flatten(2))
        rows = rows + self.down(nn.functional.gelu(self.up(rows), approximate="tanh"))
        return self.head(rows[:, 0] if self.one_row else rows[every, last]), attention


def tensor(values: Any) -> torch.Tensor:
    """A copy."""
    return torch.tensor(np.asarray(values))


def joined(W: Any) -> Any:
    """(H, d, dh) as one matrix, (d, H * dh)."""
    return W.transpose(1, 0, 2).reshape(W.shape[1], -1)


def linear(W: Any, b: Any) -> nn.Linear:
    """A layer of x W + b."""
    layer = nn.Linear(*W.shape)
    layer.weight.data, layer.bias.data = tensor(W.T), tensor(b)
    return layer


def batches_of(batches: Batches, widths: Sequence[int], seed: int) -> list[Batch]:
    """The engine's batches of one seed, each trimmed alike: tokens, lengths, labels."""
    out = []
    for step, width in enumerate(batches.width):
        there = batches.weight[step, seed] > 0
        tokens = batches.ids[step, seed][batches.inverse[step, seed][there, : widths[width]]]
        rest = (values[step, seed][there] for values in (batches.length, batches.label))
        out.append(tuple(torch.from_numpy(values.astype(np.int64)) for values in (tokens, *rest)))
    return out


def trainer(
    job: TextJob, params: dict[str, Any], rates: dict[str, float], decay: float, one_row: bool = False
) -> Trainer:
    """One run: a function that trains it on batches and returns the loss before each update.

    AdamW on everything, by the fused kernel with `one_row`; a group of parameters for each circuit, at its own of the `rates`.
    Gradients are clipped, and rates scheduled, as the engine does.
    """
    model = Transformer(job.model, params, one_row)
    groups = [{"params": params, "lr": rates[name]} for name, params in model.groups().items()]
    optimizer = torch.optim.AdamW(groups, weight_decay=decay, fused=one_row)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: float(cosine(np, step, job.warmup, job.steps))
    )

    def train(batches: Sequence[Batch]) -> np.ndarray:
        losses = []
        for tokens, length, label in batches:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(tokens, length)[0], label)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        return np.array(losses)

    return train


@torch.inference_mode()
def faithfulness(model: Transformer, posts: Encoded, share: float) -> np.ndarray:
    """Comprehensiveness and sufficiency of each post, and how clear the choice of tokens was, (3, N).

    A post at a time, three forward passes each: whole, without its most attended content tokens, with these alone. The query
    token at its end stays. The last number is the gap in attention between the tokens chosen and the others.
    """

    def one(ids: np.ndarray) -> tuple[float, float, float]:
        probability, attention = read(ids)
        c = int(probability.argmax())
        row = attention[0, :, -1].mean(0).numpy()[:-1]
        k = int(top_count(np, len(row), share))
        order = np.argpartition(-row, k - 1)
        top, others = np.sort(order[:k]), np.sort(order[k:])
        without, only = (read(np.append(ids[kept], ids[-1]))[0] for kept in (others, top))
        gap = row[top].min() - row[others].max(initial=-np.inf)
        return float(probability[c] - without[c]), float(probability[c] - only[c]), gap

    def read(ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        logits, attention = model(torch.from_numpy(ids)[None], torch.tensor([len(ids)]))
        return logits[0].softmax(-1), attention

    return np.array([one(ids[:n]) for ids, n in zip(posts.tokens.astype(np.int64), posts.length, strict=True)]).T
