"""An arm: one intervention at one strength in one setting, and the families that arms are of.

A setting is a module with

    SETTING: str                                the name that its arms begin with
    def arms(quick: bool) -> tuple[Arm, ...]    or of a subclass of Arm with the setting's own recipe
    def groups(arms) -> list[list[Arm]]         those that are trained together, in order
    def ready(data: Path | None) -> None        raises where there is nothing to train on
    def train(arms, work: Work) -> dict[str, Record]      of one group, {arm's name: record}

and the record of an arm is

    {"runs": [{"seed": 1234, "status": "stopped" | "budget" | "diverged", "diverged_at": None | update,
               "end": {"step", "loss", "attention", "accuracy", ...},
               "matched": [{"level", "step", "attention", "accuracy", ...}]}],
     "predicted": [{"level", "step", "attention", "r_eq", ...}]}

`matched` has one line for each level of the loss that the run reached, interpolated in ln(loss); `attention` is the setting's
measure of it, larger where it is sharper; `accuracy` is left out where it says nothing. `predicted` is the theory's, empty
where there is none. Numbers that are no number are None. To this `experiments.records` adds "arm", "digest" and "source".
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qkdyn.errors import as_tuple, check_count, check_positive, reject
from qkdyn.interventions import Intervention, OnCircuit, Schedule
from qkdyn.parameterization import Parameterization
from qkdyn.progress import Update
from qkdyn.train.interrupt import Request
from qkdyn.train.intervening import Optimizer, check_optimizer
from qkdyn.train.store import Store

SEEDS = (1234, 1235, 1236, 1237, 1238)
# The plain arm that the others are compared with, seed by seed.
BASELINE = "plain"
CIRCUITS = ("qk", "ov")
# What a file may be named.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Seeds are 32-bit integers in training.
LAST_SEED = 2**31 - 1
# What the lines of `runs` say; `predicted` has any number of lines.
LINES = ("seed", "status", "diverged_at", "end", "matched")


@dataclass(frozen=True)
class Work:
    """What a setting is given to train with.

    Attributes:
        store: keeps checkpoints.
        request: noted signals.
        update: hears the share done and a status line.
        data: folder of data files; None for the usual places.
    """

    store: Store | None = None
    request: Request | None = None
    update: Update = lambda share, status: None
    data: Path | None = None


@dataclass(frozen=True)
class Arm:
    """Runs of one intervention at one strength, that differ in their seed and leave one record.

    Attributes:
        name: of the record, setting first.
        setting: whose arm it is.
        form: parameterization.
        family: of interventions, as the table groups them; "ratio" is the learning-rate ratio alone.
        label: what is done, as the table prints it.
        r: eta_qk / eta_ov.
        eta_ov: OV learning rate.
        on: what is done to each circuit; its times count updates.
        optimizer: "sgd", "adam" or "adamw".
        gain: what the gradients of (OV, QK) are multiplied by.
        start: what the products W_OV, W_QK of the setting's start are multiplied by, (OV, QK).
        apart: what W_O and W_K are multiplied by, and W_V and W_Q divided by, (OV, QK): imbalance of factors.
        levels: losses at which it is read, decreasing.
        max_steps: a run ends after so many updates.
        seeds: of the runs.
    """

    name: str
    setting: str
    form: str
    family: str
    label: str
    r: float
    eta_ov: float
    levels: tuple[float, ...]
    max_steps: int
    on: Intervention = field(default_factory=Intervention)
    optimizer: Optimizer = "sgd"
    gain: tuple[float, float] = (1.0, 1.0)
    start: tuple[float, float] = (1.0, 1.0)
    apart: tuple[float, float] = (1.0, 1.0)
    seeds: tuple[int, ...] = SEEDS

    def __post_init__(self) -> None:
        form = Parameterization.parse(self.form)
        for name in ("name", "setting", "family", "label"):
            if not isinstance(value := getattr(self, name), str) or not value:
                reject(name, value, "a text that is not empty")
        if not NAME.fullmatch(self.name):
            reject("name", self.name, "letters, digits and . _ + -, a letter or digit first", "it names a file")
        for name in ("r", "eta_ov"):
            check_positive(name, getattr(self, name))
        for name in ("gain", "start", "apart"):
            if len(values := as_tuple(name, getattr(self, name))) != len(CIRCUITS):
                reject(name, values, "two numbers, of (OV, QK)")
            for value in values:
                check_positive(f"each of {name}", value)
        check_count("max_steps", self.max_steps)
        self._check_on(form)
        for seed in as_tuple("seeds", self.seeds):
            if check_count("each of seeds", seed, minimum=0) > LAST_SEED:
                reject("each of seeds", seed, f"at most {LAST_SEED}, a 32-bit integer")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            reject("seeds", self.seeds, "distinct numbers, at least one")
        for level in as_tuple("levels", self.levels):
            check_positive("each of levels", level)
        if not self.levels or list(self.levels) != sorted(set(self.levels), reverse=True):
            reject("levels", self.levels, "decreasing losses, at least one")

    def _check_on(self, form: Parameterization) -> None:
        """What is done must mean something in this form and under this optimizer."""
        if not isinstance(self.on, Intervention):
            reject("on", self.on, "an Intervention", "e.g. Intervention(qk=OnCircuit(decay=1e-3))")
        check_optimizer(self.on, self.optimizer)
        for name in CIRCUITS:
            if value := getattr(self.on, name).imbalance:
                do = "training does not look at it; `apart` brings factors out of balance"
                reject(f"imbalance of the {name} circuit", value, "0 in `on`", do)
        self.on.check(form)
        for circuit, factorized, apart in zip(
            ("ov", "qk"), (form.factorized_ov, form.factorized_qk), self.apart, strict=True
        ):
            if apart != 1.0 and not factorized:
                do = f"the single matrix of a collapsed circuit has no factors; {form} is collapsed there"
                reject(f"apart of the {circuit} circuit", apart, "1", do)


def check_group(arms: Sequence[Arm]) -> Arm:
    """The first of arms that train together, by one plan; InputError where another has another plan."""
    first = arms[0]
    for arm in arms:
        for name in ("form", "optimizer", "levels", "max_steps"):
            if (value := getattr(arm, name)) != (own := getattr(first, name)):
                reject(f"{name} of {arm.name}", value, f"{own}, that of {first.name}", "train it in another group")
    return first


@dataclass(frozen=True)
class Strengths:
    """How strong a setting's arms are, family by family; what is empty is left out. Times count updates.

    Attributes:
        ratios: r.
        fast: the ratio that schedules, optimizers and gains have at their most.
        ramps: lengths of ramps between 1 and `fast`.
        delays: updates for which one circuit is held still, the other learning, at ratio `fast`.
        decay_qk, decay_ov: lambda that joins the gradient.
        apart_qk, apart_ov: decoupled lambda.
        start_qk, start_ov: factors of the start's products.
        factors_qk, factors_ov: imbalance, of factorized circuits.
        clip_qk, clip_ov: thresholds.
        normalized: (what, eta_ov, r), what being "qk", "ov" or "both"; r names the arm, once for each of these.
        momentum: beta, of both circuits and of one.
        adam: (eta_ov, r) under Adam; at the first of these rates, which labels do not name, also with the QK gradient times
            `fast` instead.
    """

    ratios: tuple[float, ...] = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)
    fast: float = 10.0
    ramps: tuple[float, ...] = ()
    delays: tuple[float, ...] = ()
    decay_qk: tuple[float, ...] = ()
    decay_ov: tuple[float, ...] = ()
    apart_qk: tuple[float, ...] = ()
    apart_ov: tuple[float, ...] = ()
    start_qk: tuple[float, ...] = ()
    start_ov: tuple[float, ...] = ()
    factors_qk: tuple[float, ...] = ()
    factors_ov: tuple[float, ...] = ()
    clip_qk: tuple[float, ...] = ()
    clip_ov: tuple[float, ...] = ()
    normalized: tuple[tuple[str, float, float], ...] = ()
    momentum: tuple[float, ...] = ()
    adam: tuple[tuple[float, float], ...] = ()


Make = Callable[..., Arm]
Case = dict[str, Any]


def both(**on: Any) -> Intervention:
    """The same done to both circuits."""
    return Intervention(OnCircuit(**on), OnCircuit(**on))


def one(circuit: str, **on: Any) -> Intervention:
    """Something done to one circuit."""
    return Intervention(**{circuit: OnCircuit(**on)})


def cases(given: Strengths, eta_ov: float, form: Parameterization) -> list[Case]:
    """What the arms of a setting differ in: fields of `Arm`, and "short", the end of the name."""
    plain = {"r": 1.0, "eta_ov": eta_ov}
    found: list[Case] = [
        {"short": BASELINE if r == 1 else f"ratio-{r:g}", "family": "ratio", "label": f"r = {r:g}", **plain, "r": r}
        for r in given.ratios
    ]
    found += [plain | case for case in _schedules(given)]
    for circuit in CIRCUITS:
        found += [plain | case for case in _on_one(given, circuit)]
        found += [plain | case for case in _starts(given, circuit, form)]
    found += [plain | case for case in _normalized(given)]
    found += [plain | case for case in _optimizers(given, eta_ov)]
    return found


def _schedules(given: Strengths) -> list[Case]:
    """Ramps of QK between 1 and the fast ratio, and circuits held still at the fast ratio."""
    fast, found = given.fast, []
    for length in given.ramps:
        for way, ends in (("up", (1.0, fast)), ("down", (fast, 1.0))):
            label = f"r {ends[0]:g} to {ends[1]:g} in {length:g} steps"
            on = one("qk", schedule=Schedule.ramp(*ends, length))
            found.append({"short": f"ramp-{way}-{length:g}", "family": f"ramp {way}", "label": label, "on": on})
    for until in given.delays:
        for circuit in CIRCUITS:
            label = f"r = {fast:g}, {circuit.upper()} waits {until:g} steps"
            on = one(circuit, schedule=Schedule.delayed(until))
            case = {"short": f"delay-{circuit}-{until:g}", "family": f"delayed {circuit.upper()}", "label": label}
            found.append({**case, "r": fast, "on": on})
    return found


def _on_one(given: Strengths, circuit: str) -> list[Case]:
    """Decay and clipping of one circuit."""
    found, big = [], circuit.upper()
    for kind, decoupled in (("decay", False), ("apart", True)):
        for strength in getattr(given, f"{kind}_{circuit}"):
            how = ", decoupled" if decoupled else ""
            case = {"family": f"weight decay of {big}", "label": f"lambda = {strength:g}{how}"}
            on = one(circuit, decay=strength, decoupled=decoupled)
            found.append({"short": f"{kind}-{circuit}-{strength:g}", **case, "on": on})
    for threshold in getattr(given, f"clip_{circuit}"):
        case = {"family": f"clipping of {big}", "label": f"norm at most {threshold:g}"}
        on = one(circuit, gradient="clipped", threshold=threshold)
        found.append({"short": f"clip-{circuit}-{threshold:g}", **case, "on": on})
    return found


def _starts(given: Strengths, circuit: str, form: Parameterization) -> list[Case]:
    """Scale of one circuit's start, and imbalance of its factors where it has some."""
    place, big, found = ("ov", "qk").index(circuit), circuit.upper(), []

    def pair(value: float) -> tuple[float, float]:
        return (value, 1.0) if place == 0 else (1.0, value)

    for scale in getattr(given, f"start_{circuit}"):
        case = {"family": f"start of {big}", "label": f"times {scale:g}"}
        found.append({"short": f"start-{circuit}-{scale:g}", **case, "start": pair(scale)})
    if form.factorized_qk if circuit == "qk" else form.factorized_ov:
        for scale in getattr(given, f"factors_{circuit}"):
            case = {"family": f"imbalance of {big}", "label": f"one factor times {scale:g}, the other over it"}
            found.append({"short": f"factors-{circuit}-{scale:g}", **case, "apart": pair(scale)})
    return found


def _normalized(given: Strengths) -> list[Case]:
    found = []
    for which, eta_ov, r in given.normalized:
        on = both(gradient="normalized") if which == "both" else one(which, gradient="normalized")
        name = "both" if which == "both" else which.upper()
        case = {"family": f"normalization of {name}", "label": f"rates {r * eta_ov:.3g} and {eta_ov:.3g}"}
        found.append({"short": f"normalized-{which}-{r:g}", **case, "r": r, "eta_ov": eta_ov, "on": on})
    return found


def _optimizers(given: Strengths, eta_ov: float) -> list[Case]:
    """Momentum, Adam, and gains: a gain of the gradient is a rate under SGD, and nothing under Adam."""
    fast, found = given.fast, []
    gain = (1.0, fast)
    for beta in given.momentum:
        # The rate is lower by 1 - beta: as fast in time.
        slow = {"family": "momentum", "eta_ov": (1 - beta) * eta_ov}
        for which in ("both", *CIRCUITS):
            label = f"beta = {beta:g} of {which if which == 'both' else which.upper()}"
            on = both(momentum=beta) if which == "both" else one(which, momentum=beta)
            found.append({"short": f"momentum-{which}-{beta:g}", "label": label, **slow, "on": on})
    times = f"QK gradient times {fast:g}"
    found.append({"short": "gain-sgd", "family": "gradient of QK rescaled", "label": f"SGD, {times}", "gain": gain})
    for rate, r in given.adam:
        adam = {"family": "Adam", "optimizer": "adam", "eta_ov": rate}
        first = rate == given.adam[0][0]
        case = {"short": f"adam-{r:g}" + f"-at-{rate:g}" * (not first), "label": f"Adam, r = {r:g}"}
        found.append({**case, "label": case["label"] + f", rate {rate:g}" * (not first), **adam, "r": r})
    if given.adam:
        adam = {"family": "Adam", "optimizer": "adam", "eta_ov": given.adam[0][0]}
        found.append({"short": "gain-adam", "label": f"Adam, {times}", "gain": gain, **adam})
    return found
