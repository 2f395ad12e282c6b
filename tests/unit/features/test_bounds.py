"""Theory's bounds and variances: their formulas by other ways."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from rff_dist.features import bounds
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.stationary import Cauchy, Gaussian, Laplacian

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


# -- variances
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel", [Gaussian(1.2), Cauchy(0.8), Gaussian() * Cauchy()], ids=repr
)
def test_variances_are_those_of_many_draws(kernel):
    delta = np.array([0.7, -0.4])
    angles = delta @ kernel.sample_frequencies(2, 400_000, rng=0)
    phases = np.random.default_rng(1).uniform(0, 2 * np.pi, len(angles))
    found = bounds.better_map(kernel, [[0.0, 0.0], delta])
    # D components are D/2 frequencies
    assert_allclose(found.pairs, 2 * np.cos(angles).var(), rtol=0.02)
    expected = (2 * np.cos(angles + phases) * np.cos(phases)).var()
    assert_allclose(found.phases, expected, rtol=0.02)


@given(st.integers(0, 10_000), st.floats(0.05, 20))
def test_pairs_are_better_for_the_gaussian_and_the_laplacian_whatever_the_data(
    seed, scale
):
    X = np.random.default_rng(seed).standard_normal((10, 2))
    for kernel in (Gaussian(scale), Laplacian(scale)):
        assert bounds.better_map(kernel, X).better == "pairs"


def test_phases_are_better_where_a_slowly_falling_kernel_sees_distant_points():
    """For 1/(1 + δ²), pairs have the lower variance while δ² < 3 + √10."""
    edge = math.sqrt(3 + math.sqrt(10))
    for distance, better in ((0.99 * edge, "pairs"), (1.01 * edge, "phases")):
        assert bounds.better_map(Cauchy(), [[0.0], [distance]]).better == better


def test_variances_of_a_sum_are_those_of_its_terms_with_shared_components():
    X = np.random.default_rng(0).standard_normal((9, 2))
    a = bounds.better_map(Cauchy(0.5), X)
    b = bounds.better_map(Gaussian(), X)
    found = bounds.better_map(3 * Cauchy(0.5) + Gaussian() + 5 * Linear(), X)
    for map_name in MAPS:
        # with D = 4 the first term has 3 components, the second 1
        parts = 3**2 * getattr(a, map_name) / 3 + getattr(b, map_name) / 1
        assert_allclose(getattr(found, map_name) / 4, parts, rtol=1e-12)
