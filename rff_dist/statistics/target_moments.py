"""Means and variances of the targets, from sums that every pass makes of its tiles.

[Y, 1] of some rows goes in, where Y are targets minus offsets near their means; sums
and squares come out, and from their exact totals the targets' moments. Without offsets
the squares would lose the digits of targets with a large mean.
"""

from typing import Self

import numpy as np

from rff_dist.numerics import exact_sums
from rff_dist.typing import FloatArray, frozen

_TARGETS = 64  # whose products are made together
# A variance below this share of the mean square about the offset is rounding: the
# target is constant.
_CONSTANT = 1e-14


@frozen(eq=False)
class TargetMoments:
    """Means and squares of the targets, from exact sums of targets minus offsets."""

    #: The sum of the rows' weights; 0 for no rows, which then have no variances.
    weight: float
    #: Means minus the offsets, of shape (n_targets,).
    shifts: FloatArray
    #: Weighted sums of squares of the targets minus the offsets.
    squares: FloatArray
    offsets: FloatArray

    @classmethod
    def of(cls, targets: exact_sums.ExactSum, offsets: FloatArray) -> Self:
        """Read the total of `target_products` over all tiles."""
        sums, squares = targets.value()
        weight = float(sums[-1])
        shifts = sums[:-1] / weight if weight else np.zeros_like(offsets)
        return cls(weight, shifts, squares[:-1], offsets)

    @property
    def means(self) -> FloatArray:
        return self.offsets + self.shifts

    def sums_of_squares(self, *, centred: bool) -> FloatArray:
        """Return sums of squares about the means or about 0, shape (n_targets,)."""
        if centred:
            return np.maximum(self.squares - self.weight * self.shifts**2, 0.0)
        # Σ w·(d + o)² multiplied out, where d is a target minus its offset o
        return self.squares + self.weight * self.offsets * (
            2.0 * self.shifts + self.offsets
        )

    def variances(self, *, centred: bool = True) -> FloatArray:
        """Return population variances, or mean squares about 0.

        A constant target has exactly 0.
        """
        squares = self.sums_of_squares(centred=centred)
        return np.where(squares > _CONSTANT * self.squares, squares, 0.0) / self.weight

    @property
    def deviations(self) -> FloatArray:
        """Population standard deviations, shape (n_targets,)."""
        return np.sqrt(self.variances())


def target_products(right: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return the sums 1'W[Y, 1] and the squares 1'W[Y², 1] of a tile.

    `right` is [Y, 1], with Y minus offsets; the result has the shape
    (2, n_targets + 1).
    """
    last = right.shape[1] - 1
    sums = np.empty((2, last + 1))
    # Only the diagonal and the last column of Y'W[Y, 1] are needed, so it is made for a
    # few columns at a time.
    for first in range(0, max(1, last), _TARGETS):
        columns = [*range(first, min(first + _TARGETS, last)), last]
        these = np.take(right, columns, axis=1)
        weighted = these if weights is None else these * weights[:, np.newaxis]
        products = these.T @ weighted
        sums[0, columns] = products[:, -1]
        sums[1, columns] = np.diagonal(products)
    return sums
