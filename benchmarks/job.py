"""The job that is measured: the reference sweep of experiments/sweep.py, or a part of it."""

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.sweep import Config
from qkdyn.circuits import Params, on_ansatz
from qkdyn.train.engine import Job
from qkdyn.train.probe import AnsatzProbe
from qkdyn.train.state import SMALLEST_LOSS, Run

# The largest states and the smallest.
FORMS = ("FAFO", "CACO")
SWEEP = ("-m", "experiments.sweep", "--no-draw")


def start_of(form: str) -> Params:
    """Parameters at step 0 of one parameterization."""
    config = Config()
    mu_ov, mu_qk = config.initial(form)
    return on_ansatz(config.task.directions(), form, mu_ov=mu_ov, mu_qk=mu_qk)


def job_of(*, exact: bool = True, **plan: Any) -> Job:
    """The reference job, with fields of its plan replaced."""
    config = Config()
    return Job(config.task, AnsatzProbe(config.task), replace(config.plan, **plan), exact=exact)


def endless_job(*, exact: bool = True, block: int | None = None) -> Job:
    """The reference job with a stop loss that no run reaches while it is measured."""
    block = Config().plan.block if block is None else block
    return job_of(exact=exact, stop_loss=SMALLEST_LOSS, block=block)


def runs_of(form: str, count: int) -> Run:
    """`count` different runs: the ratios of the reference grid in turn, both designs, and seeds; 50 are that grid."""
    config = Config()
    index = np.arange(count)
    ratios = np.asarray(config.grid.r, np.float32)
    return Run(
        r=np.roll(ratios, -(ratios.size // 2))[index % ratios.size],
        seed=(index // (2 * ratios.size)).astype(np.int32),
        sampled=index // ratios.size % 2 == 1,
        eta_ov=np.full(count, config.rate(form), np.float32),
    )
