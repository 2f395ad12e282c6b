"""One block of rows in, statistics or predictions out: pure NumPy, no Dask and no Zarr."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from threading import Lock
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rff_dist.errors import DataError, PlanError, StatisticsError
from rff_dist.exact import ExactSum
from rff_dist.feature_map import FeatureMap
from rff_dist.folds import Folds, FoldStatistics
from rff_dist.runs import expand
from rff_dist.statistics import OUTPUT_TILE, RidgeStatistics, StatisticsSpec, tile_rows
from rff_dist.triangular import limit_blas

type FloatArray = NDArray[np.float64]
type IntArray = NDArray[np.int64]

_LARGEST_BASE = 1e40  # of a fourth power that float64 can still weight and sum
_ROUNDING = 1e-14  # of a mean square: what rounding alone may leave as the variance of a constant

_n_threads: ContextVar[int] = ContextVar("n_threads", default=1)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `start:stop` of a dataset: the work of one task.

    Blocks are cut from the data's own chunks and never depend on the cluster,
    so that any engine accumulates the same blocks in the same way.
    """

    index: int
    start: int
    stop: int

    @property
    def n_samples(self) -> int:
        """Rows in the block."""
        return self.stop - self.start


def cut_blocks(n_samples: int, chunk_rows: int, *, rows_per_block: int) -> list[Block]:
    """Cut `n_samples` rows into blocks of whole chunks, about `rows_per_block` rows each.

    Raises
    ------
    PlanError
        If `chunk_rows` or `rows_per_block` is below 1.
    """
    if chunk_rows < 1 or rows_per_block < 1:
        raise PlanError(
            f"cannot cut {n_samples:_} rows: `chunk_rows`={chunk_rows} and "
            f"`rows_per_block`={rows_per_block} must both be at least 1"
        )
    rows = max(1, round(rows_per_block / chunk_rows)) * chunk_rows
    starts = range(0, n_samples, rows)
    return [Block(i, start, min(start + rows, n_samples)) for i, start in enumerate(starts)]


@dataclass(frozen=True, slots=True)
class Rows:
    """The data of one block, as read: shapes are checked, values are not.

    Attributes
    ----------
    block : Block
        Which rows of the dataset these are.
    X : real array of shape (n_samples, n_features)
        Inputs in their stored dtype.
    y : float64 array of shape (n_samples, n_targets), or None
        Targets.
    sample_weight : float64 array of shape (n_samples,), or None
        Weights; None means 1 for each row.
    chunk_rows : int, or None
        Rows of a stored chunk, for messages; None where rows are not stored.
    groups : int, bool or str array of shape (n_samples,), or None
        What rows are held out together by; see `GroupFolds`.
    own_weight : float64 array of shape (n_samples,), or None
        Weights before they were multiplied by those of classes; None where they were not.
    """

    block: Block
    X: NDArray[Any]
    y: FloatArray | None = None
    sample_weight: FloatArray | None = None
    chunk_rows: int | None = None
    groups: NDArray[Any] | None = None
    own_weight: FloatArray | None = None


class Dataset(ABC):
    """Rows that blocks are read from: stored, in memory or made by a cluster.

    Attributes
    ----------
    url : str or None
        Where the rows are stored; None if they are not.
    feature_names, target_names : tuple of str, or None
        Names of the columns, where they have names.
    missing_chunks : {"error", "fill"}
        What a chunk that is not in the store means; "error" for rows that are not stored.
    """

    url: str | None
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    missing_chunks: str

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
    def dtype(self) -> np.dtype[Any]:
        """The dtype of X as stored."""

    @property
    @abstractmethod
    def chunk_rows(self) -> int:
        """Rows that are worth reading together."""

    @abstractmethod
    def read(self, block: Block) -> Rows:
        """Return the rows of a block."""

    @abstractmethod
    def read_weight(self, block: Block) -> FloatArray | None:
        """Return the weights of a block, without its X; None without weights."""

    @abstractmethod
    def read_targets(self) -> Any:
        """Return all of y as it is held, in the stored dtype; None without y."""

    @abstractmethod
    def take(self, indices: NDArray[np.intp], /) -> tuple[NDArray[Any], FloatArray | None, FloatArray | None]:
        """Return X, y and weights of single rows, in the order asked."""

    @abstractmethod
    def without_targets(self) -> Dataset:
        """Return the same rows without y."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a digest that changes when the data change."""

    @abstractmethod
    def prefix_fingerprint(self, n_samples: int) -> str | None:
        """Return a digest of the first rows alone; None where these are not told from others."""

    @abstractmethod
    def can_travel(self) -> bool:
        """Return whether another process can read the rows itself, and needs no copy of them."""

    def read_groups(self, block: Block) -> NDArray[Any] | None:
        """Return the groups of a block's rows, without its X; None where rows have none."""
        return None

    @property
    def is_lazy(self) -> bool:
        """Whether a cluster makes the rows, in tasks of its own: see `lazy`."""
        return False

    def lazy(self, block: Block) -> tuple[Any, Any, Any]:
        """Return X, y and weights of a block as Dask collections, None for what there is not."""
        raise NotImplementedError(f"{type(self).__name__} is not lazy")

    @property
    def extends(self) -> tuple[Dataset, Callable[[Rows], Rows]] | None:
        """The dataset whose rows these are, and what completes them; None where nothing is added.

        What completes them pickles without the dataset.
        """
        return None


class BlockFunction[S, T](ABC):
    """A function of a block and a state that tells an engine where its rows come from.

    Attributes
    ----------
    source : Dataset or None
        What it reads; None if it reads no rows of a dataset.
    run : str or None
        What processes remember of the blocks is kept under this name: each block is then best computed
        where it was before.
    """

    source: Dataset | None
    run: str | None

    @abstractmethod
    def begin(self, block: Block, state: S) -> Callable[[], T]:
        """Read a block, and return what is left to do."""

    @final
    def __call__(self, block: Block, state: S) -> T:
        return self.begin(block, state)()


@dataclass(frozen=True)
class BlockTask[S, T](BlockFunction[S, T]):
    """Read a block, then compute on its rows: one fused task.

    An engine with a better way to the rows, such as a Dask collection's own tasks, takes `source` and
    `compute` apart.
    """

    source: Dataset
    compute: Callable[[Rows, S], T]
    run: str | None = None

    def begin(self, block: Block, state: S) -> Callable[[], T]:
        """Read a block, and return what is left to do."""
        return partial(self.compute, self.source.read(block), state)


# -- threads ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def using_threads(n_threads: int) -> Iterator[None]:
    """Let block functions use `n_threads` threads, each with single-threaded BLAS.

    Threads share out whole tiles, so no bit of a result depends on their number; BLAS with
    threads of its own cuts its sums by their number, and crashes on large symmetric products.
    """
    token = _n_threads.set(n_threads)
    try:
        with limit_blas(1):
            yield
    finally:
        _n_threads.reset(token)


class _Inline(Executor):
    """Runs tasks at once, in the calling thread: what one thread needs."""

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Iterator[Any]:
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])


def _executor(n_threads: int) -> Executor:
    return _Inline() if n_threads == 1 else ThreadPoolExecutor(n_threads)


class SpareMemory:
    """Memory that threads hand on: fresh pages of the system take longer than what is written there."""

    def __init__(self) -> None:
        self._arrays: deque[NDArray[Any]] = deque()

    def take(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of one dimension with at least `size` numbers, of any value."""
        try:
            array = self._arrays.popleft()
        except IndexError:
            return np.empty(size, dtype)
        return array if len(array) >= size and array.dtype == dtype else np.empty(size, dtype)

    def give(self, array: NDArray[Any]) -> None:
        """Hand on an array that is no longer used."""
        self._arrays.append(array)


def share_out[A](function: Callable[[A], None], items: Iterable[A]) -> None:
    """Call a function with each item, shared out among the threads of `using_threads`, this one included."""
    left = deque(items)

    def work() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            function(item)

    n_others = min(_n_threads.get(), len(left)) - 1
    if n_others < 1:
        work()
        return
    with ThreadPoolExecutor(n_others) as pool:
        others = [pool.submit(work) for _ in range(n_others)]
        try:
            work()
        except BaseException:
            left.clear()
            raise
        for other in others:
            other.result()


def even_height(n_rows: int, most: int, *, multiple: int) -> int:
    """Return the rows of tiles of which each thread of `using_threads` gets equally many.

    Parameters
    ----------
    n_rows : int
        To be cut.
    most : int
        Rows that a tile may have, a multiple of `multiple`.
    multiple : int
        What the result is a multiple of.
    """
    n_threads = _n_threads.get()
    n_tiles = -(-max(1, n_rows) // (most * n_threads)) * n_threads
    return -(-max(1, n_rows) // (n_tiles * multiple)) * multiple


def falling_tiles(n_rows: int, most: int, *, multiple: int, least: int) -> list[slice]:
    """Cut rows into tiles that become smaller towards the end: threads that share them out end together.

    Each is half of what is left for a thread of `using_threads` (Polychronopoulos & Kuck 1987, guided
    self-scheduling). With one thread all are as large as they may be.

    Parameters
    ----------
    n_rows : int
    most, least : int
        Rows of the largest and the smallest tiles, multiples of `multiple`.
    multiple : int
        What all but the last one are multiples of.
    """
    n_threads, tiles, first = _n_threads.get(), [], 0
    while first < n_rows:
        share = most if n_threads == 1 else (n_rows - first) // (2 * n_threads * multiple) * multiple
        last = min(n_rows, first + min(most, max(least, share)))
        tiles.append(slice(first, last))
        first = last
    return tiles


# -- checks ----------------------------------------------------------------------------------------


def check_finite(rows: Rows, inputs: NDArray[np.floating[Any]]) -> None:
    """Check that inputs and targets are finite, and weights finite and not negative.

    Parameters
    ----------
    rows : Rows
        As read.
    inputs : float array of shape (n_samples, n_features)
        The same rows, prepared; an overflow in float32 counts as infinite.

    Raises
    ------
    DataError
        With the first offending row and column.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        overflows = not np.isfinite(inputs.sum())  # as finite numbers may too; a tenth of the time
    if overflows and not np.isfinite(inputs).all():
        raise _not_finite(rows, "X", inputs)
    check_targets(rows)


def check_targets(rows: Rows) -> None:
    """Check that targets are finite, and weights finite and not negative.

    Raises
    ------
    DataError
        With the first offending row and column.
    """
    for name, values in (("y", rows.y), ("sample_weight", rows.sample_weight)):
        if values is not None and not np.isfinite(values).all():
            raise _not_finite(rows, name, values)
    if rows.sample_weight is not None and (rows.sample_weight < 0).any():
        row = int(np.argmax(rows.sample_weight < 0))
        raise DataError(
            f"sample_weight is {rows.sample_weight[row]} in row {rows.block.start + row:_}; "
            "weights must not be negative"
        )


def _not_finite(rows: Rows, name: str, values: NDArray[Any]) -> DataError:
    position = np.argwhere(~np.isfinite(values))[0]
    stored = getattr(rows, name)[tuple(position)]
    where = f"row {rows.block.start + position[0]:_}"
    if len(position) > 1:
        where += f", column {position[1]}"
    if np.isnan(stored):
        problem = f"Input {name} contains NaN: {where}"
    elif np.isinf(stored):
        problem = f"Input {name} contains infinity: {where}"
    else:
        problem = f"Input {name} contains a value too large for dtype('float32'): {where} holds {stored:g}"
    if name == "X" and rows.chunk_rows is not None:  # y and weights may be cut otherwise
        problem += f" (chunk {(rows.block.start + position[0]) // rows.chunk_rows})"
    return DataError(f"{problem}; fill or drop such rows first")


# -- moments ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moments:
    """What a first, cheap pass learns of the data: enough to standardise and to fix the sums' grids.

    Attributes
    ----------
    n_samples : int
        Rows counted.
    pivot : float64 array of shape (n_columns,)
        Subtracted before anything is summed: the first row, so that large means cancel nothing.
    sums, squares, cubes, fourths : ExactSum of shape (n_columns,)
        Weighted sums of the shifted columns [X, y] and of their powers; for the third and the fourth values
        beyond 1e40 count as 1e40.
    weight : ExactSum of shape ()
        Sum of the weights.
    largest_weight, smallest_weight : float
        Of the weights above 0; 1 without weights.
    minimum, maximum : float64 arrays of shape (n_columns,)
        Of the columns [X, y].
    n_targets : int
        How many of the columns are targets, at the end.
    """

    n_samples: int
    pivot: FloatArray
    sums: ExactSum
    squares: ExactSum
    cubes: ExactSum
    fourths: ExactSum
    weight: ExactSum
    largest_weight: float
    smallest_weight: float
    minimum: FloatArray
    maximum: FloatArray
    n_targets: int

    def __add__(self, other: Moments) -> Moments:
        if self.n_targets != other.n_targets or not np.array_equal(self.pivot, other.pivot):
            raise StatisticsError(
                f"these moments do not belong together: pivots {self.pivot} and {other.pivot}, "
                f"{self.n_targets} and {other.n_targets} targets; measure all blocks with the same pivot"
            )
        return Moments(
            self.n_samples + other.n_samples,
            self.pivot,
            self.sums + other.sums,
            self.squares + other.squares,
            self.cubes + other.cubes,
            self.fourths + other.fourths,
            self.weight + other.weight,
            max(self.largest_weight, other.largest_weight),
            min(self.smallest_weight, other.smallest_weight),
            np.minimum(self.minimum, other.minimum),
            np.maximum(self.maximum, other.maximum),
            self.n_targets,
        )

    @property
    def means(self) -> FloatArray:
        """Weighted means of the columns [X, y]."""
        return self.pivot + self.sums.value() / self.weight.value()

    @property
    def standard_deviations(self) -> FloatArray:
        """Weighted population standard deviations of the columns [X, y]; 0 where a column is constant."""
        total = self.weight.value()
        shifted = self.sums.value() / total
        variances = self.squares.value() / total - shifted**2
        return np.sqrt(np.where(variances > _ROUNDING * self.squares.value() / total, variances, 0.0))


def measure_moments(rows: Rows, pivot: FloatArray) -> Moments:
    """Return the moments of a block's columns [X, y].

    Parameters
    ----------
    rows : Rows
        As read.
    pivot : float64 array of shape (n_features + n_targets,)
        The dataset's first row.

    Raises
    ------
    DataError
        If a value is not finite, a weight is negative, or a square overflows float64.
    """
    columns = np.ascontiguousarray(rows.X, np.float64)  # sums of other orders round otherwise
    check_finite(rows, columns)
    if rows.y is not None:
        columns = np.hstack([columns, rows.y])
    minimum, maximum = columns.min(axis=0, initial=np.inf), columns.max(axis=0, initial=-np.inf)
    weights = np.ones(len(columns)) if rows.sample_weight is None else rows.sample_weight
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        columns = columns - pivot
        sums, squares = weights @ columns, weights @ columns**2
    if not np.isfinite(squares).all():
        column, n_features = int(np.argmin(np.isfinite(squares))), rows.X.shape[1]
        name = f"X, column {column}" if column < n_features else f"y, column {column - n_features}"
        raise DataError(
            f"Input {name} overflows float64 when it is squared: it reaches "
            f"{np.abs(columns[:, column]).max():.3g} in rows {rows.block.start:_} to {rows.block.stop:_}; "
            "scale it down"
        )
    cubes, fourths = _higher_powers(columns, weights)
    return Moments(
        n_samples=len(columns),
        pivot=pivot,
        sums=ExactSum.of(sums),
        squares=ExactSum.of(squares),
        cubes=ExactSum.of(cubes),
        fourths=ExactSum.of(fourths),
        weight=ExactSum.of(np.asarray(weights.sum())),
        largest_weight=1.0 if rows.sample_weight is None else float(weights.max(initial=0.0)),
        smallest_weight=(
            1.0 if rows.sample_weight is None else float(weights.min(initial=np.inf, where=weights > 0))
        ),
        minimum=minimum,
        maximum=maximum,
        n_targets=0 if rows.y is None else rows.y.shape[1],
    )


def _higher_powers(columns: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weighted sums of third and fourth powers, finite in any case."""
    bounded = np.clip(columns, -_LARGEST_BASE, _LARGEST_BASE)
    squares = bounded * bounded
    with np.errstate(over="ignore"):  # weights that large are refused later, with a reason
        sums = weights @ (squares * bounded), weights @ (squares * squares)
    limit = np.finfo(np.float64).max
    return np.clip(sums[0], -limit, limit), np.minimum(sums[1], limit)


def measure_features(rows: Rows, feature_map: FeatureMap) -> FloatArray:
    """Return the largest absolute value of each unnormalised feature in a block, shape (n_components,).

    Raises
    ------
    DataError
        If an input is not finite.
    """
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    largest = np.zeros(feature_map.n_components)
    height = min(tile_rows(feature_map.n_components), max(1, len(inputs)))

    def measure(stripe_range: tuple[int, int]) -> None:
        start, stop = stripe_range
        stripe = np.empty((stop - start, height))
        for first in range(0, len(inputs), height):
            tile = inputs[first : first + height]
            features = stripe[:, : len(tile)]
            feature_map.fill(tile, features, start, stop)
            np.maximum(largest[start:stop], np.abs(features).max(axis=1), out=largest[start:stop])

    share_out(measure, feature_map.stripes)
    return largest


# -- statistics ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accumulation:
    """The state of an accumulating pass: features, and what their statistics are about.

    Attributes
    ----------
    feature_map : FeatureMap
    spec : StatisticsSpec
    folds : Folds, or None
        Sums are rounded tile by tile: with folds each tile holds the rows of one fold only, so that the
        sum of all rows has the bits of the sum of the folds.
    """

    feature_map: FeatureMap
    spec: StatisticsSpec
    folds: Folds | None = None

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.feature_map.digest()


@dataclass(frozen=True, slots=True)
class Accumulations:
    """The state of a pass that accumulates several statistics of each row it reads.

    Attributes
    ----------
    members : tuple of Accumulation
        Feature maps to compare.
    folds : Folds
        Each fold of the rows is summed apart.
    n_samples : int
        Rows of the dataset, which contiguous folds are cut from.
    """

    members: tuple[Accumulation, ...]
    folds: Folds
    n_samples: int

    def digest(self) -> str:
        """Return a digest of the feature maps' digests: what every worker must agree on."""
        return hashlib.sha256(" ".join(member.digest() for member in self.members).encode()).hexdigest()


def accumulate_fold_rows(rows: Rows, state: Accumulations) -> tuple[FoldStatistics, ...]:
    """Return the exact statistics of each fold of a block, for each feature map.

    O(n_samples · n_components²) as without folds, which take memory instead: one set of sums for each.

    Raises
    ------
    DataError, StatisticsError, PlanError
        As `accumulate_rows`, and if folds of groups find no groups.
    """
    folds = state.folds
    present, pieces = _cut_by_folds(rows, folds, state.n_samples)
    found = []
    for member in state.members:
        parts: list[RidgeStatistics | None] = [None] * folds.n_folds
        for fold, part in zip(present, _accumulate(rows, member, pieces), strict=True):
            parts[fold] = part
        found.append(FoldStatistics(folds, tuple(parts)))
    return tuple(found)


def _cut_by_folds(rows: Rows, folds: Folds, n_samples: int) -> tuple[NDArray[np.intp], _Pieces]:
    """Return the folds that a block has rows of, and these rows sorted by fold."""
    block = rows.block
    fold_of_row = folds.assign(block.start, block.stop, n_samples=n_samples, groups=rows.groups)
    order = np.argsort(fold_of_row, kind="stable")
    ends = np.cumsum(np.bincount(fold_of_row, minlength=folds.n_folds))
    present = np.flatnonzero(np.diff(ends, prepend=0))
    return present, _Pieces(order, tuple(int(end) for end in ends[present]))


def add_each[T](left: tuple[T, ...], right: tuple[T, ...]) -> tuple[T, ...]:
    """Return the sums of what stands at the same place: the `combine` of `accumulate_fold_rows`."""
    return tuple(map(operator.add, left, right))


def accumulate_rows(rows: Rows, state: Accumulation) -> RidgeStatistics:
    """Return the exact statistics of a block, O(n_samples · n_components²).

    Where the spec has no targets, y is not looked at.

    A tile's features are filled stripe by stripe, its products made output tile by output tile and
    added as integers; threads share out stripes and output tiles.

    Raises
    ------
    DataError
        If a value is not finite, a sum overflows, y has another number of targets than the spec, or a
        weight is outside the grid that the spec fixes.
    StatisticsError
        If the spec is of another feature map's width.
    PlanError
        If the block has more rows than an integer sum holds.
    """
    if state.folds is None:
        return _accumulate(rows, state, None)[0]
    _, pieces = _cut_by_folds(rows, state.folds, rows.block.stop)
    return reduce(operator.add, _accumulate(rows, state, pieces))


@dataclass(frozen=True, slots=True)
class _Pieces:
    """A block's rows in another order, and where the pieces of it that are summed apart end."""

    order: IntArray
    ends: tuple[int, ...]


def _accumulate(rows: Rows, state: Accumulation, pieces: _Pieces | None) -> list[RidgeStatistics]:
    """Return the statistics of each piece of a block; without pieces, of all its rows as they stand."""
    feature_map, spec = state.feature_map, state.spec
    if spec.n_targets == 0:
        rows = replace(rows, y=None)
    elif rows.y is None:
        raise DataError("the data have no y: training needs targets")
    if rows.block.n_samples > spec.limb_rows:
        raise PlanError(
            f"a block of {rows.block.n_samples:_} rows is too large; cut blocks of at most {spec.limb_rows:_}"
        )
    if spec.n_components != feature_map.n_components:
        raise StatisticsError(
            f"the statistics are laid out for {spec.n_components} components, the feature map has "
            f"{feature_map.n_components}; draw up the spec from this feature map"
        )
    if rows.y is not None and rows.y.shape != (rows.block.n_samples, spec.n_targets):
        raise DataError(
            f"y has shape {rows.y.shape} in rows {rows.block.start:_}:{rows.block.stop:_}; "
            f"expected ({rows.block.n_samples}, {spec.n_targets})"
        )
    inputs = feature_map.prepare(rows.X)
    check_finite(rows, inputs)
    weights = _checked_weights(rows, spec)
    counts = _observations(rows, spec)
    right = np.ones((len(inputs), 1))
    if rows.y is not None:
        right = np.column_stack([rows.y - np.asarray(spec.target_offset or 0.0), right])
    row_numbers = np.arange(rows.block.start, rows.block.stop)
    ends: tuple[int, ...] = (len(inputs),)
    if pieces is not None:
        ends, order = pieces.ends, pieces.order
        inputs, right, row_numbers = inputs[order], right[order], row_numbers[order]
        weights, counts = None if weights is None else weights[order], counts[order]
    weighted = right if weights is None else right * weights[:, np.newaxis]
    layout, n_components = spec.layout, spec.n_components
    sums = [np.zeros(layout.size, np.int64) for _ in ends]
    cross = [ExactSum.zeros((n_components, right.shape[1])) for _ in ends]
    targets = [ExactSum.zeros((right.shape[1], right.shape[1])) for _ in ends]

    n_threads = _n_threads.get()
    units = 2.0 ** -expand(spec.exponents) if spec.exponents else None
    starts = (0, *ends[:-1])
    height = min(tile_rows(n_components), max(1, *(np.subtract(ends, starts))))
    tiles = [
        (piece, slice(i, min(i + height, end)))
        for piece, (start, end) in enumerate(zip(starts, ends, strict=True))
        for i in range(start, end, height)
    ]
    output_tiles = sorted(
        layout.tiles(), key=lambda tile: tile[0] == tile[1]
    )  # whole products before half ones
    # tiles worked on together: enough output tiles for all threads, and no more memory than that
    together = 1 if n_threads == 1 else min(len(tiles), -(-2 * n_threads // len(output_tiles)))
    buffers = [np.empty((n_components, height)) for _ in range(together)]
    locks = {offset: Lock() for _, _, offset in output_tiles}
    # one product per thread, made in the same place: Dask's workers give freed memory back at once, and
    # fresh pages for each product cost 5 % there
    scratch = [np.empty(OUTPUT_TILE * OUTPUT_TILE) for _ in range(n_threads)]
    with _executor(n_threads) as pool:
        for group in itertools.batched(tiles, together):
            work = [
                (piece, tile, buffer[:, : tile.stop - tile.start])
                for (piece, tile), buffer in zip(group, buffers, strict=False)
            ]

            def fill(filled_tile: _FilledTile, stripe_range: tuple[int, int]) -> FloatArray:
                _, tile, features = filled_tile
                start, stop = stripe_range
                stripe = features[start:stop]
                with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses such moments
                    feature_map.fill(inputs[tile], stripe, start, stop)
                    if units is not None:
                        stripe *= units[start:stop, np.newaxis]
                        _check_head_room(stripe, row_numbers[tile])
                    moments = stripe @ weighted[tile]
                if weights is not None:
                    stripe *= np.sqrt(weights[tile])
                return moments

            def multiply(output_tile: tuple[int, int, int], filled_tile: _FilledTile) -> None:
                row, column, offset = output_tile
                piece, _, features = filled_tile
                left = features[row : row + OUTPUT_TILE]
                right_ = features[column : column + OUTPUT_TILE]
                buffer = scratch.pop()
                product = buffer[: len(left) * len(right_)].reshape(len(left), len(right_))
                np.matmul(left, right_.T, out=product)
                with locks[offset]:
                    _add_rounded(product, layout.view(sums[piece], row, column, offset), -spec.grid_exponent)
                scratch.append(buffer)

            stripes = feature_map.stripes
            filled = list(pool.map(fill, *_pairs(work, stripes)))
            for i, (piece, tile, _) in enumerate(work):
                moments = np.concatenate(filled[i * len(stripes) : (i + 1) * len(stripes)])
                cross[piece] += ExactSum.of(moments)
                with np.errstate(over="ignore", invalid="ignore"):
                    products = right[tile].T @ weighted[tile]
                targets[piece] += ExactSum.of(products)
            list(pool.map(multiply, *_pairs(output_tiles, work)))
    n_tiles = np.bincount([piece for piece, _ in tiles], minlength=len(ends))
    return [
        RidgeStatistics(
            spec, end - start, int(counts[start:end].sum()), low, None, cross[i], targets[i], int(n_tiles[i])
        )
        for i, (start, end, low) in enumerate(zip(starts, ends, sums, strict=True))
    ]


type _FilledTile = tuple[int, slice, FloatArray]  # its piece, its rows, its features


def _pairs[A, B](left: Sequence[A], right: Sequence[B]) -> tuple[list[A], list[B]]:
    """Return all pairs as two lists, the shape that `Executor.map` takes."""
    return [a for a in left for _ in right], [b for _ in left for b in right]


def _add_rounded(product: FloatArray, total: IntArray, shift: int) -> None:
    """Round `product` to multiples of 2**-shift and add it to `total`; `product` is overwritten."""
    for i in range(0, len(product), 32):  # 128 KiB at a time: a quarter of the time of whole-tile sweeps
        strip = product[i : i + 32]
        strip *= 2.0**shift
        np.rint(strip, out=strip)
        np.add(total[i : i + 32], strip, out=total[i : i + 32], casting="unsafe", dtype=np.int64)


def _check_head_room(features: FloatArray, row_numbers: IntArray) -> None:
    reach = np.abs(features).max(axis=0, initial=0.0)
    if not (reach <= 1).all():
        row = int(np.argmin(reach <= 1))
        raise DataError(
            f"a feature of row {row_numbers[row]:_} is {reach[row]:.3g} times the largest that these exact "
            "sums were laid out for by the first rows; its inputs are far outside theirs: fit anew"
        )


def _checked_weights(rows: Rows, spec: StatisticsSpec) -> FloatArray | None:
    weights = rows.sample_weight
    if weights is not None and weights.max(initial=0.0) > 2.0**spec.weight_exponent:
        row = int(np.argmax(weights))
        raise DataError(
            f"sample_weight is {weights[row]:g} in row {rows.block.start + row:_}, above "
            f"{2.0**spec.weight_exponent:g}, the largest that these exact sums were laid out for; scale the "
            "weights down or fit anew"
        )
    repeats = _own_weight(rows)
    if repeats is not None and spec.frequency_weights and (repeats != np.rint(repeats)).any():
        row = int(np.argmax(repeats != np.rint(repeats)))
        raise DataError(
            f"sample_weight is {repeats[row]:g} in row {rows.block.start + row:_}, and these weights say how "
            'often a row is there; give whole numbers, or sample_weight_kind="precision"'
        )
    if weights is None and spec.weight_exponent < 0:
        raise DataError(
            f"rows without weights count 1 each, above {2.0**spec.weight_exponent:g}, the largest weight "
            "that these exact sums were laid out for; give weights or fit anew"
        )
    return weights


def _own_weight(rows: Rows) -> FloatArray | None:
    return rows.sample_weight if rows.own_weight is None else rows.own_weight


def _observations(rows: Rows, spec: StatisticsSpec) -> IntArray:
    """Return how many observations each row is: none, one, or as many as it is repeated."""
    counts = np.ones(rows.block.n_samples, np.int64)
    repeats = _own_weight(rows)
    if spec.frequency_weights and repeats is not None:
        counts = repeats.astype(np.int64)
    return counts if rows.sample_weight is None else np.where(rows.sample_weight > 0, counts, 0)


# -- predictions -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class LinearModel:
    """The state of a predicting pass: f(x) = z(x)'·coefficients + intercept.

    Attributes
    ----------
    feature_map : FeatureMap
        z.
    coefficients : float64 array of shape (n_components, n_targets)
        Weights of Z's columns.
    intercept : float64 array of shape (n_targets,)
        Added to all rows.
    raw_coefficients : float64 array of shape (n_components, n_targets)
        Weights of the unnormalised features, made of the others.
    """

    feature_map: FeatureMap
    coefficients: FloatArray
    intercept: FloatArray
    raw_coefficients: FloatArray = field(init=False)

    def __post_init__(self) -> None:
        # once, not for each block, and it travels: a whitened map's would take D³ operations on each worker
        object.__setattr__(self, "raw_coefficients", self.feature_map.raw_coefficients(self.coefficients))

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.feature_map.digest()


def predict_rows(rows: Rows, model: LinearModel) -> FloatArray:
    """Return predictions of shape (n_samples, n_targets), O(n_samples · n_components · n_features).

    Z is never held: each stripe of features is used and overwritten.

    Raises
    ------
    DataError
        If X has another number of columns, holds NaN or infinity, or is so large that features overflow.
    """
    feature_map = model.feature_map
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None, sample_weight=None), inputs)
    weights = model.raw_coefficients.T
    stripes = feature_map.stripes
    predictions = np.empty((len(inputs), weights.shape[0]))
    height = min(tile_rows(feature_map.n_components), max(1, len(inputs)))

    def predict(start: int) -> None:
        tile = inputs[start : start + height]
        stripe = np.empty((max(stop - first for first, stop in stripes), len(tile)))
        total = np.zeros((weights.shape[0], len(tile)))
        for first, stop in stripes:
            with np.errstate(over="ignore", invalid="ignore"):  # reported below
                feature_map.fill(tile, stripe[: stop - first], first, stop)
                total += weights[:, first:stop] @ stripe[: stop - first]
        predictions[start : start + height] = total.T + model.intercept

    share_out(predict, range(0, len(inputs), height))
    if not np.isfinite(predictions).all():
        row = rows.block.start + int(np.argwhere(~np.isfinite(predictions))[0, 0])
        raise DataError(
            f"the prediction of row {row:_} is not finite: its inputs times the frequencies, or the model's "
            "coefficients, overflow; standardise the inputs"
        )
    return predictions


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """Exact sums of a model's errors on the rows seen so far; `+` joins two sets of rows.

    Attributes
    ----------
    n_samples : int
        Rows counted.
    weight : ExactSum of shape ()
        Sum of the weights.
    squared, absolute, residual : ExactSum of shape (n_targets,)
        Weighted sums of (y - f)², |y - f| and y - f.
    target, target_squared : ExactSum of shape (n_targets,)
        Weighted sums of y and y², y counted from the model's intercept.
    largest : float64 array of shape (n_targets,)
        Largest |y - f|.
    """

    n_samples: int
    weight: ExactSum
    squared: ExactSum
    absolute: ExactSum
    residual: ExactSum
    target: ExactSum
    target_squared: ExactSum
    largest: FloatArray

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.n_samples + other.n_samples,
            self.weight + other.weight,
            self.squared + other.squared,
            self.absolute + other.absolute,
            self.residual + other.residual,
            self.target + other.target,
            self.target_squared + other.target_squared,
            np.maximum(self.largest, other.largest),
        )

    @property
    def mean_squared_error(self) -> FloatArray:
        """Mean of (y - f)² per target, in the target's units squared."""
        return self.squared.value() / self.weight.value()

    @property
    def mean_absolute_error(self) -> FloatArray:
        """Mean of |y - f| per target, in the target's units."""
        return self.absolute.value() / self.weight.value()

    @property
    def bias(self) -> FloatArray:
        """Mean of y - f per target, in the target's units."""
        return self.residual.value() / self.weight.value()

    @property
    def target_variance(self) -> FloatArray:
        """Population variance of each target on these rows; 0 where it is constant."""
        total = self.weight.value()
        mean_square = self.target_squared.value() / total
        variance = mean_square - (self.target.value() / total) ** 2
        return np.where(variance > _ROUNDING * mean_square, variance, 0.0)

    @property
    def r2(self) -> FloatArray:
        """Coefficient of determination per target; NaN for a constant target."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                self.target_variance > 0, 1 - self.mean_squared_error / self.target_variance, np.nan
            )


def evaluate_rows(rows: Rows, model: LinearModel) -> Errors:
    """Return the errors of a model on a block.

    Raises
    ------
    DataError
        If the block has no targets, or values that are not finite.
    """
    check_evaluation(rows)
    return errors_of(rows, predict_rows(rows, model), model.intercept)


def check_evaluation(rows: Rows) -> None:
    """Check that a block has targets, and that they and the weights can be used.

    Raises
    ------
    DataError
        Otherwise.
    """
    if rows.y is None:
        raise DataError("the data have no y: an evaluation needs targets")
    check_targets(rows)


def errors_of(rows: Rows, predictions: FloatArray, intercept: FloatArray) -> Errors:
    """Return the errors of predictions that were made of a checked block.

    Parameters
    ----------
    rows : Rows
        With targets.
    predictions : float64 array of shape (n_samples, n_targets)
    intercept : float64 array of shape (n_targets,)
        The model's, which the targets' sums are counted from.
    """
    assert rows.y is not None  # `check_evaluation` says so
    weights = np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight
    residual = rows.y - predictions
    target = rows.y - intercept
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        sums = [weights @ values for values in (residual**2, np.abs(residual), residual, target, target**2)]
    squared, absolute, plain, target_sum, target_squared = map(ExactSum.of, sums)
    return Errors(
        n_samples=len(residual),
        weight=ExactSum.of(np.asarray(weights.sum())),
        squared=squared,
        absolute=absolute,
        residual=plain,
        target=target_sum,
        target_squared=target_squared,
        largest=np.abs(residual).max(axis=0, initial=0.0),
    )
