"""Configurations: frozen dataclasses, the digest that names a run, and the command line of an experiment."""

import argparse
import dataclasses
import hashlib
import itertools
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from qkdyn.errors import InputError, Interrupted, OutputWarning, PeerError, QkdynError, reject

FORMAT_VERSION = 1
# Exit statuses, as in sysexits.h: "temporary failure, try again", and the next one.
INTERRUPTED, PEER_GONE = 75, 76
# What only says how the work is cut up: no result depends on it, so the digest leaves it out.
EXECUTION = frozenset({"chunk"})

Config = TypeVar("Config")
Options = TypeVar("Options")


def as_dict(config: Any) -> dict[str, Any]:
    """A frozen config as nested plain values, tuples as lists."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def digest(config: Any) -> str:
    """SHA-256 (hex) of the scientific fields and the format version; the order of fields does not matter."""
    content = {"format": FORMAT_VERSION, "config": _scientific(as_dict(config))}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _scientific(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _scientific(item) for key, item in value.items() if key not in EXECUTION}
    return value


def choose(protocols: Mapping[str, Config], name: str) -> Config:
    """The protocol of that name.

    Raises:
        InputError: unknown; the message lists the known ones.
    """
    if name not in protocols:
        reject("protocol", name, "one of " + ", ".join(protocols))
    return protocols[name]


def parse(
    protocols: Mapping[str, Config], options: Options, argv: Sequence[str] | None, *, prog: str, description: str
) -> tuple[Config, Options]:
    """Parse an experiment's command line: `--protocol` picks a config, every other option overrides one field.

    Args:
        protocols: frozen configs by name; the first is the default.
        options: a frozen dataclass of what is not science (folder, devices); has the field `protocol`, and `quick` where
            there is a quick one.
        argv: arguments without the program's name; None means those of this process.
        prog: the command, as the help shows it.
        description: one sentence for the help.

    Raises:
        InputError: unknown protocol, or an option of `options` that takes several values and is given none. SystemExit: as
            usual for a command line (0 for help, 2 for a wrong value).
    """
    import tyro

    arguments = list(sys.argv[1:] if argv is None else argv)
    asked = [word for word in arguments if word not in ("-h", "--help")]
    named = _protocol(protocols, asked)
    quick = "--quick" in arguments and hasattr(options, "quick")
    if quick and named not in (None, "quick"):
        reject("--protocol", named, "left out, or quick, beside --quick")
    name = "quick" if quick else next(iter(protocols)) if named is None else named
    config = choose(protocols, name)
    if asked == arguments:
        _refuse_empty(options, arguments)
    flags = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    fields = [("config", type(config), config), ("options", type(options), options)]
    command = dataclasses.make_dataclass("Command", fields, frozen=True)
    parsed = tyro.cli(command, args=arguments, prog=prog, description=description, config=flags)
    if getattr(parsed.options, "draw_only", False) and parsed.config != config:
        changed = ", ".join(_changed(as_dict(config), as_dict(parsed.config)))
        raise InputError(f"--draw-only draws what is recorded and takes no {changed}; leave that out, or --draw-only")
    return parsed.config, parsed.options


def _protocol(protocols: Mapping[str, Any], arguments: Sequence[str]) -> str | None:
    """The protocol that is named; it has to be known before its fields can be defaults."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--protocol")
    try:
        return early.parse_known_args(arguments)[0].protocol
    except argparse.ArgumentError:
        raise InputError(f"--protocol must be followed by one of {', '.join(protocols)}, or be left out") from None


def _refuse_empty(options: Any, arguments: Sequence[str]) -> None:
    """InputError for an option of several values that names none: it would be taken for one that was left out, for all."""
    several = {field.name for field in dataclasses.fields(options) if isinstance(getattr(options, field.name), tuple)}
    for word, after in itertools.pairwise([*arguments, "--"]):
        if word.startswith("--") and word[2:].replace("-", "_") in several and after.startswith("--"):
            raise InputError(f"{word} must be followed by at least one value, got none; name one, or leave {word} out")


def refuse_undrawn(options: Any, names: Sequence[str]) -> None:
    """InputError where one of these fields is not its default beside --draw-only, which would pass over it."""
    if not options.draw_only:
        return
    for field in dataclasses.fields(options):
        made = field.default_factory
        default = field.default if made is dataclasses.MISSING else made()
        value = getattr(options, field.name)
        if field.name in names and value != default:
            nested = dataclasses.is_dataclass(value)
            said = (
                ", ".join(_changed(as_dict(default), as_dict(value))) if nested else "--" + field.name.replace("_", "-")
            )
            said = said.replace("--", "--no-", 1) if default is True else said
            raise InputError(f"--draw-only draws what is recorded and takes no {said}; leave out one of the two")


def _changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of the fields that differ, as options."""
    names = []
    for name, value in after.items():
        if isinstance(value, dict):
            names += _changed(before[name], value)
        elif value != before[name]:
            names.append("--" + name.replace("_", "-"))
    return names


def main_guard(main: Callable[[], int | None]) -> int:
    """Run a command so that what ends it is one line on standard error and an exit status of its own.

    Statuses: 2 wrong input, or files that cannot be written; 75 asked to end during a training that keeps checkpoints, and
    the line says what is saved; 76 another process of a distributed run is gone; 130 and 143 ended by SIGINT or SIGTERM at
    any other time: at once, with files whole or not there. Warnings of ours are lines too.
    """
    warnings.showwarning = _one_line
    try:
        with _ended_by_signals():
            return main() or 0
    except Interrupted as stop:
        print(f"\ninterrupted by {stop}", file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt as stop:
        number = signal.Signals[str(stop) or "SIGINT"]
        print(f"\nended by {number.name}: what was written before is whole", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        # At once: libraries would wait at the exit for threads and other processes.
        os._exit(128 + number)
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        # JAX would wait at the exit for those that are gone.
        os._exit(PEER_GONE)
    except QkdynError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGINT raise KeyboardInterrupt with the signal's name, in a main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    """Print a warning: ours as one line, others as Python does."""
    if issubclass(category, OutputWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), file=file or sys.stderr, end="")
