"""Theory's bounds and variances: their formulas by other ways."""

import math

import pytest
from numpy.testing import assert_allclose

from rff_dist.features import bounds

MAPS = ("pairs", "phases")

# -- formulas
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("map_name", MAPS)
def test_pairwise_bound_spends_delta_on_hoeffding_for_each_pair(map_name):
    n = 7
    D = 600
    t = bounds.pairwise_error(D, n_points=n, delta=0.2, map=map_name)
    if map_name == "pairs":
        spent = n * (n - 1) / 2 * 2 * math.exp(-(D / 2) * t**2 / 2)
    else:
        spent = n * (n + 1) / 2 * 2 * math.exp(-D * t**2 / 8)
    assert_allclose(spent, 0.2, rtol=1e-12)


def test_operator_norm_bound_is_the_published_one():
    """Tropp 2015, Sec. 6.5, with b = 2."""
    epsilon = 0.25
    n = 400
    norm = 80.0
    D = math.ceil(4 / epsilon**2 * n / norm * math.log(2 * n))
    assert_allclose(
        bounds.operator_norm_error(D, n_points=n, gram_norm=norm),
        epsilon + epsilon**2,
        rtol=2 / D,
    )


@pytest.mark.parametrize(("map_name", "c"), [("pairs", 4), ("phases", 8)])
def test_pointwise_bound_spends_delta_on_one_pair(map_name, c):
    t = bounds.pointwise_error(600, delta=0.2, map=map_name)
    assert_allclose(2 * math.exp(-600 * t**2 / c), 0.2, rtol=1e-12)
