"""RFFClassifier: scikit-learn's conventions, its solutions on the explicit Z, labels of
any type, storage.
"""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.metrics import confusion_matrix
from sklearn.svm import LinearSVC

from rff_dist import RFFClassifier, SerialEngine, load_model, save_model, write_dataset
from rff_dist.classify import predict as class_prediction
from rff_dist.data.blocks import Block
from rff_dist.data.labelled import LabelledDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    SolveError,
    StatisticsError,
)
from rff_dist.ridge import predict as prediction
from rff_dist.storage.columns import as_column, open_column
from tests.covering import covering
from tests.places import scratch
from tests.plain import plain_classifier
from tests.refusals import refuses

LOSSES = ["squared", "logistic", "squared_hinge"]
ENGINE = SerialEngine(1)
ODD_LABELS = ["", " ", "a\nb", 'quote " \\ slash', "ünï – 😀", "null\x00inside", "-1"]


def draw_rows(n_samples=300, n_classes=2, *, noise=0.5, seed=0):
    """Draw rows of overlapping classes 0, 1, …"""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3)) * [1.0, 3.0, 0.2] + 5.0
    score = (
        np.sin(2 * (X[:, 0] - 5))
        + (X[:, 1] - 5) / 3
        + noise * rng.standard_normal(n_samples)
    )
    return X, np.searchsorted(
        np.quantile(score, np.arange(1, n_classes) / n_classes), score
    )


def classifier(**parameters):
    given = {"n_components": 32, "alpha": 0.3, "random_state": 0, "engine": ENGINE}
    return plain_classifier(**(given | parameters))


@pytest.fixture(scope="module")
def rows():
    return draw_rows()


# -- solutions, against scikit-learn on the explicit features
# ------------------------------------------


@pytest.mark.parametrize(
    ("class_weight", "n_classes", "loss"),
    covering([None, "balanced", {0: 3.0}], [2, 4], LOSSES),
    ids=str,
)
def test_decisions_are_those_of_scikit_learns_linear_model_on_explicit_features(
    loss, n_classes, class_weight
):
    X, y = draw_rows(n_classes=n_classes)
    y = np.where(np.random.default_rng(2).random(len(y)) < 0.1, 0, y)  # unbalanced
    weights = np.random.default_rng(1).uniform(0.2, 2.0, len(y))
    fit_intercept = loss != "squared_hinge"  # LinearSVC penalises its intercept
    model = classifier(
        loss=loss,
        class_weight=class_weight,
        tol=1e-15,
        max_iter=500,
        fit_intercept=fit_intercept,
    ).fit(X, y, weights)
    options = {"class_weight": class_weight, "fit_intercept": fit_intercept}
    oracle = {
        "squared": RidgeClassifier(alpha=0.3, solver="cholesky", **options),
        "logistic": LogisticRegression(
            C=1 / 0.3, tol=1e-10, max_iter=10_000, **options
        ),
        "squared_hinge": LinearSVC(
            C=1 / 0.6, tol=1e-12, max_iter=100_000, dual=False, fit_intercept=False
        ),
    }[loss]
    # scikit-learn balances numbers of rows, we their weights
    total = np.bincount(y, weights)
    factors = {
        "balanced": dict(enumerate(total.sum() / (n_classes * total))),
        "None": {},
    }.get(str(class_weight), class_weight)
    # LinearSVC weights a class against the rest, not the rows of the rest
    if loss == "squared_hinge":
        weights = weights * np.array([factors.get(k, 1.0) for k in range(n_classes)])[y]
    else:
        oracle.set_params(class_weight=factors or None)
    Z = model.feature_map_.transform(X)
    oracle.fit(Z, y, weights)
    expected = oracle.decision_function(Z)
    got = model.decision_function(X)
    assert got.shape == expected.shape
    assert model.feature_coef_.shape == np.atleast_2d(oracle.coef_).shape
    scores = (Z @ model.feature_coef_.T + model.feature_intercept_).reshape(
        expected.shape
    )
    assert_allclose(scores, expected, atol=1e-5)
    if loss == "squared":
        calibration = model.model_.card["classifier"]["calibration"]
        scores = calibration["slope"] * scores + np.array(calibration["intercepts"])
    assert_allclose(got, scores, atol=1e-5)
    if loss == "logistic":
        assert_allclose(model.predict_proba(X), oracle.predict_proba(Z), atol=1e-6)
        assert_allclose(
            model.predict_log_proba(X), np.log(model.predict_proba(X)), atol=1e-12
        )


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("loss", LOSSES)
def test_everything_that_predicts_takes_the_same_class(loss, n_classes):
    X, y = draw_rows(600, n_classes)
    y = np.where(np.random.default_rng(2).random(len(y)) < 0.3, 0, y)  # unbalanced
    model = classifier(loss=loss, class_weight="balanced").fit(X, y)
    decisions = model.decision_function(X)
    predicted = model.predict(X)
    assert_array_equal(
        predicted, decisions > 0 if n_classes == 2 else decisions.argmax(axis=1)
    )
    if loss != "squared_hinge":
        assert_array_equal(predicted, model.predict_proba(X).argmax(axis=1))
    dataset = write_dataset("rows", X, y.astype(float), chunk_rows=200)
    labelled = LabelledDataset(dataset, as_column(y), model.classes_)
    found = class_prediction.evaluate(labelled, model.model_, engine=ENGINE)
    assert_array_equal(found.counts, confusion_matrix(y, predicted))
    class_prediction.predict(dataset, model.model_, "labels", engine=ENGINE)
    assert_array_equal(
        open_column("labels", "labels").read(Block(0, 0, len(y))), predicted
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_made_of_residuals_is_refused(tmp_path, rows, loss):
    X, y = rows
    dataset = ArrayDataset(X, y.astype(float))
    model = classifier(loss=loss).fit(X, y).model_
    for asked in (
        lambda: prediction.predict(dataset, model, "out", engine=ENGINE, std=True),
        lambda: prediction.predict(dataset, model, "out", engine=ENGINE, coverage=0.9),
        lambda: prediction.predict_in_memory(dataset, model, std=True, engine=ENGINE),
        lambda: prediction.calibrate(dataset, model, engine=ENGINE),
    ):
        with refuses(StatisticsError, "classifier", f"loss='{loss}'", "regression"):
            asked()
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_probabilities_that_cannot_be_told_are_refused_with_alpha():
    X, y = draw_rows(30)
    model = classifier(alpha=0.0, n_components=64, precision="high").fit(X, y)
    model.predict(X)
    with refuses(SolveError, "no probabilities", "alpha=0"):
        model.predict_proba(X)


def test_a_chosen_alpha_of_the_logistic_loss_is_ridges_times_the_curvature():
    X, y = draw_rows(noise=1.5)
    ridge, logistic, hinge = (
        classifier(loss=loss, alpha="gcv").fit(X, y) for loss in LOSSES
    )
    codes = np.where(y == 1, 1.0, -1.0)
    scores = (
        ridge.feature_map_.transform(X) @ ridge.feature_coef_.T
        + ridge.feature_intercept_
    )[:, 0]
    residual = ((codes - scores) ** 2).sum() + ridge.alpha_ * (
        ridge.feature_coef_**2
    ).sum()
    assert 1 / 8 < residual / len(y) / 4 < 1 / 4
    assert_allclose(logistic.alpha_, ridge.alpha_ * residual / len(y) / 4, rtol=1e-6)
    assert hinge.alpha_ == ridge.alpha_
    assert_array_equal(hinge.selection_["alphas"], ridge.selection_["alphas"])


# -- weights
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("factor", [1 / 200, 1e4])
def test_a_factor_on_all_weights_changes_no_decision_and_no_probability(loss, factor):
    """Digits with weights 1/n had a log loss of 2.24, that of the frequencies 2.30."""
    X, y = draw_rows(200, 3)
    weights = np.random.default_rng(2).uniform(0.3, 2.0, len(X))
    options = {
        "loss": loss,
        "length_scale": 2.0,
        "tol": 1e-13,
        "class_weight": "balanced",
    }
    one, other = (
        classifier(**options, alpha=0.3 * c).fit(X, y, weights * c)
        for c in (1.0, factor)
    )
    assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-6)
    if loss != "squared_hinge":
        assert_allclose(one.predict_proba(X), other.predict_proba(X), atol=1e-6)


def test_a_class_without_weight_leaves_too_few():
    X, y = draw_rows(50)
    with refuses(DataError, "1 class", "0", "1", "2 classes"):
        classifier().fit(X, y, y.astype(float))


# -- labels of any type, stored and in memory
# ----------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -7, 250]),
        np.array([0, 2**63 + 5], np.uint64),
        np.array([5, 1], np.int8),
        np.array([False, True]),
        np.array(["no", "yes", "maybe so"]),
        np.array(["b", "a"], object),
        np.array([2.0, 1.0]),
        np.array(ODD_LABELS, object),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_come_back_as_they_were_given_and_survive_storage(labels):
    X, codes = draw_rows(160, len(labels))
    y = labels[codes]
    loss = "logistic" if len(labels) == 2 else "squared"
    model = classifier(loss=loss).fit(X, y)
    assert_array_equal(model.classes_, np.unique(y))
    assert model.classes_.dtype == labels.dtype
    predicted = model.predict(X)
    assert predicted.dtype == labels.dtype
    assert set(predicted.tolist()) <= set(labels.tolist())
    if len(labels) < 4:
        assert (predicted == y).mean() > 0.6
    save_model(model, "model")
    loaded = load_model("model")
    assert isinstance(loaded, RFFClassifier)
    assert loaded.loss == loss
    assert_array_equal(loaded.classes_, model.classes_)
    assert loaded.classes_.dtype == model.classes_.dtype
    assert [type(c) for c in loaded.classes_] == [type(c) for c in model.classes_]
    assert_array_equal(loaded.predict(X), predicted)
    assert_array_equal(loaded.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("loss", "text"), list(zip(LOSSES, [True, False, True], strict=True))
)
def test_stored_rows_and_dask_collections_give_the_classifier_of_rows_in_memory(
    tmp_path, loss, text
):
    X, y = draw_rows(500, 3)
    y = np.array(["low", "middle", "high"])[y] if text else y
    write_dataset("rows.zarr", X, y, chunk_rows=100)
    here = classifier(loss=loss).fit(X, y)
    stored = classifier(loss=loss).fit("rows.zarr")
    lazy = da.from_array(X, chunks=(100, 3)), da.from_array(y, chunks=100)
    assert_array_equal(
        classifier(loss=loss).fit(*lazy).feature_coef_, here.feature_coef_
    )
    assert here.score(*lazy) == here.score(X, y)
    assert_array_equal(stored.classes_, here.classes_)
    assert_array_equal(stored.feature_coef_, here.feature_coef_)
    assert_array_equal(stored.predict("rows.zarr"), here.predict(X))
    assert stored.score("rows.zarr") == here.score(X, y)
    if loss != "squared_hinge":
        assert_array_equal(
            stored.predict_proba(tmp_path / "rows.zarr"), here.predict_proba(X)
        )


def test_the_score_is_the_weighted_share_of_right_rows(rows):
    X, y = rows
    weights = np.linspace(0, 1, len(y))
    model = classifier().fit(X, y)
    expected = weights @ (model.predict(X) == y) / weights.sum()
    assert model.score(X, y, weights) == pytest.approx(expected, rel=1e-12)
    assert model.score(ArrayDataset(X, y.astype(float), weights)) == pytest.approx(
        expected, rel=1e-12
    )


# -- parameters and refusals
# ---------------------------------------------------------------------------


def test_too_few_steps_warn_with_how_far_it_is(rows):
    with pytest.warns(
        ConvergenceWarning, match=r"loss='logistic' stopped after 2 steps .*`max_iter`"
    ):
        model = classifier(loss="logistic", max_iter=2).fit(*rows)
    assert model.n_iter_ == 2


# -- rows that come later
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [[0, 1], ["a", "b", "c"]], ids=["two", "three"])
@pytest.mark.parametrize("weights", [None, "whole", "fractions", "of a class"])
def test_partial_fits_are_one_fit(labels, weights):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 3))
    codes = np.digitize(
        X[:, 0] + 0.3 * rng.normal(size=600), [0.0, 0.8][: len(labels) - 1]
    )
    y = np.array(labels)[codes]
    w = {"whole": rng.integers(1, 4, 600), "fractions": rng.uniform(0.5, 2.0, 600)}.get(
        weights
    )
    given = GROWING | {
        "class_weight": {labels[0]: 3.0} if weights == "of a class" else None
    }
    first, *parts = np.split(np.arange(600), [200, 350])

    def weight(part):
        return None if w is None else w[part]

    one = classifier(**given).fit(X, y, w)
    many = classifier(**given).partial_fit(X[first], y[first], labels, weight(first))
    for part in parts:
        many.partial_fit(X[part], y[part], sample_weight=weight(part))
    assert many.statistics_.n_samples == 600
    assert_allclose(many.feature_coef_, one.feature_coef_, rtol=1e-9, atol=1e-9)
    assert_allclose(many.predict_proba(X), one.predict_proba(X), atol=1e-9)
    assert_array_equal(many.predict(X), one.predict(X))


GROWING = {"length_scale": 2.0, "n_components": 32, "alpha": 0.5, "standardize": False}


def test_a_class_may_come_later_and_rows_calibrate_in_any_division():
    X, y = draw_rows(400, 3)
    early = np.flatnonzero(y != 2)
    late = np.flatnonzero(y == 2)
    model = classifier(**GROWING).partial_fit(X[early], y[early], classes=[0, 1, 2])
    assert not (model.predict(X) == 2).any()
    model.partial_fit(X[late], y[late])
    order = np.concatenate([early, late])
    once = classifier(**GROWING).fit(X[order], y[order])
    assert_allclose(model.predict_proba(X), once.predict_proba(X), atol=1e-9)


def test_partial_fit_refuses_what_sums_cannot_hold():
    X, y = draw_rows(200, 2)
    for loss in LOSSES:
        assert hasattr(classifier(loss=loss), "partial_fit") == (loss == "squared")
    with refuses(InvalidParameterError, "classes"):
        classifier().partial_fit(X, y)
    with refuses(InvalidParameterError, "class_weight", "'balanced'"):
        classifier(class_weight="balanced").partial_fit(X, y, [0, 1])
    with refuses(DataError, "2 classes"):
        classifier().partial_fit(X[y == 0], y[y == 0], [0, 1])
    model = classifier().partial_fit(X, y, [0, 1])
    with refuses(InvalidParameterError, "classes"):
        model.partial_fit(X, y, [0, 1, 2])
    before = model.feature_coef_
    with refuses(DataError, "2 classes"):
        model.partial_fit(X, np.full(len(X), 99))
    assert_array_equal(model.feature_coef_, before)


def test_rows_are_added_to_a_loaded_classifier_whose_calibration_stays():
    X, y = draw_rows(300, 2)
    model = classifier(**GROWING).partial_fit(X[:200], y[:200], np.unique(y))
    save_model(model, scratch("partial-classifier"), overwrite=True)
    loaded = load_model(scratch("partial-classifier")).partial_fit(X[200:], y[200:])
    model.partial_fit(X[200:], y[200:])
    save_model(model, scratch("partial-classifier"), overwrite=True)
    assert_array_equal(
        load_model(scratch("partial-classifier")).feature_coef_, model.feature_coef_
    )
    assert_array_equal(loaded.feature_coef_, model.feature_coef_)
    first = classifier(**GROWING).fit(X[:200], y[:200])
    assert loaded._calibration == first._calibration
    assert loaded._calibration != model._calibration
