"""Losses as passes: sums and gradients by definition, minima against scikit-learn's on
the explicit Z.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import label_binarize

from rff_dist import Gaussian, Linear, SerialEngine, draw_feature_map
from rff_dist.classify.fit import LossOptions, fit_loss, logistic_curvature
from rff_dist.classify.losses import LOSSES, sum_loss
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError
from rff_dist.fitting.predicting import LinearModel
from rff_dist.numerics.minimize import PenalizedLoss, minimize_loss
from tests.plain import fit_ridge
from tests.refusals import refuses
from tests.ridge_problems import normal_equations

ENGINE = SerialEngine(1)


def codes_of(labels, n_classes):
    return label_binarize(labels, classes=np.arange(n_classes), neg_label=-1).astype(
        float
    )


def problem(n_samples=300, n_classes=2, *, weighted=False, seed=0):
    """Draw rows of overlapping classes: some are always on the wrong side."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3))
    labels = (
        np.sin(2 * X[:, 0]) + X[:, 1] + 0.7 * rng.standard_normal(n_samples) > 0.3
    ).astype(int)
    if n_classes > 2:
        labels = (
            np.digitize(
                np.sin(2 * X[:, 0]) + X[:, 1] + 0.5 * X[:, 2], [-1.0, 0.2, 1.0]
            )[:]
            % n_classes
        )
        labels = np.where(
            rng.random(n_samples) < 0.1, rng.integers(0, n_classes, n_samples), labels
        )
    weights = rng.uniform(0.2, 3.0, n_samples) if weighted else None
    return X, labels, weights


def ridge_on(
    dataset, *, alpha=0.3, n_components=40, fit_intercept=True, kernel=None, **options
):
    model, solved = fit_ridge(
        dataset,
        Gaussian(1.5) if kernel is None else kernel,
        engine=ENGINE,
        length_scale=None,
        n_components=n_components,
        alpha=alpha,
        fit_intercept=fit_intercept,
        **options,
    )
    return model, logistic_curvature(solved.solution, model.statistics.sum_of_weights)


def fitted(
    n_classes,
    loss,
    *,
    weighted=False,
    fit_intercept=True,
    alpha=0.3,
    tol=1e-15,
    **options,
):
    X, labels, weights = problem(n_classes=n_classes, weighted=weighted)
    dataset = ArrayDataset(X, codes_of(labels, n_classes), weights)
    model, curvature = ridge_on(
        dataset, alpha=alpha, fit_intercept=fit_intercept, **options
    )
    losses = LossOptions(loss, tol=tol, max_iter=300)
    minimum = fit_loss(
        dataset, model, losses, alpha=alpha, curvature=curvature, engine=ENGINE
    )
    return minimum, model.feature_map.transform(X), labels, weights


# -- the minimum, against scikit-learn on the explicit Z
# -----------------------------------------------


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-5),
        # features without a bound
        ({"kernel": Linear(), "n_components": 3, "map": "phases"}, 2e-6),
        # features that are divided by the root of the jitter
        ({"features": "nystrom"}, 1e-4),
    ],
    ids=str,
)
def test_the_minimum_is_scikit_learns_in_features_of_any_kind(options, tolerance):
    minimum, Z, labels, _ = fitted(2, "logistic", **options)
    oracle = LogisticRegression(C=1 / 0.3, tol=1e-10, max_iter=10_000).fit(Z, labels)
    got = Z @ minimum.coefficients + minimum.intercept
    assert_allclose(got[:, 0], oracle.decision_function(Z), atol=tolerance)
    loss = log_loss(labels, oracle.predict_proba(Z), normalize=False)
    assert_allclose(
        minimum.objective, loss + 0.5 * 0.3 * np.square(oracle.coef_).sum(), rtol=1e-9
    )


# -- passes
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loose_tolerance_takes_few_passes_and_says_how_far_it_is(loss):
    loose, tight = (fitted(2, loss, tol=tol)[0] for tol in (1e-6, 1e-15))
    assert loose.converged
    assert loose.n_iterations <= loose.n_evaluations <= 20
    assert loose.excess <= 1e-6 * loose.reference
    # scores of 0: ln 2 for each row, or 1
    assert loose.reference == pytest.approx(
        300 * (np.log(2) if loss == "logistic" else 1.0), rel=1e-15
    )
    # the excess is estimated from the preconditioner's curvature: right within a factor
    # of ten
    assert loose.objective - tight.objective <= 10 * max(
        loose.excess, 1e-12 * tight.objective
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_loss_of_separable_classes_converges_though_it_goes_to_0(loss, n_classes):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(n_classes), 100)
    X = 0.3 * rng.standard_normal((len(labels), 3)) + labels[:, np.newaxis]
    dataset = ArrayDataset(X, codes_of(labels, n_classes))
    model, curvature = ridge_on(dataset, alpha=1e-4)
    minimum = fit_loss(
        dataset,
        model,
        LossOptions(loss),
        alpha=1e-4,
        curvature=curvature,
        engine=ENGINE,
    )
    assert minimum.converged
    assert minimum.objective < 1e-3 * minimum.reference
    scores = model.feature_map.transform(X) @ minimum.coefficients + minimum.intercept
    decided = (scores[:, 0] > 0) if n_classes == 2 else scores.argmax(axis=1)
    assert (decided == labels).mean() > 0.99


@given(
    scores=st.lists(st.floats(-30, 30), min_size=3, max_size=3),
    own=st.integers(0, 2),
    name=st.sampled_from(sorted(LOSSES)),
    n_columns=st.sampled_from([1, 3]),
)
def test_the_gradient_of_a_loss_is_its_derivative(scores, own, name, n_columns):
    F = np.array([scores[:n_columns]])
    codes = (
        codes_of(np.array([own]), 3)
        if n_columns == 3
        else codes_of(np.array([own % 2]), 2)
    )
    gradient = LOSSES[name](F, codes)[1]
    step = 1e-5
    for k in range(n_columns):
        shift = np.zeros_like(F)
        shift[0, k] = step
        difference = (
            LOSSES[name](F + shift, codes)[0] - LOSSES[name](F - shift, codes)[0]
        )
        # central differences; the squared hinge's second derivative jumps by 2, an
        # error of step / 2
        assert_allclose(
            gradient[0, k], difference[0] / (2 * step), rtol=1e-6, atol=2e-5
        )


@given(st.floats(-1e4, 1e4), st.sampled_from([-1.0, 1.0]))
def test_losses_do_not_overflow(score, code):
    for name, n_columns in itertools.product(LOSSES, (1, 2)):
        F = np.array([[score, -score][:n_columns]])
        codes = np.array([[code, -code][:n_columns]])
        for values in LOSSES[name](F, codes):
            assert np.isfinite(values).all()


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (None, ["0 columns"]),
        ([[0.0], [1.0]], ["0.0", "row 5"]),
        ([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0]], ["1.0", "-1.0", "row 5"]),
        ([[1.0, -1.0], [1.0, -1.0]], ["2 columns", "1"]),
    ],
)
def test_targets_that_are_no_codes_are_refused_with_their_row(y, message):
    codes = None if y is None else np.array(y)
    n_columns = 3 if codes is not None and codes.shape[1] == 3 else 1
    feature_map = draw_feature_map("gaussian", n_features=2, n_components=4)
    linear = LinearModel(feature_map, np.zeros((4, n_columns)), np.zeros(n_columns))
    with refuses(DataError, *message):
        sum_loss(
            Rows(Block(0, 5, 7), np.zeros((2, 2)), codes),
            linear,
            loss=LOSSES["logistic"],
        )


# -- the minimiser alone
# -------------------------------------------------------------------------------


def test_the_minimiser_solves_ridge_in_one_step_where_the_curvature_is_right():
    # L = ‖y − Zw − b‖² has the Hessian 2·Z'Z: the preconditioned one is the identity
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((50, 6)) * np.geomspace(1, 1e3, 6) + 2.0
    y = rng.standard_normal((50, 2))
    means = Z.mean(axis=0)
    centred = Z - means

    def loss(W, b):
        residual = Z @ W + b - y
        return float((residual**2).sum()), 2 * Z.T @ residual, 2 * residual.sum(axis=0)

    reference = float((y**2).sum())
    found = minimize_loss(
        PenalizedLoss(
            loss,
            normal_equations(Z, y),
            penalty=0.5,
            curvature=2.0,
            reference=reference,
        ),
        np.zeros((6, 2)),
        np.zeros(2),
        tol=1e-20,
        max_iter=10,
    )
    expected = np.linalg.solve(centred.T @ centred + 0.5 * np.eye(6), centred.T @ y)
    assert_allclose(found.coefficients, expected, rtol=1e-9)
    assert_allclose(found.intercept, y.mean(axis=0) - means @ expected, rtol=1e-9)
    assert found.n_evaluations <= 4
