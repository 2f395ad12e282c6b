"""Increasing maps of single columns: to normal scores, and to what the evidence makes of these and others.

A column is mapped to a normal distribution by its quantiles: each value to the normal score of its rank.
Equal values share the middle of their ranks. Values outside the sample's range get the score of its smallest
or largest value.

A kernel follows some columns better as they are, and others by their ranks, or cut off where they reach far.
`Bases` has all three of each column, each to be divided by a length scale of its own and added up. So the
search for a kernel's length scales chooses between them as it does between columns, see `OfSums`.

References
----------
Conover (1999), Practical nonparametric statistics, section 5.10, on normal scores. Snoek et al. (2014), Input
warping for Bayesian optimization of non-stationary functions, ICML, on maps tuned by the evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy

from rff_dist.features import maps
from rff_dist.frequencies import designs
from rff_dist.kernels import stationary
from rff_dist.typing import FloatArray

# of the scores' range, with two knots each: a cell is 0.06 wide, and interpolation errs by less
N_CELLS = 128
N_BASES = 3
CUT = 3.0  # standard deviations, by the quartiles, that a column that is cut off stays within
QUARTILES = 1.349  # between the quartiles of a normal distribution, in standard deviations


def rank_map(column: int, values: FloatArray, weights: FloatArray | None = None) -> maps.ColumnMap:
    """Like `sklearn.preprocessing.QuantileTransformer` to normal scores, with at most 2·N_CELLS + 2 knots.

    `column`: the column's number among the inputs.
    `values`: float64 array of shape (n_rows,). A sample of the column.
    `weights`: float64 array of shape (n_rows,), or None. A row of weight 3 counts as three.
    """
    distinct, place = np.unique(values, return_inverse=True)
    counts = np.bincount(place, weights).astype(np.float64)
    ranks = np.cumsum(counts) - 0.5 * counts
    scores = scipy.special.ndtri(ranks / counts.sum())
    grid = np.linspace(scores[0], scores[-1], N_CELLS + 1)
    # the values on both sides of each point of the grid, so that interpolation never spans two cells
    above = np.searchsorted(scores, grid).clip(max=len(scores) - 1)
    kept = np.unique(np.concatenate([above, (above - 1).clip(min=0)]))
    return maps.ColumnMap(column, distinct[kept], scores[kept])


class Bases:
    """Three increasing functions of each column: standardised, cut off smoothly, and as normal scores.

    `rows`: float64 array of shape (n_rows, n_features). A sample of the inputs, which the functions suit.
    `standardizer`: gives the first function.
    """

    def __init__(self, rows: FloatArray, standardizer: maps.Standardizer) -> None:
        self._rows, self._plain = rows, maps.Standardizer(standardizer.mean, standardizer.scale)
        self._ranks = [rank_map(j, column) for j, column in enumerate(rows.T)]
        self._cuts = [_cut_off(column)(rank.inputs) for column, rank in zip(rows.T, self._ranks, strict=True)]

    def values(self) -> FloatArray:
        """Return the functions of the rows, shape (n_rows, N_BASES * n_features): all columns by each."""
        cut, scores = (
            [
                np.interp(column, rank.inputs, ends)
                for column, rank, ends in zip(self._rows.T, self._ranks, outputs, strict=True)
            ]
            for outputs in (self._cuts, [rank.outputs for rank in self._ranks])
        )
        return np.column_stack([self._plain(self._rows), *cut, *scores])

    def summed(self, length_scales: FloatArray) -> tuple[maps.Standardizer, FloatArray]:
        """Return the map to sums of the functions over their length scales, and the columns' length scales.

        A mapped column has a standard deviation of 1, and its length scale is what makes it that sum.

        `length_scales`: float64 array of shape (N_BASES * n_features,).
        """
        weights = (1.0 / length_scales).reshape(N_BASES, -1)
        sums = (self.values() / length_scales).reshape(len(self._rows), N_BASES, -1).sum(axis=1)
        deviations, mapped = sums.std(axis=0), []
        for rank, cut, (w, w_cut, w_rank), deviation in zip(
            self._ranks, self._cuts, weights.T, deviations, strict=True
        ):
            if deviation > 0:
                outputs = (w_cut * cut + w_rank * rank.outputs) / deviation
                mapped.append(maps.ColumnMap(rank.column, rank.inputs, outputs, float(w / deviation)))
        standardizer = maps.Standardizer(self._plain.mean, self._plain.scale, tuple(mapped))
        return standardizer, 1.0 / np.where(deviations > 0, deviations, weights[0])


def _cut_off(column: FloatArray) -> Callable[[FloatArray], FloatArray]:
    """Return z / √(1 + (z/3)²) of the robustly standardised column; see Holzmüller et al. (2024), RealMLP."""
    low, median, high = np.quantile(column, [0.25, 0.5, 0.75])
    scale = (high - low) / QUARTILES or column.std() or 1.0

    def cut_off(values: FloatArray) -> FloatArray:
        z = (values - median) / scale
        return np.asarray(z / np.sqrt(1 + (z / CUT) ** 2))

    return cut_off


@dataclass(frozen=True, repr=False)
class OfSums(stationary.Stationary):
    """A kernel of sums of columns, each over its length scale: of columns j, j + n, … for column j of n.

    `kernel`: without a length scale.
    """

    kernel: stationary.OfDistance = stationary.Matern()  # noqa: RUF009  frozen, so shared safely

    @property
    def isotropic(self) -> bool:
        return self.kernel.isotropic

    @property
    def differentiable(self) -> bool:
        return self.kernel.differentiable

    def spectral_measure(self) -> designs.SpectralMeasure:
        return self.kernel.spectral_measure()

    def of_scaled(self, left: FloatArray, right: FloatArray) -> FloatArray:
        sums = _sums(left)
        return self.kernel.of_scaled(sums, sums if right is left else _sums(right))

    def draw(self, design: designs.Design, shape: tuple[int, int], seed: int, *, first: int) -> FloatArray:
        inner = self.kernel.draw(design, (shape[0] // N_BASES, shape[1]), seed, first=first)
        return np.tile(inner, (N_BASES, 1)) / self.length_scales(shape[0])[:, np.newaxis]

    def differentiate(self, X: FloatArray) -> tuple[FloatArray, Callable[[FloatArray], FloatArray]]:
        scaled = X / self.length_scales(X.shape[1])
        gram, by_sums = self.kernel.differentiate_scaled(_sums(scaled))
        return gram, lambda G: (np.tile(by_sums(G), N_BASES) * scaled).sum(axis=0)


def _sums(scaled: FloatArray) -> FloatArray:
    return np.asarray(scaled.reshape(len(scaled), N_BASES, -1).sum(axis=1))
