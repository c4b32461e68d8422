"""What the examples share and what is not their point: options, the text, the table and the figure. NumPy and Matplotlib."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

Run = Mapping[str, Any]  # each of MEASURES, and "step" and "loss", at every record
MEASURES = {"entropy": "entropy (nats)", "effective_tokens": "tokens attended to", "top_1_mass": "share of the first"}
COLOURS = ("#0072b2", "#d55e00", "#009e73")
EVERY = 10  # updates from one record to the next


class Text(NamedTuple):
    """The text as numbers; of (LENGTH + 1) characters the first LENGTH are read and the last LENGTH are to be predicted."""

    characters: str
    batches: np.ndarray  # (steps, batch, LENGTH + 1)
    held_out: np.ndarray  # (windows, LENGTH + 1), of the end of the text, which batches do not see


def options(doc: str | None, *, steps: int, **switches: str) -> dict[str, Any]:
    """The options of a command line, --steps, --out and switches with their help, as arguments for main."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=steps, help=f"updates of each run, in {EVERY}s (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the figure (default: this one)")
    for name, told in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=told)
    given = vars(parser.parse_args())
    if given["steps"] < EVERY or given["steps"] % EVERY:
        parser.error(f"--steps must be a multiple of {EVERY}, got {given['steps']}")
    return given


def read_text(steps: int, batch: int, length: int, seed: int = 0) -> Text:
    """The lighthouse's story, in batches at random places and in windows of its last tenth."""
    story = Path(__file__).with_name("lighthouse.txt").read_text()
    characters = "".join(sorted(set(story)))
    numbers = np.array([characters.index(character) for character in story], np.int32)
    windows = np.lib.stride_tricks.sliding_window_view(numbers, length + 1)
    end = len(numbers) * 9 // 10
    places = np.random.default_rng(seed).integers(end - length, size=(steps, batch))
    return Text(characters, windows[places], windows[end :: length // 2])


def progress(r: float, step: int, loss: Any) -> None:
    """Say now and then how far a run is."""
    if step % (10 * EVERY) == 0:
        print(f"r = {r:g}, step {step}: loss {float(loss):.3f}", flush=True)


def run_of(dataset: Any) -> Run:
    """One run from a dataset of `qkdyn.observe`: the loss, and the mean over layers and heads of every measure."""
    means = {name: dataset[name].mean(("layer", "head")).values for name in MEASURES}
    return {"step": dataset.step.values, "loss": dataset.loss.values, **means}


def at_loss(run: Run, loss: float) -> dict[str, float]:
    """The step and the measures where a run first comes down to `loss`, interpolated between two records."""
    losses = np.asarray(run["loss"])
    i = int(np.argmax(losses <= loss))
    if losses[i] > loss:
        raise ValueError(f"loss {loss:g} is never reached; the lowest is {losses.min():g}")
    share = (losses[i - 1] - loss) / (losses[i - 1] - losses[i]) if i else 1.0
    return {name: float((1 - share) * run[name][i - 1] + share * run[name][i]) for name in ("step", *MEASURES)}


def report(runs: Mapping[float, Run], name: str, out: str | Path) -> dict[float, dict[str, float]]:
    """Compare the runs, by ratio, at the lowest loss that all of them reach: print, draw, return what is printed."""
    loss = max(float(np.min(run["loss"])) for run in runs.values())
    table = {r: at_loss(run, loss) for r, run in runs.items()}
    heads = ("at step", *MEASURES.values())
    print(f"\nattention at loss {loss:.3f} on text held out" + "".join(f"{head:>20}" for head in heads))
    for r, row in table.items():
        print(f"{f'r = {r:g}':<39}{row['step']:>20.0f}" + "".join(f"{row[name]:>20.3f}" for name in MEASURES))
    path = Path(out) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(runs, loss, path)
    print(f"figure: {path}")
    return table


def draw(runs: Mapping[float, Run], loss: float, path: Path) -> None:
    """Loss against steps, and entropy against loss, which is where runs can be compared."""
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    learning, sharpness = figure.subplots(1, 2)
    for (r, run), colour in zip(runs.items(), COLOURS, strict=False):
        learning.plot(run["step"], run["loss"], color=colour, linewidth=2.5, label=f"r = {r:g}")
        sharpness.plot(run["loss"], run["entropy"], color=colour, linewidth=2.5, label=f"r = {r:g}")
    learning.set(xlabel="step", ylabel="loss on held-out text (nats a character)")
    sharpness.axvline(loss, color="#999999", linewidth=1, zorder=0)
    sharpness.invert_xaxis()
    sharpness.set(xlabel="loss (training goes to the right)", ylabel="entropy of attention (nats)")
    for axes in (learning, sharpness):
        axes.spines[["top", "right"]].set_visible(False)
    learning.legend(frameon=False)
    figure.suptitle("Query-key circuit r times as fast: attention at equal loss", fontsize=14)
    figure.savefig(path)
