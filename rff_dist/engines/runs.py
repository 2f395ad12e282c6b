"""Cut the blocks of a pass into runs: consecutive blocks that one task sums up.

Blocks that no worker has go into `RunQueue`; the next run comes out. A task for each
block would cost the scheduler 1 ms and a worker one addition of sums; equal runs would
leave workers idle at the end. So runs are long at first, and short at the end.
"""

from collections.abc import Sequence
from dataclasses import replace

from rff_dist.engines import resuming
from rff_dist.engines.partitions import PartitionTasks
from rff_dist.engines.resuming import Run

#: The most seconds of a run, estimated from the blocks so far: when a worker dies, its
#: run begins again.
RUN_S = 60.0


class RunQueue:
    """The blocks that are still to be given out, and how long a block takes."""

    def __init__(
        self,
        n_blocks: int,
        pass_ledger: resuming.PassLedger | None,
        partitions: PartitionTasks | None,
    ) -> None:
        self._n_blocks = n_blocks
        self._pass_ledger = pass_ledger
        self._partitions = partitions
        self._seconds = 0.0
        self._n_timed = 0
        #: Consecutive blocks from which runs are cut; the last ones are taken first.
        self._uncut_runs: list[Run] = []

    def __len__(self) -> int:
        return sum(len(uncut.positions) for uncut in self._uncut_runs)

    @property
    def seconds_per_block(self) -> float:
        """The mean of the blocks so far. Before the first it is `RUN_S`, so that first
        runs are short.
        """
        return self._seconds / self._n_timed if self._n_timed else RUN_S

    def time(self, seconds: Sequence[float]) -> None:
        """Note how long some blocks took."""
        self._seconds += sum(seconds)
        self._n_timed += len(seconds)

    def cut(self, positions: range) -> list[Run]:
        """Cut consecutive blocks where the ledger, if any, has the sums of a run."""
        if self._pass_ledger is None:
            return [Run(positions)]
        return self._pass_ledger.cut(positions)

    def put(self, runs: Sequence[Run]) -> None:
        """Add runs in front of all others, those with kept sums first."""
        last_first = runs[::-1]  # since `take` pops from the end
        self._uncut_runs += sorted(last_first, key=lambda run: run.is_kept)

    def take(self, n_workers: int) -> Run:
        """Take the next run."""
        length = self._length(n_workers)
        uncut = self._uncut_runs.pop()
        if uncut.is_kept:
            return uncut

        # A partition of a Dask collection is computed once, for all of its blocks.
        if self._partitions is not None:
            length = self._partitions.run_length(uncut.positions)

        rest = uncut.positions[length:]
        if rest:
            self._uncut_runs.append(replace(uncut, positions=rest))
        return replace(uncut, positions=uncut.positions[:length])

    def _length(self, n_workers: int) -> int:
        """Return the number of blocks of the next run, by guided self-scheduling.

        Polychronopoulos & Kuck (1987).
        """
        length = len(self) // (2 * n_workers)
        if self.seconds_per_block > 0:
            longest = RUN_S / self.seconds_per_block
            # With a ledger each run leaves a file, so runs are few and long. Little is
            # lost with a worker, since the ledger has the sums of a run's first blocks.
            if self._pass_ledger is not None:
                longest = max(longest, self._n_blocks / resuming.MOST_RUNS)
            length = min(length, int(longest))
        return max(1, length)
