"""Feature maps of composite kernels: unbiased, of the size asked for, and each part in
its place.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from rff_dist import (
    Additive,
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Min,
    Polynomial,
    RationalQuadratic,
    Sinc,
    SpectralKernel,
    draw_feature_map,
)
from rff_dist.errors import InvalidParameterError
from rff_dist.features.composed import ConcatenatedFeatureMap, unit_vectors
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.frequencies.uniforms import derived_seed
from rff_dist.kernels.base import Constant
from tests.refusals import refuses
from tests.strategies import composite_kernels

# Float32 inputs, so that kernel and features see the same points; not negative, for
# Min.
X = np.random.default_rng(0).uniform(0, 2, (6, 3)).astype(np.float32)
KERNELS = [
    Gaussian() + Matern(nu=0.8),
    0.3 * Gaussian(2.0) + 1.7 * Laplacian(),
    Gaussian() * Matern(2.0),
    Gaussian() * Laplacian(3.0) * Cauchy(2.0),
    (Gaussian() + 0.5 * RationalQuadratic()) * (Matern() + 2),
    Gaussian().on([0]) + Laplacian().on([1]) + Sinc().on([2]),
    Gaussian().on([0, 2]) * Matern().on([1]),
    (Gaussian() * Cauchy()).on([2, 1]) + 1,
    Gaussian() + Linear(),  # with 30 components an odd share
    Gaussian() + Linear() + 0.5,
    1 + Min(0, 2.5),
    2 * Min([0, 0], [3, 2]).on([2, 0]) + Gaussian(),
    Polynomial(2, 0.5) + Gaussian(),
    Polynomial(3, 0.0).on([0, 1]),
    2 * Additive().on([2, 0])
    + Additive(2.0, kernel=Gaussian(), order_1=0.0)
    + Linear(),
    3 * SpectralKernel(stats.gamma(2.0)) + SpectralKernel(stats.poisson(1.0)),
    SpectralKernel(stats.norm(2.0, 0.2)).on([0]) * SpectralKernel(stats.norm()).on([2]),
]


def draw(kernel, n_components, *, seed=0, map="pairs"):
    return draw_feature_map(
        kernel,
        n_features=3,
        n_components=n_components,
        design="iid",
        map=map,
        random_state=seed,
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_features_are_unbiased(kernel):
    """The mean over 100 seeds; 4 standard errors, and 1e-5 for float32 features and
    exact parts.
    """
    grams = []
    for seed in range(100):
        Z = draw(
            kernel, 30, seed=seed, map="phases" if seed % 2 else "pairs"
        ).transform(X)
        grams.append(Z @ Z.T)
    error = np.mean(grams, axis=0) - kernel(X)
    assert (
        abs(error)
        < 4 * np.std(grams, axis=0) / 100**0.5 + 1e-5 * np.abs(kernel(X)).max()
    ).all()


@pytest.mark.parametrize(
    "kernel", [Linear(), 2 * Linear().on([2, 0]) + 3, Constant(0.7)], ids=str
)
def test_linear_terms_and_constants_are_exact(kernel):
    Z = draw(kernel, 64).transform(X)
    assert Z.shape[1] <= 4
    assert_allclose(Z @ Z.T, kernel(X), rtol=1e-14)


class TestShares:
    @given(
        composite_kernels(3), st.integers(2, 60), st.sampled_from(["pairs", "phases"])
    )
    def test_there_are_as_many_components_as_asked_for_or_an_error_says_how_many_are_needed(
        self, kernel, half, map_name
    ):
        n_components = 2 * half + (map_name == "phases")
        kernel = kernel.bind(np.zeros(3), np.full(3, 2.0))
        try:
            drawn = draw(kernel, n_components, map=map_name)
        except InvalidParameterError as error:
            needs_more = "n_components" in str(error)
            if needs_more or "no random features" in str(error):
                return
            raise
        assert drawn.transform(X).shape == (6, drawn.n_components)
        sampled = any(
            term.factors and not may_be_exact(term.factors) for term in kernel.terms()
        )
        assert (
            drawn.n_components == n_components
            if sampled
            else drawn.n_components <= n_components
        )

    @pytest.mark.parametrize("map_name", ["pairs", "phases"])
    def test_the_least_number_of_components_is_the_one_in_the_message(self, map_name):
        # 2 + 2 + 2 + 3 + 1
        kernel = Gaussian() + 2 * Laplacian() + Min(0, 2).on([0]) + Linear() + 1
        with refuses(InvalidParameterError, "n_components", "8", "10"):
            draw(kernel, 8, map=map_name)
        for n_components in range(10, 40, 2 if map_name == "pairs" else 1):
            drawn = draw(kernel, n_components, map=map_name)
            assert drawn.n_components == n_components == drawn.transform(X).shape[1]

    def test_shares_follow_the_weights(self):
        parts = draw(3 * Gaussian() + Matern(), 4_000).parts
        assert [part.n_components for part in parts] == pytest.approx(
            [3_000, 1_000], abs=2
        )
        # k(x, x) is 9 at the interval's middles
        parts = draw(Gaussian() + Min(0, 6), 4_000).parts
        assert [part.n_components for part in parts] == pytest.approx(
            [400, 3_600], abs=2
        )

    def test_an_odd_share_of_pairs_has_one_cosine_with_a_phase_and_pairs_stay_even(
        self,
    ):
        drawn = draw(Gaussian() + Linear(), 16)  # 13 for the Gaussian
        kinds = [
            (part.kind, getattr(part, "map_form", None), part.n_components)
            for part in drawn.parts
        ]
        assert kinds == [
            ("fourier", "pairs", 12),
            ("fourier", "phases", 1),
            ("linear", None, 3),
        ]
        scales = np.repeat(
            [scale for _, scale in drawn.scales], [count for count, _ in drawn.scales]
        )
        assert_allclose(scales[:13], np.sqrt(2 / 13), rtol=1e-15)

    def test_terms_have_independent_frequencies(self):
        parts = draw(Gaussian() + Gaussian(), 400).parts
        a, b = (part.frequencies.ravel() for part in parts)
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))


def may_be_exact(factors):
    return all(
        isinstance(getattr(factor, "kernel", factor), Linear | Polynomial)
        for factor in factors
    )


def test_one_shift_invariant_kernel_has_one_fourier_map_however_it_is_written():
    for kernel in (
        Gaussian() * Matern(),
        (Gaussian() * Matern()).on([0, 2]),
        Gaussian() + 0,
    ):
        assert isinstance(draw(kernel, 8), FourierFeatureMap)
    assert isinstance(draw(2 * Gaussian(), 8), ConcatenatedFeatureMap)


def test_derived_seeds_have_not_changed():
    """Golden values; replace them only together with a note on changed results in the
    CHANGELOG.
    """
    assert [derived_seed(0, i) for i in range(4)] == [
        0,
        8007822883733285670,
        4588923448803167844,
        550564732320435210,
    ]
    assert derived_seed(2026, 0) == 2026
    assert derived_seed(2**64 - 1, 2**20) == 10815773109192571054


@pytest.mark.parametrize("axis", [0, 1])
def test_unit_vectors_are_the_same_bits_at_any_scale(axis):
    vectors = np.random.default_rng(0).normal(size=(5, 6))
    vectors[2] = 0.0
    vectors[:, 3] = 0.0
    units = unit_vectors(vectors, axis)
    norms = np.linalg.norm(units, axis=axis)
    assert_allclose(norms[norms > 0], 1.0, rtol=1e-15)
    assert norms.min() == 0.0
    for exponent in (-700, 900):
        assert_array_equal(unit_vectors(np.ldexp(vectors, exponent), axis), units)
