"""Is D large enough? Bounds on the kernel estimate, from an error to D and back; exact variances.

There are three bounds, each for independent frequencies of one shift-invariant kernel:

============================  =====================================================================
`pointwise_error`             the error of one pair of points (Hoeffding)
`pairwise_components`         the largest error over all pairs of n points (Hoeffding, union bound)
`operator_norm_components`    ‖Z Z' - K‖ / ‖K‖ on n points, in expectation (matrix Bernstein)
============================  =====================================================================

The latter two have inverses whose names end in `_error`. All are safe but loose, often by a factor of 10 to
100 in D: `rff_dist.approximation_error` measures the real error. The variances are exact.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.checks import check_count, check_name, check_positive, check_share
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.kernels import base
from rff_dist.typing import FloatArray, frozen

_REAL_MAPS = ("pairs", "phases")


# -- one pair, and all pairs of n points -----------------------------------------------------------


def pointwise_error(n_components: int, *, delta: float, map: str = "pairs") -> float:
    """Return the error that a pair of points exceeds with a probability of at most `delta`.

    Hoeffding's inequality, P(|z(x)'z(y) - k(x, y)| ≥ t) ≤ 2·exp(-D·t²/c) with the c of `pairwise_components`.

    Raises InvalidParameterError if a parameter is out of range.

    >>> round(pointwise_error(1024, delta=0.05), 3)
    0.12
    """
    check_name(map, _REAL_MAPS, "map")
    rate = (4 if map == "pairs" else 8) * (math.log(2) - math.log(check_share(delta, "delta")))
    return math.sqrt(rate / check_count(n_components, "n_components"))


def pairwise_components(error: float, *, n_points: int, delta: float, map: str = "pairs") -> int:
    """Return a D with which no pair of `n_points` points is off by more than `error`, with high probability.

    This is Hoeffding's inequality for each pair, P(|z(x)'z(y) - k(x, y)| ≥ t) ≤ 2·exp(-D·t²/c), and a union
    bound over the pairs. Phases average D terms in [-2, 2], so c = 8, and the n entries of the diagonal count
    too. Pairs average D/2 terms in [-1, 1], so c = 4, and the diagonal is exact. The usual short form for
    phases, D ≥ (16/ε²)·log(n/δ), is never less for δ ≤ 1/2.

    `error`: the wanted bound on |z(x)'z(y) - k(x, y)|, above 0.
    `n_points`: at least 2.
    `delta`: the probability with which the bound may fail, between 0 and 1.
    `map`: {"pairs", "phases"}.
    Returns `n_components`: even for pairs.
    Raises InvalidParameterError if a parameter is out of range.
    Source: Hoeffding (1963), Thm. 2; Rahimi & Recht (2007), Sec. 3.

    >>> pairwise_components(0.1, n_points=1000, delta=0.05)
    6726
    """
    rate = _pairwise_rate(n_points, delta, map)
    return _whole(rate / _squared(error), map)


def pairwise_error(n_components: int, *, n_points: int, delta: float, map: str = "pairs") -> float:
    """Return the error that no pair of points exceeds: the inverse of `pairwise_components`, see there."""
    return math.sqrt(_pairwise_rate(n_points, delta, map) / check_count(n_components, "n_components"))


def _pairwise_rate(n_points: int, delta: float, map: str) -> float:
    check_name(map, _REAL_MAPS, "map")
    n = check_count(n_points, "n_points", least=2)
    twice_the_pairs = n * (n - 1) if map == "pairs" else n * (n + 1)
    return (4 if map == "pairs" else 8) * (math.log(twice_the_pairs) - math.log(check_share(delta, "delta")))


# -- operator norm ---------------------------------------------------------------------------------


def operator_norm_components(error: float, *, n_points: int, gram_norm: float) -> int:
    """Return a D with which ‖Z Z' - K‖ ≤ error·‖K‖ in expectation, in the operator norm.

    D ≥ (4/ε²)·(n/‖K‖)·log(2n) gives E‖Z Z' - K‖ ≤ (ε + ε²)·‖K‖; ε is solved from error = ε + ε². D is the
    same for both maps: matrix Bernstein sums D matrices of norm at most 2n for phases, and D/2 of norm at
    most n for pairs. n/‖K‖, between 1 and n, is small if few directions hold most of the kernel.

    `error`: the wanted relative error, above 0.
    `n_points`: n, at least 2.
    `gram_norm`: ‖K‖, the largest eigenvalue of the Gram matrix of the points.
    Returns `n_components`: even.
    Raises InvalidParameterError if a parameter is out of range.
    Source: Tropp (2015), An introduction to matrix concentration inequalities, Sec. 6.5.

    >>> operator_norm_components(0.1, n_points=1000, gram_norm=200.0)
    18116
    """
    wanted = check_positive(error, "error")
    epsilon = 2 * wanted / (1 + math.sqrt(1 + 4 * wanted))  # the root of ε + ε² = error, without cancelling
    return _whole(_operator_norm_rate(n_points, gram_norm) / _squared(epsilon), "pairs")


def operator_norm_error(n_components: int, *, n_points: int, gram_norm: float) -> float:
    """Return the bound on E‖Z Z' - K‖ / ‖K‖ with D components; the inverse of `operator_norm_components`."""
    epsilon = math.sqrt(_operator_norm_rate(n_points, gram_norm) / check_count(n_components, "n_components"))
    return epsilon + epsilon**2


def _operator_norm_rate(n_points: int, gram_norm: float) -> float:
    n = check_count(n_points, "n_points", least=2)
    return 4 * n / check_positive(gram_norm, "gram_norm") * math.log(2 * n)


# -- closed-form variances -------------------------------------------------------------------------


def feature_variance(
    kernel: base.Kernel, X: ArrayLike, Y: ArrayLike | None = None, *, n_components: int, map: str = "pairs"
) -> FloatArray:
    """Return the exact variance of z(x)'z(y) over independent draws of the frequencies.

    With Δ = x - y it is (1/D)·[1 + k(2Δ) - 2k(Δ)²] for pairs, (1/D)·[1 + k(2Δ)/2 - k(Δ)²] for phases, and
    (1/D)·[1 - k(Δ)²] for complex features. Pairs have the lower one if k(Δ)² > k(2Δ)/2: always for the
    Gaussian and the Laplacian. O(n_samples_X · n_samples_Y · n_features).

    `kernel`: shift-invariant with k(0) = 1, or a product of such kernels.
    `X`: array-like of shape (n_samples_X, n_features).
    `Y`: array-like of shape (n_samples_Y, n_features). X by default.
    `map`: {"pairs", "phases", "complex"}.
    Returns `variance`, float64 array of shape (n_samples_X, n_samples_Y).
    Raises InvalidParameterError if the kernel is of another kind, or the map is unknown.
    Source: Sutherland & Schneider (2015), eq. 3 and 5.

    >>> from rff_dist.kernels.stationary import Gaussian
    >>> feature_variance(Gaussian(), [[0.0], [9.0]], n_components=100)
    array([[0.  , 0.01],
           [0.01, 0.  ]])
    """
    check_name(map, (*_REAL_MAPS, "complex"), "map")
    D = check_count(n_components, "n_components")
    return _unit_variance(*_once_and_twice(shift_invariant_form(kernel), X, Y), map) / D


def _once_and_twice(
    kernel: base.ShiftInvariant, X: ArrayLike, Y: ArrayLike | None
) -> tuple[FloatArray, FloatArray]:
    """Return k(Δ) and k(2Δ) of all pairs."""
    left = np.asarray(X, np.float64)
    right = left if Y is None else np.asarray(Y, np.float64)
    return kernel(left, right), kernel(2 * left, 2 * right)


def _unit_variance(once: FloatArray, twice: FloatArray, map: str) -> FloatArray:
    if map == "pairs":
        variance = 1 + twice - 2 * once**2
    else:
        variance = 1 + (twice / 2 if map == "phases" else 0.0) - once**2
    return np.maximum(variance, 0.0)  # near Δ = 0 rounding may make it negative


@frozen
class MapVariances:
    """The mean closed-form variances of the two real maps over pairs of points, times D.

    Divided by D they are the mean squared errors of z(x)'z(y) with independent frequencies.
    """

    pairs: float
    phases: float

    @property
    def better(self) -> Literal["pairs", "phases"]:
        """The map with the lower variance; pairs if they are equal, since their diagonal is exact."""
        return "pairs" if self.pairs <= self.phases else "phases"


def better_map(kernel: base.Kernel, X: ArrayLike) -> MapVariances:
    """Compare the maps by their mean closed-form variance over all pairs of different rows.

    Phases win if most rows are far apart and the kernel falls slowly (Cauchy, rational quadratic); else pairs
    win. O(n_samples² · n_features).

    `kernel`: shift-invariant, or a sum with such terms, which share the components in proportion to their
      weights as in `draw_feature_map`. Linear, polynomial and min terms have the same features for both maps
      and add nothing to either variance.
    `X`: array-like of shape (n_samples, n_features). At least 2 rows; two rows with equal values are a pair
      too.
    Returns `variances`: its `better` is the answer.
    Raises DataError if there are fewer than 2 rows.

    >>> from rff_dist.kernels.stationary import Cauchy, Gaussian
    >>> X = [[0.0], [3.0], [6.0]]
    >>> better_map(Gaussian(), X).better, better_map(Cauchy(), X).better
    ('pairs', 'phases')
    """
    points = np.atleast_2d(np.asarray(X, np.float64))
    if len(points) < 2:
        raise DataError(f"X has {len(points)} rows; the maps are compared over pairs of at least 2")
    terms = [(term.weight, base.shift_invariant_term(term)) for term in kernel.terms()]
    invariant = [(weight, whole) for weight, whole in terms if whole is not None]
    above = np.triu_indices(len(points), 1)
    total = math.fsum(weight for weight, _ in invariant)
    means = dict.fromkeys(_REAL_MAPS, 0.0)
    for weight, whole in invariant:
        once, twice = (gram[above] for gram in _once_and_twice(whole, points, None))
        for map in _REAL_MAPS:
            means[map] += total * weight * float(_unit_variance(once, twice, map).mean())
    return MapVariances(**means)


def shift_invariant_form(kernel: base.Kernel) -> base.ShiftInvariant:
    """Return a kernel with k(0) = 1 that is shift-invariant, or a product of such kernels, as that class.

    Raises InvalidParameterError if it is of another kind: a sum, a multiple, or linear, polynomial or min.
    """
    whole = base.as_shift_invariant(kernel)
    if whole is None:
        raise InvalidParameterError(
            f"bounds and variances are for one shift-invariant kernel with k(0) = 1, not for {kernel}; take "
            "its terms one by one, or measure with `approximation_error`"
        )
    return whole


# -- checks ----------------------------------------------------------------------------------------


def _squared(error: float) -> float:
    squared = check_positive(error, "error") ** 2
    if not squared > 1e-300:
        raise InvalidParameterError(f"`error` is {error:g}; no number of components makes it so small")
    return squared


def _whole(n_components: float, map: str) -> int:
    step = 2 if map == "pairs" else 1
    return max(1, math.ceil(n_components / step)) * step
