"""The choice of kernel, length scales and features by the folds: honest, and right
where it is obvious.
"""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.linear_model import Ridge, RidgeCV

from rff_dist import (
    Additive,
    Gaussian,
    HashFolds,
    Linear,
    RFFRidge,
    SerialEngine,
    TimeFolds,
)
from rff_dist.data import samples
from rff_dist.data.folding import GroupFolds, TuningFolds, with_tuning_rows
from rff_dist.data.labelled import GroupedDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, PlanError
from rff_dist.features import for_dataset
from rff_dist.features.kinds import kernel_of
from rff_dist.features.length_scales import EvidenceSearch
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.plan import plan_on_engine
from rff_dist.fitting.sizes import SumOptions
from rff_dist.ridge import first_round
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.budget import EFFORTS, EffortLevel
from rff_dist.ridge.choices import automatic_components
from rff_dist.ridge.describe import choice_words, chosen_candidate
from rff_dist.ridge.fit import fit
from rff_dist.ridge.fold_choices import default_folds
from rff_dist.storage.columns import as_column
from tests.plain import plain_ridge
from tests.refusals import refuses

ENGINE = SerialEngine(1)


def additive(n_samples=500, n_features=8, *, noise=0.1, seed=0):
    """Draw rows of which only one column matters, by a function that is far from
    linear.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    return X, np.sin(3 * X[:, 0]) + noise * rng.standard_normal(n_samples)


whole_tune = for_dataset.tune
whole_tune_maps = for_dataset.tune_maps
tuned_with = []
EFFORT = {"n_starts": 1, "n_components": 64}


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Tune length scales from one start in few features, which takes a tenth of the
    time.
    """

    def tune(inputs, kernel, search=EvidenceSearch(), *, folds, **rest):
        tuned_with.append((search, folds))
        return whole_tune(
            inputs, kernel, replace(search, **EFFORT), folds=folds, **rest
        )

    def tune_maps(inputs, kernel, search, **rest):
        return whole_tune_maps(inputs, kernel, replace(search, **EFFORT), **rest)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(for_dataset, "tune", tune)
        patched.setattr(for_dataset, "tune_maps", tune_maps)
        yield


@pytest.fixture(scope="module")
def found():
    """What the defaults find, with few components, where one column of eight
    matters.
    """
    return fit(
        ArrayDataset(*additive()), RidgeOptions(n_components=128), engine=ENGINE
    ).model


# -- rows that tune are not validated on
# ---------------------------------------------------------------


@settings(max_examples=20)
@given(
    n_samples=st.integers(4, 400),
    n_rows=st.integers(2, 500),
    n_held_in=st.integers(1, 300),
)
def test_rows_are_sampled_with_their_own_folds(n_samples, n_rows, n_held_in):
    X = np.arange(n_samples, dtype=float)[:, np.newaxis]
    dataset = ArrayDataset(X, X)
    folds = with_tuning_rows(HashFolds(3), n_samples, n_held_in)
    sample = samples.sample_folds(dataset, folds, n_rows=n_rows)
    rows = sample.X[:, 0].astype(int)
    whole = folds.assign(0, n_samples, n_samples=n_samples, groups=None)
    assert_array_equal(sample.fold_of_row, whole[rows])
    assert len(set(rows)) == len(rows)
    held_in = set(sample.tuning_rows(n_rows)[0][:, 0].astype(int))
    assert held_in <= set(np.flatnonzero(folds.is_tuning(whole)))


@pytest.mark.parametrize("cv", [None, HashFolds(3), TimeFolds(4)])
def test_targets_of_rows_that_are_validated_on_do_not_tune_length_scales(cv):
    X, y = additive(300, 3)
    options = RidgeOptions(
        kernel="gaussian",
        length_scale="evidence",
        features="fourier",
        n_components=16,
        cv=cv,
    )
    trained = fit(ArrayDataset(X, y), options, engine=ENGINE)
    folds = trained.parts.folds
    assert isinstance(folds, TuningFolds)
    held_in = folds.is_tuning(folds.assign(0, 300, n_samples=300, groups=None))
    assert 50 < held_in.sum() <= 150
    others = np.where(held_in, y, np.random.default_rng(1).permutation(y))
    again = fit(ArrayDataset(X, others), options, engine=ENGINE)
    assert again.model.feature_map.digest() == trained.model.feature_map.digest()
    moved = np.where(held_in, np.random.default_rng(1).permutation(y), y)
    moved = fit(ArrayDataset(X, moved), options, engine=ENGINE)
    assert moved.model.feature_map.digest() != trained.model.feature_map.digest()


@pytest.mark.filterwarnings(
    # sometimes the noise is fitted
    "ignore:.*(as many degrees of freedom as rows|do not distinguish it from)"
)
def test_errors_and_intervals_are_honest_where_there_is_nothing_to_learn():
    """Length scales tuned on rows that are validated on too promised an R² 0.35 too
    high for 60 rows.
    """
    n_samples = 300
    n_seeds = 4
    excess = []
    covered = []
    options = {
        "kernel": "gaussian",
        "length_scale": "evidence",
        "features": "fourier",
        "n_components": 256,
    }
    for seed in range(n_seeds):
        drawn = np.random.default_rng(seed).standard_normal((2300, 21))
        rows, new = (
            ArrayDataset(one[:, :20], one[:, 20])
            for one in np.split(drawn, [n_samples])
        )
        fitted = RidgeOptions(**options, seed=seed)
        model = fit(rows, fitted, engine=ENGINE).model
        r2 = prediction.evaluate(new, model, engine=ENGINE).r2[0]
        excess.append(model.card["estimate"]["r2"][0] - r2)
        ends = prediction.predict_in_memory(new, model, coverage=0.9, engine=ENGINE)
        covered.append(np.mean((ends["lower"] <= new.y) & (new.y <= ends["upper"])))
    validated = n_samples - n_samples // 2
    # a standard error of R² on so few rows is √(2 / validated / n_seeds), 0.06
    assert np.mean(excess) < 0.1
    # three standard errors of quantiles of so many residuals, averaged over seeds
    error = np.sqrt(0.9 * 0.1 / (validated * n_seeds))
    assert np.mean(covered) == pytest.approx(0.9, abs=3 * error + 0.01)


# -- what is chosen
# ------------------------------------------------------------------------------------


def test_one_column_alone_has_the_weight_where_one_column_matters(found):
    weights = kernel_of(found.feature_map).column_weights(8)
    assert weights.argmax() == 0
    assert weights[0] > 0.99
    rows = found.card["candidates"]
    single = [row["score"] for row in rows if isinstance(row["length_scale"], float)]
    assert min(row["score"] for row in rows) < 0.5 * min(single)


def test_the_card_tells_of_every_candidate(found):
    rows = json.loads(json.dumps(found.card["candidates"]))
    tried = [row for row in rows if row["round"] == "first"]
    named = {
        (row["kernel"], row["features"], str(row["length_scale"])) for row in tried
    }
    assert len(named) == len(tried)
    # two kernels with both kinds of features; the median, and a linear one
    assert len(tried) == 2 * 2 + 1 + 1
    assert sum(row["features"] == "nystrom" for row in tried) == 2
    assert {"matern:nu=1.5", "linear"} <= {row["kernel"] for row in tried}
    for row in tried:
        assert {
            "kernel",
            "length_scale",
            "features",
            "n_components",
            "alpha",
            "score",
            "n_samples",
        } <= set(row)
        assert 0 < row["score"] < 1.5
        assert row["standard_error"] > 0
    assert found.card["estimate"]["by"] == "cv"
    assert 0.8 < found.card["estimate"]["r2"][0] < 1


@pytest.mark.parametrize(("n_samples", "n_multiples"), [(39, 4), (200, 1)])
@pytest.mark.filterwarnings("ignore:.*(do not distinguish it from|was chosen by)")
def test_multiples_of_the_median_are_tried_if_rows_are_too_few_to_tune(
    n_samples, n_multiples
):
    X, y = additive(n_samples, 6)
    rows = RFFRidge("gaussian", random_state=0).fit(X, y).model_.card["candidates"]
    scales = {
        row["length_scale"] for row in rows if isinstance(row["length_scale"], float)
    }
    assert len(scales) == n_multiples


def several_columns(n_samples, seed=0, noise=0.1):
    """Draw rows whose targets are a sum of functions of one column each."""
    X = np.random.default_rng(seed).uniform(-2, 2, (n_samples, 5))
    y = (
        np.sin(2 * X[:, 0])
        + np.cos(3 * X[:, 1])
        + X[:, 2] ** 2
        + np.abs(X[:, 3])
        + np.tanh(3 * X[:, 4])
    )
    return X, y + noise * np.random.default_rng(seed + 1).standard_normal(n_samples)


@pytest.fixture(scope="module")
def sums_of_columns():
    return fit(
        ArrayDataset(*several_columns(400, noise=0.2)), RidgeOptions(), engine=ENGINE
    )


def test_sums_of_functions_of_columns_are_fitted_by_additive_kernels(sums_of_columns):
    model = sums_of_columns.model
    assert isinstance(kernel_of(model.feature_map), Additive)
    rows = [row for row in model.card["candidates"] if row["round"] == "first"]
    dense = min(
        row["score"] for row in rows if not row["kernel"].startswith("additive")
    )
    assert model.card["candidates"][0]["score"] < 0.7 * dense


@pytest.mark.parametrize(
    ("function", "most", "expected"), [("smooth", 512, 256), ("rough", 512, 512)]
)
def test_components_double_while_that_gains_much_up_to_the_most(
    function, most, expected, monkeypatch
):
    monkeypatch.setitem(EFFORTS, 2, EffortLevel(256, most))
    rng = np.random.default_rng(3)
    X = rng.uniform(-2, 2, (2600, 2))
    waves = {"smooth": X[:, 0], "rough": np.sin(9 * X[:, 0]) * np.sin(9 * X[:, 1])}
    y = waves[function] + 0.05 * rng.standard_normal(2600)
    length_scale = {"smooth": 2.0, "rough": 0.2}[function]
    options = RidgeOptions(
        kernel="gaussian", length_scale=length_scale, features="nystrom"
    )
    trained = fit(ArrayDataset(X, y), options, engine=ENGINE)
    assert trained.model.feature_map.n_components == expected
    given = replace(options, n_components=expected)
    at_once = fit(ArrayDataset(X, y), given, engine=ENGINE)
    assert_array_equal(trained.model.coefficients, at_once.model.coefficients)


def test_few_rows_are_compared_as_they_are_trained(sums_of_columns):
    trained = sums_of_columns
    (final,) = (row for row in trained.rows if row["round"] == "final")
    first = [row for row in trained.rows if row["round"] == "first"]
    assert final["n_components"] == 400
    # up to 2,048 rows all features are the kernel itself
    curved = [row for row in first if row["kernel"] != "linear"]
    assert {row["features"] for row in curved} == {"nystrom"}
    assert {row["n_components"] for row in curved} == {400}
    assert chosen_candidate(trained.model.card["candidates"]) == trained.best
    assert trained.best["score"] == trained.solved.cross_validation.best.score
    # alpha is not the folds' best
    assert trained.best["r2"] < 1 - trained.best["score"]
    assert [trained.best["r2"]] == pytest.approx(trained.model.card["estimate"]["r2"])


def test_many_rows_are_compared_on_a_sample_and_one_candidate_is_fitted_to_all(
    monkeypatch,
):
    monkeypatch.setattr(first_round, "ROUND_ROWS", 2500)
    monkeypatch.setitem(EFFORTS, 2, EffortLevel(512))
    X, y = several_columns(2600, noise=0.3)
    options = RidgeOptions(kernel=Gaussian(), length_scale=1.0)
    trained = fit(ArrayDataset(X, y), options, engine=ENGINE)
    first = [row for row in trained.rows if row["round"] == "first"]
    assert {row["features"] for row in first} == {"fourier", "nystrom"}
    assert max(row["n_samples"] for row in first) <= 2500
    assert {row["n_components"] for row in first} == {256}
    (final,) = (row for row in trained.rows if row["round"] == "final")
    assert (final["n_samples"], final["n_components"]) == (2600, 512)
    assert final["features"] == min(first, key=lambda row: row["score"])["features"]
    assert trained.n_readings == 1


def test_a_simpler_choice_is_not_called_the_best():
    features = {"length_scale": None, "features": "fourier", "mapped": False}
    linear = {"kernel": "linear", "score": 0.602, "r2_standard_error": 0.016}
    matern = {"kernel": "matern:nu=1.5", "score": 0.575, "r2_standard_error": 0.033}
    common = {**features, "n_components": 64, "round": "first"}
    for one in (linear, matern):
        one["r2"] = 1 - one["score"]
    simplest = choice_words([{**common, **linear}, {**common, **matern}])
    best = choice_words([{**common, **matern}, {**common, **linear}])
    assert simplest.startswith("linear")
    assert "the simplest within one standard error" in simplest
    assert "R² 0.425 ± 0.033" in simplest
    assert best.startswith("the best of 2 candidates: matern")


def test_a_linear_problem_is_fitted_as_well_as_by_a_linear_model():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 5))
    new = rng.standard_normal((2000, 5))
    slopes = np.array([3.0, -2.0, 0.0, 0.0, 1.0])
    y = X @ slopes + rng.standard_normal(200)
    options = RidgeOptions(features="fourier", n_components=64)
    model = fit(ArrayDataset(X, y), options, engine=ENGINE).model
    linear = RidgeCV(np.logspace(-3, 3, 13)).fit(X, y)
    errors = [
        np.mean((found - new @ slopes) ** 2)
        for found in (
            prediction.predict_in_memory(ArrayDataset(new), model, engine=ENGINE)[
                "predictions"
            ],
            linear.predict(new),
        )
    ]
    # 5 slopes on 200 rows with noise 1 err by about 6 / 200; a few more degrees of
    # freedom are tolerated
    assert errors[0] < errors[1] + 6 / 200


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"kernel": "matern:nu=2.5"}, lambda row: row["kernel"] == "matern:nu=2.5"),
        (
            {"features": "nystrom"},
            lambda row: row["features"] == "nystrom" or row["kernel"] == "linear",
        ),
        ({"length_scale": 1.5}, lambda row: row["length_scale"] in (1.5, None)),
    ],
)
@pytest.mark.filterwarnings("ignore:.*(do not distinguish it from|was chosen by)")
def test_what_is_given_is_kept_in_every_candidate(given, kept):
    dataset = ArrayDataset(*additive(100, 3))  # too few rows to tune length scales by
    model = fit(dataset, RidgeOptions(n_components=32, **given), engine=ENGINE).model
    rows = model.card["candidates"]
    assert len(rows) > 1
    assert all(kept(row) for row in rows)


def test_a_given_linear_kernel_has_its_exact_features_and_nothing_to_choose():
    dataset = ArrayDataset(*additive(60, 600))
    model = fit(
        dataset, RidgeOptions(kernel=Linear(), n_components=700), engine=ENGINE
    ).model
    assert "candidates" not in model.card
    assert model.feature_map.n_components == 600


@pytest.mark.parametrize("n_samples", [2, 3, 13, 199, 200])
# of 2 or 3 rows
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by press, but")
def test_few_rows_take_other_folds_and_no_fold_is_empty(n_samples):
    folds = default_folds(n_samples)
    fold_of_row = folds.assign(0, n_samples, n_samples=n_samples, groups=None)
    assert (
        len(set(fold_of_row))
        == folds.n_folds
        == (5 if n_samples == 200 else min(n_samples, 10))
    )
    model = plain_ridge(n_components=8, alpha="auto")
    model.fit(*additive(n_samples, 2, noise=1.0))
    assert model.model_.card["folds"]["n_folds"] == folds.n_folds


def test_what_one_row_leaves_to_be_chosen_is_refused():
    for options in ({"n_components": [8, 16]}, {"n_components": 8, "alpha": "auto"}):
        with refuses(DataError, "n_samples=1"):
            plain_ridge(**options).fit([[1.0]], [1.0])
    with refuses(DataError, "n_samples=1"):
        RFFRidge().fit([[1.0]], [1.0])


# 16 components fit little: two splits differ by more than half
@pytest.mark.filterwarnings("ignore:alpha=")
def test_one_split_is_enough_to_choose_by():
    X, y = additive(250, 2)
    dataset = GroupedDataset(
        ArrayDataset(X, y), as_column(np.arange(250) % 7, name="groups")
    )
    options = RidgeOptions(n_components=16, features="fourier", cv=GroupFolds(2))
    rows = fit(dataset, options, engine=ENGINE).model.card["candidates"]
    assert len(rows) > 3
    assert json.dumps(rows)


# -- memory
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "n_folds", "alpha", "said"),
    [(6, 5, "cv", ""), (2, 2, "cv", "taking 2"), (1, None, "gcv", "generalised")],
)
def test_where_memory_does_not_hold_five_folds_fewer_are_taken(
    limit, n_folds, alpha, said, monkeypatch, caplog
):
    dataset = ArrayDataset(*additive(600, 3))
    size = {n: plan_for(dataset, n) for n in (1, 2, 3, 5)}
    fits = max(
        (one for n, one in size.items() if n <= limit), key=lambda one: one.peak_bytes
    )
    monkeypatch.setattr(
        "rff_dist.numerics.machine.available_memory", lambda: fits.peak_bytes
    )
    with caplog.at_level(logging.WARNING, "rff_dist"):
        model = fit(dataset, RidgeOptions(**FIXED), engine=ENGINE).model
    assert (model.card["folds"]["n_folds"] if n_folds else None) == n_folds
    assert model.card["chosen_by"] == alpha
    assert (model.card["estimate"] is None) == (alpha == "gcv")
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
    # what was asked for by name is kept, or refused
    if limit < 5:
        with pytest.raises(PlanError):
            fit(dataset, RidgeOptions(**FIXED, cv=5), engine=ENGINE)


FIXED = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "n_components": 512,
}


def plan_for(dataset, n_folds):
    return plan_on_engine(dataset, 512, SumOptions(n_folds=n_folds), engine=ENGINE)


@pytest.mark.parametrize(
    ("n_samples", "expected"),
    [(1, 256), (256, 256), (257, 512), (1025, 2048), (10**9, 2048)],
)
def test_components_are_as_many_as_rows_up_to_2048(n_samples, expected):
    assert automatic_components(n_samples, lambda wanted: None) == expected


def test_components_are_halved_where_memory_does_not_do_but_not_below_256():
    def fits(limit):
        def check(wanted):
            if wanted > limit:
                raise PlanError("too much")

        return check

    assert automatic_components(5000, fits(600)) == 512
    with pytest.raises(PlanError):
        automatic_components(5000, fits(100))


# -- alpha of few rows
# ---------------------------------------------------------------------------------


def left_out_one_by_one(Z, y, alphas):
    """Return the squared errors of each row by scikit-learn's refits without it, all
    alphas at a time.
    """
    squares = np.empty((len(alphas), len(y)))
    for i in range(len(y)):
        others = np.arange(len(y)) != i
        copies = np.repeat(y[others, np.newaxis], len(alphas), axis=1)
        fitted = Ridge(alpha=alphas, solver="svd").fit(Z[others], copies)
        squares[:, i] = (y[i] - fitted.predict(Z[i : i + 1])[0]) ** 2
    return squares


@pytest.mark.filterwarnings("ignore:.*do not distinguish it from")
def test_few_rows_take_the_largest_alpha_within_a_standard_error_when_each_is_left_out():
    X, y = additive(80, 2, noise=0.5)
    options = {
        "kernel": "gaussian",
        "length_scale": 1.0,
        "features": "fourier",
        "n_components": 32,
    }
    model = RFFRidge(**options, random_state=0).fit(X, y).model_
    tried = model.selection["cv_alphas"]
    some = tried[tried > 1e-4]
    squares = left_out_one_by_one(model.feature_map.transform(X), y, some)
    above = squares - squares[squares.mean(axis=1).argmin()]
    good = above.mean(axis=1) <= above.std(axis=1) / np.sqrt(len(y))
    assert model.card["chosen_by"] == "press"
    assert (
        some[squares.mean(axis=1).argmin()]
        < model.alpha
        == some[good].max()
        < tried[-1]
    )
    assert model.card["estimate"]["by"] == "cv"  # of rows that tuned nothing
    place = np.flatnonzero(tried == model.alpha)[0]
    assert model.card["estimate"]["rmse"][0] == pytest.approx(
        np.sqrt(model.selection["cv_mean"][0, place, 0])
    )


def test_few_rows_choose_no_alpha_below_what_their_sums_resolve():
    X, y = additive(100, 2, noise=0.0)
    with pytest.warns(UserWarning, match="if y has no noise"):
        model = (
            RFFRidge(kernel="gaussian", features="nystrom", random_state=0)
            .fit(X, y)
            .model_
        )
    floor = model.statistics.normal_equations().gram_error
    assert floor > 0.0
    assert floor <= model.selection["cv_alphas"][0] <= model.alpha


@pytest.mark.parametrize(
    ("n_samples", "options"),
    [
        (501, {"alpha": "auto"}),
        (80, {"alpha": "auto", "cv": 5}),
        (80, {"alpha": "cv"}),
        (80, {"alpha": [0.01, 0.1, 1.0, 10.0, 100.0]}),
    ],
)
def test_more_rows_and_folds_that_are_asked_for_leave_alpha_to_the_folds(
    n_samples, options
):
    X, y = additive(n_samples, 2, noise=0.5)
    model = plain_ridge(**options).fit(X, y).model_
    mean = model.selection["cv_mean"][0, :, 0]
    assert model.card["chosen_by"] == "cv"
    assert model.alpha == model.selection["cv_alphas"][mean.argmin()]


# -- warnings
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ["gcv", "cv"])
def test_interpolated_rows_are_warned_of(alpha):
    # nothing says no to following each row: there is no noise, there are far more
    # components than rows, and functions that are as rough as the kernel's say little
    # between the rows
    X = np.random.default_rng(0).uniform(-1, 1, (40, 1))
    with pytest.warns(UserWarning, match="degrees of freedom as rows"):
        plain_ridge("matern:nu=0.5", n_components=512, alpha=alpha).fit(
            X, np.sin(8 * X[:, 0])
        )


def test_coefficients_that_cancel_at_the_rows_are_warned_of_since_predictions_beyond_them_are_wild():
    X, y = additive(300, 2, noise=0.5)
    with pytest.warns(UserWarning, match="cancel one another"):
        model = plain_ridge(n_components=64, alpha=[1e-10, 1e-9], precision="high").fit(
            X, y
        )
    assert np.abs(model.predict(3.0 * X)).max() > 100.0 * np.abs(y).max()


@pytest.mark.parametrize(
    ("n_samples", "value", "alpha", "said"),
    [
        (
            200,
            0.0,
            [0.1, 10.0],
            "alpha=0.1 was chosen by cv, but it is the smallest value tried",
        ),
        (600, 3000.0, "auto", "so much do folds differ"),
        (200, 300.0, "auto", r"row 7 alone makes 9\d% of the error"),
    ],
)
def test_an_end_of_the_grid_and_a_row_that_makes_most_of_the_error_are_warned_of(
    n_samples, value, alpha, said
):
    X, y = additive(n_samples, 2)
    y[7] += value
    with pytest.warns(UserWarning, match=said):
        plain_ridge(n_components=64, length_scale=1.0, alpha=alpha).fit(X, y)
