"""Intervals of the mean of paired differences, and of shares.

In go a number for each row, out come their mean and the ends of its interval. The
standard deviation over the root of n would do for independent rows of equal weight; it
is 0 if all rows are right, and too small if rows are in groups.

With n rows, or n groups of rows, the interval of `paired_interval` is Student's with
n − 1 degrees of freedom. Few rows may be wrong, or differ between two models, so shares
get exact intervals too: `exact_interval` agrees with McNemar's test of two models, and
`share_interval` is Clopper & Pearson's of one share.

McNemar (1947), Psychometrika 12; Clopper & Pearson (1934), Biometrika 26; Cameron &
Miller (2015), A practitioner's guide to cluster-robust inference, Journal of Human
Resources 50.
"""

import numpy as np
import scipy

from rff_dist.numerics import exact_sums
from rff_dist.typing import AnyArray, FloatArray

LEVEL = 0.95


def paired_interval(
    differences: FloatArray,
    weights: FloatArray | None = None,
    groups: AnyArray | None = None,
    inflation: float = 1.0,
) -> tuple[float, float, float]:
    """Return the mean of differences, and the ends of its interval by Student's t.

    They are as in `scipy.stats.ttest_1samp(differences, 0).confidence_interval()`, but
    rows may have weights and be in groups.

    `differences`: float64 array of shape (n_rows,).
    `weights`: float64 array of shape (n_rows,). 1 by default.
    `groups`: array of shape (n_rows,). Rows of one group count as one observation.
    `inflation`: factor on the variance of the mean. It is above 1 if the models that
    left the rows out share training rows: their errors are then not independent.
    Returns: the mean and the ends of its interval, infinite for a single row or group.
    """
    mean, error, n = mean_with_error(differences, weights, groups, inflation)
    if n < 2:
        return mean, -np.inf, np.inf
    half = float(scipy.special.stdtrit(n - 1, 0.5 + LEVEL / 2) * error)
    return mean, mean - half, mean + half


def mean_with_error(
    values: FloatArray,
    weights: FloatArray | None = None,
    groups: AnyArray | None = None,
    inflation: float = 1.0,
) -> tuple[float, float, int]:
    """Return a mean, its standard error, and the number of rows or groups.

    The arguments are those of `paired_interval`. The error of one row is infinite.
    """
    weights = np.ones(len(values)) if weights is None else weights
    mean = float(np.average(values, weights=weights))
    parts = weights * (values - mean)
    if groups is not None:
        _, group_of_row = np.unique(groups, return_inverse=True)
        parts = np.bincount(group_of_row.ravel(), parts)
    n = len(parts)
    if n < 2:
        return mean, np.inf, n
    # For single rows of equal weight this is s/√n; for groups, it is the cluster-robust
    # error of Cameron & Miller.
    # divided by a power of 2 near the largest part, so that no square overflows
    scale = exact_sums.scales_near(np.abs(parts).max())
    squares = np.square(parts / scale).sum()
    error = scale * np.sqrt(inflation * n / (n - 1) * squares) / weights.sum()
    return mean, float(error), n


def exact_interval(differences: FloatArray) -> tuple[float, float]:
    """Return an exact interval of the difference in two models' shares of mistakes.

    It holds 0 if McNemar's exact test finds no difference between the models.

    `differences` are a float64 array of shape (n_rows,): 1 where only the other model
    is mistaken, −1 where only this one is, else 0. Returns the ends of the interval of
    the mean difference; (0, 0) if no row differs.
    """
    more = int((differences > 0).sum())
    less = int((differences < 0).sum())
    n = more + less
    # Given that n rows differ, `more` is binomial with a share p. Over all rows the
    # mean difference is (p·n − (1 − p)·n) / n_rows.
    low, high = share_interval(more, n)
    n_rows = len(differences)
    return (2 * low - 1) * n / n_rows, (2 * high - 1) * n / n_rows


def share_with_interval(
    hits: FloatArray,
    weights: FloatArray | None = None,
    groups: AnyArray | None = None,
    inflation: float = 1.0,
) -> tuple[float, float, float]:
    """Return the mean of zeros and ones with its interval.

    It is `share_interval` for independent rows of equal weight, else `paired_interval`;
    that of groups is widened to contain it: if all are ones, their standard deviation
    is 0, and Student's interval has no width.

    `hits`: float64 array of shape (n_rows,).
    """
    mean, low, high = paired_interval(hits, weights, groups, inflation)
    if weights is None:
        # It takes rows as independent, also those in groups; as it can only widen the
        # interval, it does no harm.
        exact = share_interval(int(hits.sum()), len(hits))
        if groups is None and inflation == 1.0:
            return mean, *exact
        low = min(low, exact[0])
        high = max(high, exact[1])
    return mean, max(low, 0.0), min(high, 1.0)


def share_interval(k: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Like `scipy.stats.binomtest(k, n).proportion_ci(level)`."""
    tail = (1 - level) / 2
    low = 0.0
    if k > 0:
        low = float(scipy.special.betaincinv(k, n - k + 1, tail))
    high = 1.0
    if k < n:
        high = float(scipy.special.betaincinv(k + 1, n - k, 1 - tail))
    return low, high
