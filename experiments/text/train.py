"""From a recipe and its arms to records: read the posts, train a group of arms together, write what was found."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.text.data import SPLITS, TextData
from experiments.text.recipe import GROUPS, Recipe, TextArm
from experiments.text.task import Task
from qkdyn.config import as_dict
from qkdyn.metrics.curves import THRESHOLDS
from qkdyn.metrics.faithfulness import SHARES
from qkdyn.readings import agreement
from qkdyn.readings.agreement import Agreement
from qkdyn.readings.posts import Reading, read, slots_of
from qkdyn.readings.splits import Split, distributions, extended, floors, means, split_of
from qkdyn.text.batches import bucket_widths, epoch_plan
from qkdyn.text.encoded import Encoded
from qkdyn.train.interrupt import Asked, Request
from qkdyn.train.keeping import keep
from qkdyn.train.store import Store, key_of
from qkdyn.train.text_batches import slots_read
from qkdyn.train.text_campaign import Records, TextCampaign
from qkdyn.train.text_engine import TextJob, TextRuns, TextState
from qkdyn.transformer import TransformerConfig

# Raised when the bits of a run change: checkpoints of another engine are not taken up.
ENGINE = 1
FAITHFUL = ("comprehensiveness", "sufficiency")


def train_group(
    task: Task,
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    store: Store | None,
    request: Request | None,
    update: Callable[[float, str], Any],
) -> dict[str, dict[str, Any]]:
    """Train arms of equal epochs together, all seeds of each; a record for every arm.

    Raises:
        Interrupted: a signal was noted; what was done is saved.
    """
    update(0.0, "compiling")
    reader = Reader.of(task, recipe, data, len(arms), request)
    campaign, runs = prepare(recipe, arms, data, reader, store, request)
    key = key_of(ENGINE, as_dict(recipe), [as_dict(arm) for arm in arms], data.sha256, len(data.train))

    def heard(step: int, records: Records) -> None:
        done = records.get("validation/accuracy")
        said = f", validation accuracy {done[:, :, -1].mean():.3f}" if done is not None else ""
        update(0.9 * step / campaign.job.steps, f"update {step} of {campaign.job.steps}{said}")

    state, records = campaign.finish(runs, key, heard)
    update(0.92, "measuring")
    try:
        end = _end(reader, data, state, update)
    except Asked:
        keep(state, records, key, store, request)
        raise
    return _written(recipe, arms, data, reader, campaign, records, end)


@dataclass(frozen=True, eq=False)
class Reader:
    """How the runs of a recipe are measured.

    Attributes:
        recipe: share of tokens deleted or kept, thresholds of AC and ACMC, seeds.
        how: what is measured.
        splits: validation and test; accuracy on the first decides which epoch is best.
        widths: bucket widths.
        arms: A, without copies.
        classes: number of classes.
        passes: over the training posts between two readings.
        request: noted signals, answered before each reading of a split.
    """

    recipe: Recipe
    how: Reading
    splits: dict[str, Split]
    widths: tuple[int, ...]
    arms: int
    classes: int
    passes: int
    request: Request | None = None

    @classmethod
    def of(cls, task: Task, recipe: Recipe, data: TextData, arms: int, request: Request | None = None) -> "Reader":
        """The reader of a recipe and its posts."""
        last_slot = recipe.measured == "last_slot"
        how = Reading(
            _model(recipe, data),
            last_slot=last_slot,
            slots=recipe.share_of == "slots",
            by_rank=recipe.order == "rank",
            residual=recipe.residual,
        )
        slots = np.concatenate([slots_of(how, split) for split in (data.train, data.validation, data.test)])
        widths = (recipe.n_ctx,) if last_slot and not recipe.mask_padding else bucket_widths(slots, 4)
        splits = {name: split_of(getattr(data, name), how, data.agreement.get(name)) for name in SPLITS}
        return cls(recipe, how, splits, widths, arms, len(task.labels), recipe.passes(len(data.train)), request)

    def posts(self, state: TextState, split: Split, share: float) -> Records:
        """Measures of every post, (S, A, N, ...)."""
        if self.request:
            self.request.check()
        seeds = len(self.recipe.seeds)
        places = split.agreement and split.agreement.places
        found = read(self.how, state, split.data, share, widths=self.widths, seeds=seeds, places=places)
        return {name: values[:, : self.arms] for name, values in found.items()}

    def epoch(self, state: TextState, epoch: int, records: Records) -> Records:
        """The records with what is measured after an epoch; `epoch` counts passes."""
        if (epoch + 1) % self.passes:
            return records
        found = {name: self.posts(state, split, self.recipe.share) for name, split in self.splits.items()}
        return extended(records, found, self.splits, self.recipe.levels, self.classes)

    def whole(self, state: TextState, split: Split, *, curve: bool) -> Records:
        """Means and distributions of a split, (S, A, ...); with `curve` faithfulness averaged over `SHARES` too."""
        found = self.posts(state, split, self.recipe.share)
        levels = self.recipe.levels
        out = means(found, split, levels, self.classes) | distributions(found, split, levels)
        if curve:
            each = [found if share == self.recipe.share else self.posts(state, split, share) for share in SHARES]
            for name in FAITHFUL:
                by_share = np.stack([one[name].mean(-1) for one in each], -1)
                out |= {f"{name}_curve": by_share, f"aopc_{name}": by_share.mean(-1)}
        return out

    def floors(self, split: Split) -> dict[str, Any]:
        """What uniform attention and position alone would get."""
        return floors(split, self.how, self.recipe.confidence)


def _model(recipe: Recipe, data: TextData) -> TransformerConfig:
    names = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp", "causal", "mask_padding", "readout")
    own = {name: getattr(recipe, name) for name in names}
    return TransformerConfig(data.vocabulary, recipe.positions, recipe.outputs, residual=recipe.stream, **own)


def prepare(
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    reader: Reader,
    store: Store | None = None,
    request: Request | None = None,
) -> tuple[TextCampaign, TextRuns]:
    """What is trained and measured, and the settings of the arms."""
    model = reader.how.model
    epochs, batches = arms[0].epochs * reader.passes, math.ceil(len(data.train) / recipe.batch)
    job = TextJob(
        model,
        steps=epochs * batches,
        warmup=int(recipe.warmup * epochs * batches),
        widths=_widths(recipe, data.train, model),
        clip=recipe.clip,
        apart=recipe.apart,
        stale=any(arm.stale for arm in arms),
        optimizer=recipe.optimizer,
        momentum=recipe.momentum,
    )
    campaign = TextCampaign(
        job, recipe.seeds, data.train, recipe.batch, recipe.by_length, epochs, reader.epoch, store, request
    )
    columns: dict[str, Any] = {
        name: np.array([getattr(arm, name) for arm in arms], np.float32) for name in (*GROUPS, "rate", "decay")
    }
    multipliers = {name: columns[name] for name in GROUPS}
    decay = {name: columns["decay"] * np.float32(name not in recipe.undecayed) for name in GROUPS}
    return campaign, TextRuns(columns["rate"], multipliers, decay, np.array([arm.stale for arm in arms]))


def _widths(recipe: Recipe, posts: Encoded, model: TransformerConfig) -> tuple[int, ...]:
    """Bucket widths of training: for posts, or for whole batches where these are of all lengths."""
    needed = slots_read(posts, model)
    if recipe.by_length:
        return bucket_widths(needed, 4)
    plans = [
        epoch_plan(needed, batch=recipe.batch, widths=(int(needed.max()),), seed=seed, epoch=0, by_length=False)
        for seed in recipe.seeds
    ]
    longest = np.max([np.where(plan.posts >= 0, needed[plan.posts], 0).max(1) for plan in plans], 0)
    return bucket_widths(np.append(longest, needed.max()), 3)


def _end(reader: Reader, data: TextData, state: TextState, update: Callable[[float, str], Any]) -> dict[str, Records]:
    """Measures of all splits after the last epoch, (S, A, ...)."""
    out = {"train": reader.whole(state, split_of(data.train, reader.how), curve=False)}
    update(0.96, "measured train")
    for name, split in reader.splits.items():
        out[name] = reader.whole(state, split, curve=True)
        update(0.98, f"measured {name}")
    return out


def _written(
    recipe: Recipe,
    arms: Sequence[TextArm],
    data: TextData,
    reader: Reader,
    campaign: TextCampaign,
    records: Records,
    end: dict[str, Records],
) -> dict[str, dict[str, Any]]:
    """The record of each arm, in plain numbers of five digits."""
    splits = {"train": split_of(data.train, reader.how), **reader.splits}
    known = {name: reader.floors(split) for name, split in splits.items()}
    shared = {
        "data": {
            **{name: len(getattr(data, name)) for name in ("train", *SPLITS)},
            "cut": {name: getattr(data, name).cut for name in ("train", *SPLITS)},
            "empty": {name: getattr(data, name).empty for name in ("train", *SPLITS)},
            "vocabulary": data.vocabulary,
            **({"passes": reader.passes} if reader.passes > 1 else {}),
            "sha256": data.sha256,
        },
        "notes": list(data.notes),
        "thresholds": list(THRESHOLDS),
        "shares": list(SHARES),
        **({"baselines": _baselines(reader)} if data.agreement else {}),
        "tokens_per_second": round(campaign.tokens / campaign.seconds) if campaign.seconds else None,
    }
    return {
        arm.name: {
            **shared,
            "runs": [
                _run(seed, (s, a), arm.epochs, records, end, known, data.agreement)
                for s, seed in enumerate(recipe.seeds)
            ],
        }
        for a, arm in enumerate(arms)
    }


def _baselines(reader: Reader) -> dict[str, Any]:
    """What simple rules and uniform attention get on sentences, for each split."""
    own = {name: split.agreement for name, split in reader.splits.items()}
    return _plain({name: agreement.baselines(known) for name, known in own.items() if known is not None})


def _run(
    seed: int,
    at: tuple[int, int],
    epochs: int,
    records: Records,
    end: dict[str, Records],
    known: dict[str, dict[str, Any]],
    beside: Mapping[str, Agreement],
) -> dict[str, Any]:
    """What a record says of one run."""
    own = {name: values[at] for name, values in records.items()}
    losses = own["losses"].reshape(epochs, -1).mean(1)
    bad = ~np.isfinite(losses) | ~np.isfinite(own["validation/loss"])
    best = int(own["best/epoch"])

    def after(split: str) -> dict[str, Any]:
        prefix = f"{split}/"
        return {name.removeprefix(prefix): v for name, v in own.items() if name.startswith(prefix)}

    def distribution(split: str) -> dict[str, Any]:
        prefix = f"best/{split}/"
        return {name.removeprefix(prefix): v for name, v in own.items() if name.startswith(prefix)}

    return _plain(
        {
            "seed": seed,
            "diverged_at": int(np.argmax(bad)) + 1 if bad.any() else None,
            "epochs": {
                "training_loss": losses,
                **{split: {n: v for n, v in after(split).items() if not n.startswith("heads_")} for split in SPLITS},
            },
            "end": {
                split: {**known[split], **_nested({name: v[at] for name, v in values.items()}, beside.get(split))}
                for split, values in end.items()
            },
            "best": {
                "epoch": best,
                **{
                    split: {
                        **known[split],
                        **_nested(
                            {name: v[best - 1] for name, v in after(split).items()} | distribution(split),
                            beside.get(split),
                        ),
                    }
                    for split in SPLITS
                },
            },
        }
    )


def _nested(measures: dict[str, Any], own: Agreement | None) -> dict[str, Any]:
    """Measures with those of heads as a list, one entry a head, and those by attractors as a list, one entry a cell."""
    out, heads, cells = {}, {}, {}
    for name, value in measures.items():
        group, _, rest = name.partition("_")
        into = {"heads": heads, "agreement": cells}.get(group, out)
        into[name if into is out else rest] = value
    out["heads"] = [dict(zip(heads, each, strict=True)) for each in zip(*heads.values(), strict=True)]
    return out | ({"agreement": agreement.lines(cells, own)} if own else {})


def _plain(value: Any) -> Any:
    """As JSON has it: five digits, null for what is not finite."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray) and np.ndim(value):
        return [_plain(item) for item in value]
    if isinstance(value, int | np.integer | str) or value is None:
        return value if value is None or isinstance(value, str) else int(value)
    return float(f"{value:.5g}") if np.isfinite(value) else None
