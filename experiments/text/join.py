"""Runs of seeds that were trained apart, in folders of their own, put together: one record for each arm, as trained at once.

A seed's numbers are taken as they are. What a record has beside its runs must be equal in all folders, but for the time that
they took; whatever is wrong is said before anything is written.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.records import Record, RecordPlace, warn_of_replaced
from experiments.text.arms import Protocol
from experiments.text.recipe import check_seeds
from qkdyn.errors import ConflictError, InputError, OutputError
from qkdyn.files import refusals
from qkdyn.train.store import differences

Part = tuple[Path, Record]
"""A record and its file."""

# Of how a part was trained: not compared, but told of each in the joined record.
TOLD = ("wall_seconds", "tokens_per_second", "source", "joined")
# What differs because the seeds do.
OF_SEEDS = ("recipe", "digest", "runs")
DO = "leave its folder out of --join, or train its runs again"


def refuse_beside(options: Any) -> None:
    """Raise InputError where an option beside --join would be passed over, or the folder of the results is one of its own."""
    default = type(options)()
    for name in ("tune", "data", "checkpoint_seconds"):
        if getattr(options, name) != getattr(default, name):
            said = "--" + name.replace("_", "-")
            raise InputError(f"--join puts finished runs together and takes no {said}; leave out one of the two")
    for folder in options.join:
        # A link to the records is the folder too.
        own, theirs = ([os.path.realpath(path) for path in (x, x / "arms")] for x in (options.folder, folder))
        if own[0] == theirs[0] or own[1] == theirs[1]:
            raise InputError(f"--join {folder}: the results go to this very folder; take another --out")


def gathered(
    options: Any, protocol: Protocol, names: Sequence[str], places: Callable[[Path, Protocol], list[RecordPlace]]
) -> dict[str, list[Part]]:
    """What is to be put together of each arm that all folders have, in the order of the folders.

    An arm that only some of them have is named in a line on stderr.

    Args:
        options: with the folders, and the arms if some are named.
        protocol: with all seeds that are asked for.
        names: of the arms.
        places: (folder, protocol) -> where the records of all arms are.

    Raises:
        InputError: the seeds of the folders are not those asked for, each once. OutputError: a folder has none of these arms,
            they have none in common or not all that are named, or a record cannot be read. ConflictError: records are of
            other settings or data.
    """
    own = [(folder, [place for place in places(folder, protocol) if place.name in names]) for folder in options.join]
    seeds = [(folder, _seeds(folder, known)) for folder, known in own]
    _refuse_seeds([(folder, seed) for folder, each in seeds for seed in each], protocol.recipe.seeds)
    found: dict[str, dict[Path, Part]] = {name: {} for name in names}
    for folder, each in seeds:
        theirs = replace(protocol, recipe=replace(protocol.recipe, seeds=each))
        known = [replace(place, do=DO) for place in places(folder, theirs) if place.name in names]
        for place in known:
            record = place.read()
            if record is not None:
                found[place.name][folder] = (place.path, record)
        warn_of_replaced(known)
    parts = {}
    for name, there in found.items():
        lacking = [folder for folder in options.join if folder not in there]
        if not lacking:
            parts[name] = list(there.values())
        elif options.arms:
            raise OutputError(f"--join {lacking[0]}: it has no finished arm {name}, which --arms names")
        elif there:
            print(f"note: arm {name} is not joined: {lacking[0]} has not finished it", file=sys.stderr)
    if not parts:
        raise OutputError("--join: no arm is finished in all of " + ", ".join(map(str, options.join)))
    _refuse_differences(list(parts.values()))
    return parts


def _seeds(folder: Path, own: Sequence[RecordPlace]) -> tuple[int, ...]:
    """The seeds of a folder by its first record; those of the others must be the same, which is seen when they are read."""
    with refusals(folder):
        is_folder = folder.is_dir()
    if not is_folder:
        raise OutputError(f"--join {folder}: there is no such folder")
    there = [replace(place, do=DO) for place in own if place.path.exists()]
    if not there:
        asked = ", ".join(place.name for place in own)
        raise OutputError(f"--join {folder}: it has no finished arm of those that are put together ({asked})")
    with there[0].damages():
        seeds = tuple(json.loads(there[0].path.read_text())["recipe"]["seeds"])
        check_seeds(seeds)
    return seeds


def _refuse_seeds(found: Sequence[tuple[Path, int]], asked: Sequence[int]) -> None:
    """Raise InputError unless the folders have the seeds that are asked for, each once."""
    said, home = " ".join(map(str, asked)), {}
    for folder, seed in found:
        if seed not in asked:
            raise InputError(f"--join {folder}: its seed {seed} is none of those asked for ({said}); see --seeds")
        if seed in home:
            raise InputError(f"--join: {home[seed]} and {folder} both have seed {seed}; leave out one of the two")
        home[seed] = folder
    missing = [str(seed) for seed in asked if seed not in home]
    if missing:
        raise InputError(f"--join: no folder has seed {' '.join(missing)} of those asked for ({said}); see --seeds")


def _refuse_differences(arms: Sequence[Sequence[Part]]) -> None:
    """Raise ConflictError where parts of an arm differ beside their runs, or arms in their data; it names the first."""
    pairs = [(parts[0], other, _compared) for parts in arms for other in parts[1:]]
    pairs += [(arms[0][0], parts[0], lambda record: {"data": {"sha256": record["data"]["sha256"]}}) for parts in arms]
    for (path, record), (file, other), compared in pairs:
        lines = differences(compared(other), compared(record))
        if lines:
            raise ConflictError(f"{file} cannot be joined with {path} ({lines[0][:500]}; there is the former)")


def _compared(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in (*TOLD, *OF_SEEDS)}


def joined(parts: Sequence[Part], seeds: Sequence[int]) -> Record:
    """What a trainer would have returned of all seeds, in their order, and of each part when and where it was trained.

    Tokens per second are those of a group of runs on one machine: the parts have theirs, the whole has none.
    """
    records = [record for _, record in parts]
    runs = {run["seed"]: run for record in records for run in record["runs"]}
    told = [
        {"seeds": record["recipe"]["seeds"], **{name: record[name] for name in TOLD if name in record}}
        for record in records
    ]
    own = {"tokens_per_second": None, "runs": [runs[seed] for seed in seeds], "joined": told}
    return _compared(records[0]) | own


def write(own: Sequence[RecordPlace], parts: Mapping[str, Sequence[Part]], seeds: Sequence[int]) -> None:
    """Write the joined records of these places; one that is there already is taken up, which a line on stderr says."""
    for place in own:
        if place.read() is not None:
            print(f"note: {place.path} is there and stays as it is; --fresh joins it anew", file=sys.stderr)
        else:
            seconds = sum(record["wall_seconds"] for _, record in parts[place.name])
            place.write(joined(parts[place.name], seeds), seconds)
