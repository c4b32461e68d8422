"""What the engine of the synthetic task is measured against: PyTorch, one run at a time and many by torch.func.vmap."""

import time
from collections.abc import Callable

import numpy as np

from qkdyn.tasks.tokens import CLASSES, COMMON, DISTINCT, VOCABULARY, TokensTask

RATE = 0.01


def loop(task: TokensTask, threads: int, vectorized: bool) -> Callable[[int], float]:
    """Run-steps per second of one FAFO run as one would write it: one-hot sequences, four linear layers, torch's SGD.

    Each sequence is drawn by numpy's `choice` or, `vectorized`, the whole batch by inverting the cumulated law.
    """
    import torch
    from torch import nn

    rng = np.random.default_rng(0)
    law = task.law()
    cumulated = np.cumsum(law)[:-1]
    layers = nn.ModuleDict({name: nn.Linear(VOCABULARY, VOCABULARY, bias=False) for name in "KQVO"})
    optimizer = torch.optim.SGD(layers.parameters(), lr=RATE)
    cross_entropy = nn.CrossEntropyLoss()

    def step() -> None:
        c = rng.integers(CLASSES, size=task.batch)
        if vectorized:
            outcome = np.searchsorted(cumulated, rng.random((task.batch, task.context)))
        else:
            outcome = np.stack([rng.choice(law.size, task.context, p=law) for _ in c])
        ids = np.where(outcome < COMMON, outcome, outcome + DISTINCT * c[:, None])
        ids = torch.from_numpy(np.concatenate([ids, task.query_ids[c][:, None]], 1))
        X = nn.functional.one_hot(ids, VOCABULARY).float()
        score = layers["K"](X) @ layers["Q"](X[:, -1])[:, :, None] / VOCABULARY**0.5
        mixed = (torch.softmax(score, 1) * layers["V"](X)).sum(1)
        optimizer.zero_grad()
        cross_entropy(layers["O"](mixed), torch.from_numpy(task.label_ids[c])).backward()
        optimizer.step()

    return lambda steps: _rate(step, steps, 1, threads)


def vmapped(task: TokensTask, runs: int, threads: int) -> Callable[[int], float]:
    """Run-steps per second of `runs` FAFO runs on token counts, their gradients by torch.func.vmap."""
    import torch

    cumulated = torch.from_numpy(np.cumsum(task.law())[:-1]).float()
    query_ids, label_ids = torch.from_numpy(task.query_ids), torch.from_numpy(task.label_ids)
    bound = VOCABULARY**-0.5
    params = {name: torch.empty(runs, VOCABULARY, VOCABULARY).uniform_(-bound, bound) for name in "KQVO"}

    def loss(params: dict[str, torch.Tensor], n: torch.Tensor, q: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        # A count as the logarithm that is added to its score: zero counts get no attention.
        score = params["Q"][q] @ params["K"].T / VOCABULARY**0.5 + n.log()
        logits = torch.softmax(score, -1) @ params["V"].T @ params["O"].T
        return torch.nn.functional.cross_entropy(logits, y)

    gradient = torch.func.vmap(torch.func.grad(loss))

    def step() -> None:
        c = torch.randint(CLASSES, (runs, task.batch))
        outcome = torch.bucketize(torch.rand(runs, task.batch, task.context), cumulated)
        ids = torch.where(outcome < COMMON, outcome, outcome + DISTINCT * c[..., None])
        n = torch.zeros(runs, task.batch, VOCABULARY)
        n.scatter_add_(2, torch.cat([ids, query_ids[c][..., None]], 2), torch.ones(runs, task.batch, task.context + 1))
        found = gradient(params, n, query_ids[c], label_ids[c])
        for name, matrices in params.items():
            matrices.sub_(found[name], alpha=RATE)

    return lambda steps: _rate(step, steps, runs, threads)


def _rate(step: Callable[[], None], steps: int, runs: int, threads: int) -> float:
    import torch

    torch.set_num_threads(threads)
    step()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * runs / (time.perf_counter() - begun)
