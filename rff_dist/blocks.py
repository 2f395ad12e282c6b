"""One block of rows in, statistics or predictions out: pure NumPy, no Dask and no Zarr."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rff_dist.errors import PlanError


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `start:stop` of a dataset: the work of one task.

    Blocks are cut from the data's own chunks and never depend on the cluster,
    so that any engine accumulates the same blocks in the same way.
    """

    index: int
    start: int
    stop: int

    @property
    def n_samples(self) -> int:
        return self.stop - self.start


def cut_blocks(n_samples: int, chunk_rows: int, *, rows_per_block: int) -> list[Block]:
    """Cut `n_samples` rows into blocks of whole chunks, about `rows_per_block` rows each.

    Raises
    ------
    PlanError
        If `chunk_rows` or `rows_per_block` is below 1.
    """
    if chunk_rows < 1 or rows_per_block < 1:
        raise PlanError(
            f"cannot cut {n_samples:_} rows: `chunk_rows`={chunk_rows} and "
            f"`rows_per_block`={rows_per_block} must both be at least 1"
        )
    rows = max(1, round(rows_per_block / chunk_rows)) * chunk_rows
    starts = range(0, n_samples, rows)
    return [Block(i, start, min(start + rows, n_samples)) for i, start in enumerate(starts)]


@dataclass(frozen=True, slots=True)
class Rows:
    """The data of one block, as read: shapes are checked, values are not.

    Attributes
    ----------
    block : Block
        Which rows of the dataset these are.
    X : real array of shape (n_samples, n_features)
        Inputs in their stored dtype.
    y : float64 array of shape (n_samples, n_targets), or None
        Targets.
    sample_weight : float64 array of shape (n_samples,), or None
        Weights; None means 1 for each row.
    """

    block: Block
    X: np.ndarray
    y: np.ndarray | None = None
    sample_weight: np.ndarray | None = None
