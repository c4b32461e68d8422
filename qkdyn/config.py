"""Configurations: frozen dataclasses, the digest that names a run, and the command line of an experiment."""

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from qkdyn.errors import QkdynError, reject

FORMAT_VERSION = 1
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
        options: a frozen dataclass of what is not science (folder, devices); has the fields `protocol` and `quick`.
        argv: arguments without the program's name; None means those of this process.
        prog: the command, as the help shows it.
        description: one sentence for the help.

    Raises:
        InputError: unknown protocol. SystemExit: as usual for a command line (0 for help, 2 for a wrong value).
    """
    import tyro

    arguments = list(sys.argv[1:] if argv is None else argv)
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--protocol", default=next(iter(protocols)))
    early.add_argument("--quick", action="store_true")
    known, _ = early.parse_known_args(arguments)
    config = choose(protocols, "quick" if known.quick else known.protocol)

    fields = [("config", type(config), config), ("options", type(options), options)]
    command = dataclasses.make_dataclass("Command", fields, frozen=True)
    parsed = tyro.cli(command, args=arguments, prog=prog, description=description, config=(tyro.conf.OmitArgPrefixes,))
    return parsed.config, parsed.options


def main_guard(main: Callable[[], int | None]) -> int:
    """Run a command; an error of ours becomes one line on standard error and exit status 2."""
    try:
        return main() or 0
    except QkdynError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
