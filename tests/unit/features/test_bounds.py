"""Theory's bounds: their inverses, their formulas by other ways, and that they hold on small problems."""

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
ROUNDING = 1 + 1e-12

errors = st.floats(1e-4, 10)
points = st.integers(2, 10**9)
deltas = st.floats(1e-12, 0.999)
maps = st.sampled_from(MAPS)


# -- inverses ----------------------------------------------------------------------------------------------


pairwise = st.fixed_dictionaries({"n_points": points, "delta": deltas, "map": maps})
operator_norm = st.fixed_dictionaries({"n_points": points, "gram_norm": st.floats(1e-3, 1.0)})


@pytest.mark.parametrize(
    ("bound", "parameters"),
    [("pairwise", pairwise), ("operator_norm", operator_norm)],
)
@given(error=errors, data=st.data())
def test_components_are_the_least_that_reach_the_error(bound, parameters, error, data):
    chosen = data.draw(parameters)
    if "gram_norm" in chosen:
        chosen["gram_norm"] *= chosen["n_points"]
    error_of = getattr(bounds, f"{bound}_error")
    D = getattr(bounds, f"{bound}_components")(error, **chosen)
    step = 1 if chosen.get("map") == "phases" else 2
    assert step <= D
    assert error_of(D, **chosen) <= error * ROUNDING
    assert step == D or error_of(D - step, **chosen) >= error / ROUNDING


# -- formulas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("map_name", MAPS)
def test_pairwise_bound_spends_delta_on_hoeffding_for_each_pair(map_name):
    n, D = 7, 600
    t = bounds.pairwise_error(D, n_points=n, delta=0.2, map=map_name)
    if map_name == "pairs":
        spent = n * (n - 1) / 2 * 2 * math.exp(-(D / 2) * t**2 / 2)
    else:
        spent = n * (n + 1) / 2 * 2 * math.exp(-D * t**2 / 8)
    assert_allclose(spent, 0.2, rtol=1e-12)


def test_operator_norm_bound_is_the_published_one():
    """Tropp 2015, Sec. 6.5, with b = 2."""
    epsilon, n, norm = 0.25, 400, 80.0
    D = bounds.operator_norm_components(epsilon + epsilon**2, n_points=n, gram_norm=norm)
    assert 2 * math.ceil(4 / epsilon**2 * n / norm * math.log(2 * n) / 2) == D


@pytest.mark.parametrize(("map_name", "c"), [("pairs", 4), ("phases", 8)])
def test_pointwise_bound_spends_delta_on_one_pair(map_name, c):
    t = bounds.pointwise_error(600, delta=0.2, map=map_name)
    assert_allclose(2 * math.exp(-600 * t**2 / c), 0.2, rtol=1e-12)


# -- variances ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("map_name", [*MAPS, "complex"])
@pytest.mark.parametrize("kernel", [Gaussian(1.2), Cauchy(0.8), Gaussian() * Cauchy()], ids=repr)
def test_variance_is_that_of_many_draws(kernel, map_name):
    delta = np.array([[0.7, -0.4]])
    frequencies = kernel_frequencies(kernel, 400_000)
    angles = delta[0] @ frequencies
    if map_name == "pairs":
        terms = np.cos(angles)
        expected = 2 * terms.var()  # D components are D/2 frequencies
    elif map_name == "phases":
        phases = np.random.default_rng(1).uniform(0, 2 * np.pi, len(angles))
        expected = (2 * np.cos(angles + phases) * np.cos(phases)).var()
    else:
        expected = np.exp(1j * angles).var()
    found = bounds.feature_variance(kernel, delta, np.zeros((1, 2)), n_components=10, map=map_name)
    assert_allclose(found, [[expected / 10]], rtol=0.02)


def kernel_frequencies(kernel, n):
    return bounds.shift_invariant_form(kernel).sample_frequencies(2, n, rng=0)


@given(st.integers(0, 10_000), st.floats(0.05, 20))
def test_pairs_are_better_for_the_gaussian_and_the_laplacian_whatever_the_data(seed, scale):
    X = np.random.default_rng(seed).standard_normal((10, 2))
    for kernel in (Gaussian(scale), Laplacian(scale)):
        assert bounds.better_map(kernel, X).better == "pairs"


def test_phases_are_better_where_a_slowly_falling_kernel_sees_distant_points():
    """For 1/(1 + δ²), pairs have the lower variance while δ² < 3 + √10."""
    edge = math.sqrt(3 + math.sqrt(10))
    for distance, better in ((0.99 * edge, "pairs"), (1.01 * edge, "phases")):
        assert bounds.better_map(Cauchy(), [[0.0], [distance]]).better == better


def test_variances_of_the_maps_are_means_over_pairs_of_rows():
    X = np.random.default_rng(0).standard_normal((9, 2))
    found = bounds.better_map(Cauchy(0.5), X)
    for map_name in MAPS:
        variance = bounds.feature_variance(Cauchy(0.5), X, n_components=1, map=map_name)
        assert_allclose(getattr(found, map_name), variance[np.triu_indices(9, 1)].mean(), rtol=1e-12)


def test_variances_of_a_sum_are_those_of_its_terms_with_shared_components():
    X = np.random.default_rng(0).standard_normal((9, 2))
    a, b = bounds.better_map(Cauchy(0.5), X), bounds.better_map(Gaussian(), X)
    found = bounds.better_map(3 * Cauchy(0.5) + Gaussian() + 5 * Linear(), X)
    for map_name in MAPS:
        # with D = 4 the first term has 3 components, the second 1
        parts = 3**2 * getattr(a, map_name) / 3 + getattr(b, map_name) / 1
        assert_allclose(getattr(found, map_name) / 4, parts, rtol=1e-12)
