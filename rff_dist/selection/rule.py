"""The rule by which errors choose an alpha: the largest that is as good as the best.

Errors of held-out units, folds or single rows, go in; the index of an alpha comes out,
or one for each target. The smallest error alone would follow chance: close errors do
not tell alphas apart, and a larger alpha depends less on single rows.
"""

from collections.abc import Callable
from typing import Self

import numpy as np

from rff_dist.numerics import exact_sums
from rff_dist.selection import grids
from rff_dist.typing import AnyArray, FloatArray, IndexArray, frozen

#: Returns how much larger than the best alpha's an error may be, for all alphas or for
#: each, from errors of shape (n_units, n_alphas) and the index of the best alpha.
type Slack = Callable[[FloatArray, int], float | FloatArray]


@frozen(eq=False)
class HeldOutUnits:
    """Held-out folds or rows, and how they count in means of errors.

    Arrays of errors have units along their first axis.
    """

    #: Weights of the units in a mean; they add up to 1.
    shares: FloatArray
    #: The variance of a mean is Σ spreads · squared deviations / divisor.
    spreads: FloatArray
    divisor: float = 1.0

    @classmethod
    def of_splits(cls, weights: FloatArray) -> Self:
        """Return splits, from their held-out rows' weights; one has no variance."""
        shares = weights / weights.sum()
        return cls(shares, shares, len(weights) - 1 or np.nan)

    @classmethod
    def of_rows(cls, weights: FloatArray, *, frequency_weights: bool) -> Self:
        """Return rows: one observation each, or with `frequency_weights` several."""
        total = float(weights.sum())
        shares = weights / total
        return cls(shares, shares / total if frequency_weights else np.square(shares))

    def mean(self, errors: FloatArray) -> AnyArray:
        return np.tensordot(self.shares, errors, axes=1)

    def standard_error(self, errors: FloatArray) -> AnyArray:
        """Return the standard errors of means; NaN for a single split."""
        # errors are squares, whose own squares may leave float64
        scale = exact_sums.scales_near(np.abs(errors).max())
        squares = np.square((errors - self.mean(errors)) / scale)
        variances = np.tensordot(self.spreads, squares, axes=1) / self.divisor
        return scale * np.sqrt(variances)

    def largest_as_good(self, errors: FloatArray, slack: Slack) -> int:
        """Return the index of the largest alpha whose mean error is good enough.

        It may exceed the smallest error by what `slack` returns.
        """
        means = self.mean(errors)
        best = grids.last_within(means, means.min() + grids.RESOLUTION)
        allowed = np.maximum(slack(errors, best), grids.RESOLUTION)
        return grids.last_within(means, means[best] + allowed)

    def own_alphas(
        self, errors: FloatArray, shared: int, slack: Slack, *, always: bool
    ) -> IndexArray:
        """Return each target's own alpha, or the `shared` one if its own saves little.

        Unless `always`, it must save more than 1 % of the target's error, and more than
        the standard error of the saving. Errors have shape (n_units, n_alphas,
        n_targets).
        """
        indices = np.full(errors.shape[2], shared)
        for target in range(len(indices)):
            own = errors[:, :, target]
            index = self.largest_as_good(own, slack)
            # both alphas have the same units, so what makes a unit hard cancels in the
            # saving and its standard error
            saved = own[:, shared] - own[:, index]
            noise = np.nan_to_num(self.standard_error(saved))
            material = grids.MATERIAL_GAIN * self.mean(own[:, shared])
            if always or self.mean(saved) > max(material, noise):
                indices[target] = index
        return indices
