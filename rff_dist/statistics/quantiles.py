"""Quantiles of columns, from a sample of rows that does not depend on how the data are cut into blocks.

Each row has a key: a random number that depends on the row's number only. The sample consists of the rows
with the smallest keys. So the samples of two sets of rows can be merged, in any order, into the sample of
both. If the data have no more rows than the sample holds, it has all of them and quantiles are exact.
Otherwise the standard error of a quantile's rank is at most 1/(2√n_rows), 0.8 % for 4,096 rows.

A column is mapped to a normal distribution by its quantiles: each value to the normal score of its rank.
Equal values share the middle of their ranks. Values outside the sample's range get the score of its smallest
or largest value.

References
----------
Cohen & Kaplan (2007), Summarizing data using bottom-k sketches, PODC. Conover (1999), Practical nonparametric
statistics, section 5.10, on normal scores. Salmon et al. (2011), Random123, on the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.features.feature_map import RankMap
from rff_dist.typing import FloatArray, IntArray

MAX_ROWS = 4096
MIN_ROWS = 512
MAX_VALUES = 2**22  # numbers in a sample, 32 MiB: with more than 1,024 columns it has fewer rows
# of the scores' range, with two knots each: a cell is 0.06 wide, and interpolation errs by less
N_CELLS = 128
_KEY_STREAM = np.array([0x726F7773, 0], np.uint64)  # Philox keys that no draw of features uses


@dataclass(frozen=True, slots=True, eq=False)
class RowSample:
    """The rows with the smallest keys of those seen so far; `+` joins two sets of rows.

    `size`: largest number of rows kept.
    `keys`: uint64 array of shape (n_rows,). Ascending.
    `values`: float64 array of shape (n_rows, n_columns).
    """

    size: int
    keys: NDArray[np.uint64]
    values: FloatArray

    def __add__(self, other: RowSample) -> RowSample:
        keys = np.concatenate([self.keys, other.keys])
        least = np.argsort(keys, kind="stable")[: self.size]
        return RowSample(self.size, keys[least], np.concatenate([self.values, other.values])[least])


def sample_size(n_columns: int) -> int:
    """Return how many rows a sample of `n_columns` columns holds."""
    return max(MIN_ROWS, min(MAX_ROWS, MAX_VALUES // n_columns))


def sample_columns(rows: Rows, columns: IntArray) -> RowSample:
    """Return the sample of a block's rows, without rows of weight 0.

    `columns`: int64 array of shape (n_columns,). The input columns to keep.
    """
    size = sample_size(len(columns))
    keys = _keys(rows.block.start, rows.block.start + len(rows.X))
    counts = np.arange(len(keys)) if rows.sample_weight is None else np.flatnonzero(rows.sample_weight > 0)
    least = counts[np.argsort(keys[counts], kind="stable")[:size]]
    return RowSample(size, keys[least], rows.X[least[:, np.newaxis], columns].astype(np.float64))


def _keys(start: int, stop: int) -> NDArray[np.uint64]:
    """Return the keys of the rows `start:stop`; a key depends on the row's number only."""
    generator = np.random.Philox(key=_KEY_STREAM)
    generator.advance(start // 4)  # Philox4x64 makes four words a step
    return np.asarray(generator.random_raw(stop - start + start % 4)[start % 4 :])


def rank_map(column: int, values: FloatArray) -> RankMap:
    """Return the map of a column to normal scores, with at most 2·N_CELLS + 2 knots.

    `column`: the column's number among the inputs.
    `values`: float64 array of shape (n_rows,). A sample of the column.
    """
    distinct, counts = np.unique(values, return_counts=True)
    scores = scipy.special.ndtri((np.cumsum(counts) - 0.5 * counts) / len(values))
    grid = np.linspace(scores[0], scores[-1], N_CELLS + 1)
    above = np.searchsorted(scores, grid).clip(max=len(scores) - 1)
    kept = np.unique(np.concatenate([above, (above - 1).clip(min=0)]))
    return RankMap(column, distinct[kept], scores[kept])
