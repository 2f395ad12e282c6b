"""Leave-one-out errors (PRESS) of every alpha, in one more pass over the rows that were trained on.

With the (centred) Gram A = QΛQ' and u = Q'(z − z̄), a row of weight w has the leverage

    h(alpha) = w·(1/Σweights + Σ_j u_j²/(λ_j + alpha)).

The model trained without this row misses it by e/(1 − h), where e is its residual in the model of all rows.
This is what refitting without each row in turn would give, up to rounding. Without an intercept z̄ and
1/Σweights are 0. Directions whose eigenvalue is below its rounding error have no weight, as in
`RidgeSpectrum.solve`. Generalised cross-validation replaces each leverage by their mean, and needs no pass.

Allen (1974), The relationship between variable selection and data augmentation and a method for prediction,
Technometrics 16 (PRESS); Hastie, Tibshirani & Friedman (2009), The Elements of Statistical Learning, eqs.
7.64 to 7.67.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import DataError, SolveError, StatisticsError
from rff_dist.features import maps
from rff_dist.numerics import cholesky, eigen, exact_sums, machine
from rff_dist.selection import grids
from rff_dist.statistics import ridge_statistics
from rff_dist.typing import Float32Array, FloatArray, IntArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class HatMatrix:
    """The state of a leave-one-out pass: each row's leverage and residual for every alpha.

    Takes 8 · n_components² bytes in each worker, as a pass with standard deviations does.

    `feature_map`: makes the scaled features v.
    `rotation`: float64 array of shape (n_components, n_kept). Q'(z − z̄) = rotation'·(v − feature_means), for
      the eigenvalues above the floor.
    `feature_means`: float64 array of shape (n_components,). Means of v; 0 without an intercept.
    `inverse`: float64 array of shape (n_kept, n_alphas). 1/(λ + alpha).
    `weights`: float64 array of shape (n_kept, n_alphas · n_targets). (Λ + alpha)⁻¹Q'B, the targets of one
      alpha side by side.
    `target_means`: float64 array of shape (n_targets,). 0 without an intercept.
    `intercept_leverage`: 1/Σweights; 0 without an intercept.
    `resolution`: float64 array of shape (n_alphas,). Rounding error of a leverage.
    `repeated`: whether weights are whole numbers that repeat their rows; one copy is then left out.
    `alphas`, `target_variance`: as in `LeaveOneOut`.
    """

    feature_map: maps.FeatureMap
    rotation: FloatArray
    feature_means: FloatArray
    inverse: FloatArray
    weights: FloatArray
    target_means: FloatArray
    intercept_leverage: float
    resolution: FloatArray
    repeated: bool
    alphas: FloatArray
    target_variance: FloatArray


def hat_matrix(
    statistics: ridge_statistics.RidgeStatistics,
    feature_map: maps.FeatureMap,
    *,
    alphas: ArrayLike | None = None,
    fit_intercept: bool = True,
) -> HatMatrix:
    """Decompose the Gram for a leave-one-out pass, O(n_components³).

    `statistics`: those of the training rows.
    `feature_map`: the one that `statistics` were accumulated with.
    `alphas`: float64 array of shape (n_alphas,). Penalties above 0; by default `default_alphas`.
    Raises InvalidParameterError if an alpha is not positive and finite, or there is none; StatisticsError,
      SolveError if there are no rows, or the statistics are not finite.
    """
    equations = statistics.normal_equations(fit_intercept=fit_intercept)
    spectrum = eigen.decompose(equations)
    grid = grids.default_alphas(spectrum) if alphas is None else grids.check_grid(alphas)
    kept = spectrum.eigenvalues[spectrum.n_clipped :]
    basis = spectrum.eigenvectors[:, spectrum.eigenvectors.shape[1] - len(kept) :]
    inverse = 1.0 / (kept[:, np.newaxis] + grid)
    moments = spectrum.projected_moments[spectrum.n_clipped :]
    weights = inverse[:, :, np.newaxis] * moments[:, np.newaxis, :]
    rotation, feature_means = np.array(basis, order="C"), equations.feature_means
    if (whitener := feature_map.whitener) is not None:
        # z = T⁻ᵀv, so that Q'z = (T⁻¹Q)'v, and workers need not compute T
        with machine.single_threaded_blas():
            cholesky.solve_upper(whitener, rotation)
        feature_means = whitener.T @ feature_means
    # eigenvalues are off by the floor, terms of a leverage by up to floor / (λ + alpha)
    smallest = kept[0] if len(kept) else 0.0
    return HatMatrix(
        feature_map=feature_map,
        rotation=rotation,
        feature_means=feature_means,
        inverse=inverse,
        weights=weights.reshape(len(kept), -1),
        target_means=equations.target_means,
        intercept_leverage=1.0 / statistics.sum_of_weights if fit_intercept else 0.0,
        resolution=len(spectrum.eigenvalues) * np.finfo(np.float64).eps + spectrum.floor / (smallest + grid),
        repeated=statistics.spec.frequency_weights,
        alphas=grid,
        target_variance=equations.total_sum_of_squares / statistics.sum_of_weights,
    )


@dataclass(frozen=True, slots=True, eq=False)
class LeaveOneOut:
    """Exact sums of leave-one-out errors on the rows seen so far; `+` joins two sets of rows.

    `alphas`: float64 array of shape (n_alphas,). Ascending.
    `target_variance`: float64 array of shape (n_targets,). Variance on the training rows; the mean square
      without an intercept.
    `n_samples`: rows counted.
    `weight`: ExactSum of shape (). Sum of the weights.
    `squared`: ExactSum of shape (n_alphas, n_targets). Weighted sums of squares of e/(1 − h), over the rows
      that are determined.
    `n_undetermined`: int64 array of shape (n_alphas,). Rows whose leverage is 1 up to rounding, which the
      others do not determine.
    """

    alphas: FloatArray
    target_variance: FloatArray
    n_samples: int
    weight: exact_sums.ExactSum
    squared: exact_sums.ExactSum
    n_undetermined: IntArray

    def __add__(self, other: LeaveOneOut) -> LeaveOneOut:
        if not np.array_equal(self.alphas, other.alphas):
            raise StatisticsError(
                f"these errors are of different penalties, {self.alphas} and {other.alphas}; measure all "
                "blocks with one `hat_matrix`"
            )
        return exact_sums.add_fields(self, other, alphas=self.alphas, target_variance=self.target_variance)

    @property
    def mean_squared_error(self) -> FloatArray:
        """PRESS / Σweights of each alpha and target, shape (n_alphas, n_targets), in its units squared.

        Infinite where a row is undetermined.
        """
        means = self.squared.value() / self.weight.value()
        return np.where(self.n_undetermined[:, np.newaxis] > 0, np.inf, means)

    def to_arrays(self) -> dict[str, FloatArray]:
        return {"press_alphas": self.alphas, "press_errors": self.mean_squared_error}


def leave_out_rows(rows: blocks.Rows, state: HatMatrix) -> LeaveOneOut:
    """Return the leave-one-out errors of a block, 2 · n_samples · n_components² operations and more.

    Features are made 256 rows at a time: 4 KiB for each component and thread.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    if rows.y is None:
        raise DataError("the data have no y: leave-one-out errors need targets")
    feature_map, y = state.feature_map, rows.y
    inputs = feature_map.inputs_of(rows)
    weights = np.ones(len(inputs)) if rows.sample_weight is None else rows.sample_weight
    n_alphas, n_targets = len(state.alphas), len(state.target_means)
    starts = range(0, len(inputs), cholesky.STRIP_COLUMNS)
    squared = np.empty((len(starts), n_alphas, n_targets))
    undetermined = np.zeros((len(starts), n_alphas), np.int64)

    def measure(strip: int) -> None:
        part = slice(starts[strip], starts[strip] + cholesky.STRIP_COLUMNS)
        tile, weight = inputs[part], weights[part]
        features = centred_features(feature_map, tile, state.feature_means)
        with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses what is not finite
            rotated = state.rotation.T @ features
            fitted = (state.weights.T @ rotated).reshape(n_alphas, n_targets, len(tile))
            residual = (y[part] - state.target_means).T - fitted
            # h = Σ_k (q_k'z)²/(λ_k + alpha) and the intercept's share; shape (n_alphas, n_rows)
            share = state.inverse.T @ np.square(rotated) + state.intercept_leverage
            # repeated rows: one copy is left out
            left = 1.0 - (share if state.repeated else weight * share)
            lost = (left <= state.resolution[:, np.newaxis]) & (weight > 0)
            # the error without the row is e/(1 − h) (Allen 1974, PRESS)
            missed = residual / np.where(lost | (weight == 0), np.inf, left)[:, np.newaxis]
            squared[strip] = np.square(missed) @ weight
        undetermined[strip] = lost.sum(axis=1)

    machine.share_out(measure, range(len(starts)))
    return LeaveOneOut(
        alphas=state.alphas,
        target_variance=state.target_variance,
        n_samples=len(inputs),
        weight=exact_sums.ExactSum.of(np.asarray(weights.sum())),
        squared=exact_sums.ExactSum.of(squared.sum(axis=0)),
        n_undetermined=undetermined.sum(axis=0),
    )


def centred_features(feature_map: maps.FeatureMap, tile: Float32Array, means: FloatArray) -> FloatArray:
    """Return scaled features of prepared rows less means, shape (n_components, n_samples); may overflow."""
    features = np.empty((feature_map.n_components, len(tile)))
    for start, stop in feature_map.stripes:
        feature_map.fill(tile, features[start:stop], start, stop)
    with np.errstate(over="ignore", invalid="ignore"):
        features *= exact_sums.expand(feature_map.scales)[:, np.newaxis]
        features -= means[:, np.newaxis]
    return features


def select_by_press(table: LeaveOneOut, *, per_target: grids.PerTarget = False) -> float | FloatArray:
    """Return the alpha of the least leave-one-out error, for all targets or for each.

    An alpha for all targets has the least mean of error / variance, so that units do not matter; constant
    targets do not count. Among scores that differ by less than 1e-10 the larger alpha is taken.

    `per_target`: whether each target has an alpha of its own; "auto" gives one to targets whose error it
      lowers by more than 1 %.
    Returns `alpha`: float, or float64 array of shape (n_targets,) if targets have different ones.
    Raises SolveError if every alpha leaves a row undetermined.
    """
    errors, varying = table.mean_squared_error, table.target_variance > 0.0
    scores = grids.shares_of_variance(errors, table.target_variance)
    if not np.isfinite(scores).any():
        raise SolveError(
            f"alpha cannot be chosen by leave-one-out errors: with every alpha up to {table.alphas[-1]:.3g} "
            f"some of the {table.n_samples:_} rows have a leverage of 1 up to rounding; give larger alphas"
        )
    best = grids.last_within(scores, scores.min() + grids.RESOLUTION)
    if (end := grids.end_of_grid(best, len(scores))) is not None:
        logger.info("the best alpha %.3g is at the %s end of the path", table.alphas[best], end)
    places = np.full(errors.shape[1], best)
    for target in np.flatnonzero(varying) if per_target is not False else ():
        shares = errors[:, target] / table.target_variance[target]
        place = grids.last_within(shares, shares.min() + grids.RESOLUTION)
        if per_target is True or shares[place] < (1.0 - grids.MATERIAL_GAIN) * shares[best]:
            places[target] = place
    return float(table.alphas[best]) if (places == best).all() else table.alphas[places]
