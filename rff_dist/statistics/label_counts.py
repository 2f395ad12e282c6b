"""What is learnt of labels and groups first: which there are and of how many rows, in a pass without X."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

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

    Labels in memory, and those beside rows of a Dask collection, are counted in this process. The counts
    are exact: blocks do not change them.

    `labels`: the labels.
    `source`: whose weights count; None weighs each row 1.
    `engine`: who runs the pass over stored labels.
    Raises DataError if there are no labels, or more or fewer than rows; a label is missing or no label; or a
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
    blocks: list[Block] = cut_blocks(labels.n_samples, labels.chunk_rows, rows_per_block=ROWS_PER_BLOCK)
    if labels.in_memory or (source is not None and source.is_lazy):
        return reduce(operator.add, (count(block, None) for block in blocks))
    counts: LabelCounts = engine.map_reduce(count, blocks, None, combine=operator.add, label="labels")
    return counts


def count_groups(dataset: Dataset, *, at_most: int, engine: Engine) -> LabelCounts | None:
    """Count the rows and the weight of each group of a dataset's rows, as `count_labels` does.

    Returns LabelCounts or None: with whole floats as integers; None where there are more than `at_most`
      groups.
    Raises DataError if a weight is negative or not finite.
    """
    groups = _groups_of(dataset)
    count = partial(_count_up_to, at_most, LabelReader(groups, dataset if dataset.weighted else None))
    add = partial(_add_up_to, at_most)
    blocks = cut_blocks(dataset.n_samples, groups.chunk_rows, rows_per_block=ROWS_PER_BLOCK)
    if groups.in_memory or dataset.is_lazy:
        found = reduce(add, (count(block, None) for block in blocks))
    else:
        found = engine.map_reduce(count, blocks, None, combine=add, label="groups")
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


def _groups_of(dataset: Dataset) -> Any:
    rows: Any = dataset
    while isinstance(rows, ExtendedDataset):
        if isinstance(rows, GroupedDataset):
            return rows.groups
        rows = rows.source
    return _GroupsOfRows(dataset)


@dataclass(frozen=True, eq=False)
class _GroupsOfRows:
    """The groups of a dataset that reads them with its rows."""

    dataset: Dataset

    in_memory = False

    @property
    def chunk_rows(self) -> int:
        return self.dataset.chunk_rows

    def read(self, block: Block) -> Any:
        return self.dataset.read(block).groups
