"""The protocol of ways to multiply fixed-point features: each gives the same whole numbers.

A fixed-point feature is a whole number q with |q| ≤ 127·128, in units of 2⁻¹⁴.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rff_dist.typing import FloatArray

FIXED_POINT_BITS = 14  # features are whole numbers times 2**-14, so that they lie in [-1, 1]
FIXED_POINT_ONE = 127 * 128  # stands for a cosine of 1, and splits into two signed bytes
ONE = 2.0**FIXED_POINT_BITS
MOST_ROWS = 2**17  # rows that every way sums without rounding: sums of products of bytes stay below 2³¹


class Tile(ABC):
    """Features of some rows, laid out for products with each other.

    Threads may write different features at the same time, and then ask for different products.

    `n_components`: components of each row.
    `n_rows`: rows that it holds at present.
    """

    n_components: int
    n_rows: int

    @abstractmethod
    def clear(self, n_rows: int) -> None:
        """Begin again with `n_rows` rows, at most as many as the tile was made for."""

    @abstractmethod
    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        """Return memory for the features of components `start:stop` and some rows.

        Returns a float64 array of shape (stop - start, number of rows), one component per line. The caller
          writes multiples of 2⁻¹⁴ to it and gives it back by `put`.
        """

    @abstractmethod
    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        """Take the features that were written to a panel."""

    @abstractmethod
    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        """Write Z'Z for components of `left` and `right`: exact sums over all rows, multiples of 2⁻²⁸.

        `left`, `right`: ranges of components, equal or without a common one. Each begins at a multiple of
          256, and ends at one or at the last component.
        `out`: float64 array of shape (n_left, n_right). Overwritten.
        """


class Products:
    """A way to multiply fixed-point features.

    `tile`: makes memory for the features of (number of components, number of rows, at most 2¹⁷).
    `name`: its name in `RFF_DIST_PRODUCTS`.
    `region`: components on each side of a product at which it is fastest.
    """

    name: ClassVar[str]
    region: int = 512

    tile: Callable[[int, int], Tile]


# -- A 15-bit whole number as two bytes ------------------------------------------------------------
#
# Then qq' = 2¹⁴·hh' + 2⁷·(hl' + lh') + ll': four products of bytes, with sums of 32 bits.


type Bytes = NDArray[np.uint8]
type SignedBytes = NDArray[np.int8]
type Int32Array = NDArray[np.int32]

SIGN = 128  # an unsigned byte is the signed byte that it stands for, plus this
_PANEL = 64  # lines that are combined at once, so that they stay in the cache


def split(features: FloatArray) -> Bytes:
    """Return the bytes h + 128 and l + 128 of multiples of 2⁻¹⁴, array of shape (2, *features.shape)."""
    numbers = np.empty(features.shape, np.int16)
    np.multiply(features, ONE, out=numbers, casting="unsafe")
    numbers += SIGN * 128 + 64  # q is now 128·(h + 128) + (l + 64), both parts positive
    planes = np.empty((2, *features.shape), np.uint8)
    planes[1] = (numbers & 127) + 64
    planes[0] = np.right_shift(numbers, 7, out=numbers)
    return planes


def combine(high: Int32Array, middle: Int32Array, low: Int32Array, out: FloatArray) -> None:
    """Write 2⁻²⁸·(2¹⁴·high + 2⁷·middle + low) to a float64 array, in which it is exact."""
    for i in range(0, len(high), _PANEL):
        lines = slice(i, i + _PANEL)
        panel = high[lines] * 128.0
        panel += middle[lines]
        panel *= 128.0
        panel += low[lines]
        np.multiply(panel, ONE**-2, out=out[lines])


# -- products by float64 BLAS, the specification ---------------------------------------------------


REGION = 1024  # components: 0.91 of dsyrk at D = 4,096, where 512 reach 0.83 and 2,048 reach 0.93


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
        pass  # `panel` gave the tile's own memory

    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        np.matmul(self._features[left], self._features[right].T, out=out)


class Float64Products(Products):
    """Products by NumPy's own BLAS, which the caller limits to one thread."""

    name = "float64"
    tile = Float64Tile

    def __init__(self, region: int = REGION) -> None:
        self.region = region
