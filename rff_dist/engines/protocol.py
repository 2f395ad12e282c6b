"""The protocol of engines: a function and blocks go in, the combined results come out.

Every engine gives the same bits, on any machines. So algorithms call `map_reduce`,
`map_write` and `broadcast`, and need not know of threads and Dask.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, Protocol, Self, final

import numpy as np

from rff_dist import contexts
from rff_dist.data.blocks import Block, BlockFunction, Dataset
from rff_dist.engines import events, resuming
from rff_dist.errors import DataError


@dataclass(frozen=True, eq=False)
class Broadcast[S]:
    """State that every worker has; passes take it in place of the state itself."""

    state: S


class RegionWriter(Protocol):
    """An output of rows, block by block.

    It must pickle, and allow `write` to be repeated: a block whose worker was killed is
    written again.
    """

    @property
    def url(self) -> str | None:
        """Where the rows are stored, if they are."""

    def write(self, block: Block, array: np.ndarray, /) -> None:
        """Write `array`, of shape (block.n_samples, ...), to the block's rows."""


# An engine, and the ledger for the sums of its passes. A context variable, because each
# of the threads that share an engine has its own ledger.
_keeping: ContextVar[tuple[Any, resuming.Ledger | None]] = ContextVar(
    "_keeping", default=(None, None)
)


class Engine(ABC):
    """Runs passes over blocks. Every implementation returns the same bits.

    Three rules for functions make any retry harmless: they are pure, they do not change
    their arguments, and they pickle (closures and lambdas do, by cloudpickle). There is
    one exception: a `BlockTask` of `rff_dist.data.blocks` with `adds=True` is also
    called with the total of earlier blocks, and adds its result to that total in place.
    A retry begins with a total that the failure did not touch.
    """

    #: Called with every event of `rff_dist.engines.events`, from the thread that runs
    #: the pass.
    observers: tuple[events.Observer, ...]

    @final
    @property
    def ledger(self) -> resuming.Ledger | None:
        """Where this thread's passes keep their sums, see `keeping`."""
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
        # scikit-learn's `clone` copies parameters deeply; an engine, its cluster and
        # observers are shared.
        return self

    @final
    def tell(self, event: events.Event) -> None:
        """Hand an event between passes to the observers."""
        events.Announcer(self.observers)(event)

    @final
    @contextmanager
    def observed_by(self, *observers: events.Observer) -> Iterator[None]:
        """Send events of passes to these observers too while the context lasts."""
        self.observers = (*self.observers, *observers)
        try:
            yield
        finally:
            # threads that share an engine, such as joblib's, need not end in the order
            # in which they began
            self.observers = tuple(
                observer for observer in self.observers if observer not in observers
            )

    @final
    @contextmanager
    def keeping(self, ledger: resuming.Ledger | None) -> Iterator[None]:
        """Store the sums of passes in a ledger, and continue from those it has already.

        If the stored sums come from several workers, a serial engine that adds them up
        needs memory for two more results.
        """
        with contexts.setting(_keeping, (self, ledger)):
            yield

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """The number of processes that run blocks, each one block at a time."""

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """The number of threads per block, which functions take by `using_threads`."""

    @property
    @abstractmethod
    def worker_memory(self) -> int | None:
        """Bytes that the smallest worker may use; None for all of its machine."""

    @property
    @abstractmethod
    def is_in_process(self) -> bool:
        """Whether blocks run in the caller's process, and share its memory."""

    @abstractmethod
    def broadcast[S](self, state: S) -> Broadcast[S]:
        """Give `state` to every worker, and check that each has the same.

        Each object in `state` with a method `digest()` (the state, its members or
        attributes) must have the same digest on every worker, also on those that join
        later. Raises BroadcastError, with the worker and both digests, if not.
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
        """Return the results of all blocks, combined.

        Like `functools.reduce(combine, (function(block, state) for block in blocks))`,
        but in any order and grouping. A worker gets runs of consecutive blocks. It has
        at most three results in memory: its total so far, the total of its present run,
        and the sum of both. There is a fourth, the result of one block, unless
        `function` adds to the total in place, as the class describes.

        Parameters
        ----------
        function : callable
            Pure. It may use as many threads as `using_threads` allows.
        blocks : sequence of Block
            At least one.
        state
            The second argument of every call. Broadcast it first if several passes
            share it.
        combine : callable
            Associative and commutative to the bit, as sums of integers are; it changes
            neither argument. By default `+`.
        label : str
            The pass's name in events and messages.

        Raises
        ------
        PlanError
            If there are no blocks.
        ClusterLostError
            If the cluster went away.
        BlockError
            With the rows, if `function` raised or killed its worker again and again.
            Errors of this package (DataError, StorageError, ...) keep their type and
            get a note with the rows.
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
        """Write `function(block, state)`, a row per row of the block, to `output`.

        Takes O(1) memory per worker. Returns the number of rows written; raises the
        errors of `map_reduce`.
        """
        return self.map_reduce(WriteTask(function, output), blocks, state, label=label)


@dataclass(frozen=True)
class WriteTask[S](BlockFunction[S, int]):
    """Write a function's result for a block; return the number of rows."""

    function: Callable[[Block, S], np.ndarray]
    output: RegionWriter

    @property
    def source(self) -> Dataset | None:  # type: ignore[override]
        """The dataset that the function reads, if any."""
        return source_of(self.function)

    def content_key(self) -> None:
        """Return None: the output, not a ledger, shows which rows are written."""

    def begin(self, block: Block, state: S) -> Callable[[], int]:
        finish = begin_block(self.function, block, state)
        return lambda: write_rows(self.output, block, finish())


def source_of(function: object) -> Dataset | None:
    """Return the dataset that a function reads, if any."""
    return function.source if isinstance(function, BlockFunction) else None


def describe_pass(function: object, state: object) -> dict[str, Any]:
    """Return attributes of a pass's span: `row_bytes`, the state's digests, and D."""
    row_bytes = 0
    source = source_of(function)
    if source is not None:
        n_floats = source.n_targets + int(source.weighted)
        row_bytes = source.n_features * source.dtype.itemsize + 8 * n_floats
    parts = [value for _, value in _with_digests(state, "state")]
    widths = [part.n_components for part in parts if hasattr(part, "n_components")]
    return {
        "row_bytes": row_bytes,
        "digest": list(state_digests(state).values()) or None,
        "n_components": widths[0] if widths else None,
    }


def state_digests(state: object) -> dict[str, str]:
    """Return the digests of all objects in `state` with a method `digest()`, by place.

    A place is "state[0].feature_map", for example.
    """
    return {
        place: str(value.digest()) for place, value in _with_digests(state, "state")
    }


def _with_digests(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield places and objects with a digest: a value, or else its members."""
    if isinstance(value, type):
        return
    if callable(getattr(value, "digest", None)):
        yield place, value
        return

    members: dict[str, Any]
    if isinstance(value, Mapping):
        members = {f"[{key!r}]": member for key, member in value.items()}
    elif isinstance(value, list | tuple):
        members = {f"[{i}]": member for i, member in enumerate(value)}
    elif is_dataclass(value):
        names = [field.name for field in fields(value)]
        members = {f".{name}": getattr(value, name) for name in names}
    else:
        # Attributes of other objects, but not the members of attributes.
        members = {
            f".{name}": member
            for name, member in getattr(value, "__dict__", {}).items()
            if callable(getattr(member, "digest", None))
        }
    for name, member in members.items():
        yield from _with_digests(member, place + name)


def begin_block[S, T](
    function: Callable[[Block, S], T], block: Block, state: S
) -> Callable[..., T]:
    """Begin with a block, and return a call that returns the function's result.

    A `BlockFunction` reads the block's rows now; a plain function does nothing before
    the call.
    """
    if isinstance(function, BlockFunction):
        return function.begin(block, state)
    return partial(function, block, state)


def write_rows(output: RegionWriter, block: Block, array: np.ndarray) -> int:
    """Write a block's rows and return their number; DataError if `array` has others."""
    if np.shape(array)[:1] != (block.n_samples,):
        raise DataError(
            f"an array of shape {np.shape(array)} cannot be written to rows"
            f" {block.start}:{block.stop}; its first dimension must be"
            f" {block.n_samples}"
        )
    output.write(block, array)
    return block.n_samples
