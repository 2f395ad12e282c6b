"""Grids as rows: each cell of variables over common dimensions is a row.

Weather fields and satellite images come as variables with named dimensions. A cell is
no row if a variable misses it, so rows are counted once, when a grid is opened. Cells
are read piece by piece, whole chunks at a time, because tables of rows would repeat
coordinates and lose the chunks.
"""

from __future__ import annotations

import base64
import colorsys
import hashlib
import logging
import math
import operator
import re
import unicodedata
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
from rff_dist.typing import (
    AnyArray,
    AnyDType,
    BoolArray,
    Facts,
    FloatArray,
    IndexArray,
    Summary,
)

_log = logging.getLogger(__name__)
# A daily field of 721 x 1,440 points, and a tile of 1,024 x 1,024, are read whole.
MAX_CELLS = 2**20
_READERS = 4  # pieces that are read at once when cells are counted
_SAMPLED = 8  # pieces whose values enter the fingerprint
TIME_PARTS = ("days", "sin", "cos")  # since 1970; of the day of the year
# Attributes of values that mean a missing cell: CF's, and those of programs that handle
# maps.
MARKS = re.compile(
    "_?fill_?value|missing_?value|no_?data(_?val(ue)?s?)?", re.IGNORECASE
)
# What describes a coordinate reference system. Well-known text ends in its number, if
# it has one.
_SYSTEM = re.compile(
    "crs_wkt|spatial_ref|grid_mapping_name|standard_parallel|.*_(meridian|projection_origin)"
)
_EPSG = re.compile(r'(?:ID|AUTHORITY)\["EPSG",\s*"?(\d+)"?\]\]\s*$')

type Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Variable(ABC):
    """A variable of a grid."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    #: Lengths of what is stored together.
    chunks: tuple[int, ...]
    #: Of what `read` returns; a float if cells may be missing.
    dtype: AnyDType
    #: Whether cells may be missing, and then are NaN.
    may_miss: bool
    #: Whether values are days since 1970.
    is_time: bool
    #: As stored, such as units.
    attributes: Facts
    #: Whether other processes can read it.
    can_travel: bool
    #: The Zarr array's fill value, where nothing else says that it means a missing
    #: cell.
    fill: Any

    @abstractmethod
    def read(self, region: Slices) -> AnyArray:
        """Return the values of a region of the variable's own dimensions."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise ConflictError if the values are no longer those that were opened."""


@dataclass(frozen=True)
class Grid:
    """Dimensions, and the pieces in which cells are read: whole chunks, or equal parts
    of a large one.
    """

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    #: Lengths of the largest chunks of all variables.
    chunks: tuple[int, ...]
    #: Lengths of a piece.
    piece: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Pieces along each dimension."""
        return tuple(
            -(-n // length) for n, length in zip(self.shape, self.piece, strict=True)
        )

    def region(self, number: int) -> Slices:
        """Return the cells of a piece."""
        places = np.unravel_index(number, self.counts)
        spans = zip(places, self.piece, self.shape, strict=True)
        return tuple(
            slice(int(i) * length, min((int(i) + 1) * length, n))
            for i, length, n in spans
        )


def cut_grid(
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    row_bytes: int,
) -> Grid:
    """Cut a grid into pieces.

    >>> cut_grid(("time", "lat"), (400, 10), (100, 10), 8).piece
    (400, 10)
    >>> cut_grid(("y", "x"), (4096, 4096), (2048, 2048), 8).piece
    (1024, 1024)
    """
    piece = chunks = tuple(
        max(1, min(pair)) for pair in zip(chunks, shape, strict=True)
    )
    most = max(1, min(MAX_CELLS, blocks.MAX_BLOCK_BYTES // max(1, row_bytes)))
    while math.prod(piece) > most:
        longest = piece.index(max(piece))
        piece = tuple(-(-n // 2) if i == longest else n for i, n in enumerate(piece))
    while 2 * math.prod(piece) <= 2 * blocks.MIN_BLOCK_ROWS and piece != shape:
        last = max(i for i, n in enumerate(shape) if piece[i] < n)
        piece = tuple(
            min(2 * n, shape[i]) if i == last else n for i, n in enumerate(piece)
        )
    return Grid(dims, shape, chunks, piece)


@dataclass(frozen=True)
class GridInput:
    """A column of X: a variable, a part of a time, or the codes of a category."""

    variable: Variable
    #: One of `TIME_PARTS`; "" for the values themselves.
    part: str = ""
    #: Of a category: the text of each stored value.
    meanings: Mapping[Any, str] = field(default_factory=dict, hash=False)
    #: Of a category: the texts that rows have, in the order of their first rows.
    levels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.variable.name}.{self.part}" if self.part else self.variable.name

    @property
    def dtype(self) -> AnyDType:
        return np.dtype(np.float32) if self.meanings else self.variable.dtype

    @property
    def encoder(self) -> Facts:
        """The column in the JSON of a recipe, a room above."""
        if not self.meanings:
            return {"kind": "number", "column": self.name}
        return {"kind": "category", "column": self.name, "levels": [*self.levels]}

    def texts_of(self, values: AnyArray) -> list[str]:
        """Return the texts of values of a category, each once, in their order."""
        distinct, first = np.unique(values, return_index=True)
        ordered = distinct[np.argsort(first)].tolist()
        return [self.meanings.get(value, columns.MISSING) for value in ordered]

    def of(self, values: AnyArray) -> AnyArray:
        """Return the column of the variable's values."""
        if self.meanings:
            place_of = {text: place for place, text in enumerate(self.levels)}
            distinct, inverse = np.unique(values, return_inverse=True)
            texts = [self.meanings.get(v, columns.MISSING) for v in distinct.tolist()]
            codes = [place_of.get(text, len(self.levels)) for text in texts]
            return np.array(codes, self.dtype)[inverse].reshape(values.shape)
        if self.part in ("", "days"):
            return values
        moments = (np.nan_to_num(values) * 86400e3).astype("M8[ms]")
        year = moments.astype("M8[Y]")
        begin, end = (
            part.astype("M8[ms]") for part in (year, year + np.timedelta64(1, "Y"))
        )
        turn = 2 * np.pi * ((moments - begin) / (end - begin))
        return np.where(
            np.isnan(values),
            np.nan,
            np.sin(turn) if self.part == "sin" else np.cos(turn),
        )


def columns_of(names: Sequence[str], find: Any) -> list[GridInput]:
    """Return the columns of named inputs, of which `find` gives the variable or None.

    A time becomes its days, and sine and cosine of the day of the year. Raises
    InvalidParameterError if a name is no variable, or is repeated.
    """
    found: list[GridInput] = []
    for name in names:
        variable = find(name)
        stem, _, part = name.rpartition(".")
        if (
            variable is None
            and part in TIME_PARTS
            and (of := find(stem)) is not None
            and of.is_time
        ):
            found.append(GridInput(of, part))
        elif variable is None:
            raise InvalidParameterError(
                f"`inputs` has {name!r}, which is no variable of the grid; expected"
                " variables or coordinates"
            )
        else:
            parts = TIME_PARTS if variable.is_time else ("",)
            meanings = meanings_of(variable)
            found += [GridInput(variable, part, meanings) for part in parts]
    names = [column.name for column in found]
    if len(set(names)) < len(names):
        raise InvalidParameterError(f"`inputs` are {names}; expected different ones")
    return found


@dataclass(frozen=True, eq=False)
class GridDataset(blocks.Dataset):
    """The cells of a grid as rows: piece by piece, and in the order of the dimensions
    within a piece.

    Cells that an input, a target or the weight misses are no rows.
    """

    #: Its dimensions and pieces.
    grid: Grid
    #: The columns of X.
    inputs: tuple[GridInput, ...]
    #: Variables to predict; none for rows without y.
    targets: tuple[Variable, ...]
    #: Variable of sample weights, or None.
    weight: Variable | None
    #: Rows of each piece; shape (n_pieces,).
    cells_of: NDArray[np.int64]
    url: str | None = None
    version: str | None = None
    missing_chunks: str = "error"
    #: Variables that are not read as targets, and without which a cell is no row.
    known: tuple[Variable, ...] = ()
    #: Variables and the ascending values at which they are cut; cells between the same
    #: ones are a group.
    cuts: tuple[tuple[Variable, FloatArray], ...] = ()
    #: The coordinate reference system, from `reference_of`.
    reference: Mapping[str, str] = field(default_factory=dict)

    @property
    def attributes(self) -> Facts:  # type: ignore[override]  # derived from the inputs
        """The recipe of a table with the same columns, if some are categories."""
        if not any(column.meanings for column in self.inputs):
            return {}
        encoders = [column.encoder for column in self.inputs]
        return {"recipe": {"format": 2, "columns": encoders}}

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
        return np.result_type(*(column.dtype for column in self.inputs))

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
            (
                None
                if rows[0] is None
                else rows[0]
                if len(rows) == 1
                else np.concatenate(rows)
            )
            for rows in zip(*parts, strict=True)
        ]
        X, y, weight, groups, cells = joined
        return blocks.Rows(block, X, y, weight, groups=groups, cells=cells)

    def take(self, indices: IndexArray, /) -> memory.Sample:
        return memory.Sample(*self.gather(indices)[:3])

    def gather(self, indices: IndexArray) -> tuple[Any, Any, Any, Any]:
        """Return X, y, weights and groups of single rows, in the order of `indices`; a
        piece is read once.
        """
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
        """Return a digest of the shape, the number of rows in each piece, and the rows
        of up to 8 pieces.
        """
        facts = [self.grid, self.feature_names, self.target_names, self.dtype.str]
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(self.cells_of.tobytes())
        pieces = np.flatnonzero(self.cells_of)
        for number in np.unique(
            pieces[np.linspace(0, len(pieces) - 1, _SAMPLED).astype(np.intp)]
        ).tolist():
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
        """Group rows by blocks of a size along each variable, in its units or days."""
        cuts = []
        for variable, size in sizes.items():
            values = read_whole(variable)
            low = np.nanmin(values)
            high = np.nanmax(values)
            cuts.append(
                (
                    variable,
                    low + size * np.arange(1, math.floor((high - low) / size) + 1),
                )
            )
        return self.cut(*cuts)

    def folded(self, time: Variable, n_folds: int) -> labelled.GroupedDataset:
        """Group rows into folds of equally many moments of a time, the earliest first.

        Raises DataError if there are fewer moments than folds.
        """
        moments = np.unique(read_whole(time))
        if len(moments) < n_folds:
            raise DataError(
                f"{time.name!r} has {len(moments)} moments, fewer than"
                f" `n_folds`={n_folds}"
            )
        return self.cut(
            (time, moments[-(-np.arange(1, n_folds) * len(moments) // n_folds)])
        )

    def cut(self, *cuts: tuple[Variable, FloatArray]) -> labelled.GroupedDataset:
        """Group rows by variables and the ascending values at which they are cut."""
        dataset = replace(self, cuts=cuts)
        return labelled.GroupedDataset(dataset, GridColumn(dataset, "groups"))

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{dim}: {n:_}"
            for dim, n in zip(self.grid.dims, self.grid.shape, strict=True)
        )
        return (
            f"GridDataset({sizes}; {self.n_samples:_} of {math.prod(self.grid.shape):_}"
            f" cells, {self.n_features} features, {self.n_targets} targets,"
            f" {self.dtype})"
        )

    def _pieces(self, start: int, stop: int) -> Iterator[int]:
        """Yield the pieces that hold rows `start:stop`."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        return (
            number
            for number in range(first, max(last, first + 1))
            if self.cells_of[number]
        )

    def _read_piece(self, number: int) -> tuple[Any, ...]:
        """Return X, y, weight, groups and positions of a piece's rows."""
        kept = vars(self).get("_kept")
        # a piece may be several blocks, one after the other
        if kept is not None and kept[0] == number:
            return kept[1]  # type: ignore[no-any-return]
        region = self.grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        found = {
            variable: read_aligned(variable, self.grid, region)
            for variable in self.variables
        }
        here = _present(found.values(), shape)

        def rows_of(values: AnyArray, dtype: Any = np.float64) -> AnyArray:
            return np.broadcast_to(values, shape)[here].astype(dtype, copy=False)

        cells = np.flatnonzero(here.ravel())
        if len(cells) != self.cells_of[number]:
            raise DataError(
                f"{len(cells):_} cells of piece {number} of the grid are rows, and"
                f" {self.cells_of[number]:_} were when it was opened: it was changed"
                " meanwhile. Open it again"
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
        return {
            name: value
            for name, value in vars(self).items()
            if name not in ("_kept", "edges")
        }

    def _groups(self, region: Slices) -> AnyArray | None:
        """Return the groups of all cells of a region, to be broadcast; None without
        groups.
        """
        groups: Any = 0
        for variable, cut in self.cuts:
            values = read_aligned(variable, self.grid, region)
            groups = groups * (len(cut) + 1) + np.searchsorted(
                cut, values, side="right"
            )
        return np.asarray(groups) if self.cuts else None


def read_aligned(variable: Variable, grid: Grid, region: Slices) -> AnyArray:
    """Read a region of a variable with all dimensions of the grid."""
    values = variable.read(tuple(region[grid.dims.index(dim)] for dim in variable.dims))
    order = sorted(
        range(len(variable.dims)), key=lambda axis: grid.dims.index(variable.dims[axis])
    )
    lengths = dict(zip(variable.dims, values.shape, strict=True))
    return values.transpose(order).reshape([lengths.get(dim, 1) for dim in grid.dims])


def read_whole(variable: Variable) -> AnyArray:
    """Return all values of a variable."""
    return variable.read(tuple(slice(0, n) for n in variable.shape))


def _present(parts: Any, shape: tuple[int, ...]) -> BoolArray:
    """Return which cells no variable misses."""
    floats = [~np.isnan(part) for part in parts if part.dtype.kind == "f"]
    return np.broadcast_to(
        reduce(operator.and_, floats, np.ones((1,) * len(shape), bool)), shape
    )


def grid_of(
    inputs: Sequence[GridInput],
    targets: Sequence[Variable] = (),
    weight: Variable | None = None,
    *,
    like: Variable | None = None,
    **facts: Any,
) -> GridDataset:
    """Make a dataset of variables; count its rows and find the levels of categories,
    which reads them once.

    `like` gives the order of the dimensions, and chunks, if no input or target has all
    dimensions. Raises DataError if sizes of a dimension differ, an input has a
    dimension that a target lacks, or no cell has all variables.
    """
    variables = [
        *targets,
        *(column.variable for column in inputs),
        *([] if weight is None else [weight]),
    ]
    variables = variables if like is None else [like, *variables]
    sizes: dict[str, tuple[int, str]] = {}
    for variable in variables:
        for dim, n in zip(variable.dims, variable.shape, strict=True):
            known, other = sizes.setdefault(dim, (n, variable.name))
            if known != n:
                raise DataError(
                    f"{other!r} has {known:_} cells along {dim!r}, and"
                    f" {variable.name!r} has {n:_}; expected one grid. Select or"
                    " interpolate them to the same coordinates"
                )
            if targets and dim not in targets[0].dims:
                raise DataError(
                    f"{variable.name!r} has the dimension {dim!r}, and"
                    f" {targets[0].name!r} has {list(targets[0].dims)}; expected a"
                    " target for each cell. Select or average over it, or make a"
                    " variable of each of its places (xarray's `to_dataset`)"
                )
    dims = tuple(sizes)
    whole = [v for v in variables if len(v.dims) == len(dims)] or variables
    stored = [dict(zip(v.dims, v.chunks, strict=True)) for v in whole]
    chunks = tuple(max(lengths.get(dim, 1) for lengths in stored) for dim in dims)
    row_bytes = 8 * (len(inputs) + len(targets) + 1)
    grid = cut_grid(dims, tuple(sizes[dim][0] for dim in dims), chunks, row_bytes)
    n_cells = np.zeros(math.prod(grid.counts), np.int64)
    dataset = GridDataset(grid, tuple(inputs), tuple(targets), weight, n_cells, **facts)
    categories = [column for column in inputs if column.meanings]
    missing = {variable for variable in dataset.variables if variable.may_miss}
    missing.update(column.variable for column in categories)
    filled: set[Variable] = set()

    def count(number: int) -> tuple[int, dict[GridInput, list[str]]]:
        """Return how many rows a piece has, and their levels of each category."""
        region = grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        parts = {variable: read_aligned(variable, grid, region) for variable in missing}
        filled.update(
            v
            for v, part in parts.items()
            if v.fill is not None and np.isnan(part).any()
        )
        here = _present(parts.values(), shape)
        levels = {}
        for column in categories:
            values = np.broadcast_to(parts[column.variable], shape)[here]
            levels[column] = column.texts_of(values)
        return int(here.sum()), levels

    with ThreadPoolExecutor(_READERS) as pool:
        counted = list(pool.map(count, range(len(n_cells))))
    n_cells[:] = [n_rows for n_rows, _ in counted]
    for variable in sorted(filled, key=lambda variable: variable.name):
        warn_of_fill(variable.name, variable.fill)
    if not n_cells.any():
        names = [variable.name for variable in dataset.variables]
        raise DataError(
            f"no cell has values of all of {names}; expected one at least. Leave"
            " some out"
        )
    columns_of_X = []
    for column in inputs:
        # levels that appended cells add come after the others
        texts = [text for _, levels in counted for text in levels.get(column, ())]
        columns_of_X.append(replace(column, levels=tuple(dict.fromkeys(texts))))
    return replace(dataset, inputs=tuple(columns_of_X))


def repeated_reads(dataset: GridDataset) -> dict[str, float]:
    """Return how many times a pass decodes a variable, if more than once."""
    grid = dataset.grid
    times = {}
    for variable in dataset.variables:
        factor = 1.0
        for dim, n, chunk in zip(
            variable.dims, variable.shape, variable.chunks, strict=True
        ):
            starts = range(0, n, grid.piece[grid.dims.index(dim)])
            ends = [*starts[1:], n]
            spans = [
                -(-end // chunk) - start // chunk
                for start, end in zip(starts, ends, strict=True)
            ]
            factor *= sum(spans) / -(-n // chunk)
        if factor > 1 and len(variable.dims) > 1:
            times[variable.name] = factor
    return times


@dataclass(frozen=True, eq=False)
class GridColumn:
    """The groups of a grid's rows, or their one target as labels of whole numbers: a
    `columns.GridInput`.
    """

    dataset: GridDataset
    #: "groups" or "y".
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
        return columns.check_values(
            values[:, 0], self.dataset.target_names[0], rows
        ).astype(np.int64)


def mappings_of(variables: Sequence[Variable]) -> set[str]:
    """Return the names of the grid mappings of variables, by default the usual ones."""
    listed = [
        str(variable.attributes.get("grid_mapping", "")).split()
        for variable in variables
    ]
    # of several ("utm: x y geographic: lat lon") the first
    return {words[0].rstrip(":") for words in listed if words} or {"spatial_ref", "crs"}


def reference_of(attributes: Sequence[Facts]) -> dict[str, str]:
    """Return the one coordinate reference system of grid mappings.

    Raises DataError if they differ.
    """
    found: dict[str, str] = {}
    for key, value in (
        (k, v) for of in attributes for k, v in of.items() if _SYSTEM.fullmatch(k)
    ):
        # numbers in one form: attributes may hold 3, 3.0, lists or arrays
        system = (
            value
            if isinstance(value, str)
            else str(np.ravel(value).astype(float).tolist())
        )
        if (match := _EPSG.search(system)) is not None:
            system = f"EPSG:{match[1]}"
        if found.setdefault(key, system) != system:
            raise DataError(
                f"there are several coordinate reference systems: {key!r} is"
                f" {found[key][:60]!r} and {system[:60]!r}; expected one, for training"
                " and prediction too. Reproject to one grid first"
            )
    return found


# -- missing cells
# ---------------------------------------------------------------------------------


def marks_of(attributes: Facts, dtype: AnyDType, *more: Any) -> AnyArray:
    """Return the values of a dtype that mean a missing cell, besides NaN.

    They are named by a variable's attributes, or in `more`; those that the dtype lacks
    do not count.
    """
    named = [
        *more,
        *(value for key, value in attributes.items() if MARKS.fullmatch(key)),
    ]
    numbers = [
        _number(one) for value in named for one in np.ravel(np.array(value, object))
    ]
    values: list[Any] = [
        number for number in numbers if isinstance(number, Real) and number == number
    ]
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            marks = np.array(values, dtype)
        return np.unique(marks[np.isfinite(marks)])
    if dtype.kind not in "iu":
        return np.empty(0, dtype)
    limits = np.iinfo(dtype)
    whole = (
        number
        for number in values
        if limits.min <= number <= limits.max and number == int(number)
    )
    return np.unique(np.array([*whole], dtype))


def warn_of_fill(name: str, fill: Any) -> None:
    """Log that a fill value is taken for missing cells, though no attribute says so."""
    _log.warning(
        "cells of %r that hold the fill value of its Zarr array, %s, are taken as"
        " missing, since GDAL marks missing cells so. If they hold values, write the"
        " array with another fill value",
        name,
        fill,
    )


def _number(value: Any) -> Any:
    """Return a number that may be stored as digits, or as base64 of its bytes."""
    if not isinstance(value, str):
        return value
    for read in (
        int,
        float,
        lambda text: np.frombuffer(base64.b64decode(text), "<f8").item(),
    ):
        with suppress(ValueError):
            return read(value)
    return None


# -- classes
# --------------------------------------------------------------------------------------


def meanings_of(variable: Variable) -> dict[Any, str]:
    """Return the text of each value of a category, by CF's `flag_values` and
    `flag_meanings`; none for a variable of numbers.

    Raises DataError if a cell may hold several flags, or their numbers differ.
    """
    attributes = variable.attributes
    if "flag_masks" in attributes:
        raise DataError(
            f"{variable.name!r} has `flag_masks`: a cell may hold several flags at"
            " once; expected numbers, or one flag in a cell (`flag_values`). Store each"
            " flag as a variable of its own, of 0 and 1"
        )
    if not {"flag_values", "flag_meanings"} <= attributes.keys():
        return {}
    words = " ".join(np.ravel(attributes["flag_meanings"]).tolist())
    texts = unicodedata.normalize("NFC", words).split()
    values = np.ravel(attributes["flag_values"]).tolist()
    if len(values) != len(texts):
        raise DataError(
            f"{variable.name!r} has {len(values)} `flag_values` and {len(texts)} words"
            " in `flag_meanings`; expected as many. Correct these attributes, or remove"
            " them if the values are numbers"
        )
    return dict(zip(values, texts, strict=True))


def flags_of(meanings: Mapping[int, str]) -> Summary:
    """Return CF's attributes of labels, with a colour of each: hues a golden section
    apart.
    """
    if not meanings:
        return {}
    words = ["_".join(meaning.split()) for meaning in meanings.values()]
    if len(set(words)) < len(words):
        words = [f"{word}_{value}" for word, value in zip(words, meanings, strict=True)]
    hues = [
        (i * 0.618034 % 1, 0.45 + 0.2 * (i // 2 % 2), 0.6) for i in range(len(meanings))
    ]
    parts = (colorsys.hls_to_rgb(*hue) for hue in hues)
    colours = [
        "#" + "".join(f"{round(255 * part):02x}" for part in rgb) for rgb in parts
    ]
    texts = {"flag_meanings": " ".join(words), "flag_colors": " ".join(colours)}
    return {"flag_values": [*meanings], **texts}
