"""Counter-based random numbers and the laws of the frequencies that are made of
them.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from rff_dist import Cauchy, Gaussian, Laplacian, Matern, Sinc
from rff_dist.frequencies.designs import DESIGNS, IID, Orthogonal
from rff_dist.frequencies.uniforms import counter_uniforms, draw_phases

DIMENSIONS = (1, 2, 3, 8)
N_FREQUENCIES = 6_000
# Seeds are fixed: about 100 p-values of right laws should all lie above this, and 200
# seeds gave p-values that are uniform; a wrong law over this many draws gives 1e-20 and
# less.
SMALLEST_P_VALUE = 1e-4
ALL_ONES = 2**64 - 1


class TestCounterBasedNumbers:
    def test_uniforms_start_at_counter_one_and_keep_52_bits(self):
        """NumPy increments the counter before it makes a block, so its first block is
        that of counter 1.
        """
        words = np.random.Philox(key=[7, 2]).random_raw(4)
        expected = [(int(word) // 2**12 * 2 + 1) / 2**53 for word in words]
        assert counter_uniforms(7, 2, 1, 4)[0].tolist() == expected

    def test_uniforms_have_not_changed(self):
        """Golden values; replace them only together with a note on changed results in
        the CHANGELOG.
        """
        assert [u.hex() for u in counter_uniforms(0, 0, 2, 3).ravel()] == [
            "0x1.7a5d3204726c0p-7",
            "0x1.eeb1585ce5464p-3",
            "0x1.c8667a55d9028p-4",
            "0x1.0137e64510731p-1",
            "0x1.1c44a2e7a01fep-2",
            "0x1.e4a1741b7d80dp-1",
        ]

    @given(
        st.integers(0, ALL_ONES),
        st.integers(0, 2),
        st.integers(1, 9),
        st.integers(1, 9),
        st.integers(0, 9),
    )
    def test_the_first_rows_do_not_depend_on_how_many_follow(
        self, seed, stream, n_rows, n_columns, more
    ):
        longer = counter_uniforms(seed, stream, n_rows + more, n_columns)
        assert_array_equal(
            counter_uniforms(seed, stream, n_rows, n_columns), longer[:n_rows]
        )


DRAWN = {
    (Gaussian(), "iid"): [
        0.91612049,
        -0.33681429,
        1.1591279,
        -0.88067962,
        -0.1650654,
        0.72912694,
    ],
    (Gaussian(), "orthogonal"): [
        1.0165544,
        -0.077629461,
        1.6609057,
        -0.37373911,
        -0.21114882,
        -2.1537858,
    ],
    (Laplacian(), "iid"): [
        1.5779181,
        -0.43973721,
        2.4533175,
        -1.4789829,
        -0.20890495,
        1.1132213,
    ],
    (Matern(nu=1.5), "iid"): [
        0.72098359,
        -0.45682007,
        1.7154588,
        -0.69309176,
        -0.22387764,
        1.0790761,
    ],
    (Matern(nu=1.5), "orthogonal"): [
        0.80002475,
        -0.10528857,
        2.458068,
        -0.29413136,
        -0.28638043,
        -3.1875091,
    ],
}


def test_draws_have_not_changed():
    """Frozen draws; regenerate only on purpose, with a note on changed results in the
    CHANGELOG.
    """
    for (kernel, design), expected in DRAWN.items():
        found = kernel.sample_frequencies(2, 3, design=design, rng=42)
        assert_allclose(
            found.ravel(), expected, rtol=1e-7, err_msg=f"{kernel} {design}"
        )
    assert_allclose(
        draw_phases(3, 42),
        [2.682412649134631, 5.705064108699808, 6.146671976429829],
        rtol=1e-15,
    )


class TestNesting:
    """The first frequencies of a long draw are the frequencies of a short one, bit for
    bit.
    """

    @given(
        design=st.sampled_from(sorted(DESIGNS)),
        kernel=st.sampled_from([Gaussian(0.3), Matern(2.0, nu=0.7), Laplacian()]),
        n_features=st.integers(1, 70),
        short=st.integers(1, 150),  # whole blocks and cut ones
        more=st.integers(0, 150),
        seed=st.integers(0, ALL_ONES),
    )
    def test_frequencies_are_nested(
        self, design, kernel, n_features, short, more, seed
    ):
        if kernel.name == "laplacian":
            design = "iid"
        draws = [
            kernel.sample_frequencies(n_features, n, design=design, rng=seed)
            for n in (short, short + more)
        ]
        assert_array_equal(draws[0], draws[1][:, :short])

    @given(st.integers(0, ALL_ONES), st.integers(1, 50), st.integers(0, 50))
    def test_phases_are_nested(self, seed, short, more):
        assert_array_equal(
            draw_phases(short, seed), draw_phases(short + more, seed)[:short]
        )


class TestOrthogonalDesign:
    @pytest.mark.parametrize(
        "kernel", [Gaussian(), Matern(nu=0.8)], ids=lambda kernel: kernel.name
    )
    @pytest.mark.parametrize("n_features", DIMENSIONS)
    def test_directions_within_a_block_are_orthogonal(self, kernel, n_features):
        frequencies = kernel.sample_frequencies(
            n_features, 5 * n_features - 1, design="orthogonal", rng=1
        )
        directions = frequencies / np.linalg.norm(frequencies, axis=0)
        for start in range(0, directions.shape[1], n_features):
            block = directions[:, start : start + n_features]
            assert_allclose(block.T @ block, np.eye(block.shape[1]), atol=1e-13)

    def test_blocks_and_radii_are_independent(self):
        frequencies = Gaussian().sample_frequencies(
            3, 6_000, design="orthogonal", rng=1
        )
        radii = np.linalg.norm(frequencies, axis=0).reshape(-1, 3)
        directions = (frequencies / np.linalg.norm(frequencies, axis=0)).T.reshape(
            -1, 3, 3
        )
        next_block = np.einsum("bij,bij->bi", directions[:-1], directions[1:])
        error = 5 / np.sqrt(len(radii))
        assert abs(next_block.mean(axis=0)).max() < error
        assert abs(np.corrcoef(radii.T) - np.eye(3)).max() < error


LAWS = [
    (Gaussian(), IID(), stats.norm()),
    (Gaussian(), Orthogonal(), stats.norm()),
    (Laplacian(), IID(), stats.cauchy()),
    (Cauchy(), IID(), stats.laplace()),
    (Sinc(), IID(), stats.uniform(-1, 2)),
    *(
        # a coordinate of a multivariate Student t
        (Matern(nu=nu), design, stats.t(2 * nu))
        for nu in (0.5, 1.5, 4.0)
        for design in (IID(), Orthogonal())
    ),
]


class TestSpectralMarginals:
    @pytest.mark.parametrize("n_features", [1, 3])
    @pytest.mark.parametrize(
        ("kernel", "design", "law"),
        LAWS,
        ids=[f"{k.name}-{getattr(k, 'nu', '')}-{d.name}" for k, d, _ in LAWS],
    )
    def test_every_coordinate_follows_the_kernels_law(
        self, kernel, design, law, n_features
    ):
        frequencies = kernel.sample_frequencies(
            n_features, N_FREQUENCIES * n_features, design=design, rng=11
        )
        # first and last column of the blocks, which QR treats differently
        for place in {0, n_features - 1}:
            for coordinate in frequencies[:, place::n_features]:
                assert stats.kstest(coordinate, law.cdf).pvalue > SMALLEST_P_VALUE

    @pytest.mark.parametrize("n_features", DIMENSIONS)
    @pytest.mark.parametrize("design", sorted(DESIGNS))
    def test_gaussian_squared_norms_are_chi_squared(self, design, n_features):
        n = 20_000
        frequencies = (
            Gaussian(0.5).sample_frequencies(n_features, n, design=design, rng=4) * 0.5
        )
        squared = (frequencies**2).sum(axis=0)
        d = n_features
        # central, of chi-squared with d degrees of freedom
        fourth_moment = 12 * d * (d + 4)
        assert abs(squared.mean() - d) < 4 * np.sqrt(2 * d / n)
        assert abs(squared.var() - 2 * d) < 4 * np.sqrt(
            (fourth_moment - (2 * d) ** 2) / n
        )
        assert stats.kstest(squared, stats.chi2(d).cdf).pvalue > SMALLEST_P_VALUE

    @pytest.mark.parametrize("n_features", DIMENSIONS)
    @pytest.mark.parametrize("design", sorted(DESIGNS))
    def test_matern_has_one_scale_per_vector(self, design, n_features):
        """‖ω‖²/d follows F(d, 2ν); with one χ² per coordinate it would not, above one
        dimension.
        """
        frequencies = Matern(nu=1.0).sample_frequencies(
            n_features, N_FREQUENCIES, design=design, rng=5
        )
        ratio = (frequencies**2).sum(axis=0) / n_features
        assert stats.kstest(ratio, stats.f(n_features, 2).cdf).pvalue > SMALLEST_P_VALUE


def test_length_scales_divide_the_rows():
    unit = Gaussian().sample_frequencies(2, 5, rng=0)
    assert_allclose(
        Gaussian([2.0, 0.1]).sample_frequencies(2, 5, rng=0),
        unit / [[2.0], [0.1]],
        rtol=1e-15,
    )
