"""How much attention the relevant tokens get (App. D.6): mass, MRTA, AC, ACMC, and what uniform attention would get.

Each measure reduces the masses of many instances, (..., instances), over its last axis; leading axes, such as seeds, stay.
A measure's `uniform_*` counterpart is the same measure of uniform attention on the same masks: a floor that depends on the
task alone, without which a mass says little.
"""

import numpy as np
from jaxtyping import Bool, Float, Real

from qkdyn.errors import reject
from qkdyn.metrics.checks import as_attention, as_mask, as_shares, check_match, check_share

# Attention to one instance's T tokens; which of them are relevant, as bools or as weights in [0, 1].
Relevant = Bool[np.ndarray, "*#batch T"] | Real[np.ndarray, "*#batch T"]
Mask = Bool[np.ndarray, "*#batch T"] | None


def attention_mass(attention: Float[np.ndarray, "*#batch T"], relevant: Relevant) -> Float[np.ndarray, "*batch"]:
    """Share of the attention that falls on relevant tokens: the x-axis of DTAP, alpha of Theorem 1.

    Where no token is relevant the mass is 0, the empty sum: such instances stay in the averages below, as they do in the
    paper's. To leave them out, keep the instances with `relevant.any(-1)`.

    Args:
        attention: attention of the position that predicts, (..., T): each row sums to 1, or is all 0 where nothing may be
            attended to (as `qkdyn.attention.forward` has it). Of several heads or layers, an average or a rollout.
        relevant: (..., T), True where a token is relevant; or weights in [0, 1], such as the mean of several annotators'
            masks, which gives the mean of the masses on each mask. Leading axes broadcast.

    Returns:
        The mass, (...), in [0, 1], float64.

    Raises:
        InputError: attention that is negative, NaN or does not sum to 1 or 0 (each give or take 1e-5), weights outside
            [0, 1], nothing at all, or shapes that do not match.
    """
    weights, share = as_attention("attention", attention), as_shares("relevant", relevant)
    check_match(attention=weights, relevant=share)
    return np.asarray(np.clip((weights * share.astype(np.float64)).sum(-1), 0, 1))


def uniform_mass(relevant: Relevant, mask: Mask = None) -> Float[np.ndarray, "*batch"]:
    """The `attention_mass` of uniform attention: relevant tokens / tokens among those that may be attended to.

    Args:
        relevant: as for `attention_mass`, (..., T). A relevant token that may not be attended to gets no attention.
        mask: True where a token may be attended to, (..., T), so not at padding; None where all may.

    Returns:
        The mass, (...), float64; 0 where no token is relevant, and where none may be attended to.

    Raises:
        InputError: `relevant` as for `attention_mass`; a mask that is not bool; shapes that do not match.
    """
    share = as_shares("relevant", relevant).astype(np.float64)
    allowed = np.ones(share.shape, bool) if mask is None else as_mask("mask", mask)
    check_match(relevant=share, mask=allowed)
    return np.asarray((share * allowed).sum(-1) / np.maximum(allowed.sum(-1), 1))


def mrta(mass: Float[np.ndarray, "*batch N"]) -> Float[np.ndarray, "*batch"]:
    """Mean relevant token attention (App. D.6): the mean of `attention_mass` over N instances, in [0, 1].

    Args:
        mass: (..., N), in [0, 1] give or take 1e-5. Where an instance has several masses, such as one for each token it
            generates, pass their mean.

    Raises:
        InputError: a mass that is NaN or not in [0, 1], or no instance.
    """
    return np.asarray(as_shares("mass", mass).mean(-1, dtype=np.float64))


def attention_confidence(mass: Float[np.ndarray, "*batch N"], threshold: float = 0.5) -> Float[np.ndarray, "*batch"]:
    """Attention confidence AC (App. D.6): percent of instances whose attention mass is at least `threshold`.

    The paper sums "the right half" of the columns of a DTAP heat map, whose edges differ between its data sets, and gives
    no threshold. Here it is a number, one half unless told; where it is one of the edges, AC is the sum of the columns from
    there on, as bins hold their lower edges. The published notebooks' thresholds are 0.1 for SQuAD
    (Fig. 5) and SVA and 0.33 for HateXplain. The threshold is rounded to the
    precision of the masses.

    Args:
        mass: (..., N), as for `mrta`.
        threshold: a number in [0, 1].

    Returns:
        Percent, (...), float64.

    Raises:
        InputError: masses as for `mrta`, or a threshold that is not in [0, 1].
    """
    return _percent(_reach("mass", mass, "threshold", threshold))


def acmc(
    mass: Float[np.ndarray, "*#batch N"],
    probability: Float[np.ndarray, "*#batch N"],
    threshold: float = 0.5,
    probability_threshold: float = 0.5,
) -> Float[np.ndarray, "*batch"]:
    """Attention confidence and model confidence ACMC (App. D.6): percent of instances that reach both thresholds.

    Sec. 7 speaks of a percentage "of confidently correct instances", which would be a conditional one; the definition and
    the example in App. D.6 sum cells of the heat map, which are shares of all instances, and so does this: it is at most AC.

    Args:
        mass: (..., N), as for `mrta`.
        probability: predicted probability of the right answer, (..., N), in [0, 1] give or take 1e-5. Leading axes
            broadcast.
        threshold: what the mass must reach; see `attention_confidence`.
        probability_threshold: what the probability must reach, likewise (the top half of the rows).

    Returns:
        Percent, (...), float64.

    Raises:
        InputError: masses or probabilities that are NaN or not in [0, 1], no instance, shapes that do not match, or a
            threshold that is not in [0, 1].
    """
    attentive = _reach("mass", mass, "threshold", threshold)
    confident = _reach("probability", probability, "probability_threshold", probability_threshold)
    check_match(mass=attentive, probability=confident)
    return _percent(attentive & confident)


def uniform_mrta(relevant: Relevant, mask: Mask = None) -> Float[np.ndarray, "..."]:
    """The `mrta` of uniform attention: the mean over instances of `uniform_mass`; arguments and errors are its own."""
    return mrta(_uniform_masses(relevant, mask))


def uniform_attention_confidence(
    relevant: Relevant, mask: Mask = None, threshold: float = 0.5
) -> Float[np.ndarray, "..."]:
    """The `attention_confidence` of uniform attention; arguments and errors are those of it and of `uniform_mass`."""
    return attention_confidence(_uniform_masses(relevant, mask), threshold)


def uniform_acmc(
    relevant: Relevant,
    probability: Float[np.ndarray, "..."],
    mask: Mask = None,
    threshold: float = 0.5,
    probability_threshold: float = 0.5,
) -> Float[np.ndarray, "..."]:
    """The `acmc` of uniform attention with the model's own probabilities; arguments and errors as there."""
    return acmc(_uniform_masses(relevant, mask), probability, threshold, probability_threshold)


def _uniform_masses(relevant: Relevant, mask: Mask) -> np.ndarray:
    """`uniform_mass` of the instances that a measure averages over."""
    mass = uniform_mass(relevant, mask)
    if mass.ndim == 0:
        reject(
            "the shape of relevant", np.shape(relevant), "(..., instances, tokens)", "for one instance, relevant[None]"
        )
    return mass


def _reach(name: str, values: np.ndarray, threshold_name: str, threshold: float) -> np.ndarray:
    """Where shares are at least the threshold, compared in their own precision, as `dtap` compares them with its edges."""
    shares = as_shares(name, values)
    return shares >= shares.dtype.type(check_share(threshold_name, threshold))


def _percent(hits: np.ndarray) -> np.ndarray:
    """Percent of true values along the last axis."""
    return np.asarray(100.0 * hits.sum(-1) / hits.shape[-1])
