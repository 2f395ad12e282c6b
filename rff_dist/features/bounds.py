"""Theory's bounds on the kernel estimate.

A number of components D and a probability or norm go in; a bound on the error comes
out. The bounds are for independent frequencies of one shift-invariant kernel:
`pointwise_error` for one pair of points, `pairwise_error` for all pairs of a finite
set, `operator_norm_error` for their Gram matrix. They are safe but loose, often by a
factor of 10 to 100 in D: `rff_dist.approximation_error` measures the real error.
"""

import math

from rff_dist.checks import check_count, check_name, check_positive, check_share

# c of Hoeffding's inequality, P(|z(x)'z(y) - k(x, y)| ≥ t) ≤ 2·exp(-D·t²/c). The map
# "pairs", the cosine and sine of each frequency, averages D/2 terms in [-1, 1]; the map
# "phases", a cosine of each frequency with a random phase, D terms in [-2, 2].
_HOEFFDING = {"pairs": 4, "phases": 8}


def pointwise_error(n_components: int, *, delta: float, map: str = "pairs") -> float:
    """Return an error that a pair of points exceeds with probability `delta` at most.

    It is √(c·log(2/δ)/D), for the map "pairs" (c = 4) or "phases" (c = 8).

    Raises InvalidParameterError, as all bounds do, if a number is out of range or a map
    unknown.

    Source: Hoeffding (1963), Thm. 2; Rahimi & Recht (2007), Sec. 3.

    >>> round(pointwise_error(1024, delta=0.05), 3)
    0.12
    """
    return _hoeffding(n_components, 1, delta, map)


def pairwise_error(
    n_components: int, *, n_points: int, delta: float, map: str = "pairs"
) -> float:
    """Return an error that no kernel value of n points exceeds, with probability
    1 - `delta` at least.

    It is √(c·log(n(n-1)/δ)/D), by a union bound over all n(n-1)/2 values of two
    different points.

    The map "phases" also errs in the n values k(x, x), so n(n+1) replaces n(n-1) in
    its bound. The map "pairs" is exact there.

    >>> round(pairwise_error(6726, n_points=1000, delta=0.05), 4)
    0.1
    """
    n = check_count(n_points, "n_points", least=2)
    n_values = n * (n - 1) // 2
    if map == "phases":
        n_values += n
    return _hoeffding(n_components, n_values, delta, map)


def _hoeffding(n_components: int, n_values: int, delta: float, map: str) -> float:
    check_name(map, _HOEFFDING, "map")
    D = check_count(n_components, "n_components")
    # a union bound: each of the values may have delta / n_values of the probability
    log_ratio = math.log(2 * n_values) - math.log(check_share(delta, "delta"))
    return math.sqrt(_HOEFFDING[map] * log_ratio / D)


def operator_norm_error(n_components: int, *, n_points: int, gram_norm: float) -> float:
    """Return the bound on E‖Z Z' - K‖ / ‖K‖ of n points, in the operator norm.

    It is ε + ε² with ε² = 4·(n/‖K‖)·log(2n)/D, for both maps.

    Matrix Bernstein sums D matrices of norm at most 2n for the map "phases", and D/2 of
    norm at most n for the map "pairs". `gram_norm` is ‖K‖, the largest eigenvalue of K.

    Source: Tropp (2015), An introduction to matrix concentration inequalities, Sec.
    6.5.

    >>> round(operator_norm_error(18116, n_points=1000, gram_norm=200.0), 4)
    0.1
    """
    n = check_count(n_points, "n_points", least=2)
    D = check_count(n_components, "n_components")
    norm = check_positive(gram_norm, "gram_norm")
    epsilon = math.sqrt(4 * n / norm * math.log(2 * n) / D)
    return epsilon + epsilon**2
