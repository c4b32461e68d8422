"""Interventions on HateXplain's posts, under AdamW or SGD: arms trained in the recipe of Table 1's `controlled` protocol.

One layer of four heads reads posts up to a learned query token, whose row of attention is measured on the test split. All
arms of a seed start alike, but for what is done to their start, and see the same batches. Measured after each epoch; the
training loss of an epoch is the mean of its batches, at its centre. Where it falls to a level, the time is interpolated in
ln(loss), and what is measured at that time between the ends of two epochs (`experiments.text.readings.at_level`). There is no
scalar theory of this model: `predicted` is empty.

Attention is MRTA, the mass on the tokens that annotators marked, of toxic posts; entropy, top mass and AUPRC stand beside it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.intervened.arms import SEEDS, Arm, Case, Work
from experiments.intervened.starts import multiple
from experiments.text.data import TextData, load
from experiments.text.readings import at_level
from experiments.text.recipe import Recipe, TextArm
from experiments.text.task import HATEXPLAIN
from experiments.text.train import Reader, prepare
from qkdyn.config import as_dict
from qkdyn.errors import InputError, check_count, check_positive
from qkdyn.interventions import Intervention, Numbers, OnCircuit
from qkdyn.parameterization import Parameterization
from qkdyn.readings.splits import Split
from qkdyn.text.hatexplain import read_hatexplain
from qkdyn.text.sources import data_folder
from qkdyn.train.intervening import single
from qkdyn.train.store import key_of
from qkdyn.train.text_campaign import Records, TextCampaign
from qkdyn.train.text_engine import TextRuns, TextState

FORM = Parameterization.FAFO
# Raised when the bits of a run change.
ENGINE = 1
# Arms of a group train together; as many runs as Table 1's.
GROUP = 9
EPOCHS, UPDATES = 10, 481
# AdamW's decay of all groups in the recipe, and of a circuit whose decay no arm chooses.
DECAY = 1e-4
# Tokens of a post, for a look.
SHORT = 32
# Means of training batches: under AdamW the plain arm passes them in its fourth to sixth epoch of ten.
LEVELS = (0.8, 0.75, 0.7)
# What a look changes.
LOOK: dict[str, Any] = {
    "levels": (1.02,),
    "max_steps": 3 * 19,
    "epochs": 3,
    "embed": 3.0,
    "posts": 600,
    "seeds": SEEDS[:2],
}


@dataclass(frozen=True)
class PostsArm(Arm):
    """An arm on posts.

    Attributes:
        epochs: passes over them; `max_steps` updates in all.
        embed: rate multiplier of the embeddings.
        posts: for a look only so many of each split, cut to `SHORT` tokens and all of one width; None for all.
    """

    epochs: int = EPOCHS
    embed: float = 1.0
    posts: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("epochs", self.epochs)
        if self.posts is not None:
            check_count("posts", self.posts, do="for all of them write None")
        check_positive("embed", self.embed, zero=True, most=1e6)
        # What its runs cannot have is refused here, before any post is read.
        _without(self)
        if self.max_steps % self.epochs:
            raise InputError(f"max_steps must be a multiple of epochs, got {self.max_steps} and {self.epochs}")

    @property
    def others(self) -> tuple[float, float]:
        """Rate and decay of what belongs to no circuit."""
        return self.eta_ov, DECAY


@dataclass(frozen=True)
class ApartArm(PostsArm):
    """An arm whose circuits have rates of their own.

    Attributes:
        rate: of what belongs to no circuit; `eta_ov` is of OV alone.
        decay: alike, and of a circuit for which `on` has none.
    """

    rate: float = 1.0
    decay: float = DECAY

    def __post_init__(self) -> None:
        check_positive("rate", self.rate, most=1.0)
        check_positive("decay", self.decay, zero=True, most=1e6)
        super().__post_init__()

    @property
    def others(self) -> tuple[float, float]:
        """Rate and decay of what belongs to no circuit."""
        return self.rate, self.decay


def made(found: Sequence[Case], usual: Mapping[str, Any]) -> tuple[PostsArm, ...]:
    """The arms of these cases on all posts.

    Args:
        found: what the arms differ in (`cases`); those with "rate" have it for what belongs to no circuit (`ApartArm`).
        usual: further fields of all of them; "setting" begins their names.
    """
    shared = {"form": str(FORM), "levels": LEVELS, "max_steps": EPOCHS * UPDATES, **usual}
    out = []
    for case in found:
        own = {name: value for name, value in case.items() if name != "short"}
        kind = ApartArm if "rate" in own else PostsArm
        out.append(kind(name=f"{shared['setting']}-{case['short']}", **own, **shared))
    return tuple(out)


def groups(chosen: Sequence[Arm]) -> list[list[Arm]]:
    """Arms that train together: of one optimizer, at most `GROUP`."""
    kinds = [
        [arm for arm in chosen if arm.optimizer == kind] for kind in dict.fromkeys(arm.optimizer for arm in chosen)
    ]
    return [own[i : i + GROUP] for own in kinds for i in range(0, len(own), GROUP)]


def ready(data: Path | None) -> None:
    """Raise DataError where there are no posts."""
    read_hatexplain(data_folder(data, "hatexplain"))


def train(chosen: Sequence[PostsArm], work: Work) -> dict[str, dict[str, Any]]:
    """Train arms of one group together, all seeds of each; a record for every arm.

    Raises:
        DataError: posts are missing. InputError: arms of different epochs, posts or seeds, or schedules made for another number
            of posts. Interrupted: a signal was noted; the state is saved.
    """
    work.update(0.0, "reading posts")
    first = chosen[0]
    if len({(arm.epochs, arm.posts, arm.seeds, arm.max_steps, arm.optimizer) for arm in chosen}) != 1:
        raise InputError(
            "arms of a group must have equal epochs, posts, seeds, updates and optimizer; put others into another group"
        )
    recipe = replace(Recipe(), seeds=first.seeds)
    if first.posts is not None:
        recipe = replace(recipe, n_ctx=SHORT)
    data = load(recipe, work.data, limit=first.posts)
    updates = math.ceil(len(data.train) / recipe.batch)
    if updates * first.epochs != first.max_steps:
        said = f"{first.max_steps} updates, but {len(data.train)} posts make {updates * first.epochs}"
        raise InputError(f"the arms and their schedules are made for {said}; take the published split")
    reader = _reader(recipe, data, len(chosen), work)
    campaign, runs = _prepared(recipe, chosen, data, reader, work)
    own = [as_dict(arm) for arm in chosen]
    key = key_of(ENGINE, as_dict(recipe), own, data.sha256, len(data.train))

    def heard(step: int, records: Records) -> None:
        done = records.get("test/accuracy")
        said = f", test accuracy {done[:, :, -1].mean():.3f}" if done is not None else ""
        work.update(step / campaign.job.steps, f"update {step} of {campaign.job.steps}{said}")

    work.update(0.0, "compiling")
    _, records = campaign.finish(runs, key, heard)
    return {
        arm.name: {
            "runs": [_run(arm, seed, {n: v[s, a] for n, v in records.items()}) for s, seed in enumerate(arm.seeds)],
            "predicted": [],
        }
        for a, arm in enumerate(chosen)
    }


def _reader(recipe: Recipe, data: TextData, count: int, work: Work) -> Reader:
    """What reads attention alone, without deleted tokens."""
    reader = Reader.of(HATEXPLAIN, recipe, data, count, work.request)
    widths = reader.widths[-1:] if recipe.n_ctx == SHORT else reader.widths
    return replace(reader, how=replace(reader.how, faithful=False), widths=widths)


def _prepared(
    recipe: Recipe, chosen: Sequence[PostsArm], data: TextData, reader: Reader, work: Work
) -> tuple[TextCampaign, TextRuns]:
    """The campaign of Table 1's arms at these ratios, and what is done to their circuits."""
    plain = [_without(arm) for arm in chosen]
    campaign, runs = prepare(recipe, plain, data, reader, work.store, work.request)
    numbers = [single(Numbers.of(_with_decay(arm.on, arm.others[1]))) for arm in chosen]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *numbers)
    gain = np.array([arm.gain for arm in chosen], np.float32)
    measure = _measure(reader, campaign.job.steps // chosen[0].epochs)
    # Each width takes its time to compile.
    widths = campaign.job.widths if chosen[0].posts is None else campaign.job.widths[-1:]
    job = replace(campaign.job, intervened=True, widths=widths, optimizer=chosen[0].optimizer)
    campaign = replace(campaign, job=job, start=_start(chosen), measure=measure)
    return campaign, runs._replace(numbers=stacked, gain=gain)


def _without(arm: PostsArm) -> TextArm:
    """The arm without its intervention."""
    rate, decay = arm.others
    ov = arm.eta_ov / rate
    return TextArm(arm.name, arm.epochs, rate=rate, qk=arm.r * ov, ov=ov, embed=arm.embed, decay=decay)


def _with_decay(on: Intervention, decay: float) -> Intervention:
    """The intervention with this decay where it has none of its own."""

    def of(circuit: OnCircuit) -> OnCircuit:
        return circuit if circuit.decay else replace(circuit, decay=decay)

    return Intervention(of(on.qk), of(on.ov))


def _start(chosen: Sequence[PostsArm]) -> Callable[[TextState], TextState]:
    """What scales the start of each arm's circuits: products by `Arm.start`, factors apart by `Arm.apart`."""

    def scaled(path: Any, leaf: Any) -> Any:
        by = np.array([multiple(arm, path[-1].key) for arm in chosen], np.float32)
        return leaf * jnp.asarray(by).reshape(1, -1, *(1,) * (leaf.ndim - 2))

    return lambda state: state._replace(params=jax.tree_util.tree_map_with_path(scaled, state.params))


def _measure(reader: Reader, updates: int) -> Callable[[TextState, int, Records], Records]:
    """What is measured after an epoch of so many updates, on the test split: each (S, A, epochs)."""
    split = reader.splits["test"]

    def measure(state: TextState, epoch: int, records: Records) -> Records:
        found = means(reader.posts(state, split, reader.recipe.share), split)
        found["step"] = np.full(found["loss"].shape, (epoch + 1) * updates, np.float32)
        out = dict(records)
        for name, values in found.items():
            before = out.get(f"test/{name}", np.zeros((*values.shape, 0), np.float32))
            out[f"test/{name}"] = np.concatenate([before, values[..., None]], -1)
        return out

    return measure


def means(found: Mapping[str, np.ndarray], split: Split) -> Records:
    """Measures of a split, each (S, A): attention is MRTA; NaN of a run that has diverged."""
    marked = split.data.marked
    accuracy = (found["predicted"] == split.data.label).mean(-1)
    return {
        "loss": found["loss"].mean(-1),
        "attention": found["mass"][..., marked].mean(-1),
        "accuracy": np.where(np.isfinite(found["loss"]).all(-1), accuracy, np.nan),
        "entropy": found["entropy"][..., marked].mean(-1),
        "top_mass": found["top_mass"][..., marked].mean(-1),
        "auprc": found["auprc"][..., split.ranked].mean(-1),
    }


def _run(arm: PostsArm, seed: int, own: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What a record says of one run."""
    losses = own["losses"]
    bad = np.flatnonzero(~np.isfinite(losses))
    diverged = int(bad[0]) if bad.size else None
    measured = {name.removeprefix("test/"): values for name, values in own.items() if name.startswith("test/")}
    training = losses.reshape(arm.epochs, -1).mean(1)
    lists = {name: values.tolist() for name, values in measured.items()}
    # From the epoch of a loss that is no number on, no mean is one, and no level is reached.
    as_run = {"diverged_at": None, "epochs": {"training_loss": training.tolist(), "test": lists}}
    matched = []
    for level in arm.levels:
        line = {name: _plain(at_level(as_run, "test", name, level)) for name in measured}
        if line["step"] is not None:
            matched.append({"level": level, **line})
    status = "diverged" if bad.size else "stopped" if any(m["level"] == arm.levels[-1] for m in matched) else "budget"
    end = {name: _plain(values[-1]) for name, values in measured.items()} | {"training_loss": _plain(training[-1])}
    return {"seed": seed, "status": status, "diverged_at": diverged, "end": end, "matched": matched}


def _plain(value: Any) -> float | None:
    """Five digits, None for what is no number."""
    return float(f"{float(value):.5g}") if np.isfinite(value) else None
