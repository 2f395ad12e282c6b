"""Moments of the columns of X and y; models keep the moments of their inputs.

Rows go in; each block's sums come out, which add up without rounding. `Moments` are the
sums of a first pass. By them the data are standardised, and the grids are fixed to
which the terms of later sums are rounded. `ColumnMoments` are means and
variances, which a model updates when rows are added or removed. A sum of squares about
0 would lose the digits of columns far from 0; so a *pivot* is subtracted first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.errors import DataError, StatisticsError
from rff_dist.features.levels import NO_LEVELS, Levels, code_changes
from rff_dist.numerics import exact_sums
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, Arrays, FloatArray, IntArray, frozen

# Only for differences from the pivot in these ranges, float64 has all digits of squares
# and of fourth powers, and can weight and sum them.
SQUARED_RANGE = 1e-145, 1e150
FOURTH_RANGE = 1e-70, 1e40
# A variance below this share of the mean square about the pivot has lost digits.
_CANCELLATION_SHARE = 1e-6


@frozen
class Moments:
    """The sums and ranges that a first, cheap pass measures; `+` joins sets of rows."""

    n_samples: int
    #: The first row, of shape (n_columns,), subtracted before anything is summed, so
    #: that large means cause no cancellation.
    pivot: FloatArray
    #: Weighted sums of the shifted columns [X, y], and of their powers, of shape
    #: (n_columns,). Values beyond 1e40 count as 1e40 in cubes and fourths.
    sums: exact_sums.ExactSum
    squares: exact_sums.ExactSum
    cubes: exact_sums.ExactSum
    fourths: exact_sums.ExactSum
    #: The sum of the weights.
    weight: exact_sums.ExactSum
    #: Of the weights above 0; 1 without weights.
    largest_weight: float
    smallest_weight: float
    #: The range of each of the columns [X, y], in rows with weight.
    minimum: FloatArray
    maximum: FloatArray
    #: The last `n_targets` columns are targets.
    n_targets: int
    #: For each column of categories the numbers of rows with weight per level, of shape
    #: (n_levels + 1,); the last one is for unseen levels.
    counts: Mapping[int, IntArray] = field(default_factory=dict)

    def __add__(self, other: Self) -> Self:
        if self.n_targets != other.n_targets or not np.array_equal(
            self.pivot, other.pivot
        ):
            raise StatisticsError(
                f"these moments do not belong together: pivots {self.pivot} and"
                f" {other.pivot}, {self.n_targets} and {other.n_targets} targets;"
                " measure all blocks with the same pivot"
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
            counts=_add_counts(self.counts, other.counts),
        )

    @property
    def n_features(self) -> int:
        """The first `n_features` columns are inputs."""
        return len(self.pivot) - self.n_targets

    @property
    def reach(self) -> FloatArray:
        """The largest distance of rows with weight from the pivot, for each column."""
        return np.maximum(self.maximum - self.pivot, self.pivot - self.minimum)

    @property
    def cancels(self) -> bool:
        """Whether the pivot is so far from the mean that the variance loses digits."""
        mean_squares = self.squares.value() / self.weight.value()
        variances = mean_squares - np.square(self.means - self.pivot)
        return bool((variances < _CANCELLATION_SHARE * mean_squares).any())

    @property
    def means(self) -> FloatArray:
        """Weighted means of the columns [X, y]."""
        return self.pivot + self.sums.value() / self.weight.value()

    @property
    def target_offset(self) -> tuple[float, ...]:
        """The targets' means, to subtract before summing."""
        return tuple(self.means[self.n_features :].tolist())

    @property
    def fourth_central(self) -> FloatArray:
        """The mean fourth powers of the deviations of [X, y] from their means.

        Without meaning for columns whose `reach` is outside of `FOURTH_RANGE`.
        """
        total = self.weight.value()
        first = self.sums.value() / total
        second = self.squares.value() / total
        third = self.cubes.value() / total
        fourth = self.fourths.value() / total
        # only columns outside of `FOURTH_RANGE` overflow
        with np.errstate(over="ignore", invalid="ignore"):
            # the binomial formula in Horner's form
            inner = 6 * second - first * (3 * first)
            central = fourth - first * (4 * third - first * inner)
        return np.maximum(np.nan_to_num(central), 0.0)

    @property
    def variances(self) -> FloatArray:
        """Weighted population variances of the columns [X, y].

        A constant column has exactly 0, without a rounding error.
        """
        total = self.weight.value()
        shifted = self.sums.value() / total
        mean_squares = self.squares.value() / total
        variances = mean_squares - shifted**2
        is_constant = variances <= blocks.ROUNDING * mean_squares
        return np.where(is_constant, 0.0, variances)

    @property
    def standard_deviations(self) -> FloatArray:
        return np.sqrt(self.variances)


def measure_moments(
    rows: blocks.Rows,
    pivot: FloatArray,
    *,
    levels: Levels = NO_LEVELS,
    names: Sequence[str] | None = None,
) -> Moments:
    """Return the moments of a block's columns [X, y], and count its `levels`.

    All blocks of a dataset have the same pivot. Raises DataError if a value is not
    finite, a weight is negative, or a square overflows float64.
    """
    # in one layout, since NumPy's sums are rounded differently for others
    columns = np.ascontiguousarray(rows.X, np.float64)
    blocks.check_finite(rows, columns, names)
    if rows.y is not None:
        columns = np.hstack([columns, rows.y])
    weights = rows.weights
    if not weights.all():
        # Rows of weight 0 must not change anything, but their squares may overflow: the
        # pivot replaces them.
        columns = np.where(weights[:, np.newaxis] != 0, columns, pivot)
    minimum = columns.min(axis=0, initial=np.inf)
    maximum = columns.max(axis=0, initial=-np.inf)
    # values that are not finite are refused below
    with np.errstate(over="ignore", invalid="ignore"):
        shifted = columns - pivot
        shifted_squares = np.square(shifted)
        sums = weights @ shifted
        squares = weights @ shifted_squares
    if not np.isfinite(squares).all():
        column = int(np.argmin(np.isfinite(squares)))
        raise DataError(
            f"Input {name_column(column, rows.X.shape[1])} overflows float64 when it is"
            f" squared: it reaches {np.abs(shifted[:, column]).max():.3g}, and weights"
            f" {weights.max():.3g}, in rows {rows.block.start:_}:{rows.block.stop:_};"
            " scale the larger down"
        )
    reach = max((maximum - pivot).max(initial=0.0), (pivot - minimum).max(initial=0.0))
    if reach > FOURTH_RANGE[1]:
        shifted = np.clip(shifted, -FOURTH_RANGE[1], FOURTH_RANGE[1])
        shifted_squares = np.square(shifted)
    # in place, since fresh memory takes as long as the arithmetic
    shifted_cubes = np.multiply(shifted, shifted_squares, out=shifted)
    shifted_fourths = np.square(shifted_squares, out=shifted_squares)
    # weights so large that these overflow are refused by `passes.weight_grid`
    with np.errstate(over="ignore"):
        cubes = weights @ shifted_cubes
        fourths = weights @ shifted_fourths
    limit = np.finfo(np.float64).max  # clipped, so that they are finite
    cubes = np.clip(cubes, -limit, limit)
    fourths = np.minimum(fourths, limit)
    largest_weight = 1.0
    smallest_weight = 1.0
    if rows.sample_weight is not None:
        largest_weight = float(weights.max(initial=0.0))
        smallest_weight = float(weights.min(initial=np.inf, where=weights > 0))
    return Moments(
        n_samples=len(columns),
        pivot=pivot,
        sums=exact_sums.ExactSum.of(sums),
        squares=exact_sums.ExactSum.of(squares),
        cubes=exact_sums.ExactSum.of(cubes),
        fourths=exact_sums.ExactSum.of(fourths),
        weight=exact_sums.ExactSum.of(np.asarray(weights.sum())),
        largest_weight=largest_weight,
        smallest_weight=smallest_weight,
        minimum=minimum,
        maximum=maximum,
        n_targets=0 if rows.y is None else rows.y.shape[1],
        counts=_count_levels(rows, levels),
    )


def _count_levels(rows: blocks.Rows, levels: Levels) -> dict[int, IntArray]:
    counts = {}
    for column, texts in levels.items():
        codes = rows.X[rows.weights > 0, column]
        is_known = (codes >= 0) & (codes < len(texts))
        places = np.where(is_known, codes, len(texts)).astype(np.intp)
        rows_of_each = np.bincount(places, minlength=len(texts) + 1)
        counts[column] = rows_of_each.astype(np.int64)
    return counts


def _add_counts(
    counts: Mapping[int, IntArray], others: Mapping[int, IntArray]
) -> dict[int, IntArray]:
    """Add counts of the columns that both have."""
    return {j: counts[j] + others[j] for j in counts.keys() & others.keys()}


def name_column(column: int, n_features: int) -> str:
    """Name one of the columns [X, y] in messages."""
    if column < n_features:
        return f"X, column {column}"
    return f"y, column {column - n_features}"


# Like `ROUNDING`, for moments from which rows were removed. It is larger, because those
# rows were summed in other blocks, with other roundings.
_ROUNDING_AFTER_REMOVAL = 1e-13


@frozen(eq=False)
class ColumnMoments:
    """Means and variances of the input columns; `+` joins two sets of rows.

    Rows are removed by adding their `negative`; some weight must be left.
    """

    #: The number of rows of equal weight with the same information. If weights repeat
    #: rows, this is their sum. If they are precisions, it is a lower bound: their sum
    #: over the largest weight.
    n_effective: float
    #: The sum of the weights.
    weight: float
    #: Means and variances, of shape (n_features,); they have no meaning for columns of
    #: categories.
    mean: FloatArray
    variance: FloatArray
    #: A difference of means below this may be rounding. It grows when rows with most of
    #: the variation are removed.
    rounding: FloatArray
    #: The largest value of each column so far, also of removed rows.
    maximum: FloatArray
    #: As in `Moments`, with the codes of the model's features.
    counts: Mapping[int, IntArray] = field(default_factory=dict)

    __repr__ = short_repr

    @classmethod
    def of(cls, moments: Moments, *, frequency_weights: bool = False) -> Self:
        """Return the moments of a pass's inputs; `frequency_weights` repeat rows."""
        n_features = moments.n_features
        weight = float(moments.weight.value())
        largest = 1.0 if frequency_weights else moments.largest_weight
        return cls(
            n_effective=weight / largest,
            weight=weight,
            mean=moments.means[:n_features],
            variance=moments.variances[:n_features],
            rounding=np.zeros(n_features),
            maximum=moments.maximum[:n_features],
            counts=moments.counts,
        )

    def __add__(self, other: Self) -> Self:
        weight = self.weight + other.weight
        largest = max(self.weight / self.n_effective, other.weight / other.n_effective)
        mean = self.mean + (other.weight / weight) * (other.mean - self.mean)
        # The variance is the weighted mean of each part's mean squares about the common
        # mean (Chan, Golub & LeVeque 1983).
        parts = [
            part.weight / weight * (part.variance + (part.mean - mean) ** 2)
            for part in (self, other)
        ]
        rounding = np.maximum(self.rounding, other.rounding)
        # A negative weight removes rows, perhaps with most of the variation.
        if min(self.weight, other.weight) < 0:
            lost_squares = _ROUNDING_AFTER_REMOVAL * np.abs(parts).sum(axis=0)
            rounding = np.maximum(rounding, np.sqrt(lost_squares))
        return type(self)(
            n_effective=weight / largest,
            weight=weight,
            mean=mean,
            variance=np.maximum(parts[0] + parts[1], 0.0),  # below 0 only by rounding
            rounding=rounding,
            maximum=np.maximum(self.maximum, other.maximum),
            counts=_add_counts(self.counts, other.counts),
        )

    @property
    def negative(self) -> Self:
        """These rows with negative weight: adding them removes them from others."""
        counts = {j: -rows for j, rows in self.counts.items()}
        return replace(
            self, n_effective=-self.n_effective, weight=-self.weight, counts=counts
        )

    def with_levels(self, levels: Levels, wanted: Levels) -> Self:
        """Return the moments with counts in the order of the lists `wanted`; they are
        in the order of `levels` now.
        """
        counts = {}
        columns = self.counts.keys() & levels.keys() & wanted.keys()
        tables = code_changes({j: levels[j] for j in columns}, wanted)
        for column, table in tables.items():
            counts[column] = np.zeros(len(wanted[column]) + 1, np.int64)
            np.add.at(counts[column], table.astype(np.intp), self.counts[column])
        return replace(self, counts=counts)

    def to_arrays(self) -> dict[str, AnyArray]:
        """Return the moments as arrays to store; `from_arrays` reads them."""
        moments = np.array([self.mean, self.variance, self.rounding, self.maximum])
        counts = {f"counts{column}": rows for column, rows in self.counts.items()}
        weights = np.array([self.n_effective, self.weight])
        return {"weights": weights, "moments": moments, **counts}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        """Return the moments from arrays of `to_arrays`."""
        n_effective, weight = np.asarray(arrays["weights"], np.float64)
        counts = {
            int(name.removeprefix("counts")): np.asarray(rows, np.int64)
            for name, rows in arrays.items()
            if name.startswith("counts")
        }
        mean, variance, rounding, maximum = np.asarray(arrays["moments"], np.float64)
        weights = float(n_effective), float(weight)
        return cls(*weights, mean, variance, rounding, maximum, counts)
