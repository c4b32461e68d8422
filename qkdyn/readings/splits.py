"""From measures of every post to those of a split: means, shares, heat maps; and what uniform attention would get."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.metrics import cores
from qkdyn.metrics.attention import uniform_attention_confidence
from qkdyn.metrics.dtap import dtap
from qkdyn.readings.posts import Reading
from qkdyn.text.encoded import Encoded
from qkdyn.train.text_batches import readouts

# Edges of the published heat maps of HateXplain, and thresholds of the curves of AC and ACMC.
EDGES = (0.0, 0.33, 0.66, 1.1)
THRESHOLDS = np.linspace(0, 1, 21)
Records = dict[str, np.ndarray]
# Means over all posts, and over marked ones.
_ALL = ("loss", "entropy", "top_mass", "comprehensiveness", "sufficiency")
_MARKED = ("mass", "auprc", "token_f1", "iou_f1")


@dataclass(frozen=True, eq=False)
class Split:
    """N posts and what of their measures depends on them alone.

    Attributes:
        data: the posts.
        ranked: marked posts with a token that is not marked: where a ranking says something, (N,).
        attendable: tokens that the measured row may attend to, (N,).
    """

    data: Encoded
    ranked: np.ndarray
    attendable: np.ndarray


def split_of(data: Encoded, how: Reading) -> Split:
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
    return Split(data, ranked, attendable)


def means(found: Mapping[str, np.ndarray], split: Split, confidence: float, classes: int) -> dict[str, np.ndarray]:
    """The measures of a split, each (S, A), those of heads (S, A, heads).

    Names ending in _all are over all posts, mass and its kin otherwise over the marked ones; auprc over those of them in which
    some token is not marked.
    """
    data = split.data
    marked, many = data.marked, split.attendable > 1
    right = found["predicted"] == data.label
    hit = found["mass"] >= np.float32(confidence)
    sure = hit & (found["probability"] >= np.float32(confidence))
    share = found["entropy"] / np.log(np.maximum(split.attendable, 2))
    out = {
        "accuracy": right.mean(-1),
        "macro_f1": cores.macro_f1(np, found["predicted"], np.broadcast_to(data.label, right.shape), classes),
        **{name: found[name].mean(-1) for name in _ALL},
        **{name: _over(found[name], marked) for name in _MARKED if name not in ("mass", "auprc")},
        "entropy_share": _over(share, many),
        "mrta_all": found["mass"].mean(-1),
        "mrta": _over(found["mass"], marked),
        "auprc": _over(found["auprc"], split.ranked),
        "comprehensiveness_marked": _over(found["comprehensiveness"], marked),
        "sufficiency_marked": _over(found["sufficiency"], marked),
        "accuracy_marked": _over(right, marked),
        "ac_all": 100 * hit.mean(-1),
        "ac": 100 * _over(hit, marked),
        "acmc_all": 100 * sure.mean(-1),
        "acmc": 100 * _over(sure, marked),
        "heads_mrta": _over(found["heads_mass"], marked, 2),
        "heads_entropy": found["heads_entropy"].mean(2),
        "heads_auprc": _over(found["heads_auprc"], split.ranked, 2),
    }
    return {name: np.asarray(values, np.float32) for name, values in out.items()}


def _over(values: np.ndarray, which: np.ndarray, axis: int = -1) -> np.ndarray:
    """Mean over some posts; NaN where there are none."""
    if not which.any():
        shape = [size for i, size in enumerate(values.shape) if i != axis % values.ndim]
        return np.full(shape, np.nan)
    return np.compress(which, values, axis).mean(axis)


def distributions(found: Mapping[str, np.ndarray], split: Split) -> dict[str, np.ndarray]:
    """DTAP of all and of the marked posts, (S, A, 3, 3), percent; AC and ACMC of the marked over the thresholds, (S, A, 21).

    And of each head the shares of all posts in the bins of attention, (S, A, heads, 3).
    """
    every, marked = np.ones(len(split.data), bool), split.data.marked
    mass, probability = found["mass"], found["probability"]
    runs = list(np.ndindex(mass.shape[:2]))
    known = np.all(np.isfinite(mass) & np.isfinite(probability), axis=-1)

    def maps(which: np.ndarray) -> np.ndarray:
        size = len(EDGES) - 1
        nothing = np.full((size, size), np.nan)
        each = [
            dtap(mass[run][which], probability[run][which], EDGES) if which.any() and known[run] else nothing
            for run in runs
        ]
        return np.stack(each).reshape(*mass.shape[:2], size, size)

    levels = THRESHOLDS.astype(np.float32)
    reached = mass[..., marked, None] >= levels
    both = reached & (probability[..., marked, None] >= levels)
    curve = lambda hits: 100 * hits.mean(2) if marked.any() else np.full((*mass.shape[:2], len(levels)), np.nan)  # noqa: E731
    bins = np.searchsorted(np.asarray(EDGES[1:-1], np.float32), found["heads_mass"], side="right")
    heads = np.stack([(bins == k).mean(2) for k in range(len(EDGES) - 1)], -1)
    curves = {"ac_curve": curve(reached), "acmc_curve": curve(both)}
    return {"dtap_all": maps(every), "dtap": maps(marked), **curves, "heads_bins": heads}


def floors(split: Split, how: Reading, confidence: float) -> dict[str, float]:
    """What uniform attention and rankings by position alone would get on these posts.

    Both claims about attention need them: on short posts uniform attention alone is well above the thresholds of AC, and tokens
    that come first or last are relevant more often than others.
    """
    data = split.data
    content, marked, ranked = data.content, data.marked, split.ranked
    width = int(max(split.attendable.max(), content.shape[1]))
    allowed = np.arange(width) < split.attendable[:, None]
    relevant = np.zeros((len(data), width), np.float32)
    relevant[:, : content.shape[1]] = data.relevant
    mass = (relevant * allowed).sum(1) / split.attendable
    top = cores.top_count(np, content.sum(1), how.top)
    hit = (data.relevant > 0) & content

    def mean(values: Any, which: np.ndarray) -> float:
        return float(values[which].mean()) if which.any() else float("nan")

    return {
        "uniform_mrta": mean(mass, marked),
        "uniform_mrta_all": float(mass.mean()),
        "uniform_entropy": float(np.log(split.attendable).mean()),
        "uniform_top_mass": float((np.minimum(top, content.sum(1)) / split.attendable).mean()),
        "uniform_auprc": mean(cores.chance_auprc(np, hit, content), ranked),
        "random_auprc": mean(cores.random_auprc(np, hit, content), ranked),
        "position_auprc_first": mean(cores.position_auprc(np, hit, content), ranked),
        "position_auprc_last": mean(cores.position_auprc(np, hit, content, last=True), ranked),
        "uniform_ac_all": float(uniform_attention_confidence(relevant, allowed, confidence)),
        "uniform_ac": float(uniform_attention_confidence(relevant[marked], allowed[marked], confidence))
        if marked.any()
        else float("nan"),
    }


def extended(
    records: Mapping[str, np.ndarray],
    found: Mapping[str, Mapping[str, np.ndarray]],
    splits: Mapping[str, Split],
    confidence: float,
    classes: int,
) -> Records:
    """Records with the measures after one more epoch.

    Args:
        records: so far.
        found: measures of every post, for each split.
        splits: the posts; validation accuracy decides which epoch is best.
        confidence: threshold of AC and ACMC.
        classes: number of classes.

    Returns:
        With "validation/accuracy" and so on, (S, A, epochs, ...); "best/epoch", from 1, and "best/validation/dtap" and so on at
        the epoch of best validation accuracy, the first of equals.
    """
    out = dict(records)
    for name, split in splits.items():
        for measure, values in means(found[name], split, confidence, classes).items():
            key = f"{name}/{measure}"
            before = out.get(key, np.zeros((*values.shape[:2], 0, *values.shape[2:]), np.float32))
            out[key] = np.concatenate([before, values[:, :, None]], 2)
    accuracy = out["validation/accuracy"]
    epoch = accuracy.shape[-1]
    better = accuracy.argmax(-1) == epoch - 1
    new: Records = {"epoch": np.full(better.shape, epoch)}
    for name, split in splits.items():
        new |= {f"{name}/{what}": values for what, values in distributions(found[name], split).items()}
    for name, values in new.items():
        old = out.get(f"best/{name}", values)
        out[f"best/{name}"] = np.where(better.reshape(*better.shape, *(1,) * (values.ndim - 2)), values, old)
    return out
