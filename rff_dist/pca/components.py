"""Kernel principal components from exact statistics, and rows projected on them; NumPy only.

Principal components of the features Z are eigenvectors of the centred Z'Z, and what they give each row are
the scores of kernel PCA with the kernel that Z'Z stands for. With degree-normalised features they are those
of spectral clustering: with weights w, s = Σ w z, the degree d = z's of each row (its summed similarity to
all rows) and the volume V = Σ w d, the rows z·√V/d weighted by w·d/V have the mean s/√V and the covariance

    Σ w zz'/d − ss'/V,

whose eigenvalues are those of D^(−1/2) K D^(−1/2), less the greatest one, 1, which tells degrees only. The
scores are the random walk's eigenfunctions, nearly constant on clusters.

Schölkopf, Smola & Müller (1998), Nonlinear component analysis as a kernel eigenvalue problem; von Luxburg
(2007), A tutorial on spectral clustering, section 4; Alzate & Suykens (2010), for spectral clustering as a
weighted kernel PCA.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np

from rff_dist.data.blocks import Rows
from rff_dist.data.checks import check_finite, check_targets
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError
from rff_dist.features.feature_map import FeatureMap, arrays_digest
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.numerics.normal_equations import NormalEquations
from rff_dist.numerics.runs import expand
from rff_dist.numerics.threads import share_out, tile_pool
from rff_dist.numerics.triangular import solve_transposed
from rff_dist.ridge.linear_model import LinearModel, predict_rows
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.statistics.spec import tile_rows
from rff_dist.typing import FloatArray

DEGREE_FLOOR = 0.01  # of the mean degree: features of finite width give far rows degrees around 0


@dataclass(frozen=True, slots=True, eq=False)
class PrincipalComponents:
    """Directions of greatest variance of the features, the greatest first.

    `components`: float64 array of shape (n_kept, n_components). Orthonormal rows; the coefficient of largest
      absolute value of each is positive.
    `eigenvalues`: float64 array of shape (n_kept,). Of the centred Z'Z.
    `explained_variance`: float64 array of shape (n_kept,). Variance of the rows' scores with the divisor n −
      1, as of scikit-learn's PCA of Z; of degree-normalised features the eigenvalue itself.
    `explained_variance_ratio`: float64 array of shape (n_kept,). Shares of the variance of all components.
    `means`: float64 array of shape (n_components,). What is subtracted from the features.
    `noise_floor`: a variance up to it is rounding.
    """

    components: FloatArray
    eigenvalues: FloatArray
    explained_variance: FloatArray
    explained_variance_ratio: FloatArray
    means: FloatArray
    noise_floor: float


def principal_components(statistics: RidgeStatistics, n_components: int) -> PrincipalComponents:
    """Compute the leading principal components of the features, O(D³) for D of them.

    Whole-number weights count as repetitions; with others the covariance is that of the weighted rows times
    n/(n − 1), n the number of rows. Fewer components are kept, with a warning, where the rows have fewer
    directions of a variance above rounding.

    `statistics`: with targets or without.
    `n_components`: how many to keep, from 1 to D.
    Raises InvalidParameterError if there are not so many features; StatisticsError if fewer than 2 rows were
      counted; DataError if all rows have the same features.

    Schölkopf, Smola & Müller (1998).
    """
    equations = statistics.normal_equations(fit_intercept=True)
    n = equations.n_samples
    return _decomposed(equations, n_components, divisor=statistics.sum_of_weights * (n - 1) / max(n, 1))


def _decomposed(equations: NormalEquations, n_components: int, *, divisor: float) -> PrincipalComponents:
    width, n_samples = len(equations.gram), equations.n_samples
    if n_samples < 2:
        raise StatisticsError(
            f"principal components of n_samples={n_samples}: 1 sample has no variance; give 2 at least"
        )
    if not 1 <= n_components <= width:
        raise InvalidParameterError(
            f"`n_components` is {n_components}; there are at most as many principal components as the "
            f"{width} features that they are made of"
        )
    # the eigenvalue solver is ridge's, and a target of zeros asks nothing more of it
    spectrum = decompose(
        replace(
            equations,
            moments=np.zeros((width, 1)),
            total_sum_of_squares=np.zeros(1),
            target_means=np.zeros(1),
        )
    )
    # Centring took Σw·z̄z̄' away: what it leaves of that scale is rounding too.
    means = equations.feature_means
    uncentred = float(spectrum.eigenvalues[-1] + equations.sum_of_weights * np.square(means).sum())
    rounding = width * float(np.finfo(np.float64).eps) * uncentred + equations.gram_error
    floor = max(spectrum.floor, rounding)
    n_kept = min(n_components, int((spectrum.eigenvalues > floor).sum()))
    if n_kept == 0:
        raise DataError(
            "all rows have the same features, so no direction has a variance; give rows that differ, or a "
            "smaller length scale"
        )
    if n_kept < n_components:
        warnings.warn(
            f"{n_kept} principal components in the place of {n_components}: the rows have no more directions "
            f"of a variance above rounding ({floor / divisor:.3g})",
            UserWarning,
            stacklevel=3,
        )
    eigenvalues = spectrum.eigenvalues[::-1][:n_kept].copy()
    return PrincipalComponents(
        components=_with_fixed_signs(spectrum.eigenvectors[:, ::-1][:, :n_kept].T),
        eigenvalues=eigenvalues,
        explained_variance=eigenvalues / divisor,
        explained_variance_ratio=eigenvalues / spectrum.eigenvalues.sum(),
        means=equations.feature_means,
        noise_floor=floor / divisor,
    )


def _with_fixed_signs(components: FloatArray) -> FloatArray:
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    return np.ascontiguousarray(components * signs[:, np.newaxis])


# -- degrees ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class FeatureSums:
    """Sums over the rows seen so far: what degrees are made of; `+` joins two sets of rows.

    `n_samples`: rows counted.
    `weight`: ExactSum of shape (). Sum of the weights.
    `raw`: ExactSum of shape (n_components,). Weighted sums of the unnormalised features.
    """

    n_samples: int
    weight: ExactSum
    raw: ExactSum

    def __add__(self, other: FeatureSums) -> FeatureSums:
        return FeatureSums(self.n_samples + other.n_samples, self.weight + other.weight, self.raw + other.raw)


def sum_features(rows: Rows, feature_map: FeatureMap) -> FeatureSums:
    """Return the sums of a block's features, O(n_samples · n_components · n_features).

    Raises DataError if values are not finite, or a weight is negative.
    """
    inputs = feature_map.prepare(rows.X)
    check_finite(replace(rows, y=None), inputs)
    weights = np.ones(len(inputs)) if rows.sample_weight is None else rows.sample_weight
    sums = np.zeros(feature_map.n_components)
    height = min(tile_rows(feature_map.n_components), max(1, len(inputs)))

    def add(components: tuple[int, int]) -> None:
        start, stop = components
        stripe = np.empty((stop - start, height))
        for first in range(0, len(inputs), height):
            tile = inputs[first : first + height]
            features = stripe[:, : len(tile)]
            with np.errstate(over="ignore", invalid="ignore"):  # `ExactSum.of` refuses such sums
                feature_map.fill(tile, features, start, stop)
                sums[start:stop] += features @ weights[first : first + height]

    share_out(add, feature_map.stripes)
    return FeatureSums(len(inputs), ExactSum.of(np.asarray(weights.sum())), ExactSum.of(sums))


@dataclass(frozen=True, slots=True, eq=False)
class Degrees:
    """What gives each row its degree, z(x)'s, the weighted sum of its similarities to the rows summed.

    `sums`: float64 array of shape (n_components,). s, the weighted sums of Z's columns.
    `floor`: smaller degrees count as this one.
    """

    sums: FloatArray
    floor: float


def degrees_from(sums: FeatureSums, feature_map: FeatureMap) -> Degrees:
    """Return the degrees of a dataset; the floor is a hundredth of the mean degree.

    Raises DataError if the mean degree is not above 0.
    """
    scaled = expand(feature_map.scales)[:, np.newaxis] * sums.raw.value()[:, np.newaxis]
    if (whitener := feature_map.whitener) is not None:
        with tile_pool():
            solve_transposed(whitener, scaled)
    volume, weight = float(np.square(scaled).sum()), float(sums.weight.value())
    if not (weight > 0 and volume > 0):
        raise DataError(
            f"the rows' degrees add up to {volume:g} with a total weight of {weight:g}; expected numbers "
            "above 0. Degrees are sums of similarities: take a kernel that is not negative"
        )
    return Degrees(scaled[:, 0], DEGREE_FLOOR * volume / weight)


@dataclass(frozen=True, slots=True, eq=False)
class DegreeAccumulation:
    """The state of a pass over degree-normalised features.

    `accumulation`: features, and a spec whose weights reach the largest weight over `floor`.
    `degree`: f(x) = z(x)'s.
    `floor`: of the degrees.
    """

    accumulation: Accumulation
    degree: LinearModel
    floor: float


@dataclass(frozen=True, slots=True, eq=False)
class DegreeStatistics:
    """Exact sums of degree-normalised features; `+` joins two sets of rows.

    `statistics`: without targets, of rows of weight w/d.
    `volume`: ExactSum of shape (). Σ w·d, with d not below the floor.
    `n_floored`: rows whose degree was below it.
    """

    statistics: RidgeStatistics
    volume: ExactSum
    n_floored: int

    def __add__(self, other: DegreeStatistics) -> DegreeStatistics:
        return DegreeStatistics(
            self.statistics + other.statistics,
            self.volume + other.volume,
            self.n_floored + other.n_floored,
        )


def accumulate_normalized_rows(
    rows: Rows, state: DegreeAccumulation, total: DegreeStatistics | None = None
) -> DegreeStatistics:
    """Return the statistics of a block's degree-normalised features; adds to `total` in place.

    At the cost of `accumulate_rows`.

    Raises DataError if values are not finite, or a weight is negative or beyond the grid of the spec.
    """
    found = predict_rows(rows, state.degree)[:, 0]
    check_targets(replace(rows, y=None))  # weights, before they are divided
    degrees = np.maximum(found, state.floor)
    weights = np.ones(len(found)) if rows.sample_weight is None else rows.sample_weight
    weighted = replace(rows, y=None, sample_weight=weights / degrees)
    volume, n_floored = ExactSum.of(np.asarray(weights @ degrees)), int((found < state.floor).sum())
    if total is not None:
        volume, n_floored = total.volume + volume, total.n_floored + n_floored
    before = None if total is None else total.statistics
    return DegreeStatistics(accumulate_rows(weighted, state.accumulation, before), volume, n_floored)


def spectral_components(
    sums: DegreeStatistics, degrees: Degrees, n_components: int
) -> tuple[PrincipalComponents, float]:
    """Compute the leading components of degree-normalised features, O(D³); see the formula above.

    Returns `principal`: its eigenvalues lie in [0, 1] and are the explained variances too.
    Returns `volume`: Σ w·d.
    Raises InvalidParameterError, DataError as `principal_components`.
    """
    equations = sums.statistics.normal_equations(fit_intercept=False)
    volume = float(sums.volume.value())
    mean = degrees.sums / np.sqrt(volume)
    gram = equations.gram
    for start in range(0, len(gram), 512):  # no second matrix of that size
        gram[start : start + 512] -= np.outer(mean[start : start + 512], mean)
    # Σw·z̄z̄' is what centring took away, by which its rounding is measured
    shift = mean / np.sqrt(equations.sum_of_weights)
    found = _decomposed(replace(equations, feature_means=shift), n_components, divisor=1.0)
    return replace(found, means=mean), volume


# -- projections -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """The state of a pass that projects rows on components.

    `linear`: the scores; for degree-normalised features before they are divided by the degree, which is the
      last column.
    `offset`: float64 array of shape (n_kept,). Subtracted after that division.
    `floor`: of the degrees; None where features are not normalised.
    """

    linear: LinearModel
    offset: FloatArray
    floor: float | None = None

    @property
    def n_components(self) -> int:
        """Columns of the scores."""
        return len(self.offset)

    def digest(self) -> str:
        """Return a digest of the features and all numbers that scores are made with."""
        linear = self.linear
        label = f"projection {linear.feature_map.digest()} {self.floor!r}"
        return arrays_digest(label, [linear.coefficients, linear.intercept, self.offset], None)


def project_rows(rows: Rows, projection: Projection) -> FloatArray:
    """Return scores of shape (n_samples, n_kept), O(n_samples · n_components · n_features).

    Raises DataError as `predict_rows`.
    """
    scores = predict_rows(rows, projection.linear)
    if projection.floor is None:
        return scores
    return scores[:, :-1] / np.maximum(scores[:, -1:], projection.floor) - projection.offset
