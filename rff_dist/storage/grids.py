"""Grids in Zarr: variables with named dimensions, decoded by the CF conventions, and results as variables."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec

from rff_dist import lazy
from rff_dist.data import blocks, grids, memory, xarrays
from rff_dist.data.labelled import GroupedDataset
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import arrays, documents, groups, locations
from rff_dist.storage.outputs import Layout, StagedOutput, begin
from rff_dist.typing import AnyArray, AnyDType, Facts, PathLike, Summary

_log = logging.getLogger(__name__)
# How values are stored; a result has its own.
_PACKING = {"scale_factor", "add_offset", "_Unsigned", "dtype"}
_OWN = _PACKING | {"_ARRAY_DIMENSIONS", "valid_min", "valid_max", "valid_range", "actual_range"}
_OWN |= {"flag_values", "flag_meanings", "flag_colors"}
NAMES = {"predictions": "prediction", "standard_deviations": "std", "X": "component"}
_TITLES = {
    "std": "standard deviation of {}",
    "lower": "lower end of the interval of {}",
    "upper": "upper end of the interval of {}",
}


@dataclass(frozen=True, eq=False)
class StoredVariable(grids.Variable):
    """A variable in a Zarr group, made by `open_variable`. It pickles as its group and name.

    `header`: its checked metadata.
    `cells`: a Variable of xarray, which decodes what is read.
    """

    group: groups.StoredGroup
    missing_chunks: str
    header: arrays.Header
    cells: Any

    def read(self, region: grids.Slices) -> AnyArray:
        """Return the values of a region, NaN where they are missing.

        Raises StorageError if they cannot be read; IntegrityError if bytes are damaged.
        """
        try:
            with arrays.naming_cells(region, self.group.label(self.name)):
                return xarrays.values_of(self.cells, region)
        except StorageError:
            self.check_unchanged()
            raise

    def check_unchanged(self) -> None:
        self.group.check_unchanged()

    def content_key(self) -> str | None:
        """Return a key of the stored values, for the names of kept sums; None if the values may change."""
        return self.group.content_key(self.name, self.missing_chunks)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.group.url is None:
            raise groups.cannot_travel(
                self.group.label(self.name), self.group.store, "the data with open_dataset(url)"
            )
        return open_variable, (self.group, self.name, self.missing_chunks)


def open_variable(group: groups.StoredGroup, name: str, missing_chunks: str = "error") -> StoredVariable:
    """Open an array with named dimensions.

    A chunk that is not stored has missing cells if the fill value means so; else see `open_dataset`.

    Raises StorageError if there is no such array of numbers, or its dimensions have no names; DataError for a
      time of another calendar.
    """
    header, array = group.require_array(name, missing_chunks, text=False)
    attributes: Summary = dict(array.attrs)
    dims = _dims(array)
    if dims is None or None in dims or len(set(dims)) != len(header.shape):
        raise StorageError(
            f"{group.label(name)} has the dimensions {dims}; expected a name for each of "
            f"{len(header.shape)}. Write it with xarray, or give `dimension_names`"
        )
    cells, fill = _decoded(name, header, array, dims)
    return StoredVariable(
        **xarrays.facts_of(name, cells),
        chunks=header.shards or header.chunks,
        attributes=attributes,
        can_travel=group.url is not None and group.process is None,
        fill=fill,
        group=group,
        missing_chunks=missing_chunks,
        header=header,
        cells=cells,
    )


def open_columns(url: PathLike) -> dict[str, Any]:
    """Return a group's arrays by name; what is read from them is decoded where attributes tell how."""
    group, columns = groups.find_group(url), {}
    # First what the manifest binds: an array that is gone is missed here, before the listing hides it.
    for name in sorted({*group.parts, *group.list_arrays()}):
        header, array = group.require_array(name)
        attributes = dict(array.attrs)
        is_coded = not _PACKING.isdisjoint(attributes) or " since " in str(attributes.get("units"))
        if is_coded or grids.marks_of(attributes, header.dtype, array.fill_value or ()).size:
            columns[name], fill = _decoded(name, header, array, [f"axis {i}" for i in range(array.ndim)])
            if fill is not None:
                grids.warn_of_fill(name, fill)
        else:
            columns[name] = array
    return columns


def read_columns(columns: Mapping[str, Any], *, n_rows: int) -> Iterator[dict[str, AnyArray]]:
    """Yield `n_rows` rows of arrays of `open_columns` at a time; raises StorageError if that fails."""
    n_samples = min(array.shape[0] for array in columns.values())
    for start in range(0, n_samples, n_rows):
        rows = slice(start, min(start + n_rows, n_samples))
        with arrays.naming_cells((rows,), f"one of {[*columns]}"):
            yield {name: memory.native(np.asarray(array[rows])) for name, array in columns.items()}


def _decoded(
    name: str, header: arrays.Header, array: arrays.ZarrArray, dims: Sequence[str]
) -> tuple[Any, Any]:
    """Return an array as a Variable of xarray, which decodes by the CF conventions what is read.

    Returns also the fill value, if it means a missing cell and nothing else says so.
    Raises DataError if the attributes are not understood.
    """
    xarray = lazy.require("xarray", "grids are decoded by the package xarray", "xarray")
    from xarray.backends.zarr import ZarrArrayWrapper
    from xarray.core.indexing import LazilyIndexedArray

    attributes, fill = dict(array.attrs), array.fill_value
    plain = grids.marks_of(attributes, header.dtype)
    # In format 2 the fill value is CF's, for xarray too. In format 3 there must be one, by default 0.
    means_missing = fill is not None and (header.zarr_format == 2 or fill != 0)
    marks = grids.marks_of(attributes, header.dtype, fill if means_missing else None)
    is_doubtful = len(marks) > len(plain) and (header.zarr_format == 3 or fill == 0)
    if fill is not None and (fill != fill or fill in marks):
        array = arrays.require_chunks(array, "fill")
    # xarray does not take each form in which programs write these
    known: dict[str, Any] = {
        key: value for key, value in attributes.items() if not grids.MARKS.fullmatch(key)
    }
    sign = {"true": "u", "false": "i"}.get(str(known.get("_Unsigned")))
    if sign and marks.dtype.kind in "iu":
        unpacked = np.dtype(f"{sign}{marks.itemsize}")
        marks = np.concatenate([marks.view(unpacked), grids.marks_of(attributes, unpacked)])
    if marks.size:
        known["missing_value"] = marks
    cells = LazilyIndexedArray(ZarrArrayWrapper(array))  # type: ignore[no-untyped-call]
    try:
        for key in {"scale_factor", "add_offset"} & known.keys():
            known[key] = float(np.ravel(known[key])[0])
        stored = xarray.Variable(dims, cells, known)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", xarray.SerializationWarning)  # of several marks
            decoded = xarray.conventions.decode_cf_variable(name, stored, decode_timedelta=False)
    except (TypeError, ValueError) as error:
        why = "; ".join(locations.explain(one) for one in (error, error.__cause__) if one is not None)
        raise DataError(
            f"{name!r} cannot be decoded: {why}. Convert it first, times of another "
            "calendar with xarray's `convert_calendar`"
        ) from error
    return decoded, fill if is_doubtful else None


def _dims(array: arrays.ZarrArray) -> Any:
    return getattr(array.metadata, "dimension_names", None) or array.attrs.get("_ARRAY_DIMENSIONS")


def open_grid(
    group: groups.StoredGroup,
    inputs: Sequence[str],
    target: str | Sequence[str] | None = None,
    weight: str | None = None,
    *,
    missing_chunks: str = "error",
) -> grids.GridDataset:
    """Open variables of a group as a dataset whose rows are cells; see `grids.GridDataset`.

    `inputs`: variables and coordinates; see `grids.columns_of`.
    `target`: what to predict: one variable, or several.
    Raises as `open_variable` and `grids.grid_of`; DataError if variables have several reference systems.
    """
    names = set(group.list_arrays())

    def find(name: str) -> StoredVariable | None:
        return open_variable(group, name, missing_chunks) if name in names else None

    found = grids.columns_of(inputs, find)
    dims = [column.variable.dims for column in found]
    wanted, like = {dim for of_one in dims for dim in of_one}, None
    # Inputs such as a map and a time do not tell the order of their dimensions; their target does, if it is
    # there.
    if target is None and max(map(len, dims)) < len(wanted):
        of_all = (name for name in sorted(names) if {*(_dims(_array(group, name)) or ())} == wanted)
        like = find(next(of_all, ""))
    predicted = [target] if isinstance(target, str) else target or ()
    targets = [open_variable(group, name, missing_chunks) for name in predicted]
    weights = None if weight is None else open_variable(group, weight, missing_chunks)
    facts = {"url": group.url, "version": group.version, "missing_chunks": missing_chunks}
    dataset = grids.grid_of(found, targets, weights, like=like, **facts)
    mappings = sorted(grids.mappings_of(dataset.variables) & names)
    reference = grids.reference_of([dict(_array(group, name).attrs) for name in mappings])
    dataset = replace(dataset, reference=reference)
    for name, times in grids.repeated_reads(dataset).items():
        _log.warning(
            "the chunks of %r do not fit the pieces of %s cells in which the grid is read: each pass decodes "
            "them %.1f times. Rechunk it if that takes long",
            name,
            dataset.grid.piece,
            times,
        )
    n_cells = int(np.prod(dataset.grid.shape))
    _log.info("%s of %s cells have all variables", f"{dataset.n_samples:,}", f"{n_cells:,}")
    return dataset


def group_by_blocks(dataset: grids.GridDataset, sizes: Sequence[str]) -> GroupedDataset:
    """Return rows of a stored grid grouped by blocks.

    `sizes`: such as "lat=2", in the units of the variable; days of a time.
    Raises InvalidParameterError if one of them is no name and a number above 0.
    """
    found: dict[grids.Variable, float] = {}
    for text in sizes:
        name, _, size = text.partition("=")
        try:
            found[open_variable(_group_of(dataset), name)] = float(size)
        except ValueError:
            found[open_variable(_group_of(dataset), name)] = 0.0
        if not min(found.values()) > 0:
            raise InvalidParameterError(
                f"`group_by_block` has {text!r}; expected a name and a size above 0, such as lat=2"
            )
    return dataset.grouped(found)


def fold_by_time(dataset: grids.GridDataset, n_folds: int) -> GroupedDataset:
    """Return rows of a stored grid with a fold of its time coordinate each.

    Raises InvalidParameterError if no dimension is a time.
    """
    group = _group_of(dataset)
    for name in set(dataset.grid.dims) & set(group.list_arrays()):
        if (variable := open_variable(group, name)).is_time:
            return dataset.folded(variable, n_folds)
    raise InvalidParameterError(
        f"`time` is given, but none of the dimensions {list(dataset.grid.dims)} has times; leave it out"
    )


def _group_of(dataset: grids.GridDataset) -> groups.StoredGroup:
    variable = dataset.inputs[0].variable
    assert isinstance(variable, StoredVariable)
    return variable.group


def find_inputs(url: PathLike, version: str | None, card: Facts) -> list[str] | None:
    """Return the inputs of a model if they are variables of the group at `url`, which then is a grid."""
    names: list[str] = card.get("feature_names") or []
    group = groups.find_group(url, version)
    if not names or group.read_header("X") is not None:
        return None
    found = group.list_arrays()
    parts = (f"{name}.{part}" for name in found for part in grids.TIME_PARTS)
    return names if {*found, *parts}.issuperset(names) else None


def _array(group: groups.StoredGroup, name: str) -> arrays.ZarrArray:
    return zarr.open_array(group.store, path=f"{group.prefix}{name}", mode="r")


# -- results as variables --------------------------------------------------------------------------


@dataclass(frozen=True)
class GridOutput(StagedOutput):
    """New variables on a grid, written in its pieces; cells that are no rows stay missing.

    `grid`, `edges`: of the dataset whose rows these are.
    """

    grid: grids.Grid
    edges: NDArray[np.int64]

    def write(self, block: blocks.Block, values: AnyArray, /) -> None:
        """Write the rows of one piece; `values` have those of `fields_of`."""
        number, region = self._piece(block)
        shape = tuple(part.stop - part.start for part in region)
        cells = np.unravel_index(values["cell"], shape)
        with locations.store_errors(f"piece {number} of {self.location} cannot be written"):
            store = locations.open_store(self.place.staged, read_only=False)
            for field, names in variable_names(self.layout).items():
                results = values[field].reshape(len(values), len(names))
                for j, name in enumerate(names):
                    array = zarr.open_array(store, path=name, mode="r+")
                    piece = np.full(shape, array.fill_value, array.dtype)
                    piece[cells] = results[:, j]
                    array[region] = piece

    def _open(self) -> list[arrays.ZarrArray]:
        store = locations.open_store(self.place.staged)
        names = (name for names in variable_names(self.layout).values() for name in names)
        return [zarr.open_array(store, path=name, mode="r") for name in names]

    def _has_shapes(self) -> bool:
        # Variables are created after their coordinates.
        return {array.shape for array in self._open()} == {self.grid.shape}

    def _is_written(self, block: blocks.Block) -> bool:
        for array in self._open():
            region = self._piece(block)[1]
            with arrays.naming_cells(region, array.name):
                read = np.asarray(array[region])
            missing = np.isnan(read) if read.dtype.kind == "f" else read == array.fill_value
            if read.size - np.count_nonzero(missing) != block.n_samples:
                return False
        return True

    def _piece(self, block: blocks.Block) -> tuple[int, grids.Slices]:
        number = int(np.searchsorted(self.edges, block.start, side="right")) - 1
        return number, self.grid.region(number)

    def finish(self, attributes: Facts | None = None) -> None:
        manifest = {documents.MANIFEST: {"n_samples": self.n_samples}}
        with locations.store_errors(f"{self.location} cannot be put in place"):
            store = locations.open_store(self.place.staged, read_only=False)
            groups.complete(store, [], {**(attributes or {}), **manifest}, place=self.location)
            self.place.publish()


def variable_names(layout: Layout) -> dict[str, list[str]]:
    """Return the variables that each array of a layout becomes: one, or one for each of its columns."""
    names: dict[str, list[str]] = {}
    for part, (_, tail) in layout.parts.items():
        name = NAMES.get(part, part)
        parts = layout.column_names or range(tail[0]) if tail else []
        names[part] = [f"{name}_{column}" for column in parts] if tail else [name]
    return names


def fields_of(layout: Layout) -> AnyDType:
    """Return the dtype of rows that a grid is written from: each array of a layout, and the cell."""
    parts = layout.parts.items()
    return np.dtype([("cell", np.int64), *((name, base, tail) for name, (base, tail) in parts)])


def create_grid_output(
    url: PathLike,
    dataset: grids.GridDataset,
    layout: Layout,
    *,
    overwrite: bool = False,
    place: locations.Location | None = None,
) -> GridOutput:
    """Begin variables on the grid of a dataset: its dimensions, coordinates, chunks and grid mapping.

    Raises InvalidParameterError if the dataset is not stored; as `outputs.create_output`.
    """
    reference = max((c.variable for c in dataset.inputs), key=lambda variable: len(variable.dims))
    if not isinstance(reference, StoredVariable):
        raise InvalidParameterError(
            "the grid is in memory, so no attributes or coordinates are stored; expected a Zarr group. Use "
            "the estimator's `predict`, and xarray's `to_zarr`"
        )
    group = reference.group
    sources = [] if group.url is None else [locations.parse_location(group.url)]
    kept = {key: value for key, value in group.attributes.items() if key != documents.MANIFEST}

    def fill(created: zarr.Group) -> None:
        for name in _coordinates(group, reference, dataset.grid.dims):
            _copy(_array(group, name), created, name)
        of = layout.column_names[0] if layout.column_names and len(layout.column_names) == 1 else ""
        target = dict(_array(group, of).attrs) if of in set(group.list_arrays()) else {}
        for part, names in variable_names(layout).items():
            for name in names:
                base = layout.parts[part][0]
                attributes = _attributes(name, of, target, reference)
                if base.kind not in "fU":
                    attributes |= grids.flags_of(layout.meanings)
                _create(created, name, base, dataset, reference, attributes)

    make = partial(GridOutput, layout=layout, grid=dataset.grid, edges=dataset.edges)
    return begin(make, url, fill, kept, inputs=sources, overwrite=overwrite, staged=place)


def _coordinates(group: groups.StoredGroup, reference: StoredVariable, dims: Sequence[str]) -> list[str]:
    """Return the names of the arrays that place cells: coordinates, bounds and grid mapping."""
    there = set(group.list_arrays())
    listed = [reference.attributes.get("coordinates", ""), group.attributes.get("coordinates", "")]
    listed += [reference.attributes.get("grid_mapping", "")]
    names = [*dims, *(name.rstrip(":") for text in listed for name in str(text).split())]
    names += [name for name in ("spatial_ref", "crs") if name in there]
    found = [name for name in dict.fromkeys(names) if name in there]
    bounds = [str(_array(group, name).attrs.get("bounds", "")) for name in found]
    return [*found, *(name for name in bounds if name in there)]


def _copy(source: arrays.ZarrArray, group: zarr.Group, name: str) -> None:
    attributes = {key: value for key, value in source.attrs.items() if key != "_ARRAY_DIMENSIONS"}
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
    dataset: grids.GridDataset,
    reference: StoredVariable,
    attributes: Facts,
) -> None:
    grid, header = dataset.grid, reference.header
    chunks = tuple(min(pair) for pair in zip(grid.chunks, grid.piece, strict=True))
    # the shards of the inputs, if they are what is read
    shards = header.shards if reference.dims == grid.dims and chunks == header.shards else None
    if dtype.kind == "f" and dataset.dtype.itemsize <= 4:  # as the inputs
        dtype = np.dtype(np.float32)
    fill: Any = np.nan
    if dtype.kind != "f":  # a value that is no label, in which there is room for it
        dtype = np.promote_types(dtype, np.int8)
        fill = int(np.iinfo(dtype).min)
    group.create_array(
        name,
        shape=grid.shape,
        dtype=dtype,
        chunks=header.chunks if shards is not None else chunks,
        shards=shards,
        compressors=ZstdCodec(level=1, checksum=True),  # GDAL does not know crc32c
        dimension_names=grid.dims,
        attributes={**attributes, **({} if dtype.kind == "f" else {"_FillValue": fill})},
        fill_value=fill,
    )


def _attributes(name: str, target_name: str, target: Facts, reference: StoredVariable) -> Summary:
    """Return the attributes of a result: of the target, and those that place it on the earth."""
    places = {k: v for k, v in reference.attributes.items() if k in ("grid_mapping", "coordinates")}
    if name == "prediction":
        kept = {key for key in target.keys() - _OWN if not grids.MARKS.fullmatch(key)}
        return places | {key: value for key, value in target.items() if key in kept}
    title = _TITLES.get(name, "").format(target.get("long_name", target_name))
    units = {"units": target["units"]} if title and "units" in target else {}
    return places | units | ({"long_name": title.strip()} if title and target_name else {})
