"""Kernels of any spectral law: characteristic functions that books print, and the
frequencies' average.
"""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import special, stats

from rff_dist import Cauchy, Gaussian, Laplacian, Matern, Sinc, SpectralKernel
from rff_dist.kernels.names import kernel_from_dict

EXACT = 1e-12  # closed forms in float64
X = np.random.default_rng(0).standard_normal((12, 3))
Y = np.random.default_rng(1).standard_normal((9, 3))
SCALES = [0.5, 1.0, 3.0]
LAWS = {
    "normal": stats.norm(scale=1.5),
    "shifted normal": stats.norm(2.0, 0.7),
    "one-sided": stats.gamma(1.7),
    "no closed form": stats.gumbel_r(0.2),
    "heavy tails": stats.lognorm(1.5),
    "poisson": stats.poisson(2.5),
    "binomial, shifted": stats.binom(6, 0.3, loc=-2),
}


class TestKernelsWithNames:
    @pytest.mark.parametrize("length_scale", [0.7, SCALES], ids=str)
    @pytest.mark.parametrize(
        ("distribution", "kernel"),
        [
            (stats.norm(), Gaussian),
            (stats.norm(0, 2), lambda scale: Gaussian(np.asarray(scale) / 2)),
            (stats.cauchy(), Laplacian),
            (stats.laplace(), Cauchy),
            (stats.uniform(-1, 2), Sinc),
        ],
        ids=["normal", "wider normal", "cauchy", "laplace", "uniform"],
    )
    def test_the_laws_of_named_kernels_give_these_kernels(
        self, distribution, kernel, length_scale
    ):
        got = SpectralKernel(distribution, length_scale)(X, Y)
        assert_allclose(got, kernel(length_scale)(X, Y), rtol=EXACT, atol=EXACT)

    @pytest.mark.parametrize("nu", [0.3, 0.5, 1.5, 4.2])
    def test_student_t_is_the_matern_kernel_of_one_column(self, nu):
        got = SpectralKernel(stats.t(2 * nu))(X[:, :1], Y[:, :1])
        assert_allclose(got, Matern(nu=nu)(X[:, :1], Y[:, :1]), rtol=EXACT, atol=EXACT)


HISTOGRAM = stats.rv_histogram(
    (np.array([1, 3]), np.array([-1.0, 0.0, 2.0])), density=False
)()
T = np.r_[-20.0, 0.0, 10.0 ** np.linspace(-12, 2, 145)]
# distribution: its characteristic function (Johnson, Kotz & Balakrishnan), and how far
# the docstring says that the mean over quantiles is from it
KNOWN = {
    stats.logistic(): (
        lambda t: special.gamma(1 - 1j * t) * special.gamma(1 + 1j * t),
        2e-3,
    ),
    stats.gumbel_r(): (lambda t: np.exp(special.loggamma(1 - 1j * t)), 2e-3),
    stats.gamma(0.3, 1): (lambda t: (1 - 1j * t) ** -0.3 * np.exp(1j * t), 2e-3),
    HISTOGRAM: (
        lambda t: (
            np.sinc(t / 2 / np.pi) * np.exp(-0.5j * t) / 4
            + np.sinc(t / np.pi) * np.exp(1j * t) * 3 / 4
        ),
        2e-3,
    ),
    stats.levy(): (lambda t: np.exp(-np.sqrt(-2j * t)), 2e-2),
    stats.poisson(2.5): (lambda t: np.exp(2.5 * np.expm1(1j * t)), 2e-3),
    stats.rv_discrete(values=([-1, 4], [0.25, 0.75]))(loc=1): (
        lambda t: 0.25 + 0.75 * np.exp(5j * t),
        2e-3,
    ),
}


class TestWithoutAClosedForm:
    @pytest.mark.parametrize("distribution", KNOWN, ids=lambda d: type(d.dist).__name__)
    def test_means_over_quantiles_are_as_near_as_documented(self, distribution):
        expected, tolerance = KNOWN[distribution]
        got = SpectralKernel(distribution)(T[:, np.newaxis], [[0.0]])[:, 0]
        assert_allclose(got, expected(T).real, rtol=0, atol=tolerance)

    def test_points_far_from_zero_keep_their_digits(self):
        kernel = SpectralKernel(stats.gumbel_r())
        near = np.array([[0.0], [0.25]])
        assert_array_equal(kernel(near + 2.0**30), kernel(near))


class TestKernelsAndFrequencies:
    @pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)
    def test_the_average_cosine_of_the_frequencies_is_the_kernel(self, distribution):
        kernel = SpectralKernel(distribution, SCALES)
        frequencies = kernel.sample_frequencies(3, 40_000, rng=3)
        difference = (X[:4, np.newaxis] - Y[np.newaxis, :4]).reshape(-1, 3)
        cosines = np.cos(difference @ frequencies)
        error = cosines.mean(axis=1) - kernel(X[:4], Y[:4]).ravel()
        assert (abs(error) < 4 * cosines.std(axis=1) / 200).all()

    def test_a_law_that_is_not_symmetric_has_the_real_part_of_the_whole_product(self):
        """Not the product of the real parts: φ(t) = 1/(1 - it), and Re φ(t)φ(-t) = 1/(1
        + t²).
        """
        kernel = SpectralKernel(stats.expon())
        got = kernel([[0.0, 0.0]], [[1.0, -1.0], [1.0, 1.0]])
        # the mean over quantiles is within 2e-3
        assert_allclose(got, [[0.5, ((1 / (1 - 1j)) ** 2).real]], atol=2e-3)

    @pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)
    def test_grams_are_symmetric_and_positive_semi_definite_with_a_diagonal_of_one(
        self, distribution
    ):
        gram = SpectralKernel(distribution)(X)
        assert_allclose(np.diagonal(gram), 1.0, rtol=1e-13)
        assert_allclose(gram, gram.T, rtol=0, atol=1e-13)
        assert np.linalg.eigvalsh(gram).min() > -EXACT


class TestDescriptions:
    @pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)
    def test_a_kernel_survives_json_pickle_copies_and_its_text(self, distribution):
        kernel = SpectralKernel(distribution, SCALES)
        for other in (
            kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))),
            pickle.loads(pickle.dumps(kernel)),
            copy.deepcopy(kernel),
            eval(repr(kernel), {"SpectralKernel": SpectralKernel, "stats": stats}),
        ):
            assert other == kernel
            assert hash(other) == hash(kernel)
            assert_array_equal(other(X, Y), kernel(X, Y))
            frequencies = (k.sample_frequencies(3, 8, rng=0) for k in (other, kernel))
            assert_array_equal(*frequencies)
