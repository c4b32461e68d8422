"""The `qkdyn` command: small questions to the theory, answered at once (numpy and scipy alone), runs compared, data found."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from qkdyn import __version__
from qkdyn.errors import QkdynError
from qkdyn.parameterization import Parameterization
from qkdyn.theory import Setting, at_attention, at_loss, at_time, lemma3_bounds, ratio_for
from qkdyn.theory.setting import check_array, check_factor

START_HELP = "(mu_ov, mu_qk) at t = 0; default 0.1 for a factorized circuit and 0 for a collapsed one"
# Lemma 3 is an equality in the limit t -> 0, where rounding would decide.
ROUNDING = 1e-12
# Squares of the earliest times fall below float64's full precision.
NOTHING = 1e-300

BEYOND = "\n\nt = inf: t or eta_ov t is beyond 1e308, the end of float64; a loss below 1e-308 reads 0."


class _Parser(argparse.ArgumentParser):
    """argparse whose complaints are one line, the same for every command."""

    def error(self, message: str) -> NoReturn:
        raise QkdynError(message)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Right-aligned columns, except for the first."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    lines = (
        "  ".join(cell.rjust(width) if index else cell.ljust(width) for index, (cell, width) in enumerate(zipped))
        for zipped in (list(zip(line, widths, strict=True)) for line in (header, *rows))
    )
    return "\n".join(line.rstrip() for line in lines)


def _numbers(*values: Any) -> list[str]:
    return [f"{float(value):.7g}" for value in values]


def _setting(options: argparse.Namespace) -> Setting:
    return Setting(options.m, options.n, options.b, options.M)


def _start(which: Parameterization, given: list[float] | None, every: bool) -> tuple[float, float]:
    """The start of one row: `given` as it is; under "all" it stands for the factorized circuits alone."""
    if given is not None and not every:
        return given[0], given[1]
    mu_ov, mu_qk = given if given is not None else (0.1, 0.1)
    return (mu_ov if which.factorized_ov else 0.0, mu_qk if which.factorized_qk else 0.0)


def predict(options: argparse.Namespace) -> str:
    """Two of ratio, loss and attention give the third: a table with a row per parameterization and pair of values."""
    names = ("ratio", "loss", "attention")
    given = [name for name in names if getattr(options, name) is not None]
    if len(given) != 2:
        shown = " and ".join(f"--{name}" for name in given) if given else "none"
        raise QkdynError(
            f"give exactly two of --ratio, --loss and --attention, got {shown if len(given) < 3 else 'all'}"
        )
    every = options.parameterization.lower() == "all"
    chosen = list(Parameterization) if every else [Parameterization.parse(options.parameterization)]
    setting, rows, starts, beyond = _setting(options), [], [], False
    for name in given:
        (check_factor if name == "ratio" else check_array)(f"--{name}", getattr(options, name), positive=True)
    first, second = np.meshgrid(getattr(options, given[0]), getattr(options, given[1]), indexing="ij")
    pair = dict(zip(given, (first.ravel(), second.ravel()), strict=True))
    for which in chosen:
        start = _start(which, options.initial, every)
        starts.append(f"{which} ({start[0]:g}, {start[1]:g})")
        fixed = {"parameterization": which, "initial": start}
        try:
            if "ratio" not in pair:
                ratio = ratio_for(setting, pair["attention"], pair["loss"], **fixed)
            else:
                ratio = pair["ratio"]
            if "loss" in pair:
                state = at_loss(setting, ratio, pair["loss"], eta_ov=options.eta_ov, **fixed)
            else:
                state = at_attention(setting, ratio, pair["attention"], eta_ov=options.eta_ov, **fixed)
        except QkdynError as error:
            raise type(error)(f"{which}: {error}") from None
        loss = pair.get("loss", setting.loss(state.alpha * state.mu_ov))
        columns = (ratio, loss, state.alpha, state.mu_ov, state.mu_qk, state.t)
        beyond |= bool(np.isinf(state.t).any())
        rows += [[which, *_numbers(*values)] for values in zip(*columns, strict=True)]
    caption = f"{_caption(options)}; start (mu_ov, mu_qk): {', '.join(starts)}"
    table = _table(["circuits", "ratio", "loss", "attention", "mu_ov", "mu_qk", "t"], rows)
    return f"{caption}\n{table}{BEYOND if beyond else ''}"


def _caption(options: argparse.Namespace) -> str:
    sizes = " ".join(f"{name}={getattr(options, name)}" for name in ("m", "n", "b", "M"))
    return f"{sizes}, eta_ov={options.eta_ov:g}"


def bounds(options: argparse.Namespace) -> str:
    """Lemma 3 against the exact solution: a table with two rows, mu_ov and mu_qk, per ratio and time."""
    setting = _setting(options)
    check_factor("--ratio", options.ratio)
    limits = lemma3_bounds(setting, options.ratio, options.t, eta_ov=options.eta_ov, delta=options.delta)
    state = at_time(setting, np.array(options.ratio)[:, None], options.t, eta_ov=options.eta_ov)
    rows = []
    for index in np.ndindex(state.t.shape):
        shared = _numbers(options.ratio[index[0]], state.t[index], state.alpha[index])
        for name in ("mu_ov", "mu_qk"):
            value = float(getattr(state, name)[index])
            low, high = (float(getattr(limits, f"{name}_{side}")[index]) for side in ("lower", "upper"))
            shares = _numbers(low / value, high / value) if value > 0 else ["-", "-"]
            holds = low * (1 - ROUNDING) <= value + NOTHING and value <= high * (1 + ROUNDING) + NOTHING
            rows.append([*shared, name, *_numbers(low, value, high), *shares, "yes" if holds else "NO"])
    delta = "1 - attention" if options.delta is None else f"{options.delta:g}"
    header = ["ratio", "t", "attention", "", "lower", "value", "upper", "lower/value", "upper/value", "holds"]
    return f"{_caption(options)}; CACO from zero, delta = {delta}\n{_table(header, rows)}"


def compare(options: argparse.Namespace) -> str:
    """Two run directories side by side."""
    from qkdyn.results import compare_runs

    return compare_runs(options.a, options.b)


def data(options: argparse.Namespace) -> str:
    """What the experiments on text need and what of it was found; or the download of one data set."""
    if options.action is None:
        from qkdyn.text.listing import list_sources

        return list_sources(options.data)
    from qkdyn.text.fetch import fetch

    return fetch(options.name, options.data, say=lambda line: print(line, file=sys.stderr, flush=True))


def _parser() -> _Parser:
    parser = _Parser(prog="qkdyn", description="Attention under unequal learning rates of the QK and OV circuits.")
    parser.add_argument("--version", action="version", version=f"qkdyn {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    # The sizes of the paper's Fig. 4.
    setting = _Parser(add_help=False)
    for name, default, meaning in (
        ("m", 5, "class tokens in a context"),
        ("n", 50, "background tokens in a context"),
        ("b", 50, "tokens that a class owns"),
        ("M", 5, "classes"),
    ):
        setting.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default {default})")
    setting.add_argument("--eta-ov", type=float, default=1.0, help="OV learning rate: the unit of time (default 1)")

    ask = commands.add_parser("predict", parents=[setting], help="ratio, loss, attention: two of them give the third")
    ask.add_argument("--ratio", type=float, nargs="+", metavar="R", help="eta_qk / eta_ov")
    ask.add_argument("--loss", type=float, nargs="+", metavar="LOSS", help="stop loss in nats")
    ask.add_argument("--attention", type=float, nargs="+", metavar="ALPHA", help="attention on the class tokens")
    ask.add_argument("--parameterization", default="CACO", help="FAFO, CAFO, FACO, CACO or all (default CACO)")
    ask.add_argument("--initial", type=float, nargs=2, metavar=("MU_OV", "MU_QK"), help=START_HELP)
    ask.set_defaults(run=predict)

    check = commands.add_parser("bounds", parents=[setting], help="Lemma 3's bounds against the exact solution")
    check.add_argument("--ratio", type=float, nargs="+", required=True, metavar="R", help="eta_qk / eta_ov")
    check.add_argument("--t", type=float, nargs="+", required=True, metavar="T", help="increasing times")
    check.add_argument("--delta", type=float, help="distance of attention from 1 in (28) (default: the exact one)")
    check.set_defaults(run=bounds)

    runs = commands.add_parser("compare", help="compare two run directories")
    runs.add_argument("a", metavar="A", help="a run directory")
    runs.add_argument("b", metavar="B", help="another")
    runs.set_defaults(run=compare)

    found = commands.add_parser("data", help="list the data of the experiments on text, or download them")
    found.set_defaults(run=data, action=None)
    folder = {"type": Path, "metavar": "FOLDER", "help": "folder of the data (default $QKDYN_DATA, or else ./data)"}
    found.add_argument("--data", **folder)
    actions = found.add_subparsers(dest="action", metavar="[fetch NAME]")
    get = actions.add_parser("fetch", help="download one data set or vocabulary into FOLDER/NAME")
    get.add_argument("name", metavar="NAME", help="a name of the list")
    # Given before or after: an option of both, of which the inner default must not hide what the outer one was given.
    get.add_argument("--data", default=argparse.SUPPRESS, **folder)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status: 0, 2 for a question that has no answer, 130 when interrupted."""
    try:
        options = _parser().parse_args(arguments)
        print(options.run(options), flush=True)
    except BrokenPipeError:
        # As in `qkdyn data | head`: whoever read has enough, and nothing may be left to flush at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except QkdynError as error:
        # Libraries below may explain themselves on several lines.
        print(f"qkdyn: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
