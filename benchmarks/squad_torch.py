"""What training on questions is measured against: the same model in PyTorch, as one who knows it well would write it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.text_torch import joined, linear, tensor, use_threads
from qkdyn.text.answer_batches import AnswerBatch
from qkdyn.train.language_batches import Batches
from qkdyn.train.language_engine import B2, EPS, LanguageJob
from qkdyn.train.one_cycle import HIGH, LOW
from qkdyn.transformer import TransformerConfig

# Label of a position that has none.
NONE = -100
# Tokens and labels, (B, T), of each micro-batch of an update.
Update = Sequence[tuple[torch.Tensor, torch.Tensor]]
Of = Callable[[torch.Tensor], Any]

__all__ = ["Answerer", "Trainer", "updates_of", "use_threads"]


class Block(nn.Module):
    """Attention, by the library's fused function, and MLP, each with LayerNorm before it and what it read added to it."""

    def __init__(self, config: TransformerConfig, layer: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.dropout = config.n_heads, config.dropout
        qk, ov, mlp, rest = layer["qk"], layer["ov"], layer["mlp"], layer["rest"]
        self.first, self.second = (_norm(rest, name) for name in "12")
        self.query, self.key = (linear(joined(qk[f"W_{name}"]), qk[f"b_{name}"].ravel()) for name in "QK")
        self.value = linear(joined(ov["W_V"]), ov["b_V"].ravel())
        self.out = linear(ov["W_O"].reshape(-1, config.d_model), ov["b_O"])
        self.up, self.down = (linear(mlp[f"W_{name}"], mlp[f"b_{name}"]) for name in ("in", "out"))
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All rows, (B, T, d)."""
        read = self.first(x)
        q, k, v = (
            part(read).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        share = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=share)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.drop(self.down(self.drop(functional.gelu(self.up(self.second(x))))))

    def tree(self, of: Of) -> dict[str, Any]:
        """`of` every parameter, named and shaped as in `qkdyn.transformer`."""

        def heads(name: str, part: nn.Linear) -> dict[str, Any]:
            W = of(part.weight)
            split = W.reshape(self.heads, -1, W.shape[1]).swapaxes(1, 2)
            return {f"W_{name}": split, f"b_{name}": of(part.bias).reshape(self.heads, -1)}

        out = of(self.out.weight).T
        out = {"W_O": out.reshape(self.heads, -1, out.shape[1]), "b_O": of(self.out.bias)}
        norms = {"1": self.first, "2": self.second}
        return {
            "qk": heads("Q", self.query) | heads("K", self.key),
            "ov": heads("V", self.value) | out,
            "mlp": {
                f"{kind}_{name}": of(part.weight).T if kind == "W" else of(part.bias)
                for name, part in {"in": self.up, "out": self.down}.items()
                for kind in "Wb"
            },
            "rest": {
                f"{kind}_{name}": of(norm.weight if kind == "g" else norm.bias)
                for name, norm in norms.items()
                for kind in "gb"
            },
        }


class Answerer(nn.Module):
    """The published decoder: learned positions, causal, its head tied to the token embedding."""

    def __init__(self, config: TransformerConfig, params: dict[str, Any]) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(tensor(params["embed"]["W_E"]), freeze=False)
        self.positions = nn.Parameter(tensor(params["embed"]["W_pos"]))
        self.drop = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in params["layers"])
        self.norm = _norm(params["rest"], "f")
        self.bias = nn.Parameter(tensor(params["head"]["b_U"]))

    def forward(self, tokens: torch.Tensor, read: torch.Tensor | None = None) -> torch.Tensor:
        """Logits at every position, (B, T, V), or at those that a mask reads, (L, V)."""
        x = self.drop(self.embed(tokens) + self.positions[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return functional.linear(x if read is None else x[read], self.embed.weight, self.bias)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """The parameters by what decides their rate and decay: token embedding, query-key circuits, all others."""
        qk = [p for block in self.blocks for part in (block.query, block.key) for p in part.parameters()]
        chosen = {id(p) for p in (*qk, self.embed.weight)}
        return {"embed": [self.embed.weight], "qk": qk, "rest": [p for p in self.parameters() if id(p) not in chosen]}

    def tree(self, of: Of) -> dict[str, Any]:
        """`of` every parameter, named and shaped as in `qkdyn.transformer`."""
        return {
            "embed": {"W_E": of(self.embed.weight), "W_pos": of(self.positions)},
            "head": {"b_U": of(self.bias)},
            "layers": tuple(block.tree(of) for block in self.blocks),
            "rest": {"g_f": of(self.norm.weight), "b_f": of(self.norm.bias)},
        }


def _norm(rest: dict[str, Any], name: str) -> nn.LayerNorm:
    norm = nn.LayerNorm(len(rest[f"g_{name}"]))
    norm.weight.data, norm.bias.data = tensor(rest[f"g_{name}"]), tensor(rest[f"b_{name}"])
    return norm


def updates_of(batches: Batches, job: LanguageJob) -> list[Update]:
    """The engine's batches, each in its own width."""
    batches = jax.device_get(batches)

    def one(posts: AnswerBatch, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = np.full((len(posts.tokens), slots), NONE, np.int64)
        there = posts.weight > 0
        post, place = np.divmod(posts.row[there], posts.queries.shape[1])
        labels[post, posts.queries[post, place]] = posts.label[there]
        return torch.from_numpy(posts.tokens[:, :slots].astype(np.int64)), torch.from_numpy(labels)

    return [
        [
            one(AnswerBatch(*(leaf[step, micro] for leaf in batches.posts)), job.shapes[kind].slots)
            for micro in range(job.micro)
        ]
        for step, kind in enumerate(batches.shape)
    ]


class Trainer:
    """One run, trained further by each call: AdamW by the fused kernel, one cycle, gradients accumulated and clipped."""

    def __init__(
        self, job: LanguageJob, params: Any, rates: dict[str, float], decay: dict[str, float], at_labels: bool
    ) -> None:
        self.job, self.at_labels = job, at_labels
        self.model = Answerer(job.model, params)
        groups = self.model.groups()
        self.optimizer = torch.optim.AdamW(
            [{"params": own, "lr": rates[name], "weight_decay": decay[name]} for name, own in groups.items()],
            betas=(HIGH, B2),
            eps=EPS,
            fused=True,
        )
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer,
            [rates[name] for name in groups],
            total_steps=job.cycle,
            pct_start=job.warmup / job.cycle,
            base_momentum=LOW,
            max_momentum=HIGH,
        )

    def __call__(self, updates: Sequence[Update]) -> np.ndarray:
        """Train on the updates; the loss before each."""
        losses = []
        for update in updates:
            self.optimizer.zero_grad()
            total = 0.0
            for tokens, labels in update:
                loss = self.loss(tokens, labels) / len(update)
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip)
            self.optimizer.step()
            self.scheduler.step()
            losses.append(total)
        return np.array(losses)

    def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of a micro-batch over its labels."""
        if self.at_labels:
            read = labels != NONE
            logits, labels = self.model(tokens, read), labels[read]
        else:
            logits, labels = self.model(tokens).flatten(0, 1), labels.flatten()
        return functional.cross_entropy(logits, labels, ignore_index=NONE, label_smoothing=self.job.smoothing)

    def params(self) -> dict[str, Any]:
        """The parameters, as `qkdyn.transformer` has them."""
        return self.model.tree(lambda p: p.detach().numpy().copy())

    def gradients(self) -> dict[str, Any]:
        """The gradients that the last update used, clipped."""
        return self.model.tree(lambda p: np.zeros(p.shape, np.float32) if p.grad is None else p.grad.numpy().copy())
