"""Count the rows and the weight of each label or group, in a pass without X.

A column of labels goes in; each value with its exact counts comes out. `numpy.unique`
would need the whole column in memory, and has no weights.
"""

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from rff_dist.data import array_checks, labelled
from rff_dist.data.blocks import Block, Dataset, cut_blocks
from rff_dist.data.columns import Column
from rff_dist.data.folding import MAX_BALANCED_GROUPS
from rff_dist.engines import protocol
from rff_dist.errors import DataError

#: None if there are more groups than folds balance.
type _Counts = labelled.LabelCounts | None

ROWS_PER_BLOCK = 2**20


def count_labels(
    labels: Column, *, source: Dataset | None = None, engine: protocol.Engine
) -> labelled.LabelCounts:
    """Count the rows and the weight of each label, in one pass over labels and weights.

    Labels in memory, or of rows of a Dask collection, are counted in this process. The
    counts are exact, and do not depend on the blocks. `source` is the dataset with the
    weights; by default each row has weight 1. Raises DataError if there are no labels,
    or not one for each row; a label is missing or not valid; or a weight is negative or
    not finite.
    """
    if not labels.n_samples:
        raise DataError(
            "the data have 0 rows; a classifier needs labels of at least 2 classes"
        )
    if source is not None:
        array_checks.require_rows({"X": source.n_samples, "y": labels.n_samples})
    is_weighted = source is not None and source.weighted
    count_block = labelled.LabelCounter(labels, source if is_weighted else None)
    counts: labelled.LabelCounts = _count(
        count_block, labels, source, operator.add, pass_name="labels", engine=engine
    )
    return counts


def count_groups(
    dataset: Dataset, *, engine: protocol.Engine
) -> labelled.LabelCounts | None:
    """Count the rows and the weight of each group, in one pass.

    Groups that are stored as floats, all whole numbers, become integers. The result is
    None if there are more than `MAX_BALANCED_GROUPS`. Raises DataError if a weight is
    negative or not finite.
    """
    source = dataset
    while not isinstance(source, labelled.GroupedDataset):
        # checks of the folds have made sure that some source has groups
        assert isinstance(source, labelled.ExtendedDataset)
        source = source.source
    count_block = labelled.LabelCounter(
        source.groups, dataset if dataset.weighted else None
    )
    count = partial(_count_groups, count_block)
    counts: _Counts = _count(
        count, source.groups, dataset, _add, pass_name="groups", engine=engine
    )
    if counts is None or counts.labels.dtype.kind != "f":
        return counts
    return replace(counts, labels=counts.labels.astype(np.int64))


def _count_groups(count_block: labelled.LabelCounter, block: Block, _: None) -> _Counts:
    """Count the groups of a block; `_` is the state of `map_reduce`, and not needed."""
    return _unless_many(count_block(block, None))


def _add(left: _Counts, right: _Counts) -> _Counts:
    if left is None or right is None:
        return None
    return _unless_many(left + right)


def _unless_many(counts: labelled.LabelCounts) -> _Counts:
    return counts if len(counts.labels) <= MAX_BALANCED_GROUPS else None


def _count[T](
    count: Callable[[Block, None], T],
    values: Column,
    source: Dataset | None,
    add: Callable[[T, T], T],
    *,
    pass_name: str,
    engine: protocol.Engine,
) -> T:
    blocks = cut_blocks(
        values.n_samples, values.chunk_rows, rows_per_block=ROWS_PER_BLOCK
    )
    # A lazy source, such as a Dask collection, computes all its weights again at each
    # read. So one block counts everything; its labels are in memory already.
    if source is not None and source.is_lazy:
        return count(Block(0, 0, values.n_samples), None)
    if values.in_memory:
        return reduce(add, (count(block, None) for block in blocks))
    return engine.map_reduce(count, blocks, None, combine=add, label=pass_name)
