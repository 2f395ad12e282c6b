"""Grids as rows: each cell of variables over common dimensions is a row.

Weather fields and satellite images go in, as variables with named dimensions; a dataset
of rows comes out. A cell is no row if a value of a variable is missing there, so rows
are counted once, when a grid is opened. A *piece* is the cells that are read together:
whole chunks, or equal parts of a large one. A stored table of rows would repeat
coordinates and lose the chunks.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import array_checks, blocks, columns, digests, labelled
from rff_dist.data.grid_inputs import GridInput, Slices, Variable
from rff_dist.errors import DataError
from rff_dist.typing import (
    AnyArray,
    AnyDType,
    BoolArray,
    Facts,
    FloatArray,
    IndexArray,
)

_log = logging.getLogger(__name__)
# A daily field of 721 x 1,440 points, and a tile of 1,024 x 1,024, are read whole.
MAX_CELLS = 2**20
_READERS = 4  # pieces that are read at once when rows are counted
_SAMPLED_PIECES = 8  # whose values enter the fingerprint
# members of `blocks.Rows`: those that `gather` returns, in its order, and all
_GATHERED = ("X", "y", "sample_weight", "groups")
_PARTS = (*_GATHERED, "cells")


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
    def pieces_per_dim(self) -> tuple[int, ...]:
        """How many pieces there are along each dimension."""
        return tuple(
            -(-n // length) for n, length in zip(self.shape, self.piece, strict=True)
        )

    def region(self, number: int) -> Slices:
        """Return the cells of a piece."""
        slices = []
        places = np.unravel_index(number, self.pieces_per_dim)
        for place, length, n in zip(places, self.piece, self.shape, strict=True):
            start = int(place) * length
            slices.append(slice(start, min(start + length, n)))
        return tuple(slices)


def cut_grid(
    dims: tuple[str, ...],
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    row_bytes: int,
) -> Grid:
    """Cut a grid into pieces: parts of chunks that are too large to read at once, or
    several chunks if one has too few cells to be worth a task.

    >>> cut_grid(("time", "lat"), (400, 10), (100, 10), 8).piece
    (400, 10)
    >>> cut_grid(("y", "x"), (4096, 4096), (2048, 2048), 8).piece
    (1024, 1024)
    """
    chunks = tuple(max(1, min(pair)) for pair in zip(chunks, shape, strict=True))
    piece = [*chunks]
    max_cells = max(1, min(MAX_CELLS, blocks.MAX_BLOCK_BYTES // max(1, row_bytes)))
    while math.prod(piece) > max_cells:
        longest = piece.index(max(piece))
        piece[longest] = -(-piece[longest] // 2)
    while math.prod(piece) <= blocks.MIN_BLOCK_ROWS and tuple(piece) != shape:
        last = max(i for i, n in enumerate(shape) if piece[i] < n)
        piece[last] = min(2 * piece[last], shape[last])
    return Grid(dims, shape, chunks, tuple(piece))


@dataclass(frozen=True, eq=False)
class GridDataset(blocks.Dataset):
    """The cells of a grid as rows: piece by piece, and in the order of the dimensions
    within a piece.

    Cells without an input, a target or the weight are no rows.
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
    piece_rows: NDArray[np.int64]
    url: str | None = None
    version: str | None = None
    missing_chunks: str = "error"
    #: Further variables without which a cell is no row, such as targets that are not
    #: read.
    required: tuple[Variable, ...] = ()
    #: Variables and the ascending values at which they are cut; cells between the same
    #: cuts are a group.
    cuts: tuple[tuple[Variable, FloatArray], ...] = ()
    #: The coordinate reference system, from `grid_attributes.reference_of`.
    reference: Mapping[str, str] = field(default_factory=dict)
    #: Names of the variables that some cells have no value of.
    incomplete: tuple[str, ...] = ()

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
        return np.concatenate([[0], np.cumsum(self.piece_rows)])

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
        return max(1, int(self.piece_rows.max(initial=1)))

    @property
    def variables(self) -> list[Variable]:
        """All variables that decide which cells are rows, each once."""
        inputs = [column.variable for column in self.inputs]
        weights = [] if self.weight is None else [self.weight]
        return [*dict.fromkeys([*inputs, *self.targets, *self.required, *weights])]

    def read(self, block: blocks.Block) -> blocks.Rows:
        parts: dict[str, list[AnyArray]] = {}
        for number in self._pieces(block.start, block.stop):
            piece = self._read_piece(number)
            first = piece.block.start
            rows = slice(max(0, block.start - first), block.stop - first)
            for name in _PARTS:
                values = getattr(piece, name)
                if values is not None:
                    parts.setdefault(name, []).append(values[rows])
        # rows of one piece are a view, without a copy
        joined: dict[str, Any] = {
            name: arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            for name, arrays in parts.items()
        }
        return blocks.Rows(block, **joined)

    def take(self, indices: IndexArray, /) -> blocks.Sample:
        X, y, weight, _ = self.gather(indices)
        return blocks.Sample(X, y, weight)

    def gather(self, indices: IndexArray) -> tuple[Any, Any, Any, Any]:
        """Return X, y, weights and groups of single rows, in the order of `indices`; a
        piece is read once.
        """
        wanted = array_checks.check_rows(indices, self.n_samples)
        X = np.empty((len(wanted), self.n_features), self.dtype)
        y = np.empty((len(wanted), self.n_targets)) if self.targets else None
        weight = np.empty(len(wanted)) if self.weighted else None
        groups = np.empty(len(wanted), np.int64) if self.cuts else None
        gathered = (X, y, weight, groups)
        pieces = np.searchsorted(self.edges, wanted, side="right") - 1
        for number in np.unique(pieces).tolist():
            here = np.flatnonzero(pieces == number)
            piece = self._read_piece(number)
            rows = wanted[here] - piece.block.start
            for name, part in zip(_GATHERED, gathered, strict=True):
                if part is not None:
                    part[here] = getattr(piece, name)[rows]
        return gathered

    def read_weight(self, block: blocks.Block) -> FloatArray | None:
        return None if self.weight is None else self.read(block).sample_weight

    def read_groups(self, block: blocks.Block) -> AnyArray | None:
        return self.read(block).groups if self.cuts else None

    def read_targets(self) -> FloatArray | None:
        y = self.read(blocks.Block(0, 0, self.n_samples)).y if self.targets else None
        return y[:, 0] if y is not None and self.one_dimensional else y

    def without_targets(self) -> GridDataset:
        return replace(self, targets=(), required=(*self.required, *self.targets))

    def fingerprint(self) -> str:
        """Return a digest of the shape, the number of rows in each piece, and the rows
        of up to 8 pieces.
        """
        facts = [self.grid, self.feature_names, self.target_names, self.dtype.str]
        digest = hashlib.sha256(repr(facts).encode())
        digest.update(self.piece_rows.tobytes())
        pieces = np.flatnonzero(self.piece_rows)
        sampled = np.linspace(0, len(pieces) - 1, _SAMPLED_PIECES).astype(np.intp)
        for number in np.unique(pieces[sampled]).tolist():
            piece = self._read_piece(number)
            for values in (piece.X, piece.y, piece.sample_weight):
                digest.update(b"|" if values is None else digests.as_bytes(values))
        return digest.hexdigest()

    def prefix_fingerprint(self, n_samples: int) -> str | None:
        return digests.prefix_digest(self, n_samples)

    def can_travel(self) -> bool:
        return all(variable.can_travel for variable in self.variables)

    def check_unchanged(self) -> None:
        for variable in self.variables:
            variable.check_unchanged()

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
        """Yield the numbers of the pieces with rows `start:stop`."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        for number in range(first, max(last, first + 1)):
            if self.piece_rows[number]:
                yield number

    @cached_property
    def _last_piece(self) -> dict[int, blocks.Rows]:
        """The piece that was read last, by number: the next block may be in it."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # without cached properties
        return {key: vars(self)[key] for key in self.__dataclass_fields__}

    def _read_piece(self, number: int) -> blocks.Rows:
        """Return the rows of a piece, with the positions of their cells in it."""
        last = self._last_piece.get(number)
        if last is not None:
            return last
        region = self.grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        values_of = {
            variable: read_aligned(variable, self.grid, region)
            for variable in self.variables
        }
        is_row = _are_present(values_of.values(), shape)

        def rows_of(values: AnyArray, dtype: Any = np.float64) -> AnyArray:
            return np.broadcast_to(values, shape)[is_row].astype(dtype, copy=False)

        cells = np.flatnonzero(is_row.ravel())
        if len(cells) != self.piece_rows[number]:
            raise DataError(
                f"{len(cells):_} cells of piece {number} of the grid are rows, and"
                f" {self.piece_rows[number]:_} were when it was opened: it was changed"
                " meanwhile. Open it again"
            )
        X = np.empty((len(cells), self.n_features), self.dtype)
        for j, column in enumerate(self.inputs):
            X[:, j] = rows_of(column.encode(values_of[column.variable]), self.dtype)
        y = [rows_of(values_of[variable]) for variable in self.targets]
        groups: Any = 0
        for variable, cut in self.cuts:
            values = read_aligned(variable, self.grid, region)
            between = np.searchsorted(cut, values, side="right")
            groups = groups * (len(cut) + 1) + between
        first, stop = self.edges[number : number + 2].tolist()
        piece = blocks.Rows(
            blocks.Block(number, first, stop),
            X,
            np.stack(y, axis=1) if y else None,
            None if self.weight is None else rows_of(values_of[self.weight]),
            groups=rows_of(groups, np.int64) if self.cuts else None,
            cells=cells,
        )
        self._last_piece.clear()
        self._last_piece[number] = piece
        return piece


def read_aligned(variable: Variable, grid: Grid, region: Slices) -> AnyArray:
    """Read a region of a variable as an array with all dimensions of the grid; those
    that the variable lacks have the length 1.
    """
    axes = [grid.dims.index(dim) for dim in variable.dims]
    values = variable.read(tuple(region[axis] for axis in axes))
    shape = [1] * len(grid.dims)
    for axis, length in zip(axes, values.shape, strict=True):
        shape[axis] = length
    return values.transpose(np.argsort(axes)).reshape(shape)


def read_whole(variable: Variable) -> AnyArray:
    """Return all values of a variable."""
    return variable.read(tuple(slice(0, n) for n in variable.shape))


def _are_present(parts: Iterable[AnyArray], shape: tuple[int, ...]) -> BoolArray:
    """Return for each cell whether all variables have a value there."""
    present: BoolArray = np.ones((1,) * len(shape), bool)
    for part in parts:
        if part.dtype.kind == "f":
            present = present & ~np.isnan(part)
    return np.broadcast_to(present, shape)


def grid_of(
    inputs: Sequence[GridInput],
    targets: Sequence[Variable] = (),
    weight: Variable | None = None,
    *,
    like: Variable | None = None,
    **facts: Any,
) -> GridDataset:
    """Make a dataset of variables; read them once to count its rows, and to find the
    levels of categories.

    The dimensions have the order of `like`, if it is given; else of the targets, then
    the inputs. Raises DataError if sizes of a dimension differ, an input has a
    dimension that a target lacks, or no cell has all variables.
    """
    variables = [*targets, *(column.variable for column in inputs)]
    if weight is not None:
        variables.append(weight)
    if like is not None:
        variables.insert(0, like)
    sizes = _common_sizes(variables, targets)
    whole = [v for v in variables if len(v.dims) == len(sizes)] or variables
    stored = [dict(zip(v.dims, v.chunks, strict=True)) for v in whole]
    chunks = tuple(max(lengths.get(dim, 1) for lengths in stored) for dim in sizes)
    row_bytes = 8 * (len(inputs) + len(targets) + 1)
    grid = cut_grid(tuple(sizes), tuple(sizes.values()), chunks, row_bytes)
    # rows of each piece, before they are counted
    n_rows = np.zeros(math.prod(grid.pieces_per_dim), np.int64)
    dataset = GridDataset(grid, tuple(inputs), tuple(targets), weight, n_rows, **facts)
    return _count_rows(dataset)


def _common_sizes(
    variables: Sequence[Variable], targets: Sequence[Variable]
) -> dict[str, int]:
    """Return the length of each dimension; DataError if variables disagree on it."""
    sizes: dict[str, int] = {}
    first_with: dict[str, str] = {}
    for variable in variables:
        for dim, n in zip(variable.dims, variable.shape, strict=True):
            known = sizes.setdefault(dim, n)
            other = first_with.setdefault(dim, variable.name)
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
    return sizes


def _count_rows(dataset: GridDataset) -> GridDataset:
    """Return a dataset with the rows of its pieces counted, and its categories' levels
    found.
    """
    grid = dataset.grid
    categories = [column for column in dataset.inputs if column.meanings]
    variables = {variable for variable in dataset.variables if variable.may_miss}
    variables.update(column.variable for column in categories)
    incomplete: set[Variable] = set()

    def count(number: int) -> tuple[int, dict[GridInput, list[str]]]:
        """Return the number of rows of a piece, and the levels of each category."""
        region = grid.region(number)
        shape = tuple(part.stop - part.start for part in region)
        values_of = {
            variable: read_aligned(variable, grid, region) for variable in variables
        }
        for variable, values in values_of.items():
            if np.isnan(values).any():
                incomplete.add(variable)
        is_row = _are_present(values_of.values(), shape)
        levels = {}
        for column in categories:
            codes = np.broadcast_to(values_of[column.variable], shape)[is_row]
            levels[column] = column.texts_of(codes)
        return int(is_row.sum()), levels

    with ThreadPoolExecutor(_READERS) as pool:
        counted = list(pool.map(count, range(len(dataset.piece_rows))))
    fill_of = {variable.name: variable.doubtful_fill for variable in incomplete}
    for name, fill in sorted(fill_of.items()):
        if fill is not None:
            _log.warning(
                "cells of %r that hold the fill value of its Zarr array, %s, are"
                " treated as missing, because GDAL marks missing cells in this way. If"
                " they hold values, write the array with another fill value",
                name,
                fill,
            )
    piece_rows = np.array([n_rows for n_rows, _ in counted], np.int64)
    if not piece_rows.any():
        needed = [variable.name for variable in dataset.variables]
        raise DataError(
            f"no cell has values of all of {needed}; expected at least one. Leave"
            " some out"
        )
    inputs = []
    for column in dataset.inputs:
        # in the order of the rows: levels in appended cells come last
        texts = [text for _, levels in counted for text in levels.get(column, ())]
        inputs.append(replace(column, levels=tuple(dict.fromkeys(texts))))
    return replace(
        dataset,
        piece_rows=piece_rows,
        inputs=tuple(inputs),
        incomplete=tuple(sorted(fill_of)),
    )


@dataclass(frozen=True, eq=False)
class GridColumn:
    """The groups of a grid's rows, or their only target as labels (whole numbers), as a
    `columns.Column`.
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
        return self._checked(values, np.arange(block.start, block.stop))

    def take(self, indices: IndexArray) -> AnyArray:
        _, y, _, groups = self.dataset.gather(indices)
        return self._checked(groups if self.part == "groups" else y, indices)

    def fingerprint(self) -> str:
        return self.dataset.fingerprint()

    def _checked(self, values: AnyArray, rows: IndexArray) -> AnyArray:
        """Return groups, or targets as whole numbers; DataError if they are not."""
        if self.part == "groups":
            return values
        assert self.dataset.target_names is not None
        return columns.check_values(
            values[:, 0], self.dataset.target_names[0], rows
        ).astype(np.int64)
