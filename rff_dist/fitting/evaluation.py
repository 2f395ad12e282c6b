"""Errors of predictions as exact sums: mean squared and absolute error, bias, R².

Blocks of rows and a model go in; sums come out that add up without rounding, over all
rows and for each group, so that figures do not depend on how rows were divided among
workers.
"""

from collections.abc import Callable
from typing import Any, Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import DataError
from rff_dist.fitting import predicting
from rff_dist.numerics import exact_sums
from rff_dist.typing import AnyArray, FloatArray, Summary, frozen

#: The most groups whose errors are kept: a column with more values has ids, no groups.
MOST_GROUPS = 50
_SMALLEST_FOURTH = 1e-290  # float64 has few digits of smaller numbers


@frozen
class GroupErrors[T]:
    """Sums over all rows, and over those of each group."""

    whole: T
    #: By the group's name; None if there are more than `MOST_GROUPS`.
    groups: dict[str, T] | None

    def __add__(self, other: Self) -> Self:
        if self.groups is None or other.groups is None:
            return exact_sums.add_fields(self, other, groups=None)
        merged: Summary = dict(self.groups)
        for name, part in other.groups.items():
            merged[name] = merged[name] + part if name in merged else part
        kept = merged if len(merged) <= MOST_GROUPS else None
        return exact_sums.add_fields(self, other, groups=kept)


def by_group[T](
    sums: Callable[[Any], T], groups: AnyArray | None, weights: FloatArray
) -> GroupErrors[T]:
    """Return the sums of a block's rows, and of each group that has weight.

    `sums` takes a NumPy index of rows, and returns the sums of these.
    """
    names = [] if groups is None else np.unique(groups[weights > 0]).tolist()
    sums_of_groups = None
    if len(names) <= MOST_GROUPS:
        sums_of_groups = {str(name): sums(groups == name) for name in names}
    return GroupErrors(sums(slice(None)), sums_of_groups)


@frozen(eq=False)
class Errors:
    """Exact sums of a model's errors y − f; `+` joins two sets of rows.

    Sums per target are weighted, with weights w.
    """

    n_samples: int
    #: Sum of the weights.
    weight: exact_sums.ExactSum
    #: Sums of (y − f)², |y − f| and y − f per target.
    squared: exact_sums.ExactSum
    absolute: exact_sums.ExactSum
    residual: exact_sums.ExactSum
    #: Sums of y − b and (y − b)² per target, b the model's intercept.
    target: exact_sums.ExactSum
    target_squared: exact_sums.ExactSum
    #: Sums of w²(y − f)⁴, w²(y − f)² and w², shape (3, n_targets), for standard errors;
    #: None if fourth powers overflow or vanish.
    spread: exact_sums.ExactSum | None
    #: Largest |y − f| per target.
    largest: FloatArray

    def __add__(self, other: Self) -> Self:
        fields: Summary = {"largest": np.maximum(self.largest, other.largest)}
        if self.spread is None or other.spread is None:
            fields["spread"] = None
        return exact_sums.add_fields(self, other, **fields)

    @property
    def mean_squared_error(self) -> FloatArray:
        """`sklearn.metrics.mean_squared_error` per target, in its units squared."""
        return self.squared.value() / self.weight.value()

    @property
    def n_effective(self) -> FloatArray:
        """How many rows of equal weight would give means that vary as much; NaN if
        unknown (Kish 1965).
        """
        if self.spread is None:
            return np.full(len(self.largest), np.nan)
        return np.asarray(self.weight.value() ** 2 / self.spread.value()[2])

    @property
    def squares_variance(self) -> FloatArray:
        """Variance of the rows' squared errors; 0 for a single row, NaN if unknown."""
        mse = self.mean_squared_error
        if self.spread is None:
            return np.full(len(mse), np.nan)
        fourth, second, weight_squares = self.spread.value()
        # Cochran 1977, ch. 6: a weighted mean is a ratio of sums. If all errors are
        # equal, rounding may make the difference negative.
        squares = np.maximum(fourth - 2 * mse * second + mse**2 * weight_squares, 0.0)
        variance = (
            squares / weight_squares * self.n_samples / max(1, self.n_samples - 1)
        )
        return np.asarray(variance)

    @property
    def rmse_standard_error(self) -> FloatArray:
        """Standard error of the RMSE, as if rows were independent; NaN if unknown."""
        mse = self.mean_squared_error
        if self.n_samples < 2:
            return np.full(len(mse), np.nan)
        deviation = np.sqrt(self.squares_variance / self.n_effective)
        with np.errstate(invalid="ignore", divide="ignore"):
            # d√m = dm / (2√m)
            return np.where(mse > 0, deviation / (2 * np.sqrt(mse)), 0.0)

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
        """Population variance of each target on these rows; 0 for a constant one."""
        total = self.weight.value()
        mean_square = self.target_squared.value() / total
        variance = mean_square - (self.target.value() / total) ** 2
        # the variance of a constant target is rounding error
        return np.where(variance > blocks.ROUNDING * mean_square, variance, 0.0)

    @property
    def r2(self) -> FloatArray:
        """`sklearn.metrics.r2_score` per target; NaN for a constant target."""
        variance = self.target_variance
        with np.errstate(divide="ignore", invalid="ignore"):
            r2 = 1 - self.mean_squared_error / variance
        return np.where(variance > 0, r2, np.nan)

    def to_dict(self) -> Summary:
        """Return the figures of each target as JSON-able values, None if unknown."""

        def or_none(values: FloatArray) -> list[float | None]:
            return [None if np.isnan(value) else value for value in values.tolist()]

        return {
            "n_samples": self.n_samples,
            "rmse": np.sqrt(self.mean_squared_error).tolist(),
            "rmse_standard_error": or_none(self.rmse_standard_error),
            "mae": self.mean_absolute_error.tolist(),
            "bias": self.bias.tolist(),
            "r2": or_none(self.r2),
        }


def evaluate_rows(
    rows: blocks.Rows, model: predicting.LinearModel
) -> GroupErrors[Errors]:
    """Return the errors of a model on a block, and on each of its groups.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    y, weights = evaluated_targets(rows)
    predictions = predicting.predict_rows(rows, model)

    def sums(at: Any) -> Errors:
        return errors_of(y[at], weights[at], predictions[at], model.intercept)

    return by_group(sums, rows.groups, weights)


def evaluated_targets(rows: blocks.Rows) -> tuple[FloatArray, FloatArray]:
    """Return a block's targets and weights; weights are 1 by default.

    Raises DataError if it has no targets, or these or the weights cannot be used.
    """
    if rows.y is None:
        raise DataError("the data have no y: an evaluation needs targets")
    blocks.check_targets(rows)
    return rows.y, rows.weights


def errors_of(
    y: FloatArray, weights: FloatArray, predictions: FloatArray, intercept: FloatArray
) -> Errors:
    """Return the errors of a block's predictions, shape (n_samples, n_targets)."""
    residual = y - predictions
    # the intercept is near the mean, so the variance of the difference loses few digits
    target = y - intercept
    exact = exact_sums.ExactSum.of
    with np.errstate(over="ignore"):  # `ExactSum.of` refuses what is not finite
        spread = np.stack([weights**2 @ residual**power for power in (4, 2, 0)])
        absolute = weights @ np.abs(residual)
        vanishes = (spread[0] < _SMALLEST_FOURTH) & (absolute > 0)
        is_known = np.isfinite(spread).all() and not vanishes.any()
        return Errors(
            n_samples=len(residual),
            weight=exact(np.asarray(weights.sum())),
            squared=exact(weights @ residual**2),
            absolute=exact(absolute),
            residual=exact(weights @ residual),
            target=exact(weights @ target),
            target_squared=exact(weights @ target**2),
            spread=exact(spread) if is_known else None,
            largest=np.abs(residual).max(axis=0, initial=0.0),
        )
