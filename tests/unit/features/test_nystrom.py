"""Nyström features: against dense formulas, and that they travel, add up and are stored
like any other.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import solve

from rff_dist import (
    Additive,
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    Min,
    Polynomial,
    SerialEngine,
    accumulate,
)
from rff_dist.data import samples
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import StatisticsError
from rff_dist.features.centres import RULES
from rff_dist.features.nystrom import (
    Nystrom,
    NystromFeatureMap,
    draw_nystrom,
    largest_value,
)
from rff_dist.kernels.base import Kernel
from rff_dist.statistics import passes
from tests.refusals import refuses

KERNELS = [
    Gaussian(2.0),
    Laplacian(3.0),
    Matern(2.0, nu=1.5),
    Gaussian(2.0) * Linear(),
    Polynomial(2) + 0.5 * Matern([1.0, 2.0, 3.0], nu=0.5),
    Gaussian(1.0).on([0, 2]) + 3.0,
    Min((-4.0, -4.0, -4.0), (4.0, 4.0, 4.0)),
    0.5 * Additive(2.0).on([0, 2]) + Gaussian(),
]


def inputs(n_samples: int = 300, *, seed: int = 0) -> np.ndarray:
    return (
        np.random.default_rng(seed).standard_normal((n_samples, 3)).astype(np.float32)
    )


def targets(X: np.ndarray) -> np.ndarray:
    noise = 0.05 * np.random.default_rng(9).standard_normal(len(X))
    return np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + noise + 7.0


def draw(
    kernel: Kernel | None = None, n_components: int = 40, *, seed: int = 0, **options
) -> NystromFeatureMap:
    return draw_nystrom(
        kernel or Gaussian(2.0),
        inputs(),
        n_components=n_components,
        nystrom=Nystrom(**options),
        seed=seed,
    )


def dense_gram(
    feature_map: NystromFeatureMap, X: np.ndarray, Y: np.ndarray
) -> np.ndarray:
    """k(X, C) (k(C, C) + jitter·I)⁻¹ k(C, Y), by NumPy alone."""
    kernel = feature_map.kernel
    centres = feature_map.centres
    regular = kernel(centres) + feature_map.jitter * np.eye(len(centres))
    return kernel(X, centres) @ solve(regular, kernel(centres, Y), assume_a="pos")


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
class TestAgainstDenseFormulas:
    def test_inner_products_are_the_projected_kernel(self, kernel):
        feature_map = draw(kernel)
        X = inputs(90, seed=1)
        Z = feature_map.transform(X)
        expected = dense_gram(feature_map, X, X)
        # rounding of about 1e-15, amplified by 1 / jitter
        assert_allclose(Z @ Z.T, expected, atol=1e-7 * np.abs(expected).max())

    def test_the_bound_holds(self, kernel):
        bound = largest_value(kernel)
        assert (bound is None) == (
            "linear" in str(kernel.to_dict()) or "polynomial" in str(kernel.to_dict())
        )
        feature_map = draw(kernel)
        assert feature_map.bounded == (bound is not None)
        if bound is not None:
            assert np.abs(kernel(inputs(200))).max() <= bound
            assert feature_map.scales[0][1] >= bound


class TestStatistics:
    @pytest.fixture
    def parts(self):
        feature_map = draw()
        X = inputs(400, seed=5)
        pieces = (slice(0, 250), slice(250, 400))
        return feature_map, [
            accumulate(ArrayDataset(X[p], targets(X[p])), feature_map) for p in pieces
        ]

    def test_sums_without_their_factor_are_not_read(self, parts):
        _, (left, _) = parts
        bare = left.with_whitener(None)
        assert bare == left
        assert bare.digest() == left.digest()
        for read in (bare.ZtZ, bare.Zty, bare.Zt1, bare.normal_equations):
            with refuses(StatisticsError, "with_whitener"):
                read()
        assert_array_equal((bare + left).ZtZ(), (left + left).ZtZ())

    def test_stored_sums_leave_the_factor_out(self, parts):
        feature_map, (left, _) = parts
        metadata, arrays = left.to_arrays()
        assert sum(array.nbytes for array in arrays.values()) < 8 * 40**2
        again = (
            type(left).from_arrays(metadata, arrays).with_whitener(feature_map.whitener)
        )
        assert_array_equal(again.ZtZ(), left.ZtZ())

    @pytest.mark.parametrize("length_scale", [1.0, 30.0])
    def test_the_error_that_is_reported_covers_what_the_order_of_rows_changes(
        self, length_scale
    ):
        """With length scale 30 the Gram matrix of the centres would be singular without
        its jitter.
        """
        feature_map = draw(Gaussian(length_scale), 100)
        X = inputs(20_000, seed=6)
        engine = SerialEngine(1)
        orders = np.random.default_rng(0)
        grams = []
        for _ in range(2):
            rows = X[orders.permutation(len(X))]
            spec = passes.statistics_spec(
                ArrayDataset(rows, targets(rows)), feature_map
            )
            equations = accumulate(
                ArrayDataset(rows, targets(rows)), feature_map, engine=engine, spec=spec
            ).normal_equations()
            grams.append(equations.gram)
        difference = np.linalg.norm(grams[0] - grams[1], 2)
        assert difference < equations.gram_error
        assert equations.gram_error < 1000 * difference

    @pytest.mark.parametrize(
        ("length_scale", "n_components"), [(0.3, 160), (10.0, 300)]
    )
    def test_the_error_holds_what_whitening_in_float64_adds(
        self, length_scale, n_components
    ):
        X = np.random.default_rng(0).standard_normal((800, 5)).astype(np.float32)
        feature_map = draw_nystrom(
            Gaussian(length_scale),
            X,
            n_components=n_components,
            nystrom=Nystrom(),
            seed=0,
        )
        dataset = ArrayDataset(X)
        engine = SerialEngine(1)
        spec = passes.statistics_spec(
            dataset, feature_map, fraction_bits=40, with_targets=False, engine=engine
        )
        statistics = passes.accumulate(dataset, feature_map, engine=engine, spec=spec)
        equations = statistics.with_whitener(feature_map.whitener).normal_equations(
            fit_intercept=False
        )
        # features in long double, from kernel values that are float32 numbers
        V = np.empty((n_components, 800))
        feature_map.fill(feature_map.prepare(X), V, 0, n_components)
        Z = V.astype(np.longdouble)
        whitener = feature_map.whitener.astype(np.longdouble)
        for i in range(n_components):  # T'Z = V from the first row on
            Z[i] = (Z[i] - whitener[:i, i] @ Z[:i]) / whitener[i, i]
        difference = np.linalg.norm((equations.gram - Z @ Z.T).astype(np.float64), 2)
        assert difference < equations.gram_error < 20 * difference


class TestCentres:
    @pytest.mark.parametrize("rule", RULES)
    def test_they_are_seeded_nested_and_distinct(self, rule):
        few = draw(None, 10, centres=rule)
        many = draw(None, 60, centres=rule)
        other = draw(None, 60, seed=1, centres=rule)
        assert_array_equal(few.centres, many.centres[:10])
        assert len(np.unique(many.centres, axis=0)) == 60
        assert not np.array_equal(many.centres, other.centres)
        assert set(map(tuple, many.centres)) <= set(map(tuple, inputs()))

    def test_by_kmeans_they_cover_a_skewed_sample_better_than_uniform_ones(self):
        rng = np.random.default_rng(0)
        crowd = 0.05 * rng.standard_normal((2000, 2))
        few = rng.uniform(-4, 4, (100, 2))
        X = np.concatenate([crowd, few]).astype(np.float32)
        lost = {}
        for name in ("k-means++", "uniform"):
            feature_map = draw_nystrom(
                Gaussian(0.8), X, n_components=60, nystrom=Nystrom(name), seed=0
            )
            lost[name] = (1 - np.square(feature_map.transform(X)).sum(axis=1)).sum()
        assert lost["k-means++"] < 0.3 * lost["uniform"]

    def test_they_are_no_more_than_explain_the_kernel(self, caplog):
        with caplog.at_level("INFO", "rff_dist"):
            found = draw(Linear().on([1]), 310, centres="k-means++").n_components
        assert found < 310
        assert "explain the kernel" in caplog.text

    def test_repeated_rows_change_nothing(self):
        once = draw_nystrom(
            Gaussian(), inputs(), n_components=20, nystrom=Nystrom(), seed=0
        )
        rows = np.concatenate([inputs(), inputs()[::-2]])
        twice = draw_nystrom(
            Gaussian(), rows, n_components=20, nystrom=Nystrom(), seed=0
        )
        assert_array_equal(once.centres, twice.centres)

    def test_all_distinct_rows_make_the_kernel_exact(self):
        feature_map = draw(Matern(1.0), 2048)
        X = inputs()
        Z = feature_map.transform(X)
        assert feature_map.n_components == 300
        assert_allclose(Z @ Z.T, Matern(1.0)(X), atol=2e-5)  # the jitter

    def test_a_sample_of_many_chunks_reads_few_of_them(self):
        X = np.arange(40_000, dtype=np.float32)[:, np.newaxis]
        sample = samples.sample_inputs(ArrayDataset(X, chunk_rows=50), 0, n_rows=2000)
        assert len(np.unique(sample)) == 2000
        assert len(np.unique(sample // 50)) <= 256


class TestJitter:
    def test_a_kernel_that_is_none_is_refused(self):
        class Indefinite(Linear):
            def gram(self, left, right):
                return -(left @ right.T) + 1e-3

        with refuses(Exception, "positive semi-definite kernel"):
            draw_nystrom(
                Indefinite(), inputs(), n_components=5, nystrom=Nystrom(), seed=0
            )

    def test_it_is_raised_and_logged_where_the_factorisation_breaks_down(self, caplog):
        feature_map = draw(Gaussian(1e4), 200, jitter=1e-18)
        assert feature_map.jitter > 1e-18
        assert "ten times" in caplog.text
