"""States of many runs and their records: saved where that is due, or when a signal asks for it, and taken up again."""

from typing import Any, TypeVar

import jax
import numpy as np

from qkdyn.train.checkpoint import check_structure, flat
from qkdyn.train.interrupt import Request
from qkdyn.train.store import Store, interruption

States = TypeVar("States")


def keep(
    states: Any, records: dict[str, np.ndarray], key: str, store: Store | None, request: Request | None = None
) -> None:
    """Save states and records under `key` where that is due, or asked for by a signal.

    Raises:
        Interrupted: a signal was noted; all is saved if there is a store.
    """
    asked = request.name if request else None
    if store and (asked or store.due()):
        store.save(flat({"state": states, "records": records}), {"key": key})
    if asked:
        raise interruption(asked, store)


def restore(arrays: dict[str, np.ndarray], like: States) -> tuple[States, dict[str, np.ndarray]]:
    """States and records from what `keep` saved; raises CheckpointError unless the states are as those of `like`."""
    wanted = flat({"state": like})
    check_structure({n: a for n, a in arrays.items() if n.startswith("state/")}, wanted, "the checkpoint")
    prefix = "records/"
    records = {n.removeprefix(prefix): np.array(a) for n, a in arrays.items() if n.startswith(prefix)}
    return jax.tree.unflatten(jax.tree.structure(like), [np.array(arrays[name]) for name in wanted]), records
