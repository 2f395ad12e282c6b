"""Exact kernels against scikit-learn, SciPy and 60-digit arithmetic; parameters and
their errors.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process import kernels as sklearn_kernels
from sklearn.metrics.pairwise import (
    laplacian_kernel,
    linear_kernel,
    polynomial_kernel,
    rbf_kernel,
)

from rff_dist import (
    Cauchy,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Polynomial,
    RationalQuadratic,
    Sinc,
)
from tests.strategies import STATIONARY, kernels

# both sides round: distances, exponentials and a Bessel function in float64
EXACT = 1e-12
X = np.random.default_rng(0).standard_normal((30, 4))
Y = np.random.default_rng(1).standard_normal((20, 4))
SCALES = np.array([0.5, 1.0, 2.0, 7.0])


THEIRS = [
    *(
        (Gaussian(scale), sklearn_kernels.RBF(scale))
        for scale in (0.3, 1.0, 5.0, SCALES)
    ),
    *(
        (Gaussian((2 * gamma) ** -0.5), partial(rbf_kernel, gamma=gamma))
        for gamma in (0.01, 0.5, 3.0)
    ),
    *(
        (Laplacian(scale), partial(laplacian_kernel, gamma=1 / scale))
        for scale in (0.3, 1.0, 5.0)
    ),
    *(
        (Matern(scale, nu=nu), sklearn_kernels.Matern(scale, nu=nu))
        for nu in (0.5, 1.5, 2.5, 0.3, 1.0, 3.7, 12.0)
        for scale in (0.5, 2.0, SCALES)
    ),
    *(
        (
            RationalQuadratic(scale, shape=shape),
            sklearn_kernels.RationalQuadratic(scale, alpha=shape),
        )
        for shape in (0.2, 1.0, 30.0)
        for scale in (0.5, 2.0)
    ),
    (Linear(), linear_kernel),
    *(
        (
            Polynomial(degree, offset),
            partial(polynomial_kernel, degree=degree, gamma=1.0, coef0=offset),
        )
        for degree in (1, 2, 5)
        for offset in (0.0, 1.0, 2.5)
    ),
]


@pytest.mark.parametrize(
    ("kernel", "theirs"), THEIRS, ids=[str(kernel) for kernel, _ in THEIRS]
)
def test_a_gram_is_that_of_scikit_learn(kernel, theirs):
    relative = 1e-11 if isinstance(kernel, Matern) else EXACT
    assert_allclose(kernel(X, Y), theirs(X, Y), rtol=relative, atol=EXACT)


def test_cauchy_and_sinc_are_products_over_the_columns():
    difference = (X[:, np.newaxis] - Y) / SCALES
    cauchy = (1 / (1 + difference**2)).prod(axis=2)
    sinc = (np.sin(difference) / difference).prod(axis=2)
    assert_allclose(Cauchy(SCALES)(X, Y), cauchy, rtol=EXACT, atol=EXACT)
    assert_allclose(Sinc(SCALES)(X, Y), sinc, rtol=EXACT, atol=EXACT)


class TestMaternBeyondTheEasyCases:
    # 2^(1-ν)/Γ(ν)·s^ν·K_ν(s), s = √(2ν)·r, in 60-digit arithmetic (mpmath 1.4.1)
    @pytest.mark.parametrize(
        ("nu", "distance", "expected"),
        [
            (0.05, 0.2, 0.25025122131380995),
            (10.0, 1e-3, 0.9999994444446181),
            (10.0, 9, 1.328354253728441e-10),
            (49.5, 0.5, 0.8803756240824562),
            (100.0, 0.02, 0.9997980004108694),
            (170.0, 0.2, 0.9800838607523212),
            (200.0, 0.2, 0.9801011656668975),
            (1000.0, 1, 0.6063032030052086),
            (10000.0, 1, 0.6065079147341063),
            (10000.0, 9, 2.7845511626813898e-18),
            (1000000.0, 3, 0.011109059026248634),
        ],
    )
    def test_values_agree_with_60_digits_for_any_smoothness(
        self, nu, distance, expected
    ):
        got = Matern(nu=nu).of_distance(np.array([distance]))
        assert_allclose(got, [expected], rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("nu", [0.05, 0.5, 1.0, 1.5, 2.5, 3.7, 170.0, 1e3, 1e12])
    def test_it_is_one_at_zero_and_zero_far_away_without_a_warning(self, nu):
        distances = [0.0, 5e-324, 1e-300, 1e9, 1e100, 1e160, 1e300]
        gram = Matern(nu=nu)([[0.0]], np.reshape(distances, (-1, 1)))
        assert_allclose(gram[0, :3], 1.0, rtol=1e-12)
        assert_array_equal(gram[0, 3:], 0.0)

    @pytest.mark.parametrize("nu", [0.2, 1.0, 7.3, 49.0, 120.0, 171.5, 400.0, 1e5])
    def test_it_falls_with_distance_without_a_step(self, nu):
        """Where the Bessel function overflows another formula takes over; the seam must
        not show.
        """
        values = Matern(nu=nu).of_distance(np.linspace(0, 12, 4_001))
        steps = np.diff(values)
        assert steps.max() <= 1e-13
        if nu > 1:  # then the slope is bounded
            assert abs(np.diff(steps)).max() < 1e-4


class TestGram:
    @given(kernels())
    def test_gram_is_symmetric_positive_with_unit_diagonal(self, kernel):
        n_features = (
            len(kernel.length_scale) if isinstance(kernel.length_scale, tuple) else 3
        )
        points = np.random.default_rng(0).standard_normal((12, n_features))
        gram = kernel(points)
        assert_array_equal(np.diagonal(gram), 1.0)
        assert_allclose(gram, gram.T, rtol=1e-14)
        assert np.linalg.eigvalsh(gram).min() > -1e-12
        assert (abs(gram) <= 1).all()

    @pytest.mark.parametrize(
        "kernel",
        [Gaussian(), Laplacian(), Matern(), Matern(nu=0.8), RationalQuadratic(shape=2)],
        ids=str,
    )
    def test_distances_whose_squares_overflow_give_zero(self, kernel):
        assert kernel([[0.0]], [[1e200], [1.7e308]]).tolist() == [[0.0, 0.0]]

    @pytest.mark.parametrize("kernel", [cls(SCALES) for cls in STATIONARY], ids=str)
    def test_one_array_twice_gives_the_bits_of_two_equal_arrays(self, kernel):
        # more rows than one strip has
        far = np.random.default_rng(2).standard_normal((200, 4))
        assert_array_equal(kernel.gram(far, far), kernel.gram(far, far.copy()))

    def test_a_scale_per_column_is_the_kernel_of_scaled_inputs(self):
        for kernel in (
            Gaussian(),
            Laplacian(),
            Matern(nu=0.8),
            Cauchy(),
            Sinc(),
            RationalQuadratic(),
        ):
            assert_allclose(
                kernel.with_length_scale(SCALES)(X, Y),
                kernel(X / SCALES, Y / SCALES),
                rtol=1e-14,
            )


def test_kernels_with_equal_parameters_are_equal_and_others_are_not():
    assert Gaussian([1, 2]) == Gaussian(np.array([1.0, 2.0]))
    assert hash(Gaussian([1, 2])) == hash(Gaussian((1.0, 2.0)))
    assert Gaussian(2.0) != Laplacian(2.0)
    assert Matern(nu=0.5) != Matern(nu=1.5)
