"""The job that is measured: the reference sweep of experiments/sweep.py, or a part of it."""

from dataclasses import replace

import numpy as np

from experiments.sweep import Config
from qkdyn.circuits import Params, on_ansatz
from qkdyn.train.engine import Job
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import SMALLEST_LOSS, Run

# The largest states and the smallest.
FORMS = ("FAFO", "CACO")
SWEEP = ("-m", "experiments.sweep", "--no-draw")


def start_of(form: str, config: Config | None = None) -> Params:
    """Parameters at step 0 of one parameterization."""
    config = config or Config()
    mu_ov, mu_qk = config.initial(form)
    return on_ansatz(config.task.directions(), form, mu_ov=mu_ov, mu_qk=mu_qk)


def job_of(config: Config | None = None, *, exact: bool = True, **plan: int | float) -> Job:
    """The job of `config`, with fields of its plan replaced."""
    config = config or Config()
    return Job(config.task, AnsatzProbe(config.task), replace(config.plan, **plan), exact=exact)  # pyright: ignore[reportArgumentType]


def endless_job(*, exact: bool = True, block: int | None = None) -> Job:
    """The reference job with a stop loss that no run reaches while it is measured."""
    block = Config().plan.block if block is None else block
    return job_of(exact=exact, stop_loss=SMALLEST_LOSS, block=block)


def runs_of(form: str, count: int, config: Config | None = None) -> Run:
    """`count` different runs: the ratios of the grid in turn, the designs in turn, and seeds."""
    config = config or Config()
    index = np.arange(count)
    ratios = np.asarray(config.grid.r, np.float32)
    return Run(
        r=np.roll(ratios, -(ratios.size // 2))[index % ratios.size],
        seed=(index // (2 * ratios.size)).astype(np.int32),
        sampled=index // ratios.size % 2 == 1,
        eta_ov=np.full(count, config.rate(form), np.float32),
    )
