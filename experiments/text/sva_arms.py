"""The protocols of Table 1 on subject-verb agreement: which arms are trained, by which recipe, and what is compared."""

from dataclasses import replace
from typing import Any

from experiments.text.arms import BASELINE, Comparison, Protocol
from experiments.text.recipe import TextArm
from experiments.text.sva_recipe import SvaRecipe
from qkdyn.text.sva import PUBLISHED_TRAIN

FAST = 100.0
# What the published recipe changes together, in the order of the names of arms.
FACTORS: dict[str, dict[str, Any]] = {"qk100": {"qk": FAST}, "embed100": {"embed": FAST}}
DECAY = 1e-5
# Base rates by validation accuracy after the last epoch (--tune): of sentences as they come, and of all of them.
NATURAL_RATE, NATURAL_EPOCHS = 5e-5, 30
ALL_RATE, ALL_EPOCHS = 1e-3, 10


def as_coded() -> Protocol:
    """The published notebooks: whole sentences with their verb in view, SGD, embeddings x100 with QK.

    No residual stream, no clipping, three outputs for two classes. The measured row is that of the last slot, a padding query
    that predicts nothing; AC and ACMC are of the first head.
    """
    faster = TextArm("faster", 15, 5e-4, qk=FAST, embed=FAST, decay=DECAY)
    arms = (TextArm(BASELINE, 15, 5e-4, decay=DECAY), faster)
    return Protocol(published_recipe(), (arms,), (Comparison("published", (BASELINE, "faster")),))


def as_written() -> Protocol:
    """The paper's Section 7: AdamW at 1e-5, QK x100 and nothing else, in the published model and as published measured."""
    return _faster_alone(replace(published_recipe(), optimizer="adamw", momentum=0.0), 1e-5)


def as_written_sgd() -> Protocol:
    """The paper's Appendix A.2: SGD with batches of 256, QK x100 and nothing else; rate and momentum are the notebooks'."""
    return _faster_alone(replace(published_recipe(), batch=256), 5e-4)


def controlled() -> Protocol:
    """The number of a verb that is not seen, learned from sentences as they come."""
    return _controlled("natural", NATURAL_EPOCHS, NATURAL_RATE)


def controlled_all() -> Protocol:
    """The same from all sentences, most of them picked for their attractors: inverting a noun in between can pay."""
    return _controlled("all", ALL_EPOCHS, ALL_RATE)


def quick() -> Protocol:
    """Two arms on few sentences, for two seeds: a look, no result."""
    arms = (TextArm(BASELINE, 2, 3e-3, decay=DECAY), TextArm("qk30", 2, 3e-3, qk=30.0, decay=DECAY))
    # Beginnings of at most 16 words: two widths to compile.
    recipe = SvaRecipe(mix="all", n_ctx=16, seeds=(1234, 1235))
    return Protocol(recipe, (arms,), (Comparison("quick", (BASELINE, "qk30")),), limit=2000)


def published_recipe() -> SvaRecipe:
    """The published model, as it was trained and measured."""
    return SvaRecipe(
        rows="sentences",
        relevant="subject_and_verb",
        split="published",
        vocabulary="wordpiece",
        query_token=False,
        readout="last",
        measured="last_slot",
        by_length=False,
        share=0.05,
        share_of="slots",
        order="rank",
        outputs=3,
        stream=False,
        optimizer="sgd",
        momentum=0.99,
        clip=None,
        confidence=0.1,
        sure=0.5,
        ac_probability=0.1,
        epoch_size=PUBLISHED_TRAIN,
    )


def _faster_alone(recipe: SvaRecipe, rate: float) -> Protocol:
    """The baseline, and QK x100 and nothing else."""
    arms = (TextArm(BASELINE, 15, rate, decay=DECAY), TextArm("qk100", 15, rate, qk=FAST, decay=DECAY))
    return Protocol(recipe, (arms,), (Comparison("published", (BASELINE, "qk100")),))


def _controlled(mix: str, epochs: int, rate: float) -> Protocol:
    """QK and embeddings x100 taken apart, the dose of QK, and what else is faster."""

    def arm(name: str, **changed: float) -> TextArm:
        return replace(TextArm(name, epochs, rate, decay=DECAY), **changed)

    crossed = (
        arm(BASELINE),
        arm("embed100", embed=FAST),
        arm("qk100", qk=FAST),
        arm("qk100+embed100", qk=FAST, embed=FAST),
    )
    doses = tuple(arm(f"qk{dose:g}", qk=dose) for dose in (5.0, 10.0, 30.0))
    others = (arm("ov30", ov=30.0), arm("all30", rate=30 * rate))
    comparisons = (
        Comparison("factorial", tuple(own.name for own in crossed)),
        Comparison("dose", (BASELINE, "qk5", "qk10", "qk30", "qk100", "ov30", "all30")),
    )
    return Protocol(SvaRecipe(mix=mix), ((*crossed, *doses, *others),), comparisons)
