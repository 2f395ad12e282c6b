"""Intervals from held-out residuals: against scikit-learn's refits and NumPy's order statistics."""

import functools
import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from rff_dist import Gaussian, SerialEngine, draw_feature_map, pipeline, prediction
from rff_dist.blocks import Accumulation, LinearModel
from rff_dist.conformal import FoldModels, HeldOutScores, fold_models, score_rows
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError
from rff_dist.feature_map import Nystrom, draw_nystrom
from rff_dist.folds import GroupFolds, HashFolds, TimeFolds
from rff_dist.model import RidgeModel
from rff_dist.storage import ArrayDataset

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


def features_of(dataset, kind="fourier", n_components=40):
    if kind == "nystrom":
        sample = dataset.X.astype(np.float32)
        return draw_nystrom(Gaussian(1.0), sample, n_components=n_components, nystrom=Nystrom(), seed=0)
    return draw_feature_map(Gaussian(1.0), n_features=2, n_components=n_components, random_state=0)


def statistics_of(dataset, feature_map, folds):
    moments = pipeline.inspect(dataset, engine=ENGINE)
    spec = pipeline.statistics_spec(
        dataset,
        feature_map,
        target_offset=pipeline.target_offset_from(moments),
        fraction_bits=pipeline.fraction_bits_for(dataset.n_samples),
        **pipeline.weight_grid(moments),
    )
    [found] = pipeline.accumulate_folds(
        dataset, [Accumulation(feature_map, spec)], folds=folds, engine=ENGINE
    )
    return found


def held_out_residuals(dataset, feature_map, folds, *, fit_intercept=True):
    """Return |y − f| of each row that is held out and weighs something, by refits of scikit-learn."""
    Z, weights = feature_map.transform(dataset.X), dataset.sample_weight
    weights = np.ones(len(Z)) if weights is None else weights
    fold_of = folds.assign(0, len(Z), n_samples=len(Z), groups=None)
    residuals = []
    for trained_on, held_out in folds.splits:
        training, validation = np.isin(fold_of, trained_on), (fold_of == held_out) & (weights > 0)
        fitted = Ridge(alpha=ALPHA, fit_intercept=fit_intercept, solver="cholesky").fit(
            Z[training], dataset.y[training], sample_weight=weights[training]
        )
        residuals.append(np.abs(dataset.y[validation] - fitted.predict(Z[validation])))
    return np.concatenate(residuals)


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
    scores = pipeline.hold_out_scores(
        dataset, statistics, feature_map, alpha=ALPHA, fit_intercept=fit_intercept, engine=ENGINE
    )
    residuals = held_out_residuals(dataset, feature_map, folds, fit_intercept=fit_intercept)
    assert scores.n_samples == len(residuals)
    assert_array_equal(scores.counts.sum(axis=0), len(residuals))
    for coverage in (0.05, 0.5, 0.9, 0.99):
        rank = math.ceil((len(residuals) + 1) * coverage)
        expected = np.sort(residuals, axis=0)[rank - 1]
        ratio = scores.quantile(coverage) / expected
        assert (ratio > 1 - 1e-7).all()  # refits agree to that, and the bins round up
        assert (ratio < WIDTH * (1 + 1e-7)).all()


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
        operator.add, [score_rows(dataset.read(block), models) for block in pipeline.blocks_of(dataset)]
    )


def fold_models_of_zero(feature_map, n_samples, unit):
    linear = LinearModel(feature_map, np.zeros((2, 2)), np.zeros(2))
    return FoldModels(linear, HashFolds(2), np.arange(2), n_samples, np.array([unit]))


def test_too_few_rows_for_a_coverage_give_infinite_intervals():
    found = scored(np.arange(1.0, 10.0))
    assert np.isfinite(found.quantile(0.9)).all()  # the ninth of nine
    assert np.isinf(found.quantile(0.91)).all()
    assert 100 * 0.07 > 7  # in float64
    assert scored(np.arange(1.0, 100.0)).quantile(0.07) < 7 * WIDTH * (1 + 1e-12)
    assert_array_equal(scored(np.full(20, 2.0**33)).quantile(0.5), np.inf)
    assert_array_equal(scored(np.zeros(20)).quantile(0.5), 0.0)


def student_t(rng, shape):
    return rng.standard_t(1.5, shape)


def skewed(rng, shape):
    return np.exp(1.5 * rng.standard_normal(shape))


@pytest.mark.parametrize("noise", [None, student_t, skewed], ids=["gaussian", "heavy tails", "skewed"])
def test_intervals_cover_new_rows_as_often_as_they_say_whatever_the_noise(noise):
    dataset = problem(8000, n_targets=1, noise=noise)
    train, test = ArrayDataset(dataset.X[:3000], dataset.y[:3000]), dataset.y[3000:, 0]
    feature_map = features_of(train)
    statistics = statistics_of(train, feature_map, HashFolds(5))
    solved = pipeline.solve(statistics.total(), alpha=1.0)
    model = RidgeModel.from_solution(
        feature_map, statistics.total(), solved.solution, None, {"fit_intercept": True}
    )
    scores = pipeline.hold_out_scores(train, statistics, feature_map, alpha=1.0, engine=ENGINE)
    new = ArrayDataset(dataset.X[3000:], dataset.y[3000:])
    mean, std = prediction.predict_with_std_in_memory(new, model, engine=ENGINE)
    lower, upper = scores.interval(mean, 0.9)
    covered = np.mean((test >= lower[:, 0]) & (test <= upper[:, 0]))
    # a standard error of 0.7 %, 0.9·0.1·(1/5000 + 1/3000), and bins that are up to 1.1 % too wide
    assert 0.87 < covered < 0.93
    bayesian = np.mean(np.abs(test - mean[:, 0]) <= 1.645 * std[:, 0])
    assert (0.87 < bayesian < 0.93) == (noise is None)


@pytest.mark.parametrize("folds", [HashFolds(5), TimeFolds(4)])
def test_blocks_and_threads_change_no_count(folds):
    dataset = problem(40_000, weighted=True)
    feature_map = features_of(dataset, n_components=16)
    statistics = statistics_of(dataset, feature_map, folds)
    found = [
        pipeline.hold_out_scores(data, statistics, feature_map, alpha=ALPHA, engine=engine)
        for data, engine in (
            (dataset, ENGINE),
            (dataset, SerialEngine(n_threads=2)),
            (ArrayDataset(dataset.X, dataset.y, dataset.sample_weight, chunk_rows=17_001), ENGINE),
        )
    ]
    assert found[0] == found[1]
    # other blocks round predictions otherwise: a score within 1e-15 of an edge would change its bin
    assert found[0] == found[2]
    counted = dataset.sample_weight > 0
    if isinstance(folds, TimeFolds):
        counted &= folds.assign(0, 40_000, n_samples=40_000, groups=None) > 0
    assert found[0].n_samples == counted.sum()


def test_a_fold_without_rows_needs_no_model():
    dataset = problem(6)
    feature_map = features_of(dataset, n_components=4)
    folds = HashFolds(12)
    scores = pipeline.hold_out_scores(
        dataset, statistics_of(dataset, feature_map, folds), feature_map, alpha=ALPHA, engine=ENGINE
    )
    assert scores.n_samples == 6


def test_scores_come_back_from_their_arrays():
    dataset = problem()
    feature_map = features_of(dataset)
    scores = pipeline.hold_out_scores(
        dataset, statistics_of(dataset, feature_map, HashFolds(3)), feature_map, alpha=ALPHA, engine=ENGINE
    )
    assert HeldOutScores.from_arrays(scores.to_arrays()) == scores
    with pytest.raises(StatisticsError, match=r"counts of shape \(9, 2\); expected \(4099, 2\)"):
        HeldOutScores.from_arrays({**scores.to_arrays(), "counts": np.zeros((9, 2), np.int64)})
    with pytest.raises(StatisticsError, match="different units"):
        scores + HeldOutScores(scores.counts, 2 * scores.units)


def test_what_cannot_be_used_is_refused():
    dataset = problem()
    feature_map = features_of(dataset)
    statistics = statistics_of(dataset, feature_map, HashFolds(3))
    with pytest.raises(StatisticsError, match="count 300 rows, the data have 299"):
        pipeline.hold_out_scores(problem(299), statistics, feature_map, alpha=ALPHA, engine=ENGINE)
    models = fold_models(statistics, feature_map, alpha=ALPHA)
    [block] = pipeline.blocks_of(dataset)
    with pytest.raises(DataError, match="have no y"):
        score_rows(ArrayDataset(dataset.X).read(block), models)
    grouped = FoldModels(models.linear, GroupFolds(3), models.validated, 300, models.units)
    with pytest.raises(DataError, match="no groups"):
        score_rows(dataset.read(block), grouped)
    scores = score_rows(dataset.read(block), models)
    for coverage in (0.0, 1.0, np.nan, 90):
        with pytest.raises(InvalidParameterError, match=r"`coverage` is .*; expected a number in \(0, 1\)"):
            scores.quantile(coverage)


def test_a_single_targets_interval_takes_predictions_without_the_target_axis():
    found = scored(np.arange(1.0, 100.0))
    lower, upper = found.interval(np.zeros(7), 0.9)
    assert lower.shape == upper.shape == (7,)
    assert_allclose(upper, found.quantile(0.9)[0])
    assert_array_equal(lower, -upper)
