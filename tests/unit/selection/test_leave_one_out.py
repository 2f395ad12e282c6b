"""Leave-one-out errors against refits without each row, by scikit-learn on an explicit Z."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from rff_dist import Gaussian, SerialEngine, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, SolveError, StatisticsError
from rff_dist.ridge import held_out
from rff_dist.selection.leave_one_out import hat_matrix, leave_out_rows, select_by_press
from rff_dist.selection.row_folds import leave_out_each
from rff_dist.statistics import inspection, passes
from tests.refusals import refuses
from tests.ridge_problems import features_of, spec_of

ENGINE = SerialEngine(n_threads=1)
ALPHAS = [1e-3, 0.1, 10.0]


def problem(n_samples=60, *, n_targets=3, weights=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 2))
    Y = 10 + np.column_stack([np.sin((k + 1) * X[:, 0]) + X[:, 1] for k in range(n_targets)])
    Y += 0.3 * (1 + np.arange(n_targets)) * rng.standard_normal(Y.shape)
    given = {
        None: None,
        "precisions": rng.uniform(0.1, 3.0, n_samples),
        "some zero": rng.uniform(0.1, 3.0, n_samples) * (rng.random(n_samples) < 0.8),
        "repeated": rng.integers(0, 4, n_samples).astype(float),
    }[weights]
    return ArrayDataset(X, Y, given)


def leave_one_out(dataset, feature_map, *, alphas=ALPHAS, fit_intercept=True, kind="precision"):
    spec = spec_of(dataset, feature_map, kind)
    statistics = passes.accumulate(dataset, feature_map, engine=ENGINE, spec=spec)
    return held_out.leave_one_out(
        dataset, statistics, feature_map, alphas=alphas, fit_intercept=fit_intercept, engine=ENGINE
    )


def refits(Z, Y, weights, *, fit_intercept, alphas=ALPHAS):
    """Return the weighted mean of squared errors of each row, predicted by a fit of the others."""
    squared = refits_of_rows(Z, Y, weights, fit_intercept=fit_intercept, alphas=alphas)
    return np.stack([np.average(values, axis=0, weights=weights) for values in squared])


def refits_of_rows(Z, Y, weights, *, fit_intercept, alphas=ALPHAS):
    """Return the squared error of each row by a fit of the others, shape (n_alphas, n_rows, n_targets)."""
    squared = np.zeros((len(alphas), *Y.shape))
    weights = np.ones(len(Z)) if weights is None else weights
    ridge = Ridge(np.repeat(alphas, Y.shape[1]), fit_intercept=fit_intercept, solver="svd")
    for i in range(len(Z)):
        others = np.arange(len(Z)) != i
        fitted = ridge.fit(Z[others], np.tile(Y[others], len(alphas)), sample_weight=weights[others])
        squared[:, i] = (Y[i] - fitted.predict(Z[i : i + 1]).reshape(len(alphas), -1)) ** 2
    return squared


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weights", [None, "precisions", "some zero"])
@pytest.mark.parametrize(("kind", "n_components"), [("fourier", 40), ("fourier", 100), ("nystrom", 40)])
def test_errors_are_those_of_refits_without_each_row(kind, n_components, weights, fit_intercept):
    dataset = problem(weights=weights)
    feature_map = features_of(dataset, kind, n_components)
    found = leave_one_out(dataset, feature_map, fit_intercept=fit_intercept)
    expected = refits(
        feature_map.transform(dataset.X), dataset.y, dataset.sample_weight, fit_intercept=fit_intercept
    )
    # the sums are rounded to 2e-15; Nyström's are divided by its jitter of 1e-5, and all by alpha
    assert_allclose(found.mean_squared_error, expected, rtol=1e-8 if kind == "fourier" else 1e-6)
    assert_allclose(found.mean_squared_error[1:], expected[1:], rtol=1e-8)
    assert found.n_samples == 60


@pytest.mark.parametrize("n_components", [40, 100])  # fewer than rows, and more
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weights", [None, "some zero"])
def test_each_rows_own_errors_are_those_of_refits_without_it(weights, fit_intercept, n_components):
    dataset = problem(weights=weights)
    Z = features_of(dataset, "fourier", n_components).transform(dataset.X)
    options = {"fit_intercept": fit_intercept}
    found = leave_out_each(Z, dataset.y, dataset.sample_weight, np.array(ALPHAS), **options)
    expected = refits_of_rows(Z, dataset.y, dataset.sample_weight, **options).transpose(0, 2, 1)
    if weights is not None:
        assert (dataset.sample_weight == 0).any()
        expected[:, :, dataset.sample_weight == 0] = 0.0
    assert_allclose(found, expected, rtol=1e-7)


def test_of_repeated_rows_one_copy_is_left_out():
    dataset = problem(weights="repeated")
    feature_map = features_of(dataset, "fourier")
    times = dataset.sample_weight.astype(int)
    Z, Y = feature_map.transform(dataset.X).repeat(times, axis=0), dataset.y.repeat(times, axis=0)
    expected = refits(Z, Y, None, fit_intercept=True)
    found = leave_one_out(dataset, feature_map, kind="frequency")
    assert_allclose(found.mean_squared_error, expected, rtol=1e-8)
    Z = feature_map.transform(dataset.X)
    by_rows = leave_out_each(Z, dataset.y, dataset.sample_weight, np.array(ALPHAS), repeated=True)
    assert_allclose(np.average(by_rows, axis=2, weights=times), expected, rtol=1e-8)


def test_a_row_that_alone_says_what_it_is_makes_the_error_infinite():
    # a lone row far from the others, with features of its own: nothing predicts it without a penalty
    rng = np.random.default_rng(0)
    X = np.zeros((50, 1))
    X[0] = 3.0
    dataset = ArrayDataset(X, rng.standard_normal(50))
    feature_map = draw_feature_map(Gaussian(1.0), n_features=1, n_components=8, random_state=0)
    found = leave_one_out(dataset, feature_map, alphas=[3e-15, 1.0])
    assert_array_equal(found.n_undetermined, [1, 0])
    assert_array_equal(np.isinf(found.mean_squared_error[:, 0]), [True, False])
    assert select_by_press(found) == 1.0
    squares = leave_out_each(feature_map.transform(X), dataset.y[:, np.newaxis], None, np.array([3e-15, 1.0]))
    assert_array_equal(np.isinf(squares[:, 0]).sum(axis=1), [1, 0])
    with refuses(SolveError, "leverage of 1", "alphas"):
        select_by_press(leave_one_out(dataset, feature_map, alphas=[3e-15]))


def test_the_least_shared_error_is_chosen_whatever_the_targets_units():
    dataset = problem(200)
    feature_map = features_of(dataset, "fourier")
    alphas = np.geomspace(1e-6, 1e3, 28)
    scaled = ArrayDataset(dataset.X, dataset.y * [1.0, 1e6, 0.0])
    found, other = (leave_one_out(data, feature_map, alphas=alphas) for data in (dataset, scaled))
    shares = found.mean_squared_error / dataset.y.var(axis=0)
    assert select_by_press(found) == alphas[shares.mean(axis=1).argmin()]
    assert select_by_press(other) == alphas[shares[:, :2].mean(axis=1).argmin()]


def test_equal_errors_go_to_the_larger_alpha():
    dataset = ArrayDataset(problem(50).X, np.ones(50))
    assert select_by_press(leave_one_out(dataset, features_of(dataset, "fourier"))) == 10.0


def test_other_rows_than_those_trained_on_are_refused():
    dataset = problem(weights="precisions")
    feature_map = features_of(dataset, "fourier")
    statistics = passes.accumulate(dataset, feature_map, engine=ENGINE)
    for other, names in (
        (problem(61), ("60 rows", "3 targets", "61 of 3")),
        (problem(n_targets=2), ("60 of 2",)),
        (problem(), ("weights", "the data to 60")),
    ):
        with refuses(StatisticsError, *names):
            held_out.leave_one_out(other, statistics, feature_map, engine=ENGINE)
    for alphas in ([], [0.0], [np.nan]):
        with pytest.raises(InvalidParameterError, match="`alpha"):
            held_out.leave_one_out(dataset, statistics, feature_map, alphas=alphas, engine=ENGINE)
    with refuses(DataError, "have no y"):
        leave_out_rows(
            ArrayDataset(dataset.X).read(inspection.blocks_of(dataset)[0]),
            hat_matrix(statistics, feature_map),
        )


def test_errors_of_different_paths_do_not_add_up():
    dataset = problem()
    feature_map = features_of(dataset, "fourier")
    left, right = (leave_one_out(dataset, feature_map, alphas=[alpha]) for alpha in (1.0, 2.0))
    with refuses(StatisticsError, "different penalties"):
        left + right
