"""Readings of sentences by the number of attractors, nouns of the other number between subject and verb; and simple rules."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qkdyn.text.sva import LABELS, Sentence, noun_numbers

# Bins of attractors: 0, 1, ..., and this many or more.
MOST = 5
# Lines of a reading: bins of attractors, each for either label and for both.
WHICH = (*LABELS, "both")
PLACES = ("subject", "attractor")


@dataclass(frozen=True, eq=False)
class Agreement:
    """What there is to know of N sentences beside their tokens.

    Attributes:
        label: class, (N,).
        attractors: how many each has, (N,); -1 where that is not known.
        known: whether it is known where they are, (N,).
        places: tokens of the subject and of the attractors, (N, 2, T).
        allowed: tokens that the measured row may attend to, (N, T).
        chosen: sentences by which epochs are chosen, (N,).
        natural: sentences that stand for the language as it is, not picked for their attractors, (N,).
        rules: of each simple rule, whether it is right, (N,).
    """

    label: np.ndarray
    attractors: np.ndarray
    known: np.ndarray
    places: np.ndarray
    allowed: np.ndarray
    chosen: np.ndarray
    natural: np.ndarray
    rules: Mapping[str, np.ndarray]

    def cells(self) -> list[tuple[int, str, np.ndarray]]:
        """Number of attractors, label, and which sentences, (N,): six bins, each for either label and for both."""
        bins = np.minimum(self.attractors, MOST)
        return [
            (number, which, (bins == number) & (which == "both" or self.label == LABELS.index(which)))
            for number in range(MOST + 1)
            for which in WHICH
        ]


def simple_rules(sentences: Sequence[Sentence], train: Sequence[Sentence]) -> dict[str, np.ndarray]:
    """Whether rules that learn nothing but words are right, (N,) each.

    majority: the label that most sentences of `train` have. subject: the subject's own number, in `train` (`noun_numbers`),
    else majority. inverse: the number that the last noun between subject and verb does not have, else majority; it pays
    where sentences are picked for their attractors.
    """
    numbers = noun_numbers(train)
    majority = Counter(sentence.label for sentence in train).most_common(1)[0][0]
    other: dict[str, str] = dict(zip(LABELS, LABELS[::-1], strict=True))

    def inverse(sentence: Sentence) -> str:
        between = [numbers[word] for word in sentence.words[sentence.subject + 1 : sentence.verb] if word in numbers]
        return other[between[-1]] if between else majority

    said = {
        "majority": lambda sentence: majority,
        "subject": lambda sentence: numbers.get(sentence.words[sentence.subject], majority),
        "inverse": inverse,
    }
    return {name: np.array([rule(s) == s.label for s in sentences]) for name, rule in said.items()}


def by_attractors(found: Mapping[str, np.ndarray], own: Agreement) -> dict[str, np.ndarray]:
    """Measures in each cell of `own`, (S, A, cells), those of heads (S, A, cells, heads); NaN where there is no sentence.

    Args:
        found: of `qkdyn.readings.posts.read` with `places`.
        own: of the same sentences.

    Returns:
        accuracy; mass of the measured row on the subject and on the attractors, and elsewhere, over those sentences of
        which it is known where attractors are; heads_subject and heads_attractor.
    """
    right = np.where(found["predicted"] < 0, np.nan, found["predicted"] == own.label)
    row, heads = found["places"], found["heads_places"]
    cells = own.cells()

    def each(values: np.ndarray, known: bool = True) -> np.ndarray:
        return np.stack([_mean(values, which & own.known if known else which) for _, _, which in cells], 2)

    return {
        "accuracy": each(right, False),
        **{name: each(row[..., k]) for k, name in enumerate(PLACES)},
        "elsewhere": each(1 - row.sum(-1)),
        **{f"heads_{name}": each(heads[..., k]) for k, name in enumerate(PLACES)},
    }


def lines(measured: Mapping[str, np.ndarray], own: Agreement) -> list[dict[str, Any]]:
    """The measures of one run, (cells, ...) each, as a list with a line for each cell."""
    out = []
    for number, (attractors, label, which) in enumerate(own.cells()):
        of = {name: values[number] for name, values in measured.items()}
        heads = [
            dict(zip(PLACES, pair, strict=True)) for pair in zip(*(of.pop(f"heads_{p}") for p in PLACES), strict=True)
        ]
        counts = {"n": int(which.sum()), "n_known": int((which & own.known).sum())}
        out.append({"attractors": attractors, "label": label, **counts, **of, "heads": heads})
    return out


def baselines(own: Agreement) -> list[dict[str, Any]]:
    """What simple rules and uniform attention get, a line for each cell."""
    count = own.allowed.sum(-1)
    uniform = (own.places & own.allowed[:, None]).sum(-1) / count[:, None]
    out = []
    for attractors, label, which in own.cells():
        known = which & own.known
        rules = {name: _mean(right, which) for name, right in own.rules.items()}
        masses = {f"uniform_{name}": _mean(uniform[:, k], known) for k, name in enumerate(PLACES)}
        masses["uniform_elsewhere"] = _mean(1 - uniform.sum(-1), known)
        counts = {"n": int(which.sum()), "n_known": int(known.sum())}
        out.append({"attractors": attractors, "label": label, **counts, **rules, **masses})
    return out


def _mean(values: np.ndarray, which: np.ndarray) -> Any:
    """Mean over some sentences; their axis is the last of (N,), and the third of (S, A, N, ...)."""
    axis = 0 if values.ndim == 1 else 2
    if not which.any():
        return np.full(values.shape[:axis] + values.shape[axis + 1 :], np.nan)
    return np.compress(which, values, axis).mean(axis)
