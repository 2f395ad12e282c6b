"""Exact effects: each column's curve against closed forms, and sums that are
predictions.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.kernel_ridge import KernelRidge

from rff_dist import (
    Additive,
    Gaussian,
    Linear,
    Matern,
    Min,
    Nystrom,
    Polynomial,
    RFFRidge,
    write_dataset,
)
from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.fitting.predicting import predict_rows
from rff_dist.recipes.encoders import Category, Number
from rff_dist.recipes.recipes import RECIPE, Recipe
from rff_dist.ridge.effects import column_effect, kernels_of_columns
from tests.covering import covering
from tests.plain import plain_classifier, plain_ridge
from tests.refusals import refuses
from tests.strategies import composite_kernels

ORDER_1 = Additive(order_2=0, dense=0)
SUMS = [
    ORDER_1,
    ORDER_1 + 0.3 * Linear(),
    2.0 * ORDER_1.on([3, 1]) + Gaussian().on([0]) * Matern().on([0]) + 1.0,
    Linear(),
    Min() + Gaussian(0.5).on([2]),
]


def make_rows(n_rows=300):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_rows, 4)) * [1, 10, 0.1, 1] + [0, 100, 0, 0]
    # a heavy tail, which "rank" maps to a normal distribution
    X[:, 3] = np.exp(2 * X[:, 3])
    y = (
        np.sin(2 * X[:, 0])
        + X[:, 1] / 10
        + np.log(X[:, 3])
        + 0.1 * rng.standard_normal(n_rows)
    )
    return X, y


def seeded(kernel, **parameters):
    return plain_ridge(
        kernel, **{"n_components": 128, "alpha": 1.0, "random_state": 0} | parameters
    )


#: With functions of several columns too, of a weight per column or one for all.
MIXED = [
    Additive([1.0, 0.5, 2.0, 0.7], order_1=(0.3, 0, 1, 0.5), order_2=0, dense=0.8),
    Additive(),
    2.0 * Additive(order_1=(1, 0.2), order_2=0).on([3, 1]) + 0.5 * Linear(),
    Gaussian() + 0.3 * Linear() + Min().on([0, 2]) + 1.0,
    Polynomial(2).on([0]) + Polynomial(2).on([1, 2]) + Gaussian().on([3, 0]),
]


def summed(model, rows):
    """Return the sum of the rows' effects, of shape (n_rows, n_targets)."""
    return sum(column_effect(model.model_, j, rows[:, j]) for j in range(rows.shape[1]))


class TestEffects:
    @pytest.mark.parametrize(
        ("kernel", "features", "standardize"),
        covering(SUMS, ["fourier", "nystrom"], [True, False, "rank"]),
        ids=str,
    )
    def test_a_rows_effects_and_the_prediction_at_the_means_are_its_prediction(
        self, kernel, features, standardize
    ):
        X, y = make_rows()
        Y = np.column_stack([y, -3 * X[:, 0]])
        weights = np.linspace(0.5, 2, len(X))
        model = seeded(kernel, features=features, standardize=standardize).fit(
            X, Y, weights
        )
        at_means = model.predict(np.average(X, axis=0, weights=weights)[np.newaxis])
        rows = np.abs(np.random.default_rng(2).standard_normal((20, 4))) * X.std(
            axis=0
        ) + X.min(axis=0)
        predicted = model.predict(rows)
        # rounding of terms that cancel: up to 1,000 times as large as their sum
        tolerance = 1e-10 * np.abs(predicted).max()
        assert_allclose(
            at_means + summed(model, rows), predicted, rtol=0, atol=tolerance
        )
        assert model.effects_[1].effect.shape == (41, 2)

    def test_values_are_within_two_deviations_or_quantiles_in_the_columns_own_units(
        self,
    ):
        X, y = make_rows(2000)
        X[:, 2] = 7.0
        model = seeded(ORDER_1, standardize="auto").fit(X, y)
        assert model.mapped_columns_ == (3,)
        effects = model.effects_
        assert [effect.column for effect in effects] == [0, 1, 2, 3]
        ends = X[:, 1].mean() + np.array([-2, 2]) * X[:, 1].std()
        assert_allclose(effects[1].values[[0, -1]], ends)
        assert effects[1].effect[20] == pytest.approx(0, abs=1e-12)  # at the mean
        assert (effects[2].values, effects[2].effect) == (7, 0)  # a constant column
        levels = stats.norm.cdf([-2, -1, 0, 1, 2])
        # scores are interpolated within cells of 0.06
        assert_allclose(
            effects[3].values[[0, 10, 20, 30, 40]],
            np.quantile(X[:, 3], levels),
            rtol=0.06,
        )
        low, high = effects[1].effect[[0, -1]]
        # y rises by 1 in 10
        assert high - low == pytest.approx(0.4 * X[:, 1].std(), rel=0.1)

    def test_rows_that_were_added_move_them_and_need_the_first_rows_means(self):
        X, y = make_rows()
        model = seeded(ORDER_1, standardize=True).fit(X[:200], y[:200])
        model.partial_fit(X[200:], y[200:])
        left = X[:50]
        right = X[50:100]
        moved = summed(model, left) - summed(model, right)
        assert_allclose(
            moved[:, 0], model.predict(left) - model.predict(right), atol=1e-10
        )
        without = seeded(ORDER_1, standardize=False).fit(X, y).partial_fit(X, y)
        with refuses(AttributeError, "keeps no means"):
            _ = without.effects_


class TestFunctionsOfSeveralColumns:
    """A column's effect next to what columns do together."""

    def test_effects_and_the_rest_are_the_parts_of_exact_kernel_ridge(self):
        rng = np.random.default_rng(1)
        X = rng.standard_normal((60, 3)).astype(np.float32).astype(float)
        Y = np.column_stack([np.sin(X[:, 0]) + X[:, 1] * X[:, 2], X[:, 1] ** 2])
        order_1 = np.array([0.5, 0.0, 1.5])
        kernel = Additive([1.0, 2.0, 3.0], order_1=order_1, order_2=0, dense=2.0)
        shared = {
            "n_components": 60,
            "standardize": False,
            "alpha": 0.5,
            "fit_intercept": False,
        }
        model = RFFRidge(kernel, features=Nystrom(jitter=1e-12), **shared).fit(X, Y)
        rows = rng.standard_normal((40, 3)).astype(np.float32).astype(float)

        def of_column(values, j):  # Matérn-3/2
            scale = [1.0, 2.0, 3.0][j] / np.sqrt(3)
            r = np.sqrt(3) * np.abs(np.subtract.outer(values, X[:, j])) / scale
            return order_1[j] / 4 * (1 + r) * np.exp(-r)

        def dense(points):
            return 0.5 * Matern([1.0, 2.0, 3.0])(points, X)

        gram = sum(of_column(X[:, j], j) for j in range(3)) + dense(X)
        weights = np.linalg.solve(gram + 0.5 * np.eye(60), Y)
        parts = [of_column(rows[:, j], j) @ weights for j in range(3)]
        together = dense(rows) @ weights
        for j in range(3):
            moved = of_column(rows[:, j], j) - of_column(X[:, j].mean(), j)
            found = column_effect(model.model_, j, rows[:, j])
            # values are rounded to float32
            assert_allclose(found, moved @ weights, atol=1e-6)
        assert not model.effects_[1].effect.any()

        shares = model.effect_shares(rows)
        total = sum(parts) + together
        assert_allclose(model.predict(rows), total, atol=1e-6)
        expected = np.array([part.var(axis=0) for part in parts]) / total.var(axis=0)
        assert_allclose(shares.columns, expected, atol=1e-6)
        of_together = together.var(axis=0) / total.var(axis=0)
        assert_allclose(shares.together, of_together, atol=1e-6)
        for k in range(2):
            covariances = np.cov([part[:, k] for part in [*parts, together]], bias=True)
            twice = covariances.sum() - np.trace(covariances)
            assert shares.overlap[k] == pytest.approx(
                twice / total[:, k].var(), abs=1e-6
            )

    @pytest.mark.parametrize(
        ("kernel", "features", "standardize"),
        covering(MIXED, ["fourier", "nystrom"], [True, "rank"]),
        ids=str,
    )
    def test_they_are_the_prediction_but_for_what_moves_with_no_column_alone(
        self, kernel, features, standardize
    ):
        X, y = make_rows()
        model = seeded(kernel, features=features, standardize=standardize).fit(
            X, np.column_stack([y, -3 * X[:, 0]])
        )
        rows = X[:50]
        effects = [column_effect(model.model_, j, rows[:, j]) for j in range(4)]
        shares = model.effect_shares(rows)
        variance = model.predict(rows).var(axis=0)
        for effect, share in zip(effects, shares.columns, strict=True):
            # rounding of terms that cancel
            assert_allclose(effect.var(axis=0) / variance, share, atol=1e-9)
        rest = model.predict(rows) - sum(effects)
        assert_allclose(rest.var(axis=0) / variance, shares.together, atol=1e-9)
        every = shares.columns.sum(axis=0) + shares.together + shares.overlap
        assert_allclose(every, 1.0, atol=1e-12)

    @pytest.mark.parametrize("kernel", MIXED, ids=str)
    def test_the_rest_is_that_of_the_features_of_several_columns(self, kernel):
        X, y = make_rows()
        model = seeded(kernel, precision="high", standardize=True).fit(X, y)
        maps = getattr(model.feature_map_, "parts", (model.feature_map_,))
        Z = model.feature_map_.transform(X)
        alone = []
        for part in maps:
            if hasattr(part, "frequencies"):
                touched = (part.frequencies != 0).sum(axis=0) == 1
                alone += np.repeat(touched, part.per_frequency).tolist()
            elif hasattr(part, "columns"):
                alone += [True] * part.n_components
            else:
                seen = {*part.inputs.ravel().tolist()} - {-1}
                alone += [len(seen) == 1] * part.n_components
        together = Z @ np.where(alone, 0.0, model.model_.coefficients[:, 0])
        rest = model.predict(X) - summed(model, X)[:, 0]
        # cosines are float32
        assert_allclose(
            rest - rest.mean(),
            together - together.mean(),
            atol=1e-6 * np.abs(model.model_.coefficients).sum(),
        )


TOWNS = ("Bonn", "Köln", "Rom", "Ulm")


class TestCategories:
    @pytest.fixture
    def fit(self, tmp_path):
        """Return a function that fits a number, towns and colours."""
        rng = np.random.default_rng(0)
        X = rng.standard_normal((200, 3)) * 3 + 10
        X[:, 1] = rng.integers(0, 4, 200)
        X[:, 2] = rng.integers(0, 2, 200)
        y = np.sin(X[:, 0]) + np.array([1.0, -2.0, 0.0, 4.0])[X[:, 1].astype(int)]
        recipe = Recipe(
            [Number("x"), Category("town", TOWNS), Category("colour", ("red", "blue"))]
        )
        data = write_dataset(
            tmp_path / "data",
            X,
            y,
            feature_names=["x", "town", "colour"],
            attributes={RECIPE: recipe.to_dict()},
        )

        def fit(kernel, **parameters):
            return X, y, seeded(kernel, **parameters).fit(data)

        return fit

    def test_they_are_those_of_one_hot_columns_about_their_mean(self, fit):
        scales = np.array([1.0, 0.7, 2.0])
        shared = {"standardize": False, "fit_intercept": False, "alpha": 0.5}
        X, y, model = fit(
            Additive(scales, order_2=0, dense=0),
            features=Nystrom(jitter=1e-12),
            n_components=400,
            **shared,
        )
        towns = np.eye(4)[X[:, 1].astype(int)]
        colours = np.eye(2)[X[:, 2].astype(int)]

        def grams(left, right):
            of_columns = zip(left, right, scales / np.sqrt(3), strict=True)
            return [Matern(scale)(a, b) / 3 for a, b, scale in of_columns]

        rows = (X[:, :1].astype(np.float32), towns, colours)
        exact = KernelRidge(alpha=0.5, kernel="precomputed")
        exact.fit(sum(grams(rows, rows)), y)
        _, by_town, by_colour = grams((rows[0], np.eye(4), np.eye(2)), rows)
        for effect, gram, texts in zip(
            model.effects_[1:],
            (by_town, by_colour),
            (TOWNS, ("red", "blue")),
            strict=True,
        ):
            expected = gram @ exact.dual_coef_
            counts = np.bincount(X[:, effect.column].astype(int))
            assert effect.values.tolist() == list(texts)
            assert effect.n_rows.tolist() == counts.tolist()
            expected -= np.average(expected, weights=counts)
            assert_allclose(effect.effect, expected, atol=1e-6)

    @pytest.mark.parametrize(
        "kernel", [SUMS[1], Linear(), SUMS[0], Gaussian().on([1])], ids=str
    )
    @pytest.mark.parametrize("features", ["fourier", "nystrom"])
    def test_they_and_one_constant_are_the_predictions(self, fit, kernel, features):
        X, _, model = fit(kernel, features=features)
        rows = np.array([[x, t, c] for x in (7, 12) for t in range(5) for c in (0, 1)])
        texts = np.array([*TOWNS, "never seen"])
        parts = [
            column_effect(model.model_, 0, rows[:, 0]),
            column_effect(model.model_, 1, texts[rows[:, 1]]),
            column_effect(model.model_, 2, np.array(["red", "blue"])[rows[:, 2]]),
        ]
        model_of_rows = predict_rows(
            Rows(Block(0, 0, len(rows)), rows.astype(float)), model.model_.linear
        )
        constants = model_of_rows - sum(parts)
        # a sum of functions of one column: its mean over the rows' levels
        at_means = X.copy()
        at_means[:, 0] = X[:, 0].mean()
        expected = predict_rows(
            Rows(Block(0, 0, len(at_means)), at_means), model.model_.linear
        ).mean()
        assert_allclose(constants, expected, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("features", ["fourier", "nystrom"])
    def test_levels_have_their_own_effects_next_to_functions_of_several_columns(
        self, fit, features, tmp_path
    ):
        kernel = Additive(order_1=(0.5, 1, 0.2), order_2=0, dense=0.5)
        X, _, model = fit(kernel, features=features, n_components=512)
        effects = model.effects_
        assert effects[1].values.tolist() == list(TOWNS)
        texts = np.array(TOWNS)[X[:, 1].astype(int)]
        town = column_effect(model.model_, 1, texts)[:, 0]
        assert_allclose(town, effects[1].effect[X[:, 1].astype(int)], atol=1e-12)
        assert town.mean() == pytest.approx(0, abs=1e-10)
        # the target's own is 1, -2, 0, 4 about its mean
        assert np.argsort(effects[1].effect).tolist() == [1, 2, 0, 3]
        rows = Rows(Block(0, 0, len(X)), X)
        variance = predict_rows(rows, model.model_.linear).var()
        shares = model.effect_shares(tmp_path / "data")
        assert shares.columns[1] == pytest.approx(town.var() / variance)

    def test_a_linear_model_has_no_coefficient_per_column(self, fit):
        _, _, model = fit(Linear())
        with refuses(AttributeError, "[1, 2]", "effects_"):
            _ = model.coef_


class TestRefusals:
    @pytest.mark.parametrize(
        "kernel",
        [Additive(order_1=0), ORDER_1 * Linear(), Gaussian(), Gaussian() + 1.0],
        ids=str,
    )
    def test_a_kernel_without_functions_of_single_columns_has_none(self, kernel):
        X, y = make_rows()
        model = seeded(kernel, features="nystrom").fit(X, y)
        assert not hasattr(model, "effects_")
        with refuses(AttributeError, "Additive()"):
            _ = model.effects_
        with refuses(InvalidParameterError, "columns act together"):
            column_effect(model.model_, 0, [0.0])
        with refuses(InvalidParameterError, "columns act together"):
            model.effect_shares(X)

    def test_classifiers_have_none(self):
        X, y = make_rows()
        classifier = plain_classifier(ORDER_1, n_components=64, alpha=0.1).fit(
            X, y > np.median(y)
        )
        assert not hasattr(classifier, "effects_")

    def test_columns_and_values_that_do_not_exist_are_named(self):
        X, y = make_rows()
        model = seeded(ORDER_1).fit(X, y).model_
        for column in (-1, 4):
            with pytest.raises(
                InvalidParameterError, match=f"`column` is {column}, .* 4 columns"
            ):
                column_effect(model, column, [0.0])
        with refuses(DataError, "column 2"):
            column_effect(model, 2, [0.0, np.nan])


single = st.integers(0, 1).flatmap(
    lambda j: composite_kernels(1).map(lambda kernel: kernel.on([j]))
)
sums = st.lists(
    single
    | st.sampled_from(
        [ORDER_1, Linear(), Min(), Additive(2.0, order_2=0, dense=0).on([1, 0])]
    ),
    min_size=1,
    max_size=3,
).map(sum)


@given(
    kernel=sums | composite_kernels(2) | st.tuples(sums, composite_kernels(2)).map(sum)
)
def test_parts_of_columns_see_one_column_and_leave_a_kernel_of_several(kernel):
    points = np.random.default_rng(0).uniform(0, 2, (8, 2))
    rest = kernel(points)
    parts, has_others = kernels_of_columns(kernel, 2)
    for column, part in parts.items():
        moved = points.copy()
        moved[:, 1 - column] = 1.0
        assert_allclose(part(points), part(moved), rtol=1e-12)
        rest = rest - part(points)
    # what is left is a kernel, of constants alone if and only if the whole is a sum of
    # these parts
    assert np.linalg.eigvalsh(rest).min() > -1e-9 * np.abs(kernel(points)).max()
    assert has_others == (np.ptp(rest) > 1e-9 * np.abs(kernel(points)).max())
