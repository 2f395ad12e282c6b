"""Rows without weight change nothing; numbers too large or small for the sums are
refused in words.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from rff_dist import Gaussian
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.median_distances import MedianDistances
from tests.covering import covering
from tests.plain import plain_ridge
from tests.refusals import refuses


def median_distance(dataset):
    return MedianDistances(dataset, standardizer=None, seed=0)(Gaussian())


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(3000)


def test_the_median_heuristic_names_the_row_of_a_nan(problem):
    X, y = problem
    weight = np.ones(len(X))
    weight[:1000] = 0.0
    X[2500, 1] = np.nan
    with refuses(DataError, "row 2_500"):
        median_distance(
            ArrayDataset(X[:3000], y, np.where(np.arange(3000) == 2500, 1.0, 0.0))
        )


def scaled(model, factor):
    """Return parameters that mean the same with weights that are `factor` times as
    large.
    """
    given = model.get("alpha", "auto")
    return (
        model
        if isinstance(given, str)
        else {**model, "alpha": np.multiply(given, factor)}
    )


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize(
    ("choice", "factor"),
    covering(
        [
            {"alpha": "gcv"},
            {"alpha": "evidence"},
            {"cv": 5},
            {"alpha": [0.01, 0.1, 1.0, 10.0]},
        ],
        [1e-100, 1 / 3000, 1e5, 1e100],
        meet=1,
    ),
    ids=str,
)
def test_a_factor_on_all_weights_changes_nothing_but_alpha(problem, choice, factor):
    X, y = (part[:400] for part in problem)
    weights = np.random.default_rng(1).uniform(0.2, 3.0, len(X))
    plain, more = (
        plain_ridge(n_components=40, length_scale=1.0, **scaled(choice, c)).fit(
            X, y, weights * c
        )
        for c in (1.0, factor)
    )
    # refined by Brent's method to 1e-3 of log alpha, whose path rounding may bend
    assert_allclose(more.alpha_, plain.alpha_ * factor, rtol=2e-3)
    if "scores" in plain.selection_:
        found = [np.nanmin(model.selection_["scores"]) for model in (more, plain)]
        assert_allclose(*found, rtol=1e-4)
    for one, two in zip(
        more.predict(X, return_std=True), plain.predict(X, return_std=True), strict=True
    ):
        assert_allclose(one, two, rtol=1e-4, atol=1e-5)


def test_weights_beyond_the_sums_digits_are_warned_of(problem):
    X, y = problem
    weights = np.full(len(X), 1e-12)
    weights[0] = 1.0
    with pytest.warns(
        UserWarning,
        match=r"sample weights go from 1e-12 to 1: .* fewer than three digits",
    ):
        plain_ridge(n_components=16, alpha=1e-9).fit(X, y, weights)


@pytest.mark.parametrize("smallest", [0.0, 1e-9])
def test_ordinary_weights_and_none_are_not_warned_of(problem, smallest):
    X, y = problem
    plain_ridge(n_components=16, alpha=1.0).fit(
        X, y, np.geomspace(1e-9, 1.0, len(X)) * (y > 0) + smallest
    )


@pytest.mark.parametrize("weight", [1e-300, 1e300])
def test_weights_beyond_float64s_reach_are_refused(problem, weight):
    X, y = problem
    with pytest.raises(
        DataError, match=r"sample weights are up to|not finite|overflows"
    ):
        plain_ridge(n_components=16).fit(X, y, sample_weight=np.full(len(X), weight))


def test_fractions_repeat_no_row(problem):
    X, y = problem
    model = plain_ridge(n_components=16, alpha=1.0, sample_weight_kind="frequency")
    model.fit(X, y, sample_weight=np.full(len(X), 2.0))
    with refuses(DataError, "sample_weight", "0.5", "row 0"):
        model.partial_fit(X, y, sample_weight=np.full(len(X), 0.5))
    with refuses(DataError, "sample_weight", "0.5", "row 0"):
        model.fit(X, y, sample_weight=np.full(len(X), 0.5))


@pytest.mark.parametrize(("column", "name"), [(0, "X, column 1"), (1, "y, column 0")])
@pytest.mark.parametrize(
    ("factor", "problem_"), [(1e-200, "varies so little"), (1e200, "overflows float64")]
)
def test_columns_that_float64_cannot_square_are_named(
    problem, column, name, factor, problem_
):
    X, y = problem
    if column == 0:
        X[:, 1] *= factor
    else:
        y = y * factor
    with refuses(DataError, name, problem_):
        plain_ridge(n_components=16, length_scale=1.0).fit(X, y)


def test_a_large_mean_without_standardisation_is_warned_of(problem):
    X, y = problem
    with pytest.warns(UserWarning, match="column 2 of X has mean 1e"):
        plain_ridge(n_components=16, standardize=False).fit(
            X + np.array([0.0, 0.0, 1e6]), y
        )


def test_a_failing_solve_keeps_the_rows_that_were_added(problem):
    X, y = problem
    model = plain_ridge(n_components=16, alpha=1.0).fit(X[:2000], y[:2000])
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
    model = plain_ridge(n_components=16).fit(X, np.full(len(X), 3.0))
    target = np.full(len(X), 3.0 if met else 4.0)
    assert model.score(ArrayDataset(X, target)) == model.score(X, target) == float(met)


def test_the_median_heuristic_says_when_it_finds_no_row_with_weight(problem):
    X, y = problem
    with refuses(DataError, "3_000", "0"):
        median_distance(ArrayDataset(X, y, np.zeros(len(X))))
