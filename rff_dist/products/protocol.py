"""The protocol of ways to multiply fixed-point features: each gives the same whole numbers.

A fixed-point feature is a whole number q with |q| ≤ 127·128, in units of 2⁻¹⁴.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

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
        """Begin anew with `n_rows` rows, at most as many as the tile was made for."""

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


class Products(ABC):
    """A way to multiply fixed-point features.

    `name`: its name in `RFF_DIST_PRODUCTS`.
    `region`: components on each side of a product at which it is fastest.
    `clock`: the clock that times it. By default that of the calling thread, which other processes do not
      disturb.
    """

    name: ClassVar[str]
    region: int = 512
    clock: Callable[[], float] = staticmethod(time.thread_time)

    @abstractmethod
    def tile(self, n_components: int, n_rows: int) -> Tile:
        """Return memory for the features of `n_rows` rows, at most 2¹⁷."""
