"""The arms of Figure 2: which runs there are under each protocol, and where they start."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from qkdyn.circuits import Params, factorize, init_params, scaled_identity, torch_uniform
from qkdyn.errors import check_count, check_positive, reject
from qkdyn.parameterization import Parameterization
from qkdyn.tasks.tokens import VOCABULARY, TokensTask

STARTS = ("identity", "uniform", "common")
SEEDS = (1234, 1235, 1236, 1237, 1238)
# Share of a class's own tokens in the context: the paper names it gamma and gives no number; this is the notebooks' share.
GAMMA = 5.5 / 15.5
LEVELS = (1.0, 0.5, 0.1, 0.01)


@dataclass(frozen=True)
class Arm:
    """Runs of one parameterization that are trained together and leave one record.

    Attributes:
        name: of the record.
        form: parameterization.
        qk: how the query-key matrices start: "identity" (1e-6 times it), "uniform" (PyTorch's default for a linear layer), or
            "common": all four parameterizations start as the same function, uniform products of `scale`, balanced factors.
        ov: likewise for the output-value matrices.
        scale: of a common start.
        multipliers: of eta_OV that give eta_QK at the start.
        ramp: what eta_QK is multiplied by at the last step, growing linearly from 1.
        eta_ov: learning rate of the output-value circuit.
        length: tokens of a sequence.
        gamma: see `TokensTask`.
        epochs: at most so many.
        batches: updates of an epoch.
        stop_loss: see `qkdyn.train.tokens.token_runs`; 0 never stops.
        reset: epochs over which the stop rule sums.
        levels: evaluation losses at which runs are compared.
        seeds: of start and batches.
    """

    name: str
    form: str
    qk: str
    ov: str
    epochs: int
    batches: int
    scale: float = 1.0
    multipliers: tuple[float, ...] = (1.0,)
    ramp: float = 1.0
    eta_ov: float = 0.01
    length: int = 64
    gamma: float | None = None
    stop_loss: float = 0.0
    reset: int = 100
    levels: tuple[float, ...] = ()
    seeds: tuple[int, ...] = SEEDS

    def __post_init__(self) -> None:
        Parameterization.parse(self.form)
        for name in ("epochs", "batches", "reset"):
            check_count(name, getattr(self, name))
        for name in ("scale", "ramp", "eta_ov", *(("stop_loss",) if self.stop_loss else ())):
            check_positive(name, getattr(self, name))
        for circuit in (self.qk, self.ov):
            if circuit not in STARTS:
                reject("start", circuit, "one of " + ", ".join(STARTS))
        if (self.qk == "common") != (self.ov == "common"):
            reject("starts", (self.qk, self.ov), "both common or neither")
        for name in ("seeds", "multipliers"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                reject(name, values, "distinct numbers, at least one")
        for seed in self.seeds:
            check_count("each seed", seed, minimum=0)
        for level in self.levels:
            check_positive("each level", level)

    @property
    def task(self) -> TokensTask:
        """What is learned."""
        return TokensTask(length=self.length, gamma=self.gamma)

    def start(self, seed: int) -> Params:
        """Parameters at step 0 of a run of this seed."""
        key = jax.random.key(seed)
        if self.qk == "common":
            qk, ov = jax.random.split(key)
            draw = torch_uniform()
            flat = {
                "qk": {"W_QK": self.scale * draw(qk, (VOCABULARY, VOCABULARY), jnp.float32)},
                "ov": {"W_OV": self.scale * draw(ov, (VOCABULARY, VOCABULARY), jnp.float32)},
            }
            return factorize(flat, self.form)
        kinds = {"identity": scaled_identity(1e-6), "uniform": torch_uniform()}
        return init_params(key, self.form, d=VOCABULARY, M=VOCABULARY, qk=kinds[self.qk], ov=kinds[self.ov])

    def starts(self) -> Params:
        """Parameters of all runs, multiplier by multiplier, with a leading axis."""
        own = [self.start(seed) for seed in self.seeds]
        return jax.tree.map(lambda *leaves: jnp.tile(jnp.stack(leaves), (len(self.multipliers), 1, 1)), *own)


def as_coded() -> tuple[Arm, ...]:
    """Panels a-h as the published notebooks run them, with five seeds where they have one or three."""
    late: dict[str, Any] = {"epochs": 2000, "batches": 100}
    stop = 0.001
    return (
        Arm("a", "FAFO", "uniform", "identity", 2500, 250, stop_loss=stop),
        Arm("b", "FACO", "identity", "identity", 2500, 250, stop_loss=stop),
        Arm("c", "CAFO", "identity", "identity", 5000, 200, stop_loss=stop),
        Arm("d", "CACO", "uniform", "uniform", 2500, 200, stop_loss=stop),
        Arm("e", "FAFO", "identity", "identity", 1000, 100, multipliers=(20.0,), stop_loss=stop),
        Arm("f", "FAFO", "identity", "identity", ramp=40.0, **late),
        Arm("g", "CACO", "uniform", "uniform", multipliers=(5.0,), length=128, **late),
        Arm("h", "CACO", "uniform", "uniform", ramp=10.0, length=128, **late),
    )


def as_written() -> tuple[Arm, ...]:
    """The same panels by the paper's text: the caption's multipliers, length 64, uniform law, stop at a loss of 0.001.

    What the text leaves open (starts, rate, epochs) is the notebooks'.
    """
    said: dict[str, Any] = {"length": 64, "gamma": GAMMA, "stop_loss": 0.001, "reset": 1}
    late: dict[str, Any] = {"epochs": 2000, "batches": 100}
    return (
        Arm("a", "FAFO", "uniform", "identity", 2500, 250, **said),
        Arm("b", "FACO", "identity", "identity", 2500, 250, **said),
        Arm("c", "CAFO", "identity", "identity", 5000, 200, **said),
        Arm("d", "CACO", "uniform", "uniform", 2500, 200, **said),
        Arm("e", "FAFO", "identity", "identity", 1000, 100, multipliers=(10.0,), **said),
        Arm("f", "FAFO", "identity", "identity", ramp=20.0, **late, **said),
        Arm("g", "CACO", "uniform", "uniform", multipliers=(5.0,), **late, **said),
        Arm("h", "CACO", "uniform", "uniform", ramp=10.0, **late, **said),
    )


def controlled(scales: Sequence[float] = (1.0, 0.01), epochs: int = 1200) -> tuple[Arm, ...]:
    """All four parameterizations from one function at two scales, one length and law, eta_OV = 0.1, r = 0.1, 1, 10, 40.

    Up to 300,000 steps; a run ends when an epoch's mean loss is 0.005. The larger ratios once more at a tenth of both rates,
    so that what the step does can be told from what the ratio does; and the notebook's panel g with its length or its law
    changed to the paper's, one at a time.
    """
    usual = tuple(
        Arm(
            f"{form}-{scale:g}",
            form,
            "common",
            "common",
            epochs,
            250,
            scale=scale,
            multipliers=(0.1, 1.0, 10.0, 40.0),
            eta_ov=0.1,
            stop_loss=0.005,
            reset=1,
            levels=LEVELS,
        )
        for scale in scales
        for form in ("FAFO", "CAFO", "FACO", "CACO")
    )
    slow: dict[str, Any] = {"eta_ov": 0.01, "multipliers": (10.0, 40.0)}
    slower = tuple(replace(arm, name=f"{arm.name}-slow", **slow) for arm in usual if arm.scale == scales[0])
    g = next(arm for arm in as_coded() if arm.name == "g")
    return (*usual, *slower, replace(g, name="g-length", length=64), replace(g, name="g-law", gamma=GAMMA))
