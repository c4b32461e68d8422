"""What can be done to a circuit besides choosing its rate: schedules, decay, clipping, normalization, momentum, imbalance.

Gradient descent with an intervention on circuit c is, of every matrix W of the circuit,

    d W/dt = -rho(t) eta_c / (1 - momentum) (N(dL/dW) + decay W)        decay added to the gradient, multiplied by the rate
    d W/dt = -rho(t) eta_c / (1 - momentum) N(dL/dW) - decay W          decoupled decay

with N the identity or what bounds the gradient of the whole circuit, before decay is added, as trainers do it.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float64

from qkdyn.errors import STRONGEST, WEAKEST, InputError, check_positive, reject
from qkdyn.parameterization import Parameterization

Gradient = Literal["plain", "clipped", "normalized", "sign"]
# At or below this norm a normalized gradient fades to zero: a zero gradient stays zero, and rounding is not blown up.
FLOOR = 1e-8


def check_strength(name: str, value: Any, *, zero: bool = True) -> float:
    """Return a strength: a concrete number from 1e-75 to 1e75, and 0 with `zero`."""
    return check_positive(name, value, zero=zero, least=WEAKEST, most=STRONGEST)


@dataclass(frozen=True)
class Schedule:
    """A rate's multiplier rho(t): `start` until `begin`, from there linearly to `end` within `length`, then `end`.

    Attributes:
        start: multiplier at first, >= 0; 0 holds the circuit still.
        end: multiplier at last, >= 0.
        begin: time at which it starts to change, in the units of t.
        length: time that the change takes; 0 is a jump.

    Raises:
        InputError: a value is negative or not finite, or the multiplier is zero throughout.
    """

    start: float = 1.0
    end: float = 1.0
    begin: float = 0.0
    length: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start", "end", "begin", "length"):
            object.__setattr__(self, name, check_strength(f"schedule {name}", getattr(self, name)))
        if self.start == self.end == 0:
            reject("schedule start and end", (0.0, 0.0), "not both 0", "a circuit that never learns is no intervention")

    @classmethod
    def delayed(cls, until: float) -> "Schedule":
        """No learning before the time `until`, the whole rate from then on."""
        return cls(0.0, 1.0, until, 0.0)

    @classmethod
    def ramp(cls, start: float, end: float, length: float) -> "Schedule":
        """From `start` to `end` within the first `length` of time: up or down."""
        return cls(start, end, 0.0, length)


@dataclass(frozen=True)
class OnCircuit:
    """What is done to one circuit; the defaults do nothing.

    Attributes:
        schedule: multiplier of the circuit's rate in time.
        decay: weight decay lambda of each of its matrices, >= 0.
        decoupled: decay that the rate does not multiply (lambda in units of 1/t), instead of the one added to the gradient.
        gradient: "plain"; "clipped" to Frobenius norm `threshold`, all matrices of the circuit together; "normalized" to norm
            1; "sign", 1 for every entry: what Adam does where its averages follow a gradient that keeps its signs.
        threshold: of "clipped", the largest norm. Of "normalized" and "sign", the size below which N(G) = G/threshold
            instead of G/|G|: continuous, and zero for a zero gradient. None is 1e-8 there; "plain" has none.
        momentum: beta of SGD with momentum in [0, 1), undampened, once its 1/(1-beta) steps are short: a rate 1/(1-beta).
        imbalance: of a factorized circuit, the difference of its factors' squares along each singular direction of the
            ansatz at t = 0, W_O^T W_O - W_V W_V^T or W_K^T W_K - W_Q^T W_Q; its sign does not matter.

    Raises:
        InputError: a strength is out of its range.
    """

    schedule: Schedule = field(default_factory=Schedule)
    decay: float = 0.0
    decoupled: bool = False
    gradient: Gradient = "plain"
    threshold: float | None = None
    momentum: float = 0.0
    imbalance: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            reject("schedule", self.schedule, "a Schedule", "e.g. Schedule.delayed(100.0)")
        if self.gradient not in get_args(Gradient):
            reject("gradient", self.gradient, "one of " + ", ".join(get_args(Gradient)))
        if not isinstance(self.decoupled, bool):
            reject("decoupled", self.decoupled, "True or False")
        object.__setattr__(self, "decay", check_strength("decay", self.decay))
        if self.decoupled and self.decay == 0:
            reject("decoupled", True, "False where decay is 0", "there is no decay to decouple")
        if check_strength("momentum", self.momentum) >= 1:
            reject("momentum", self.momentum, "at least 0 and below 1", "at 1 nothing is ever forgotten")
        size = abs(self.imbalance) if isinstance(self.imbalance, int | float) else self.imbalance
        object.__setattr__(self, "imbalance", check_strength("the size of imbalance", size))
        if self.threshold is not None:
            if self.gradient == "plain":
                reject("threshold", self.threshold, "None for a plain gradient", 'gradient="clipped" uses it')
            object.__setattr__(self, "threshold", check_strength("threshold", self.threshold, zero=False))
        elif self.gradient == "clipped":
            reject("threshold", None, "given for a clipped gradient", "the largest norm that passes")
        elif self.gradient != "plain":
            object.__setattr__(self, "threshold", FLOOR)


@dataclass(frozen=True)
class Intervention:
    """What is done to the query-key and to the output-value circuit; the defaults do nothing."""

    qk: OnCircuit = field(default_factory=OnCircuit)
    ov: OnCircuit = field(default_factory=OnCircuit)

    def __post_init__(self) -> None:
        for circuit in fields(self):
            if not isinstance(getattr(self, circuit.name), OnCircuit):
                reject(circuit.name, getattr(self, circuit.name), "an OnCircuit", "e.g. OnCircuit(decay=1e-3)")

    def check(self, parameterization: Parameterization) -> "Intervention":
        """Return the intervention, or raise InputError where it means nothing in this parameterization."""
        factorized = {"qk": parameterization.factorized_qk, "ov": parameterization.factorized_ov}
        for name, product in factorized.items():
            on = getattr(self, name)
            if on.imbalance and not product:
                do = f"the single matrix of a collapsed circuit has no factors; {parameterization} is collapsed there"
                reject(f"imbalance of the {name} circuit", on.imbalance, "0", do)
            if on.gradient == "sign" and product:
                raise InputError(
                    f"gradient of the {name} circuit must not be 'sign' where it is factorized ({parameterization}): the "
                    "signs of factors' entries depend on the basis between them, which no scalar knows; collapse it"
                )
        return self


class Numbers(NamedTuple):
    """An intervention as numbers, (output-value, query-key): traced, so that one program serves all interventions."""

    schedule: Float64[np.ndarray, "2 4"]
    decay: Float64[np.ndarray, "2"]
    decoupled: Bool[np.ndarray, "2"]
    clipped: Bool[np.ndarray, "2"]
    normalized: Bool[np.ndarray, "2"]
    sign: Bool[np.ndarray, "2"]
    threshold: Float64[np.ndarray, "2"]
    momentum: Float64[np.ndarray, "2"]

    @classmethod
    def of(cls, intervention: Intervention) -> "Numbers":
        """The numbers of an intervention."""
        both = intervention.ov, intervention.qk
        kinds = {kind: np.array([on.gradient == kind for on in both]) for kind in ("clipped", "normalized", "sign")}
        times = [[on.schedule.start, on.schedule.end, on.schedule.begin, on.schedule.length] for on in both]
        return cls(
            schedule=np.array(times),
            decay=np.array([on.decay for on in both]),
            decoupled=np.array([on.decoupled for on in both]),
            threshold=np.array([1.0 if on.threshold is None else on.threshold for on in both]),
            momentum=np.array([on.momentum for on in both]),
            **kinds,
        )

    @property
    def jumps(self) -> Float64[np.ndarray, "4"]:
        """Times at which a velocity has a jump or a kink, increasing."""
        begin, length = self.schedule[:, 2], self.schedule[:, 3]
        return np.sort(np.concatenate([begin, begin + length]))
