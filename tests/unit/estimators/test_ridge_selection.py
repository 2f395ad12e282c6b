"""Choosing alpha and the number of components by k-fold cross-validation, from one
pass.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, KFold

from rff_dist import (
    GroupFolds,
    HashFolds,
    PredefinedFolds,
    RFFRidge,
    load_model,
    save_model,
    write_dataset,
)
from rff_dist.errors import DataError
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refits import held_out_errors
from tests.refusals import refuses

ALPHAS = np.logspace(-4, 2, 7)
# alpha alone is chosen
GIVEN = {"kernel": "gaussian", "length_scale": 1.0, "features": "fourier"}


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, 3))
    y = np.c_[
        np.sin(2 * X[:, 0]) * X[:, 1], 5 * X[:, 2] ** 2
    ] + 0.3 * rng.standard_normal((1500, 2))
    return X, y, rng.uniform(0.2, 2.0, 1500)


def test_ten_groups_make_five_folds_in_memory_and_stored_with_their_held_out_rows(
    problem,
):
    X, y, weight = problem
    seed = 1
    groups = np.random.default_rng(seed).integers(0, 10, 1500).astype(float)
    stored = write_dataset(
        scratch("ten-groups"),
        X,
        y,
        sample_weight=weight,
        groups=groups,
        chunk_rows=97,
        overwrite=True,
    )
    options = {"n_components": 16, "cv": GroupFolds(5, seed), "random_state": 0}
    here = plain_ridge(**options).fit(X, y, sample_weight=weight, groups=groups)
    there = plain_ridge(**options).fit(stored, groups="groups")
    assert_array_equal(here.selection_["cv_errors"], there.selection_["cv_errors"])
    assert here.selection_["cv_errors"].shape[0] == 5
    assert here.model_.card["folds"] == {
        "kind": "GroupFolds",
        "n_folds": 5,
        "seed": seed,
    }
    # each row is scored by models without its group
    assert here.model_.held_out == there.model_.held_out
    assert here.model_.held_out.n_samples == 1500


@pytest.fixture
def copies():
    """Return noise that no one can predict, each row five times: inputs, targets and
    the row's number.
    """
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 3))
    y = rng.standard_normal(60)
    number = np.arange(300) % 60
    return X[number], y[number], number


@pytest.mark.parametrize("cv", [None, 5])
def test_groups_are_held_out_together_unless_other_folds_are_given(copies, cv, recwarn):
    X, y, number = copies
    options = {"n_components": 64, "random_state": 0, **GIVEN}
    honest = RFFRidge(cv=cv, **options).fit(X, y, groups=number)
    assert honest.estimate_["rmse"][0] > 0.9 * y.std()
    assert not [warning for warning in recwarn if "repeat" in str(warning.message)]
    given = RFFRidge(cv=GroupFolds(5), **options).fit(X, y, groups=number)
    assert honest.model_.digest() == given.model_.digest()
    rows = RFFRidge(cv=HashFolds(5), **options).fit(X, y, groups=number)
    assert rows.estimate_["rmse"][0] < 0.5 * y.std()


@pytest.mark.parametrize(("digits", "told"), [(9, True), (0, False)])
def test_rows_that_repeat_others_are_told_unless_targets_have_few_values(
    copies, digits, told, recwarn
):
    X, y, _ = copies
    RFFRidge(**GIVEN, n_components=64, random_state=0).fit(X, y.round(digits))
    assert told == any("240 of 300 rows" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize(("n_heavy", "told"), [(10, True), (100, False)])
def test_weights_by_which_few_rows_count_are_told(problem, n_heavy, told, recwarn):
    X, y, _ = problem
    weights = np.where(np.arange(400) < n_heavy, 1.0, 1e-4)
    RFFRidge(**GIVEN, n_components=64).fit(X[:400], y[:400, 0], sample_weight=weights)
    assert told == any(
        "400 rows count as 10" in str(warning.message) for warning in recwarn
    )


def test_groups_without_weight_fill_no_fold(problem):
    X, y, _ = problem
    groups = np.arange(1500) % 8
    weight = (groups < 4).astype(float)
    fitted = RFFRidge(**GIVEN, n_components=16, cv=GroupFolds(4), random_state=0)
    assert np.isfinite(
        fitted.fit(X, y, sample_weight=weight, groups=groups).selection_["cv_errors"]
    ).all()
    with refuses(DataError, "4 groups"):
        fitted.set_params(cv=GroupFolds(5)).fit(
            X, y, sample_weight=weight, groups=groups
        )


def test_the_fit_is_the_one_at_the_chosen_width_and_alpha(problem):
    X, y, weight = problem
    chosen = plain_ridge(n_components=[16, 64, 128], cv=4).fit(
        X, y, sample_weight=weight
    )
    assert chosen.n_components_ in (16, 64, 128)
    direct = plain_ridge(n_components=chosen.n_components_, alpha=chosen.alpha_)
    direct.fit(X, y, sample_weight=weight)
    assert chosen.feature_map_.digest() == direct.feature_map_.digest()
    assert chosen.statistics_.n_samples == 1500
    assert_allclose(chosen.feature_coef_, direct.feature_coef_, rtol=1e-6, atol=1e-9)
    assert_allclose(chosen.predict(X), direct.predict(X), rtol=1e-8, atol=1e-8)


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize(
    "splitter", [KFold(3, shuffle=True, random_state=0), GroupKFold(3)]
)
def test_scikit_learn_s_splitters_hold_out_the_rows_they_say(problem, splitter):
    X, y, weight = problem
    groups = np.arange(1500) % 31 if isinstance(splitter, GroupKFold) else None
    splits = list(splitter.split(X, y, groups))
    fold_of_row = np.empty(1500, int)
    for i, (_, test) in enumerate(splits):
        fold_of_row[test] = i
    models = [
        plain_ridge(alpha=ALPHAS, cv=cv).fit(X, y, weight, groups)
        for cv in (splitter, splits)
    ]
    Z = models[0].feature_map_.transform(X)
    folds = PredefinedFolds(3).splits
    expected = held_out_errors(Z, y, fold_of_row, folds, ALPHAS, weights=weight)
    for model in models:
        assert_allclose(model.selection_["cv_errors"][:, 0], expected, rtol=1e-8)


# -- intervals
# --------------------------------------------------------------------------------------


def test_a_fold_without_rows_is_named(problem):
    X, y, _ = problem
    ridge = plain_ridge(n_components=16, cv=PredefinedFolds(5))
    with refuses(ValueError, "fold 1 of PredefinedFolds", "no rows"):
        ridge.fit(X, y, groups=np.zeros(1500, int))


@pytest.fixture(scope="module")
def unlike():
    """Two targets of noise 0.01 and 3, and a constant one."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (1000, 2))
    clean = np.c_[
        np.sin(3 * X[:, 0]) * X[:, 1], np.cos(2 * X[:, 1]), np.full(1000, 4.0)
    ]
    return X, clean + rng.standard_normal((1000, 3)) * [0.01, 3.0, 0.0], clean


# one target has hardly any noise
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")
@pytest.mark.parametrize("alpha", ["cv", "cv-1se", "gcv", "evidence", ALPHAS], ids=str)
def test_each_target_has_the_alpha_and_the_deviation_of_a_fit_of_it_alone(
    unlike, alpha
):
    X, y, _ = unlike
    options = {
        "n_components": 64,
        "alpha": alpha,
        "precision": "high",
        "random_state": 0,
    }
    both = plain_ridge(**options, alpha_per_target=True).fit(X, y[:, :2])
    alone = [plain_ridge(**options).fit(X, y[:, target]) for target in range(2)]
    # the bounded search ends within 1e-3 of log alpha of the same minimum
    assert_allclose(both.alpha_, [one.alpha_ for one in alone], rtol=1e-6)
    assert both.alpha_[1] > 3 * both.alpha_[0]
    expected = [one.predict(X, return_std=True) for one in alone]
    for found, column in zip(
        both.predict(X, return_std=True), zip(*expected, strict=True), strict=True
    ):
        assert_allclose(found, np.column_stack(column), rtol=1e-6, atol=1e-8)
    save_model(both, "model")
    loaded = load_model("model")
    assert_array_equal(loaded.alpha_, both.alpha_)
    assert_array_equal(
        loaded.predict(X, return_std=True)[1], both.predict(X, return_std=True)[1]
    )


# one target has hardly any noise
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")
def test_targets_of_unlike_noise_get_their_own_alphas_by_default(unlike):
    X, y, clean = unlike
    fits = {
        kind: (plain_ridge(n_components=128, cv=5, alpha_per_target=kind).fit(X, y))
        for kind in ("auto", True, False)
    }
    errors = {
        kind: np.sqrt(np.mean((fit.predict(X) - clean) ** 2, axis=0))
        for kind, fit in fits.items()
    }
    assert isinstance(fits[False].alpha_, float)
    assert fits["auto"].alpha_.shape == (3,)
    assert errors["auto"][1] < 0.8 * errors[False][1]  # measured: 0.42 for 0.64
    assert errors["auto"][0] < 1.1 * errors[False][0]
    table = fits[True].selection_
    assert_array_equal(
        fits[True].alpha_[:2],
        table["cv_alphas"][table["cv_mean"][0, :, :2].argmin(axis=0)],
    )


# 64 components follow too little
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")
@pytest.mark.parametrize("alpha", ["cv", "gcv"])
def test_targets_that_are_alike_share_one_alpha(unlike, alpha):
    X, _, clean = unlike
    noise = np.random.default_rng(4).standard_normal((1000, 3))
    alike = clean[:, [0, 0, 0]] + 0.3 * noise
    ridge = plain_ridge(n_components=64, alpha=alpha, precision="high")
    assert isinstance(ridge.fit(X, alike).alpha_, float)


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
def test_own_alphas_and_held_out_errors_stay_when_rows_are_added(unlike):
    X, y, _ = unlike
    model = plain_ridge(n_components=64, cv=4, alpha=ALPHAS).fit(X, y)
    Z = model.feature_map_.transform(X)
    before = model.alpha_
    scores = model.model_.held_out
    model.partial_fit(X[:100], y[:100])
    assert_array_equal(model.alpha_, before)
    assert model.model_.held_out == scores
    assert model.model_.card["interval_rows"] == "1,000 of 1,000 rows of the fit"
    twice = np.r_[np.arange(1000), np.arange(100)]
    expected = Ridge(before, solver="cholesky").fit(Z[twice], y[twice])
    assert_allclose(model.predict(X), expected.predict(Z), rtol=1e-8, atol=1e-8)
