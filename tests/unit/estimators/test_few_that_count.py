"""Few groups and few rows with weight: defaults take what there is, or say how much is
too little.
"""

import numpy as np
import pytest

from rff_dist import RFFPCA, GroupFolds, RFFClassifier, RFFKMeans, RFFRidge
from rff_dist.errors import DataError, StatisticsError
from tests.plain import plain_classifier, plain_ridge
from tests.refusals import refuses

N_SAMPLES = 130  # of few rows the default is ten folds


def grouped(n_groups):
    rng = np.random.default_rng(0)
    groups = np.arange(N_SAMPLES) % n_groups
    X = rng.normal(size=(N_SAMPLES, 2))
    return X, X[:, 0] + 0.2 * rng.normal(size=N_SAMPLES), groups


@pytest.mark.parametrize("n_groups", [2, 4, 9])
@pytest.mark.parametrize(
    "model",
    [
        # tunes length scales on rows that are held in
        RFFRidge(effort=2, random_state=0),
        plain_ridge(alpha="auto", n_components=16),
        plain_ridge(alpha="cv-1se", n_components=16),
        RFFClassifier(effort=1, random_state=0),
    ],
    ids=["default", "plain", "one standard error", "classifier"],
)
def test_as_many_folds_as_groups_unless_a_number_was_given(model, n_groups):
    X, y, groups = grouped(n_groups)
    y = y > 0 if isinstance(model, RFFClassifier) else y
    folds = model.fit(X, y, groups=groups).model_.card["folds"]
    folds = folds.get("base", folds)
    assert (folds["kind"], folds["n_folds"]) == ("GroupFolds", n_groups)


@pytest.mark.parametrize("cv", [5, GroupFolds(5)], ids=["number", "folds"])
def test_more_folds_than_groups_are_refused_if_they_were_asked_for(cv):
    X, y, groups = grouped(3)
    with refuses(DataError, 3, 5):
        plain_ridge(alpha="auto", n_components=16, cv=cv).fit(X, y, groups=groups)
    with refuses(DataError, "one group"):
        plain_ridge(alpha="auto", n_components=16).fit(X, y, groups=np.zeros(N_SAMPLES))


@pytest.mark.parametrize("n_with_weight", [40, 4])
@pytest.mark.parametrize(
    "model",
    [
        RFFKMeans(3, n_components=16, length_scale=1.0, random_state=0),
        RFFPCA(2, n_random_features=16, length_scale=1.0, random_state=0),
        plain_ridge(n_components=16, alpha=0.1),
        plain_classifier(n_components=16, alpha=0.1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_rows_with_weight_are_found_however_few_of_all_rows_they_are(
    model, n_with_weight
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 2))
    weights = np.zeros(len(X))
    weights[rng.choice(len(X), n_with_weight, replace=False)] = 1.0
    counted = weights > 0
    y = X[:, 0] > np.median(X[counted, 0])
    model.fit(X, y, sample_weight=weights)
    ask = model.predict if hasattr(model, "predict") else model.transform
    assert np.isfinite(ask(X[counted])).all()


def test_too_few_rows_with_weight_to_choose_by_are_counted_in_the_message():
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    weights = np.zeros(len(X))
    weights[:2] = 1.0
    with refuses(DataError, "weight", "folds"):
        RFFRidge("gaussian", alpha=0.1, n_components=16).fit(
            X, X[:, 0], sample_weight=weights
        )


def test_more_folds_than_rows_are_refused_in_a_message_that_does_not_grow_with_them():
    X = np.random.default_rng(0).normal(size=(50, 2))
    with refuses(StatisticsError, 1000) as caught:
        RFFRidge(cv=1000, effort=1, random_state=0).fit(X, X[:, 0])
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("offset", [1e9, 1e12])
def test_rows_far_from_zero_are_not_taken_for_copies(offset, recwarn):
    X = np.random.default_rng(0).normal(size=(120, 2))
    plain_classifier(alpha="cv", cv=5).fit(X + offset, X[:, 0] > 0)
    assert not recwarn.list
