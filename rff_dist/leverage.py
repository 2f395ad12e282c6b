"""Ridge leverage scores, from a pilot's sums: which rows, and which features, a ridge regression rests on.

The score of a row is z'(Z'Z + alpha·I)⁻¹z, that of a component the share of its direction that the penalty
leaves; both sum to the effective degrees of freedom. Drawn in proportion to them, few features do the work of
many (Bach 2017; Li et al. 2019).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.feature_map import FeatureMap, FourierFeatureMap, check_n_components, seed_from_random_state
from rff_dist.feature_map.reweighted import ReweightedFeatureMap
from rff_dist.frequencies import counter_uniforms
from rff_dist.kernels import check_positive
from rff_dist.statistics import RidgeStatistics
from rff_dist.triangular import cholesky_in_place, solve_transposed, tile_pool

type FloatArray = NDArray[np.float64]

_STREAM = 2**34  # of the seed's random numbers, far above those of frequencies and centres
_STRIP = 256


def row_leverage_scores(
    X: ArrayLike, feature_map: FeatureMap, statistics: RidgeStatistics, *, alpha: float
) -> FloatArray:
    """Return z(x)'(Z'Z + alpha·I)⁻¹z(x) of each row, O(n_components³ + n_samples · n_components²).

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Any rows, those of the statistics or others.
    feature_map : FeatureMap
        z.
    statistics : RidgeStatistics
        Of the pilot's rows in the same features; of a sample, scores are those of a regression on it.
    alpha : float
        The penalty, above 0.

    Returns
    -------
    scores : float64 array of shape (n_samples,)
        Between 0 and 1 for a row of the statistics.

    Raises
    ------
    InvalidParameterError
        If alpha is no number above 0.
    SolveError
        If the sums are so inexact that Z'Z + alpha·I is not positive definite.
    """
    factor = _factor(statistics, alpha)
    Z = feature_map.transform(X)
    scores = np.empty(len(Z))

    def score(start: int) -> None:
        columns = np.ascontiguousarray(Z[start : start + _STRIP].T)
        solve_transposed(factor, columns)
        scores[start : start + _STRIP] = np.square(columns).sum(axis=0)

    with tile_pool() as pool:
        list(pool.map(score, range(0, len(Z), _STRIP)))
    return scores


def component_leverage_scores(statistics: RidgeStatistics, *, alpha: float) -> FloatArray:
    """Return the diagonal of Z'Z(Z'Z + alpha·I)⁻¹, shape (n_components,), O(n_components³).

    Parameters
    ----------
    statistics : RidgeStatistics
        Of the pilot's rows.
    alpha : float
        The penalty, above 0.

    Returns
    -------
    scores : float64 array of shape (n_components,)
        Between 0 and 1; their sum is the effective degrees of freedom.

    Raises
    ------
    InvalidParameterError
        If alpha is no number above 0.
    SolveError
        If the sums are so inexact that Z'Z + alpha·I is not positive definite.

    References
    ----------
    Li, Ton, Oglic & Sejdinovic (2019), Towards a unified analysis of random Fourier features, Alg. 1.
    """
    factor = _factor(statistics, alpha)
    n_components = len(factor)
    inverse_diagonal = np.empty(n_components)

    def invert(start: int) -> None:
        columns = np.zeros((n_components, min(_STRIP, n_components - start)))
        columns[range(start, start + columns.shape[1]), range(columns.shape[1])] = 1.0
        solve_transposed(factor, columns)
        inverse_diagonal[start : start + _STRIP] = np.square(columns).sum(axis=0)

    with tile_pool() as pool:
        list(pool.map(invert, range(0, n_components, _STRIP)))
    return np.asarray(1 - alpha * inverse_diagonal)


def resample_frequencies(
    feature_map: FourierFeatureMap,
    statistics: RidgeStatistics,
    *,
    n_components: int,
    alpha: float,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
) -> ReweightedFeatureMap:
    """Keep the frequencies of a pilot that count: drawn by leverage, weighted so that the kernel stays.

    Frequency i is kept with the probability πᵢ, in proportion to its score and at most 1, and its features
    weigh 1/√πᵢ, so that z(x)'z(y) is the pilot's on average. No frequency comes twice (systematic sampling).
    Draw a pilot of some times as many components, sum it over a sample of the rows, and resample it.

    Parameters
    ----------
    feature_map : FourierFeatureMap
        The pilot.
    statistics : RidgeStatistics
        Of the pilot's features, on the rows or a sample of them.
    n_components : int
        Components to keep, fewer than the pilot's; even for pairs.
    alpha : float
        The penalty in mind, for as many rows as the statistics have.
    random_state : int, Generator, RandomState or None
        The seed.

    Raises
    ------
    InvalidParameterError
        If there are not so many components, or the statistics are of other features.

    References
    ----------
    Li, Ton, Oglic & Sejdinovic (2019), Alg. 1; Madow (1949) for systematic sampling.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import accumulate, draw_feature_map, write_dataset
    >>> from rff_dist.leverage import resample_frequencies
    >>> X = np.random.default_rng(0).standard_normal((500, 3))
    >>> sample = write_dataset("memory://leverage-example", X, X[:, 0])
    >>> pilot = draw_feature_map("gaussian", n_features=3, n_components=512)
    >>> few = resample_frequencies(pilot, accumulate(sample, pilot), n_components=64, alpha=1.0)
    >>> few.n_components
    64
    """
    wanted = check_n_components(n_components, feature_map.map)
    if wanted > feature_map.n_components:
        raise InvalidParameterError(
            f"`n_components` is {wanted}, but the pilot has {feature_map.n_components}; draw a larger pilot"
        )
    if statistics.spec.feature_digest != feature_map.digest():
        raise InvalidParameterError(
            "the statistics are of other features than the pilot's; accumulate them with this feature map"
        )
    scores = component_leverage_scores(statistics, alpha=alpha)
    each = 2 if feature_map.map == "pairs" else 1
    by_frequency = np.maximum(scores.reshape(-1, each).sum(axis=1), 0.0)
    probabilities = _inclusion_probabilities(by_frequency, wanted // each)
    start = counter_uniforms(seed_from_random_state(random_state), _STREAM, 1, 1)[0, 0]
    crossed = np.floor(np.cumsum(probabilities) - start)
    chosen = np.flatnonzero(np.diff(crossed, prepend=np.floor(-start)) > 0)
    kept = FourierFeatureMap(
        np.ascontiguousarray(feature_map.frequencies[:, chosen]),
        None if feature_map.phases is None else feature_map.phases[chosen],
    )
    # the pilot's scale is 1/√J, that of `kept` 1/√J' (times √2 for phases)
    factors = np.sqrt(len(chosen) / (len(by_frequency) * probabilities[chosen]))
    return ReweightedFeatureMap(kept, np.repeat(factors, each), feature_map.standardizer)


def _inclusion_probabilities(scores: FloatArray, count: int) -> FloatArray:
    """Return probabilities in proportion to the scores, at most 1, that sum to `count`."""
    floor = max(float(scores.mean()) * 1e-6, np.finfo(np.float64).tiny)  # every frequency may be kept
    scores = np.maximum(scores, floor)
    certain = np.zeros(len(scores), bool)
    while True:
        rest = count - certain.sum()
        probabilities = np.where(certain, 1.0, rest * scores / max(scores[~certain].sum(), floor))
        beyond = ~certain & (probabilities >= 1)
        if not beyond.any():
            return probabilities
        certain |= beyond


def _factor(statistics: RidgeStatistics, alpha: float) -> FloatArray:
    check_positive(alpha, "alpha")
    matrix = statistics.ZtZ()
    matrix.flat[:: len(matrix) + 1] += alpha
    with tile_pool() as pool:
        stopped = cholesky_in_place(matrix, pool)
    if stopped is not None:
        raise SolveError(
            f"Z'Z + alpha·I with alpha={alpha:.3g} is not positive definite, at component {stopped}: alpha "
            "is below what the sums' rounding allows; take a larger one"
        )
    return matrix
