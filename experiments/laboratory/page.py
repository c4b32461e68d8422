"""The laboratory's page: every statement with its number and verdict, in Markdown, and a short table for the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.laboratory.check import Check

PICTURES = {
    "theorem 1": (
        "convergence.png",
        "What falls like the step (drift of the conserved quantities, distance of descent from the flows) and like N^-1/2.",
    ),
    "instabilities": (
        "instabilities.png",
        "How far a disturbance has grown at a matched loss, by the theory; above the lines rounding has reached the circuits.",
    ),
    "scalars": ("start_scale.png", "Attention at loss 0.1 against the scale at which factorized circuits start."),
    "lemma 3": ("bounds.png", "Both circuits (black) between Lemma 3's bounds (grey) and the sharp bounds (coloured)."),
    "random start": (
        "random_start.png",
        "Attention at matched loss in training from random starts (dots: seeds), and what the scalars predict (lines).",
    ),
}


def page(checks: Sequence[Check], pictures: Sequence[str], how: str) -> str:
    """The page as Markdown.

    Args:
        checks: all of them, in the order of the parts.
        pictures: names of the figures that were drawn.
        how: how the numbers were made, a sentence.
    """
    parts = list(dict.fromkeys(check.part for check in checks))
    unexpected = [check for check in checks if check.holds != check.expected]
    lines = ["# The paper's mathematics on numbers", "", how, ""]
    lines += [f"{len(checks)} checks; {sum(check.holds for check in checks)} statements hold, "]
    lines[-1] += f"{sum(not check.holds for check in checks)} do not, {len(unexpected)} of all against expectation."
    lines += [
        "A statement holds where its residual is at most the limit. Residuals are relative unless said otherwise."
    ]
    for part in parts:
        lines += ["", f"## {part[0].upper()}{part[1:]}", "", "| statement | setting | residual | limit | verdict |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_row(check) for check in checks if check.part == part]
        name, caption = PICTURES.get(part, ("", ""))
        if name in pictures:
            lines += ["", f"![{caption}]({name})", "", caption]
    return "\n".join(lines) + "\n"


def _row(check: Check) -> str:
    statement = f"{check.statement} ({check.note})" if check.note else check.statement
    cells = (statement, check.setting, f"{check.value:.2g}", f"{check.limit:g}", check.verdict)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def show(checks: Sequence[Check], seconds: Mapping[str, float]) -> None:
    """Print a line for each part, and every check that is not as expected."""
    import sys

    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 130)
    out = Table(title="The paper's mathematics on numbers")
    for name in ("part", "statements", "hold", "do not, as known", "against expectation", "seconds"):
        out.add_column(name, justify="left" if name == "part" else "right")
    for part, count in Counter(check.part for check in checks).items():
        own = [check for check in checks if check.part == part]
        surprises = sum(check.holds != check.expected for check in own)
        known = sum(not check.holds and not check.expected for check in own)
        took = f"{seconds[part]:.0f}" if part in seconds else ""
        out.add_row(part, str(count), str(sum(check.holds for check in own)), str(known), str(surprises), took)
    console.print(out)
    for check in checks:
        if check.holds != check.expected:
            text = f"{check.part}: {check.statement} [{check.setting}]: {check.value:.3g}, limit {check.limit:g}"
            console.print(f"{text}: {check.verdict}", highlight=False, markup=False)
