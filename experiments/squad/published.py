"""What was published of SQuAD: every number of the paper's tables and of the saved notebooks, to be printed beside ours.

F1 and exact match are shares here, AC and ACMC percent. The notebooks print five runs, in the order of their seeds. Their
models are those of the epoch of best F1 on the first 300 dev questions, their probabilities those of the answer without its
space: read here from "best", and from "acmc_unspaced" and "dtap_unspaced".
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from experiments.text.printed import Printed
from experiments.text.readings import Record, curve, values
from qkdyn.figures.text_records import as_numbers, measured
from qkdyn.metrics.intervals import confidence_interval

TABLE, NOTEBOOK, SECOND = "Table 1, Table 4", "notebook", "notebook of the heat maps"
# The printed arms, as ours are called in the two published protocols.
OURS = {"baseline": ("same", "slow"), "faster": ("fast", "slow-qk20")}
UNMET = "no printed runs have this mean"


def printed() -> tuple[Printed, ...]:
    """All that was printed."""
    return (*_tables(), *_runs(), *_heat_maps())


def compared_frame(arms: Sequence[Record]) -> pd.DataFrame:
    """One row for each printed number: theirs and ours with 95% intervals, and whether these overlap (None: ours has none).

    Args:
        arms: records with a run for each seed, as `experiments.squad.readings.by_arm` joins them.
    """
    known = {record["arm"]["name"]: record for record in arms}
    rows = []
    for line in printed():
        names = [name for name in OURS[line.arm] if name in known]
        if not names:
            continue
        mean, low, high = line.interval
        ours, ours_low, ours_high = (float(part) for part in confidence_interval(_ours(known[names[0]], line)))
        row = {"source": line.source, "arm": line.arm, "our_arm": names[0], "split": line.split}
        row |= {"quantity": line.quantity, "reading": line.reading}
        row |= {"printed": mean, "printed_low": low, "printed_high": high}
        row |= {"ours": ours, "ours_low": ours_low, "ours_high": ours_high, "difference": ours - mean}
        overlap = bool(max(low, ours_low) <= min(high, ours_high)) if np.isfinite(ours_low) else None
        rows.append(row | {"intervals_overlap": overlap, "summed": line.summed, "note": line.note})
    return pd.DataFrame(rows)


def _ours(record: Record, line: Printed) -> np.ndarray:
    """The same quantity of our runs."""
    if line.quantity == "training_loss":
        return curve(record, "", "training_loss")[:, -1]
    if line.quantity.startswith("dtap_unspaced."):
        row, column = map(int, line.quantity.split(".")[1:])
        known = [measured(run, line.reading, line.split) for run in record["runs"]]
        return as_numbers([m["dtap_unspaced"][row][column] if m else None for m in known])
    if line.quantity == "best_epoch":
        return as_numbers([(measured(run, "best", "dev") and run["best"]["epoch"]) or None for run in record["runs"]])
    return values(record, line.reading, line.split, line.quantity)


def _tables() -> tuple[Printed, ...]:
    """The paper's Table 1, with the intervals of Table 4."""
    columns = (
        ("train", "f1_first", 1e-4, UNMET),
        ("dev", "f1_first", 1e-4, UNMET),
        ("dev", "ac", 0.01, ""),
        ("dev", "acmc_unspaced", 0.01, ""),
        ("dev", "mass", 0.01, ""),
        ("dev", "sufficiency", 0.01, ""),
        ("dev", "comprehensiveness", 0.01, ""),
    )
    numbers = {
        "baseline": (
            (0.7030, 0.5611, 12.65, 12.60, 0.06, 0.69, 0.38),
            (0.0071, 0.0063, 2.34, 2.41, 0.003, 0.012, 0.03),
        ),
        "faster": ((0.7081, 0.5686, 42.95, 41.48, 0.10, 0.59, 0.53), (0.0061, 0.0040, 7.29, 6.68, 0.01, 0.07, 0.03)),
    }
    return tuple(
        Printed(TABLE, arm, split, name, (mean,), half, unit, "best", note)
        for arm, (means, halves) in numbers.items()
        for (split, name, unit, note), mean, half in zip(columns, means, halves, strict=True)
    )


def _runs() -> tuple[Printed, ...]:
    """The notebooks' lists of five runs."""
    few, end = "of the 300 dev questions by which epochs are chosen", "end"
    some, many = "of 200 training questions", "of 40,000, some not trained on"
    lines = (
        ("baseline", "selection", "f1_first", "best", (0.569, 0.576, 0.597, 0.598, 0.592), few),
        ("faster", "selection", "f1_first", "best", (0.600, 0.594, 0.605, 0.579, 0.611), few),
        ("baseline", "dev", "best_epoch", "best", (65, 52, 36, 57, 65), "of 70 epochs"),
        ("faster", "dev", "best_epoch", "best", (95, 97, 89, 96, 96), "of 100 epochs"),
        ("baseline", "selection", "f1_first", end, (0.545, 0.568, 0.592, 0.579, 0.591), few),
        ("faster", "selection", "f1_first", end, (0.553, 0.561, 0.590, 0.552, 0.594), few),
        ("baseline", "selection", "em_first", end, (0.340, 0.347, 0.390, 0.357, 0.360), few),
        ("faster", "selection", "em_first", end, (0.340, 0.367, 0.370, 0.337, 0.373), few),
        ("baseline", "train", "f1_first", end, (0.948, 0.936, 0.956, 0.945, 0.942), some),
        ("faster", "train", "f1_first", end, (0.738, 0.771, 0.779, 0.759, 0.756), some),
        ("baseline", "train", "training_loss", end, (1.88,), "smoothed, with dropout"),
        ("faster", "train", "training_loss", end, (2.38,), "smoothed, with dropout"),
        ("baseline", "train", "f1_first", "best", (0.8296, 0.8035, 0.7370, 0.8185, 0.8426), many),
        ("faster", "train", "f1_first", "best", (0.7206, 0.7247, 0.7314, 0.7189, 0.7333), many),
        ("baseline", "dev", "f1_first", "best", (0.5681, 0.5702, 0.5533, 0.5712, 0.5922), "of 5,000"),
        ("faster", "dev", "f1_first", "best", (0.5761, 0.5878, 0.6025, 0.5653, 0.6014), "of 5,000"),
        ("baseline", "dev", "em_first", "best", (0.3682, 0.3690, 0.3524, 0.3670, 0.3914), "of 5,000"),
        ("faster", "dev", "em_first", "best", (0.3712, 0.3774, 0.4022, 0.3666, 0.3922), "of 5,000"),
        ("baseline", "dev", "mass", "best", (0.0537, 0.0587, 0.0547, 0.0515, 0.0597), ""),
        ("faster", "dev", "mass", "best", (0.1003, 0.0975, 0.0988, 0.0842, 0.1038), ""),
        ("baseline", "dev", "mass_layers", "best", (0.1153, 0.1204, 0.1132, 0.1158, 0.1253), ""),
        ("faster", "dev", "mass_layers", "best", (0.1947, 0.1994, 0.2009, 0.1802, 0.1960), ""),
        ("baseline", "dev", "comprehensiveness", "best", (0.3781, 0.3795, 0.3454, 0.3621, 0.4141), ""),
        ("faster", "dev", "comprehensiveness", "best", (0.5466, 0.5390, 0.5294, 0.4878, 0.5571), ""),
        ("baseline", "dev", "sufficiency", "best", (0.6975, 0.6889, 0.6762, 0.7036, 0.6957), ""),
        ("faster", "dev", "sufficiency", "best", (0.6075, 0.5488, 0.5591, 0.6867, 0.5965), "printed as .59 in Table 1"),
        ("baseline", "dev", "ac", "best", (11.72, 14.43, 12.05, 10.30, 14.73), ""),
        ("faster", "dev", "ac", "best", (45.56, 43.51, 45.11, 32.80, 47.78), ""),
        ("baseline", "dev", "acmc_unspaced", "best", (11.69, 14.39, 11.99, 10.22, 14.71), ""),
        ("faster", "dev", "acmc_unspaced", "best", (44.01, 42.15, 43.31, 32.14, 45.77), ""),
    )
    units = {"best_epoch": 1.0, "training_loss": 0.01, "ac": 0.01, "acmc_unspaced": 0.01}
    found = []
    for arm, split, name, reading, own, note in lines:
        unit = units.get(name, 1e-3 if note in (few, some) else 1e-4)
        half = 0.0 if len(own) == 1 else float("nan")
        found.append(Printed(NOTEBOOK, arm, split, name, tuple(map(float, own)), half, unit, reading, note))
    again = (
        ("baseline", "dev", (0.5703, 0.5712, 0.5514, 0.570, 0.5929)),
        ("faster", "dev", (0.5815, 0.59, 0.61, 0.569, 0.602)),
    )
    found += [Printed(SECOND, arm, split, "f1_first", own, reading="best") for arm, split, own in again]
    on_train = {
        "mass": (0.1017, 0.0982, 0.0997, 0.0846, 0.1046),
        "comprehensiveness": (0.5624, 0.5539, 0.5409, 0.5021, 0.5697),
        "sufficiency": (0.6289, 0.5638, 0.5747, 0.7150, 0.6105),
    }
    return (*found, *(Printed(SECOND, "faster", "train", name, own, reading="best") for name, own in on_train.items()))


# Rows: probability above .5, from .1, from .05, below; columns: attention below .05, from .05, from .1, above .5.
_CELLS = {
    "baseline": (
        ((12.20, 19.33, 10.48, 0), (20.45, 10.70, 1.21, 0), (0.46, 0.24, 0, 0), (23.60, 1.32, 0.03, 0)),
        ((9.60, 18.98, 12.43, 0), (18.03, 13.24, 1.96, 0), (0.56, 0.24, 0.02, 0), (23.23, 1.70, 0.02, 0)),
        ((10.24, 18.99, 10.49, 0), (20.28, 12.31, 1.50, 0), (0.62, 0.19, 0.03, 0), (23.79, 1.52, 0.03, 0)),
        ((12.57, 20.12, 9.26, 0), (20.77, 10.41, 0.96, 0), (0.47, 0.15, 0, 0), (24.39, 0.81, 0.08, 0)),
        ((9.23, 19.84, 13.01, 0), (16.70, 13.73, 1.70, 0), (0.57, 0.15, 0, 0), (22.55, 2.50, 0.02, 0)),
    ),
    "faster": (
        ((2.11, 6.12, 25.94, 0), (7.71, 13.60, 18.07, 0), (0.57, 0.57, 0.42, 0), (14.84, 8.91, 1.13, 0)),
        ((2.29, 7.29, 25.62, 0), (7.64, 14.00, 16.53, 0), (0.57, 0.76, 0.35, 0), (15.06, 8.86, 1.01, 0)),
        ((2.14, 6.41, 24.60, 0), (6.31, 14.93, 18.71, 0), (0.49, 0.94, 0.57, 0), (13.23, 10.44, 1.23, 0)),
        ((2.56, 11.15, 20.28, 0), (10.17, 17.54, 11.86, 0), (0.64, 0.69, 0.22, 0), (16.92, 7.52, 0.44, 0)),
        ((1.99, 6.12, 27.55, 0), (6.55, 13.04, 18.22, 0), (0.40, 0.78, 0.44, 0), (13.09, 10.26, 1.57, 0)),
    ),
}


def _heat_maps() -> tuple[Printed, ...]:
    """Cells of the heat maps of all dev questions, Figure 5."""
    return tuple(
        Printed(
            SECOND,
            arm,
            "dev",
            f"dtap_unspaced.{3 - i}.{j}",
            tuple(float(run[i][j]) for run in runs),
            unit=0.01,
            reading="best",
        )
        for arm, runs in _CELLS.items()
        for i in range(4)
        for j in range(4)
    )
