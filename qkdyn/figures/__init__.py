"""Figures of a sweep over learning-rate ratios, drawn from its dataset alone."""

from pathlib import Path
from typing import TYPE_CHECKING

from qkdyn.figures import canvas
from qkdyn.figures.headline import draw_headline
from qkdyn.figures.matched import draw_matched
from qkdyn.figures.step_size import draw_step_size as _step_size
from qkdyn.figures.trajectories import draw_trajectories
from qkdyn.results.datasets import check_sweep

if TYPE_CHECKING:
    import pandas
    import xarray

__all__ = ["draw_headline", "draw_matched", "draw_step_size", "draw_sweep", "draw_trajectories"]


def draw_sweep(ds: "xarray.Dataset", folder: str | Path) -> list[Path]:
    """Draw a sweep: `trajectories_<design>.png` for each design, `matched.png` and `headline.png` in `folder`.

    The pictures depend on `ds` alone: the same dataset gives the same bytes.

    Args:
        ds: a sweep, with the theory beside it where it is known.
        folder: an existing folder (see `qkdyn.results.prepare_folder`).

    Returns:
        The files, in the order named above.

    Raises:
        InputError: `ds` is not a sweep or holds no run; nothing was drawn.
        OutputError: a file cannot be written.
    """
    check_sweep(ds)
    figures = {f"trajectories_{design}.png": draw_trajectories(ds, str(design)) for design in ds["design"].to_numpy()}
    figures |= {"matched.png": draw_matched(ds), "headline.png": draw_headline(ds)}
    return [canvas.save(figure, Path(folder) / name) for name, figure in figures.items()]


def draw_step_size(frame: "pandas.DataFrame", path: str | Path) -> Path:
    """Draw the distance from the theory against the learning rate to the file `path`; see `figures.step_size`.

    Raises:
        InputError: `frame` is not what that experiment writes; nothing was drawn.
        OutputError: the file cannot be written.
    """
    return canvas.save(_step_size(frame), path)
