"""Predictive standard deviations against dense Bayesian linear regression, and on data
from the model.
"""

import logging
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.base import clone

from rff_dist import Gaussian, Matern, SerialEngine, load_model, save_model
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import InvalidParameterError, SolveError, StatisticsError
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.calibration import LEVELS
from rff_dist.ridge.uncertainty import deviations_of_sums
from tests.covering import covering
from tests.plain import plain_ridge
from tests.refusals import refuses

ALPHA = 0.3


def problem(n_samples=400, *, n_targets=1, noise=0.2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 3)) + 5
    signal = np.column_stack(
        [np.sin((k + 1) * X[:, 0]) + X[:, 1] for k in range(n_targets)]
    )
    y = (
        10
        + signal
        + noise * (1 + np.arange(n_targets)) * rng.standard_normal(signal.shape)
    )
    return X, y[:, 0] if n_targets == 1 else y


def ridge(**parameters):
    given = {
        "n_components": 60,
        "alpha": ALPHA,
        "random_state": 0,
        "engine": SerialEngine(1),
    }
    return plain_ridge(Gaussian(1.0), **(given | parameters))


def dense_std(Z, y, Z_new, *, fit_intercept, weights=None, alpha=ALPHA):
    """Return the standard deviations from the posterior of (b, w), σ² from y's
    covariance by least squares.

    y ~ N(b, σ²·C), C = W⁻¹ + ZZ'/alpha: the noise variance is that of the generalised
    residual."""
    weights = np.ones(len(Z)) if weights is None else weights
    inverse = np.linalg.inv(np.diag(1 / weights) + Z @ Z.T / alpha)
    ones = np.full(len(Z), float(fit_intercept))
    Y = y.reshape(len(y), -1)
    if fit_intercept:
        Y = Y - (ones @ inverse @ Y) / (ones @ inverse @ ones)
    noise = np.einsum("it,ij,jt->t", Y, inverse, Y) / (len(Z) - int(fit_intercept))
    design, new = (
        np.column_stack([np.ones(len(z)), z])[:, int(not fit_intercept) :]
        for z in (Z, Z_new)
    )
    penalty = np.full(design.shape[1], alpha)
    if fit_intercept:
        penalty[0] = 0.0
    covariance = np.linalg.inv(
        design.T @ (weights[:, np.newaxis] * design) + np.diag(penalty)
    )
    spread = np.einsum("ij,jk,ik->i", new, covariance, new)
    std = np.sqrt(np.outer(1 + spread, noise))
    return std[:, 0] if y.ndim == 1 else std


@pytest.mark.parametrize(
    ("size", "features", "fit_intercept"),
    # targets and components: a tile, and several
    covering([(1, 60), (3, 60), (1, 600)], ["fourier", "nystrom"], [True, False]),
)
def test_standard_deviations_are_those_of_dense_bayesian_linear_regression(
    size, features, fit_intercept
):
    n_targets, n_components = size
    X, y = problem(900 if n_components == 600 else 400, n_targets=n_targets)
    X_new = np.vstack([X[:40], X[:300] + 3.0])
    model = ridge(
        features=features, fit_intercept=fit_intercept, n_components=n_components
    ).fit(X, y)
    mean, std = model.predict(X_new, return_std=True)
    Z = model.feature_map_.transform(X)
    Z_new = model.feature_map_.transform(X_new)
    assert_array_equal(mean, model.predict(X_new))
    assert std.shape == mean.shape
    assert_allclose(std, dense_std(Z, y, Z_new, fit_intercept=fit_intercept), rtol=1e-8)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_weights_that_are_precisions_scale_each_rows_noise(fit_intercept):
    X, y = problem()
    weights = np.random.default_rng(1).uniform(0.2, 3.0, len(X))
    model = ridge(fit_intercept=fit_intercept).fit(X, y, sample_weight=weights)
    Z = model.feature_map_.transform(X)
    # dense_std's new observation has the weight 1, ours their mean: weights and alpha
    # over it
    mean = weights.mean()
    expected = dense_std(
        Z,
        y,
        Z,
        fit_intercept=fit_intercept,
        weights=weights / mean,
        alpha=model.alpha_ / mean,
    )
    assert_allclose(model.predict(X, return_std=True)[1], expected, rtol=1e-8)


def test_a_model_without_statistics_refuses():
    X, y = problem()
    save_model(ridge().fit(X, y), "model", statistics=False)
    loaded = load_model("model")
    loaded.predict(X)
    assert not hasattr(loaded, "statistics_")
    for ask in (
        lambda: loaded.predict(X, return_std=True),
        lambda: loaded.partial_fit(X, y),
    ):
        with refuses(StatisticsError, "statistics=True"):
            ask()


def test_a_dask_collection_is_refused():
    da = pytest.importorskip("dask.array")
    X, y = problem()
    model = ridge().fit(X, y)
    with refuses(InvalidParameterError, "Compute X"):
        model.predict(da.from_array(X, chunks=(100, 3)), return_std=True)


def test_one_row_with_an_intercept_has_no_variance():
    X, y = problem()
    with refuses(SolveError, "n_samples=1"):
        ridge(n_components=4).fit(X[:1], y[:1]).predict(X, return_std=True)


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_a_singular_system_without_a_penalty_is_refused():
    X, y = problem()
    X[:, 2] = X[:, 0] - 3 * X[:, 1]
    model = plain_ridge("linear", n_components=3, alpha=0.0).fit(X, y)
    with refuses(SolveError, "alpha=0", "eigenvalue"):
        model.predict(X, return_std=True)


def test_without_a_penalty_it_is_the_prediction_interval_of_least_squares():
    X, y = problem()
    std = (
        plain_ridge("linear", n_components=3, alpha=0.0)
        .fit(X, y)
        .predict(X, return_std=True)[1]
    )
    design = np.column_stack([np.ones(len(X)), X])
    hat = design @ np.linalg.pinv(design)
    noise = np.square(y - hat @ y).sum() / (len(X) - 1)
    # X is rounded to float32
    assert_allclose(std, np.sqrt(noise * (1 + np.diagonal(hat))), rtol=1e-5)


def test_a_residual_below_its_rounding_error_is_logged(caplog):
    X, _ = problem()
    model = ridge(n_components=20, alpha=1e-6)
    model.fit(X, X[:, 0])
    exact = model.feature_map_.transform(X)[:, 3]
    model.fit(X, exact)
    with caplog.at_level(logging.INFO, "rff_dist.ridge.uncertainty"):
        std = model.predict(X, return_std=True)[1]
    [record] = caplog.records
    assert record.levelname == "INFO"
    assert "below its rounding error" in caplog.text
    assert (std > 0).all()
    assert (std < 1e-4).all()


# -- calibration
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_calibration_is_that_of_scipys_normal_distribution_and_direct_counts(weighted):
    X, y = problem(1500, n_targets=2)
    weights = np.random.default_rng(2).uniform(0, 2, 1000) if weighted else None
    model = ridge().fit(X[:500], y[:500])
    mean, std = model.predict(X[500:], return_std=True)
    test = ArrayDataset(X[500:], y[500:], sample_weight=weights)
    found = prediction.calibrate(test, model.model_, engine=model.engine)

    def average(values):
        return np.average(values, axis=0, weights=weights)

    nlpd = -average(norm.logpdf(y[500:], mean, std))
    assert_allclose(found.nlpd, nlpd, rtol=1e-12)
    assert_allclose(
        found.standardized_nlpd, nlpd - np.log(y[:500].std(axis=0)), rtol=1e-11
    )
    assert_allclose(
        found.mean_squared_score, average(((y[500:] - mean) / std) ** 2), rtol=1e-12
    )
    assert_allclose(found.mean_standard_deviation, average(std), rtol=1e-12)
    for level, coverage, width in zip(
        LEVELS, found.coverage, found.mean_widths, strict=True
    ):
        lower, upper = norm.interval(level, mean, std)
        assert_allclose(
            coverage, average((y[500:] >= lower) & (y[500:] <= upper)), rtol=1e-12
        )
        assert_allclose(width, average(upper - lower), rtol=1e-12)
    plain = prediction.evaluate(test, model.model_, engine=model.engine)
    assert_array_equal(found.errors.mean_squared_error, plain.mean_squared_error)


@pytest.mark.parametrize("n_targets", [1, 2])
@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_one_row_has_the_deviation_and_interval_that_it_has_among_others(
    features, n_targets
):
    X, y = problem(n_targets=n_targets)
    # chosen for each target: two triangles
    alphas = {1: ALPHA, 2: np.geomspace(1e-6, 1e4, 41)}[n_targets]
    model = ridge(features=features, alpha=alphas, alpha_per_target=n_targets == 2).fit(
        X, y
    )
    assert len(np.unique(model.alpha_)) == n_targets
    mean, std = model.predict(X[:20], return_std=True)
    lower, upper = model.predict_interval(X[:20])
    for row in (0, 7, 19):
        one_mean, one_std = model.predict(X[row : row + 1], return_std=True)
        ends = model.predict_interval(X[row : row + 1])
        # a single column is solved in another order than many: below the features'
        # rounding of 6e-8
        assert_allclose(one_mean[0], mean[row], rtol=1e-12)
        assert_allclose(one_std[0], std[row], rtol=1e-10)
        assert_allclose([end[0] for end in ends], [lower[row], upper[row]], rtol=1e-10)


def test_intervals_of_a_model_with_as_many_degrees_of_freedom_as_rows_warn_that_they_may_be_narrow():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 3))
    y = np.sin(2 * X).sum(axis=1)  # without noise, so that each of few rows is followed
    given = {
        "alpha": [1e-4, 1e3],
        "features": "nystrom",
        "n_components": 120,
        "random_state": 0,
    }
    with pytest.warns(UserWarning, match="the smallest value tried"):
        followed = plain_ridge(Matern(2.0), **given).fit(X, y)
    table = followed.selection_
    share = table["cv_leverages"][:, 0, table["cv_alphas"] == followed.alpha_].mean()
    assert share > 0.7
    # no warning, which is an error here, from held-out errors
    followed.predict_interval(X[:5])
    normal = with_normal_intervals(followed)
    save_model(normal, "model")
    for model in (normal, load_model("model")):
        with pytest.warns(UserWarning, match=f"{share:.0%}"):
            model.predict_interval(X[:5])
    # nor if there are many more rows
    X, y = problem()
    with_normal_intervals(ridge(alpha="cv").fit(X, y)).predict_interval(X[:5])


def with_normal_intervals(model):
    """Return the estimator without held-out errors, as after a merge."""
    normal = clone(model)
    normal._keep(model.model_.with_intervals(None, ""))
    return normal


def test_the_triangle_is_made_once_stays_with_the_model_and_is_not_pickled(monkeypatch):
    X, y = problem()
    model = ridge().fit(X, y)
    small = len(pickle.dumps(model))
    expected = model.predict(X[:3], return_std=True)
    assert len(pickle.dumps(model)) == small
    again = pickle.loads(pickle.dumps(model))
    monkeypatch.setattr("rff_dist.ridge.uncertainty.predictive_model", pytest.fail)
    assert_array_equal(model.predict(X[:3], return_std=True), expected)
    monkeypatch.undo()
    assert_array_equal(again.predict(X[:3], return_std=True), expected)
    more = ridge().fit(X, y).partial_fit(X, y)
    assert (more.predict(X[:3], return_std=True)[1] < expected[1]).all()
    model.partial_fit(X, y)
    assert_array_equal(
        model.predict(X[:3], return_std=True), more.predict(X[:3], return_std=True)
    )


def test_a_target_without_noise_has_no_density():
    X, y = problem(n_targets=2)
    y[:, 1] = 5.0
    model = ridge().fit(X, y)
    found = prediction.calibrate(ArrayDataset(X, y), model.model_, engine=model.engine)
    for values in (found.nlpd, found.standardized_nlpd, found.mean_squared_score):
        assert np.isfinite(values[0])
        assert np.isnan(values[1])
    assert_array_equal(found.coverage[:, 1], 1.0)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_sums_of_predictions_have_the_deviations_of_the_dense_posterior(fit_intercept):
    X, y = problem(n_targets=2)
    model = ridge(fit_intercept=fit_intercept).fit(X, y).model_
    rng = np.random.default_rng(3)
    X_new = X[:300] + rng.standard_normal((300, 3))
    # a mean of many rows, and a difference, in which the intercept cancels
    weights = np.zeros((2, 300))
    weights[0] = 1 / 300
    weights[1, [0, 299]] = [1.0, -1.0]
    found = deviations_of_sums(X_new, weights, model.predictive)
    Z = model.feature_map.transform(X, dtype=np.float64)
    Z_new = model.feature_map.transform(X_new, dtype=np.float64)
    ones = np.full((400, 1), float(fit_intercept))
    design = np.hstack([ones, Z])
    precision = design.T @ design + np.diag([1e-9, *np.full(Z.shape[1], ALPHA)])
    sums = weights @ np.hstack([ones[:300], Z_new])
    relative = np.einsum("ij,ji->i", sums, np.linalg.solve(precision, sums.T))
    noise = model.predictive.noise_variance
    # the features of Z'Z are rounded to 15 bits
    assert_allclose(found, np.sqrt(np.outer(relative, noise)), rtol=1e-3)
