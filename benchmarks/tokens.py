"""Run-steps per second of the synthetic task, against PyTorch, against the machine's own matrix products, and in the runs.

FAFO as in Fig. 2: 50 ids, batch 32, length 64. Without PyTorch (the `bench` extra) its rows are left out.
"""

import functools
import importlib.util
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from benchmarks.measure import Bench, Row, interleaved, rows
from benchmarks.tokens_torch import loop, vmapped
from qkdyn.circuits import init_params, torch_uniform
from qkdyn.tasks.tokens import CLASSES, VOCABULARY, TokensTask
from qkdyn.train.engine import RUNS
from qkdyn.train.tokens import advance_tokens, start_tokens, token_runs

PART = "tokens"
COUNTS = (40, 1, 8, 200, 1000)
UNIT = "run-steps/s"
LOOP = "PyTorch loop, 1 run"
PRODUCTS = "batched 50x50 products"


def necessary_flops(task: TokensTask) -> int:
    """Floating-point operations of the matrix products that a FAFO step cannot do without, two to a multiply-add.

    Six products of (V, V) and (V, N): the logits through W_V and W_O, and for each the gradient in it and in its input. Three
    of (C, V) and (V, V): the scores of every token under each class's query, and the gradients in W_K and in W_Q's rows.
    """
    V = VOCABULARY
    return 2 * V * V * (6 * task.batch + 3 * CLASSES)


def tokens(bench: Bench) -> list[Row]:
    """The engine at `COUNTS` runs, and at 40 its ratio to each of the others."""
    task, repeats = TokensTask(), 2 if bench.quick else 7
    share = 0.05 if bench.quick else 1.0
    engine = {_name(count): _engine(task, count, share) for count in (COUNTS[:2] if bench.quick else COUNTS)}
    ours = _name(COUNTS[0])
    others: dict[str, Callable[[], float]] = {PRODUCTS: functools.partial(_products, int(2000 * share))}
    if importlib.util.find_spec("torch"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for threads in sorted({1, cores}):
            named = f"{threads} thread{'s' * (threads > 1)}"
            others[f"{LOOP}, {named}"] = functools.partial(loop(task, threads), max(5, int(200 * share)))
            others[f"torch.func.vmap, 40 runs, {named}"] = functools.partial(
                vmapped(task, 40, threads), max(2, int(50 * share))
            )
    found = interleaved(engine | others, repeats, bench.update)
    out = rows(PART, {name: found[name] for name in engine}, UNIT, ours)
    gflops = [rate * necessary_flops(task) / 1e9 for rate in found[ours]]
    out += rows(PART, {PRODUCTS: found[PRODUCTS], f"{ours}, necessary products": gflops}, "GFLOP/s", PRODUCTS)
    for kind in (LOOP, "torch.func.vmap"):
        same = {name: found[name] for name in others if name.startswith(kind)}
        if same:
            best = max(same, key=lambda name: sorted(same[name])[repeats // 2])
            out += rows(PART, same | {f"{ours}, against {kind.split(',')[0]}": found[ours]}, UNIT, best)
    return out


def _name(count: int) -> str:
    return f"FAFO, {count} run{'s' * (count > 1)}"


def _engine(task: TokensTask, count: int, share: float) -> Callable[[], float]:
    """A measurement of the engine, compiled, of about a second: epochs of 100 updates, as the experiment has."""
    uniform = torch_uniform()

    def one(seed: jax.Array) -> dict:
        return init_params(jax.random.key(seed), "FAFO", d=VOCABULARY, M=VOCABULARY, qk=uniform, ov=uniform)

    states = start_tokens(jax.vmap(one)(jnp.arange(count)))
    runs = token_runs(range(count), eta_ov=0.01, eta_qk=0.2)
    batches = max(1, int(100 * share))
    epochs = max(1, int(400 / max(count, 8)))
    advance = functools.partial(advance_tokens, states, runs, task, epochs=epochs, batches=batches)
    advance()

    def measured() -> float:
        begun = time.perf_counter()
        ended, _ = advance()
        return float(ended.step.sum()) / (time.perf_counter() - begun)

    return measured


def _products(steps: int) -> float:
    """GFLOP/s of products of batches of 50x50 matrices, 20 at a time on each device."""
    size, batch = VOCABULARY, 20
    total = batch * jax.device_count()
    matrices = jnp.full((total, size, size), 1 / size)
    advance = _chain(steps)
    jax.block_until_ready(advance(matrices))
    begun = time.perf_counter()
    jax.block_until_ready(advance(matrices))
    return 2 * size**3 * total * steps / (time.perf_counter() - begun) / 1e9


@functools.cache
def _chain(steps: int) -> Callable[[jax.Array], jax.Array]:
    mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(A: jax.Array) -> jax.Array:
        # Each product is the next one's factor, so that none can be left out; rows sum to one, so that nothing grows.
        return jax.lax.scan(lambda B, _: (A @ B, None), A, length=steps)[0]

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False))
