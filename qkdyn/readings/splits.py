"""From measures of every post to those of a split: means, shares, heat maps; and what uniform attention would get."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.metrics import cores
from qkdyn.metrics.curves import THRESHOLDS
from qkdyn.metrics.dtap import dtap
from qkdyn.readings.agreement import Agreement, by_attractors
from qkdyn.readings.levels import Levels
from qkdyn.readings.posts import Reading
from qkdyn.text.encoded import Encoded
from qkdyn.train.text_batches import readouts

Records = dict[str, np.ndarray]
# Means over all posts, and again over marked ones alone.
_BOTH = ("entropy", "top_mass", "comprehensiveness", "sufficiency")


@dataclass(frozen=True, eq=False)
class Split:
    """N posts and what of their measures depends on them alone.

    Attributes:
        data: the posts.
        ranked: marked posts with a token that is not marked: where a ranking says something, (N,).
        attendable: tokens that the measured row may attend to, (N,).
        uniform: mass that uniform attention over these puts on relevant tokens, (N,).
        agreement: of sentences with a subject, what there is to know beside; None of other posts.
    """

    data: Encoded
    ranked: np.ndarray
    attendable: np.ndarray
    uniform: np.ndarray
    agreement: Agreement | None = None


def split_of(data: Encoded, how: Reading, agreement: Agreement | None = None) -> Split:
    """What there is to know of the posts before any training."""
    hits = (data.relevant > 0) & data.content
    ranked = data.marked & (hits.sum(1) < data.content.sum(1))
    if how.last_slot:
        attendable = np.full(len(data), data.n_ctx)
    elif how.model.causal:
        attendable = readouts(data, how.model) + 1
    else:
        attendable = data.length
    if how.model.mask_padding:
        attendable = np.minimum(attendable, data.length)
    slots = np.arange(data.relevant.shape[1])
    uniform = (data.relevant * (slots < attendable[:, None])).sum(1) / attendable
    return Split(data, ranked, attendable, uniform, agreement)


def means(found: Mapping[str, np.ndarray], split: Split, levels: Levels, classes: int) -> dict[str, np.ndarray]:
    """The measures of a split, each (S, A), those of heads (S, A, heads).

    Names ending in _all are over all posts, mass and its kin otherwise over the marked ones; auprc over those of them in which
    some token is not marked. Of sentences with a subject also accuracy_natural, and accuracy_chosen, by which epochs are.
    """
    data = split.data
    marked, many = data.marked, split.attendable > 1
    right = found["predicted"] == data.label
    hit, sure = _confident(found["mass"], found["probability"], levels)
    heads_hit, heads_sure = _confident(found["heads_mass"], found["probability"][..., None], levels)
    share = found["entropy"] / np.log(np.maximum(split.attendable, 2))
    out = {
        "accuracy": right.mean(-1),
        "accuracy_marked": _over(right, marked),
        "macro_f1": cores.macro_f1(np, found["predicted"], np.broadcast_to(data.label, right.shape), classes),
        "loss": found["loss"].mean(-1),
        **{name: found[name].mean(-1) for name in _BOTH},
        **{f"{name}_marked": _over(found[name], marked) for name in _BOTH},
        **{name: _over(found[name], marked) for name in ("token_f1", "iou_f1")},
        "entropy_share": _over(share, many),
        "mrta_all": found["mass"].mean(-1),
        "mrta": _over(found["mass"], marked),
        "auprc": _over(found["auprc"], split.ranked),
        "ac_all": 100 * hit.mean(-1),
        "ac": 100 * _over(hit, marked),
        "acmc_all": 100 * sure.mean(-1),
        "acmc": 100 * _over(sure, marked),
        "head_entropy": found["heads_entropy"].mean((2, 3)),
        "head_top_mass": found["heads_top_mass"].mean((2, 3)),
        "heads_mrta": _over(found["heads_mass"], marked, 2),
        "heads_entropy": found["heads_entropy"].mean(2),
        "heads_auprc": _over(found["heads_auprc"], split.ranked, 2),
        "heads_top_mass": found["heads_top_mass"].mean(2),
        "heads_ac": 100 * _over(heads_hit, marked, 2),
        "heads_acmc": 100 * _over(heads_sure, marked, 2),
    }
    if split.agreement is not None:
        for name in ("natural", "chosen"):
            out[f"accuracy_{name}"] = _over(right, getattr(split.agreement, name))
    known = _known(found)
    return {name: np.where(_beside(known, values), values, np.nan).astype(np.float32) for name, values in out.items()}


def _confident(mass: np.ndarray, probability: np.ndarray, levels: Levels) -> tuple[np.ndarray, np.ndarray]:
    """Which instances count for AC, and which for ACMC."""
    reached = mass >= np.float32(levels.attention)
    hit = reached if levels.ac_probability is None else reached & (probability >= np.float32(levels.ac_probability))
    return hit, reached & (probability >= np.float32(levels.probability))


def _known(found: Mapping[str, np.ndarray]) -> np.ndarray:
    """Runs whose measures are finite on every post, (S, A): of the others, nothing is said."""
    return np.all(np.isfinite(found["mass"]) & np.isfinite(found["probability"]), axis=-1)


def _beside(runs: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(S, A) with as many axes as `values`."""
    return runs.reshape(*runs.shape, *(1,) * (values.ndim - 2))


def _over(values: np.ndarray, which: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean over some posts; NaN where there are none."""
    if not which.any():
        shape = [size for i, size in enumerate(values.shape) if i != axis % values.ndim]
        return np.full(shape, np.nan)
    return np.compress(which, values, axis).mean(axis)


def distributions(found: Mapping[str, np.ndarray], split: Split, levels: Levels) -> dict[str, np.ndarray]:
    """Of each run: heat maps, curves, and what uniform attention would get with its probabilities.

    Returns:
        dtap_all and dtap (marked posts), (S, A, 3, 3), percent; ac_curve and acmc_curve of the marked posts over
        `THRESHOLDS`, (S, A, 21); uniform_acmc, uniform_acmc_all, uniform_acmc_curve; heads_bins, the shares of all posts in
        each head's bins of attention, (S, A, heads, 3). Where AC asks for a probability, as published on sentences, also
        uniform_ac, uniform_ac_all and dtap_first_head, over all posts. Of sentences with a subject agreement_accuracy and so
        on, see `by_attractors`.
    """
    every, marked = np.ones(len(split.data), bool), split.data.marked
    mass, probability = found["mass"], found["probability"]
    known, edges = _known(found), levels.edges

    def maps(mass: np.ndarray, which: np.ndarray) -> np.ndarray:
        size = len(edges) - 1
        nothing = np.full((size, size), np.nan)
        each = [
            dtap(mass[run][which], probability[run][which], edges) if which.any() and known[run] else nothing
            for run in np.ndindex(known.shape)
        ]
        return np.stack(each).reshape(*known.shape, size, size)

    at = np.asarray(THRESHOLDS, np.float32)
    sure, uniform = probability[..., None] >= at, split.uniform.astype(np.float32)
    reached, flat = mass[..., None] >= at, uniform[:, None] >= at
    flat_hit, flat_sure = _confident(uniform, probability, levels)
    bins = np.searchsorted(np.asarray(edges[1:-1], np.float32), found["heads_mass"], side="right")
    out = {
        "dtap_all": maps(mass, every),
        "dtap": maps(mass, marked),
        "ac_curve": 100 * _over(reached, marked, 2),
        "acmc_curve": 100 * _over(reached & sure, marked, 2),
        "uniform_acmc_curve": 100 * _over(flat & sure, marked, 2),
        "uniform_acmc": 100 * _over(flat_sure, marked),
        "uniform_acmc_all": 100 * flat_sure.mean(-1),
        "heads_bins": np.stack([(bins == k).mean(2) for k in range(len(edges) - 1)], -1),
    }
    if levels.ac_probability is not None:
        out |= {"uniform_ac": 100 * _over(flat_hit, marked), "uniform_ac_all": 100 * flat_hit.mean(-1)}
        out["dtap_first_head"] = maps(found["heads_mass"][..., 0], every)
    if split.agreement is not None:
        out |= {f"agreement_{name}": values for name, values in by_attractors(found, split.agreement).items()}
    return {name: np.where(_beside(known, values), values, np.nan) for name, values in out.items()}


def floors(split: Split, how: Reading, confidence: float) -> dict[str, Any]:
    """What uniform attention and rankings by position alone would get on these posts.

    Both claims about attention need them: on short posts uniform attention alone is well above the thresholds of AC, and tokens
    that come first or last are relevant more often than others.
    """
    data, marked, ranked = split.data, split.data.marked, split.ranked
    content, hit = data.content, (data.relevant > 0) & data.content
    count, hits = content.sum(1), hit.sum(1)
    k = np.minimum(cores.top_count(np, count, how.top), count)
    # The tokens that uniform attention selects: ties go to the earliest.
    first = cores.top_mask(np, np.zeros(content.shape), content, k)
    reach = split.uniform.astype(np.float32)

    def mean(values: Any, which: np.ndarray | slice = slice(None)) -> float:
        chosen = values[which]
        return float(chosen.mean()) if chosen.size else float("nan")

    return {
        "uniform_mrta": mean(split.uniform, marked),
        "uniform_mrta_all": mean(split.uniform),
        "uniform_entropy": mean(np.log(split.attendable)),
        "uniform_entropy_marked": mean(np.log(split.attendable), marked),
        "uniform_top_mass": mean(k / split.attendable),
        "uniform_top_mass_marked": mean(k / split.attendable, marked),
        "uniform_auprc": mean(cores.chance_auprc(np, hit, content), ranked),
        "random_auprc": mean(cores.random_auprc(np, hit, content), ranked),
        "position_auprc_first": mean(cores.position_auprc(np, hit, content), ranked),
        "position_auprc_last": mean(cores.position_auprc(np, hit, content, last=True), ranked),
        "uniform_token_f1": mean(cores.token_f1(np, first, hit), marked),
        "uniform_iou_f1": mean(cores.iou_f1(np, first, hit), marked),
        # k of n tokens at random share k R / n with the R relevant ones.
        "random_token_f1": mean(2 * k * hits / np.maximum(count * (k + hits), 1), marked),
        "uniform_ac": 100 * mean(reach >= np.float32(confidence), marked),
        "uniform_ac_all": 100 * mean(reach >= np.float32(confidence)),
        "uniform_ac_curve": [100 * mean(reach >= level, marked) for level in np.asarray(THRESHOLDS, np.float32)],
    }


def extended(
    records: Mapping[str, np.ndarray],
    found: Mapping[str, Mapping[str, np.ndarray]],
    splits: Mapping[str, Split],
    levels: Levels,
    classes: int,
) -> Records:
    """Records with the measures after one more epoch.

    Args:
        records: so far.
        found: measures of every post, for each split.
        splits: the posts; validation accuracy decides which epoch is best, where there is a choice that of the chosen ones.
        levels: thresholds of AC and ACMC, bins.
        classes: number of classes.

    Returns:
        With "validation/accuracy" and so on, (S, A, epochs, ...); "best/epoch", from 1, and "best/validation/dtap" and so on at
        the epoch of best validation accuracy, the first of equals.
    """
    out = dict(records)
    for name, split in splits.items():
        for measure, values in means(found[name], split, levels, classes).items():
            key = f"{name}/{measure}"
            before = out.get(key, np.zeros((*values.shape[:2], 0, *values.shape[2:]), np.float32))
            out[key] = np.concatenate([before, values[:, :, None]], 2)
    accuracy = np.nan_to_num(out.get("validation/accuracy_chosen", out["validation/accuracy"]), nan=-1.0)
    epoch = accuracy.shape[-1]
    better = accuracy.argmax(-1) == epoch - 1
    new: Records = {"epoch": np.full(better.shape, epoch)}
    for name, split in splits.items():
        new |= {f"{name}/{what}": values for what, values in distributions(found[name], split, levels).items()}
    for name, values in new.items():
        old = out.get(f"best/{name}", values)
        out[f"best/{name}"] = np.where(better.reshape(*better.shape, *(1,) * (values.ndim - 2)), values, old)
    return out
