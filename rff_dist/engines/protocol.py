"""What an engine promises, whatever it runs on: passes over blocks with the same bits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, final

import numpy as np

from rff_dist.data.blocks import Block
from rff_dist.engines.progress import Observer


@dataclass(frozen=True, eq=False)
class Broadcast[S]:
    """State that every worker has; pass it to passes in the place of the state itself."""

    state: S


class RegionWriter(Protocol):
    """An output that takes each block's rows once or many times with the same outcome.

    It must be picklable, and `write` must be idempotent: a block whose worker was killed is written again.
    """

    @property
    def url(self) -> str | None:
        """Where the rows are stored; None if they are not."""

    def write(self, block: Block, array: np.ndarray, /) -> None:
        """Write `array`, of shape (block.n_samples, ...), to the block's rows."""


class SharedResource(ABC):
    """What is closed at the end of a `with`, and is shared by copies of what holds it."""

    @abstractmethod
    def close(self) -> None:
        """Free what it started itself; twice does no harm."""

    @final
    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        self.close()

    @final
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # scikit-learn's `clone` copies parameters deeply; an engine, its cluster and observers are shared.
        return self


class Engine(SharedResource):
    """Run passes over blocks. Every implementation returns the same bits.

    Three rules hold for the functions given to an engine, and make any retry harmless: they are pure,
    they do not change their arguments, and they pickle (closures and lambdas do, by cloudpickle).

    `observers`: called with every event of `rff_dist.engines.progress`, from the thread that runs the pass.
    """

    observers: tuple[Observer, ...]

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
        combine: Callable[[T, T], T],
        label: str = "pass",
    ) -> T:
        """Reduce `function(block, state)` over all blocks, pairwise in block order.

        The shape of the tree depends on the number of blocks alone. O(log n_blocks) partials are
        held per worker.

        `function`: pure. On an engine with threads it may use those of `using_threads`.
        `blocks`: at least one.
        `state`: what every call gets; broadcast first what several passes share.
        `combine`: merges neighbours, the left one with the lower rows, without changing either.
        `label`: the pass's name in events and messages.
        Raises PlanError if there are no blocks; BlockError if `function` raised, or kept killing its worker;
          names the rows. Errors of this package (DataError, StorageError, ...) keep their type and get a note
          with the rows; ClusterLostError if the cluster went away.
        """

    @abstractmethod
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
