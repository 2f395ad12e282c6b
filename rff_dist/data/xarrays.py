"""Datasets and DataArrays of xarray as grids, and results as DataArrays.

Objects of xarray go in; a `GridDataset` comes out, and later a value of each row
becomes a DataArray again. Their plain values would lack dimensions and coordinates, by
which X, y and weights are compared. xarray is imported only if its objects are used.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import blocks, grid_inputs, grids, labelled
from rff_dist.data.grid_attributes import mappings_of, marks_of, reference_of
from rff_dist.data.grid_inputs import Slices, Variable
from rff_dist.errors import DataError
from rff_dist.typing import AnyArray, Summary

_log = logging.getLogger(__name__)
# Names of the dimension along which rioxarray, and `to_dataarray`, put inputs.
_INPUT_DIMS = ("band", "variable")


@dataclass(frozen=True, eq=False)
class XarrayVariable(Variable):
    """A DataArray, which xarray reads and decodes."""

    array: Any
    #: Values that mean a missing cell, and that xarray has not replaced by NaN.
    marks: AnyArray

    def read(self, region: Slices) -> AnyArray:
        values = values_of(self.array, region)
        if not self.marks.size:
            return values
        return np.where(np.isin(values, self.marks), np.nan, values).astype(self.dtype)

    def check_unchanged(self) -> None:
        return


def is_xarray(value: object) -> bool:
    """Return whether a value is an object of xarray, without importing xarray."""
    return type(value).__module__.partition(".")[0] == "xarray"


def open_xarray(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    inputs: Sequence[str] | None = None,
    expected: Sequence[str] = (),
) -> grids.GridDataset:
    """Return the cells of xarray's objects as a dataset.

    X is a Dataset whose variables are the inputs, or a DataArray, see `_as_variables`;
    y a DataArray, or a Dataset with a variable for each target, or the name of a
    variable of X (then `inputs` must name the inputs). `expected` are the inputs' names
    in a fitted model.
    Raises DataError if coordinates or reference systems of the parts differ.
    """
    y = X[y] if isinstance(y, str) else y
    for name, part in (("y", y), ("sample_weight", sample_weight)):
        if part is None:
            continue
        if not is_xarray(part):
            table = "X.values" if hasattr(X, "to_dataset") else "X.to_dataframe()"
            raise DataError(
                f"`{name}` is a {type(part).__name__}, and X of xarray is a grid"
                f" with the dimensions {[*X.sizes]}; expected a DataArray. For a"
                f" table of rows pass {table}"
            )
        _check_coordinates(X, part, name)
    if hasattr(X, "to_dataset"):  # a DataArray
        X = _as_variables(X, y, expected)
    variables = {str(name): X[name] for name in X.variables}

    def find(name: str) -> XarrayVariable | None:
        return _xarray_variable(name, variables[name]) if name in variables else None

    if inputs is None:
        inputs = [str(name) for name in X.data_vars]
    targets: list[Any] = []
    if hasattr(y, "data_vars"):
        targets = list(y.data_vars.values())
    elif y is not None:
        targets = [y]
    weight = None
    if sample_weight is not None:
        weight = _xarray_variable("sample_weight", sample_weight)
    dataset = grids.grid_of(
        grid_inputs.columns_of(inputs, find),
        [_xarray_variable(str(t.name or "y"), t) for t in targets],
        weight,
    )
    n_cells = math.prod(dataset.grid.shape)
    if dataset.n_samples < n_cells and not len(expected):
        # no warning: most cells of a map may have no measured target
        _log.info(
            "%d of %d cells are left out: values are missing in %s",
            n_cells - dataset.n_samples,
            n_cells,
            [*dataset.incomplete],
        )
    described = mappings_of([variable.attributes for variable in dataset.variables])
    systems = [
        part.coords[name].attrs
        for part in (X, y, sample_weight)
        if part is not None
        for name in sorted(described & {*part.coords})
    ]
    return replace(dataset, reference=reference_of(systems))


def _as_variables(X: Any, y: Any, expected: Sequence[str]) -> Any:
    """Return a DataArray as a Dataset: of one input, or of those along a dimension.

    Inputs are along the dimension that y lacks. Without y, they are along the one whose
    labels are the expected inputs, or that is called "band" or "variable".
    """
    names = {dim: _names_along(X, dim) for dim in X.dims}
    if y is not None:
        input_dims = [dim for dim in X.dims if dim not in y.dims]
    else:
        input_dims = [dim for dim in X.dims if set(names[dim]) == set(expected)]
        input_dims = input_dims or [dim for dim in X.dims if dim in _INPUT_DIMS]
    if len(input_dims) != 1:
        if len(expected) > 1 or (y is None and X.ndim == 2 and not expected):
            _log.warning(
                "X is a DataArray, read as one input on a grid with the dimensions %s."
                " For a table of rows pass X.values, for several inputs a Dataset"
                " (xarray's `to_dataset`)",
                [*X.dims],
            )
        return X.to_dataset(name=X.name or "x0")
    [dim] = input_dims
    import xarray

    along = [name for name, coordinate in X.coords.items() if dim in coordinate.dims]
    parts = {
        name: X.drop_vars(along).isel({dim: i}) for i, name in enumerate(names[dim])
    }
    ordered = expected if set(expected) == set(parts) else parts
    return xarray.Dataset({name: parts[name] for name in ordered})


def _names_along(X: Any, dim: Any) -> list[str]:
    """Return the names of inputs along a dimension: labels, or name and number."""
    labels = X[dim].values.tolist()
    return [label if isinstance(label, str) else f"{dim}_{label}" for label in labels]


def group_by(dataset: grids.GridDataset, groups: Any) -> labelled.GroupedDataset:
    """Group rows of a grid by the values of a DataArray of some of its dimensions.

    Raises DataError if it has other dimensions, or other coordinates than a grid of
    xarray.
    """
    sizes = dict(zip(dataset.grid.dims, dataset.grid.shape, strict=True))
    for known in dataset.variables:
        if isinstance(known, XarrayVariable):
            _check_coordinates(known.array, groups, "groups")
    if not groups.sizes.items() <= sizes.items():
        raise DataError(
            f"`groups` is of {dict(groups.sizes)} cells; expected some dimensions of"
            f" {sizes}"
        )
    variable = _xarray_variable("groups", groups)
    labels = np.unique(grids.read_whole(variable))
    boundaries = labels[1:]  # the first group begins at the start
    return dataset.cut((variable, boundaries))


def values_of(array: Any, region: Slices) -> AnyArray:
    """Return values of a region of a DataArray; times become days since 1970."""
    values = np.asarray(array[region].values)
    if values.dtype.kind != "M":
        return values
    days: NDArray[np.float64] = (values - np.datetime64("1970-01-01")) / np.timedelta64(
        1, "D"
    )
    return days


def facts_of(name: str, array: Any) -> Summary:
    """Return the fields of a `Variable` for a DataArray; raises DataError.

    Its values must be numbers or times.
    """
    if array.dtype.kind not in "biufM":
        raise DataError(
            f"{name!r} has dtype {array.dtype}; expected numbers or times. Convert it"
            " first: labels to whole numbers, times of another calendar with xarray's"
            " `convert_calendar`"
        )
    is_time = array.dtype.kind == "M"
    return {
        "name": name,
        "dims": tuple(str(dim) for dim in array.dims),
        "shape": tuple(array.shape),
        "dtype": np.dtype(np.float64) if is_time else array.dtype,
        "may_miss": array.dtype.kind in "fM",
        "is_time": is_time,
    }


def _xarray_variable(name: str, array: Any) -> XarrayVariable:
    facts = facts_of(name, array)
    chunks = array.encoding.get("chunks")
    if array.chunks is not None:  # of Dask
        chunks = [lengths[0] for lengths in array.chunks]
    if chunks is None or len(chunks) != array.ndim:
        chunks = array.shape
    marks, doubtful_fill = _missing_marks(array)
    if marks.size:
        # Marks are stored values, and xarray shows unpacked ones: unpack the marks.
        marks *= array.encoding.get("scale_factor", 1)
        marks += array.encoding.get("add_offset", 0)
        facts |= {"dtype": np.result_type(array.dtype, np.float32), "may_miss": True}
    return XarrayVariable(
        **facts,
        chunks=tuple(chunks),
        attributes=array.encoding | array.attrs,
        can_travel=False,
        doubtful_fill=doubtful_fill,
        array=array,
        marks=marks,
    )


def _missing_marks(array: Any) -> tuple[AnyArray, Any]:
    """Return the marks that xarray left in the values, and the fill value if doubtful.

    Format 3 of Zarr gives each array a fill value, which xarray does not count as a
    mark. The default, 0, is no mark here either. Another fill value may mark missing
    cells, as in files of GDAL, or be a value.
    """
    marks_by_attributes = marks_of(array.attrs, array.dtype)
    fill_value = array.encoding.get("fill_value")
    if not fill_value:
        return marks_by_attributes, None
    # the marks that xarray masked have moved from the attributes to the encoding
    for key in ("_FillValue", "missing_value"):
        if np.any(array.encoding.get(key) == fill_value):
            return marks_by_attributes, None
    marks = marks_of(array.attrs, array.dtype, fill_value)
    is_named = len(marks) == len(marks_by_attributes)
    return marks, None if is_named else fill_value


def _check_coordinates(X: Any, other: Any, name: str) -> None:
    for key in set(X.coords) & set(other.coords) & set(X.dims):
        here = X.coords[key]
        there = other.coords[key]
        if not np.array_equal(here.values, there.values):
            raise DataError(
                f"`{name}` has other coordinates along {key!r} than X: {len(there)}"
                f" from {there.values[0]} to {there.values[-1]}, and X {len(here)} from"
                f" {here.values[0]} to {here.values[-1]}. Align them, with xarray's"
                " `align`, `reindex_like` or `interp_like`"
            )


def to_xarray(dataset: grids.GridDataset, values: AnyArray, X: Any, name: str) -> Any:
    """Return values of the rows as a DataArray on the grid of X; NaN in cells that are
    no rows.
    """
    import xarray

    grid = dataset.grid
    row_shape = values.shape[1:]
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    cells = np.full((*grid.shape, *row_shape), np.nan, values.dtype)
    for number in np.flatnonzero(dataset.piece_rows).tolist():
        region = grid.region(number)
        first, stop = dataset.edges[number : number + 2]
        rows = dataset.read(blocks.Block(number, first, stop))
        assert rows.cells is not None  # rows of a grid
        piece = cells[region]  # a view
        places = np.unravel_index(rows.cells, piece.shape[: len(region)])
        piece[places] = values[first:stop]
    dims = [*grid.dims, *(["column"] if row_shape else [])]
    coordinates = {
        key: c for key, c in X.coords.items() if set(c.dims) <= set(grid.dims)
    }
    return xarray.DataArray(cells, coordinates, dims, name)
