"""Errors of predictions as exact sums: mean squared and absolute error, bias, R²."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import DataError
from rff_dist.fitting import predicting
from rff_dist.numerics import exact_sums
from rff_dist.typing import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """Exact sums of a model's errors on the rows seen so far; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `weight`: ExactSum of shape (). Sum of the weights.
    `squared`, `absolute`, `residual`: ExactSum of shape (n_targets,). Weighted sums of (y - f)², |y - f| and
      y - f.
    `target`, `target_squared`: ExactSum of shape (n_targets,). Weighted sums of y − b and (y − b)², b the
      model's intercept.
    `largest`: float64 array of shape (n_targets,). Largest |y - f|.
    """

    n_samples: int
    weight: exact_sums.ExactSum
    squared: exact_sums.ExactSum
    absolute: exact_sums.ExactSum
    residual: exact_sums.ExactSum
    target: exact_sums.ExactSum
    target_squared: exact_sums.ExactSum
    largest: FloatArray

    def __add__(self, other: Self) -> Self:
        return exact_sums.add_fields(self, other, largest=np.maximum(self.largest, other.largest))

    @property
    def mean_squared_error(self) -> FloatArray:
        """`sklearn.metrics.mean_squared_error` per target, in the target's units squared."""
        return self.squared.value() / self.weight.value()

    @property
    def mean_absolute_error(self) -> FloatArray:
        """`sklearn.metrics.mean_absolute_error` per target, in the target's units."""
        return self.absolute.value() / self.weight.value()

    @property
    def bias(self) -> FloatArray:
        """Mean of y - f per target, in the target's units."""
        return self.residual.value() / self.weight.value()

    @property
    def target_variance(self) -> FloatArray:
        """Population variance of each target on these rows; 0 where it is constant."""
        total = self.weight.value()
        mean_square = self.target_squared.value() / total
        variance = mean_square - (self.target.value() / total) ** 2
        # a constant target leaves rounding
        return np.where(variance > blocks.ROUNDING * mean_square, variance, 0.0)

    @property
    def r2(self) -> FloatArray:
        """`sklearn.metrics.r2_score` per target; NaN for a constant target."""
        variance = self.target_variance
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(variance > 0, 1 - self.mean_squared_error / variance, np.nan)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of each target as JSON-able values; R² is None for a constant target."""
        return {
            "n_samples": self.n_samples,
            "rmse": np.sqrt(self.mean_squared_error).tolist(),
            "mae": self.mean_absolute_error.tolist(),
            "bias": self.bias.tolist(),
            "r2": [None if np.isnan(value) else value for value in self.r2.tolist()],
        }


def evaluate_rows(rows: blocks.Rows, model: predicting.LinearModel) -> Errors:
    """Return the errors of a model on a block.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    y, weights = evaluated_targets(rows)
    return errors_of(y, weights, predicting.predict_rows(rows, model), model.intercept)


def evaluated_targets(rows: blocks.Rows) -> tuple[FloatArray, FloatArray]:
    """Return a block's targets and weights; weights are 1 by default.

    Raises DataError if it has no targets, or these or the weights cannot be used.
    """
    if rows.y is None:
        raise DataError("the data have no y: an evaluation needs targets")
    blocks.check_targets(rows)
    return rows.y, np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight


def errors_of(y: FloatArray, weights: FloatArray, predictions: FloatArray, intercept: FloatArray) -> Errors:
    """Return the errors of predictions for a block.

    `y`, `weights`: from `evaluated_targets`.
    `predictions`: float64 array of shape (n_samples, n_targets).
    `intercept`: float64 array of shape (n_targets,). The model's; see `Errors`.
    """
    # about the intercept, which is near the mean: the variance then loses few digits
    residual, target = y - predictions, y - intercept
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        sums = [weights @ values for values in (residual**2, np.abs(residual), residual, target, target**2)]
    weight = exact_sums.ExactSum.of(np.asarray(weights.sum()))
    largest = np.abs(residual).max(axis=0, initial=0.0)
    squared, absolute, plain, target_sum, target_squared = map(exact_sums.ExactSum.of, sums)
    return Errors(len(residual), weight, squared, absolute, plain, target_sum, target_squared, largest)
