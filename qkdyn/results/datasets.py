"""Datasets as NetCDF files: the same dataset gives the same bytes, and a damaged file is refused."""

import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qkdyn.errors import InputError, OutputError
from qkdyn.files import write_bytes
from qkdyn.results.vouch import warn_unless_vouched

if TYPE_CHECKING:
    import xarray

QUANTITIES = ("alpha", "mu_ov", "mu_qk", "t")
GRID = ("design", "parameterization", "r")


def _writable(value: Any) -> bool:
    """Whether NetCDF-4 keeps `value` as an attribute: text, a number, or a 1-D array or list of one of both."""
    if isinstance(value, list | tuple | np.ndarray):
        array = np.asarray(value) if isinstance(value, np.ndarray) or len(set(map(type, value))) == 1 else None
        return array is not None and array.ndim == 1 and array.size > 0 and array.dtype.kind in "fiuU"
    # A truth value is a number to Python but not to NetCDF-4, and an integer may be too large for it.
    return isinstance(value, str) or (isinstance(value, numbers.Real) and np.asarray(value).dtype.kind in "fiu")


def _check_attributes(where: str, attributes: Mapping[Any, Any]) -> None:
    """Raise InputError at the first attribute that NetCDF-4 cannot keep."""
    for name, value in attributes.items():
        if not isinstance(name, str) or not _writable(value):
            raise InputError(
                f"attribute {name!r} of {where} must be text, a number or a 1-D array of them, under a name, got "
                f"{value!r}; turn it into text, e.g. by json.dumps"
            )


def save_dataset(ds: "xarray.Dataset", path: str | Path) -> Path:
    """Write `ds` as compressed, checksummed NetCDF-4: whole or not at all, the same bytes for the same dataset.

    Numbers keep their type and NaN stays NaN (no fill value is added). The file carries no date.

    Args:
        ds: any dataset whose attributes are strings, numbers or 1-D arrays.
        path: the file; its folder must exist.

    Returns:
        `path`.

    Raises:
        InputError: an attribute or a variable is of a kind that NetCDF-4 cannot keep; nothing was written.
        OutputError: the file cannot be written (see `write_atomic`).
    """
    _check_attributes("the dataset", ds.attrs)
    for name, variable in ds.variables.items():
        _check_attributes(str(name), variable.attrs)
        text = variable.dtype.kind == "O" and all(isinstance(value, str) for value in variable.values.flat)
        if not isinstance(name, str) or not (text or variable.dtype.kind in "fiubUS"):
            raise InputError(
                f"variable {name!r} must be an array of numbers, truth values or text, under a name, got "
                f"{variable.dtype}; convert it, or leave it out"
            )
    # Deflate brings a checksum with every block, even where it cannot compress: damage is found when reading.
    packed = {"_FillValue": None, "zlib": True, "complevel": 4, "shuffle": True}
    encoding = {name: packed for name, variable in ds.variables.items() if variable.dtype.kind in "fiub"}
    # In memory first: HDF5 meets a full disk with errors of many kinds, and may crash when it closes the file.
    try:
        data = ds.drop_encoding().to_netcdf(engine="h5netcdf", encoding=encoding)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError, NotImplementedError) as error:
        raise InputError(
            f"the dataset must have names and values that NetCDF-4 keeps; change them ({error})"
        ) from error
    return write_bytes(path, data)


def load_dataset(path: str | Path) -> "xarray.Dataset":
    """Read all of the NetCDF file `path` into memory and close it; checksums are verified on the way.

    An OutputWarning tells if the run.json beside it vouches for another file of this name; for a folder, also if nothing
    vouches for its data.nc, as after a kill while a run was writing.

    Args:
        path: the file, or a run folder that holds it as `data.nc`.

    Raises:
        OutputError: the file is missing, truncated, damaged or not NetCDF-4; the message says what to do.
    """
    import xarray

    path = Path(path)
    whole = path.is_dir()
    if whole:
        path = path / "data.nc"
    if not path.is_file():
        raise OutputError(
            f"cannot read {path}: there is no such file; run the experiment that writes it, or name another"
        )
    try:
        # Nothing is decoded as dates: "units" here are units of the paper, and "days" may be among them.
        ds = xarray.load_dataset(
            path, engine="h5netcdf", decode_times=False, decode_timedelta=False, mask_and_scale=False
        )
    # HDF5 reports a damaged file with errors of many kinds: OSError, RuntimeError, KeyError, ValueError, UnicodeError.
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise OutputError(
            f"cannot read {path}: it is damaged, cut short or not NetCDF-4 ({what}); run the experiment again"
        ) from error
    warn_unless_vouched(path, required=whole)
    return ds


def _axes(name: str) -> tuple[str, ...]:
    """The axes that a variable of a sweep has at least; none where it is not known."""
    if name.startswith("matched_"):
        return (*GRID, "seed", "level")
    if name in ("loss", "mu_ov", "mu_qk", "alpha"):
        return (*GRID, "seed", "record")
    return {"t": ("parameterization", "record"), "level": ("level",)}.get(name, ())


def check_sweep(ds: "xarray.Dataset", variables: Iterable[str] = ()) -> None:
    """Raise InputError unless `ds` has the axes of a sweep, at least one run, and `variables` on the axes they have there.

    Raises:
        InputError: names what is missing, and says which command writes such a dataset.
    """
    import xarray

    do = "give the data.nc of a sweep"
    if not isinstance(ds, xarray.Dataset):
        raise InputError(f"a sweep must be an xarray Dataset, got {type(ds).__name__}; {do}")
    wanted = list(variables)
    missing = [name for name in (*GRID, "seed") if name not in ds.dims or name not in ds.coords]
    missing += [name for name in wanted if name not in ds]
    if missing:
        raise InputError(f"the dataset lacks {', '.join(missing)}; {do}")
    for name in wanted:
        absent = [axis for axis in _axes(name) if axis not in ds[name].dims]
        if absent:
            raise InputError(f"{name} in the dataset lacks the axes {', '.join(absent)}; {do}")
    empty = [name for name in (*GRID, "seed") if ds.sizes[name] == 0]
    if empty:
        raise InputError(f"the dataset holds no run: {', '.join(empty)} is empty; {do}")
    if any("record" in _axes(name) for name in wanted) and ds.sizes["record"] == 0:
        raise InputError(f"the dataset holds no record: record is empty; {do}")
