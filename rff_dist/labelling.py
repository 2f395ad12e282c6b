"""What a classifier learns of its labels first: which classes there are, in one pass that reads no X."""

from __future__ import annotations

import operator
from functools import reduce
from typing import TYPE_CHECKING, Any

from rff_dist.blocks import Block, Dataset, cut_blocks
from rff_dist.errors import DataError
from rff_dist.storage.columns import Column
from rff_dist.storage.labelled import ExtendedDataset, LabelCounts, LabelReader

if TYPE_CHECKING:
    from rff_dist.engines import Engine

ROWS_PER_BLOCK = 2**20


def count_labels(labels: Column, *, source: Dataset | None = None, engine: Engine) -> LabelCounts:
    """Count the rows and the weight of each label, in one pass over labels and weights.

    Labels in memory, and those beside rows of a Dask collection, are counted in this process. The counts
    are exact: blocks do not change them.

    Parameters
    ----------
    labels : Column
        The labels.
    source : Dataset, optional
        Whose weights count; None weighs each row 1.
    engine : Engine
        Who runs the pass over stored labels.

    Returns
    -------
    LabelCounts

    Raises
    ------
    DataError
        If there are no labels, or more or fewer than rows; a label is missing or no label; or a weight is
        negative or not finite.
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
    if labels.in_memory or _is_lazy(count.source):
        return reduce(operator.add, (count(block, None) for block in blocks))
    counts: LabelCounts = engine.map_reduce(count, blocks, None, combine=operator.add, label="labels")
    return counts


def _is_lazy(source: Dataset | None) -> bool:
    """Return whether rows are Dask collections, whose graph must not travel to a worker."""
    rows: Any = source
    while isinstance(rows, ExtendedDataset):
        rows = rows.source
    return hasattr(rows, "lazy")
