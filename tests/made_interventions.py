"""Made arms and records of interventions, with numbers that follow a rule; and a setting that trains nothing."""

from types import SimpleNamespace

from experiments.intervened.arms import Arm, Strengths, cases
from qkdyn.config import as_dict
from qkdyn.parameterization import Parameterization

SEEDS = (1, 2, 3)
STRENGTHS = Strengths(ratios=(1.0, 10.0, 100.0), clip_ov=(0.1,), decay_qk=(0.01,), adam=((0.01, 1.0), (0.01, 10.0)))


def made_arms(setting="made", form="CACO", levels=(0.5, 0.1)):
    """The plain arm, two ratios, a clip, a decay, gains and Adam."""
    return tuple(
        Arm(
            name=f"{setting}-{form}-{case['short']}",
            setting=setting,
            form=form,
            levels=levels,
            max_steps=900,
            seeds=SEEDS,
            **{name: value for name, value in case.items() if name != "short"},
        )
        for case in cases(STRENGTHS, 0.5, Parameterization(form))
    )


def made_run(seed, levels, attention, steps, *, status="stopped", accuracy=0.9):
    """A run that has `attention` at the last level, a tenth less at each one before, and a little of its seed's own."""
    matched = [
        {
            "level": level,
            "step": steps * (i + 1) + seed,
            "attention": attention - 0.1 * (len(levels) - 1 - i) + 0.01 * seed,
            "accuracy": accuracy,
        }
        for i, level in enumerate(levels)
    ]
    diverged = status == "diverged"
    return {
        "seed": seed,
        "status": status,
        "diverged_at": 7 if diverged else None,
        "end": {"step": 7 if diverged else 900, "loss": None if diverged else 0.1},
        "matched": [] if diverged else matched,
    }


def made_record(arm, attention=0.5, steps=100.0, *, predicted=None, status="stopped"):
    """The record of an arm, all seeds alike but for 0.01 times the seed, that cancels in pairs."""
    told = [] if predicted is None else [{"level": arm.levels[-1], "step": steps, "attention": predicted, "r_eq": None}]
    runs = [made_run(seed, arm.levels, attention, steps, status=status) for seed in arm.seeds]
    return {"arm": as_dict(arm), "runs": runs, "predicted": told}


class MadeSetting(SimpleNamespace):
    """A setting whose records are made; it remembers what it was asked to train."""

    def __init__(self, setting="made", **given):
        super().__init__(SETTING=setting, asked=[], missing=None, attention=lambda arm: 0.5, **given)

    def arms(self, quick):
        return made_arms(self.SETTING)

    def groups(self, arms):
        kinds = dict.fromkeys(arm.optimizer for arm in arms)
        return [[arm for arm in arms if arm.optimizer == kind] for kind in kinds]

    def ready(self, data):
        if self.missing is not None:
            raise self.missing

    def train(self, arms, work):
        self.asked.append([arm.name for arm in arms])
        found = {arm.name: made_record(arm, self.attention(arm)) for arm in arms}
        return {name: {part: record[part] for part in ("runs", "predicted")} for name, record in found.items()}
