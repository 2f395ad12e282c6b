"""Rows without weight change nothing; numbers too large or small for the sums are refused in words."""

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine, draw_feature_map, drawing, pipeline
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.storage import ArrayDataset
from tests.plain import plain_ridge

ENGINE = SerialEngine(n_threads=1)


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(3000)


def test_a_first_row_without_weight_does_not_spoil_the_standardisation(problem):
    X, y = problem
    weight = np.ones(len(X))
    X[0], weight[0] = 1e9, 0.0
    found = pipeline.standardizer_from(pipeline.inspect(ArrayDataset(X, y, weight), engine=ENGINE))
    np.testing.assert_allclose(found.mean, X[1:].mean(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.scale, X[1:].std(axis=0), rtol=1e-12)


def test_the_median_heuristic_finds_few_rows_with_weight_among_many_without(problem):
    X, y = problem
    weight = np.zeros(len(X))
    weight[::15] = 1.0
    scale = drawing.median_length_scale(ArrayDataset(X, y, weight), Gaussian(), standardizer=None, seed=0)
    alone = drawing.median_length_scale(ArrayDataset(X[::15], y[::15]), Gaussian(), standardizer=None, seed=0)
    assert scale == alone


def test_the_median_heuristic_names_the_row_of_a_nan(problem):
    X, y = problem
    weight = np.ones(len(X))
    weight[:1000] = 0.0
    X[2500, 1] = np.nan
    with pytest.raises(DataError, match="row 2_500"):
        drawing.median_length_scale(
            ArrayDataset(X[:3000], y, np.where(np.arange(3000) == 2500, 1.0, 0.0)),
            Gaussian(),
            standardizer=None,
            seed=0,
        )


@pytest.mark.parametrize("weight", [1024.0000000000002, 1024.0, 0.1, 3.0, 2.0**-30, 1e-100, 1e100])
def test_equal_weights_of_any_size_fit_the_grid(problem, weight):
    X, y = problem
    model = plain_ridge(n_components=16, alpha=weight, random_state=0)
    plain = plain_ridge(n_components=16, alpha=1.0, random_state=0).fit(X, y)
    weighted = model.fit(X, y, sample_weight=np.full(len(X), weight))
    np.testing.assert_allclose(weighted.predict(X), plain.predict(X), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("weight", [1e-300, 1e300])
def test_weights_beyond_float64s_reach_are_refused(problem, weight):
    X, y = problem
    with pytest.raises(DataError, match=r"sample weights are up to|not finite|overflows"):
        plain_ridge(n_components=16).fit(X, y, sample_weight=np.full(len(X), weight))


def test_fractions_after_whole_weights_are_refused_since_those_repeat_rows(problem):
    X, y = problem
    model = plain_ridge(n_components=16, random_state=0).fit(X, y, sample_weight=np.full(len(X), 2.0))
    with pytest.raises(DataError, match=r"sample_weight is 0.5 in row 0, .* whole numbers"):
        model.partial_fit(X, y, sample_weight=np.full(len(X), 0.5))


@pytest.mark.parametrize(("column", "name"), [(0, "X, column 1"), (1, "y, column 0")])
@pytest.mark.parametrize(("factor", "problem_"), [(1e-200, "varies by less"), (1e200, "overflows float64")])
def test_columns_that_float64_cannot_square_are_named(problem, column, name, factor, problem_):
    X, y = problem
    if column == 0:
        X[:, 1] *= factor
    else:
        y = y * factor
    with pytest.raises(DataError, match=rf"Input {name} {problem_}"):
        plain_ridge(n_components=16, length_scale=1.0).fit(X, y)


def test_a_large_mean_without_standardisation_is_warned_of(problem):
    X, y = problem
    with pytest.warns(UserWarning, match="column 2 of X has mean 1e"):
        plain_ridge(n_components=16, standardize=False).fit(X + np.array([0.0, 0.0, 1e8]), y)


def test_a_failing_solve_keeps_the_rows_that_were_added(problem):
    X, y = problem
    model = plain_ridge(n_components=16, alpha=1.0, random_state=0).fit(X[:2000], y[:2000])
    model.partial_fit(X[2000:], y[2000:])
    model.alpha = "none"
    with pytest.raises(InvalidParameterError):
        model.predict(X[:2])
    model.alpha = 1.0
    assert model.statistics_.n_samples == 3000
    model.predict(X[:2])
    assert model.model_.statistics.n_samples == 3000


@pytest.mark.parametrize("met", [True, False])
def test_score_of_a_constant_target_follows_scikit_learn_for_datasets_too(problem, met):
    X, _ = problem
    model = plain_ridge(n_components=16, random_state=0).fit(X, np.full(len(X), 3.0))
    target = np.full(len(X), 3.0 if met else 4.0)
    assert model.score(ArrayDataset(X, target)) == model.score(X, target) == float(met)


def test_features_of_a_nan_are_refused_with_its_place():
    feature_map = draw_feature_map("gaussian", n_features=2, n_components=4)
    with pytest.raises(DataError, match="row 3, column 1"):
        feature_map.transform([[0.0, 0.0]] * 3 + [[0.0, np.nan]])


@pytest.mark.parametrize(
    "parameters", [{"alpha": [0.0, 1.0]}, {"alpha": []}, {"length_scale": None}, {"alpha": [1.0, -1.0]}]
)
def test_parameters_are_refused_before_the_data_are_read(parameters):
    with pytest.raises(InvalidParameterError):
        plain_ridge(**parameters).fit("nowhere.zarr")


def test_accumulate_wants_an_open_dataset():
    feature_map = draw_feature_map("gaussian", n_features=2, n_components=4)
    with pytest.raises(InvalidParameterError, match=r"a str; open it first: open_dataset"):
        pipeline.accumulate("data.zarr", feature_map)


def test_the_median_heuristic_says_when_it_finds_no_row_with_weight(problem):
    X, y = problem
    with pytest.raises(DataError, match="none of 3_000 sampled rows has a weight above 0"):
        drawing.median_length_scale(
            ArrayDataset(X, y, np.zeros(len(X))), Gaussian(), standardizer=None, seed=0
        )
