"""A first pass over labels or groups, without X: which ones there are, and how many rows each has."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from rff_dist.data.blocks import Block, Dataset, cut_blocks
from rff_dist.data.columns import Column
from rff_dist.data.labelled import ExtendedDataset, GroupedDataset, LabelCounts, LabelReader
from rff_dist.errors import DataError

if TYPE_CHECKING:
    from rff_dist.engines.protocol import Engine

ROWS_PER_BLOCK = 2**20


def count_labels(labels: Column, *, source: Dataset | None = None, engine: Engine) -> LabelCounts:
    """Count the rows and the weight of each label, in one pass over labels and weights.

    Labels in memory, or of rows of a Dask collection, are counted in this process. The counts are exact, and
    do not depend on the blocks.

    `source`: the dataset that has the weights; by default each row has weight 1.
    `engine`: runs the pass over stored labels.
    Raises DataError if there are no labels, or not one for each row; a label is missing or not valid; or a
      weight is negative or not finite.
    """
    if not labels.n_samples:
        raise DataError("the data have 0 rows; a classifier needs labels of at least 2 classes")
    if source is not None and source.n_samples != labels.n_samples:
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: "
            f"{[source.n_samples, labels.n_samples]} (X, y); give as many rows of each"
        )
    count = LabelReader(labels, source if source is not None and source.weighted else None)
    counts: LabelCounts = _count(count, labels, source, operator.add, label="labels", engine=engine)
    return counts


def count_groups(dataset: Dataset, *, at_most: int, engine: Engine) -> LabelCounts | None:
    """Count the rows and the weight of each group of a dataset's rows, as `count_labels` does.

    Returns LabelCounts, whose groups are integers where they were stored as floats, or None if there are more
      than `at_most` groups.
    Raises DataError if a weight is negative or not finite.
    """
    groups = _groups_of(dataset)
    count = partial(_count_up_to, at_most, LabelReader(groups, dataset if dataset.weighted else None))
    add = partial(_add_up_to, at_most)
    found: LabelCounts | None = _count(count, groups, dataset, add, label="groups", engine=engine)
    if found is None or found.labels.dtype.kind != "f":
        return found
    return replace(found, labels=found.labels.astype(np.int64))


def _count_up_to(at_most: int, count: LabelReader, block: Block, _: None) -> LabelCounts | None:
    counts = count(block, None)
    return counts if len(counts.labels) <= at_most else None


def _add_up_to(at_most: int, left: LabelCounts | None, right: LabelCounts | None) -> LabelCounts | None:
    if left is None or right is None:
        return None
    counts = left + right
    return counts if len(counts.labels) <= at_most else None


def _groups_of(dataset: Dataset) -> Column:
    while not isinstance(dataset, GroupedDataset):
        assert isinstance(dataset, ExtendedDataset)  # folds were checked to find groups
        dataset = dataset.source
    return dataset.groups


def _count[T](
    count: Callable[[Block, None], T],
    values: Column,
    source: Dataset | None,
    add: Callable[[T, T], T],
    *,
    label: str,
    engine: Engine,
) -> T:
    blocks = cut_blocks(values.n_samples, values.chunk_rows, rows_per_block=ROWS_PER_BLOCK)
    if values.in_memory or (source is not None and source.is_lazy):
        return reduce(add, (count(block, None) for block in blocks))
    return engine.map_reduce(count, blocks, None, combine=add, label=label)
