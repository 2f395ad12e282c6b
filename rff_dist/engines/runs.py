"""Cuts the blocks of a pass into runs: consecutive blocks that one task sums up.

`RunQueue` takes the blocks that no worker is at, and gives out the next run. A task for
each block would cost the scheduler 1 ms and a worker one addition of sums; equal runs
would leave workers idle at the end. So runs are long at first, and short in the end.
"""

from collections.abc import Sequence

from rff_dist.engines import resuming
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.typing import frozen

#: Seconds of the longest run, judged by the blocks so far: a run begins again when its
#: worker dies.
RUN_S = 60.0


@frozen
class Run:
    """Consecutive blocks, by their positions in the pass."""

    positions: range
    #: How many workers died while they were at these blocks.
    n_deaths: int = 0
    #: Whether a ledger has their sums already, so that they stay together.
    is_kept: bool = False


class RunQueue:
    """The blocks that are still to be given out, and how long a block takes."""

    def __init__(
        self,
        n_blocks: int,
        kept: resuming.KeptPass | None,
        partitions: PartitionTasks | None,
    ) -> None:
        self._n_blocks = n_blocks
        self._kept = kept
        self._partitions = partitions
        self._seconds = 0.0
        self._n_timed = 0
        #: Consecutive blocks from which runs are cut; the last ones come first.
        self._stretches: list[Run] = []

    def __len__(self) -> int:
        return sum(len(stretch.positions) for stretch in self._stretches)

    @property
    def seconds_per_block(self) -> float:
        """Mean of the blocks so far; `RUN_S` before the first: runs begin short."""
        return self._seconds / self._n_timed if self._n_timed else RUN_S

    def time(self, seconds: Sequence[float]) -> None:
        """Note how long some blocks took."""
        self._seconds += sum(seconds)
        self._n_timed += len(seconds)

    def cut(self, positions: range) -> list[tuple[range, bool]]:
        """Cut consecutive blocks into parts, each with whether its sums are kept."""
        return [(positions, False)] if self._kept is None else self._kept.cut(positions)

    def put(self, parts: Sequence[tuple[range, bool]], n_deaths: int = 0) -> None:
        """Add parts that come before all others: those with kept sums first."""
        stretches = [Run(part, n_deaths, is_kept) for part, is_kept in reversed(parts)]
        self._stretches += sorted(stretches, key=lambda stretch: stretch.is_kept)

    def take(self, n_workers: int) -> Run:
        """Take the next run."""
        length = self._length(n_workers)
        stretch = self._stretches.pop()
        if stretch.is_kept:
            return stretch

        # A partition of a Dask collection is computed once, for all of its blocks.
        if self._partitions is not None:
            length = self._partitions.run_length(stretch.positions)

        rest = stretch.positions[length:]
        if rest:
            self._stretches.append(Run(rest, stretch.n_deaths))
        return Run(stretch.positions[:length], stretch.n_deaths)

    def _length(self, n_workers: int) -> int:
        """Return the number of blocks of the next run, by guided self-scheduling.

        Polychronopoulos & Kuck (1987).
        """
        length = len(self) // (2 * n_workers)
        if self.seconds_per_block > 0:
            longest = RUN_S / self.seconds_per_block
            # With a ledger each run leaves a file, so runs are few and long; little
            # dies with a worker.
            if self._kept is not None:
                longest = max(longest, self._n_blocks / resuming.MOST_RUNS)
            length = min(length, int(longest))
        return max(1, length)
