"""What each way of multiplying fixed-point features promises: the same whole numbers as every other.

A fixed-point feature is a whole number q with |q| ≤ 127·128, in units of 2⁻¹⁴.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rff_dist.typing import FloatArray

type Int16Array = NDArray[np.int16]

FIXED_POINT_BITS = 14  # features are whole numbers times 2**-14, so that they lie in [-1, 1]
FIXED_POINT_ONE = 127 * 128  # the whole number that a cosine of 1 is: it splits into two bytes with signs
ONE = 2.0**FIXED_POINT_BITS
MOST_ROWS = 2**17  # that every way sums without rounding: bytes' sums stay below 2³¹


class Tile(ABC):
    """Features of some rows, laid out for products with each other.

    Threads may write different features, and then ask for different products, at the same time.

    `n_components`: of each row.
    `n_rows`: that it holds at present.
    """

    n_components: int
    n_rows: int

    @abstractmethod
    def clear(self, n_rows: int) -> None:
        """Begin anew with so many rows, at most those that it was made for."""

    @abstractmethod
    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        """Return memory for the features of components `start:stop` and some rows.

        Returns a float64 array of shape (stop - start, n_rows), one component per line. It takes multiples of
          2⁻¹⁴, and belongs to the caller until `put`.
        """

    @abstractmethod
    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        """Take the features that were written to a panel."""

    @abstractmethod
    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        """Write Z'Z for components of `left` and `right`: exact sums over all rows, multiples of 2⁻²⁸.

        `left`, `right`: of the components. Equal, or without a component in common; both begin at multiples
          of 256, and end at such or with the last component.
        `out`: float64 array of shape (n_left, n_right). Overwritten.
        """


class Products(ABC):
    """A way to multiply fixed-point features.

    `name`: what `RFF_DIST_PRODUCTS` calls it.
    `region`: components that a product of a tile is best made of, to the left and to the right.
    `clock`: seconds of its work: those of the calling thread, which other processes do not disturb.
    """

    name: ClassVar[str]
    region: int = 512
    clock: Callable[[], float] = staticmethod(time.thread_time)

    @abstractmethod
    def tile(self, n_components: int, n_rows: int) -> Tile:
        """Return memory for so many features, at most 2¹⁷ rows."""
