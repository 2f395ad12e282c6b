"""Intervals from held-out residuals: against scikit-learn's refits and NumPy's order statistics."""

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
from sklearn.linear_model import Ridge

from rff_dist import SerialEngine, load_model, save_model
from rff_dist.data.folding import GroupFolds, HashFolds, TimeFolds
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError
from rff_dist.fitting.predicting import LinearModel
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.held_out import (
    REACH,
    FoldModels,
    HeldOutScores,
    fold_models,
    hold_out_scores,
    root_residual_statistics,
    score_rows,
    sum_root_residuals,
    with_deviations,
)
from rff_dist.statistics import inspection, passes
from rff_dist.statistics.accumulate import Accumulation
from tests.plain import plain_ridge
from tests.refits import held_out_residuals
from tests.refusals import refuses
from tests.ridge_problems import features_of, spec_of

ENGINE = SerialEngine(n_threads=1)
ALPHA = 0.3
WIDTH = 2 ** (1 / 64)  # of a bin


def problem(n_samples=300, *, n_targets=2, weighted=False, noise=None, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 2))
    Y = 5 + np.column_stack([np.sin((k + 1) * X[:, 0]) + X[:, 1] for k in range(n_targets)])
    drawn = rng.standard_normal(Y.shape) if noise is None else noise(rng, Y.shape)
    weights = rng.uniform(0, 2, n_samples) * (rng.random(n_samples) < 0.8) if weighted else None
    return ArrayDataset(X, Y + 0.3 * drawn, weights)


def statistics_of(dataset, feature_map, folds):
    members = [Accumulation(feature_map, spec_of(dataset, feature_map))]
    [found] = passes.accumulate_folds(dataset, members, folds=folds, engine=ENGINE)
    return found


def assert_quantiles_of(scores, expected, *, tolerance):
    """Compare with order statistics to within what refits agree to; the bins round up."""
    for coverage in (0.05, 0.5, 0.9, 0.99):
        rank = math.ceil((len(expected) + 1) * coverage)
        ratio = scores.quantile(coverage) / np.sort(expected, axis=0)[rank - 1]
        assert (ratio > 1 - tolerance).all()
        assert (ratio < WIDTH * (1 + tolerance)).all()


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("weighted", [False, True], ids=["no weights", "weights"])
@pytest.mark.parametrize("folds", [HashFolds(4), TimeFolds(3)])
@pytest.mark.parametrize("kind", ["fourier", "nystrom"])
def test_quantiles_are_those_of_refits_residuals_rounded_up_by_a_hundredth(
    kind, folds, weighted, fit_intercept
):
    dataset = problem(weighted=weighted)
    feature_map = features_of(dataset, kind)
    statistics = statistics_of(dataset, feature_map, folds)
    models = fold_models(statistics, feature_map, alpha=ALPHA, fit_intercept=fit_intercept)
    scores = hold_out_scores(dataset, statistics, models, engine=ENGINE)
    Z, weights = feature_map.transform(dataset.X), dataset.sample_weight
    counts = np.ones(len(Z)) if weights is None else weights
    fold_of = folds.assign(0, len(Z), n_samples=len(Z), groups=None)
    options = {"weights": weights, "fit_intercept": fit_intercept}
    refits = held_out_residuals(Z, dataset.y, fold_of, folds.splits, ALPHA, **options)
    residuals = np.abs(np.concatenate([found[counts[rows] > 0] for rows, found in refits]))
    assert scores.n_samples == len(residuals)
    assert_array_equal(scores.counts.sum(axis=0), len(residuals))
    assert_quantiles_of(scores, residuals, tolerance=1e-7)


def test_rows_count_as_often_as_weights_repeat_them():
    residuals = np.abs(np.random.default_rng(0).standard_normal(60))
    times = np.random.default_rng(1).integers(0, 4, 60)
    weighted = ArrayDataset(np.zeros((60, 2)), residuals, times.astype(float))
    models = replace(fold_models_of_zero(features_of(weighted, n_components=2), 60, 1.0), repeated=True)
    found = score_rows(weighted.read(inspection.blocks_of(weighted)[0]), models)
    assert found == scored(np.repeat(residuals, times))


@given(
    # subnormal scores may be 0 when they are divided by the unit
    scores=st.lists(st.floats(0, 2.0**20, allow_subnormal=False), min_size=1, max_size=60),
    coverage=st.floats(0.01, 0.99),
    exponent=st.integers(-12, 20),
)
def test_a_quantile_is_its_order_statistic_or_up_to_a_bin_more(scores, coverage, exponent):
    found = scored(np.array(scores), unit=2.0**exponent)
    rank = math.ceil(round((len(scores) + 1) * coverage, 9))
    [quantile] = found.quantile(coverage)
    if rank > len(scores):
        assert quantile == np.inf
        return
    expected = np.sort(scores)[rank - 1]
    lowest = 2.0 ** (exponent - 32)
    assert expected <= quantile <= max(expected * WIDTH * (1 + 1e-12), lowest if expected > 0 else 0)


def scored(residuals, *, unit=1.0):
    """Count residuals themselves: targets of a model that predicts 0."""
    dataset = ArrayDataset(np.zeros((len(residuals), 2)), residuals)
    feature_map = features_of(dataset, n_components=2)
    models = fold_models_of_zero(feature_map, len(residuals), unit)
    return functools.reduce(
        operator.add, [score_rows(dataset.read(block), models) for block in inspection.blocks_of(dataset)]
    )


def fold_models_of_zero(feature_map, n_samples, unit):
    linear = LinearModel(feature_map, np.zeros((2, 2)), np.zeros(2))
    return FoldModels(linear, HashFolds(2), np.arange(2), n_samples, np.array([unit]))


@pytest.mark.parametrize("weighted", [False, True], ids=["no weights", "weights"])
@pytest.mark.parametrize("kind", ["fourier", "nystrom"])
def test_normalised_scores_are_those_of_refits_without_the_rows_fold(kind, weighted):
    dataset, folds, penalty = problem(weighted=weighted), HashFolds(4), 0.1
    feature_map = features_of(dataset, kind)
    statistics = statistics_of(dataset, feature_map, folds)
    [block] = inspection.blocks_of(dataset)
    rows = dataset.read(block)
    models = fold_models(statistics, feature_map, alpha=[ALPHA, ALPHA])
    sums = sum_root_residuals(rows, models, exponents=statistics.total().spec.exponents)
    roots = root_residual_statistics(statistics, models, sums)
    models, deviations = with_deviations(models, roots, alpha=penalty)
    scores = score_rows(rows, models)

    Z = feature_map.transform(dataset.X)
    weights = np.ones(len(Z)) if dataset.sample_weight is None else dataset.sample_weight
    fold_of = folds.assign(0, len(Z), n_samples=len(Z), groups=None)

    def refit(target, chosen, alpha):
        model = Ridge(alpha=alpha, solver="cholesky")
        return model.fit(Z[chosen], target[chosen], sample_weight=weights[chosen])

    residuals = np.empty_like(dataset.y)
    for held, found in held_out_residuals(Z, dataset.y, fold_of, folds.splits, ALPHA, weights=weights):
        residuals[held] = np.abs(found)
    means = np.average(np.sqrt(residuals), axis=0, weights=weights)
    expected = np.empty_like(residuals)
    for fold in range(4):
        held = fold_of == fold
        found = refit(np.sqrt(residuals), ~held, penalty).predict(Z[held])
        expected[held] = residuals[held] / np.clip(found, means / REACH, means * REACH) ** 2
    assert_quantiles_of(scores, expected[weights > 0], tolerance=1e-6)
    whole = refit(np.sqrt(residuals), np.ones(len(Z), bool), penalty)
    assert_allclose(Z @ deviations.coefficients + deviations.intercept, whole.predict(Z), rtol=1e-6)


def test_too_few_rows_for_a_coverage_give_infinite_intervals():
    found = scored(np.arange(1.0, 10.0))
    assert np.isfinite(found.quantile(0.9)).all()  # the ninth of nine
    assert np.isinf(found.quantile(0.91)).all()
    assert 100 * 0.07 > 7  # in float64
    assert scored(np.arange(1.0, 100.0)).quantile(0.07) < 7 * WIDTH * (1 + 1e-12)
    assert_array_equal(scored(np.full(20, 2.0**33)).quantile(0.5), np.inf)
    assert_array_equal(scored(np.zeros(20)).quantile(0.5), 0.0)


def varying(n_samples, seed):
    """Return rows whose noise has a standard deviation that follows the first column, and that deviation."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, 3))
    deviation = np.exp(0.7 * X[:, 0])
    return X, np.sin(X[:, 1]) + deviation * rng.standard_normal(n_samples), deviation


def test_normalised_intervals_follow_the_noise_and_cover_as_often_as_they_say():
    X, y, deviation = varying(13_000, 0)
    third = np.argsort(np.argsort(deviation[3000:])) * 3 // 10_000
    covered, width = {}, {}
    for conformal in (True, "normalized"):
        model = plain_ridge(n_components=256, cv=5, conformal=conformal, random_state=0).fit(
            X[:3000], y[:3000]
        )
        lower, upper = model.predict_interval(X[3000:], coverage=0.9)
        inside = (y[3000:] >= lower) & (y[3000:] <= upper)
        covered[conformal] = [inside.mean(), inside[third == 0].mean(), inside[third == 2].mean()]
        width[conformal] = np.mean(upper - lower)
    assert 0.88 < covered["normalized"][0] < 0.92
    # a third of 10,000 rows has a standard error of 0.5 %, and so has the quantile of 3,000 scores
    assert_allclose(covered["normalized"][1:], 0.9, atol=0.03)
    assert covered[True][1] > 0.98
    assert covered[True][2] < 0.8
    assert width["normalized"] < 0.95 * width[True]


def test_normalised_intervals_are_the_same_stored_written_and_on_more_threads(tmp_path):
    X, y, _ = varying(9000, 1)
    Y = np.column_stack([y, 100 * X[:, 2] ** 2 * y])
    models = [
        plain_ridge(
            n_components=32, alpha=1.0, cv=3, conformal="normalized", random_state=0, engine=SerialEngine(n)
        ).fit(X, Y)
        for n in (1, 2)
    ]
    assert models[0].model_.held_out == models[1].model_.held_out
    assert models[0].model_.held_out.deviations is not None
    save_model(models[0], tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.model_.held_out == models[0].model_.held_out
    lower, upper = models[0].predict_interval(X, coverage=0.8)
    assert_array_equal(loaded.predict_interval(X, coverage=0.8), (lower, upper))
    assert_allclose((lower + upper) / 2, models[0].predict(X), rtol=0, atol=1e-12 * np.abs(upper).max())
    widths = upper - lower
    assert (widths.max(axis=0) > 2 * widths.min(axis=0)).all()
    url = tmp_path / "predictions"
    prediction.predict(ArrayDataset(X), models[0].model_, url, engine=ENGINE, coverage=0.8, std=True)
    written = zarr.open_group(url, mode="r")
    assert_array_equal(written["upper"][:], upper)
    assert_array_equal(written["predictions"][:], models[0].predict(X))


def test_a_constant_target_has_intervals_of_no_width():
    X = np.random.default_rng(0).standard_normal((200, 2))
    model = plain_ridge(n_components=8, alpha=1.0, conformal="normalized", random_state=0)
    lower, upper = model.fit(X, np.ones(200)).predict_interval(X)
    assert_allclose(upper - lower, 0.0, atol=1e-12)  # the residual of 1 in float64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"conformal": "wide"}, "expected True, False or 'normalized'"),
        ({"conformal": 1}, "expected True, False or 'normalized'"),
        ({"conformal": "normalized", "cv": TimeFolds(4)}, "never held out"),
    ],
)
def test_intervals_that_cannot_be_made_are_refused_before_any_pass(given, said):
    with refuses(InvalidParameterError, said):
        plain_ridge(n_components=8, **given).fit(np.eye(20), np.arange(20.0))


def scores_of(dataset, feature_map, folds):
    statistics = statistics_of(dataset, feature_map, folds)
    models = fold_models(statistics, feature_map, alpha=ALPHA)
    return hold_out_scores(dataset, statistics, models, engine=ENGINE)


def test_a_fold_without_rows_needs_no_model():
    few = problem(6)
    assert scores_of(few, features_of(few, n_components=4), HashFolds(12)).n_samples == 6


def test_scores_come_back_from_their_arrays():
    dataset = problem()
    feature_map = features_of(dataset)
    scores = scores_of(dataset, feature_map, HashFolds(3))
    assert HeldOutScores.from_arrays(scores.to_arrays()) == scores
    with refuses(StatisticsError, "9", "2", "4099"):
        HeldOutScores.from_arrays({**scores.to_arrays(), "counts": np.zeros((9, 2), np.int64)})
    with refuses(StatisticsError, "different units"):
        scores + HeldOutScores(scores.counts, 2 * scores.units)


def test_what_cannot_be_used_is_refused():
    dataset = problem()
    feature_map = features_of(dataset)
    statistics = statistics_of(dataset, feature_map, HashFolds(3))
    models = fold_models(statistics, feature_map, alpha=ALPHA)
    with refuses(StatisticsError, "300 rows", "299"):
        hold_out_scores(problem(299), statistics, models, engine=ENGINE)
    [block] = inspection.blocks_of(dataset)
    with refuses(DataError, "have no y"):
        score_rows(ArrayDataset(dataset.X).read(block), models)
    grouped = FoldModels(models.linear, GroupFolds(3), models.validated, 300, models.units)
    with refuses(DataError, "no groups"):
        score_rows(dataset.read(block), grouped)
    scores = score_rows(dataset.read(block), models)
    for coverage in (0.0, 1.0, np.nan, 90):
        with refuses(InvalidParameterError, "coverage", "0", "1"):
            scores.quantile(coverage)
