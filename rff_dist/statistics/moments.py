"""Moments of the columns of X and y, and what else inspects a dataset's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import ROUNDING, Rows
from rff_dist.data.checks import check_finite
from rff_dist.errors import DataError, StatisticsError
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.typing import FloatArray

_LARGEST_BASE = 1e40  # of a fourth power that float64 can still weight and sum


@dataclass(frozen=True, slots=True)
class Moments:
    """What a first, cheap pass learns of the data: enough to standardise and to fix the sums' grids.

    `n_samples`: rows counted.
    `pivot`: float64 array of shape (n_columns,). Subtracted before anything is summed: the first row, so that
      large means cancel nothing.
    `sums`, `squares`, `cubes`, `fourths`: ExactSum of shape (n_columns,). Weighted sums of the shifted
      columns [X, y] and of their powers; for the third and the fourth values beyond 1e40 count as 1e40.
    `weight`: ExactSum of shape (). Sum of the weights.
    `largest_weight`, `smallest_weight`: of the weights above 0; 1 without weights.
    `minimum`, `maximum`: float64 arrays of shape (n_columns,). Of the columns [X, y].
    `n_targets`: how many of the columns are targets, at the end.
    """

    n_samples: int
    pivot: FloatArray
    sums: ExactSum
    squares: ExactSum
    cubes: ExactSum
    fourths: ExactSum
    weight: ExactSum
    largest_weight: float
    smallest_weight: float
    minimum: FloatArray
    maximum: FloatArray
    n_targets: int

    def __add__(self, other: Moments) -> Moments:
        if self.n_targets != other.n_targets or not np.array_equal(self.pivot, other.pivot):
            raise StatisticsError(
                f"these moments do not belong together: pivots {self.pivot} and {other.pivot}, "
                f"{self.n_targets} and {other.n_targets} targets; measure all blocks with the same pivot"
            )
        added = ("n_samples", "sums", "squares", "cubes", "fourths", "weight")
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in added},
            largest_weight=max(self.largest_weight, other.largest_weight),
            smallest_weight=min(self.smallest_weight, other.smallest_weight),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    @property
    def n_features(self) -> int:
        """How many of the columns are inputs, at the beginning."""
        return len(self.pivot) - self.n_targets

    @property
    def means(self) -> FloatArray:
        """Weighted means of the columns [X, y]."""
        return self.pivot + self.sums.value() / self.weight.value()

    @property
    def standard_deviations(self) -> FloatArray:
        """Weighted population standard deviations of the columns [X, y]; 0 where a column is constant."""
        total = self.weight.value()
        shifted = self.sums.value() / total
        variances = self.squares.value() / total - shifted**2
        return np.sqrt(np.where(variances > ROUNDING * self.squares.value() / total, variances, 0.0))


def measure_moments(rows: Rows, pivot: FloatArray) -> Moments:
    """Return the moments of a block's columns [X, y].

    `rows`: as read.
    `pivot`: float64 array of shape (n_features + n_targets,). The dataset's first row.
    Raises DataError if a value is not finite, a weight is negative, or a square overflows float64.
    """
    columns = np.ascontiguousarray(rows.X, np.float64)  # sums of other orders round otherwise
    check_finite(rows, columns)
    if rows.y is not None:
        columns = np.hstack([columns, rows.y])
    minimum, maximum = columns.min(axis=0, initial=np.inf), columns.max(axis=0, initial=-np.inf)
    weights = np.ones(len(columns)) if rows.sample_weight is None else rows.sample_weight
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        columns = columns - pivot
        sums, squares = weights @ columns, weights @ columns**2
    if not np.isfinite(squares).all():
        column = int(np.argmin(np.isfinite(squares)))
        raise DataError(
            f"Input {name_column(column, rows.X.shape[1])} overflows float64 when it is squared: it reaches "
            f"{np.abs(columns[:, column]).max():.3g} in rows {rows.block.start:_} to {rows.block.stop:_}; "
            "scale it down"
        )
    cubes, fourths = _higher_powers(columns, weights)
    weighted = rows.sample_weight is not None
    return Moments(
        n_samples=len(columns),
        pivot=pivot,
        sums=ExactSum.of(sums),
        squares=ExactSum.of(squares),
        cubes=ExactSum.of(cubes),
        fourths=ExactSum.of(fourths),
        weight=ExactSum.of(np.asarray(weights.sum())),
        largest_weight=float(weights.max(initial=0.0)) if weighted else 1.0,
        smallest_weight=float(weights.min(initial=np.inf, where=weights > 0)) if weighted else 1.0,
        minimum=minimum,
        maximum=maximum,
        n_targets=0 if rows.y is None else rows.y.shape[1],
    )


def name_column(column: int, n_features: int) -> str:
    """Name one of the columns [X, y] in messages."""
    return f"X, column {column}" if column < n_features else f"y, column {column - n_features}"


def _higher_powers(columns: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the weighted sums of third and fourth powers, finite in any case."""
    bounded = np.clip(columns, -_LARGEST_BASE, _LARGEST_BASE)
    squares = bounded * bounded
    with np.errstate(over="ignore"):  # weights that large are refused later, with a reason
        sums = weights @ (squares * bounded), weights @ (squares * squares)
    limit = np.finfo(np.float64).max
    return np.clip(sums[0], -limit, limit), np.minimum(sums[1], limit)


_CANCELLED = 1e-13  # as `ROUNDING` where rows were taken out, which were summed up in other blocks


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMoments:
    """Means and central moments of the input columns over some rows; `+` joins two sets of rows.

    Rows are taken out by adding them with a weight below 0.

    `n_samples`: rows that count alike: the sum of weights that repeat rows; with weights that say how precise
      a row is the least number that they can stand for, the sum of weights in units of the largest.
    `weight`: sum of the weights.
    `mean`, `second`, `third`, `fourth`: float64 arrays of shape (n_features,). Mean, and mean powers of the
      deviations from it.
    `rounding`: float64 array of shape (n_features,). Means or deviations that differ by less may be the same,
      since rounding is left where most of what varied was taken out.
    """

    n_samples: float
    weight: float
    mean: FloatArray
    second: FloatArray
    third: FloatArray
    fourth: FloatArray
    rounding: FloatArray

    @classmethod
    def of(cls, moments: Moments, *, frequency_weights: bool = False) -> Self:
        """Return those of the inputs of a pass of moments, whose weights repeat rows or do not."""
        n_features = moments.n_features
        weight = float(moments.weight.value())
        sums = (moments.sums, moments.squares, moments.cubes, moments.fourths)
        raw = [one.value()[:n_features] / weight for one in sums]
        second, third, fourth = _about(-raw[0], *raw)
        second = np.where(second > ROUNDING * raw[1], second, 0.0)
        largest = 1.0 if frequency_weights else moments.largest_weight
        return cls(
            weight / largest,
            weight,
            moments.pivot[:n_features] + raw[0],
            second,
            third,
            np.maximum(fourth, 0),
            np.zeros(n_features),
        )

    def __add__(self, other: ColumnMoments) -> ColumnMoments:
        weight = self.weight + other.weight
        mean = self.mean + (other.weight / weight) * (other.mean - self.mean)
        moved = [
            (part.weight / weight, _about(part.mean - mean, np.zeros_like(mean), *part.central))
            for part in (self, other)
        ]
        second, third, fourth = (
            np.asarray(sum(share * parts[i] for share, parts in moved)) for i in range(3)
        )
        rounding = np.maximum(self.rounding, other.rounding)
        if min(self.weight, other.weight) < 0:
            summed = np.abs([share * parts[0] for share, parts in moved]).sum(axis=0)
            rounding = np.maximum(rounding, np.sqrt(_CANCELLED * summed))
        n_samples = self.n_samples + other.n_samples
        return ColumnMoments(n_samples, weight, mean, second, third, fourth, rounding)

    @property
    def central(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The second, third and fourth central moments."""
        return self.second, self.third, self.fourth

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that store the moments; `from_arrays` is the way back."""
        return {
            "weights": np.array([self.n_samples, self.weight]),
            "moments": np.array([self.mean, *self.central, self.rounding]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Read what `to_arrays` returned."""
        n_samples, weight = np.asarray(arrays["weights"], np.float64)
        moments = np.asarray(arrays["moments"], np.float64)
        mean, second, third, fourth = moments[:4]
        rounding = moments[4] if len(moments) > 4 else np.zeros_like(mean)  # older releases did not keep it
        return cls(float(n_samples), float(weight), mean, second, third, fourth, rounding)


def _about(
    offset: FloatArray, first: FloatArray, second: FloatArray, third: FloatArray, fourth: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean second to fourth powers of x + offset, where the first four are those of x."""
    return (
        second + offset * (2 * first + offset),
        third + offset * (3 * second + offset * (3 * first + offset)),
        fourth + offset * (4 * third + offset * (6 * second + offset * (4 * first + offset))),
    )
