"""The protocol of engines: passes over blocks that give the same bits, whatever an engine runs on."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, Protocol, Self, final

import numpy as np

from rff_dist import contexts
from rff_dist.data.blocks import Block, BlockFunction, Dataset
from rff_dist.engines import progress, resuming
from rff_dist.errors import DataError


@dataclass(frozen=True, eq=False)
class Broadcast[S]:
    """State that every worker has. Give it to passes in place of the state itself."""

    state: S


class RegionWriter(Protocol):
    """An output of rows, block by block.

    It must be picklable, and `write` must be idempotent: a block whose worker was killed is written again.
    """

    @property
    def url(self) -> str | None:
        """Where the rows are stored; None if they are not."""

    def write(self, block: Block, array: np.ndarray, /) -> None:
        """Write `array`, of shape (block.n_samples, ...), to the block's rows."""


# The engine whose passes keep their sums, and where. Threads that share an engine have a ledger each.
_keeping: ContextVar[tuple[Any, resuming.Ledger | None]] = ContextVar("_keeping", default=(None, None))


class Engine(ABC):
    """Run passes over blocks. Every implementation returns the same bits.

    Three rules hold for the functions given to an engine, and make any retry harmless: they are pure,
    they do not change their arguments, and they pickle (closures and lambdas do, by cloudpickle).

    `observers`: called with every event of `rff_dist.engines.progress`, from the thread that runs the pass.
    """

    observers: tuple[progress.Observer, ...]

    @final
    @property
    def ledger(self) -> resuming.Ledger | None:
        """Where the sums of passes are kept that this thread makes, see `keeping`."""
        engine, ledger = _keeping.get()
        return ledger if engine is self else None

    @abstractmethod
    def close(self) -> None:
        """Free what the engine started itself. Closing twice does no harm."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(self, *_: object) -> None:
        self.close()

    @final
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # scikit-learn's `clone` copies parameters deeply; an engine, its cluster and observers are shared.
        return self

    @final
    @contextmanager
    def observed_by(self, *observers: progress.Observer) -> Iterator[None]:
        """Tell more observers of passes while the context lasts."""
        self.observers = (*self.observers, *observers)
        try:
            yield
        finally:
            # threads that share an engine, such as joblib's, need not end in the order in which they began
            self.observers = tuple(observer for observer in self.observers if observer not in observers)

    @final
    @contextmanager
    def keeping(self, ledger: resuming.Ledger | None) -> Iterator[None]:
        """Keep the sums of passes in a ledger, and go on from those that are there.

        One process that goes on from the sums of several workers holds two more results meanwhile.
        """
        with contexts.setting(_keeping, (self, ledger)):
            yield

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Processes that run blocks: the number of blocks accumulating at one time."""

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Threads that each block may use; the block function sees them by `using_threads`."""

    @property
    @abstractmethod
    def worker_memory(self) -> int | None:
        """Bytes that the smallest worker may use; None where nothing limits it but the machine."""

    @property
    @abstractmethod
    def in_process(self) -> bool:
        """Whether blocks run in the caller's own process, and share its memory."""

    @abstractmethod
    def broadcast[S](self, state: S) -> Broadcast[S]:
        """Give `state` to every worker, and check that each of them holds the same.

        Whatever in `state` has a method `digest()` (the state, its members or attributes) must have
        the same digest on every worker, also on those that join later.

        Raises BroadcastError if a worker holds another digest than the caller; names the worker and both
          digests.
        """

    @abstractmethod
    def map_reduce[S, T](
        self,
        function: Callable[[Block, S], T],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        *,
        combine: Callable[[T, T], T] = operator.add,
        label: str = "pass",
    ) -> T:
        """Like `functools.reduce(combine, (function(block, state) for block in blocks))`.

        Results are combined in any order and grouping; see `combine` for what that asks of it.

        A worker holds at most three results: its total so far, the total of the run at work, and the sum of
        both. It also holds the result of one block, unless `function` is a `BlockTask` that `adds`.

        `function`: pure. On an engine with threads it may use those of `using_threads`.
        `blocks`: at least one.
        `state`: what every call gets. Broadcast it first if several passes share it.
        `combine`: associative and commutative to the bit, as sums of integers are; it changes neither
          argument. By default `+`.
        `label`: the pass's name in events and messages.
        Raises PlanError if there are no blocks; ClusterLostError if the cluster went away; BlockError, which
          names the rows, if `function` raised or killed its worker again and again. Errors of this package
          (DataError, StorageError, ...) keep their type and get a note with the rows.
        """

    @final
    def map_write[S](
        self,
        function: Callable[[Block, S], np.ndarray],
        blocks: Sequence[Block],
        state: S | Broadcast[S],
        output: RegionWriter,
        *,
        label: str = "pass",
    ) -> int:
        """Write `function(block, state)`, one row per row of the block, to `output`; O(1) memory per worker.

        Returns `n_samples`: rows written.
        Raises PlanError, BlockError, ClusterLostError as for `map_reduce`.
        """
        return self.map_reduce(WriteTask(function, output), blocks, state, label=label)


@dataclass(frozen=True)
class WriteTask[S](BlockFunction[S, int]):
    """Write what a function makes of a block; return the rows written."""

    function: Callable[[Block, S], np.ndarray]
    output: RegionWriter

    @property
    def source(self) -> Dataset | None:  # type: ignore[override]
        """The dataset that the function reads; None if it reads none."""
        return source_of(self.function)

    def content_key(self) -> None:
        """Return None: the output itself, not a ledger, tells which rows are written."""

    def begin(self, block: Block, state: S) -> Callable[[], int]:
        finish = begin_block(self.function, block, state)
        return lambda: write_rows(self.output, block, finish())


def source_of(function: object) -> Dataset | None:
    """Return the dataset whose blocks a function reads."""
    return function.source if isinstance(function, BlockFunction) else None


def describe_pass(function: object, state: object) -> dict[str, Any]:
    """Return what a pass's span tells: `row_bytes`, the digests in its state, and D if it has features."""
    parts = [value for _, value in _with_digests(state, "state")]
    widths = [part.n_components for part in parts if hasattr(part, "n_components")]
    digests = [str(part.digest()) for part in parts]
    n_components = widths[0] if widths else None
    return {"row_bytes": bytes_per_row(function), "digest": digests or None, "n_components": n_components}


def bytes_per_row(function: object) -> int:
    """Return the bytes of a row of the data in memory; 0 where blocks read no data."""
    source = source_of(function)
    if source is None:
        return 0
    return int(source.n_features * source.dtype.itemsize + 8 * (source.n_targets + source.weighted))


def state_digests(state: object) -> dict[str, str]:
    """Return the digests of all in `state` that has a method `digest()`: itself, members or their attributes.

    They are given by place: "state[0].feature_map", for example.
    """
    return {place: str(value.digest()) for place, value in _with_digests(state, "state")}


def _with_digests(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        return
    if callable(getattr(value, "digest", None)):
        yield place, value
        return
    if isinstance(value, Mapping):
        members = [(f"{place}[{key!r}]", member) for key, member in value.items()]
    elif isinstance(value, list | tuple):
        members = [(f"{place}[{i}]", member) for i, member in enumerate(value)]
    elif is_dataclass(value):
        members = [(f"{place}.{name}", getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        members = [
            (f"{place}.{name}", member)
            for name, member in getattr(value, "__dict__", {}).items()
            if callable(getattr(member, "digest", None))
        ]
    for name, member in members:
        yield from _with_digests(member, name)


def begin_block[S, T](function: Callable[[Block, S], T], block: Block, state: S) -> Callable[..., T]:
    """Begin a block, and return the call that finishes it. A `BlockFunction` reads its rows here."""
    if isinstance(function, BlockFunction):
        return function.begin(block, state)
    return partial(function, block, state)


def write_rows(output: RegionWriter, block: Block, array: np.ndarray) -> int:
    """Write a block's rows and return their number; DataError unless `array` has as many rows."""
    if np.shape(array)[:1] != (block.n_samples,):
        raise DataError(
            f"an array of shape {np.shape(array)} cannot be written to rows {block.start}:{block.stop}; "
            f"its first dimension must be {block.n_samples}"
        )
    output.write(block, array)
    return block.n_samples
