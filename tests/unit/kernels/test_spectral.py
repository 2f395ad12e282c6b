"""Kernels of any spectral law: characteristic functions that books print, and the frequencies' average."""

from __future__ import annotations

import copy
import json
import pickle

import numpy as np
import pytest
from scipy import special, stats

from rff_dist.kernels import characteristic
from rff_dist.kernels.characteristic import Law
from rff_dist.kernels.names import kernel_from_dict
from rff_dist.kernels.stationary import Cauchy, Gaussian, Laplacian, Matern, Sinc, SpectralKernel

AIM = 1e-10  # what the docstring promises
REACHED = 1e-12  # what a few hundred panels of degree 15 give in float64
T = np.r_[0.0, 10.0 ** np.linspace(-12, 6, 145)]
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
    "correlated": stats.multivariate_normal([0.0, 1.0, -0.5], [[1, 0.5, 0], [0.5, 2, 0.3], [0, 0.3, 0.7]]),
    "singular": stats.multivariate_normal([0, 0, 0], np.ones((3, 3)), allow_singular=True),
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
            (stats.multivariate_normal(np.zeros(3)), Gaussian),
        ],
        ids=["normal", "wider normal", "cauchy", "laplace", "uniform", "multivariate normal"],
    )
    def test_the_laws_of_named_kernels_give_these_kernels(self, distribution, kernel, length_scale):
        got = SpectralKernel(distribution, length_scale)(X, Y)
        np.testing.assert_allclose(got, kernel(length_scale)(X, Y), rtol=REACHED, atol=REACHED)

    @pytest.mark.parametrize("nu", [0.3, 0.5, 1.5, 4.2])
    def test_student_t_is_the_matern_kernel_of_one_column(self, nu):
        got = SpectralKernel(stats.t(2 * nu))(X[:, :1], Y[:, :1])
        np.testing.assert_allclose(got, Matern(nu=nu)(X[:, :1], Y[:, :1]), rtol=REACHED, atol=REACHED)


class Tent(stats.rv_continuous):
    """A distribution of the user's own."""

    def _cdf(self, x):
        return np.where(x < 0, (1 + x) ** 2 / 2, 1 - (1 - x) ** 2 / 2)


HISTOGRAM = stats.rv_histogram((np.array([1, 3]), np.array([-1.0, 0.0, 2.0])), density=False)()
# Law: its characteristic function (Johnson, Kotz & Balakrishnan; those without a closed form in the module)
KNOWN = {
    stats.levy(): lambda t: np.exp(-np.sqrt(-2j * t)),
    stats.gumbel_r(): lambda t: np.exp(special.loggamma(1 - 1j * t)),
    stats.beta(0.5, 0.5): lambda t: special.j0(t / 2) * np.exp(0.5j * t),
    stats.triang(0.5, -1, 2): lambda t: np.sinc(t / 2 / np.pi) ** 2,
    stats.erlang(3): lambda t: (1 - 1j * t) ** -3.0,
    stats.rayleigh(): lambda t: 1j * np.sqrt(np.pi / 2) * t * special.wofz(t / np.sqrt(2)) + 1,
    Tent(a=-1, b=1)(): lambda t: np.sinc(t / 2 / np.pi) ** 2,
    HISTOGRAM: lambda t: (
        np.sinc(t / 2 / np.pi) * np.exp(-0.5j * t) / 4 + np.sinc(t / np.pi) * np.exp(1j * t) * 3 / 4
    ),
}


class TestCharacteristicFunctions:
    @pytest.mark.parametrize("distribution", KNOWN, ids=lambda d: type(d.dist).__name__)
    def test_integrals_of_the_distribution_function_agree_with_books(self, distribution):
        law = Law.of(distribution)
        assert law.name not in characteristic._CLOSED_FORMS
        got = law.characteristic_function(T)
        np.testing.assert_allclose(got, KNOWN[distribution](T), rtol=0, atol=REACHED)

    @pytest.mark.parametrize(
        "distribution",
        [
            stats.norm(0.3, 2),
            stats.cauchy(),
            stats.laplace(1),
            stats.uniform(-1, 3),
            stats.t(0.7),
            stats.t(30),
            stats.logistic(),
            stats.hypsecant(0.5),
            stats.semicircular(),
            stats.arcsine(),
            stats.expon(),
            stats.gamma(0.05),
            stats.gamma(7),
            stats.chi2(0.3),
            stats.halfnorm(1, 2),
        ],
        ids=lambda d: d.dist.name,
    )
    def test_closed_forms_agree_with_the_integral(self, distribution):
        law = Law.of(distribution)
        integral = characteristic._transform(characteristic._density_panels(law), T)
        np.testing.assert_allclose(law.characteristic_function(T), integral, rtol=0, atol=REACHED)

    @pytest.mark.parametrize("name", ["no closed form", "heavy tails"])
    def test_many_distances_are_interpolated_without_loss(self, name):
        law = Law.of(LAWS[name])
        t = np.random.default_rng(0).uniform(-40, 40, 1_000)
        few = np.concatenate([law.characteristic_function(part) for part in np.split(t, 10)])
        np.testing.assert_allclose(law.characteristic_function(t), few, rtol=0, atol=REACHED)

    def test_an_interpolant_that_does_not_fit_is_not_used(self, monkeypatch):
        law = Law.of(stats.gumbel_r())
        t = np.linspace(0, 10, 600)
        expected = np.exp(special.loggamma(1 - 1j * t))
        monkeypatch.setattr(characteristic, "_interpolate", lambda panels, t: np.zeros(len(t), complex))
        np.testing.assert_allclose(law.characteristic_function(t), expected, atol=REACHED)

    def test_poisson_and_binomial_have_their_closed_forms(self):
        t = np.linspace(-9, 9, 50)
        poisson = np.exp(2.5 * np.expm1(1j * t))
        np.testing.assert_allclose(Law.of(stats.poisson(2.5)).characteristic_function(t), poisson, atol=1e-13)
        binomial = (0.7 + 0.3 * np.exp(1j * t)) ** 6 * np.exp(-2j * t)
        got = Law.of(LAWS["binomial, shifted"]).characteristic_function(t)
        np.testing.assert_allclose(got, binomial, atol=1e-13)


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
        """Not the product of the real parts: φ(t) = 1/(1 - it), and Re φ(t)φ(-t) = 1/(1 + t²)."""
        kernel = SpectralKernel(stats.expon())
        got = kernel([[0.0, 0.0]], [[1.0, -1.0], [1.0, 1.0]])
        np.testing.assert_allclose(got, [[0.5, ((1 / (1 - 1j)) ** 2).real]], atol=1e-15)

    @pytest.mark.parametrize("distribution", LAWS.values(), ids=LAWS)
    def test_grams_are_symmetric_and_positive_semi_definite_with_a_diagonal_of_one(self, distribution):
        gram = SpectralKernel(distribution)(X)
        np.testing.assert_allclose(np.diagonal(gram), 1.0, rtol=1e-13)
        np.testing.assert_allclose(gram, gram.T, rtol=0, atol=1e-13)
        assert np.linalg.eigvalsh(gram).min() > -AIM


class TestMixture:
    WEIGHTS, MEANS = (0.5, 1.5), ((0.0, 2.0, -1.0), (3.0, 0.0, 1.0))
    DEVIATIONS = ((0.3, 0.0, 1.0), (1.0, 2.0, 0.5))

    def test_it_is_the_sum_over_the_components(self):
        kernel = SpectralKernel.mixture(self.WEIGHTS, self.MEANS, self.DEVIATIONS, SCALES)
        difference = (X[:, np.newaxis] - Y) / SCALES
        expected = sum(
            share * np.cos(difference @ mean) * np.exp(-0.5 * ((difference * scale) ** 2).sum(axis=2))
            for share, mean, scale in zip([0.25, 0.75], self.MEANS, self.DEVIATIONS, strict=True)
        )
        np.testing.assert_allclose(kernel(X, Y), expected, rtol=0, atol=1e-13)

    @pytest.mark.parametrize("matrices", [False, True], ids=["deviations", "matrices"])
    def test_frequencies_follow_the_mixture(self, matrices):
        scales = [np.diag(s) for s in self.DEVIATIONS] if matrices else self.DEVIATIONS
        kernel = SpectralKernel.mixture(self.WEIGHTS, self.MEANS, scales)
        frequencies = kernel.sample_frequencies(3, 20_000, rng=0)
        for d in range(3):
            if min(s[d] for s in self.DEVIATIONS) == 0:
                assert abs((frequencies[d] == 2.0).mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 20_000)
                continue

            def cdf(x, d=d):
                return sum(
                    share * stats.norm(mean[d], scale[d]).cdf(x)
                    for share, mean, scale in zip([0.25, 0.75], self.MEANS, self.DEVIATIONS, strict=True)
                )

            assert stats.kstest(frequencies[d], cdf).pvalue > 1e-4

    @pytest.mark.parametrize("scales", [DEVIATIONS, np.random.default_rng(0).random((2, 3, 3))], ids=np.ndim)
    def test_the_first_frequencies_of_a_long_draw_are_the_short_draw(self, scales):
        kernel = SpectralKernel.mixture(self.WEIGHTS, self.MEANS, scales)
        long, short = (kernel.sample_frequencies(3, n, rng=7) for n in (100, 11))
        np.testing.assert_array_equal(long[:, :11], short)

    def test_one_column_needs_no_second_axis(self):
        flat = SpectralKernel.mixture([1, 1], [0.0, 3.0], [1.0, 0.1])
        assert flat == SpectralKernel.mixture([2, 2], [[0.0], [3.0]], [[1.0], [0.1]])

    def test_points_far_from_zero_keep_their_digits(self):
        kernel = SpectralKernel.mixture([1], [[1e3]], [[0.1]])
        near, far = np.array([[0.0], [0.25]]), np.array([[2.0**30], [2.0**30 + 0.25]])
        np.testing.assert_array_equal(kernel(far), kernel(near))


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
            np.testing.assert_array_equal(other(X, Y), kernel(X, Y))
            frequencies = (k.sample_frequencies(3, 8, rng=0) for k in (other, kernel))
            np.testing.assert_array_equal(*frequencies)

    def test_ways_to_write_one_law_are_equal(self):
        assert SpectralKernel(HISTOGRAM) == SpectralKernel(HISTOGRAM)
        assert SpectralKernel(stats.norm(0, 2)) == SpectralKernel(stats.norm(scale=2.0))
        assert SpectralKernel(stats.norm(0, 2)) != SpectralKernel(stats.norm(0, 3))
        assert SpectralKernel(stats.norm()) != SpectralKernel(stats.norm(), 2.0)
        assert SpectralKernel(stats.norm()) != Gaussian()
        assert SpectralKernel(stats.norm()).with_length_scale(2) == SpectralKernel(stats.norm(), 2.0)
