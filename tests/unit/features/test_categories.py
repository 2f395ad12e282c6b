"""Columns of categories in kernels and features: against one-hot vectors, and by the
texts of levels.
"""

import pickle

import numpy as np
import pytest
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
    SpectralKernel,
    draw_feature_map,
)
from rff_dist.errors import InvalidParameterError
from rff_dist.features import evidence, kinds, length_scales, maps, nystrom
from tests.covering import covering
from tests.refusals import refuses

SCALES = (1.0, 0.7, 2.0, 1.1)  # of two categories, columns 1 and 3
LEVELS = {1: ("north", "south", "east", "west"), 3: ("a", "b", "c")}
KERNELS = [
    Gaussian(SCALES),
    Matern(SCALES, nu=0.5),
    Matern(SCALES),
    RationalQuadratic(SCALES),
    Laplacian(SCALES),
    Cauchy(SCALES),
    Additive(SCALES, order_2=0.5),
]
SUMS = [
    Gaussian(1.3).on([0, 1]) * Matern(2.0),
    0.5 * Gaussian().on([3]) + Laplacian(2.0).on([0, 2]) + 0.25 * Linear(),
]


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 4))
    X[:, 1] = rng.integers(0, 4, n)
    X[:, 3] = rng.integers(0, 3, n)
    return X


def one_hot(X):
    marks = [np.eye(len(LEVELS[j]))[X[:, j].astype(int)] for j in (1, 3)]
    return np.column_stack([X[:, 0], marks[0], X[:, 2], marks[1]])


def with_categories(kernel):
    return kernel.with_categories([1, 3])


class TestKernels:
    @pytest.mark.parametrize("kernel", KERNELS[:-1], ids=repr)
    def test_they_are_those_of_one_hot_vectors(self, kernel):
        X = rows(30)
        Y = rows(7, 1)
        wide = kernel.with_length_scale((1.0, *[0.7] * 4, 2.0, *[1.1] * 3))
        found = with_categories(kernel)
        assert_allclose(found(X), wide(one_hot(X)), atol=1e-14)
        assert_allclose(found(X, Y), wide(one_hot(X), one_hot(Y)), atol=1e-14)

    def test_a_linear_one_is_that_of_one_hot_vectors(self):
        X = rows(30)
        expected = one_hot(X) @ one_hot(X).T
        found = with_categories(Linear())
        assert_allclose(found(X), expected, atol=1e-14)
        assert_allclose(found.diagonal(X), np.diag(expected), atol=1e-14)

    @pytest.mark.parametrize(
        "kernel", [k for k in KERNELS if k.differentiable], ids=repr
    )
    def test_derivatives_are_those_of_small_steps(self, kernel):
        X = rows(25)
        G = np.random.default_rng(1).standard_normal((25, 25))
        kernel = with_categories(kernel)
        derivatives = kernel.differentiate(X)[1](G)[:4]
        for column, derivative in enumerate(derivatives):
            steps = np.zeros(4)
            steps[column] = 1e-5
            ends = [
                (G * kernel.with_length_scale(SCALES * np.exp(sign * steps))(X)).sum()
                for sign in (1, -1)
            ]
            assert derivative == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5)

    @pytest.mark.parametrize(
        "kernel",
        [Min(0, 4), Polynomial(), SpectralKernel(stats.norm())],
        ids=["min", "polynomial", "spectral"],
    )
    def test_those_without_a_form_for_categories_are_refused(self, kernel):
        with refuses(InvalidParameterError, "1"):
            with_categories(kernel)


class TestFourier:
    @pytest.mark.parametrize(
        ("kernel", "design"),
        covering([*KERNELS, *SUMS], ["auto", "quasi-monte-carlo"], meet=1),
        ids=repr,
    )
    def test_products_are_the_kernel_on_average(self, kernel, design):
        X = rows(12)
        kernel = with_categories(kernel.with_default_length_scales(lambda *_: 1.0))
        D = 8192
        Z = draw_feature_map(
            kernel, n_features=4, n_components=D, levels=LEVELS, design=design
        ).transform(X)
        scale = kernel.diagonal(X).max()
        assert abs(Z @ Z.T - kernel(X)).max() < 5 * scale * np.sqrt(2 / D)

    @pytest.mark.parametrize("kernel", [Gaussian(SCALES), *SUMS], ids=repr)
    def test_they_follow_texts_whatever_the_list(self, kernel):
        X = rows(40)
        # a linear kernel has a component for each level, so no others may join here
        others = {1: ("west", "east", "south", "north"), 3: ("c", "b", "a")}
        places = {j: [others[j].index(text) for text in LEVELS[j]] for j in LEVELS}
        Y = X.copy()
        for column, place in places.items():
            Y[:, column] = np.array(place)[X[:, column].astype(int)]
        mine, theirs = (
            draw_feature_map(kernel, n_features=4, n_components=64, levels=levels)
            for levels in (LEVELS, others)
        )
        assert_array_equal(mine.transform(X), theirs.transform(Y))
        again = mine.with_levels({j: (*LEVELS[j], "new") for j in LEVELS})
        assert_array_equal(again.transform(X), mine.transform(X))
        assert again.digest() == mine.digest()

    @pytest.mark.parametrize("precision", ["standard", "high"])
    @pytest.mark.parametrize("map_name", ["pairs", "phases"])
    def test_a_level_never_seen_has_the_expected_features(self, precision, map_name):
        many = {1: tuple(map(str, range(4000))), 3: LEVELS[3]}
        feature_map = draw_feature_map(
            Matern(SCALES),
            n_features=4,
            n_components=32,
            levels=many,
            precision=precision,
            map=map_name,
        )
        X = np.repeat(rows(1), 4000, axis=0)
        X[:, 1] = np.arange(4000)
        expected = feature_map.transform(X).mean(axis=0)
        for code in (4000, 5000, -1):
            X[0, 1] = code
            found = feature_map.transform(X[:1])[0]
            assert_allclose(found, expected, atol=5 / np.sqrt(4000 * 16))
            assert (found**2).sum() < 0.9 * Matern(SCALES).diagonal(X[:1])

    def test_they_survive_pickle_and_storage(self):
        X = rows(9)
        feature_map = draw_feature_map(
            SUMS[1], n_features=4, n_components=64, levels=LEVELS
        )
        facts, arrays = feature_map.record()
        stored = kinds.read_map({"kind": feature_map.kind, **facts}, arrays)
        for copy in (pickle.loads(pickle.dumps(feature_map)), stored):
            assert_array_equal(copy.transform(X), feature_map.transform(X))
            assert copy.digest() == feature_map.digest()
            assert copy.levels == LEVELS

    def test_a_linear_kernel_of_many_levels_shares_features(self):
        levels = {1: tuple(map(str, range(500))), 3: LEVELS[3]}
        feature_map = draw_feature_map(
            Linear(), n_features=4, n_components=4096, levels=levels
        )
        X = rows(20)
        X[:, 1] = np.arange(20) // 2
        Z = feature_map.transform(X)
        exact = Linear(categories=(1, 3))(X)
        assert abs(Z @ Z.T - exact).max() < 5 * np.sqrt(2 / 4096)

    def test_levels_that_are_not_given_are_refused(self):
        with refuses(InvalidParameterError, "levels"):
            draw_feature_map(
                Gaussian(1.0, categories=(1,)), n_features=4, n_components=8
            )


class TestNystrom:
    def draw(self, X, levels):
        return nystrom.draw_nystrom(
            with_categories(Gaussian(SCALES)),
            X.astype(np.float32),
            n_components=20,
            nystrom=nystrom.Nystrom(),
            seed=0,
            levels=levels,
        )

    def test_a_level_never_seen_has_the_mean_features_of_the_others(self):
        X = rows(100)
        feature_map = self.draw(X, LEVELS)
        for columns in ([1], [3], [1, 3]):
            seen = [[]]
            for column in columns:
                codes = range(len(LEVELS[column]))
                seen = [[*one, code] for one in seen for code in codes]
            Y = np.repeat(X[:1], len(seen), axis=0)
            Y[:, columns] = seen
            expected = feature_map.transform(Y).mean(axis=0)
            Y[0, columns] = -1
            found = feature_map.transform(Y[:1])[0]
            assert_allclose(found, expected, atol=1e-6)  # float32

    def test_centres_and_features_follow_texts(self):
        X = rows(100)
        shuffled = {1: ("west", "east", "north", "south"), 3: ("c", "a", "b")}
        Y = X.copy()
        for column, texts in LEVELS.items():
            place = np.array([shuffled[column].index(text) for text in texts])
            Y[:, column] = place[X[:, column].astype(int)]
        mine = self.draw(X, LEVELS)
        theirs = self.draw(Y, shuffled)
        assert_array_equal(mine.transform(X), theirs.transform(Y))
        assert mine.digest() == theirs.digest()
        moved = mine.with_levels(shuffled)
        assert_array_equal(moved.transform(Y), mine.transform(X))
        assert moved.digest() == mine.digest()
        copy = pickle.loads(pickle.dumps(moved))
        assert_array_equal(copy.transform(Y), mine.transform(X))


class TestEvidence:
    @pytest.mark.parametrize("kernel", [Gaussian(), Laplacian()], ids=repr)
    def test_it_finds_which_categories_matter(self, kernel):
        rng = np.random.default_rng(0)
        X = np.column_stack(
            [rng.standard_normal(600), rng.integers(0, 8, 600), rng.integers(0, 8, 600)]
        )
        effects = rng.standard_normal(8)
        y = np.sin(X[:, 0]) * effects[X[:, 1].astype(int)]
        y += 0.1 * rng.standard_normal(600)
        tuned = length_scales.maximize_evidence(
            kernel.with_categories([1, 2]), X, y[:, np.newaxis]
        )
        scales = tuned.length_scale
        assert scales[2] > 5 * scales[1]

    def test_the_gradient_with_features_is_that_of_small_steps(self):
        X = rows(60)
        kernel = with_categories(Matern())
        y = np.random.default_rng(2).standard_normal((60, 1))
        points = evidence.EvidenceRows(X, y - y.mean(), None)
        design = maps.designs.DESIGNS["iid"]
        draw = maps.designs.Draw(design, n_features=4, n_frequencies=8, seed=0)
        drawn = {}
        for column, texts in LEVELS.items():
            (part,) = kernel.level_angles(column, draw)
            lines = np.array([part.angles(text) for text in texts])
            drawn[column] = (lines, X[:, column].astype(int))
        frequencies = kernel.draw(draw)
        objective = evidence.FeatureObjective(points, frequencies, drawn)
        at = np.log([1.0, 1.7, 2.0, 1.1, 0.5])
        gradient = objective(at)[1]
        for i in range(5):
            step = 5e-4 * np.eye(5)[i]
            slope = (objective(at + step)[0] - objective(at - step)[0]) / 1e-3
            assert gradient[i] == pytest.approx(slope, rel=0.02, abs=2e-3)
