"""Intervals from held-out residuals: against scikit-learn's refits and NumPy's order
statistics.
"""

import functools
import math
import operator
from dataclasses import replace

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import (
    Gaussian,
    GroupFolds,
    HashFolds,
    SerialEngine,
    TimeFolds,
    load_model,
    save_model,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.predicting import LinearModel
from rff_dist.living.interval_updates import hold_out_newest
from rff_dist.living.merge import merge, refit_on
from rff_dist.living.update import solve_as_before
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.fit import fit
from rff_dist.ridge.fold_models import FoldModels, solve_fold_models
from rff_dist.ridge.held_out import (
    MOST_ROWS,
    REACH,
    HeldOutScores,
    ScoringModels,
    SpreadModel,
    score_rows,
    score_sample,
)
from rff_dist.ridge.uncertainty import predictive_model
from rff_dist.statistics import passes, row_passes
from rff_dist.statistics.accumulate import Accumulation
from tests.covering import covering
from tests.plain import plain_ridge
from tests.refits import held_out_residuals, scores_of_refits
from tests.refusals import refuses
from tests.ridge_problems import features_of, spec_of

ENGINE = SerialEngine(1)
ALPHA = 0.3
WIDTH = 2 ** (1 / 64)  # of a bin


def assert_quantiles_of(scores, expected, *, tolerance):
    """Compare with order statistics to within what refits agree to; the bins round
    up.
    """
    for coverage in (0.05, 0.5, 0.9, 0.99):
        rank = math.ceil((len(expected) + 1) * coverage)
        ratio = scores.quantile(coverage) / np.sort(expected, axis=0)[rank - 1]
        assert (ratio > 1 - tolerance).all()
        assert (ratio < WIDTH * (1 + tolerance)).all()


def problem(n_samples=300, *, n_targets=2, weighted=False, noise=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 2))
    Y = 5 + np.column_stack(
        [np.sin((k + 1) * X[:, 0]) + X[:, 1] for k in range(n_targets)]
    )
    drawn = rng.standard_normal(Y.shape) if noise is None else noise(rng, Y.shape)
    weights = (
        rng.uniform(0, 2, n_samples) * (rng.random(n_samples) < 0.8)
        if weighted
        else None
    )
    return ArrayDataset(X, Y + 0.3 * drawn, weights)


def statistics_of(dataset, feature_map, folds):
    members = [Accumulation(feature_map, spec_of(dataset, feature_map))]
    [found] = passes.accumulate_folds(dataset, members, folds=folds, engine=ENGINE)
    return found


@pytest.mark.parametrize(
    ("fit_intercept", "weighted", "folds", "kind"),
    covering(
        [True, False],
        [False, True],
        [HashFolds(4), TimeFolds(4)],
        ["fourier", "nystrom"],
    ),
)
def test_scores_are_those_of_refits_without_the_rows_fold(
    kind, folds, weighted, fit_intercept
):
    dataset = problem(weighted=weighted)
    feature_map = features_of(dataset, kind)
    statistics = statistics_of(dataset, feature_map, folds)
    models = solve_fold_models(
        statistics, feature_map, alpha=ALPHA, fit_intercept=fit_intercept
    )
    scores = score_sample(dataset, statistics, models, engine=ENGINE)

    Z = feature_map.transform(dataset.X)
    weights = dataset.sample_weight
    fold_of = folds.assign(0, len(Z), n_samples=len(Z), groups=None)
    residuals = np.full(dataset.y.shape, np.nan)
    for held, found in held_out_residuals(
        Z,
        dataset.y,
        fold_of,
        folds.splits,
        ALPHA,
        weights=weights,
        fit_intercept=fit_intercept,
    ):
        residuals[held] = found
    expected, roots = scores_of_refits(Z, residuals, fold_of, weights=weights)
    assert scores.n_samples == len(expected)
    assert_array_equal(scores.counts.sum(axis=0), len(expected))
    assert_quantiles_of(scores, expected, tolerance=1e-6)
    spread = scores.spread
    assert_allclose(Z @ spread.coefficients + spread.intercept, roots, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_few_rows_are_those_of_refits_without_the_row(weighted):
    n = 150
    dataset = problem(n, weighted=weighted)
    feature_map = features_of(dataset, "fourier")
    folds = HashFolds(4)
    statistics = statistics_of(dataset, feature_map, folds)
    total = statistics.total()
    solved = solve_cholesky(total.normal_equations(), ALPHA)
    linear = LinearModel(feature_map, solved.coefficients, solved.intercept)
    models = replace(
        solve_fold_models(statistics, feature_map, alpha=ALPHA),
        without_row=predictive_model(linear, total, alpha=ALPHA, fit_intercept=True),
    )
    scores = score_sample(dataset, statistics, models, engine=ENGINE)

    Z = feature_map.transform(dataset.X)
    weights = np.ones(n) if dataset.sample_weight is None else dataset.sample_weight
    is_scored = weights > 0
    Z = Z[is_scored]
    y = dataset.y[is_scored]
    weights = weights[is_scored]
    rows = np.arange(len(y))
    splits = [(np.delete(rows, row), row) for row in rows]
    left_out = held_out_residuals(Z, y, rows, splits, ALPHA, weights=weights)
    residuals = np.concatenate([found for _, found in left_out])
    roots = np.sqrt(np.abs(residuals))
    centred = Z - np.average(Z, axis=0, weights=weights)
    prior = (weights @ np.square(centred)).sum() / len(y)
    left_out = held_out_residuals(Z, roots, rows, splits, prior, weights=weights)
    predicted = roots - np.concatenate([found for _, found in left_out])
    means = np.average(roots, axis=0, weights=weights)
    sizes = np.clip(predicted, means / REACH, means * REACH) ** 2
    assert scores.n_samples == len(y)
    assert_quantiles_of(scores, np.abs(residuals) / sizes, tolerance=1e-6)


def test_rows_count_as_often_as_weights_repeat_them():
    residuals = np.abs(np.random.default_rng(0).standard_normal(60))
    times = np.random.default_rng(1).integers(0, 4, 60)
    weighted = ArrayDataset(np.zeros((60, 2)), residuals, times.astype(float))
    models = replace(models_of_nought(60), repeats_rows=True)
    [block] = row_passes.blocks_of(weighted)
    found = score_rows(weighted.read(block), models)
    assert_array_equal(found, scored(np.repeat(residuals, times)).counts)


@given(
    scores=st.lists(
        st.floats(0, 2.0**20, allow_subnormal=False), min_size=1, max_size=60
    ),
    coverage=st.floats(0.01, 0.99),
)
def test_a_quantile_is_its_order_statistic_or_up_to_a_bin_more(scores, coverage):
    found = scored(np.array(scores))
    rank = math.ceil(round((len(scores) + 1) * coverage, 9))
    [quantile] = found.quantile(coverage)
    if rank > len(scores):
        assert quantile == np.inf
        return
    expected = np.sort(scores)[rank - 1]
    lowest = 2.0**-32
    assert (
        expected
        <= quantile
        <= max(expected * WIDTH * (1 + 1e-12), lowest if expected > 0 else 0)
    )


def scored(residuals):
    """Count residuals themselves: targets of a model that predicts 0, of size 1."""
    dataset = ArrayDataset(np.zeros((len(residuals), 2)), residuals)
    models = models_of_nought(len(residuals))
    counts = [
        score_rows(dataset.read(block), models)
        for block in row_passes.blocks_of(dataset)
    ]
    spread = SpreadModel(np.zeros((2, 1)), np.ones(1), models.bounds)
    return HeldOutScores(functools.reduce(operator.add, counts), spread)


def models_of_nought(n_samples):
    feature_map = features_of(ArrayDataset(np.zeros((2, 2))), n_components=2)

    def constant(value):
        linear = LinearModel(feature_map, np.zeros((2, 2)), np.full(2, value))
        means = np.zeros((2, 1))
        return FoldModels(
            linear, HashFolds(2), np.arange(2), n_samples, means, np.ones(1)
        )

    return ScoringModels(
        constant(0.0), constant(1.0), np.array([[0.1], [10.0]]), np.zeros(1)
    )


def test_too_few_rows_for_a_coverage_give_infinite_intervals():
    found = scored(np.arange(1.0, 10.0))
    assert np.isfinite(found.quantile(0.9)).all()  # the ninth of nine
    assert np.isinf(found.quantile(0.91)).all()
    assert 100 * 0.07 > 7  # in float64
    assert scored(np.arange(1.0, 100.0)).quantile(0.07) < 7 * WIDTH * (1 + 1e-12)
    assert_array_equal(scored(np.full(20, 2.0**33)).quantile(0.5), np.inf)
    assert_array_equal(scored(np.zeros(20)).quantile(0.5), 0.0)


def varying(n_samples, seed):
    """Return rows whose noise has a standard deviation that follows the first column,
    and that deviation.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3))
    deviation = np.exp(0.7 * X[:, 0])
    return X, np.sin(X[:, 1]) + deviation * rng.standard_normal(n_samples), deviation


def test_intervals_follow_the_noise_and_cover_as_often_as_they_say():
    X, y, deviation = varying(13_000, 0)
    third = np.argsort(np.argsort(deviation[3000:])) * 3 // 10_000
    covered = {}
    width = {}
    for alpha in ("cv", "gcv"):
        model = plain_ridge(n_components=256, alpha=alpha)
        model.fit(X[:3000], y[:3000])
        lower, upper = model.predict_interval(X[3000:], coverage=0.9)
        inside = (y[3000:] >= lower) & (y[3000:] <= upper)
        covered[alpha] = [
            inside.mean(),
            inside[third == 0].mean(),
            inside[third == 2].mean(),
        ]
        width[alpha] = np.mean(upper - lower)
    assert 0.88 < covered["cv"][0] < 0.92
    # a third of 10,000 rows has a standard error of 0.5 %, and so has the quantile of
    # 3,000 scores
    assert_allclose(covered["cv"][1:], 0.9, atol=0.03)
    # without folds they are normal ones, which know nothing of the noise near a row
    assert covered["gcv"][1] > 0.98
    assert covered["gcv"][2] < 0.8
    assert width["cv"] < 0.95 * width["gcv"]


def test_intervals_are_the_same_stored_written_and_on_more_threads(tmp_path):
    X, y, _ = varying(9000, 1)
    Y = np.column_stack([y, 100 * X[:, 2] ** 2 * y])
    models = [
        plain_ridge(alpha=1.0, cv=3, engine=SerialEngine(n)).fit(X, Y) for n in (1, 2)
    ]
    assert models[0].model_.held_out == models[1].model_.held_out
    save_model(models[0], "model")
    loaded = load_model("model")
    assert loaded.model_.held_out == models[0].model_.held_out
    lower, upper = models[0].predict_interval(X, coverage=0.8)
    assert_array_equal(loaded.predict_interval(X, coverage=0.8), (lower, upper))
    assert_allclose(
        (lower + upper) / 2,
        models[0].predict(X),
        rtol=0,
        atol=1e-12 * np.abs(upper).max(),
    )
    widths = upper - lower
    assert (widths.max(axis=0) > 2 * widths.min(axis=0)).all()
    url = tmp_path / "predictions"
    prediction.predict(
        ArrayDataset(X), models[0].model_, url, engine=ENGINE, coverage=0.8, std=True
    )
    written = zarr.open_group(url, mode="r")
    assert_array_equal(written["upper"][:], upper)
    assert_array_equal(written["predictions"][:], models[0].predict(X))


def test_a_constant_target_has_intervals_of_no_width():
    X = np.random.default_rng(0).standard_normal((200, 2))
    model = plain_ridge(n_components=8, alpha=1.0, cv=5)
    lower, upper = model.fit(X, np.ones(200)).predict_interval(X)
    assert_allclose(upper - lower, 0.0, atol=1e-12)  # the residual of 1 in float64


def test_one_split_has_no_scores_and_its_fit_normal_intervals():
    X, y, _ = varying(200, 2)
    model = plain_ridge(n_components=8, cv=TimeFolds(2)).fit(X, y)
    assert model.model_.held_out is None
    lower, upper = model.predict_interval(X, coverage=0.9)
    _, std = model.predict(X, return_std=True)
    assert_allclose((upper - lower) / std, 2 * 1.6448536, rtol=1e-6)  # of the normal


def test_many_rows_are_scored_by_a_sample_of_them():
    X, y, deviation = varying(2 * MOST_ROWS, 3)
    model = plain_ridge(n_components=64, cv=3).fit(X, y)
    scores = model.model_.held_out
    assert scores.n_samples == MOST_ROWS
    lower, upper = model.predict_interval(X, coverage=0.9)
    inside = (y >= lower) & (y <= upper)
    # half of them were scored; the share of these is known to 0.25 %
    assert abs(inside.mean() - 0.9) < 0.01
    assert np.corrcoef(np.log(upper - lower), np.log(deviation))[0, 1] > 0.8


def scores_of(dataset, feature_map, folds):
    statistics = statistics_of(dataset, feature_map, folds)
    models = solve_fold_models(statistics, feature_map, alpha=ALPHA)
    return score_sample(dataset, statistics, models, engine=ENGINE)


def test_a_fold_without_rows_needs_no_model():
    few = problem(6)
    assert (
        scores_of(few, features_of(few, n_components=4), HashFolds(12)).n_samples == 6
    )


def test_what_cannot_be_used_is_refused():
    dataset = problem()
    feature_map = features_of(dataset)
    statistics = statistics_of(dataset, feature_map, HashFolds(3))
    models = solve_fold_models(statistics, feature_map, alpha=ALPHA)
    with refuses(StatisticsError, "300 rows", "299"):
        score_sample(problem(299), statistics, models, engine=ENGINE)
    [block] = row_passes.blocks_of(dataset)
    scoring = ScoringModels(models, models, np.ones((2, 1)), np.zeros(1))
    with refuses(DataError, "have no y"):
        score_rows(ArrayDataset(dataset.X).read(block), scoring)
    grouped = replace(models, folds=GroupFolds(3))
    with refuses(DataError, "no groups"):
        score_rows(dataset.read(block), replace(scoring, means=grouped))
    for coverage in (0.0, 1.0, np.nan, 90):
        with refuses(InvalidParameterError, "coverage", "0", "1"):
            scored(np.ones(3)).quantile(coverage)


# -- after rows came or went
# --------------------------------------------------------------------------------------


def part(dataset, start, stop):
    return ArrayDataset(dataset.X[start:stop], dataset.y[start:stop])


def fitted(dataset, *, features="fourier", **options):
    given = {"kernel": Gaussian(1.0), "n_components": 32, "alpha": [ALPHA]}
    wanted = RidgeOptions(features=features, standardize=False, **given, **options)
    return fit(dataset, wanted, engine=ENGINE).model


def on_rows(model, dataset):
    """Return the model of other rows, with normal intervals."""
    spec = model.summed.spec
    sums = passes.accumulate(dataset, model.feature_map, spec=spec, engine=ENGINE)
    return solve_as_before(model, sums)


@pytest.mark.parametrize("kind", ["fourier", "nystrom"])
def test_after_an_update_intervals_are_by_errors_of_the_newest_rows_left_out(kind):
    dataset = problem(1200)
    before = fitted(part(dataset, 0, 700), features=kind, cv=3)
    n_newest = 500
    ranges = [(0, 300), (400, 1200)]
    kept = np.concatenate([np.arange(*span) for span in ranges])
    rows = ArrayDataset(dataset.X[kept], dataset.y[kept])
    found = hold_out_newest(
        on_rows(before, rows), before, dataset, ranges, engine=ENGINE
    )

    Z = before.feature_map.transform(rows.X)
    newest = np.arange(len(Z)) >= len(Z) - n_newest
    fold_of = np.full(len(Z), -1)
    fold_of[newest] = HashFolds(3).assign(0, n_newest, n_samples=n_newest, groups=None)
    residuals = np.full(rows.y.shape, np.nan)
    splits = [(np.setdiff1d([-1, 0, 1, 2], [fold]), fold) for fold in range(3)]
    for held, errors in held_out_residuals(Z, rows.y, fold_of, splits, ALPHA):
        residuals[held] = errors
    expected, _ = scores_of_refits(Z, residuals, fold_of)
    assert found.held_out.n_samples == n_newest
    assert_quantiles_of(found.held_out, expected, tolerance=1e-6)
    assert found.card["interval_rows"] == "500 of 1,100 rows, the newest"


def test_rows_that_left_a_model_leave_its_intervals():
    """Two models of the same rows, one of which had absurd rows before."""
    dataset = problem(900)
    targets = dataset.y.copy()
    targets[:50] = 1e3
    absurd = ArrayDataset(dataset.X, targets)
    kept = [(50, 900)]
    rows = part(dataset, 50, 900)
    before = fitted(absurd, cv=3)
    after = on_rows(before, rows)
    assert after.held_out is None  # until rows are held out again
    assert "interval_rows" not in after.card
    found = hold_out_newest(after, before, absurd, kept, engine=ENGINE)
    never = replace(before, held_out=fitted(dataset, cv=3).held_out)
    expected = hold_out_newest(after, never, dataset, kept, engine=ENGINE)
    assert found.held_out == expected.held_out


def test_intervals_for_new_groups_or_times_are_normal_after_an_update(caplog):
    dataset = problem(600)
    before = fitted(dataset, cv=TimeFolds(4))
    after = hold_out_newest(
        on_rows(before, dataset), before, dataset, [(0, 600)], engine=ENGINE
    )
    assert before.held_out is not None
    assert after.held_out is None
    assert "TimeFolds" in caplog.text


def test_merged_models_have_normal_intervals():
    dataset = problem(600)
    first = fitted(part(dataset, 0, 300), cv=3)
    second = refit_on(first, part(dataset, 300, 600), engine=ENGINE)
    assert second.held_out.n_samples == 300
    assert merge([first, second], ["first", "second"]).held_out is None
