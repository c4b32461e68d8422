"""Made records of arms on text: what a trainer returns, with numbers that follow a rule."""

import math
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import table1_hatexplain as table1
from experiments.text import command
from experiments.text.readings import QUANTITIES
from experiments.text.sva_recipe import SvaRecipe

FLOORS = sorted({q.uniform for q in QUANTITIES if isinstance(q.uniform, str) and "area" not in q.uniform})
AT_ENDS = ("aopc_comprehensiveness", "aopc_sufficiency")
CUT, EMPTY = {"train": 2, "validation": 0, "test": 1}, {"train": 0, "validation": 3, "test": 0}
SHA = {"dataset.json": "a" * 64}


def measured(start, whole=False):
    """M, and with `whole` F and D: every quantity in the order of the records from `start` on, a hundredth apart."""
    names = [q.name for q in QUANTITIES if not q.name.endswith(("_area", "_head")) and not q.name.startswith("best_")]
    found = {name: round(start + 0.01 * i, 6) for i, name in enumerate(names)}
    if not whole:
        return {name: value for name, value in found.items() if name not in AT_ENDS}
    found |= dict.fromkeys(FLOORS, 0.25) | {"random_auprc": 0.27, "random_token_f1": 0.26}
    found |= {"position_auprc_first": 0.3, "position_auprc_last": 0.28}
    grid = np.array([[20.0, 5, 15], [5, 3, 2], [30, 15, 5]])
    found |= {"dtap_all": grid.tolist(), "dtap": (grid[::-1]).tolist()}
    for name, height in (("ac", 100), ("acmc", 50), ("uniform_ac", 60), ("uniform_acmc", 30)):
        found[f"{name}_curve"] = np.linspace(height, 0, 21).tolist()
    found |= {f"{name}_curve": [start / k for k in range(1, 6)] for name in ("comprehensiveness", "sufficiency")}
    heads = [{"mrta": start, "entropy": start + h, "auprc": start / (1 + h), "top_mass": 0.4} for h in range(4)]
    return found | {"heads": [head | {"bins": [0.5, 0.25, 0.25]} for head in heads]}


def made_run(seed, epochs, start, rate):
    """Training loss falls as exp(-rate t), t in epochs, its mean in an epoch that of its centre; quantities by 0.1 rate t."""
    level = start + 0.001 * (seed % 10)
    steps = range(1, epochs + 1)
    lines: dict[str, Any] = {"training_loss": [math.exp(-rate * (e - 0.5)) for e in steps]}
    for split, more in (("validation", 0.0), ("test", 0.02)):
        each = [measured(level + 0.1 * rate * e + more) for e in steps]
        lines[split] = {name: [one[name] for one in each] for name in each[0]}
    end = {
        split: measured(level + 0.1 * rate * epochs + i * 0.02, True)
        for i, split in enumerate(("validation", "test", "train"))
    }
    best = {"epoch": 1} | {split: end[split] for split in ("validation", "test")}
    return {"seed": seed, "diverged_at": None, "epochs": lines, "end": end, "best": best}


# Sentences of each number of attractors and label, and those of them of which it is known where they are; none of 3, of 5.
COUNTS = {(0, "VBZ"): (6, 6), (0, "VBP"): (2, 2), (1, "VBZ"): (3, 2), (1, "VBP"): (1, 0), (2, "VBP"): (1, 1)}
COUNTS[4, "VBZ"] = (2, 0)


def cells(counted, masses):
    """A line for each number of attractors, 0 to 5, and label; what is not known of any sentence is null."""
    found = []
    for number, label in ((number, label) for number in range(6) for label in ("VBZ", "VBP", "both")):
        own = [both for (k, of), both in COUNTS.items() if k == number and label in (of, "both")]
        n, known = map(sum, zip(*own, strict=True)) if own else (0, 0)
        line = {"attractors": number, "label": label, "n": n, "n_known": known}
        line |= {key: value if n else None for key, value in counted(number, label).items()}
        found.append(line | {key: value if known else None for key, value in masses(number).items()})
    return found


def agreement(seed, qk):
    """Accuracy falls with the attractors, less with a faster QK, of whose heads the second is on the subject."""
    rows = ("subject", "attractor", "elsewhere")
    found = cells(
        lambda number, label: {
            "accuracy": round(0.9 + 0.01 * seed - (0.1 - 0.05 * qk) * number - 0.02 * (label == "VBP"), 6)
        },
        lambda number: dict(
            zip(rows, (0.2 + 0.3 * qk + 0.01 * seed - 0.05 * number, (0.3 - 0.2 * qk) * (number > 0), 0.4), strict=True)
        ),
    )
    for line in found:
        heads = [(0.1, 0.3), (0.3 + 0.4 * qk, 0.1), (0.2, 0.2), (0.05, 0.05)]
        heads = heads if line["n_known"] else [(None, None)] * 4
        line["heads"] = [{"subject": subject, "attractor": attractor} for subject, attractor in heads]
    return found


def rules():
    """What simple rules and uniform attention get."""
    return cells(
        lambda number, label: {
            "majority": 0.6,
            "subject": 0.9 - 0.05 * number,
            "inverse": round(0.2 + 0.15 * number, 6),
        },
        lambda number: {"uniform_subject": 0.2, "uniform_attractor": 0.1, "uniform_elsewhere": 0.7},
    )


def made_record(recipe, arm):
    """Sharper with QK and embeddings, by an effect of each and one of both together."""
    qk, embed, frozen, decay = arm.qk > 1, arm.embed > 1, arm.mlp == 0, arm.decay > 1e-3 / 2
    start = 0.2 + 0.1 * qk + 0.05 * embed + 0.02 * qk * embed - 0.01 * frozen + 0.0 * decay
    runs = [made_run(seed, arm.epochs, start, 0.1 + 0.02 * qk) for seed in recipe.seeds]
    more = {}
    if isinstance(recipe, SvaRecipe):
        more = {"baselines": {split: rules() for split in ("validation", "test")}}
        for run in runs:
            for split in ("validation", "test"):
                own = {
                    "agreement": agreement(run["seed"] % 10, qk),
                    "accuracy_chosen": 0.5 + 0.1 * qk,
                    "accuracy_natural": 0.8,
                }
                own |= {"dtap_first_head": run["end"][split]["dtap_all"]} if recipe.ac_probability else {}
                for head in run["end"][split]["heads"]:
                    head |= {"ac": 50.0, "acmc": 40.0}
                run["end"][split] |= own
                run["best"][split] = run["end"][split]
            run["end"]["train"]["accuracy_chosen"] = 0.9
    return more | {
        "data": {"train": 6, "validation": 3, "test": 3, "sha256": SHA, "vocabulary": 9, "cut": CUT, "empty": EMPTY},
        "notes": ["made posts"],
        "thresholds": np.linspace(0, 1, 21).tolist(),
        "shares": [0.01, 0.05, 0.1, 0.2, 0.5],
        "tokens_per_second": 1e5,
        "runs": runs,
    }


def made(protocol):
    """Records as the command would have them."""
    places = command.places(Path(), protocol)
    found = [made_record(protocol.recipe, arm) for arm in protocol.arms]
    return [
        {"arm": dict(place.arm), "wall_seconds": 1.0, **record, **place.shared}
        for place, record in zip(places, found, strict=True)
    ]


def trainer(calls):
    """A module in the place of the trainer; `calls` hears of every group and of every reading of the posts."""
    module: Any = types.ModuleType("experiments.text.train")

    def train_group(task, recipe, arms, data, store, request, update):
        calls.append([arm.name for arm in arms])
        update(1.0, "made")
        return {arm.name: made_record(recipe, arm) for arm in arms}

    def load(recipe, folder, *, limit=None):
        calls.append("load")
        splits = {name: types.SimpleNamespace(cut=CUT[name], empty=EMPTY[name]) for name in CUT}
        return types.SimpleNamespace(notes=(), sha256=SHA, limit=limit, folder=folder, **splits)

    module.train_group, module.load = train_group, load
    return module


def load_by(patch, load, module=table1, name="HATEXPLAIN"):
    """Have an experiment read its data by `load`."""
    patch.setattr(module, name, replace(getattr(module, name), load=load))


def instead(patch, calls):
    """A made trainer for the command on HateXplain, which draws no figures."""
    made = trainer(calls)
    patch.setattr(command, "train_group", made.train_group)
    load_by(patch, made.load)
    patch.setattr(table1, "draw_text", lambda groups, effects, folder: [])
    return made
