"""Choosing alpha and the number of components by k-fold cross-validation, from one pass."""

import numpy as np
import pytest
import zarr
from scipy.stats import norm
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, KFold

from rff_dist import SerialEngine, load_model, prediction, save_model, write_dataset
from rff_dist.folds import GroupFolds, HashFolds, PredefinedFolds, TimeFolds
from rff_dist.progress import PassStarted
from tests.plain import plain_ridge

ALPHAS = np.logspace(-4, 2, 7)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 3))
    y = np.c_[np.sin(2 * X[:, 0]) * X[:, 1], 5 * X[:, 2] ** 2] + 0.3 * rng.standard_normal((1500, 2))
    return X, y, rng.uniform(0.2, 2.0, 1500)


def brute_force(model, X, y, weight, fold_of_row, splits, width):
    """Mean squared errors of scikit-learn's Ridge, refitted for each split and alpha on the explicit Z."""
    Z = model.feature_map_.transform(X) * np.sqrt(model.n_components_ / width)
    Z = Z[:, :width]
    errors = np.empty((len(splits), len(ALPHAS), y.shape[1]))
    for i, (training, validation) in enumerate(splits):
        train, test = np.isin(fold_of_row, training), fold_of_row == validation
        for j, alpha in enumerate(ALPHAS):
            ridge = Ridge(alpha, solver="cholesky").fit(Z[train], y[train], sample_weight=weight[train])
            errors[i, j] = np.average((y[test] - ridge.predict(Z[test])) ** 2, axis=0, weights=weight[test])
    return errors


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize("cv", [HashFolds(3, seed=1), TimeFolds(4), GroupFolds(3)])
def test_the_whole_table_is_what_refitting_gives(problem, cv):
    X, y, weight = problem
    groups = np.arange(1500) % 31
    model = plain_ridge(n_components=[64, 90], alpha=ALPHAS, cv=cv, random_state=0)
    model.fit(X, y, sample_weight=weight, groups=groups)
    wide = plain_ridge(n_components=90, alpha=1.0, random_state=0).fit(X, y, sample_weight=weight)
    fold_of_row = cv.assign(0, 1500, n_samples=1500, groups=groups)
    table = model.selection_
    assert table["cv_n_components"].tolist() == [64, 90]
    for place, width in enumerate([64, 90]):
        expected = brute_force(wide, X, y, weight, fold_of_row, cv.splits, width)
        np.testing.assert_allclose(table["cv_errors"][:, place], expected, rtol=1e-8)


def test_the_fit_is_the_one_at_the_chosen_width_and_alpha(problem):
    X, y, weight = problem
    chosen = plain_ridge(n_components=[16, 64, 128], cv=4, random_state=0).fit(X, y, sample_weight=weight)
    assert chosen.n_components_ in (16, 64, 128)
    direct = plain_ridge(n_components=chosen.n_components_, alpha=chosen.alpha_, random_state=0)
    direct.fit(X, y, sample_weight=weight)
    assert chosen.feature_map_.digest() == direct.feature_map_.digest()
    assert chosen.statistics_.n_samples == 1500
    np.testing.assert_allclose(chosen.coef_, direct.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(chosen.predict(X), direct.predict(X), rtol=1e-8, atol=1e-8)


def test_of_several_the_smallest_width_within_a_standard_error_is_taken(problem):
    X = problem[0][:400]
    y = np.sin(X[:, 0]) + 0.5 * np.random.default_rng(1).standard_normal(len(X))
    widths = [32, 64, 128, 256, 512, 1024, 2048]
    model = plain_ridge(n_components=widths, random_state=0).fit(X, y)
    table = model.selection_
    assert table["cv_n_components"].tolist() == widths
    best = table["cv_mean"][..., 0].min(axis=1)
    width, alpha = np.unravel_index(table["cv_mean"][..., 0].argmin(), table["cv_mean"].shape[:2])
    limit = best.min() + table["cv_standard_error"][width, alpha, 0]
    assert model.n_components_ == table["cv_n_components"][np.argmax(best <= limit)] < 2048


def test_one_standard_error_takes_a_larger_alpha(problem):
    X, y, _ = problem
    least = plain_ridge(n_components=64, alpha="cv", random_state=0).fit(X, y)
    careful = plain_ridge(n_components=64, alpha="cv-1se", random_state=0).fit(X, y)
    np.testing.assert_array_equal(least.selection_["cv_errors"], careful.selection_["cv_errors"])
    assert careful.alpha_ > least.alpha_
    assert plain_ridge(n_components=64, cv=5, random_state=0).fit(X, y).alpha_ == least.alpha_


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize("splitter", [KFold(3, shuffle=True, random_state=0), GroupKFold(3)])
def test_scikit_learn_s_splitters_hold_out_the_rows_they_say(problem, splitter):
    X, y, weight = problem
    groups = np.arange(1500) % 31 if isinstance(splitter, GroupKFold) else None
    splits = list(splitter.split(X, y, groups))
    fold_of_row = np.empty(1500, int)
    for i, (_, test) in enumerate(splits):
        fold_of_row[test] = i
    models = [
        plain_ridge(n_components=32, alpha=ALPHAS, cv=cv, random_state=0).fit(X, y, weight, groups)
        for cv in (splitter, splits)
    ]
    expected = brute_force(models[0], X, y, weight, fold_of_row, PredefinedFolds(3).splits, 32)
    for model in models:
        np.testing.assert_allclose(model.selection_["cv_errors"][:, 0], expected, rtol=1e-8)


def test_a_table_takes_one_reading_of_the_data_after_the_moments(problem):
    X, y, _ = problem
    passes = []
    engine = SerialEngine(
        1, observers=[lambda event: isinstance(event, PassStarted) and passes.append(event)]
    )
    plain_ridge(n_components=[16, 32, 64], cv=5, engine=engine, random_state=0).fit(X, y)
    assert [event.label for event in passes] == ["inspect", "accumulate"]


def test_groups_are_found_by_name_in_a_stored_dataset(problem, tmp_path):
    X, y, _ = problem
    groups = np.arange(1500) % 31
    write_dataset(tmp_path / "data.zarr", X, y, groups=groups)
    parameters = {"n_components": 32, "cv": GroupFolds(3), "random_state": 0}
    stored = plain_ridge(**parameters).fit(str(tmp_path / "data.zarr"), groups="groups")
    here = plain_ridge(**parameters).fit(X, y, groups=groups)
    np.testing.assert_allclose(stored.selection_["cv_errors"], here.selection_["cv_errors"], rtol=1e-6)


def test_a_stored_model_keeps_the_table_and_its_folds(problem, tmp_path):
    X, y, _ = problem
    model = plain_ridge(n_components=[16, 32], cv=HashFolds(3, seed=2), random_state=0).fit(X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.selection_.keys() == model.selection_.keys()
    for name, values in model.selection_.items():
        np.testing.assert_array_equal(loaded.selection_[name], values)
    assert loaded.model_.card["folds"] == {"kind": "HashFolds", "n_folds": 3, "seed": 2}
    assert loaded.cv == HashFolds(3, seed=2)
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


def test_rows_added_later_keep_what_was_chosen(problem, tmp_path):
    X, y, _ = problem
    model = plain_ridge(n_components=[16, 32], cv=3, random_state=0).fit(X[:1000], y[:1000])
    alpha, width = model.alpha_, model.n_components_
    save_model(model, tmp_path / "model")
    for one in (model, load_model(tmp_path / "model")):
        one.partial_fit(X[1000:], y[1000:])
        assert (one.alpha_, one.n_components_) == (alpha, width)
        assert one.statistics_.n_samples == 1500


# -- intervals -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def skewed():
    """Rows whose noise is far from normal: exponential, less its mean, times three."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-2, 2, (6000, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 3 * (rng.exponential(size=6000) ** 2 - 2.0)


def test_conformal_intervals_cover_what_normal_ones_do_not(skewed, tmp_path):
    X, y = skewed
    parameters = {"n_components": 64, "random_state": 0}
    conformal = plain_ridge(conformal=True, **parameters).fit(X[:3000], y[:3000])
    normal = plain_ridge(**parameters).fit(X[:3000], y[:3000])

    def coverage(model, asked):
        lower, upper = model.predict_interval(X[3000:], coverage=asked)
        return np.mean((lower <= y[3000:]) & (y[3000:] <= upper))

    for asked in (0.5, 0.8, 0.9, 0.99):
        # binomial errors of 3,000 calibrating and 3,000 tested rows; quantiles are up to 1.1 % too large
        assert coverage(conformal, asked) == pytest.approx(
            asked, abs=4 * np.sqrt(2 * asked * (1 - asked) / 3000)
        )
    assert coverage(normal, 0.5) > 0.8
    save_model(conformal, tmp_path / "model")
    for ends, again in zip(
        conformal.predict_interval(X[:9]), load_model(tmp_path / "model").predict_interval(X[:9]), strict=True
    ):
        np.testing.assert_array_equal(ends, again)
    width = np.subtract(*conformal.predict_interval(X[:9])[::-1])
    np.testing.assert_allclose(width, width[0])
    conformal.partial_fit(X[3000:], y[3000:])
    np.testing.assert_allclose(np.subtract(*conformal.predict_interval(X[:9])[::-1]), width)


def test_intervals_without_scores_are_those_of_the_normal_law(problem):
    X, y, _ = problem
    model = plain_ridge(n_components=32, random_state=0).fit(X, y)
    mean, std = model.predict(X[:20], return_std=True)
    lower, upper = model.predict_interval(X[:20], coverage=0.9)
    np.testing.assert_allclose(lower, norm.ppf(0.05, mean, std), rtol=1e-12)
    np.testing.assert_allclose(upper, norm.ppf(0.95, mean, std), rtol=1e-12)
    for coverage in (0.0, 1.0, -1, np.nan):
        with pytest.raises(ValueError, match=r"`coverage` is .*expected a number in"):
            model.predict_interval(X[:20], coverage=coverage)


@pytest.mark.parametrize("conformal", [False, True])
def test_intervals_are_written_beside_predictions(problem, tmp_path, conformal):
    X, y, _ = problem
    model = plain_ridge(n_components=32, conformal=conformal, random_state=0).fit(X, y)
    dataset = write_dataset(tmp_path / "data.zarr", X)
    engine = SerialEngine(1)
    prediction.predict(dataset, model.model_, tmp_path / "out", engine=engine, std=True, coverage=0.8)
    written = zarr.open_group(tmp_path / "out", mode="r")
    mean, std = model.predict(X, return_std=True)
    lower, upper = model.predict_interval(X, coverage=0.8)
    for name, expected in {
        "predictions": mean,
        "standard_deviations": std,
        "lower": lower,
        "upper": upper,
    }.items():
        np.testing.assert_allclose(written[name][:], expected, rtol=1e-12)
    prediction.predict(dataset, model.model_, tmp_path / "ends", engine=engine, coverage=0.8)
    assert sorted(zarr.open_group(tmp_path / "ends", mode="r").array_keys()) == [
        "lower",
        "predictions",
        "upper",
    ]


def test_a_fold_without_rows_is_named(problem):
    X, y, _ = problem
    with pytest.raises(ValueError, match=r"fold \d of GroupFolds.* has no rows"):
        plain_ridge(n_components=16, cv=GroupFolds(5), random_state=0).fit(X, y, groups=np.zeros(1500, int))
