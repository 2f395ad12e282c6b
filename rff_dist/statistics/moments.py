"""Moments of the columns of X and y: exact sums of a first pass, and the central moments of models."""

from typing import Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import DataError, StatisticsError
from rff_dist.numerics import exact_sums
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, Arrays, FloatArray, frozen

# Columns that reach less or more far from the pivot have squares, or fourth powers, that float64 cannot hold
# with all digits, or cannot weight and sum.
SQUARED_RANGE = 1e-145, 1e150
FOURTH_RANGE = 1e-70, 1e40
_CANCELS = 1e-6


@frozen
class Moments:
    """What a first, cheap pass measures: enough to standardise the data and to fix the grids of the sums.

    `n_samples`: rows counted.
    `pivot`: float64 array of shape (n_columns,). Subtracted before anything is summed, so that large means
      cause no cancellation: the first row.
    `sums`, `squares`, `cubes`, `fourths`: ExactSum of shape (n_columns,). Weighted sums of the shifted
      columns [X, y] and of their powers. Values beyond 1e40 count as 1e40 in cubes and fourths.
    `weight`: ExactSum of shape (). Sum of the weights.
    `largest_weight`, `smallest_weight`: extremes of the weights above 0; 1 without weights.
    `minimum`, `maximum`: float64 arrays of shape (n_columns,). Extremes of the columns [X, y], of rows with
      weight.
    `n_targets`: the last `n_targets` columns are targets.
    """

    n_samples: int
    pivot: FloatArray
    sums: exact_sums.ExactSum
    squares: exact_sums.ExactSum
    cubes: exact_sums.ExactSum
    fourths: exact_sums.ExactSum
    weight: exact_sums.ExactSum
    largest_weight: float
    smallest_weight: float
    minimum: FloatArray
    maximum: FloatArray
    n_targets: int

    def __add__(self, other: Self) -> Self:
        if self.n_targets != other.n_targets or not np.array_equal(self.pivot, other.pivot):
            raise StatisticsError(
                f"these moments do not belong together: pivots {self.pivot} and {other.pivot}, "
                f"{self.n_targets} and {other.n_targets} targets; measure all blocks with the same pivot"
            )
        return exact_sums.add_fields(
            self,
            other,
            pivot=self.pivot,
            n_targets=self.n_targets,
            largest_weight=max(self.largest_weight, other.largest_weight),
            smallest_weight=min(self.smallest_weight, other.smallest_weight),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    @property
    def n_features(self) -> int:
        """The first `n_features` columns are inputs."""
        return len(self.pivot) - self.n_targets

    @property
    def reach(self) -> FloatArray:
        """How far rows with weight lie from the pivot at most, in each of the columns [X, y]."""
        return np.maximum(self.maximum - self.pivot, self.pivot - self.minimum)

    @property
    def cancels(self) -> bool:
        """Whether the pivot lies so far from the mean that the variance loses digits."""
        mean_squares = self.squares.value() / self.weight.value()
        variances = mean_squares - np.square(self.means - self.pivot)
        return bool((variances < _CANCELS * mean_squares).any())

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
        # a constant column has a variance of exactly 0, not what rounding leaves
        return np.sqrt(np.where(variances > blocks.ROUNDING * self.squares.value() / total, variances, 0.0))


def measure_moments(rows: blocks.Rows, pivot: FloatArray) -> Moments:
    """Return the moments of a block's columns [X, y].

    `pivot`: float64 array of shape (n_features + n_targets,). The same for all blocks of a dataset.
    Raises DataError if a value is not finite, a weight is negative, or a square overflows float64.
    """
    columns = np.ascontiguousarray(rows.X, np.float64)  # NumPy's sums round by the layout in memory
    blocks.check_finite(rows, columns)
    if rows.y is not None:
        columns = np.hstack([columns, rows.y])
    weights = rows.weights
    if not weights.all():
        # rows of weight 0 must not change anything, and the square of such a value may overflow
        columns = np.where(weights[:, np.newaxis] != 0, columns, pivot)
    minimum, maximum = columns.min(axis=0, initial=np.inf), columns.max(axis=0, initial=-np.inf)
    with np.errstate(over="ignore", invalid="ignore"):  # values that are not finite are refused below
        columns = columns - pivot
        powers = np.square(columns)
        sums, squares = weights @ columns, weights @ powers
    if not np.isfinite(squares).all():
        column = int(np.argmin(np.isfinite(squares)))
        raise DataError(
            f"Input {name_column(column, rows.X.shape[1])} overflows float64 when it is squared: it reaches "
            f"{np.abs(columns[:, column]).max():.3g} in rows {rows.block.start:_}:{rows.block.stop:_}; "
            "scale it down"
        )
    reach = max((maximum - pivot).max(initial=0.0), (pivot - minimum).max(initial=0.0))
    if reach > FOURTH_RANGE[1]:
        columns = np.clip(columns, -FOURTH_RANGE[1], FOURTH_RANGE[1])
        powers = np.square(columns)
    columns *= powers  # overwritten, since fresh memory takes as long as the arithmetic
    powers *= powers
    with np.errstate(over="ignore"):  # weights that large are refused later, with a reason
        cubes, fourths = weights @ columns, weights @ powers
    limit = np.finfo(np.float64).max  # clipped, so that they are finite
    cubes, fourths = np.clip(cubes, -limit, limit), np.minimum(fourths, limit)
    weighted = rows.sample_weight is not None
    return Moments(
        n_samples=len(columns),
        pivot=pivot,
        sums=exact_sums.ExactSum.of(sums),
        squares=exact_sums.ExactSum.of(squares),
        cubes=exact_sums.ExactSum.of(cubes),
        fourths=exact_sums.ExactSum.of(fourths),
        weight=exact_sums.ExactSum.of(np.asarray(weights.sum())),
        largest_weight=float(weights.max(initial=0.0)) if weighted else 1.0,
        smallest_weight=float(weights.min(initial=np.inf, where=weights > 0)) if weighted else 1.0,
        minimum=minimum,
        maximum=maximum,
        n_targets=0 if rows.y is None else rows.y.shape[1],
    )


def name_column(column: int, n_features: int) -> str:
    """Name one of the columns [X, y] in messages."""
    return f"X, column {column}" if column < n_features else f"y, column {column - n_features}"


# Like `ROUNDING`, for moments from which rows were taken out: those rows were summed in other blocks, and
# rounded otherwise.
_CANCELLED = 1e-13


@frozen(eq=False)
class ColumnMoments:
    """Means and central moments of the input columns over some rows; `+` joins two sets of rows.

    Rows are taken out by adding them with a negative weight.

    `n_samples`: number of equivalent rows of equal weight. If weights repeat rows, this is their sum; if they
      are precisions, it is the smallest number possible, their sum in units of the largest.
    `weight`: sum of the weights.
    `mean`, `second`, `third`, `fourth`: float64 arrays of shape (n_features,). Mean, and mean powers of the
      deviations from it.
    `rounding`: float64 array of shape (n_features,). A difference of means or of deviations below it may be
      rounding, which is left when rows with most of the variation were taken out.
    """

    n_samples: float
    weight: float
    mean: FloatArray
    second: FloatArray
    third: FloatArray
    fourth: FloatArray
    rounding: FloatArray

    __repr__ = short_repr

    @classmethod
    def of(cls, moments: Moments, *, frequency_weights: bool = False) -> Self:
        """Return the moments of the inputs from a pass; `frequency_weights` says if weights repeat rows."""
        n_features = moments.n_features
        weight = float(moments.weight.value())
        sums = (moments.sums, moments.squares, moments.cubes, moments.fourths)
        raw = [total.value()[:n_features] / weight for total in sums]
        with np.errstate(over="ignore", invalid="ignore"):  # of columns out of `FOURTH_RANGE`
            second, *higher = _about(-raw[0], *raw)
        third, fourth = np.nan_to_num(higher)
        second = np.where(second > blocks.ROUNDING * raw[1], second, 0.0)
        largest = 1.0 if frequency_weights else moments.largest_weight
        mean, fourth = moments.pivot[:n_features] + raw[0], np.maximum(fourth, 0)
        return cls(weight / largest, weight, mean, second, third, fourth, np.zeros(n_features))

    def __add__(self, other: Self) -> Self:
        weight = self.weight + other.weight
        mean = self.mean + (other.weight / weight) * (other.mean - self.mean)
        zero = np.zeros_like(mean)
        # each part's moments about the common mean, averaged by weight (Chan, Golub & LeVeque 1983)
        both = [(m.weight / weight, _about(m.mean - mean, zero, *m.central)) for m in (self, other)]
        second, third, fourth = (np.asarray(sum(share * parts[i] for share, parts in both)) for i in range(3))
        rounding = np.maximum(self.rounding, other.rounding)
        if min(self.weight, other.weight) < 0:  # rows leave, perhaps with most of what varied
            summed = np.abs([share * parts[0] for share, parts in both]).sum(axis=0)
            rounding = np.maximum(rounding, np.sqrt(_CANCELLED * summed))
        n_samples = self.n_samples + other.n_samples
        return type(self)(n_samples, weight, mean, second, third, fourth, rounding)

    @property
    def central(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The second, third and fourth central moments."""
        return self.second, self.third, self.fourth

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the moments as arrays to store; `from_arrays` reads them."""
        moments = np.array([self.mean, *self.central, self.rounding])
        return {"weights": np.array([self.n_samples, self.weight]), "moments": moments}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Read what `to_arrays` returned."""
        n_samples, weight = np.asarray(arrays["weights"], np.float64)
        return cls(float(n_samples), float(weight), *np.asarray(arrays["moments"], np.float64))


def _about(
    offset: FloatArray, first: FloatArray, second: FloatArray, third: FloatArray, fourth: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the mean second to fourth powers of x + offset, from the mean powers of x."""
    return (
        # the binomial formulas in Horner's form
        second + offset * (2 * first + offset),
        third + offset * (3 * second + offset * (3 * first + offset)),
        fourth + offset * (4 * third + offset * (6 * second + offset * (4 * first + offset))),
    )
