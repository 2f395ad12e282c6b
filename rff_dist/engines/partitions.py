"""The partitions of Dask collections, from which a pass cuts its blocks on the workers.

A partition may have many blocks, and a block rows of two partitions. Each partition is
computed once in a pass, as a task. Its result goes to each *run* with some of its rows:
consecutive blocks that one task sums. Blocks that compute their own rows would compute
a partition many times.
"""

# mypy: allow-untyped-calls

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import batched, groupby, pairwise
from typing import Any

import distributed
import numpy as np

from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError
from rff_dist.typing import AnyArray, frozen


@frozen
class Partitions:
    """Values of consecutive partitions, as the source of a `BlockTask`."""

    #: The first row of each partition, and the row after the last one.
    edges: Sequence[int]
    #: X, y and weights of the first partition, of the second, and so on.
    arrays: Sequence[Any]

    def read(self, block: Block) -> Rows:
        """Return a block's rows; DataError if a partition lacks rows, or has more."""
        pieces: list[list[AnyArray]] = [[], [], []]
        partitions = batched(self.arrays, 3)
        for first, stop in pairwise(self.edges):
            parts = next(partitions)
            if len(parts[0]) != stop - first:
                raise DataError(
                    f"the partition of rows {first}:{stop} has {len(parts[0])} rows;"
                    " expected as many as its chunk sizes say. Correct them, or leave"
                    " them unknown"
                )
            if stop <= block.start or block.stop <= first:
                continue
            rows = slice(max(block.start - first, 0), block.stop - first)
            for pieces_of_one, part in zip(pieces, parts, strict=True):
                if part is not None:
                    pieces_of_one.append(part[rows])
        X, y, weight = map(_joined, pieces)
        assert X is not None
        return Rows(block, X, y, weight)


def _joined(pieces: list[AnyArray]) -> AnyArray | None:
    if not pieces:
        return None
    array = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    # Frames have contiguous columns, not rows. BLAS would sum them in another order,
    # with other bits.
    return np.ascontiguousarray(array)


class PartitionTasks:
    """The partitions of a `DaskArrayDataset` as tasks, each made once for all runs."""

    def __init__(
        self, client: distributed.Client, source: Any, blocks: Sequence[Block]
    ) -> None:
        self._client = client
        self._source = source
        partitions_of_blocks = [
            source.partitions(block.start, block.stop) for block in blocks
        ]
        #: The partition in which each block begins. Blocks that begin in the same
        #: partition make a run.
        self._first = [numbers.start for numbers in partitions_of_blocks]
        #: How many runs still need each partition.
        self._n_uses: Counter[int] = Counter()
        #: X, y and weights of the partitions that a later run needs, as futures.
        self._futures: dict[int, tuple[Any, ...]] = {}
        for first, run in groupby(partitions_of_blocks, lambda numbers: numbers.start):
            *_, last = run
            self._n_uses.update(range(first, last.stop))

    def run_length(self, positions: range) -> int:
        """Return how many blocks at these positions are in the run of the first."""
        starts = self._first[positions.start : positions.stop]
        return starts.count(starts[0])  # they are sorted

    def of_run(
        self, run: Sequence[Block], where: Mapping[str, Any]
    ) -> tuple[list[int], list[Any]]:
        """Return the edges and arrays of a run's `Partitions`, as futures.

        `Workers.where` says where they may be computed.
        """
        numbers = self._source.partitions(run[0].start, run[-1].stop)
        missing_numbers = [i for i in numbers if i not in self._futures]
        collections = [
            part for i in missing_numbers for part in self._source.rows_of(i)
        ]
        futures = self._client.compute(collections, **where)
        self._futures |= dict(zip(missing_numbers, batched(futures, 3), strict=True))
        arrays = [part for i in numbers for part in self._futures[i]]
        for i in numbers:
            self._n_uses[i] -= 1
            # a run that is given out again makes its partitions again
            if self._n_uses[i] < 1:
                del self._futures[i]
        return self._source.edges_of(numbers), arrays

    def release(self) -> None:
        """Let the cluster forget the partitions."""
        self._futures.clear()
