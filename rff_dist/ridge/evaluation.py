"""Errors of predictions as exact sums: mean squared and absolute error, bias, R²."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rff_dist.data.blocks import ROUNDING, Rows
from rff_dist.data.checks import check_targets
from rff_dist.errors import DataError
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.typing import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """Exact sums of a model's errors on the rows seen so far; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `weight`: ExactSum of shape (). Sum of the weights.
    `squared`, `absolute`, `residual`: ExactSum of shape (n_targets,). Weighted sums of (y - f)², |y - f| and
      y - f.
    `target`, `target_squared`: ExactSum of shape (n_targets,). Weighted sums of y and y², y counted from the
      model's intercept.
    `largest`: float64 array of shape (n_targets,). Largest |y - f|.
    """

    n_samples: int
    weight: ExactSum
    squared: ExactSum
    absolute: ExactSum
    residual: ExactSum
    target: ExactSum
    target_squared: ExactSum
    largest: FloatArray

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            self.n_samples + other.n_samples,
            self.weight + other.weight,
            self.squared + other.squared,
            self.absolute + other.absolute,
            self.residual + other.residual,
            self.target + other.target,
            self.target_squared + other.target_squared,
            np.maximum(self.largest, other.largest),
        )

    @property
    def mean_squared_error(self) -> FloatArray:
        """Mean of (y - f)² per target, in the target's units squared."""
        return self.squared.value() / self.weight.value()

    @property
    def mean_absolute_error(self) -> FloatArray:
        """Mean of |y - f| per target, in the target's units."""
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
        return np.where(variance > ROUNDING * mean_square, variance, 0.0)

    @property
    def r2(self) -> FloatArray:
        """Coefficient of determination per target; NaN for a constant target."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(
                self.target_variance > 0, 1 - self.mean_squared_error / self.target_variance, np.nan
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of each target as JSON-able values; R² is None for a constant target."""
        return {
            "n_samples": self.n_samples,
            "rmse": np.sqrt(self.mean_squared_error).tolist(),
            "mae": self.mean_absolute_error.tolist(),
            "bias": self.bias.tolist(),
            "r2": [None if np.isnan(value) else value for value in self.r2.tolist()],
        }


def evaluate_rows(rows: Rows, model: LinearModel) -> Errors:
    """Return the errors of a model on a block.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    check_evaluation(rows)
    return errors_of(rows, predict_rows(rows, model), model.intercept)


def check_evaluation(rows: Rows) -> None:
    """Check that a block has targets, and that they and the weights can be used."""
    if rows.y is None:
        raise DataError("the data have no y: an evaluation needs targets")
    check_targets(rows)


def errors_of(rows: Rows, predictions: FloatArray, intercept: FloatArray) -> Errors:
    """Return the errors of predictions that were made of a checked block.

    `rows`: with targets.
    `predictions`: float64 array of shape (n_samples, n_targets).
    `intercept`: float64 array of shape (n_targets,). The model's, which the targets' sums are counted from.
    """
    assert rows.y is not None  # `check_evaluation` says so
    weights = np.ones(len(rows.y)) if rows.sample_weight is None else rows.sample_weight
    residual = rows.y - predictions
    target = rows.y - intercept
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        sums = [weights @ values for values in (residual**2, np.abs(residual), residual, target, target**2)]
    squared, absolute, plain, target_sum, target_squared = map(ExactSum.of, sums)
    return Errors(
        n_samples=len(residual),
        weight=ExactSum.of(np.asarray(weights.sum())),
        squared=squared,
        absolute=absolute,
        residual=plain,
        target=target_sum,
        target_squared=target_squared,
        largest=np.abs(residual).max(axis=0, initial=0.0),
    )
