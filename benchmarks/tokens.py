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

from benchmarks.measure import Bench, Row, interleaved, rows, seconds_of
from benchmarks.tokens_torch import loop, vmapped
from qkdyn.circuits import init_params, torch_uniform
from qkdyn.tasks.tokens import CLASSES, VOCABULARY, TokensTask
from qkdyn.train.engine import RUNS
from qkdyn.train.tokens import advance_tokens, start_tokens, token_runs

PART = "tokens"
COUNTS = (40, 1, 8, 200, 1000)
UNIT = "run-steps/s"
# Whether a batch is drawn at once or, as in a notebook, sequence by sequence.
LOOPS = {"PyTorch loop": False, "PyTorch vectorized loop": True}
# Whether the products are chained in one program.
PRODUCTS = {"40 products 50x50 a call": False, "40 products 50x50, chained": True}


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
    others: dict[str, Callable[[], float]] = {
        name: functools.partial(_products, int(2000 * share), chained) for name, chained in PRODUCTS.items()
    }
    if importlib.util.find_spec("torch"):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        for threads in sorted({1, cores}):
            named = f"{threads} thread{'s' * (threads > 1)}"
            for name, vectorized in LOOPS.items():
                one = loop(task, threads, vectorized)
                others[f"{name}, {named}"] = functools.partial(one, max(5, int(200 * share)))
            others[f"torch.func.vmap, 40 runs, {named}"] = functools.partial(
                vmapped(task, 40, threads), max(2, int(50 * share))
            )
    found = interleaved(engine | others, repeats, bench.update)
    out = rows(PART, {name: found[name] for name in engine}, UNIT, ours)
    gflops = [rate * necessary_flops(task) / 1e9 for rate in found[ours]]
    for name in PRODUCTS:
        out += rows(PART, {name: found[name], f"{ours}, products in it, to {name}": gflops}, "GFLOP/s", name)
    for kind in (*LOOPS, "torch.func.vmap"):
        same = {name: found[name] for name in others if name.startswith(kind)}
        if same:
            best = max(same, key=lambda name: sorted(same[name])[repeats // 2])
            out += rows(PART, same | {f"{ours}, against {kind}": found[ours]}, UNIT, best)
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
    epochs = max(5, 400 // max(count, 8)) if share == 1 else 1
    advance = functools.partial(advance_tokens, states, runs, task, epochs=epochs, batches=batches)
    advance()

    def measured() -> float:
        begun = time.perf_counter()
        ended, _ = advance()
        return float(ended.step.sum()) / (time.perf_counter() - begun)

    return measured


def _matrices() -> jax.Array:
    """Forty 50x50 matrices, spread over the devices."""
    mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))
    matrices = jnp.full((-(-40 // mesh.size) * mesh.size, VOCABULARY, VOCABULARY), 1 / VOCABULARY)
    return jax.device_put(matrices, jax.NamedSharding(mesh, RUNS))


def _products(calls: int, chained: bool) -> float:
    """GFLOP/s of batched products, each a call of its own, or all in one program, each the next one's factor.

    The chain never leaves the cache and waits for nothing: it is about what the machine can do.
    """
    A = _matrices()
    multiply = _multiply(calls if chained else 1)

    def all_calls() -> None:
        B = A
        for _ in range(1 if chained else calls):
            B = multiply(A, B)
        jax.block_until_ready(B)

    all_calls()
    return 2 * VOCABULARY**3 * A.shape[0] * calls / seconds_of(all_calls) / 1e9


@functools.cache
def _multiply(times: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
    mesh = jax.make_mesh((jax.device_count(),), ("runs",), axis_types=(jax.sharding.AxisType.Auto,))

    def local(A: jax.Array, B: jax.Array) -> jax.Array:
        # Rows sum to one, so that nothing grows.
        return jax.lax.scan(lambda B, _: (A @ B, None), B, length=times)[0] if times > 1 else A @ B

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=RUNS, out_specs=RUNS, check_vma=False))
