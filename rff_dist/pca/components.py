"""Kernel principal components from exact statistics, and projections of rows on them.

The sums of a pass go in; directions come out, and from these the scores of rows. The
rows' Gram matrix, of n_samples² numbers, is never made.

Principal components of the features Z are eigenvectors of the centred Z'Z. The rows'
scores on them equal the scores of kernel PCA with the kernel ZZ'. With
degree-normalised features they equal the scores of spectral clustering. Let rows have
weights w, s = Σ w z, the degree of a row d = z's (its summed similarity to all rows),
and the volume V = Σ w d. Then the rows z·√V/d with weights w·d/V have the mean s/√V and
the covariance

    Σ w zz'/d − ss'/V,

whose eigenvalues are those of D^(−1/2) K D^(−1/2), where D is the diagonal matrix of
degrees, without the largest, 1, which depends on degrees only. The scores are the
random walk's eigenfunctions, nearly constant on clusters.

Schölkopf, Smola & Müller (1998), Nonlinear component analysis as a kernel eigenvalue
problem; von Luxburg (2007), A tutorial on spectral clustering, section 4; Alzate &
Suykens (2010), for spectral clustering as a weighted kernel PCA.
"""

from dataclasses import replace
from typing import NoReturn

import numpy as np
import scipy

from rff_dist.data import blocks
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError, warn
from rff_dist.features import maps
from rff_dist.fitting import predicting
from rff_dist.numerics import eigen, exact_sums, machine
from rff_dist.numerics.solution import NormalEquations
from rff_dist.statistics import accumulate, gram_products
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.text import short_repr
from rff_dist.typing import EPS, FloatArray, frozen

# Share of the mean degree that every degree has at least: with finitely many features,
# rows far from all others get degrees around 0, and are divided by them.
DEGREE_FLOOR = 0.05


@frozen(eq=False)
class PrincipalComponents:
    """Directions of largest variance of the features, the largest first."""

    #: Orthonormal rows; in each the coefficient of largest absolute value is positive;
    #: shape (n_kept, n_random_features).
    components: FloatArray
    #: Eigenvalues of the centred Z'Z; shape (n_kept,).
    eigenvalues: FloatArray
    #: Variance of the rows' scores with divisor n − 1, as in scikit-learn's PCA of Z;
    #: for degree-normalised features, the eigenvalue itself; shape (n_kept,).
    explained_variance: FloatArray
    #: Shares of the variance of all components; shape (n_kept,).
    explained_variance_ratio: FloatArray
    #: Subtracted from the features; shape (n_random_features,).
    means: FloatArray
    #: A variance up to this is rounding.
    noise_floor: float

    __repr__ = short_repr


def principal_components(
    statistics: RidgeStatistics, n_components: int
) -> PrincipalComponents:
    """Like `sklearn.decomposition.PCA(n_components)` of Z, from sums.

    Z has n_random_features columns, and the time grows with the cube of that number.

    n is the number of observations: if weights repeat rows, these count as repetitions.
    Otherwise the covariance is that of the weighted rows times n/(n − 1). Warns and
    keeps fewer components if the rows have fewer directions with a variance above
    rounding. Raises InvalidParameterError if there are fewer features; StatisticsError
    if fewer than 2 rows were counted; DataError if all rows have the same features.
    """
    equations = statistics.normal_equations(fit_intercept=True)
    n = equations.n_samples
    weight = equations.sum_of_weights
    return _decomposed(
        equations,
        n_components,
        divisor=weight * (n - 1) / n,
        # centring subtracted Σw·z̄z̄'
        subtracted=weight * float(np.square(equations.feature_means).sum()),
    )


def _decomposed(
    equations: NormalEquations, n_components: int, *, divisor: float, subtracted: float
) -> PrincipalComponents:
    """Return the leading eigenvectors of a Gram.

    A variance is an eigenvalue over `divisor`. `subtracted` is the trace of the matrix
    that centring took from the Gram.
    """
    width = len(equations.gram)
    n_samples = equations.n_samples
    if n_samples < 2:
        raise StatisticsError(
            f"principal components of n_samples={n_samples}: 1 sample has no variance;"
            " give 2 at least"
        )
    if not 1 <= n_components <= width:
        raise InvalidParameterError(
            f"`n_components` is {n_components}; expected a number from 1 to {width},"
            " the number of features that principal components are made of"
        )
    # rounding has the scale of the Gram before the subtraction
    resolution = width * EPS
    total = float(np.trace(equations.gram))
    if total <= resolution * (subtracted + total) + equations.gram_error:
        # refused here, since eigenvalues of rounding errors would converge slowly
        _refuse_equal_rows()
    # `decompose` solves ridge too, so it needs a target: zeros
    zero = np.zeros(1)
    spectrum = eigen.decompose(
        replace(
            equations,
            moments=np.zeros((width, 1)),
            total_sum_of_squares=zero,
            target_means=zero,
        )
    )
    rounding = (
        resolution * (float(spectrum.eigenvalues[-1]) + subtracted)
        + equations.gram_error
    )
    floor = max(spectrum.floor, rounding)
    n_kept = min(n_components, int((spectrum.eigenvalues > floor).sum()))
    if n_kept == 0:
        _refuse_equal_rows()
    if n_kept < n_components:
        warn(
            f"{n_kept} principal components in place of {n_components}: the rows have"
            " no more directions with a variance above rounding"
            f" ({floor / divisor:.3g})",
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


def _refuse_equal_rows() -> NoReturn:
    raise DataError(
        "all rows have the same features, so no direction has a variance; give rows"
        " that differ, or a smaller length scale"
    )


def _with_fixed_signs(components: FloatArray) -> FloatArray:
    largest = np.abs(components).argmax(axis=1, keepdims=True)
    # eigenvectors have no sign of their own: with this rule all machines give the same
    # one
    signs = np.sign(np.take_along_axis(components, largest, 1))
    return np.ascontiguousarray(components * signs)


# -- degrees


def sum_features(
    rows: blocks.Rows, feature_map: maps.FeatureMap
) -> tuple[exact_sums.ExactSum, ...]:
    """Return a block's sum of weights, and weighted sums of its unnormalised features.

    Degrees follow from these. Raises DataError if values are not finite, or a weight is
    negative.
    """
    weights = rows.weights
    sums = np.zeros(feature_map.n_components)

    def add(components: slice, tile: slice, features: FloatArray) -> None:
        sums[components] += features @ weights[tile]

    inputs = feature_map.inputs_of(replace(rows, y=None))
    accumulate.share_features(add, inputs, feature_map)
    # `ExactSum.of` refuses sums that are not finite
    return tuple(map(exact_sums.ExactSum.of, (np.asarray(weights.sum()), sums)))


@frozen(eq=False)
class Degrees:
    """The vector s that gives a row its degree z(x)'s, its similarity to all rows."""

    #: s, the weighted sums of Z's columns; shape (n_random_features,).
    sums: FloatArray
    #: Smaller degrees are replaced by this one.
    floor: float


def degrees_from(
    sums: tuple[exact_sums.ExactSum, ...], feature_map: maps.FeatureMap
) -> Degrees:
    """Return the degrees of a dataset from the sums of its features.

    Raises DataError if their mean is not above 0.
    """
    of_weights, raw = sums
    scaled = gram_products.sums_of_z(raw.value()[:, np.newaxis], feature_map)
    # Σ w·z's = ‖s‖², for s = Σ w·z
    volume = float(np.square(scaled).sum())
    weight = float(of_weights.value())
    if not (weight > 0 and volume > 0):
        raise DataError(
            f"the rows' degrees add up to {volume:g} with a total weight of {weight:g};"
            " expected numbers above 0. Degrees are sums of similarities: take a"
            " kernel without negative values"
        )
    return Degrees(scaled[:, 0], DEGREE_FLOOR * volume / weight)


@frozen(eq=False)
class DegreeAccumulation:
    """The state of a pass over degree-normalised features."""

    #: The features, and a rounding grid for weights up to the largest one over `floor`.
    accumulation: accumulate.Accumulation
    #: The model f(x) = z(x)'s, a row's degree.
    degree: predicting.LinearModel
    #: Smaller degrees are replaced by this one.
    floor: float


@frozen(eq=False)
class DegreeStatistics:
    """Exact sums of degree-normalised features; `+` joins two sets of rows."""

    #: Without targets, of rows with weights w/d.
    statistics: RidgeStatistics
    #: Σ w·d, with d at least the floor; shape ().
    volume: exact_sums.ExactSum
    #: Number of rows whose degree was below the floor.
    n_floored: int

    __add__ = exact_sums.add_fields


def accumulate_normalized_rows(
    rows: blocks.Rows, state: DegreeAccumulation, total: DegreeStatistics | None = None
) -> DegreeStatistics:
    """Sum a block's degree-normalised features; adds to `total` in place.

    Raises DataError if values are not finite, or a weight is negative or beyond the
    rounding grid.
    """
    computed_degrees = predicting.predict_rows(rows, state.degree)[:, 0]
    # checks the weights, before they are divided by degrees
    blocks.check_targets(replace(rows, y=None))
    degrees = np.maximum(computed_degrees, state.floor)
    weights = rows.weights
    # sums of rows z/√d are those of rows z with weights w/d
    weighted = replace(rows, y=None, sample_weight=weights / degrees)
    volume = exact_sums.ExactSum.of(np.asarray(weights @ degrees))
    n_floored = int((computed_degrees < state.floor).sum())
    before = None
    if total is not None:
        before = total.statistics
        volume += total.volume
        n_floored += total.n_floored
    statistics = accumulate.accumulate_rows(weighted, state.accumulation, before)
    return DegreeStatistics(statistics, volume, n_floored)


def spectral_components(
    sums: DegreeStatistics, degrees: Degrees, n_components: int
) -> tuple[PrincipalComponents, float]:
    """Compute components of degree-normalised features, by the formula at the top.

    Returns the components and the volume Σ w·d. Eigenvalues are in [0, 1], and are the
    explained variances too. Raises as `principal_components`.
    """
    equations = sums.statistics.normal_equations(fit_intercept=False)
    volume = float(sums.volume.value())
    # the trivial eigenvector √d has eigenvalue 1; in the space of features it is
    # s/√volume
    mean = degrees.sums / np.sqrt(volume)
    gram = equations.gram
    # In place, since `normal_equations` made this array; in strips, since the whole
    # outer product would be a second matrix of the Gram's size.
    for start in range(0, len(gram), 512):
        gram[start : start + 512] -= np.outer(mean[start : start + 512], mean)
    principal = _decomposed(
        equations,
        n_components,
        divisor=1.0,
        subtracted=float(np.square(mean).sum()),
    )
    return replace(principal, means=mean), volume


def leading_directions(gram: FloatArray, n_leading: int) -> FloatArray:
    """Return v/√λ of the leading eigenvectors of Σ w zz'/d, the directions that k-means
    in spectral clustering projects rows on.

    The shape is (n_random_features, n_leading), where n_leading is at most
    n_random_features. The features of rows times these are √d times eigenvectors of
    D^(−1/2) K D^(−1/2), the first of them constant on each connected cluster.
    """
    width = len(gram)
    n_leading = min(n_leading, width)
    # the bits of eigenvectors depend on the number of threads
    with machine.using_threads(1):
        eigenvalues, vectors = scipy.linalg.eigh(
            gram, subset_by_index=[width - n_leading, width - 1]
        )
    signed = _with_fixed_signs(vectors.T[::-1])
    # a λ near 0 is rounding, and would blow its eigenvector up
    roots = np.sqrt(np.maximum(eigenvalues[::-1], width * EPS))
    return np.asarray(signed.T / roots)


# -- projections


@frozen(eq=False)
class Projection:
    """The state of a pass that projects rows on components."""

    #: Computes the scores. For degree-normalised features its last column is the
    #: degree, and the scores are the other columns divided by it.
    linear: predicting.LinearModel
    #: Subtracted after that division; shape (n_kept,).
    offset: FloatArray
    #: Smaller degrees are replaced by this one; None if features are not normalised.
    floor: float | None = None

    __repr__ = short_repr

    @property
    def n_components(self) -> int:
        """Number of columns of the scores."""
        return len(self.offset)

    def digest(self) -> str:
        """Return a digest of everything that decides the scores."""
        linear = self.linear
        label = f"projection {linear.feature_map.digest()} {self.floor!r}"
        return maps.arrays_digest(
            label, [linear.coefficients, linear.intercept, self.offset], None
        )


def project_rows(rows: blocks.Rows, projection: Projection) -> FloatArray:
    """Return the scores of a block, shape (n_samples, n_kept).

    Raises DataError as `predict_rows`.
    """
    scores = predicting.predict_rows(rows, projection.linear)
    if projection.floor is None:
        return scores
    return (
        scores[:, :-1] / np.maximum(scores[:, -1:], projection.floor)
        - projection.offset
    )
