"""Probabilities from scores: against a direct fit, refits without each row, and known
probabilities.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from sklearn.linear_model import Ridge
from sklearn.preprocessing import label_binarize

from rff_dist import Gaussian, SerialEngine
from rff_dist.classify.calibration import calibrate
from rff_dist.classify.platt_scaling import (
    SMALLEST_SLOPE,
    ScoreCalibration,
    fit_calibration,
)
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.ridge.uncertainty import leave_one_out, predictive_model
from tests.plain import fit_ridge

ENGINE = SerialEngine(1)


def codes_of(labels, n_classes):
    return label_binarize(labels, classes=np.arange(n_classes), neg_label=-1).astype(
        float
    )


def scored(n_samples, n_classes, *, seed=0):
    """Draw scores, and labels of known probabilities softmax(1.7·f + b)."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_samples, 1 if n_classes == 2 else n_classes))
    shift = np.linspace(-0.5, 0.8, scores.shape[1])
    logits = 1.7 * scores + shift
    P = softmax(np.hstack([0 * logits, logits]) if n_classes == 2 else logits, axis=1)
    labels = (rng.random((n_samples, 1)) > np.cumsum(P, axis=1)[:, :-1]).sum(axis=1)
    return scores, labels, P


def expected_calibration_error(P, labels, n_bins=10):
    """Return the mean gap between the probability of each class and its frequency, in
    bins of equal size.
    """
    errors = []
    for k in range(P.shape[1]):
        for part in np.array_split(np.argsort(P[:, k]), n_bins):
            errors.append(abs(P[part, k].mean() - (labels[part] == k).mean()))
    return np.mean(errors)


# -- the fit
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_parameters_are_those_of_a_direct_fit_of_the_smoothed_likelihood(
    n_classes, weighted
):
    scores, labels, _ = scored(400, n_classes)
    weights = (
        np.random.default_rng(1).uniform(0.1, 2.0, 400) if weighted else np.ones(400)
    )
    got = fit_calibration(
        scores, codes_of(labels, n_classes), weights if weighted else None
    )
    # one observation of the classes' shares beside the 400 rows, and a normal prior of
    # the offsets
    shares = (
        np.array([weights[labels == k].sum() for k in range(n_classes)]) / weights.sum()
    )
    T = (400 * np.eye(n_classes)[labels] + shares) / 401
    rows = weights * 400 / weights.sum()

    def loss(q):
        logits = q[0] * scores + q[1:]
        intercepts = q[1:]
        if n_classes == 2:  # of which the first has a score of 0
            logits = np.hstack([0 * logits, logits])
            intercepts = np.append(0.0, intercepts)
        prior = 0.5 * np.square(intercepts - intercepts.mean()).sum()
        return rows @ -(T * log_softmax(logits, axis=1)).sum(axis=1) + prior

    start = np.append(1.0, np.zeros(scores.shape[1]))
    direct = minimize(loss, start, method="BFGS", options={"gtol": 1e-6}).x
    ours = np.append(got.slope, got.intercepts)
    direct[1:] -= direct[1:].mean() if n_classes > 2 else 0.0
    # BFGS with differences for gradients: 1e-6 in 400 rows
    assert_allclose(ours, direct, atol=2e-5)
    assert loss(ours) <= loss(direct) * (1 + 1e-12)


def test_far_scores_keep_finite_logarithms():
    logs = ScoreCalibration(3.0, (0.1,)).log_probabilities(np.array([[1e5], [-1e5]]))
    assert np.isfinite(logs).all()
    assert_allclose(np.exp(logs), [[0, 1], [1, 0]], atol=1e-300)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_separable_scores_have_finite_parameters(n_classes):
    labels = np.arange(60) % n_classes
    codes = codes_of(labels, n_classes)
    found = fit_calibration(codes, codes)
    assert np.isfinite([found.slope, *found.intercepts]).all()
    P = np.exp(found.log_probabilities(codes))
    # what the smoothing leaves: (n + 1/K) / (n + 1)
    assert_allclose(P[np.arange(60), labels], (60 + 1 / n_classes) / 61, rtol=1e-6)


def test_a_class_that_the_sample_lacks_is_unlikely_not_impossible():
    scores, labels, _ = scored(200, 3)
    labels[labels == 2] = 1
    found = fit_calibration(scores, codes_of(labels, 3))
    P = np.exp(found.log_probabilities(scores))
    assert np.isfinite(found.intercepts).all()
    assert 0 < P[:, 2].mean() < 0.03


def test_scores_that_say_nothing_give_the_frequencies(caplog):
    labels = np.repeat([0, 1], [300, 100])
    codes = codes_of(labels, 2)
    found = fit_calibration(np.zeros((400, 1)), codes)
    assert not caplog.records
    # the mean of the other rows, what leaving out a row from no signal gives, has a
    # slope of minus hundreds
    means = (codes.sum(axis=0) - codes) / 399
    opposite = fit_calibration(means, codes)
    assert "separate the classes of 400 left-out rows" in caplog.text
    assert_allclose(
        np.exp(opposite.log_probabilities(means))[:, 1], 100 / 400, rtol=0.02
    )
    P = np.exp(found.log_probabilities(np.zeros((1, 1))))
    # the prior's pull of b/2 is about 1/700 of the 400 rows
    assert_allclose(P[0, 1], 100 / 400, rtol=0.01)
    # it is where the gradient vanishes: n·(p − share) + b/2 = 0
    assert_allclose(
        400 * (P[0, 1] - 100 / 400) + found.intercepts[0] / 2, 0.0, atol=1e-6
    )


def test_classes_of_few_rows_or_none_keep_the_rank_of_their_scores():
    """All classes have the same distribution of scores; 50 rows lack most of 100
    classes.
    """
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 100, 3000)
    scores = codes_of(labels, 100) + 0.3 * rng.standard_normal((3000, 100))
    found = fit_calibration(scores[:50], codes_of(labels[:50], 100))
    assert (np.argmax(found.logits(scores), axis=1) == labels).mean() > 0.98


@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_that_mislead_are_not_turned_round(n_classes, caplog):
    scores, labels, _ = scored(300, n_classes)
    found = fit_calibration(-scores, codes_of(labels, n_classes))
    assert found.slope == SMALLEST_SLOPE
    assert "separate the classes of 300 left-out rows" in caplog.text
    P = np.exp(found.log_probabilities(-scores))
    # with a slope near 0 the best intercepts give the frequencies of the classes
    assert_allclose(P.mean(axis=0), np.bincount(labels) / 300, atol=0.01)


# -- scores that did not see their row
# -----------------------------------------------------------------


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_leave_one_out_scores_are_those_of_refits_without_each_row(
    fit_intercept, weighted, features
):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    codes = codes_of(rng.integers(0, 3, 60), 3)
    weights = rng.uniform(0.2, 3.0, 60) if weighted else np.ones(60)
    dataset = ArrayDataset(X, codes, weights if weighted else None)
    model = ridge_on(
        dataset, 0.2, n_components=30, fit_intercept=fit_intercept, features=features
    )
    predictive = predictive_model(
        model.linear, model.statistics, alpha=0.2, fit_intercept=fit_intercept
    )
    got = leave_one_out(Rows(Block(0, 0, 60), X, codes), predictive, weights)
    Z = model.feature_map.transform(X)
    for i in range(0, 60, 7):
        rest = np.arange(60) != i
        ridge = Ridge(alpha=0.2, fit_intercept=fit_intercept, solver="cholesky")
        ridge.fit(Z[rest], codes[rest], weights[rest])
        # a score near 0 is a difference of numbers near 1
        assert_allclose(got[i], ridge.predict(Z[i : i + 1])[0], rtol=1e-8, atol=1e-9)


# -- together
# --------------------------------------------------------------------------------------


def classified(n_samples, *, n_classes=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 2))
    logits = np.stack(
        [k * np.sin(2 * X[:, 0]) + X[:, 1] * (k - 1) for k in range(n_classes)], axis=1
    )
    P = softmax(2 * logits, axis=1)
    labels = (rng.random((n_samples, 1)) > np.cumsum(P, axis=1)[:, :-1]).sum(axis=1)
    return X, labels, P


def ridge_on(dataset, alpha="gcv", **options):
    options = {"length_scale": None, "n_components": 100, "alpha": alpha, **options}
    return fit_ridge(dataset, Gaussian(1.0), engine=ENGINE, **options)[0]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_calibrated_ridge_is_better_calibrated_than_its_clipped_scores(n_classes):
    X, labels, P = classified(6000, n_classes=n_classes)
    train = slice(0, 2000)
    test = slice(2000, None)
    dataset = ArrayDataset(X[train], codes_of(labels[train], n_classes))
    model = ridge_on(dataset)
    found = calibrate(dataset, model, class_weight=None, seed=0)
    F = model.feature_map.transform(X[test]) @ model.coefficients + model.intercept
    got = np.exp(found.log_probabilities(F))
    clipped = np.clip((F + 1) / 2, 0, 1)
    clipped = np.hstack([1 - clipped, clipped]) if n_classes == 2 else clipped
    error = expected_calibration_error(got, labels[test])
    assert error < 0.03  # 4,000 rows in 10 bins: sampling alone gives about 0.015
    assert error < expected_calibration_error(clipped, labels[test])
    own = np.arange(4000), labels[test]
    # so that no row is impossible: Platt's smoothing does the same
    bounded = np.clip(clipped, 1 / 2002, None)
    assert -np.log(got[own]).mean() < -np.log(bounded[own]).mean()
    assert np.abs(got - P[test]).mean() < 0.05


def test_probabilities_are_those_of_the_reweighted_rows():
    X, labels, _ = classified(3000)
    labels[(labels == 1) & (np.random.default_rng(1).random(3000) < 0.8)] = 0
    class_weight = len(labels) / (2 * np.bincount(labels))
    dataset = ArrayDataset(X, codes_of(labels, 2), class_weight[labels])
    model = ridge_on(dataset)
    found = calibrate(dataset, model, class_weight=class_weight, seed=0)
    F = model.feature_map.transform(X) @ model.coefficients + model.intercept
    weights = class_weight[labels]
    # balanced: both classes weigh alike
    assert_allclose(
        np.average(np.exp(found.log_probabilities(F))[:, 1], weights=weights),
        0.5,
        atol=0.02,
    )
    # more rows are labelled with the rare class
    assert (found.logits(F)[:, 0] > 0).mean() > labels.mean() + 0.1


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_where_the_variance_is_not_determined_there_are_no_probabilities(caplog):
    X, labels, _ = classified(40)
    dataset = ArrayDataset(X, codes_of(labels, 2))
    model = ridge_on(dataset, alpha=0.0, precision="high")
    assert calibrate(dataset, model, class_weight=None, seed=0) is None
    assert "no probabilities" in caplog.text
