"""Cut a dataset into the blocks of its passes, and sum a function of the rows.

A dataset and a function of its rows go in; the sum over all blocks comes out, from any
engine. All passes cut blocks here: sums are rounded at the edges of blocks, which must
be the same in all passes.
"""

import operator
from collections.abc import Callable, Sequence

from rff_dist.data.blocks import (
    MAX_BLOCK_ROWS,
    Block,
    BlockTask,
    Dataset,
    Rows,
    block_rows,
    cut_blocks,
    cut_pieces,
)
from rff_dist.engines import protocol
from rff_dist.errors import DataError


def blocks_of(
    dataset: Dataset, *, max_rows: int = MAX_BLOCK_ROWS, n_folds: int = 1
) -> list[Block]:
    """Return the blocks of passes over a dataset, of at most `max_rows` rows.

    With several folds blocks are larger, see `block_rows`. Raises DataError if the
    dataset has no rows.
    """
    if dataset.n_samples < 1:
        raise DataError(
            "Found array with 0 sample(s): the data have no rows; at least 1 is needed"
        )
    if dataset.edges is not None:
        return cut_pieces(dataset.edges, max_rows)
    rows = block_rows(
        dataset.n_samples,
        dataset.n_features,
        dataset.dtype.itemsize,
        dataset.chunk_rows,
        max_rows=max_rows,
        n_folds=n_folds,
    )
    return cut_blocks(dataset.n_samples, rows, rows_per_block=rows)


def sum_rows[S, T](
    dataset: Dataset,
    function: Callable[[Rows, S], T],
    state: S | protocol.Broadcast[S],
    *,
    blocks: Sequence[Block] | None = None,
    combine: Callable[[T, T], T] = operator.add,
    engine: protocol.Engine,
    label: str,
) -> T:
    """Sum a function of the rows over all blocks, by default those of `blocks_of`."""
    if blocks is None:
        blocks = blocks_of(dataset)
    task = BlockTask(dataset, function)
    return engine.map_reduce(task, blocks, state, combine=combine, label=label)
