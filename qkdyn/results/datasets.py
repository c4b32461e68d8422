"""Datasets as NetCDF files: the same dataset gives the same bytes, and a damaged file is refused."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from qkdyn.errors import InputError, OutputError
from qkdyn.results.files import write_bytes

if TYPE_CHECKING:
    import xarray

QUANTITIES = ("alpha", "mu_ov", "mu_qk", "t")
GRID = ("design", "parameterization", "r")


def save_dataset(ds: "xarray.Dataset", path: str | Path) -> Path:
    """Write `ds` as compressed, checksummed NetCDF-4: whole or not at all, the same bytes for the same dataset.

    Numbers keep their type and NaN stays NaN (no fill value is added). The file carries no date.

    Args:
        ds: any dataset whose attributes are strings, numbers or 1-D arrays.
        path: the file; its folder must exist.

    Returns:
        `path`.

    Raises:
        OutputError: the file cannot be written (see `write_atomic`).
    """
    # Deflate brings a checksum with every block, even where it cannot compress: damage is found when reading.
    packed = {"_FillValue": None, "zlib": True, "complevel": 4, "shuffle": True}
    encoding = {name: packed for name, variable in ds.variables.items() if variable.dtype.kind in "fiub"}
    # In memory first: HDF5 meets a full disk with errors of many kinds, and may crash when it closes the file.
    return write_bytes(path, ds.drop_encoding().to_netcdf(engine="h5netcdf", encoding=encoding))


def load_dataset(path: str | Path) -> "xarray.Dataset":
    """Read all of the NetCDF file `path` into memory and close it; checksums are verified on the way.

    Args:
        path: the file, or a run folder that holds it as `data.nc`.

    Raises:
        OutputError: the file is missing, truncated, damaged or not NetCDF-4; the message says what to do.
    """
    import xarray

    path = Path(path)
    if path.is_dir():
        path = path / "data.nc"
    if not path.is_file():
        raise OutputError(
            f"cannot read {path}: there is no such file; run the experiment that writes it, or name another"
        )
    try:
        # Nothing is decoded as dates: "units" here are units of the paper, and "days" may be among them.
        return xarray.load_dataset(
            path, engine="h5netcdf", decode_times=False, decode_timedelta=False, mask_and_scale=False
        )
    # HDF5 reports a damaged file with errors of many kinds: OSError, RuntimeError, KeyError, ValueError, UnicodeError.
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise OutputError(
            f"cannot read {path}: it is damaged, cut short or not NetCDF-4 ({what}); run the experiment again"
        ) from error


def check_sweep(ds: "xarray.Dataset", variables: Iterable[str] = ()) -> None:
    """Raise InputError unless `ds` has the axes of a sweep, at least one run, and `variables`.

    Raises:
        InputError: names what is missing, and says which command writes such a dataset.
    """
    do = "give the data.nc of a sweep"
    missing = [name for name in (*GRID, "seed") if name not in ds.dims or name not in ds.coords]
    missing += [name for name in variables if name not in ds]
    if missing:
        raise InputError(f"the dataset lacks {', '.join(missing)}; {do}")
    empty = [name for name in (*GRID, "seed") if ds.sizes[name] == 0]
    if empty:
        raise InputError(f"the dataset holds no run: {', '.join(empty)} is empty; {do}")
