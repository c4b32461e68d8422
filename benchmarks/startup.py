"""What comes before the first step: start of a process, compilation, and what the compilation cache saves of it."""

import functools
import itertools
from pathlib import Path

import jax

from benchmarks.job import FORMS, SWEEP, endless_job, runs_of, start_of
from benchmarks.measure import Bench, Row, interleaved, rows, run_process, seconds_of
from qkdyn.train.engine import advance_runs, start_runs

PART = "startup"
PROCESSES = {
    "python": ("-c", "pass"),
    "import jax": ("-c", "import jax"),
    # What the first checkpoint of a process pays once.
    "import orbax": ("-c", "from orbax.checkpoint import v1"),
    "qkdyn predict": ("-m", "qkdyn.cli", "predict", "--ratio", "1", "10", "--loss", "0.1"),
    "sweep --help": ("-m", "experiments.sweep", "--help"),
}


def startup(bench: Bench) -> list[Row]:
    """Start-up of commands against Python's own; first chunk against later ones; the quick sweep with and without cache."""
    return [*_commands(bench), *_compilation(bench), *_cache(bench)]


def _commands(bench: Bench) -> list[Row]:
    def timed(arguments: tuple[str, ...]) -> float:
        return run_process(arguments, bench.cache).seconds

    actions = {name: functools.partial(timed, arguments) for name, arguments in PROCESSES.items()}
    return rows(PART, interleaved(actions, 1 if bench.quick else 3, bench.phase(0.0, 0.2)), "s", "python")


def _compilation(bench: Bench) -> list[Row]:
    """The first chunk of one run in a process without any cache, beside the same chunk with its program at hand."""
    found: list[Row] = []
    forms = FORMS[1:] if bench.quick else FORMS
    for place, form in enumerate(forms):
        job, runs = endless_job(), runs_of(form, 1)
        states = start_runs(start_of(form), runs, job)

        def chunk(states=states, runs=runs, job=job) -> None:
            list(itertools.islice(advance_runs(states, runs, job), 1))

        def cold(chunk=chunk) -> float:
            jax.clear_caches()
            return seconds_of(chunk)

        # Whoever was measured before, the program is there for the second chunk.
        def warm(chunk=chunk) -> float:
            chunk()
            return seconds_of(chunk)

        names = f"{form}: a chunk of one run", f"{form}: the first, compiled for it"
        update = bench.phase(0.2 + 0.2 * place / len(forms), 0.2 + 0.2 * (place + 1) / len(forms))
        taken = interleaved({names[0]: warm, names[1]: cold}, 1 if bench.quick else 3, update)
        found += rows(PART, taken, "s", names[0])
    return found


def _cache(bench: Bench) -> list[Row]:
    """The quick sweep as a whole process, with an empty compilation cache and with a filled one."""
    fresh = (bench.scratch / str(number) for number in itertools.count())
    small = ("--parameterizations", "CACO", "--r", "10", "--seeds", "0") if bench.quick else ()

    def sweep(cache: Path) -> float:
        arguments = (*SWEEP, "--quick", *small, "--out", str(next(fresh)))
        return run_process(arguments, cache).seconds

    filled = bench.scratch / "filled"
    sweep(filled)
    actions = {
        "quick sweep, empty cache": lambda: sweep(next(fresh)),
        "quick sweep, filled cache": lambda: sweep(filled),
    }
    taken = interleaved(actions, 1 if bench.quick else 3, bench.phase(0.5, 1.0))
    return rows(PART, taken, "s", "quick sweep, empty cache")
