"""The partitions of Dask collections: each is computed once in a pass, and blocks are cut from it there."""

# mypy: allow-untyped-calls

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import batched, groupby, pairwise, takewhile
from typing import Any

import distributed
import numpy as np

from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError
from rff_dist.typing import AnyArray, frozen


@frozen
class Partitions:
    """Consecutive partitions that are computed, as the source of a `BlockTask`.

    `edges`: the first row of each, and the row after the last one.
    `arrays`: X, y and weights of the first partition, of the second, and so on.
    """

    edges: Sequence[int]
    arrays: Sequence[Any]

    def read(self, block: Block) -> Rows:
        """Return the rows of a block; DataError if a partition has other rows than its chunk sizes say."""
        pieces: list[list[AnyArray]] = [[], [], []]
        for (first, stop), parts in zip(pairwise(self.edges), batched(self.arrays, 3), strict=True):
            if len(parts[0]) != stop - first:
                raise DataError(
                    f"the partition of rows {first}:{stop} has {len(parts[0])} rows; expected as many as its "
                    "chunk sizes say. Correct them, or leave them unknown"
                )
            if stop <= block.start or block.stop <= first:
                continue
            rows = slice(max(block.start - first, 0), block.stop - first)
            for some, part in zip(pieces, parts, strict=True):
                if part is not None:
                    some.append(part[rows])
        X, y, weight = (_joined(some) if some else None for some in pieces)
        assert X is not None
        return Rows(block, X, y, weight)


def _joined(pieces: list[AnyArray]) -> AnyArray:
    # Frames have contiguous columns, which BLAS would sum in another order, with other bits.
    return np.ascontiguousarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))


class PartitionTasks:
    """The partitions of a pass as results of tasks, each made once for all runs that need it.

    `source`: the `DaskArrayDataset`.
    """

    def __init__(self, client: distributed.Client, source: Any, blocks: Sequence[Block]) -> None:
        self._client, self._source = client, source
        needed = [source.partitions(block.start, block.stop) for block in blocks]
        #: The partition that each block begins in. Blocks that begin in the same one make a run.
        self._first = [numbers[0] for numbers in needed]
        #: How many runs still need each partition, and the tasks of those that a later run needs.
        self._n_uses: Counter[int] = Counter()
        self._tasks: dict[int, tuple[Any, ...]] = {}
        for first, run in groupby(needed, lambda numbers: numbers[0]):
            *_, last = run
            self._n_uses.update(range(first, last.stop))

    def run_length(self, positions: range) -> int:
        """Return how many of some blocks belong to the run of the first one."""
        first = self._first[positions[0]]
        return len(list(takewhile(lambda position: self._first[position] == first, positions)))

    def of_run(self, run: Sequence[Block], where: Mapping[str, Any]) -> tuple[list[int], list[Any]]:
        """Return what `Partitions` needs, with futures in place of arrays. `where`: see `Workers.where`."""
        numbers = self._source.partitions(run[0].start, run[-1].stop)
        missing = [i for i in numbers if i not in self._tasks]
        collections = [part for i in missing for part in self._source.rows_of(i)]
        futures = self._client.compute(collections, **where)
        self._tasks |= dict(zip(missing, batched(futures, 3), strict=True))
        arrays = [part for i in numbers for part in self._tasks[i]]
        for i in numbers:
            self._n_uses[i] -= 1
            if self._n_uses[i] < 1:  # a run that is given out again makes its partitions again
                del self._tasks[i]
        return self._source.edges_of(numbers), arrays

    def release(self) -> None:
        """Let the cluster forget the partitions."""
        self._tasks.clear()
