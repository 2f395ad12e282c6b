"""A sample of rows that passes can draw block by block, for the quantiles of columns.

Blocks go in; some thousand rows come out, which depend neither on the blocks' edges nor
on their order.
Each row has a key, a random number that depends on the row's number only, and the
sample consists of the rows with the smallest keys. So the samples of two sets of rows
can be merged into the sample of both, which a generator's choices could not.

If the data have no more rows than the sample holds, it has all of them and quantiles
are exact. Otherwise the standard error of a quantile's rank is at most 1/(2√n_rows),
0.8 % for 4,096 rows.

References
----------
Cohen & Kaplan (2007), Summarizing data using bottom-k sketches, PODC. Salmon et al.
(2011), Random123, on the keys.
"""

from typing import Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Rows
from rff_dist.frequencies import uniforms
from rff_dist.typing import FloatArray, IntArray, frozen

# A sample has MAX_ROWS rows; with many columns fewer, but at least MIN_ROWS. A
# histogram by the leading bits of floats would need no sample, but would put most
# values of a column that lies far from 0 into one bin.
MAX_ROWS = 4096
MIN_ROWS = 512
# values in a sample, 32 MiB: with more than 1,024 columns it has fewer rows
MAX_VALUES = 2**22
# The seed of the keys, far from users' seeds, and its stream of random numbers.
_KEY_SEED = 0x726F7773
_KEY_STREAM = 0


@frozen(eq=False)
class RowSample:
    """The rows with the smallest keys so far; `+` joins two sets of rows."""

    #: The most rows.
    size: int
    #: Ascending, of shape (n_rows,).
    keys: NDArray[np.uint64]
    #: Of shape (n_rows, n_columns).
    values: FloatArray
    #: Above 0, of shape (n_rows,).
    weights: FloatArray

    @classmethod
    def empty(cls, size: int, n_columns: int) -> Self:
        return cls(size, np.zeros(0, np.uint64), np.empty((0, n_columns)), np.empty(0))

    def __add__(self, other: Self) -> Self:
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys, kind="stable")[: self.size]
        values = np.concatenate([self.values, other.values])
        weights = np.concatenate([self.weights, other.weights])
        return type(self)(self.size, keys[order], values[order], weights[order])


def sample_size(n_columns: int) -> int:
    """Return how many rows a sample of `n_columns` columns has."""
    return max(MIN_ROWS, min(MAX_ROWS, MAX_VALUES // n_columns))


def sample_block(rows: Rows, columns: IntArray) -> RowSample:
    """Return the sample of a block's rows, with these columns only.

    Rows of weight 0 are never in it.
    """
    size = sample_size(len(columns))
    keys = uniforms.row_words(_KEY_SEED, _KEY_STREAM, rows.block.start, rows.block.stop)
    weights = rows.weights
    candidates = np.flatnonzero(weights > 0)
    chosen = candidates[np.argsort(keys[candidates], kind="stable")[:size]]
    values = rows.X[chosen[:, np.newaxis], columns].astype(np.float64)
    return RowSample(size, keys[chosen], values, weights[chosen])
