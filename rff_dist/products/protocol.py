"""The protocol of ways to multiply fixed-point features, and the plain way, float64.

Z is the matrix of features: a row for each row of the data, a column for each
*component*. Features of some rows are put into a `Tile`, which then computes blocks of
Z'Z. A feature is a whole number q with |q| ≤ 127·128, in units of 2⁻¹⁴, so all ways
give the same bits, on processors that multiply bytes and on others.

A cosine of 1 is stored as q = 127·128, which means 127/128 and not 1: 2¹⁴ itself would
not split into two signed bytes. The scales of a feature map undo this factor, see
`rff_dist.features.fourier`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rff_dist.typing import FloatArray

# features are whole numbers q times 2**-14, so that they lie in [-1, 1]
FIXED_POINT_BITS = 14
# q of the number 1
UNITS_PER_ONE = 2.0**FIXED_POINT_BITS
# q of a cosine of 1
COSINE_ONE = 127 * 128
# The most rows of a tile that every way sums without rounding: sums of products of
# bytes stay below 2³¹.
MOST_ROWS = 2**17


class Tile(ABC):
    """Features of some rows, laid out for products with each other.

    Threads may write different features at the same time, and then compute different
    products.
    """

    n_components: int
    #: The number of rows since the last `clear`.
    n_rows: int

    @abstractmethod
    def clear(self, n_rows: int) -> None:
        """Begin again with `n_rows` rows, at most as many as at construction."""

    @abstractmethod
    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        """Return memory for the features of components `start:stop` and some rows.

        It is a float64 array of shape (stop - start, number of rows). The caller writes
        multiples of 2⁻¹⁴ to it, and gives it back by `put`.
        """

    @abstractmethod
    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        """Take the features that were written to a panel."""

    @abstractmethod
    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        """Write Z'Z of the components `left` and `right` to `out`, exactly.

        The ranges are equal or without a common component. Each begins at a multiple of
        256, and ends at a multiple of 256 or at the last component.
        """


class Products:
    """A way to multiply fixed-point features."""

    #: The value of the environment variable `RFF_DIST_PRODUCTS` that chooses it.
    name: ClassVar[str]
    #: The number of components on each side of a square of Z'Z that is made fastest.
    region: int = 512
    #: Called with the number of components and of rows, at most `MOST_ROWS`.
    make_tile: Callable[[int, int], Tile]


# -- a 15-bit whole number as two bytes
#
# q = 128·h + l, with h from -127 to 127 and l from -64 to 63. Then
# qq' = 2¹⁴·hh' + 2⁷·(hl' + lh') + ll': four products of bytes, with sums of 32 bits.


type Bytes = NDArray[np.uint8]
type SignedBytes = NDArray[np.int8]
type Int32Array = NDArray[np.int32]

SIGN = 128  # a signed byte plus this is stored as an unsigned byte
_COMBINED_LINES = 64  # combined at once, so that they stay in the cache


def split(features: FloatArray) -> Bytes:
    """Split multiples of 2⁻¹⁴ into the bytes h and l above, each stored plus 128.

    The result has all h, and then all l.

    100 = 128·1 - 28, so its bytes are 1 + 128 and -28 + 128:

    >>> split(np.array([100 / 2**14])).tolist()
    [[129], [100]]
    """
    numbers = np.empty(features.shape, np.int16)
    np.multiply(features, UNITS_PER_ONE, out=numbers, casting="unsafe")
    # This makes 128·(h + 128) + (l + 64): neither part is negative, so l + 64 are the
    # lowest 7 bits, and another 64 makes it the unsigned byte l + 128.
    numbers += SIGN * 128 + 64
    planes = np.empty((2, *features.shape), np.uint8)
    planes[1] = (numbers & 127) + 64
    planes[0] = np.right_shift(numbers, 7, out=numbers)
    return planes


def combine(
    high: Int32Array, middle: Int32Array, low: Int32Array, out: FloatArray
) -> None:
    """Write 2⁻²⁸·(2¹⁴·high + 2⁷·middle + low) to `out`, in which it is exact."""
    for i in range(0, len(high), _COMBINED_LINES):
        lines = slice(i, i + _COMBINED_LINES)
        sums = high[lines] * 128.0
        sums += middle[lines]
        sums *= 128.0
        sums += low[lines]
        np.multiply(sums, UNITS_PER_ONE**-2, out=out[lines])


# -- products by float64 BLAS, the specification


# `region` of float64 products. With 4,096 components its speed is 0.91 of dsyrk's; a
# region of 512 has 0.83, of 2,048 0.93.
FLOAT64_REGION = 1024


class Float64Tile(Tile):
    """Features in float64, one component per line, written where products find them.

    Features without a fixed point may be put here too; their sums are then rounded.
    """

    def __init__(self, n_components: int, n_rows: int) -> None:
        self.n_components = n_components
        self._memory = np.empty((n_components, n_rows))
        self.clear(n_rows)

    def clear(self, n_rows: int) -> None:
        self.n_rows = n_rows
        self._features = self._memory[:, :n_rows]

    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        return self._features[start:stop, rows]

    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        pass  # the caller wrote to the tile's own memory, which `panel` returned

    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        np.matmul(self._features[left], self._features[right].T, out=out)


class Float64Products(Products):
    """Products by NumPy's own BLAS, which the caller limits to one thread."""

    name = "float64"
    make_tile = Float64Tile

    def __init__(self, region: int = FLOAT64_REGION) -> None:
        self.region = region
