"""One block of rows in, statistics or predictions out: pure NumPy, no Dask and no Zarr."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rff_dist.errors import DataError, PlanError, StatisticsError
from rff_dist.exact import ExactSum
from rff_dist.feature_map import FeatureMap
from rff_dist.statistics_spec import tile_rows
from rff_dist.triangular import limit_blas

type FloatArray = NDArray[np.float64]

_LARGEST_BASE = 1e40  # of a fourth power that float64 can still weight and sum
ROUNDING = 1e-14  # of a mean square: what rounding alone may leave as the variance of a constant

threads_in_use: ContextVar[int] = ContextVar("n_threads", default=1)


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
        return partial(self.compute, self.source.read(block), state)


# -- threads ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def using_threads(n_threads: int) -> Iterator[None]:
    """Let block functions use `n_threads` threads, each with single-threaded BLAS.

    Threads share out whole tiles, so no bit of a result depends on their number; BLAS with
    threads of its own cuts its sums by their number, and crashes on large symmetric products.
    """
    token = threads_in_use.set(n_threads)
    try:
        with limit_blas(1):
            yield
    finally:
        threads_in_use.reset(token)


class _Inline(Executor):
    """Runs tasks at once, in the calling thread: what one thread needs."""

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Iterator[Any]:
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])


def executor_of(n_threads: int) -> Executor:
    """Return an executor of so many threads; of one thread, the calling one."""
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

    n_others = min(threads_in_use.get(), len(left)) - 1
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
    n_threads = threads_in_use.get()
    n_tiles = -(-max(1, n_rows) // (most * n_threads)) * n_threads
    return -(-max(1, n_rows) // (n_tiles * multiple)) * multiple


def falling_tiles(n_rows: int, most: int, *, multiple: int, least: int) -> list[slice]:
    """Cut rows into tiles that become smaller towards the end: threads that share them out end together.

    Each is half of what is left for a thread of `using_threads` (Polychronopoulos & Kuck 1987, guided
    self-scheduling). With one thread all are as large as they may be.

    Parameters
    ----------
    most, least : int
        Rows of the largest and the smallest tiles, multiples of `multiple`.
    multiple : int
        What all but the last one are multiples of.
    """
    n_threads, tiles, first = threads_in_use.get(), [], 0
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
        return np.sqrt(np.where(variances > ROUNDING * self.squares.value() / total, variances, 0.0))


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
