"""The design beyond independent and orthogonal frequencies: scrambled Sobol points."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from rff_dist import Gaussian, Laplacian, Matern, draw_feature_map
from rff_dist.frequencies.designs import Draw, QuasiMonteCarlo
from rff_dist.frequencies.uniforms import scrambled_sobol

SMALLEST_P_VALUE = 1e-4  # seeds are fixed; a wrong law gives 1e-20 and less
ALL_ONES = 2**64 - 1


class TestScrambledSobol:
    def test_points_have_not_changed(self):
        """Golden values; replace them only together with a note on changed results in
        the CHANGELOG.
        """
        assert [u.hex() for u in scrambled_sobol(0, 0, 3, 2).ravel()] == [
            "0x1.2968cdeb0e98ep-2",
            "0x1.657c0ad861e35p-1",
            "0x1.67fc6949bae85p-1",
            "0x1.538f342c427aep-2",
            "0x1.9e2c884f5ba75p-1",
            "0x1.f815c27fdbbebp-1",
        ]

    @given(
        seed=st.integers(0, ALL_ONES),
        first=st.integers(0, 6),
        n_points=st.integers(1, 80),
        more=st.integers(0, 80),
        n_dimensions=st.integers(1, 5),
    )
    def test_points_and_dimensions_are_nested(
        self, seed, first, n_points, more, n_dimensions
    ):
        points = scrambled_sobol(seed, first, n_points, n_dimensions)
        whole = scrambled_sobol(seed, 0, n_points + more, first + n_dimensions)
        assert_array_equal(points, whole[:n_points, first:])
        assert 0 < whole.min() <= whole.max() < 1

    def test_every_interval_of_a_net_holds_one_point(self):
        """A Sobol net: each stretch of 256 points has one in each 256th of every
        coordinate.
        """
        points = scrambled_sobol(3, 0, 512, 40)
        for stretch in (points[:256], points[256:]):
            occupied = np.sort((stretch * 256).astype(int), axis=0)
            assert_array_equal(
                occupied, np.broadcast_to(np.arange(256)[:, np.newaxis], (256, 40))
            )

    def test_scrambling_keeps_the_two_dimensional_net(self):
        """The first two Sobol dimensions are a (0, m, 2)-net: a point in each box of
        area 2**-m.
        """
        points = scrambled_sobol(9, 0, 256, 2)
        for k in range(9):
            boxes = (points * [2**k, 2 ** (8 - k)]).astype(int)
            assert len({tuple(box) for box in boxes}) == 256

    def test_dimensions_are_scrambled_independently(self):
        """Two dimensions with one shift would make their first points equal."""
        first_points = np.array(
            [scrambled_sobol(seed, 0, 1, 6)[0] for seed in range(2_000)]
        )
        correlations = np.corrcoef(first_points.T) - np.eye(6)
        assert abs(correlations).max() < 5 / np.sqrt(2_000)  # five standard errors

    def test_the_matrices_are_random_and_not_the_shifts_alone(self):
        """A digital shift alone keeps the digits' differences of two points for all
        seeds.
        """
        digits = [
            (scrambled_sobol(seed, 0, 2, 1)[:, 0] * 2**20).astype(int)
            for seed in range(50)
        ]
        assert len({int(a ^ b) for a, b in digits}) > 40


class TestQuasiMonteCarlo:
    @pytest.mark.parametrize(
        ("kernel", "law"),
        [
            (Gaussian(), stats.norm()),
            (Laplacian(), stats.cauchy()),
            (Matern(nu=1.5), stats.t(3)),
        ],
        ids=lambda value: getattr(value, "name", ""),
    )
    @pytest.mark.parametrize("n_features", [1, 3, 8])
    def test_a_frequency_follows_the_kernels_law_over_seeds(
        self, kernel, law, n_features
    ):
        """Within one draw frequencies are more even than by chance, so the law is
        tested over seeds.
        """
        draws = np.array(
            [
                kernel.sample_frequencies(
                    n_features, 3, design="quasi-monte-carlo", rng=seed
                )
                for seed in range(500)
            ]
        )
        for coordinate in draws.reshape(500, -1).T:
            assert stats.kstest(coordinate, law.cdf).pvalue > SMALLEST_P_VALUE

    def test_factors_of_a_product_take_their_own_dimensions(self):
        """With the same dimensions the factors' frequencies would be equal, and k(x,
        y)² a wider kernel's.
        """
        factors = (Gaussian(1.5), Matern(2.0, nu=1.5))
        first, second = (
            factor.draw(Draw(QuasiMonteCarlo(), 2, 5, seed=3, first=first))
            for factor, first in zip(factors, (0, 2), strict=True)
        )
        product = factors[0] * factors[1]
        drawn = draw_feature_map(
            product,
            n_features=2,
            n_components=10,
            design="quasi-monte-carlo",
            random_state=3,
        )
        assert_array_equal(drawn.frequencies, (first + second).astype(np.float32))

    def test_a_kernel_on_columns_takes_only_their_dimensions(self):
        kernel = Gaussian(0.5).on([2, 0])
        drawn = kernel.sample_frequencies(3, 4, design="quasi-monte-carlo", rng=1)
        inner = Gaussian(0.5).sample_frequencies(
            2, 4, design="quasi-monte-carlo", rng=1
        )
        assert_array_equal(drawn, np.stack([inner[1], np.zeros(4), inner[0]]))
