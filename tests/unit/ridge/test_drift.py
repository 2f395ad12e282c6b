"""Drift checks: their parts against oracles, false alarms without drift, and shifts
that must be found.
"""

import functools
from operator import add
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from rff_dist import Gaussian, draw_feature_map
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.evaluation import evaluate_rows
from rff_dist.fitting.predicting import LinearModel
from rff_dist.living.drift import (
    NewRowSums,
    chi_squares_tail,
    column_shifts,
    embedding_drift,
    judge_drift,
)
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.recipes.encoders import DATE_PARTS
from rff_dist.statistics import passes
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.moments import ColumnMoments, measure_moments
from rff_dist.storage.columns import TIME_COLUMN
from rff_dist.workbench.results.updates import drifted_words

N_FEATURES = 10


def rows_of(X, y=None, weights=None):
    return Rows(
        Block(0, 0, len(X)), X, None if y is None else y.reshape(len(X), -1), weights
    )


def moments_of(X, weights=None, pivot=None):
    return ColumnMoments.of(
        measure_moments(rows_of(X, weights=weights), X[0] if pivot is None else pivot)
    )


@functools.cache
def features(n_components=32):
    return draw_feature_map(
        Gaussian(4.0), n_features=N_FEATURES, n_components=n_components, random_state=0
    )


def statistics_of(X, y, weights=None, **options):
    feature_map = features()
    spec = passes.statistics_spec(ArrayDataset(X, y, weights), feature_map, **options)
    return accumulate_rows(rows_of(X, y, weights), Accumulation(feature_map, spec))


def draw(rng, n_samples, shift=0.0, noise=0.3):
    X = rng.standard_normal((n_samples, N_FEATURES))
    X[:, 3] += shift
    return X, X[:, 0] + noise * rng.standard_normal(n_samples)


def sums_of_new(X, y, model):
    pivot = np.append(X[0], y[0])
    moments = measure_moments(rows_of(X, y), pivot)
    errors = evaluate_rows(rows_of(X, y), model).whole
    return NewRowSums(errors, statistics_of(X, y), moments, {})


def judge(held, new, **card):
    """Judge new rows as an update does, with a fifth of the old ones held out."""
    (X, y) = held
    (X_new, y_new) = new
    cut = 4 * len(X) // 5

    def model_of(statistics):
        solution = solve_cholesky(statistics.normal_equations(), np.asarray(1.0))
        return LinearModel(features(), solution.coefficients, solution.intercept)

    rest = statistics_of(X[:cut], y[:cut])
    part = statistics_of(X[cut:], y[cut:])
    whole = rest + part
    new = statistics_of(X_new, y_new)
    columns = moments_of(X)
    model = SimpleNamespace(
        summed=whole, columns=columns, feature_map=features(), card=card
    )
    held_out = evaluate_rows(rows_of(X[cut:], y[cut:]), model_of(rest)).whole
    return judge_drift(
        model,
        held_out,
        sums_of_new(X_new, y_new, model_of(whole)),
        whole + new,
        significance=0.05,
    )


# -- the figures that are promised
# ---------------------------------------------------------------------


def test_five_per_cent_of_200_batches_without_drift_raise_an_alarm():
    """5 % ± 2 %; the standard deviation of 200 draws is 1.5 %."""
    rng = np.random.default_rng(0)
    alarms = [judge(draw(rng, 900), draw(rng, 300))["drifted"] for _ in range(200)]
    assert 0.03 <= np.mean(alarms) <= 0.07


@pytest.mark.parametrize("n_new", [1, 5])
def test_few_new_rows_raise_no_more_alarms_than_promised(n_new):
    """At most 5 % + 3.5 %, two deviations of 150 draws; the normal law alone gave 27 %
    of one row.
    """
    rng = np.random.default_rng(2)
    alarms = [judge(draw(rng, 200), draw(rng, n_new))["drifted"] for _ in range(150)]
    assert np.mean(alarms) <= 0.085


def test_a_shift_of_a_fifth_of_a_deviation_in_one_of_ten_columns_is_found():
    rng = np.random.default_rng(1)
    found = [judge(draw(rng, 5000), draw(rng, 5000, shift=0.2)) for _ in range(20)]
    assert np.mean([drift["drifted"] for drift in found]) >= 0.9
    assert all(
        drift["columns"][0]["column"] == 3 for drift in found if drift["drifted"]
    )


@pytest.mark.parametrize(
    ("third", "card"),
    [(f"sold: {part}", {}) for part in DATE_PARTS]
    + [("seconds", {TIME_COLUMN: "seconds"})],
)
def test_time_that_passes_raises_no_alarm_and_the_columns_that_do_have_names(
    third, card
):
    rng = np.random.default_rng(1)
    names = [third if column == 3 else f"c{column}" for column in range(N_FEATURES)]
    held = draw(rng, 2000)
    X, y = draw(rng, 500, shift=0.5)
    for shift, words in ((0.0, None), (0.4, "c7 (+0.")):
        X[:, 7] += shift
        drift = judge(held, (X, y), feature_names=names, **card)
        assert drift["drifted"] == (words is not None)
        assert (drift["columns"][0]["name"], drift["columns"][0]["drifted"]) == (
            third,
            False,
        )
        if words:
            told = drifted_words(drift)
            assert told.startswith(words)
            assert third not in told
            assert "; errors unchanged (p = " in told


# -- the mean embedding
# --------------------------------------------------------------------------------


def compare(held, new):
    return embedding_drift(held, new, held + new)


def test_the_p_value_is_that_of_the_means_of_explicit_features():
    rng = np.random.default_rng(0)
    (X, y) = draw(rng, 300)
    (X_new, y_new) = draw(rng, 100, shift=0.3)
    Z = features().transform(X)
    Z_new = features().transform(X_new)
    distance = np.sum((Z.mean(axis=0) - Z_new.mean(axis=0)) ** 2)
    covariance = np.cov(np.vstack([Z, Z_new]).T, bias=True)
    eigenvalues = np.linalg.eigvalsh(covariance) * (1 / 300 + 1 / 100)
    found = compare(statistics_of(X, y), statistics_of(X_new, y_new))
    # three cumulants stand for all of the eigenvalues
    draws = rng.chisquare(1, (100_000, len(eigenvalues))) @ eigenvalues
    assert found == pytest.approx(np.mean(draws > distance), rel=0.15)


@pytest.mark.parametrize(
    "eigenvalues", [[1.0], [1.0, 1.0, 1.0], 0.7 ** np.arange(30), [5.0] + [0.1] * 60]
)
def test_the_tail_of_weighted_chi_squares_is_that_of_a_simulation(eigenvalues):
    weights = np.asarray(eigenvalues)
    draws = np.random.default_rng(0).chisquare(1, (100_000, len(weights))) @ weights
    turned = stats.ortho_group.rvs(max(2, len(weights)), random_state=0)
    turned = turned[:, : len(weights)]
    matrix = turned @ np.diag(weights) @ turned.T
    for level in (0.1, 0.05, 0.0167, 0.005):
        quantile = np.quantile(draws, 1 - level)
        # three cumulants agree; what is left is below a tenth of the level, and the
        # draws add a twentieth
        assert chi_squares_tail(quantile, matrix) == pytest.approx(level, rel=0.15)


def test_constant_features_drift_if_and_only_if_they_change():
    assert chi_squares_tail(0.0, np.zeros((3, 3))) == 1.0
    assert chi_squares_tail(0.1, np.zeros((3, 3))) == 0.0


# -- columns
# --------------------------------------------------------------------------------------


def test_fourth_central_moments_are_those_of_scipy():
    X = np.random.default_rng(0).gamma(2.0, size=(500, 2)) * [1.0, 1e3] + [0.0, 1e4]
    moments = measure_moments(rows_of(X), X[0])
    assert_allclose(moments.fourth_central, stats.moment(X, 4, axis=0), rtol=1e-6)


@pytest.mark.parametrize("heavy", [False, True])
def test_skewed_columns_and_rare_values_raise_no_more_alarms(heavy):
    rng = np.random.default_rng(5)

    def batch(n_samples):
        if heavy:
            return (
                rng.random((n_samples, 6)) < [1e-4, 1e-3, 0.01, 0.1, 0.5, 0.999]
            ).astype(float)
        return np.exp(rng.standard_normal((n_samples, 6)))

    alarms = []
    for _ in range(200):
        _, p_values = column_shifts(moments_of(batch(5000)), moments_of(batch(500)))
        alarms.append(1 - (1 - p_values.min()) ** 6 < 0.05)
    assert np.mean(alarms) <= 0.07


def test_a_constant_column_that_changes_is_found_and_one_that_stays_is_not():
    X = np.column_stack([np.full(100, 0.1), np.full(100, 7.0)])
    moved, p_values = column_shifts(moments_of(X), moments_of(X[:30]))
    assert moved.tolist() == [0.0, 0.0]
    assert p_values.tolist() == [1.0, 1.0]
    new = moments_of(X[:30] + np.array([0.0, 0.5]))
    moved, p_values = column_shifts(moments_of(X), new)
    assert moved.tolist() == [0.0, np.inf]
    assert p_values.tolist() == [1.0, 0.0]


# -- errors
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_the_variance_of_a_mean_squared_error_is_that_of_its_terms(weighted):
    rng = np.random.default_rng(0)
    X, y = draw(rng, 400)
    weights = rng.random(400) if weighted else np.ones(400)
    model = LinearModel(features(), np.zeros((features().n_components, 1)), np.zeros(1))
    parts = [
        rows_of(X[i : i + 100], y[i : i + 100], weights[i : i + 100])
        for i in range(0, 400, 100)
    ]
    found = functools.reduce(add, [evaluate_rows(part, model).whole for part in parts])
    mean = np.average(y**2, weights=weights)
    expected = np.sum((weights * (y**2 - mean)) ** 2) / weights.sum() ** 2 * 400 / 399
    assert found.squares_variance[0] / found.n_effective[0] == pytest.approx(
        expected, rel=1e-9
    )


def test_larger_errors_raise_the_alarm_and_smaller_ones_do_not():
    rng = np.random.default_rng(0)
    held = draw(rng, 2000)
    worse = judge(held, draw(rng, 500, noise=0.6))
    assert worse["parts"] == ["errors"]
    better = judge(held, draw(rng, 500, noise=0.1))
    assert better["p_values"]["errors"] == 1.0


@pytest.mark.parametrize("scale", [1e-90, 1e90])
def test_errors_whose_fourth_powers_are_beyond_float64_are_not_tested(scale, caplog):
    rng = np.random.default_rng(0)
    X, y = draw(rng, 2000)
    X_new, y_new = draw(rng, 500)
    found = judge((X, y * scale), (X_new, y_new * scale))
    assert set(found["p_values"]) == {"embedding", "columns"}
    assert "errors are not tested" in caplog.text


# -- all of it
# --------------------------------------------------------------------------------------


def test_the_level_is_shared_by_the_parts_and_columns_are_left_out_where_they_are_unknown():
    rng = np.random.default_rng(0)
    (X, y) = draw(rng, 300)
    (X_new, y_new) = draw(rng, 100)
    model = LinearModel(features(), np.zeros((features().n_components, 1)), np.zeros(1))
    held = SimpleNamespace(summed=statistics_of(X, y), columns=None, card={})
    errors = evaluate_rows(rows_of(X, y), model).whole
    new = sums_of_new(X_new, y_new, model)
    drift = judge_drift(held, errors, new, held.summed, significance=0.05)
    assert sorted(drift["p_values"]) == ["embedding", "errors"]
    assert drift["columns"] == []
    smallest = min(drift["p_values"].values())
    for level, drifted in ((2.001 * smallest, True), (1.999 * smallest, False)):
        drift = judge_drift(held, errors, new, held.summed, significance=level)
        assert drift["drifted"] is drifted
