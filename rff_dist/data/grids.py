"""Grids as rows: each cell of variables over common dimensions is a row, unless one of them misses it."""

from __future__ import annotations

import base64
import colorsys
import hashlib
import logging
import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import blocks, columns, labelled, memory
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.typing import AnyArray, AnyDType, BoolArray, Facts, FloatArray, IndexArray, Summary

_log = logging.getLogger(__name__)
# A daily field of 721 x 1,440 points, and a tile of 1,024 x 1,024, are read whole.
MAX_CELLS = 2**20
_READERS = 4  # pieces that are read at once when cells are counted
_SAMPLED = 8  # pieces whose values enter the fingerprint
TIME_PARTS = ("days", "sin", "cos")  # since 1970; of the day of the year
# Attributes of values that mean a missing cell: CF's, and those of programs that handle maps.
MARKS = re.compile("_?fill_?value|missing_?value|no_?data(_?val(ue)?s?)?", re.IGNORECASE)
# What describes a coordinate reference system. Well-known text ends in its number, if it has one.
_SYSTEM = re.compile(
    "crs_wkt|spatial_ref|grid_mapping_name|standard_parallel|.*_(meridian|projection_origin)"
)
_EPSG = re.compile(r'(?:ID|AUTHORITY)\["EPSG",\s*"?(\d+)"?\]\]\s*$')

type Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Variable(ABC):
    """A variable of a grid.

    `chunks`: lengths of what is stored together.
    `dtype`: of what `read` returns: a float for any variable with missing cells.
    `may_miss`: whether cells may be missing, and then are NaN.
    `is_time`: whether values are days since 1970.
    `attributes`: as stored, such as units.
    `can_travel`: whether other processes can read it.
    `fill`: the Zarr array's fill value, where nothing else says that it means a missing cell.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: AnyDType
    may_miss: bool
    is_time: bool
    attributes: Facts
    can_travel: bool
    fill: Any

    @abstractmethod
    def read(self, region: Slices) -> AnyArray:
        """Return the values of a region of the variable's own dimensions."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise ConflictError if the values are no longer those that were opened."""


@dataclass(frozen=True)
class Grid:
    """Dimensions, and the pieces in which cells are read: whole chunks, or equal parts of a large one.

    `chunks`: lengths of the largest chunks of all variables; `piece`: of a piece.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    piece: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Pieces along each dimension."""
        return tuple(-(-n // length) for n, length in zip(self.shape, self.piece, strict=True))

    def region(self, number: int) -> Slices:
        """Return the cells of a piece."""
        places = np.unravel_index(number, self.counts)
        spans = zip(places, self.piece, self.shape, strict=True)
        return tuple(slice(int(i) * length, min((int(i) + 1) * length, n)) for i, length, n in spans)


def cut_grid(dims: tuple[str, ...], shape: tuple[int, ...], chunks: tuple[int, ...], row_bytes: int) -> Grid:
    """Cut a grid into pieces.

    >>> cut_grid(("time", "lat"), (400, 10), (100, 10), 8).piece
    (400, 10)
    >>> cut_grid(("y", "x"), (4096, 4096), (2048, 2048), 8).piece
    (1024, 1024)
    """
    piece = chunks = tuple(max(1, min(pair)) for pair in zip(chunks, shape, strict=True))
    most = max(1, min(MAX_CELLS, blocks.MAX_BLOCK_BYTES // max(1, row_bytes)))
    while math.prod(piece) > most:
        longest = piece.index(max(piece))
        piece = tuple(-(-n // 2) if i == longest else n for i, n in enumerate(piece))
    while 2 * math.prod(piece) <= 2 * blocks.MIN_BLOCK_ROWS and piece != shape:
        last = max(i for i, n in enumerate(shape) if piece[i] < n)
        piece = tuple(min(2 * n, shape[i]) if i == last else n for i, n in enumerate(piece))
    return Grid(dims, shape, chunks, piece)


@dataclass(frozen=True)
class Column:
    """A column of X: a variable, or a part of a time.

    `part`: one of `TIME_PARTS`; "" for the values themselves.
    """

    variable: Variable
    part: str = ""

    @property
    def name(self) -> str:
        return f"{self.variable.name}.{self.part}" if self.part else self.variable.name

    def of(self, values: AnyArray) -> AnyArray:
        """Return the column of the variable's values."""
        if self.part in ("", "days"):
            return values
        moments = (np.nan_to_num(values) * 86400e3).astype("M8[ms]")
        year = moments.astype("M8[Y]")
        begin, end = (part.astype("M8[ms]") for part in (year, year + np.timedelta64(1, "Y")))
        turn = 2 * np.pi * ((moments - begin) / (end - begin))
        return np.where(np.isnan(values), np.nan, np.sin(turn) if self.part == "sin" else np.cos(turn))


def columns_of(names: Sequence[str], find: Any) -> list[Column]:
    """Return the columns of named inputs; a time becomes its days, and sine and cosine of the day of year.

    `find`: returns the variable of a name, or None.
    Raises InvalidParameterError if a name is no variable, or is repeated.
    """
    found: list[Column] = []
    for name in names:
        variable = find(name)
        stem, _, part = name.rpartition(".")
        if variable is None and part in TIME_PARTS and (of := find(stem)) is not None and of.is_time:
            found.append(Column(of, part))
        elif variable is None:
            raise InvalidParameterError(
                f"`inputs` has {name!r}, which is no variable of the grid; expected variables or coordinates"
            )
        else:
            found += [Column(variable, part) for part in (TIME_PARTS if variable.is_time else ("",))]
    names = [column.name for column in found]
    if len(set(names)) < len(names):
        raise InvalidParameterError(f"`inputs` are {names}; expected different ones")
    return found


@dataclass(frozen=True, eq=False)
class GridDataset(blocks.Dataset):
    """The cells of a grid as rows: piece by piece, and in the order of the dimensions within a piece.

    Cells that an input, a target or the weight misses are no rows.

    `grid`: its dimensions and pieces.
    `inputs`: the columns of X.
    `targets`: variables to predict; none for rows without y.
    `known`: variables that are not read as targets, and without which a cell is no row.
    `weight`: variable of sample weights, or None.
    `cells_of`: int64 array of shape (n_pieces,). Rows of each piece.
    `cuts`: variables and the ascending values at which they are cut; cells between the same ones are a group.
    `reference`: of `reference_of`.
    """

    grid: Grid
    inputs: tuple[Column, ...]
    targets: tuple[Variable, ...]
    weight: Variable | None
    cells_of: NDArray[np.int64]
    url: str | None = None
    version: str | None = None
    missing_chunks: str = "error"
    known: tuple[Variable, ...] = ()
    cuts: tuple[tuple[Variable, FloatArray], ...] = ()
    reference: Mapping[str, str] = field(default_factory=dict)

    @property
    def feature_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(column.name for column in self.inputs)

    @property
    def target_names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        return tuple(variable.name for variable in self.targets) or None

    @cached_property
    def edges(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.cells_of)])

    @property
    def n_samples(self) -> int:
        return int(self.edges[-1])

    @property
    def n_features(self) -> int:
        return len(self.inputs)

    @property
    def n_targets(self) -> int:
        return len(self.targets)

    @property
    def one_dimensional(self) -> bool:
        return len(self.targets) == 1

    @property
    def weighted(self) -> bool:
        return self.weight is not None

    @property
    def dtype(self) -> AnyDType:
        return np.result_type(*(column.variable.dtype for column in self.inputs))

    @property
    def chunk_rows(self) -> int:
        return max(1, int(self.cells_of.max(initial=1)))

    @property
    def variables(self) -> list[Variable]:
        """All that decide which cells are rows."""
        others = [column.variable for column in self.inputs]
        weight = [] if self.weight is None else [self.weight]
        found = [*others, *self.targets, *self.known, *weight]
        return list(dict.fromkeys(found))

    def read(self, block: blocks.Block) -> blocks.Rows:
        parts = []
        for number in self._pieces(block.start, block.stop):
            first = self.edges[number]
            part = slice(max(0, block.start - first), block.stop - first)
            piece = self._read_piece(number)
            parts.append([None if rows is None else rows[part] for rows in piece])
        joined: list[Any] = [
            None if rows[0] is None else rows[0] if len(rows) == 1 else np.concatenate(rows)
            for rows in zip(*parts, strict=True)
        ]
        X, y, weight, groups, cells = joined
        return blocks.Rows(block, X, y, weight, groups=groups, cells=cells)

    def take(self, indices: IndexArray, /) -> memory.Sample:
        return memory.Sample(*self.gather(indices)[:3])

    def gather(self, indices: IndexArray) -> tuple[Any, Any, Any, Any]:
        """Return X, y, weights and groups of single rows, in the order of `indices`; a piece is read once."""
        wanted = memory.check_indices(indices, self.n_samples)
        X = np.empty((len(wanted), self.n_features), self.dtype)
        y = np.empty((len(wanted), self.n_targets)) if self.targets else None
        weight = np.empty(len(wanted)) if self.weighted else None
        groups = np.empty(len(wanted), np.int64) if self.cuts else None
        gathered = (X, y, weight, groups)
        pieces = np.searchsorted(self.edges, wanted, side="right") - 1
        for number in np.unique(pieces).tolist():
            here = np.flatnonzero(pieces == number)
            for part, read in zip(gathered, self._read_piece(number)[:4], strict=True):
                if part is not None:
                    part[here] = read[wanted[here] - self.edges[number]]
        return gathered

    def read_weight(self, block: blocks.Block) -> FloatArray | None:
        return None if self.weight is None else self.read(block).sample_weight

    def read_groups(self, block: blocks.Block) -> AnyArray | None:
        return self.read(block).groups if self.cuts else None

    def read_targets(self) -> FloatArray | None:
        y = self.read(blocks.Block(0, 0, self.n_samples)).y if self.targets else None
        return y[:, 0] if y is not None and self.one_dimensional else y

    def without_targets(self) -> GridDataset:
        return replace(self, targets=(), known=(*self.known, *self.targets))

    def fingerprint(self) -> str:
        """Return a digest of the shape, the number of rows in each piece, and the rows of up to 8 pieces."""
        facts = [self.grid, self.feature_names, self.target_names, self.dtype.str]
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(self.cells_of.tobytes())
        pieces = np.flatnonzero(self.cells_of)
        for number in np.unique(pieces[np.linspace(0, len(pieces) - 1, _SAMPLED).astype(np.intp)]).tolist():
            for rows in self._read_piece(number)[:3]:
                digest.update(b"|" if rows is None else memory.as_bytes(rows))
        return digest.hexdigest()

    def prefix_fingerprint(self, n_samples: int) -> str | None:
        return memory.prefix_digest(self, n_samples)

    def can_travel(self) -> bool:
        return all(variable.can_travel for variable in self.variables)

    def check_unchanged(self) -> None:
        for variable in self.variables:
            variable.check_unchanged()

    def grouped(self, sizes: Mapping[Variable, float]) -> labelled.GroupedDataset:
        """Return the same rows, grouped by blocks of a size along each variable, in its units or days."""
        cuts = []
        for variable, size in sizes.items():
            values = read_whole(variable)
            low, high = np.nanmin(values), np.nanmax(values)
            cuts.append((variable, low + size * np.arange(1, math.floor((high - low) / size) + 1)))
        return self.cut(*cuts)

    def folded(self, time: Variable, n_folds: int) -> labelled.GroupedDataset:
        """Return the same rows, whose groups are folds of equally many moments of a time, the earliest first.

        Raises DataError if there are fewer moments than folds.
        """
        moments = np.unique(read_whole(time))
        if len(moments) < n_folds:
            raise DataError(f"{time.name!r} has {len(moments)} moments, fewer than `n_folds`={n_folds}")
        return self.cut((time, moments[-(-np.arange(1, n_folds) * len(moments) // n_folds)]))

    def cut(self, *cuts: tuple[Variable, FloatArray]) -> labelled.GroupedDataset:
        """Return the same rows, grouped by variables and the ascending values at which they are cut."""
        dataset = replace(self, cuts=cuts)
        return labelled.GroupedDataset(dataset, GridColumn(dataset, "groups"))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{dim}: {n:_}" for dim, n in zip(self.grid.dims, self.grid.shape, strict=True))
        return (
            f"GridDataset({sizes}; {self.n_samples:_} of {math.prod(self.grid.shape):_} cells, "
            f"{self.n_features} features, {self.n_targets} targets, {self.dtype})"
        )

    def _pieces(self, start: int, stop: int) -> Iterator[int]:
        """Yield the pieces that hold rows `start:stop`."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        return (number for number in range(first, max(last, first + 1)) if self.cells_of[number])

    def _read_piece(self, number: int) -> tuple[Any, ...]:
        """Return X, y, weight, groups and positions of a piece's rows; the last piece read is kept."""
        kept = vars(self).get("_kept")
        if kept is not None and kept[0] == number:  # a piece may be several blocks, one after the other
            return kept[1]  # type: ignore[no-any-return]
        region = self.grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        found = {variable: read_aligned(variable, self.grid, region) for variable in self.variables}
        here = _present(found.values(), shape)

        def rows_of(values: AnyArray, dtype: Any = np.float64) -> AnyArray:
            return np.broadcast_to(values, shape)[here].astype(dtype, copy=False)

        cells = np.flatnonzero(here.ravel())
        if len(cells) != self.cells_of[number]:
            raise DataError(
                f"{len(cells):_} cells of piece {number} of the grid are rows, and {self.cells_of[number]:_} "
                "were when it was opened: it was changed meanwhile. Open it again"
            )
        X = np.empty((len(cells), self.n_features), self.dtype)
        for j, column in enumerate(self.inputs):
            X[:, j] = rows_of(column.of(found[column.variable]), self.dtype)
        y = [rows_of(found[variable]) for variable in self.targets]
        weight = None if self.weight is None else rows_of(found[self.weight])
        groups = self._groups(region)
        groups = None if groups is None else rows_of(groups, np.int64)
        piece = X, np.stack(y, axis=1) if y else None, weight, groups, cells
        object.__setattr__(self, "_kept", (number, piece))
        return piece

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_kept", "edges")}

    def _groups(self, region: Slices) -> AnyArray | None:
        """Return the groups of all cells of a region, to be broadcast; None without groups."""
        groups: Any = 0
        for variable, cut in self.cuts:
            values = read_aligned(variable, self.grid, region)
            groups = groups * (len(cut) + 1) + np.searchsorted(cut, values, side="right")
        return np.asarray(groups) if self.cuts else None


def read_aligned(variable: Variable, grid: Grid, region: Slices) -> AnyArray:
    """Read a region of a variable, with all dimensions of the grid: of length 1 if it lacks one."""
    values = variable.read(tuple(region[grid.dims.index(dim)] for dim in variable.dims))
    order = sorted(range(len(variable.dims)), key=lambda axis: grid.dims.index(variable.dims[axis]))
    lengths = dict(zip(variable.dims, values.shape, strict=True))
    return values.transpose(order).reshape([lengths.get(dim, 1) for dim in grid.dims])


def read_whole(variable: Variable) -> AnyArray:
    """Return all values of a variable."""
    return variable.read(tuple(slice(0, n) for n in variable.shape))


def _present(parts: Any, shape: tuple[int, ...]) -> BoolArray:
    """Return which cells no variable misses."""
    floats = [~np.isnan(part) for part in parts if part.dtype.kind == "f"]
    return np.broadcast_to(reduce(operator.and_, floats, np.ones((1,) * len(shape), bool)), shape)


def grid_of(
    inputs: Sequence[Column],
    targets: Sequence[Variable] = (),
    weight: Variable | None = None,
    *,
    like: Variable | None = None,
    **facts: Any,
) -> GridDataset:
    """Make a dataset of variables, and count the cells that none of them misses, which reads them once.

    `like`: gives the order of the dimensions, and chunks, where no input or target has all dimensions.
    Raises DataError if sizes of a dimension differ, an input has a dimension that a target lacks, or no cell
      has all variables.
    """
    variables = [*targets, *(column.variable for column in inputs), *([] if weight is None else [weight])]
    variables = variables if like is None else [like, *variables]
    sizes: dict[str, tuple[int, str]] = {}
    for variable in variables:
        for dim, n in zip(variable.dims, variable.shape, strict=True):
            known, other = sizes.setdefault(dim, (n, variable.name))
            if known != n:
                raise DataError(
                    f"{other!r} has {known:_} cells along {dim!r}, and {variable.name!r} has {n:_}; "
                    "expected one grid. Select or interpolate them to the same coordinates"
                )
            if targets and dim not in targets[0].dims:
                raise DataError(
                    f"{variable.name!r} has the dimension {dim!r}, and {targets[0].name!r} has "
                    f"{list(targets[0].dims)}; expected a target for each cell. Select or average over "
                    "it, or make a variable of each of its places (xarray's `to_dataset`)"
                )
    dims = tuple(sizes)
    whole = [v for v in variables if len(v.dims) == len(dims)] or variables
    stored = [dict(zip(v.dims, v.chunks, strict=True)) for v in whole]
    chunks = tuple(max(lengths.get(dim, 1) for lengths in stored) for dim in dims)
    row_bytes = 8 * (len(inputs) + len(targets) + 1)
    grid = cut_grid(dims, tuple(sizes[dim][0] for dim in dims), chunks, row_bytes)
    n_cells = np.zeros(math.prod(grid.counts), np.int64)
    dataset = GridDataset(grid, tuple(inputs), tuple(targets), weight, n_cells, **facts)
    missing = [variable for variable in dataset.variables if variable.may_miss]
    filled: set[Variable] = set()

    def count(number: int) -> int:
        region = grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        parts = {variable: read_aligned(variable, grid, region) for variable in missing}
        filled.update(v for v, part in parts.items() if v.fill is not None and np.isnan(part).any())
        return int(_present(parts.values(), shape).sum())

    with ThreadPoolExecutor(_READERS) as pool:
        n_cells[:] = list(pool.map(count, range(len(n_cells))))
    for variable in sorted(filled, key=lambda variable: variable.name):
        warn_of_fill(variable.name, variable.fill)
    if not n_cells.any():
        names = [variable.name for variable in dataset.variables]
        raise DataError(f"no cell has values of all of {names}; expected one at least. Leave some out")
    return dataset


def repeated_reads(dataset: GridDataset) -> dict[str, float]:
    """Return how many times over the chunks of a variable are decoded in a pass, where more than once."""
    grid, times = dataset.grid, {}
    for variable in dataset.variables:
        factor = 1.0
        for dim, n, chunk in zip(variable.dims, variable.shape, variable.chunks, strict=True):
            starts = range(0, n, grid.piece[grid.dims.index(dim)])
            ends = [*starts[1:], n]
            spans = [-(-end // chunk) - start // chunk for start, end in zip(starts, ends, strict=True)]
            factor *= sum(spans) / -(-n // chunk)
        if factor > 1 and len(variable.dims) > 1:
            times[variable.name] = factor
    return times


@dataclass(frozen=True, eq=False)
class GridColumn:
    """The groups of a grid's rows, or their one target as labels of whole numbers: a `columns.Column`.

    `part`: {"groups", "y"}. Of the rows.
    """

    dataset: GridDataset
    part: str

    dtype = np.dtype(np.int64)

    @property
    def n_samples(self) -> int:
        return self.dataset.n_samples

    @property
    def chunk_rows(self) -> int:
        return self.dataset.chunk_rows

    @property
    def in_memory(self) -> bool:
        return not self.dataset.can_travel()

    def read(self, block: blocks.Block) -> AnyArray:
        values = getattr(self.dataset.read(block), self.part)
        return self._whole(values, np.arange(block.start, block.stop))

    def take(self, indices: IndexArray) -> AnyArray:
        _, y, _, groups = self.dataset.gather(indices)
        return self._whole(groups if self.part == "groups" else y, indices)

    def fingerprint(self) -> str:
        return self.dataset.fingerprint()

    def _whole(self, values: AnyArray, rows: IndexArray) -> AnyArray:
        if self.part == "groups":
            return values
        assert self.dataset.target_names is not None
        return columns.check_values(values[:, 0], self.dataset.target_names[0], rows).astype(np.int64)


def mappings_of(variables: Sequence[Variable]) -> set[str]:
    """Return the names of the grid mappings of variables; where none is named, the usual ones."""
    listed = [str(variable.attributes.get("grid_mapping", "")).split() for variable in variables]
    # of several ("utm: x y geographic: lat lon") the first
    return {words[0].rstrip(":") for words in listed if words} or {"spatial_ref", "crs"}


def reference_of(attributes: Sequence[Facts]) -> dict[str, str]:
    """Return the one coordinate reference system of grid mappings; raises DataError if they differ."""
    found: dict[str, str] = {}
    for key, value in ((k, v) for of in attributes for k, v in of.items() if _SYSTEM.fullmatch(k)):
        # numbers in one form: attributes may hold 3, 3.0, lists or arrays
        system = value if isinstance(value, str) else str(np.ravel(value).astype(float).tolist())
        if (match := _EPSG.search(system)) is not None:
            system = f"EPSG:{match[1]}"
        if found.setdefault(key, system) != system:
            raise DataError(
                f"there are several coordinate reference systems: {key!r} is {found[key][:60]!r} and "
                f"{system[:60]!r}; expected one, for training and prediction too. Reproject to one grid first"
            )
    return found


# -- missing cells ---------------------------------------------------------------------------------


def marks_of(attributes: Facts, dtype: AnyDType, *more: Any) -> AnyArray:
    """Return the values of a dtype that mean a missing cell, by a variable's attributes; NaN in any case.

    `more`: further values. Of all values only those count that the dtype has.
    """
    named = [*more, *(value for key, value in attributes.items() if MARKS.fullmatch(key))]
    numbers = [_number(one) for value in named for one in np.ravel(np.array(value, object))]
    values: list[Any] = [number for number in numbers if isinstance(number, Real) and number == number]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            marks = np.array(values, dtype)
        return np.unique(marks[np.isfinite(marks)])
    if dtype.kind not in "iu":
        return np.empty(0, dtype)
    limits = np.iinfo(dtype)
    whole = (number for number in values if limits.min <= number <= limits.max and number == int(number))
    return np.unique(np.array([*whole], dtype))


def warn_of_fill(name: str, fill: Any) -> None:
    """Log that a fill value is taken for missing cells, though no attribute says so."""
    _log.warning(
        "cells of %r that hold the fill value of its Zarr array, %s, are taken as missing, since GDAL "
        "marks missing cells so. If they hold values, write the array with another fill value",
        name,
        fill,
    )


def _number(value: Any) -> Any:
    """Return a number that may be stored as text: as digits, or by xarray as base64 of its bytes."""
    if not isinstance(value, str):
        return value
    for read in (int, float, lambda text: np.frombuffer(base64.b64decode(text), "<f8").item()):
        with suppress(ValueError):
            return read(value)
    return None


# -- classes ---------------------------------------------------------------------------------------


def flags_of(meanings: Mapping[int, str]) -> Summary:
    """Return CF's attributes of labels, with a colour of each: hues a golden section apart."""
    if not meanings:
        return {}
    words = ["_".join(meaning.split()) for meaning in meanings.values()]
    if len(set(words)) < len(words):
        words = [f"{word}_{value}" for word, value in zip(words, meanings, strict=True)]
    hues = [(i * 0.618034 % 1, 0.45 + 0.2 * (i // 2 % 2), 0.6) for i in range(len(meanings))]
    parts = (colorsys.hls_to_rgb(*hue) for hue in hues)
    colours = ["#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in parts]
    texts = {"flag_meanings": " ".join(words), "flag_colors": " ".join(colours)}
    return {"flag_values": [*meanings], **texts}
