"""How well predicted standard deviations fit the errors on test rows.

Rows and a model that predicts with standard deviations go in; exact sums come out, and
densities and coverages follow from these. The errors alone would not show whether the
deviations are too small.
"""

from __future__ import annotations

import numpy as np
import scipy

from rff_dist.data import blocks
from rff_dist.fitting import evaluation
from rff_dist.numerics import exact_sums
from rff_dist.ridge.uncertainty import PredictiveModel, predict_rows_with_std
from rff_dist.typing import FloatArray, frozen

# Nominal coverages: how many rows lie in the central interval of each is counted.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


@frozen(eq=False)
class Calibration:
    """Exact sums of how well standard deviations s fit errors; `+` joins two sets.

    Each row is judged as one new observation of the training rows' mean weight, N(f,
    s²), and counts by its own weight. A target without noise (s = 0) has no density:
    its scores and densities are NaN.
    """

    #: Errors of the means f.
    errors: evaluation.Errors
    #: Weighted sums of −log N(y; f, s²) per target, in nats.
    log_losses: exact_sums.ExactSum
    #: Weighted sums of ((y − f)/s)² per target.
    squared_scores: exact_sums.ExactSum
    #: Weight of the rows inside the central interval of each of `LEVELS`, the
    #: interval's ends included; shape (n_levels, n_targets).
    covered: exact_sums.ExactSum
    #: Weighted sums of s per target.
    deviations: exact_sums.ExactSum
    #: Standard deviation of each training target, shape (n_targets,).
    target_scale: FloatArray

    def __add__(self, other: Calibration) -> Calibration:
        return exact_sums.add_fields(self, other, target_scale=self.target_scale)

    @property
    def nlpd(self) -> FloatArray:
        """Negative log predictive density per target, the mean of −log N(y; f, s²)."""
        return self._of_noisy(self.log_losses)

    @property
    def standardized_nlpd(self) -> FloatArray:
        """NLPD of targets divided by their standard deviations, as papers report it."""
        with np.errstate(divide="ignore"):
            return np.where(
                self.target_scale > 0, self.nlpd - np.log(self.target_scale), np.nan
            )

    @property
    def mean_squared_score(self) -> FloatArray:
        """Mean of ((y − f)/s)² per target: above 1 if s is too small on average."""
        return self._of_noisy(self.squared_scores)

    @property
    def coverage(self) -> FloatArray:
        """Share of rows inside the intervals of `LEVELS`, (n_levels, n_targets)."""
        return self.covered.value() / self.errors.weight.value()

    @property
    def mean_standard_deviation(self) -> FloatArray:
        """Mean of s per target, in the target's units."""
        return self.deviations.value() / self.errors.weight.value()

    @property
    def mean_widths(self) -> FloatArray:
        """Mean width of the intervals of `LEVELS`, shape (n_levels, n_targets)."""
        return np.outer(2.0 * _quantiles(), self.mean_standard_deviation)

    def _of_noisy(self, sums: exact_sums.ExactSum) -> FloatArray:
        """Return means per target; NaN for targets without noise."""
        means = sums.value() / self.errors.weight.value()
        return np.where(self.deviations.value() > 0, means, np.nan)


def _quantiles() -> FloatArray:
    """Return half widths of the central intervals in units of s, shape (n_levels,)."""
    return np.asarray(scipy.special.ndtri((1.0 + np.array(LEVELS)) / 2.0))


def calibrate_rows(rows: blocks.Rows, model: PredictiveModel) -> Calibration:
    """Return the errors and the calibration of a model on a block.

    Raises DataError if the block has no targets, or as `predict_rows_with_std`. Source:
    Gneiting & Raftery (2007), Strictly Proper Scoring Rules, section 4.1 (the
    logarithmic score).
    """
    y, weights = evaluation.evaluated_targets(rows)
    predictions, deviations = predict_rows_with_std(rows, model)
    residual = np.abs(y - predictions)
    has_no_noise = deviations == 0.0
    divisor = np.where(has_no_noise, 1.0, deviations)
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        squared = np.where(has_no_noise, 0.0, (residual / divisor) ** 2)
        densities = 0.5 * (np.log(2.0 * np.pi) + squared) + np.log(divisor)
        losses = np.where(has_no_noise, 0.0, densities)
        # |y − f| ≤ q·s rather than a quotient, so that a target without noise counts if
        # it is met exactly
        inside = np.stack(
            [weights @ (residual <= width * deviations) for width in _quantiles()]
        )
        sums = (weights @ losses, weights @ squared, inside, weights @ deviations)
    errors = evaluation.errors_of(y, weights, predictions, model.linear.intercept)
    log_losses, squared_scores, covered, spread = map(exact_sums.ExactSum.of, sums)
    return Calibration(
        errors, log_losses, squared_scores, covered, spread, model.target_scale
    )
