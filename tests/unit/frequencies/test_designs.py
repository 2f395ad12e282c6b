"""Designs beyond independent and orthogonal frequencies: scrambled Sobol points, Hadamard transforms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats
from threadpoolctl import threadpool_limits

from rff_dist.features.composed import ConcatenatedFeatureMap
from rff_dist.features.draw import draw_feature_map
from rff_dist.features.fourier import FourierFeatureMap, StructuredFeatureMap
from rff_dist.features.maps import FeatureMap, Standardizer
from rff_dist.frequencies.designs import GaussianMixture, Orthogonal, QuasiMonteCarlo, Structured
from rff_dist.frequencies.hadamard import HadamardBlocks
from rff_dist.frequencies.uniforms import scrambled_sobol
from rff_dist.kernels.base import check_design
from rff_dist.kernels.stationary import Gaussian, Laplacian, Matern

SMALLEST_P_VALUE = 1e-4  # seeds are fixed; a wrong law gives 1e-20 and less
ALL_ONES = 2**64 - 1


class TestScrambledSobol:
    def test_points_have_not_changed(self):
        """Golden values; replace them only together with a note on changed results in the CHANGELOG."""
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
    def test_points_and_dimensions_are_nested(self, seed, first, n_points, more, n_dimensions):
        points = scrambled_sobol(seed, first, n_points, n_dimensions)
        whole = scrambled_sobol(seed, 0, n_points + more, first + n_dimensions)
        np.testing.assert_array_equal(points, whole[:n_points, first:])
        assert 0 < whole.min() <= whole.max() < 1

    def test_every_interval_of_a_net_holds_one_point(self):
        """A Sobol net: each stretch of 256 points has one in each 256th of every coordinate."""
        points = scrambled_sobol(3, 0, 512, 40)
        for stretch in (points[:256], points[256:]):
            occupied = np.sort((stretch * 256).astype(int), axis=0)
            np.testing.assert_array_equal(occupied, np.broadcast_to(np.arange(256)[:, np.newaxis], (256, 40)))

    def test_scrambling_keeps_the_two_dimensional_net(self):
        """The first two Sobol dimensions are a (0, m, 2)-net: a point in each box of area 2**-m."""
        points = scrambled_sobol(9, 0, 256, 2)
        for k in range(9):
            boxes = (points * [2**k, 2 ** (8 - k)]).astype(int)
            assert len({tuple(box) for box in boxes}) == 256

    def test_dimensions_are_scrambled_independently(self):
        """Two dimensions with one shift would make their first points equal."""
        first_points = np.array([scrambled_sobol(seed, 0, 1, 6)[0] for seed in range(2_000)])
        correlations = np.corrcoef(first_points.T) - np.eye(6)
        assert abs(correlations).max() < 5 / np.sqrt(2_000)  # five standard errors

    def test_the_matrices_are_random_and_not_the_shifts_alone(self):
        """A digital shift alone keeps the digits' differences of two points for all seeds."""
        digits = [(scrambled_sobol(seed, 0, 2, 1)[:, 0] * 2**20).astype(int) for seed in range(50)]
        assert len({int(a ^ b) for a, b in digits}) > 40

    def test_it_has_21_201_dimensions(self):
        assert scrambled_sobol(0, 21_200, 1, 1).shape == (1, 1)
        check_design(Gaussian(), "quasi-monte-carlo", 21_201)
        check_design(Gaussian(), "orthogonal", 300_000)  # of which a block takes 670 GiB


class TestQuasiMonteCarlo:
    @pytest.mark.parametrize(
        ("kernel", "law"),
        [(Gaussian(), stats.norm()), (Laplacian(), stats.cauchy()), (Matern(nu=1.5), stats.t(3))],
        ids=lambda value: getattr(value, "name", ""),
    )
    @pytest.mark.parametrize("n_features", [1, 3, 8])
    def test_a_frequency_follows_the_kernels_law_over_seeds(self, kernel, law, n_features):
        """Within one draw frequencies are more even than by chance, so the law is tested over seeds."""
        draws = np.array(
            [
                kernel.sample_frequencies(n_features, 3, design="quasi-monte-carlo", rng=seed)
                for seed in range(500)
            ]
        )
        for coordinate in draws.reshape(500, -1).T:
            assert stats.kstest(coordinate, law.cdf).pvalue > SMALLEST_P_VALUE

    def test_factors_of_a_product_take_their_own_dimensions(self):
        """With the same dimensions the factors' frequencies would be equal, and k(x, y)² a wider kernel's."""
        factors = (Gaussian(1.5), Matern(2.0, nu=1.5))
        first, second = (
            factor.draw(QuasiMonteCarlo(), (2, 5), 3, first=first)
            for factor, first in zip(factors, (0, 2), strict=True)
        )
        product = factors[0] * factors[1]
        drawn = draw_feature_map(
            product, n_features=2, n_components=10, design="quasi-monte-carlo", random_state=3
        )
        np.testing.assert_array_equal(drawn.frequencies, (first + second).astype(np.float32))

    def test_a_kernel_on_columns_takes_only_their_dimensions(self):
        kernel = Gaussian(0.5).on([2, 0])
        drawn = kernel.sample_frequencies(3, 4, design="quasi-monte-carlo", rng=1)
        inner = Gaussian(0.5).sample_frequencies(2, 4, design="quasi-monte-carlo", rng=1)
        np.testing.assert_array_equal(drawn, np.stack([inner[1], np.zeros(4), inner[0]]))


# -- structured ------------------------------------------------------------------------------------


def blocks_of(n_features: int, n_frequencies: int, seed: int = 0) -> HadamardBlocks:
    blocks = Structured().blocks(GaussianMixture(), n_features, n_frequencies, seed)
    assert blocks is not None
    return blocks


def multiplied_out(blocks: HadamardBlocks) -> np.ndarray:
    """Return the first block's frequencies by the definition, with SciPy's Hadamard matrices."""
    p = blocks.block_size
    small = np.kron(linalg.hadamard(p // 16), np.eye(16)) @ linalg.block_diag(*blocks.rotations[0])
    first, second = blocks.signs[0]
    product = linalg.hadamard(p) * second @ linalg.hadamard(p) * first @ small
    directions = product / np.linalg.norm(product, axis=1, keepdims=True)
    radii = blocks.radii[:p, np.newaxis]
    return (radii * directions[: len(radii)])[:, : len(blocks.stretch)].T


def structured(n_features: int = 40, n_components: int = 300, **options) -> StructuredFeatureMap:
    options = {"kernel": "matern", "design": "structured", "random_state": 3} | options
    feature_map = draw_feature_map(n_features=n_features, n_components=n_components, **options)
    assert isinstance(feature_map, StructuredFeatureMap)
    return feature_map


def normal(n_samples: int, n_features: int = 40) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n_samples, n_features), np.float32)


class TestHadamardBlocks:
    @pytest.mark.parametrize("n_features", [17, 32, 33, 100, 300])
    def test_frequencies_are_the_products_of_the_definition(self, n_features):
        blocks = blocks_of(n_features, 2 * n_features)
        expected = multiplied_out(blocks)
        np.testing.assert_allclose(blocks.frequencies()[:, : expected.shape[1]], expected, atol=1e-13)

    def test_they_have_not_changed(self):
        """Golden values; replace them only together with a note on changed results in the CHANGELOG."""
        np.testing.assert_allclose(
            blocks_of(20, 3, seed=42).frequencies()[[0, 19]],
            [
                [-0.33167169359681675, -1.16742614148046, 0.17061694919722006],
                [0.8912829306448486, -0.040724149412965864, 0.6742327964854224],
            ],
            rtol=1e-11,
        )

    @pytest.mark.parametrize("n_features", [1, 2, 3, 8, 16])
    def test_up_to_sixteen_columns_they_are_orthogonal_draws(self, n_features):
        """Products of signs alone would have few directions there, and no exact law."""
        draws = (design.draw(GaussianMixture(), n_features, 40, 1) for design in (Structured(), Orthogonal()))
        np.testing.assert_array_equal(*draws)
        drawn = draw_feature_map("gaussian", n_features=n_features, n_components=64, design="structured")
        assert isinstance(drawn, FourierFeatureMap)


class TestStructuredFeatureMap:
    @pytest.mark.parametrize("map_name", ["pairs", "phases"])
    @pytest.mark.parametrize("n_features", [17, 40, 300])
    def test_features_are_those_of_the_dense_frequencies_to_float32(self, n_features, map_name):
        features = structured(n_features, 700, map=map_name, kernel=Gaussian(3.0), precision="high")
        dense = FourierFeatureMap(features.frequencies, features.phases)
        X = normal(150, n_features)
        np.testing.assert_allclose(features.transform(X), dense.transform(X), atol=2e-6 * features.scale * 8)

    def test_length_scales_stretch_the_inputs(self):
        widths = tuple(np.linspace(0.5, 3.0, 40))
        narrow, unit = (structured(kernel=Gaussian(scale), precision="high") for scale in (widths, 1.0))
        np.testing.assert_allclose(
            narrow.frequencies * np.array(widths)[:, np.newaxis], unit.frequencies, rtol=1e-6
        )
        X = normal(9)
        np.testing.assert_allclose(narrow.transform(X), unit.transform(X / widths), atol=1e-6)

    def test_the_float64_products_of_a_row_have_the_same_bits_alone(self):
        """Other shapes of the matrix products would round otherwise, which float32 angles mostly hide."""
        blocks, X = structured(300).blocks, normal(200, 300)
        together = np.empty((150, 200))
        for frequencies, rows, products in blocks.products(X, 0, 150):
            together[frequencies, rows] = products
        for row in (0, 63, 64, 150, 199):
            ((_, _, alone),) = blocks.products(X[row : row + 1], 0, 150)
            np.testing.assert_array_equal(alone[:, 0], together[:, row])

    @pytest.mark.parametrize("n_features", [40, 1_000, 3_000])
    def test_the_bits_do_not_depend_on_blas_threads(self, n_features):
        features, X = structured(n_features, 2_200), normal(70, n_features)
        with threadpool_limits(1):
            one = features.transform(X)
        with threadpool_limits(2):
            np.testing.assert_array_equal(features.transform(X), one)

    def test_no_matrix_of_frequencies_is_held(self):
        features = structured(1_024, 8_192, kernel="gaussian")
        held = [features.blocks.rotations, features.blocks.signs, features.blocks.radii]
        assert sum(array.nbytes for array in held) < features.frequencies.nbytes / 50

    def test_the_digest_tells_every_array_apart(self):
        features = replace(structured(map="phases"), spec=None)
        blocks = features.blocks
        changed: list[FeatureMap] = [
            features,
            replace(features, phases=None),
            replace(features, standardizer=Standardizer(np.zeros(40), np.ones(40))),
            *(
                replace(features, blocks=replace(blocks, **{name: -getattr(blocks, name)}))
                for name in ("rotations", "signs", "radii", "stretch")
            ),
        ]
        assert len({other.digest() for other in changed}) == len(changed)

    def test_a_sum_of_kernels_keeps_the_fast_transform_in_its_parts(self):
        features = draw_feature_map(
            Gaussian() + Matern(), n_features=40, n_components=1_000, design="structured"
        )
        assert isinstance(features, ConcatenatedFeatureMap)
        assert all(isinstance(part, StructuredFeatureMap) for part in features.parts)
