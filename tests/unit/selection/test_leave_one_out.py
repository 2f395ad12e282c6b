"""Leave-one-out errors against refits without each row, by scikit-learn on an explicit
Z.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from rff_dist import Gaussian, draw_feature_map
from rff_dist.data.memory import ArrayDataset
from rff_dist.selection.row_folds import leave_out_each
from tests.covering import covering
from tests.ridge_problems import features_of

ALPHAS = [1e-3, 0.1, 10.0]


def problem(n_samples=60, *, n_targets=3, weights=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 2))
    Y = 10 + np.column_stack(
        [np.sin((k + 1) * X[:, 0]) + X[:, 1] for k in range(n_targets)]
    )
    Y += 0.3 * (1 + np.arange(n_targets)) * rng.standard_normal(Y.shape)
    given = {
        None: None,
        "precisions": rng.uniform(0.1, 3.0, n_samples),
        "some zero": rng.uniform(0.1, 3.0, n_samples) * (rng.random(n_samples) < 0.8),
        "repeated": rng.integers(0, 4, n_samples).astype(float),
    }[weights]
    return ArrayDataset(X, Y, given)


def refits_of_rows(Z, Y, weights, *, fit_intercept, alphas=ALPHAS):
    """Return the squared error of each row by a fit of the others, shape (n_alphas,
    n_rows, n_targets).
    """
    squared = np.zeros((len(alphas), *Y.shape))
    weights = np.ones(len(Z)) if weights is None else weights
    ridge = Ridge(
        np.repeat(alphas, Y.shape[1]), fit_intercept=fit_intercept, solver="svd"
    )
    for i in range(len(Z)):
        others = np.arange(len(Z)) != i
        fitted = ridge.fit(
            Z[others], np.tile(Y[others], len(alphas)), sample_weight=weights[others]
        )
        squared[:, i] = (
            Y[i] - fitted.predict(Z[i : i + 1]).reshape(len(alphas), -1)
        ) ** 2
    return squared


@pytest.mark.parametrize(
    ("n_components", "fit_intercept", "weights"),
    # fewer components than rows, and more
    covering([40, 100], [True, False], [None, "some zero"]),
)
def test_each_rows_own_errors_are_those_of_refits_without_it(
    weights, fit_intercept, n_components
):
    dataset = problem(weights=weights)
    Z = features_of(dataset, "fourier", n_components).transform(dataset.X)
    options = {"fit_intercept": fit_intercept}
    found = leave_out_each(
        Z, dataset.y, dataset.sample_weight, np.array(ALPHAS), **options
    )
    expected = refits_of_rows(Z, dataset.y, dataset.sample_weight, **options).transpose(
        0, 2, 1
    )
    if weights is not None:
        assert (dataset.sample_weight == 0).any()
        expected[:, :, dataset.sample_weight == 0] = 0.0
    assert_allclose(found, expected, rtol=1e-7)


def test_of_repeated_rows_one_copy_is_left_out():
    dataset = problem(weights="repeated")
    feature_map = features_of(dataset, "fourier")
    times = dataset.sample_weight.astype(int)
    Z = feature_map.transform(dataset.X).repeat(times, axis=0)
    Y = dataset.y.repeat(times, axis=0)
    expected = refits_of_rows(Z, Y, None, fit_intercept=True).mean(axis=1)
    Z = feature_map.transform(dataset.X)
    by_rows = leave_out_each(
        Z, dataset.y, dataset.sample_weight, np.array(ALPHAS), frequency_weights=True
    )
    assert_allclose(np.average(by_rows, axis=2, weights=times), expected, rtol=1e-8)


def test_a_row_that_alone_says_what_it_is_makes_the_error_infinite():
    # a lone row far from the others, with features of its own: nothing predicts it
    # without a penalty
    rng = np.random.default_rng(0)
    X = np.zeros((50, 1))
    X[0] = 3.0
    dataset = ArrayDataset(X, rng.standard_normal(50))
    feature_map = draw_feature_map(
        Gaussian(1.0), n_features=1, n_components=8, random_state=0
    )
    squares = leave_out_each(
        feature_map.transform(X), dataset.y[:, np.newaxis], None, np.array([3e-15, 1.0])
    )
    assert_array_equal(np.isinf(squares[:, 0]).sum(axis=1), [1, 0])
