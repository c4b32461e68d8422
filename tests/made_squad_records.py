"""Made records of runs on questions: what training returns, with numbers that follow a rule."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from experiments import table1_squad as table1
from experiments.squad.readings import QUANTITIES
from experiments.squad.train import EPOCH, plain
from qkdyn.metrics.curves import THRESHOLDS
from qkdyn.readings.question_summary import EDGES

UNIFORM = sorted({q.uniform for q in QUANTITIES if isinstance(q.uniform, str) and "area" not in q.uniform})
NAMES = [q.name for q in QUANTITIES if not q.name.endswith("_area")]
SHA = {"train-v1.1.json": "a" * 64}
BASELINES = {"middle": {"f1": 0.01, "em": 0.0}, "sentence": {"f1": 0.05, "em": 0.0}, "token_frequencies": {"loss": 6.5}}


def measured(start, dev):
    """Every quantity in the order of the records from `start` on, a hundredth apart; the heat maps sum to 100."""
    found: dict[str, Any] = {name: start + 0.01 * i for i, name in enumerate(NAMES)}
    if not dev:
        found = {name: value for name, value in found.items() if name not in ("comprehensiveness", "sufficiency")}
    found |= dict.fromkeys(UNIFORM, 0.25)
    grid = np.full((4, 4), 6.0) + np.eye(4)
    found |= {"dtap": grid.tolist(), "dtap_unspaced": grid[::-1].tolist()}
    found |= {name: np.linspace(100, 0, 21).tolist() for name in ("ac_curve", "uniform_ac_curve", "acmc_curve")}
    return found | {"heads": [{"mass": start, "entropy": start + h} for h in range(4)]}


def made_run(run):
    """Training loss falls as exp(-t), t in epochs, its mean that of the epoch's centre; sharper with QK and with the rate."""
    arm, steps = run.arm, range(1, run.arm.epochs + 1)
    start = 0.2 + 0.1 * math.log10(arm.qk) + 0.05 * math.log10(arm.rate / 5e-5) + 0.001 * (run.seed % 10)
    each = [measured(start + 0.01 * e, False) for e in steps]
    lines = {name: [one[name] for one in each] for name in EPOCH}
    splits = ("train", "selection", "dev")
    end = {split: measured(start + 0.01 * arm.epochs + 0.02 * i, split == "dev") for i, split in enumerate(splits)}
    epochs = {"training_loss": [math.exp(-(e - 0.5)) for e in steps], "selection": lines}
    own = {"seed": run.seed, "diverged_at": None, "epochs": epochs, "end": end, "best": {"epoch": 1} | end}
    data = {"train": 9, "selection": 3, "dev": 4, "vocabulary": 400, "sha256": SHA}
    record = {"data": data, "notes": ["made questions"], "thresholds": list(THRESHOLDS), "edges": list(EDGES)}
    record |= {"tokens_per_second": 1000, "training_seconds": 1.0, "baselines": BASELINES, "runs": [own]}
    cost = {"updates": 3, "tokens": 100, "training": 1e9, "reading": 1e8}
    return plain(record | {"cost": cost})


def made(protocol):
    """Records as the command would have them."""
    return [
        {**made_run(run), "arm": dict(place.arm), **place.shared, "wall_seconds": 1.0}
        for run, place in zip(protocol.runs, table1.places(Path(), protocol), strict=True)
    ]
