"""Training on text and reading it: ten runs together against PyTorch one at a time, and what each saving is worth.

Two arms of the controlled recipe, five seeds of each. Tokens per second are of real tokens and of all runs together; the
engine's include the making of its batches, PyTorch's do not. Nothing is compared before both have found the same numbers.
Without PyTorch (the `bench` extra) its rows, and those of reading, are left out.
"""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.measure import Bench, Row, beside, check, interleaved, seconds_of, threads
from benchmarks.text_posts import posts_of
from benchmarks.text_runs import Training, every_embedding, every_row, lacking, start
from experiments.text.arms import BASELINE, controlled
from experiments.text.task import HATEXPLAIN
from experiments.text.train import Reader, prepare
from qkdyn.readings.splits import split_of
from qkdyn.text.encoded import Encoded

PART = "text"
ARMS = (BASELINE, "qk30")
# Updates of a measurement; posts that one reads.
UPDATES, READ = 64, 800
# The engine without one of its savings.
PADDED, EVERY, DENSE = "posts padded to n_ctx", "every row computed", "every embedding updated"
# PyTorch as people write it; and with the savings that cost no thought there: whether one row and the fused AdamW.
KINDS = {"PyTorch, every row": False, "PyTorch, one row and fused AdamW": True}
ONE_BY_ONE = "PyTorch, post by post"
# PyTorch and the engine are compared in runs whose weights and rates are so much larger than in the experiment, where a
# measurement moves little; and on posts where the tokens chosen and the others are so far apart in attention that the choice
# does not hang on rounding.
LARGER, CLEAR = 10, 1e-5
Actions = dict[str, Callable[[], float]]


def text(bench: Bench) -> list[Row]:
    """Tokens per second beside PyTorch's, and beside the engine's without a saving; then posts per second beside PyTorch's."""
    bench.update(0.0, "reading the posts")
    protocol, repeats = controlled(), 2 if bench.quick else 7
    recipe = replace(protocol.recipe, seeds=protocol.recipe.seeds[: 2 if bench.quick else None])
    arms = [next(arm for arm in protocol.arms if arm.name == name) for name in ARMS]
    kind, data = posts_of(recipe)
    reader = Reader.of(HATEXPLAIN, recipe, data, len(arms))
    campaign, runs = prepare(recipe, arms, data, reader)
    posts = some(data.train, recipe.batch * (8 if bench.quick else UPDATES))
    job, begin = campaign.job, functools.partial(start, seeds=recipe.seeds, posts=posts, batch=recipe.batch)
    if bench.quick:
        # Each width takes seconds to compile.
        job, reader = replace(job, widths=job.widths[-1:]), replace(reader, widths=reader.widths[-1:])
    told = f"{len(arms) * len(recipe.seeds)} runs together, {kind}"
    ours = f"training {told}"
    forms = {
        ours: begin(job, runs),
        PADDED: begin(replace(job, widths=(recipe.n_ctx,)), runs),
        EVERY: begin(job, runs, advance=lacking(forward=every_row)),
        DENSE: begin(job, runs, advance=lacking(_step=every_embedding)),
    }
    for number, (name, form) in enumerate(forms.items()):
        bench.update(0.05 * (1 + number), f"compiling: {name}")
        form.train()
    larger = begin(job, runs._replace(rate=LARGER * runs.rate), scale=LARGER)
    torch = importlib.util.find_spec("torch") is not None
    others = _torch_training(larger, forms[ours], bench) if torch else {}
    actions = {name: form.rate for name, form in forms.items()} | others
    found = interleaved(actions, repeats, bench.phase(0.3, 0.8))
    out = beside(PART, ours, found, "tokens/s", (*KINDS, PADDED, EVERY, DENSE))
    if torch:
        posts = some(data.validation, 64 if bench.quick else READ)
        actions = _reading(f"reading {told}", larger, reader, posts, bench)
        found = interleaved(actions, repeats, bench.phase(0.85, 1.0))
        out += beside(PART, f"reading {told}", found, "posts/s", (ONE_BY_ONE,))
    return out


def some(posts: Encoded, count: int) -> Encoded:
    """So many of the posts, or all, drawn at random."""
    return posts.take(np.random.default_rng(0).permutation(len(posts))[:count])


def _torch_training(larger: Training, measured: Training, bench: Bench) -> Actions:
    """Measurements of PyTorch on one run of `measured`; its losses are first compared, in the larger runs."""
    from benchmarks import text_torch

    def trainer(of: Training, arm: int, one_row: bool) -> text_torch.Trainer:
        return text_torch.trainer(of.job, params, of.rates(arm), float(of.runs.decay["embed"][arm]), one_row)

    def rate(train: text_torch.Trainer, count: int) -> float:
        text_torch.use_threads(count)
        return int(measured.posts.length.sum()) / seconds_of(lambda: train(batches))

    bench.update(0.25, "comparing losses")
    text_torch.use_threads(1)
    params, batches = larger.params(0, 0), text_torch.batches_of(larger.batches(), larger.job.widths, 0)
    losses = larger.train()[:, 0]
    differ = [
        np.abs(trainer(larger, arm, one_row)(batches) - losses[:, arm]).max()
        for arm in range(larger.arms)
        for one_row in KINDS.values()
    ]
    bench.update(0.3, check("losses", np.max(differ)))
    return {
        f"{kind}, {name}": functools.partial(rate, trainer(measured, 0, one_row), count)
        for kind, one_row in KINDS.items()
        for name, count in threads().items()
    }


def _reading(ours: str, trained: Training, reader: Reader, posts: Encoded, bench: Bench) -> Actions:
    """Measurements of reading posts, by all runs together and by PyTorch for one of them, whose numbers are first compared."""
    from benchmarks import text_torch

    split, share, arm = split_of(posts, reader.how), reader.recipe.share, trained.arms - 1
    model = text_torch.Transformer(trained.job.model, trained.params(0, arm))
    read = functools.partial(reader.posts, trained.state, split, share)
    one_by_one = functools.partial(text_torch.faithfulness, model, posts, share)

    bench.update(0.8, "comparing readings")
    text_torch.use_threads(1)
    engine, (comprehensiveness, sufficiency, gap) = read(), one_by_one()
    clear = gap > CLEAR
    least = 0 if clear.mean() > 0.5 else np.inf
    differ = [
        np.abs(engine[name][0, arm] - drop)[clear].max(initial=least)
        for name, drop in (("comprehensiveness", comprehensiveness), ("sufficiency", sufficiency))
    ]
    bench.update(0.85, check(f"readings of the {clear.mean():.0%} of posts without ties", np.max(differ)))
    runs = len(trained.seeds) * trained.arms

    def rate(count: int) -> float:
        text_torch.use_threads(count)
        return len(posts) / seconds_of(one_by_one)

    each = {f"{ONE_BY_ONE}, {name}": functools.partial(rate, count) for name, count in threads().items()}
    return {ours: lambda: runs * len(posts) / seconds_of(read), **each}
