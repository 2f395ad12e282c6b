"""Zarr variables with named dimensions → datasets whose rows are cells, and back.

Names of variables in a Zarr group go in; a `GridDataset` comes out, and its results
become new variables. Zarr's own arrays would show packed values and fill values as
numbers: here they are decoded by the CF conventions, and missing cells are NaN. A
*mark* is a stored value that means a missing cell. A *piece* is the cells that are read
and written together.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist import lazy
from rff_dist.data import grid_attributes, grid_inputs, grids, xarrays
from rff_dist.data.blocks import Block
from rff_dist.data.folding import first_values
from rff_dist.data.grid_attributes import marks_of
from rff_dist.data.grid_inputs import Slices, Variable
from rff_dist.data.grids import GridDataset
from rff_dist.data.labelled import GroupedDataset
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import arrays, locations
from rff_dist.storage.arrays import ZarrArray, naming_cells
from rff_dist.storage.groups import StoredArray, StoredGroup, find_group
from rff_dist.storage.locations import Location
from rff_dist.storage.manifests import MANIFEST
from rff_dist.storage.outputs import Layout, StagedOutput, begin
from rff_dist.storage.zarr_access import codecs, open_store, zarr
from rff_dist.typing import AnyArray, AnyDType, Facts, PathLike, Summary

_log = logging.getLogger(__name__)
# Attributes that say how values are packed. They are not copied to results, which are
# not packed.
_PACKING = {"scale_factor", "add_offset", "_Unsigned", "dtype"}
_NOT_COPIED = _PACKING | {
    *("_ARRAY_DIMENSIONS", "valid_min", "valid_max", "valid_range", "actual_range"),
    *("flag_values", "flag_meanings", "flag_colors"),
}
#: Names of variables, by the arrays of a layout.
NAMES = {"predictions": "prediction", "standard_deviations": "std", "X": "component"}
_TITLES = {
    "std": "standard deviation of {}",
    "lower": "lower end of the interval of {}",
    "upper": "upper end of the interval of {}",
}


@dataclass(frozen=True, eq=False)
class StoredVariable(Variable):
    """A variable in a Zarr group; it pickles as group and name."""

    stored: StoredArray
    decoded: Any  # a Variable of xarray, which decodes values when they are read

    def read(self, region: Slices) -> AnyArray:
        """Return the values of a region, NaN where they are missing."""
        try:
            with naming_cells(region, self.stored.label):
                return xarrays.values_of(self.decoded, region)
        except StorageError:
            self.check_unchanged()
            raise

    def check_unchanged(self) -> None:
        self.stored.group.check_unchanged()

    def content_key(self) -> str | None:
        """Return a key of the stored values, if they cannot change."""
        return self.stored.content_key()

    def __reduce__(self) -> tuple[Any, ...]:
        stored = self.stored
        return open_variable, (stored.group, stored.name, stored.missing_chunks)


def open_variable(
    group: StoredGroup, name: str, missing_chunks: str = "error"
) -> StoredVariable:
    """Open an array with named dimensions.

    The cells of a chunk that is not stored are missing if the fill value marks missing
    cells; otherwise `missing_chunks` decides, as in `open_dataset`. Raises DataError if
    times have a calendar that NumPy lacks.
    """
    stored = group.open_array(name, missing_chunks, allows_text=False)
    shape = stored.header.shape
    dims = _dims(stored.array)
    if dims is None or None in dims or len(set(dims)) != len(shape):
        raise StorageError(
            f"{stored.label} has the dimensions {dims}; expected a name for each of"
            f" {len(shape)}. Write it with xarray, or give `dimension_names`"
        )
    decoded, doubtful_fill = _decode(name, stored, dims)
    return StoredVariable(
        **xarrays.facts_of(name, decoded),
        chunks=stored.header.shards or stored.header.chunks,
        attributes=dict(stored.array.attrs),
        can_travel=True,
        doubtful_fill=doubtful_fill,
        stored=stored,
        decoded=decoded,
    )


def _missing_marks(stored: StoredArray) -> tuple[AnyArray, bool]:
    """Return the marks of missing cells, and whether the fill value is a doubtful one.

    A mark is a stored value, named by an attribute such as `_FillValue`, that means a
    missing cell. The fill value of the Zarr array is a mark, too, by its format:

                  fill value 0          another fill value
        format 2  a doubtful mark       a mark, as by the CF conventions
        format 3  the default, no mark  a doubtful mark

    If no attribute names a doubtful mark, users are warned that it may be a value.
    """
    attributes = dict(stored.array.attrs)
    dtype = stored.header.dtype
    fill_value = stored.array.fill_value
    is_format_3 = stored.header.zarr_format == 3
    is_zero = fill_value == 0
    marks_by_attributes = marks_of(attributes, dtype)
    if fill_value is None or (is_format_3 and is_zero):
        return marks_by_attributes, False

    marks = marks_of(attributes, dtype, fill_value)
    is_named = len(marks) == len(marks_by_attributes)
    return marks, not is_named and (is_format_3 or is_zero)


def _decode(name: str, stored: StoredArray, dims: Sequence[str]) -> tuple[Any, Any]:
    """Return an array as a Variable of xarray, which decodes what is read from it.

    Returns also the fill value if it is a doubtful mark, else None; see
    `_missing_marks`. Raises DataError if xarray cannot decode by the attributes.
    """
    xarray = lazy.require("xarray", "grids are decoded by the package xarray", "xarray")
    from xarray.backends.zarr import ZarrArrayWrapper
    from xarray.core.indexing import LazilyIndexedArray

    array = stored.array
    attributes = dict(array.attrs)
    fill_value = array.fill_value
    marks, is_doubtful = _missing_marks(stored)
    is_nan = fill_value != fill_value
    if fill_value is not None and (is_nan or fill_value in marks):
        # A chunk that is not stored has the fill value, so its cells are missing.
        array = arrays.require_chunks(array, "fill")

    # xarray refuses some forms in which programs write marks. So their attributes are
    # left out, and all marks passed on in one form, as "missing_value".
    known: dict[str, Any] = {
        key: value
        for key, value in attributes.items()
        if not grid_attributes.MARKS.fullmatch(key)
    }
    sign = {"true": "u", "false": "i"}.get(str(known.get("_Unsigned")))
    if sign and marks.dtype.kind in "iu":
        # Programs write a mark in the stored dtype, or in the dtype of this sign.
        signed_dtype = np.dtype(f"{sign}{marks.itemsize}")
        signed_marks = marks_of(attributes, signed_dtype)
        marks = np.concatenate([marks.view(signed_dtype), signed_marks])
    if marks.size:
        known["missing_value"] = marks
    lazy_array = LazilyIndexedArray(ZarrArrayWrapper(array))  # type: ignore[no-untyped-call]
    try:
        for key in {"scale_factor", "add_offset"} & known.keys():
            known[key] = float(np.ravel(known[key])[0])
        variable = xarray.Variable(dims, lazy_array, known)
        with warnings.catch_warnings():
            # xarray warns about several marks
            warnings.simplefilter("ignore", xarray.SerializationWarning)
            decoded = xarray.conventions.decode_cf_variable(
                name, variable, decode_timedelta=False
            )
    except (TypeError, ValueError) as error:
        why = locations.explain(error)
        if error.__cause__ is not None:
            why += f"; {locations.explain(error.__cause__)}"
        raise DataError(
            f"{name!r} cannot be decoded: {why}. Convert it first, times of another "
            "calendar with xarray's `convert_calendar`"
        ) from error
    return decoded, fill_value if is_doubtful else None


def _dims(array: ZarrArray) -> Any:
    names = getattr(array.metadata, "dimension_names", None)
    return names or array.attrs.get("_ARRAY_DIMENSIONS")


def open_grid(
    group: StoredGroup,
    inputs: Sequence[str],
    target: str | Sequence[str] | None,
    weight: str | None,
    *,
    missing_chunks: str,
) -> GridDataset:
    """Open variables of a group as a dataset whose rows are cells.

    Raises DataError if variables have several coordinate reference systems.
    """
    names = {*group.list_arrays()}
    variable = partial(open_variable, group, missing_chunks=missing_chunks)

    def find(name: str) -> StoredVariable | None:
        return variable(name) if name in names else None

    columns = grid_inputs.columns_of(inputs, find)
    all_dims = [column.variable.dims for column in columns]
    wanted = {*sum(all_dims, ())}
    like = None
    # If no input has all dimensions, such as a map and a time, their order is unknown.
    # Without a target it is taken from any variable that has all of them.
    if target is None and max(map(len, all_dims)) < len(wanted):
        for name in sorted(names):
            if {*(_dims(_array(group, name)) or ())} == wanted:
                like = find(name)
                break
    predicted = [target] if isinstance(target, str) else target or ()
    dataset = grids.grid_of(
        columns,
        [variable(name) for name in predicted],
        None if weight is None else variable(weight),
        like=like,
        url=group.url,
        version=group.version,
        missing_chunks=missing_chunks,
    )
    described = grid_attributes.mappings_of([v.attributes for v in dataset.variables])
    systems = [dict(_array(group, name).attrs) for name in sorted(described & names)]
    dataset = replace(dataset, reference=grid_attributes.reference_of(systems))
    n_cells = int(np.prod(dataset.grid.shape))
    _log.info(
        "%s of %s cells have all variables", f"{dataset.n_samples:,}", f"{n_cells:,}"
    )
    return dataset


def group_by_blocks(dataset: GridDataset, sizes: Sequence[str]) -> GroupedDataset:
    """Return rows of a stored grid grouped by blocks of sizes such as "lat=2".

    Sizes are in the units of the variable, for a time in days.
    """
    cuts = []
    for text in sizes:
        name, _, number = text.partition("=")
        try:
            size = float(number)
        except ValueError:
            size = 0.0
        if not size > 0:
            raise InvalidParameterError(
                f"`group_by_block` has {text!r}; expected a name and a size above 0,"
                " such as lat=2"
            )
        variable = open_variable(_group_of(dataset), name)
        values = grids.read_whole(variable)
        lowest = np.nanmin(values)
        n_cuts = math.floor((np.nanmax(values) - lowest) / size)
        cuts.append((variable, lowest + size * np.arange(1, n_cuts + 1)))
    return dataset.cut(*cuts)


def fold_by_time(dataset: GridDataset, n_folds: int) -> GroupedDataset:
    """Return rows of a stored grid, each with its fold by the time coordinate.

    Each fold has the same number of moments; fold 0 has the earliest.

    Raises DataError if there are fewer moments than folds.
    """
    group = _group_of(dataset)
    for name in {*dataset.grid.dims} & {*group.list_arrays()}:
        variable = open_variable(group, name)
        if variable.is_time:
            moments = np.unique(grids.read_whole(variable))
            if len(moments) < n_folds:
                raise DataError(
                    f"{name!r} has {len(moments)} moments, fewer than"
                    f" `n_folds`={n_folds}"
                )
            return dataset.cut((variable, first_values(moments, n_folds)))
    raise InvalidParameterError(
        f"`time` is given, but none of the dimensions {list(dataset.grid.dims)} has"
        " times; leave it out"
    )


def _group_of(dataset: GridDataset) -> StoredGroup:
    variable = dataset.inputs[0].variable
    assert isinstance(variable, StoredVariable)
    return variable.stored.group


def find_inputs(url: PathLike, version: str | None, card: Facts) -> list[str] | None:
    """Return the inputs of a model if they are variables of the grid at `url`; None for
    another grid or plain rows.
    """
    names: list[str] = card.get("feature_names") or []
    group = find_group(url, version)
    if not names or group.read_header("X") is not None:
        return None
    stored = {*group.list_arrays()}
    parts = {f"{name}.{part}" for name in stored for part in grid_inputs.TIME_PARTS}
    return names if stored | parts >= {*names} else None


def _array(group: StoredGroup, name: str) -> ZarrArray:
    return zarr.open_array(group.store, path=name, mode="r")


# -- results as variables


@dataclass(frozen=True)
class GridOutput(StagedOutput):
    """New variables on a dataset's grid; cells that are no rows stay missing."""

    grid: grids.Grid
    edges: NDArray[np.int64]  # the first row of each piece

    def write(self, block: Block, values: AnyArray, /) -> None:
        """Write the rows of one piece, of the dtype `fields_of`."""
        number, region = self._piece(block)
        shape = tuple(part.stop - part.start for part in region)
        cells = np.unravel_index(values["cell"], shape)
        with locations.store_errors(
            f"piece {number} of {self.location} cannot be written"
        ):
            store = open_store(self.publication.staged, read_only=False)
            for field, names in variable_names(self.layout).items():
                results = values[field].reshape(len(values), len(names))
                for j, name in enumerate(names):
                    array = zarr.open_array(store, path=name, mode="r+")
                    piece = np.full(shape, array.fill_value, array.dtype)
                    piece[cells] = results[:, j]
                    array[region] = piece

    def _open(self) -> list[ZarrArray]:
        store = open_store(self.publication.staged)
        return [
            zarr.open_array(store, path=name, mode="r")
            for names in variable_names(self.layout).values()
            for name in names
        ]

    def _has_shapes(self) -> bool:
        # A stopped job may have made only some: coordinates first, then variables.
        return {array.shape for array in self._open()} == {self.grid.shape}

    def _is_written(self, block: Block) -> bool:
        _, region = self._piece(block)
        for array in self._open():
            with naming_cells(region, array.name):
                values = np.asarray(array[region])
            is_missing = values == array.fill_value
            if values.dtype.kind == "f":
                is_missing = np.isnan(values)
            if np.count_nonzero(~is_missing) != block.n_samples:
                return False
        return True

    def _piece(self, block: Block) -> tuple[int, Slices]:
        number = int(np.searchsorted(self.edges, block.start, side="right")) - 1
        return number, self.grid.region(number)

    def finish(self, attributes: Facts | None = None) -> None:
        with locations.store_errors(f"{self.location} cannot be put in place"):
            # No array is listed: the manifest has crc32c, which `_create` does not use.
            self._complete([], attributes, {"n_samples": self.n_samples})


def variable_names(layout: Layout) -> dict[str, list[str]]:
    """Return the variables of each array of a layout: one, or one per column."""
    names: dict[str, list[str]] = {}
    for part, dtype in layout.arrays.items():
        name = NAMES.get(part, part)
        names[part] = [name]
        if dtype.shape:
            columns = layout.column_names or range(dtype.shape[0])
            names[part] = [f"{name}_{column}" for column in columns]
    return names


def fields_of(layout: Layout) -> AnyDType:
    """Return the dtype of rows for a grid: the cell, and each array of a layout."""
    return np.dtype([("cell", np.int64), *layout.arrays.items()])


def create_grid_output(
    url: PathLike,
    dataset: GridDataset,
    layout: Layout,
    *,
    overwrite: bool,
    staged: Location | None,
) -> GridOutput:
    """Begin variables with the dimensions, coordinates and chunks of a dataset."""
    variables = [column.variable for column in dataset.inputs]
    template = max(variables, key=lambda variable: len(variable.dims))
    if not isinstance(template, StoredVariable):
        raise InvalidParameterError(
            "the grid is in memory, so no attributes or coordinates are stored;"
            " expected a Zarr group. Use the estimator's `predict`, and xarray's"
            " `to_zarr`"
        )
    group = template.stored.group
    attributes = dict(group.attributes)
    attributes.pop(MANIFEST, None)

    def write_variables(created: zarr.Group) -> None:
        for name in _coordinates(group, template, dataset.grid.dims):
            _copy(_array(group, name), created, name)
        target_name = ""
        if layout.column_names and len(layout.column_names) == 1:
            target_name = layout.column_names[0]
        target: Facts = {}
        if target_name in group.list_arrays():
            target = dict(_array(group, target_name).attrs)
        for part, names in variable_names(layout).items():
            dtype = layout.arrays[part].base
            for name in names:
                facts = _attributes(name, target_name, target, template)
                if dtype.kind not in "fU":
                    facts |= grid_attributes.flags_of(layout.meanings)
                _create(created, name, dtype, dataset, template, facts)

    return begin(
        partial(GridOutput, layout=layout, grid=dataset.grid, edges=dataset.edges),
        url,
        write_variables,
        attributes,
        inputs=[locations.parse_location(group.url)],
        overwrite=overwrite,
        staged=staged,
    )


def _coordinates(
    group: StoredGroup, template: StoredVariable, dims: Sequence[str]
) -> list[str]:
    """Return the names of coordinates, their bounds and the grid mapping."""
    listed = [
        template.attributes.get("coordinates"),
        group.attributes.get("coordinates"),
        template.attributes.get("grid_mapping"),
    ]
    names = [*dims]
    for text in listed:
        names += [name.rstrip(":") for name in str(text or "").split()]
    names += ["spatial_ref", "crs"]
    stored = {*group.list_arrays()}
    names = [name for name in dict.fromkeys(names) if name in stored]
    bounds = [str(_array(group, name).attrs.get("bounds", "")) for name in names]
    return names + [name for name in bounds if name in stored]


def _copy(source: ZarrArray, group: zarr.Group, name: str) -> None:
    attributes = dict(source.attrs)
    attributes.pop("_ARRAY_DIMENSIONS", None)
    group.create_array(
        name,
        data=np.asarray(source[...]),
        chunks=source.shape or "auto",
        dimension_names=_dims(source),
        attributes=attributes,
        fill_value=source.fill_value,
    )


def _create(
    group: zarr.Group,
    name: str,
    dtype: AnyDType,
    dataset: GridDataset,
    template: StoredVariable,
    attributes: Summary,
) -> None:
    grid = dataset.grid
    header = template.stored.header
    chunks = tuple(min(pair) for pair in zip(grid.chunks, grid.piece, strict=True))
    shards = None
    # If a piece is a shard of the inputs, results get the same shards and chunks.
    if template.dims == grid.dims and chunks == header.shards:
        shards = header.shards
        chunks = header.chunks
    fill_value: Any = np.nan
    if dtype.kind == "f":
        if dataset.dtype.itemsize <= 4:  # as precise as the inputs
            dtype = np.dtype(np.float32)
    else:  # missing: the dtype's smallest integer, which is no label
        dtype = np.promote_types(dtype, np.int8)
        fill_value = int(np.iinfo(dtype).min)
        attributes["_FillValue"] = fill_value
    group.create_array(
        name,
        shape=grid.shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        # GDAL does not know crc32c
        compressors=codecs.ZstdCodec(level=1, checksum=True),
        dimension_names=grid.dims,
        attributes=attributes,
        fill_value=fill_value,
    )


def _attributes(
    name: str, target_name: str, target: Facts, template: StoredVariable
) -> Summary:
    """Return a result's attributes: the target's, and references to coordinates."""
    attributes: Summary = {}
    for key in ("grid_mapping", "coordinates"):
        if key in template.attributes:
            attributes[key] = template.attributes[key]
    if name == "prediction":
        for key, value in target.items():
            is_mark = grid_attributes.MARKS.fullmatch(key)
            if key not in _NOT_COPIED and not is_mark:
                attributes[key] = value
    elif name in _TITLES:
        if "units" in target:
            attributes["units"] = target["units"]
        if target_name:
            long_name = target.get("long_name", target_name)
            attributes["long_name"] = _TITLES[name].format(long_name).strip()
    return attributes
