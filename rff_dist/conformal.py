"""Prediction intervals that assume no law of the noise: quantiles of residuals on held-out folds.

Each row's score is |y − f₋(x)|, f₋ the model of a cross-validation that was trained without the row's
fold. The interval of coverage c about the model f of all rows is f(x) ± q, q the ⌈(n + 1)·c⌉-th smallest of
n scores: the K-fold form of the jackknife interval, with the rank of split conformal prediction.

What it promises: were each f₋ equal to f, a new row that is exchangeable with these would be inside with
probability c or more, whatever the noise. As fits of fewer rows are worse, q errs on the wide side; but the
jackknife has no guarantee for unstable models, where CV+, which keeps all fold models, has one of about
2c − 1. Coverage is an average over rows: where the noise differs from row to row, an interval of one width
is too narrow for some and too wide for others. Folds of groups or of time carry their meaning over: the
interval is then one for a new group, or for the time to come.

Scores are counted in bins a factor 2^(1/64) wide, and a quantile is its bin's upper edge: at most 1.1 % too
large, never too small. Counts are integers, so that they add up to the same bits in any order.

Vovk, Gammerman & Shafer (2005), Algorithmic Learning in a Random World, section 4.1; Vovk (2015),
Cross-conformal predictors, Annals of Mathematics and Artificial Intelligence 74; Barber, Candès, Ramdas &
Tibshirani (2021), Predictive inference with the jackknife+, Annals of Statistics 49.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.blocks import LinearModel, Rows, check_evaluation, predict_rows
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.feature_map import FeatureMap
from rff_dist.folds import Folds, FoldStatistics
from rff_dist.solvers import solve_cholesky
from rff_dist.statistics import RidgeStatistics

type FloatArray = NDArray[np.float64]
type IntArray = NDArray[np.int64]

BINS_PER_OCTAVE = 64  # a width of 2^(1/64) = 1.011
OCTAVES = 32  # on either side of the target's standard deviation


@dataclass(frozen=True, slots=True, eq=False)
class FoldModels:
    """The state of a scoring pass: the models of a cross-validation at one alpha.

    Attributes
    ----------
    linear : LinearModel
        Of n_splits · n_targets columns, the targets of a split side by side.
    folds : Folds
        How rows were cut.
    validated : int64 array of shape (n_splits,)
        The fold that each split holds out.
    n_samples : int
        Rows that were cut.
    units : float64 array of shape (n_targets,)
        See `HeldOutScores`.
    repeated : bool
        Whether weights are whole numbers that repeat their rows.
    """

    linear: LinearModel
    folds: Folds
    validated: IntArray
    n_samples: int
    units: FloatArray
    repeated: bool = False

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.linear.digest()


def fold_models(
    statistics: FoldStatistics, feature_map: FeatureMap, *, alpha: ArrayLike, fit_intercept: bool = True
) -> FoldModels:
    """Solve for the coefficients of each split, n_splits Cholesky factorisations one after another.

    Parameters
    ----------
    statistics : FoldStatistics
        With the whitener where the feature map has one.
    feature_map : FeatureMap
        They were accumulated with.
    alpha : float or array of shape (n_targets,)
        The penalty, that of the model of all rows.
    fit_intercept : bool
        Whether an intercept is fitted.

    Raises
    ------
    StatisticsError
        If no fold has rows, or those that a split trains on have none.
    InvalidParameterError, SolveError
        As `solve_cholesky`.
    """
    total = statistics.total()
    solutions, validated = [], []
    for trained_on, held_out in statistics.folds.splits:
        if statistics.parts[held_out] is None:
            continue  # no row asks for this model
        training = _training(statistics, total, trained_on, held_out)
        equations = training.normal_equations(fit_intercept=fit_intercept)
        solutions.append(solve_cholesky(equations, alpha, overwrite_gram=True))
        validated.append(held_out)
    if not validated:
        raise StatisticsError(f"none of {statistics.folds} that is held out has rows; use fewer folds")
    return FoldModels(
        linear=LinearModel(
            feature_map,
            np.hstack([solution.coefficients for solution in solutions]),
            np.concatenate([solution.intercept for solution in solutions]),
        ),
        folds=statistics.folds,
        validated=np.array(validated, np.int64),
        n_samples=statistics.n_samples,
        units=_units(total.target_deviations()),
        repeated=total.spec.frequency_weights,
    )


def _training(
    statistics: FoldStatistics, total: RidgeStatistics, trained_on: tuple[int, ...], held_out: int
) -> RidgeStatistics:
    if len(trained_on) == len(statistics.parts) - 1:  # all others: one subtraction
        return total - statistics.fold(held_out)
    return statistics.sum(trained_on)


def _units(deviations: FloatArray) -> FloatArray:
    """Return powers of two near the targets' standard deviations; 1 for a constant target."""
    return np.asarray(np.where(deviations > 0, np.ldexp(1.0, np.frexp(deviations)[1]), 1.0))


@lru_cache(maxsize=1)
def _edges() -> FloatArray:
    """Return the upper edges of all bins but the last, in units: 0, then a geometric grid."""
    steps = np.arange(-OCTAVES * BINS_PER_OCTAVE, OCTAVES * BINS_PER_OCTAVE + 1)
    edges = np.concatenate([[0.0], np.exp2(steps / BINS_PER_OCTAVE)])
    edges.flags.writeable = False
    return edges


@dataclass(frozen=True, slots=True, eq=False)
class HeldOutScores:
    """How many rows have which score |y − f₋(x)|, exactly; `+` joins two sets of rows.

    Attributes
    ----------
    counts : int64 array of shape (n_bins, n_targets)
        Rows with a score of 0, then those of each bin of a geometric grid from 2^-32 to 2^32 units, and
        last those above it. A score below the grid counts as 2^-32 units, one above it as infinite.
    units : float64 array of shape (n_targets,)
        Powers of two near each target's standard deviation.
    """

    counts: IntArray
    units: FloatArray

    def __add__(self, other: HeldOutScores) -> HeldOutScores:
        if not np.array_equal(self.units, other.units):
            raise StatisticsError(
                f"these scores are counted in different units, {self.units} and {other.units}; score all "
                "blocks with the same models"
            )
        return replace(self, counts=self.counts + other.counts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HeldOutScores):
            return NotImplemented
        return np.array_equal(self.counts, other.counts) and np.array_equal(self.units, other.units)

    __hash__ = None  # type: ignore[assignment]

    @property
    def n_samples(self) -> int:
        """Rows counted."""
        return int(self.counts[:, 0].sum())

    def quantile(self, coverage: float) -> FloatArray:
        """Return the half width of intervals of a coverage, in the targets' units: shape (n_targets,).

        The ⌈(n + 1)·coverage⌉-th smallest score, at most 1.1 % too large; infinite where there are too few
        rows for such a coverage.

        Parameters
        ----------
        coverage : float
            In (0, 1).

        Raises
        ------
        InvalidParameterError
            If `coverage` is not in (0, 1).
        """
        if not 0.0 < coverage < 1.0:
            raise InvalidParameterError(
                f"`coverage` is {coverage!r}; expected a number in (0, 1), such as 0.9"
            )
        exact = (self.n_samples + 1) * coverage
        rank = math.ceil(exact * (1.0 - 1e-12))  # 100 · 0.07 is 7, though not in float64
        reached = self.counts.cumsum(axis=0) >= rank
        index = np.where(reached.any(axis=0), reached.argmax(axis=0), len(self.counts) - 1)
        return np.asarray(np.append(_edges(), np.inf)[index] * self.units)

    def interval(self, predictions: FloatArray, coverage: float) -> tuple[FloatArray, FloatArray]:
        """Return the lower and upper ends about predictions of the model of all rows.

        Parameters
        ----------
        predictions : float64 array of shape (n_samples, n_targets), or (n_samples,) for a single target
        coverage : float
            In (0, 1).

        Raises
        ------
        InvalidParameterError
            If `coverage` is not in (0, 1).
        """
        half_width = self.quantile(coverage)
        return predictions - half_width, predictions + half_width

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that store the scores; `from_arrays` is the way back."""
        return {"counts": self.counts, "units": self.units}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Read what `to_arrays` returned.

        Raises
        ------
        StatisticsError
            If they do not fit together.
        """
        counts, units = np.asarray(arrays["counts"], np.int64), np.asarray(arrays["units"], np.float64)
        expected = (len(_edges()) + 1, len(units))
        if counts.shape != expected:
            raise StatisticsError(f"stored scores have counts of shape {counts.shape}; expected {expected}")
        return cls(counts, units)


def score_rows(rows: Rows, state: FoldModels) -> HeldOutScores:
    """Count the held-out scores of a block, at the cost of predictions with n_splits · n_targets columns.

    A row of weight 0 does not count, any other counts once, or as often as its weight repeats it. Rows of
    folds that are never held out, such as the first of `TimeFolds`, do not count either.

    Raises
    ------
    DataError
        If the block has no targets, values that are not finite, or lacks the groups that its folds are of.
    """
    check_evaluation(rows)
    assert rows.y is not None
    assigned = state.folds.assign(
        rows.block.start, rows.block.stop, n_samples=state.n_samples, groups=rows.groups
    )
    split_of = np.full(state.folds.n_folds, -1, np.int64)
    split_of[state.validated] = np.arange(len(state.validated))
    split = split_of[assigned]
    counted = split >= 0
    if rows.sample_weight is not None:
        counted &= rows.sample_weight > 0
    n_targets = len(state.units)
    predictions = predict_rows(rows, state.linear).reshape(len(split), -1, n_targets)
    held_out = predictions[counted, split[counted]]
    with np.errstate(over="ignore"):  # beyond the grid either way
        scores = np.abs(rows.y[counted] - held_out) / state.units
    edges = _edges()
    index = np.searchsorted(edges, scores, side="left")
    times = rows.sample_weight[counted] if state.repeated and rows.sample_weight is not None else None
    counts = [np.bincount(column, times, len(edges) + 1) for column in index.T]
    return HeldOutScores(np.column_stack(counts).astype(np.int64), state.units)
