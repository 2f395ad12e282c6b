"""Datasets, and blocks of their rows, for passes.

A dataset goes in; blocks, and the rows of each, come out. A pass calls a function on
each block's rows, so that no process ever has all rows. This module has the interface
of any dataset, cuts rows into blocks, and refuses values that cannot be used. The one
decision: blocks depend on the data alone, since other blocks on another cluster would
give other bits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import DataError, NotFiniteError, PlanError
from rff_dist.typing import AnyArray, AnyDType, Facts, FloatArray, IndexArray, frozen

# A variance below this share of the mean square may be the rounding of a constant.
ROUNDING = 1e-14


@frozen
class Block:
    """Rows `start:stop` of a dataset, which are read and summed together.

    >>> cut_blocks(10, 2, rows_per_block=4)
    [Block(index=0, start=0, stop=4), Block(index=1, start=4, stop=8), Block(index=2,
    start=8, stop=10)]
    """

    index: int
    start: int
    stop: int

    @property
    def n_samples(self) -> int:
        return self.stop - self.start


def cut_blocks(n_samples: int, chunk_rows: int, *, rows_per_block: int) -> list[Block]:
    """Cut rows into blocks of whole chunks, about `rows_per_block` rows each.

    Raises PlanError if `chunk_rows` or `rows_per_block` is below 1.
    """
    rows = whole_chunks(chunk_rows, rows_per_block)
    starts = range(0, n_samples, rows)
    return [
        Block(i, start, min(start + rows, n_samples)) for i, start in enumerate(starts)
    ]


def whole_chunks(chunk_rows: int, rows_per_block: int) -> int:
    """Return the multiple of `chunk_rows`, at least one chunk, nearest to
    `rows_per_block`.

    Raises PlanError if either number is below 1.
    """
    if chunk_rows < 1 or rows_per_block < 1:
        sizes = f"`chunk_rows`={chunk_rows} and `rows_per_block`={rows_per_block}"
        raise PlanError(f"cannot cut rows into blocks: {sizes} must both be at least 1")
    return max(1, round(rows_per_block / chunk_rows)) * chunk_rows


def cut_pieces(edges: NDArray[np.int64], max_rows: int) -> list[Block]:
    """Cut rows into blocks of whole pieces, or into equal parts of a large piece.

    `edges` has the first row of each piece, then the number of all rows; blocks have at
    most `max_rows` rows.

    >>> cut_pieces(np.array([0, 4, 4, 7]), 3)
    [Block(index=0, start=0, stop=2), Block(index=1, start=2, stop=4), Block(index=2,
    start=4, stop=7)]
    """
    spans: list[tuple[int, int]] = []
    for first, stop in pairwise(edges.tolist()):
        n_parts = -(-(stop - first) // max_rows)
        cuts = [first + (stop - first) * i // n_parts for i in range(n_parts)]
        spans += pairwise([*cuts, stop])
    return [Block(i, *span) for i, span in enumerate(spans)]


@frozen
class Rows:
    """The data of one block, as read: shapes are checked, values are not."""

    block: Block
    #: Real array of shape (n_samples, n_features). Inputs in their stored dtype.
    X: AnyArray
    #: Targets; shape (n_samples, n_targets).
    y: FloatArray | None = None
    #: Weights; None means 1 for each row; shape (n_samples,).
    sample_weight: FloatArray | None = None
    #: Rows of a stored chunk, for messages; None if rows are not stored.
    chunk_rows: int | None = None
    #: Int, bool or str array of shape (n_samples,), or None. Rows of one group are held
    #: out together, see `GroupFolds`.
    groups: AnyArray | None = None
    #: Weights without the factors of classes; None if there are no such factors; shape
    #: (n_samples,).
    own_weight: FloatArray | None = None
    #: For rows of a grid: the positions of their cells in a piece of the grid, an int
    #: array of shape (n_samples,); else None.
    cells: IndexArray | None = None

    @classmethod
    def in_memory(
        cls,
        X: AnyArray,
        y: FloatArray | None = None,
        sample_weight: FloatArray | None = None,
    ) -> Self:
        """Return rows that are in memory already, as one block."""
        return cls(Block(0, 0, len(X)), X, y, sample_weight)

    @property
    def weights(self) -> FloatArray:
        """The weight of each row, of shape (n_samples,)."""
        if self.sample_weight is None:
            return np.ones(len(self.X))
        return self.sample_weight


class Sample(NamedTuple):
    """Some rows of a dataset, in the order of the requested row numbers."""

    #: Real array of shape (n_indices, n_features). Inputs in their stored dtype.
    X: AnyArray
    #: Targets; shape (n_indices, n_targets).
    y: FloatArray | None
    #: Weights; None means 1 for each row; shape (n_indices,).
    sample_weight: FloatArray | None = None

    def select(self, rows: IndexArray) -> Sample:
        """Return some of these rows."""
        parts: Any = [None if part is None else part[rows] for part in self]
        return Sample(*parts)

    def weighted_rows(self) -> IndexArray:
        """Return the positions of the rows with a weight above 0."""
        if self.sample_weight is None:
            return np.arange(len(self.X))
        return np.flatnonzero(self.sample_weight > 0)


class Dataset(ABC):
    """The rows of a pass: stored, in memory or computed by a cluster."""

    #: Where the rows are stored; None if they are not.
    url: str | None
    #: Names of the columns; None if they have none.
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    #: "error" or "fill": whether a chunk that is not in the store is an error, or has
    #: the fill value; "error" for rows that are not stored.
    missing_chunks: str
    #: For a stored dataset that keeps versions: the snapshot that is read; else None.
    version: str | None
    #: Facts that are stored next to the arrays; empty for rows that are not stored.
    attributes: Facts = MappingProxyType({})
    #: The coordinate reference system of a grid; empty for other rows.
    reference: Mapping[str, str] = MappingProxyType({})

    @property
    def column_names(self) -> list[str]:
        """The names of X's columns; x0, x1, … if they have none."""
        return list(self.feature_names or (f"x{i}" for i in range(self.n_features)))

    @property
    @abstractmethod
    def n_samples(self) -> int:
        """Rows."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns of X."""

    @property
    @abstractmethod
    def n_targets(self) -> int:
        """Columns of y; 0 without y."""

    @property
    @abstractmethod
    def one_dimensional(self) -> bool:
        """Whether y is a vector rather than a matrix."""

    @property
    @abstractmethod
    def weighted(self) -> bool:
        """Whether rows have weights."""

    @property
    @abstractmethod
    def dtype(self) -> AnyDType:
        """The dtype of X as stored."""

    @property
    @abstractmethod
    def chunk_rows(self) -> int:
        """The number of rows that are efficient to read together."""

    @property
    def edges(self) -> NDArray[np.int64] | None:
        """The first row of each piece that is read whole, see `cut_pieces`; None for
        even chunks of rows.
        """
        return None

    @abstractmethod
    def read(self, block: Block) -> Rows:
        """Return the rows of a block."""

    @abstractmethod
    def read_weight(self, block: Block) -> FloatArray | None:
        """Return the weights of a block without reading its X; None without weights."""

    @abstractmethod
    def read_targets(self) -> Any:
        """Return all of y in its stored dtype and container; None without y."""

    @abstractmethod
    def take(self, indices: IndexArray, /) -> Sample:
        """Return X, y and weights of single rows, in the order of `indices`."""

    @abstractmethod
    def without_targets(self) -> Dataset:
        """Return the same rows without y."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes when the data change."""

    @abstractmethod
    def prefix_fingerprint(self, n_samples: int) -> str | None:
        """Return a digest of the first rows alone; None if such data have no digest."""

    def recorded_prefix(self, n_samples: int) -> str | None:
        """Return a digest of the first rows that is known without reading them, or
        None.
        """
        return None

    @abstractmethod
    def can_travel(self) -> bool:
        """Return whether other processes can read the rows themselves, without a copy
        from this one.
        """

    def read_groups(self, block: Block) -> AnyArray | None:
        """Return the groups of a block's rows without reading its X; None without
        groups.
        """
        return None

    def check_unchanged(self) -> None:
        """Check that stored rows are still those that were opened.

        Raises ConflictError if they were changed meanwhile, since a pass may have read
        both old and new rows.
        """
        return

    @property
    def is_lazy(self) -> bool:
        """Whether a cluster computes the rows in its own tasks: rows of Dask
        collections.
        """
        return False

    @property
    def client(self) -> Any:
        """The Dask client with persisted parts of the rows; None if there are none."""
        return None

    @property
    def extends(self) -> tuple[Dataset, Callable[[Rows], Rows]] | None:
        """Another dataset, and a function that completes its rows to rows of this one;
        None for a dataset that has its own rows.

        The function pickles without the dataset.
        """
        return None


class BlockFunction[S, T](ABC):
    """A function of a block and a state, with the dataset that its rows come from."""

    #: The dataset that it reads; None if it reads none.
    source: Dataset | None

    @abstractmethod
    def begin(self, block: Block, state: S) -> Callable[..., T]:
        """Read a block, and return the function that computes the result."""

    @final
    def __call__(self, block: Block, state: S) -> T:
        return self.begin(block, state)()


@dataclass(frozen=True)
class BlockTask[S, T](BlockFunction[S, T]):
    """Reads a block, then computes on its rows: one fused task.

    An engine that gets the rows otherwise, from a Dask collection's own tasks, uses
    `source` and `compute` separately.
    """

    source: Dataset
    compute: Callable[[Rows, S], T]
    #: Whether `compute` takes the result of earlier blocks, or None, as a third
    #: argument and adds to it in place. Then no second result is made.
    adds: bool = False

    def begin(self, block: Block, state: S) -> Callable[..., T]:
        return partial(self.compute, self.source.read(block), state)


# -- how many rows a block of a pass has; this depends on the data alone


# At least four tiles (rows that are multiplied together), so that a block costs only a
# few per cent more than its tiles. With D = 4,096 features, blocks of half a tile took
# 1.17 and blocks of a tile 1.05 times the CPU time.
MIN_BLOCK_ROWS = 16_384
MAX_BLOCK_ROWS = 262_144
# Bytes of inputs: a block that is read ahead stays small compared with the statistics.
MAX_BLOCK_BYTES = 2**27
# The fewest blocks that remain when folds enlarge them, for a few workers to share.
FEW_BLOCKS = 16


def block_rows(
    n_samples: int,
    n_features: int,
    itemsize: int,
    chunk_rows: int,
    *,
    max_rows: int = MAX_BLOCK_ROWS,
    n_folds: int = 1,
) -> int:
    """Return the number of rows of a block.

    More rows make more blocks, not larger ones. Sums are rounded at the edges of
    blocks, and appended rows do not move earlier edges, so an update sums only new
    rows. More workers do not make smaller blocks, since a stopped job finds its kept
    sums by the edges. By simulation that costs nothing: 10⁷ rows with D = 4,096 on
    1,000 workers take 7.0 s, and 7.6 s with blocks of 2,048 rows.

    Blocks are whole chunks. A chunk far larger than a block is read once for each of
    its blocks: decoding it again costs little compared with the products. `itemsize` is
    in bytes, of one number of X.

    If `n_folds` folds are summed separately, a block has as many sums. It is then up to
    `n_folds` times larger, as long as 16 blocks remain, so that sending and merging
    sums takes no greater share of the time. Raises PlanError if a size is below 1.
    """
    if n_samples < 1:
        raise PlanError(f"there are {n_samples} rows; a pass needs at least 1")
    times_larger = max(1, min(n_folds, n_samples // (FEW_BLOCKS * MIN_BLOCK_ROWS)))
    rows_in_bytes = MAX_BLOCK_BYTES // max(1, n_features * itemsize)
    limits = (times_larger * MIN_BLOCK_ROWS, MAX_BLOCK_ROWS, rows_in_bytes, max_rows)
    wanted = max(1, min(limits))
    unit = chunk_rows
    n_parts = chunk_rows // wanted
    if n_parts >= 2:  # a chunk larger than two blocks: equal parts of it
        unit = -(-chunk_rows // n_parts)
    rows = whole_chunks(unit, wanted)
    # Too many, by rounding up or because a chunk is too large: cut the unit equally.
    if min(rows, n_samples) > max_rows:
        unit = -(-unit // -(-unit // max_rows))
        rows = max_rows // unit * unit
    return rows


# -- arrays with a row for each row of the data, joined from the arrays of blocks


@frozen(eq=False)
class RowParts:
    """The arrays of some blocks; `+` joins two sets of blocks, in any order."""

    #: Arrays of shape (block.n_samples, ...), by the block's first row.
    parts: Mapping[int, AnyArray]

    @classmethod
    def of(cls, block: Block, array: AnyArray) -> Self:
        """Return the array of one block."""
        return cls({block.start: array})

    def __add__(self, other: RowParts) -> RowParts:
        # Blocks do not overlap, so the union is the same in any order and grouping.
        return RowParts({**self.parts, **other.parts})

    def joined(self) -> AnyArray:
        """Return all rows as one array, in the order of the data."""
        return np.concatenate([self.parts[start] for start in sorted(self.parts)])


# -- checks of the values of rows; errors name the first that cannot be used


def check_finite(
    rows: Rows, inputs: NDArray[np.floating[Any]], names: Sequence[str] | None = None
) -> None:
    """Check that inputs and targets are finite, and weights finite and not negative.

    `inputs` is the rows' X as prepared for the features, where values beyond float32
    are infinite. Raises DataError, with the first wrong row and column, by its name if
    there are `names`.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        # A sum takes a tenth of the time of a look at each number. But a sum of finite
        # numbers may overflow too, so each number is looked at then.
        overflows = not np.isfinite(inputs.sum())
    if overflows and not np.isfinite(inputs).all():
        raise _not_finite(rows, "X", inputs, names)
    check_targets(rows)


def check_targets(rows: Rows) -> None:
    """Check that targets are finite, and weights finite and not negative.

    Raises DataError, with the first wrong row and column.
    """
    for name, values in (("y", rows.y), ("sample_weight", rows.sample_weight)):
        if values is not None and not np.isfinite(values).all():
            raise _not_finite(rows, name, values)
    if rows.sample_weight is not None:
        check_not_negative(rows.sample_weight, rows.block.start)


def check_not_negative(weights: FloatArray, start: int = 0) -> None:
    """Raise DataError for the first negative weight; the first row is `start`."""
    if (weights < 0).any():
        row = int(np.argmax(weights < 0))
        raise DataError(
            f"sample_weight is {weights[row]} in row {start + row:_}; weights must not"
            " be negative"
        )


def _not_finite(
    rows: Rows, name: str, values: AnyArray, names: Sequence[str] | None = None
) -> NotFiniteError:
    position = np.argwhere(~np.isfinite(values))[0]
    stored = getattr(rows, name)[tuple(position)]
    where = f"row {rows.block.start + position[0]:_}"
    if len(position) > 1:
        labels = names or range(values.shape[1])
        where += f", column {labels[position[1]]!r}"
    if np.isnan(stored):
        problem = f"Input {name} contains NaN: {where}"
    elif np.isinf(stored):
        problem = f"Input {name} contains infinity: {where}"
    else:
        problem = (
            f"Input {name} contains a value too large for dtype('float32'): {where}"
            f" holds {stored:g}"
        )
    # y and weights may have other chunks
    if name == "X" and rows.chunk_rows is not None:
        problem += f" (chunk {(rows.block.start + position[0]) // rows.chunk_rows})"
    return NotFiniteError(f"{problem}; fill or drop such rows first")
