"""Learning and writing answers: the head where it is asked for, keys and values kept, and both beside PyTorch.

One run of the experiment's engine on made questions of SQuAD's lengths, dropout and AdamW included. Nothing is compared before
all have found the same numbers. Without PyTorch (the `bench` extra) its rows are left out.
"""

import functools
import importlib.util
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from benchmarks.measure import Bench, Row, beside, check, interleaved, rows, seconds_of, threads
from benchmarks.squad_cost import operations
from benchmarks.squad_runs import (
    LONGEST,
    Training,
    everywhere,
    made_questions,
    shape_of,
    start,
    without_b_K,
    without_cache,
)
from experiments.squad.arms import SCALES
from experiments.squad.cost import product_speed
from experiments.squad.recipe import Recipe
from qkdyn.decoding import decoded
from qkdyn.errors import OutputError
from qkdyn.train.devices import arms_mesh, copied, spread
from qkdyn.train.language_engine import LABELS, LanguageJob, LanguageRun
from qkdyn.transformer_init import init_language

PART = "squad"
EVERYWHERE = "head everywhere"
# PyTorch as people write it, and with the saving that costs one line there: whether the head is computed at labels alone.
KINDS = {"PyTorch, head everywhere": False, "PyTorch, head at labels": True}
# The rate of the published baseline, and of its token embedding; updates of the run whose first ones are measured.
RATE, EMBED, DECAY, STEPS = 5e-4, 0.1, 0.05, 1000
# Weights are compared after one update at a rate so much larger, which moves each by 4e-4 and not by less than the tolerance.
LARGER = 20
# How far the loss with the head everywhere may be from ours, as a share of it.
ALIKE = 0.02
# Texts written to, tokens of a prompt and of what is written.
TEXTS, PROMPT, WRITTEN = 32, 104, 50
# Share of the texts that may differ with and without the cache: two tokens may be as likely up to rounding.
TIES = 0.1
TINY = {"vocabulary": 300, "n_layers": 2, "d_model": 16, "n_heads": 2, "d_mlp": 32, "batch": 4}
Actions = dict[str, Callable[[], float]]


def squad(bench: Bench) -> list[Row]:
    """Tokens per second of training and of writing; and operations per second."""
    full, laptop = Recipe(), replace(Recipe(), **SCALES["laptop"].sizes)
    if bench.quick:
        full, laptop = replace(full, **TINY), replace(full, **TINY | {"n_layers": 1})
    out = _training(bench, full)
    for place, recipe in enumerate((laptop, full)):
        out += _writing(bench, recipe, bench.phase(0.6 + 0.1 * place, 0.7 + 0.3 * place))
    return out


def sizes(recipe: Recipe) -> str:
    """A model in words."""
    return f"{recipe.n_layers} layers, d {recipe.d_model}, V {recipe.vocabulary:,}"


def job_of(recipe: Recipe, longest: int = LONGEST) -> LanguageJob:
    """The engine's job on `made_questions`."""
    cycle = round(recipe.cycle * STEPS)
    warmup = max(1, STEPS // 10)
    return LanguageJob(
        recipe.model(), (shape_of(recipe.batch, longest),), steps=STEPS, cycle=cycle, warmup=warmup, micro=recipe.micro
    )


def run_of(rate: float) -> LanguageRun:
    """The published baseline's settings, at another rate."""
    factor = {str(name): EMBED if name == "embed" else 1.0 for name in LABELS}
    return LanguageRun(rate, factor, {name: DECAY * (name != "embed") for name in factor})


def _training(bench: Bench, recipe: Recipe) -> list[Row]:
    """The engine beside its head everywhere, PyTorch, and the speed of plain products."""
    longest = 24 if bench.quick else LONGEST
    job, ours = job_of(recipe, longest), f"training, {sizes(recipe)}"
    prompts = made_questions(np.random.default_rng(0), recipe.batch * recipe.micro, recipe.vocabulary, longest)
    begin = functools.partial(start, run=run_of(RATE), prompts=prompts, batch=recipe.batch)
    forms = {ours: begin(job), EVERYWHERE: begin(job, advance=everywhere())}
    torch = importlib.util.find_spec("torch") is not None
    if torch:
        bench.update(0.0, "comparing with PyTorch")
        without = replace(job, model=replace(job.model, dropout=0.0))
        bench.update(0.1, _compared(begin(without, run=run_of(LARGER * RATE))))
    losses = {}
    for number, (name, form) in enumerate(forms.items()):
        bench.update(0.1 + 0.05 * number, f"compiling: {name}")
        losses[name] = form.train()
    # Apart by the last layer's dropout, which falls on other rows; without any they are the same (tested).
    off = float(np.abs(losses[EVERYWHERE] / losses[ours] - 1).max())
    if not off < ALIKE:
        raise OutputError(f"the loss with the head everywhere is {off:.1%} from that with the head at labels")
    actions = {name: form.rate for name, form in forms.items()} | (_torch(forms[ours]) if torch else {})
    products = f"products of {recipe.batch * 128:,} rows by {recipe.d_model} x {recipe.d_mlp}"
    actions[products] = lambda: product_speed(recipe) / 1e9
    found = interleaved(actions, 2 if bench.quick else 4, bench.phase(0.2, 0.6))
    speed = found.pop(products)
    each = operations(recipe, longest, job.shapes[0].labels / recipe.batch) / 1e9
    reached = [rate * each * len(prompts.ids) / forms[ours].tokens for rate in found[ours]]
    out = beside(PART, ours, found, "tokens/s", (EVERYWHERE, *KINDS))
    return out + rows(PART, {products: speed, f"{ours}, operations": reached}, "GFLOP/s", products)


def _torch(trained: Training) -> Actions:
    """Measurements of PyTorch on the same batches, on all cores."""
    from benchmarks import squad_torch

    updates = squad_torch.updates_of(trained.batches, trained.job)
    name, count = list(threads().items())[-1]

    def rate(trainer: Any) -> float:
        squad_torch.use_threads(count)
        return trained.tokens / seconds_of(lambda: trainer(updates))

    actions = {}
    for kind, at_labels in KINDS.items():
        trainer = squad_torch.Trainer(trained.job, trained.params(), *rates_of(trained.run), at_labels)
        rate(trainer)
        actions[f"{kind}, {name}"] = functools.partial(rate, trainer)
    return actions


def rates_of(run: LanguageRun) -> tuple[dict[str, float], dict[str, float]]:
    """Rates and decays of PyTorch's groups of parameters."""
    groups = ("embed", "qk", "rest")
    return {name: float(run.rate * run.multipliers[name]) for name in groups}, {n: float(run.decay[n]) for n in groups}


def _compared(trained: Training) -> str:
    """That PyTorch's loss, gradient and weights after its first updates are the engine's, in words.

    Of each parameter's gradient the norm of the difference counts, as a share of its norm; of weights the largest difference.
    """
    from benchmarks import squad_torch

    at_start = trained.params()
    updates = squad_torch.updates_of(trained.batches, trained.job)
    losses, told = trained.train(), []
    gradients, weights = trained.gradient(), without_b_K(trained.params())
    for kind, at_labels in KINDS.items():
        trainer = squad_torch.Trainer(trained.job, at_start, *rates_of(trained.run), at_labels)
        apart = {
            "losses": float(np.abs(losses - trainer(updates)).max()),
            "gradients": _largest(_share, gradients, without_b_K(trainer.gradients())),
            "weights": _largest(_difference, weights, without_b_K(trainer.params())),
        }
        told += [check(f"{what} ({kind.removeprefix('PyTorch, ')})", off) for what, off in apart.items()]
    return "; ".join(told)


def _share(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max())


def _largest(measure: Callable[[Any, Any], float], ours: Any, theirs: Any) -> float:
    return max(jax.tree.leaves(jax.tree.map(measure, ours, theirs)))


def _writing(bench: Bench, recipe: Recipe, update: Callable[[float, str], Any]) -> list[Row]:
    """Tokens written per second, with keys and values kept and without."""
    texts, prompt, most = (4, 16, 8) if bench.quick else (TEXTS, PROMPT, WRITTEN)
    kept, again = _writers(recipe, texts, prompt, most)
    told = f"writing {most} tokens to {texts} texts of {prompt}, {sizes(recipe)}"
    bare = f"the whole text read for every token, {sizes(recipe)}"
    update(0.0, f"compiling: {told}")
    written = {told: kept(), bare: again(1)}

    def rate(name: str, write: Callable[[], np.ndarray]) -> float:
        begun = time.perf_counter()
        written[name] = write()
        return texts * most / (time.perf_counter() - begun)

    actions = {bare: lambda: rate(bare, lambda: again(most)), told: lambda: rate(told, kept)}
    found = interleaved(actions, 2 if bench.quick else 3, lambda share, status: update(0.2 + 0.8 * share, status))
    differ = float((written[told] != written[bare]).any(1).mean())
    if differ > TIES:
        raise OutputError(f"{differ:.0%} of the texts differ with and without keys and values kept")
    return rows(PART, found, "tokens/s", bare)


def _writers(
    recipe: Recipe, texts: int, prompt: int, most: int
) -> tuple[Callable[[], np.ndarray], Callable[[int], np.ndarray]]:
    """Functions that write to each text: `most` tokens with keys and values kept, and so many by reading all of it again.

    Each device has its share of the texts, as in the experiment.
    """
    model = replace(recipe.model(), dropout=0.0)
    end = model.vocabulary - 1
    params = jax.tree.map(np.array, init_language(jax.random.key(0), model))
    # Nothing ends early.
    params["head"]["b_U"][end] = -100.0
    mesh = arms_mesh(math.gcd(texts, jax.local_device_count()))
    tokens = np.random.default_rng(1).integers(0, model.vocabulary, (texts, prompt)).astype(np.int32)
    given = (copied(mesh, params), *spread(mesh, (tokens, np.full(texts, prompt, np.int32)), 0))
    whole, cut = PartitionSpec(), PartitionSpec(*mesh.axis_names)
    spread_out = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(whole, cut, cut, whole), out_specs=cut, check_vma=False
    )
    kept = jax.jit(spread_out(lambda *given: decoded(given[0], model, *given[1:3], most, end, None).tokens))
    again = jax.jit(spread_out(lambda *given: without_cache(given[0], model, *given[1:], most=most)))
    return lambda: np.asarray(kept(*given, most)), lambda count: np.asarray(again(*given, count))
