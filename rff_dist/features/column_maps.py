"""Increasing maps of single columns: normal scores, and sums that the evidence weights.

A sample of a column goes in; knots of its map come out. Standardising alone would leave
a column with heavy tails mostly within a small part of its range.

A column is mapped to a normal distribution by its quantiles: each value to the normal
score of its rank. Equal values share the middle of their ranks. Values outside the
sample's range get the score of its smallest or largest value.

A kernel follows some columns better as they are, others by their ranks, and others with
far values cut off. `Bases` has these three functions of each column. Each is divided by
a length scale of its own, and they are added up. So the search for a kernel's length
scales chooses among functions as it does among columns, see `SumsOfColumnsKernel`.

References
----------
Conover (1999), Practical nonparametric statistics, section 5.10, on normal scores.
Snoek et al. (2014), Input warping for Bayesian optimization of non-stationary
functions, ICML, on maps tuned by the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import scipy

from rff_dist.features import maps
from rff_dist.frequencies import designs, measures
from rff_dist.kernels import additive, stationary
from rff_dist.typing import FloatArray, IndexArray

# The range of normal scores is cut into so many cells, with two knots each. A cell is
# 0.06 wide, and interpolation errs by less.
N_CELLS = 128
N_BASES = 3  # functions of each column
# A cut-off column stays within this, in standard deviations estimated by quartiles.
CUT = 3.0
# Distance between the quartiles of a normal distribution, in standard deviations
QUARTILES = 1.349


def rank_map(
    column: int, values: FloatArray, weights: FloatArray | None = None
) -> maps.ColumnMap:
    """Like `sklearn.preprocessing.QuantileTransformer` to normal scores.

    The map of input `column`, from a sample of its values, has at most 2·N_CELLS + 2
    knots. A row of weight 3 counts as three.
    """
    distinct, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, weights).astype(np.float64)
    ranks = np.cumsum(counts) - 0.5 * counts
    scores = scipy.special.ndtri(ranks / counts.sum())
    grid = np.linspace(scores[0], scores[-1], N_CELLS + 1)
    # the values on both sides of each point of the grid, so that interpolation never
    # spans two cells
    above = np.searchsorted(scores, grid).clip(max=len(scores) - 1)
    kept = np.unique(np.concatenate([above, (above - 1).clip(min=0)]))
    return maps.ColumnMap(column, distinct[kept], scores[kept])


class Bases:
    """Three increasing functions of each column of numbers.

    They are the column as the standardizer gives it, the column cut off smoothly, and
    its normal scores. The functions are made from a sample of the inputs, of shape
    (n_rows, n_features). Columns of categories have none.
    """

    def __init__(
        self,
        rows: FloatArray,
        standardizer: maps.Standardizer,
        categories: Collection[int] = (),
    ) -> None:
        self._rows = rows
        self._plain = maps.Standardizer(standardizer.mean, standardizer.scale)
        self._categories = sorted(categories)
        self._numbers = [j for j in range(rows.shape[1]) if j not in categories]
        self._ranks = [rank_map(j, rows[:, j]) for j in self._numbers]
        self._cuts = [_cut_off(rows[:, r.column])(r.inputs) for r in self._ranks]

    def values(self) -> FloatArray:
        """Return the functions' values at the rows: by function, then by column; then
        categories.

        The shape is (n_rows, N_BASES * n_numbers + n_categories).
        """
        cut_columns = []
        rank_columns = []
        for rank, cut in zip(self._ranks, self._cuts, strict=True):
            column = self._rows[:, rank.column]
            cut_columns.append(np.interp(column, rank.inputs, cut))
            rank_columns.append(np.interp(column, rank.inputs, rank.outputs))
        return np.column_stack(
            [
                self._plain(self._rows)[:, self._numbers],
                *cut_columns,
                *rank_columns,
                self._rows[:, self._categories],
            ]
        )

    def kernel(self, kernel: stationary.Stationary) -> SumsOfColumnsKernel:
        """Return a kernel of `values()`: `kernel` of the sums of columns' functions."""
        first = N_BASES * len(self._numbers)
        categories = tuple(range(first, first + len(self._categories)))
        # in `values` sums come before categories, whatever the columns' order
        bare = kernel.with_categories(())
        if isinstance(bare, additive.Additive):
            order = [*self._numbers, *self._categories]
            bare = bare.with_columns(order)
        return SumsOfColumnsKernel(kernel=bare, categories=categories)

    def tuned(self, tuned: SumsOfColumnsKernel) -> stationary.Stationary:
        """Return the kernel within a tuned one of `kernel()`, for columns of inputs."""
        inner = tuned.kernel
        if isinstance(inner, additive.Additive):
            order = [*self._numbers, *self._categories]
            inner = inner.with_columns(np.argsort(order))
        return inner.with_categories(self._categories)

    def summed(self, length_scales: FloatArray) -> tuple[maps.Standardizer, FloatArray]:
        """Return the map of each column to a sum of its functions, and length scales.

        Functions are divided by their length scales, in the order of `values`, before
        they are summed. Each sum is scaled to a standard deviation of 1; divided by the
        column's length scale it is that sum again.
        """
        n_functions = N_BASES * len(self._numbers)
        of_categories = length_scales[n_functions:]
        length_scales = length_scales[:n_functions]
        weights = (1.0 / length_scales).reshape(N_BASES, -1)
        sums = _sums(self.values()[:, :n_functions] / length_scales)
        deviations = sums.std(axis=0)
        mapped = []
        for rank, cut, (w, w_cut, w_rank), deviation in zip(
            self._ranks, self._cuts, weights.T, deviations, strict=True
        ):
            if deviation > 0:
                outputs = (w_cut * cut + w_rank * rank.outputs) / deviation
                slope = float(w / deviation)
                mapped.append(maps.ColumnMap(rank.column, rank.inputs, outputs, slope))
        standardizer = maps.Standardizer(
            self._plain.mean, self._plain.scale, tuple(mapped)
        )
        scales = np.empty(self._rows.shape[1])
        scales[self._numbers] = 1.0 / np.where(deviations > 0, deviations, weights[0])
        scales[self._categories] = of_categories
        return standardizer, scales


def _cut_off(column: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return the function z / √(1 + (z/3)²) of the robustly standardised column.

    Source: Holzmüller et al. (2024), RealMLP.
    """
    low, median, high = np.quantile(column, [0.25, 0.5, 0.75])
    scale = (high - low) / QUARTILES or column.std() or 1.0

    def cut_off(values: FloatArray) -> FloatArray:
        z = (values - median) / scale
        return np.asarray(z / np.sqrt(1 + (z / CUT) ** 2))

    return cut_off


@dataclass(frozen=True, repr=False)
class SumsOfColumnsKernel(stationary.Stationary):
    """A kernel of sums of columns: j, j + n and j + 2n, each over its length scale."""

    #: Without a length scale.
    kernel: stationary.Stationary = stationary.Matern()  # noqa: RUF009  frozen, so shared safely

    @property
    def isotropic(self) -> bool:
        return self.kernel.isotropic

    @property
    def differentiable(self) -> bool:
        return self.kernel.differentiable

    @property
    def logits(self) -> FloatArray:
        return self.kernel.logits

    @property
    def dense_part(self) -> Self:
        return replace(self, kernel=self.kernel.dense_part)

    def with_logits(self, logits: FloatArray) -> Self:
        return replace(self, kernel=self.kernel.with_logits(logits))

    def spectral_measure(self) -> measures.SpectralMeasure:
        return self.kernel.spectral_measure()

    def points(self, X: FloatArray) -> stationary.Points:
        points = super().points(X)
        return replace(points, numbers=_sums(points.numbers))

    def of_scaled(
        self, left: stationary.Points, right: stationary.Points
    ) -> FloatArray:
        return self.kernel.of_scaled(left, right)

    def _drawn_columns(self, n_features: int) -> IndexArray:
        return np.arange((n_features - len(self.categories)) // N_BASES)

    def draw(self, draw: designs.Draw) -> FloatArray:
        n_sums = len(self._drawn_columns(draw.n_features))
        of_sums = self.kernel.draw(replace(draw, n_features=n_sums))
        frequencies = np.zeros(draw.shape)
        frequencies[: N_BASES * n_sums] = np.tile(of_sums, (N_BASES, 1))
        return frequencies / self.length_scales(draw.n_features)[:, np.newaxis]

    def differentiate_points(
        self, points: stationary.Points
    ) -> tuple[FloatArray, stationary.DerivativesOfPoints]:
        return self.kernel.differentiate_points(points)

    def by_log_scales(
        self, by_numbers: FloatArray, points: stationary.Points, X: FloatArray
    ) -> FloatArray:
        n_functions = N_BASES * points.numbers.shape[1]
        scaled = X[:, :n_functions] / self.length_scales(X.shape[1])[:n_functions]
        return (np.tile(by_numbers, N_BASES) * scaled).sum(axis=0)


def _sums(scaled: FloatArray) -> FloatArray:
    n_columns = scaled.shape[1] // N_BASES
    return scaled.reshape(len(scaled), N_BASES, n_columns).sum(axis=1)
