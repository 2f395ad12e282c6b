"""The rows that models are compared on, and that no model saw them: predictions against
scikit-learn's.
"""

from dataclasses import replace

import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_wine
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from rff_dist import GroupFolds, HashFolds, SerialEngine, TimeFolds
from rff_dist.classify.fit import LossOptions
from rff_dist.data.columns import MemoryColumn
from rff_dist.data.labelled import GroupedDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.workbench.jobs import judging
from rff_dist.workbench.jobs.comparison import LINEAR, OURS, TREES
from rff_dist.workbench.jobs.fits import Fit, JobData
from rff_dist.workbench.jobs.train import TrainingResult
from rff_dist.workbench.jobs.trees import with_trees
from rff_dist.workbench.jobs.verdict import verdict_of

ENGINE = SerialEngine()
OPTIONS = {
    "kernel": "gaussian",
    "length_scale": 2.0,
    "features": "fourier",
    "n_components": 64,
}


def make_rows(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(n)


def compare(data, test=None, loss=None, **options):
    losses = None if loss is None else LossOptions(loss)
    fit = Fit(RidgeOptions(**OPTIONS, **options), losses)
    fitted = fit.run(data, engine=ENGINE)
    return judging.compare(fit, fitted, data, test, engine=ENGINE), fitted


@pytest.mark.parametrize("folds", [HashFolds(4), TimeFolds(4)], ids=["hash", "time"])
def test_rows_are_predicted_by_fits_without_their_folds(folds):
    X, y = make_rows()
    found, fitted = compare(JobData(ArrayDataset(X, y)), cv=folds, alphas=[0.1, 1.0])
    Z = fitted.model.feature_map.transform(X, dtype=np.float64)
    fold = folds.assign(0, 120, n_samples=120, groups=None)
    expected = np.full(120, np.nan)
    for trained, left in folds.splits:
        some = np.isin(fold, trained)
        expected[fold == left] = (
            Ridge(alpha=fitted.model.alpha)
            .fit(Z[some], y[some])
            .predict(Z[fold == left])
        )
    judged = np.isfinite(expected)  # the first fold of times is only trained on
    assert_allclose(found.ours.values[:, 0], expected[judged], rtol=1e-7)
    assert_array_equal(found.rows.X, X[judged])
    # a model has one R² by cross-validation; errors are averaged in another order
    r2 = found.scores[OURS]["r2"]
    assert_allclose(r2, fitted.model.card["estimate"]["r2"], rtol=1e-6)
    assert (found.rows.origin, found.rows.n_folds) == (
        "cross-validation",
        len(folds.splits),
    )


def test_the_linear_model_is_scikit_learns_on_the_same_rows():
    X, y = make_rows()
    test = make_rows(50, seed=1)
    found, _ = compare(
        JobData(ArrayDataset(X, y)), JobData(ArrayDataset(*test)), alpha=0.1
    )
    scaler = StandardScaler().fit(X)
    candidates = [
        Ridge(alpha=alpha)
        .fit(scaler.transform(X), y)
        .predict(scaler.transform(test[0]))
        for alpha in np.logspace(-6, 4, 200)
    ]
    gaps = [
        np.abs(one - found.predictions[LINEAR].values[:, 0]).max() for one in candidates
    ]
    # one of these penalties is within 6 % of ours
    assert min(gaps) < 0.01
    assert_array_equal(found.rows.X, test[0])
    assert found.rows.n_folds == 0


def test_a_linear_classifier_is_trained_without_each_fold():
    X, labels = load_wine(return_X_y=True)
    data = JobData(
        ArrayDataset(StandardScaler().fit_transform(X)), MemoryColumn(labels)
    )
    found, _ = compare(data, loss="squared", cv=3, alphas=[0.1, 1.0])
    fold = HashFolds(3).assign(0, len(X), n_samples=len(X), groups=None)
    right = 0
    for left in range(3):
        some = fold != left
        model = RidgeClassifier().fit(data.rows.X[some], labels[some])
        right += int((model.predict(data.rows.X[~some]) == labels[~some]).sum())
    ours = round(found.scores[LINEAR]["accuracy"] * len(X))
    assert abs(ours - right) <= 3  # another penalty
    assert_allclose(
        np.exp(found.predictions[LINEAR].log_probabilities).sum(axis=1), 1, rtol=1e-9
    )


@pytest.mark.parametrize(
    "given",
    [{"cv": 3, "alphas": [0.01, 0.1, 1.0]}, {"alpha": 0.1}],
    ids=["cv", "alone"],
)
def test_rows_without_weight_are_not_judged(given):
    X, y = make_rows()
    weights = np.where(np.arange(120) % 4 == 0, 0.0, 1.5)
    found, _ = compare(JobData(ArrayDataset(X, y, weights)), **given)
    assert_array_equal(found.rows.X, X[weights > 0])
    assert found.n_rows == found.rows.n_available == 90
    assert LINEAR in found.differences


def test_rows_of_groups_are_judged_by_groups():
    X, y = make_rows()
    groups = MemoryColumn(np.repeat(np.arange(12), 10))
    data = JobData(GroupedDataset(ArrayDataset(X, y), groups))
    found, _ = compare(data, cv=GroupFolds(4), alphas=[0.1, 1.0])
    assert_array_equal(found.rows.groups, groups.values)


def test_one_sample_of_many_rows_is_judged(monkeypatch):
    monkeypatch.setattr(judging, "MOST_VALUES", 0)
    monkeypatch.setattr(judging, "MOST_ROWS", 1_000)
    X, y = make_rows(4_000)
    data = JobData(ArrayDataset(X, y))
    found, _ = compare(data, cv=3)
    assert (found.n_rows, found.rows.n_available) == (1_000, 4_000)
    assert "On 1,000 of 4,000 rows by cross-validation" in verdict_of(found)


def test_a_model_of_given_alpha_is_judged_by_leaving_out_each_row_and_one_without_sums_not_at_all():
    X, y = make_rows()
    data = JobData(ArrayDataset(X, y))
    found, fitted = compare(data, alpha=0.3)
    assert (found.rows.origin, set(found.differences)) == (
        "leave-one-out",
        {LINEAR, "the mean"},
    )
    trained = replace(fitted.trained, model=fitted.model.without_statistics())
    without = replace(fitted, trained=trained)
    assert (
        judging.compare(
            Fit(options=RidgeOptions(**OPTIONS)), without, data, None, engine=ENGINE
        )
        is None
    )


@pytest.mark.parametrize("origin", ["test", "cross-validation", "leave-one-out"])
@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_the_naive_model_is_a_dummy_of_scikit_learn_trained_on_the_same_rows(
    origin, n_classes
):
    X, y = make_rows()
    new_X, new_y = make_rows(50, seed=1)
    new_y += 1  # another mean
    data = JobData(ArrayDataset(X, y))
    test = JobData(ArrayDataset(new_X, new_y))
    if n_classes:
        ends = [0, 1][: n_classes - 1]
        y = np.digitize(y, ends)
        data = JobData(ArrayDataset(X), MemoryColumn(y))
        test = JobData(ArrayDataset(new_X), MemoryColumn(np.digitize(new_y, ends)))
    how = {"cv": 4, "alphas": [0.1, 1.0]} if "cross" in origin else {"alpha": 0.1}
    if origin != "test":
        test = None
    found, _ = compare(data, test, loss="squared" if n_classes else None, **how)
    naive = found.predictions[found.naive]
    fold = HashFolds(4).assign(0, 120, n_samples=120, groups=None)
    for row in (0, 17, 49):
        rest = np.arange(120) >= 0
        if origin == "leave-one-out":
            rest = np.arange(120) != row
        elif "cross" in origin:
            rest = fold != fold[row]
        if not n_classes:
            expected = DummyRegressor().fit(X[rest], y[rest]).predict(X[:1])
            assert_allclose(naive.values[row], expected, rtol=1e-12)
            continue
        dummy = DummyClassifier(strategy="prior").fit(X[rest], y[rest])
        assert naive.values[row] == dummy.predict(X[:1])[0]
        expected = dummy.predict_log_proba(X[:1])[0]
        assert_allclose(naive.log_probabilities[row], expected, rtol=1e-9)


# -- boosted trees
# ---------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    """Threads of scikit-learn that wait for one another by spinning would take most of
    the time.
    """
    with threadpool_limits(1, user_api="openmp"):
        yield


@pytest.mark.usefixtures("one_thread")
def test_trees_get_all_rows_or_there_is_no_conclusion():
    X, y = make_rows(2_000)
    test = make_rows(300, seed=1)
    data = JobData(ArrayDataset(X, y))
    found, fitted = compare(data, JobData(ArrayDataset(*test)), alpha=0.1)
    training = TrainingResult(data, fitted, {}, {"fit_seconds": 300.0}, {}, None, found)
    whole = with_trees(training, seed=0, most_bytes=10**9).comparison
    trees = whole.predictions[TREES]
    expected = (
        HistGradientBoostingRegressor(early_stopping=False, random_state=0)
        .fit(X, y)
        .predict(test[0])
    )
    assert_allclose(trees.values[:, 0], expected, rtol=1e-9)
    assert trees.handicap is None
    assert "100 trees on 2,000 rows" in trees.about
    assert trees.about.endswith(f", by scikit-learn {sklearn.__version__}")
    assert TREES in whole.differences
    few = with_trees(training, seed=0, most_bytes=1).comparison
    assert (
        few.predictions[TREES].handicap
        == "memory holds 1,000 of the 2,000 rows to train them on"
    )
    assert "No conclusion on untuned boosted trees" in verdict_of(few)
    assert few.differences.keys() == {LINEAR, "the mean"}


@pytest.mark.usefixtures("one_thread")
def test_trees_of_classes_give_each_class_its_own_probability():
    X, labels = load_wine(return_X_y=True)
    rows = np.arange(len(X)) % 5 != 0
    data = JobData(ArrayDataset(X[rows]), MemoryColumn(labels[rows]))
    test = JobData(ArrayDataset(X[~rows]), MemoryColumn(labels[~rows]))
    found, fitted = compare(data, test, loss="squared", alpha=0.1)
    training = TrainingResult(data, fitted, {}, {"fit_seconds": 1.0}, {}, None, found)
    trees = with_trees(training, seed=0, most_bytes=10**9).comparison.predictions[TREES]
    assert_allclose(np.exp(trees.log_probabilities).sum(axis=1), 1, rtol=1e-9)
    assert_array_equal(trees.log_probabilities.argmax(axis=1), trees.values)
    assert found.predictions.keys() >= {OURS, LINEAR}
    assert (trees.values == found.observed).mean() > 0.8
