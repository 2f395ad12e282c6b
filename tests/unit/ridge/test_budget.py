"""What an effort tries, and what a fit leaves out for want of time."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rff_dist import RFFClassifier, RFFRidge, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.sizes import Machines
from rff_dist.ridge.budget import MIN_COMPONENTS, Budget, Pace
from rff_dist.ridge.choices import choices_of

PACE = Pace(sum_seconds=1e-9, table_seconds=1e-9)


def problem(n_samples, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n_samples, 4))
    return X, np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(n_samples)


def begin(n_samples, **options):
    machines = Machines.of(SerialEngine(1))
    return choices_of(
        ArrayDataset(*problem(n_samples)), RidgeOptions(**options), machines=machines
    )


def test_many_rows_tune_weights_on_more_of_them():
    assert begin(7_999).tuning.weight_rows == 600
    assert begin(8_000).tuning.weight_rows == 1_200


def test_each_effort_plans_at_least_as_much_as_the_one_below():
    planned = [begin(6000, effort=effort) for effort in range(1, 4)]
    n_candidates = [len(choices.candidates) for choices in planned]
    assert n_candidates == sorted(n_candidates)
    assert [choices.component_counts[-1] for choices in planned] == [1024, 2048, 4096]
    # rows that tune are one more
    assert [choices.folds.n_folds for choices in planned] == [3, 4, 6]
    assert [choices.n_round_components for choices in planned] == [512, 1024, 4096]
    assert not planned[0].has_first_round


@pytest.mark.parametrize(
    ("n_samples", "features"), [(300, "nystrom"), (2100, "fourier")]
)
def test_the_least_effort_is_the_median_heuristic_given_by_hand(n_samples, features):
    X, y = problem(n_samples)
    quick = RFFRidge(effort=1, random_state=0).fit(X, y)
    by_hand = RFFRidge(
        "gaussian",
        length_scale="median",
        features=features,
        n_components=quick.n_components_,
        random_state=0,
    ).fit(X, y)
    assert_array_equal(quick.predict(X[:50]), by_hand.predict(X[:50]))
    assert "untried" not in quick.selection_


@given(
    limit=st.floats(0.01, 1000),
    n_samples=st.integers(1, 10**7),
    width=st.sampled_from([256, 512, 2048]),
)
def test_a_final_is_the_largest_that_ends_in_time_or_the_smallest(
    limit, n_samples, width
):
    budget = Budget(limit)
    n_components = budget.components_in_time(PACE, n_samples, width)
    assert MIN_COMPONENTS <= n_components <= width
    assert bool(budget.untried) == (n_components != width)
    if n_components > MIN_COMPONENTS:
        assert PACE.seconds(n_samples, n_components) <= limit
    if n_components < width:
        assert PACE.seconds(n_samples, 2 * n_components) > limit - 1.0


def test_without_a_limit_time_is_endless_and_nothing_is_left_out():
    budget = Budget(None)
    assert budget.remaining() == budget.remaining(0.1) == np.inf
    assert budget.untried == []


# in so little time what is taken may be too much
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but")
@pytest.mark.parametrize("estimator", [RFFRidge, RFFClassifier])
def test_where_no_time_is_left_there_is_a_model_and_the_card_says_what_is_missing(
    estimator, monkeypatch
):
    X, y = problem(3000)
    y = y if estimator is RFFRidge else y > 0
    begun = time.monotonic()
    calls = []

    def racing():  # a second passes whenever somebody looks
        calls.append(0)
        return begun + len(calls)

    monkeypatch.setattr("rff_dist.ridge.budget.time.monotonic", racing)
    model = estimator(time_limit=0.5, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    assert model.n_components_ == MIN_COMPONENTS
    untried, *rest = model.selection_["untried"]
    assert untried.endswith(" candidates")
    assert rest[-1] == "1,792 of 2,048 components"
    assert model.model_.card["time_limit"] == 0.5


def test_with_few_rows_and_no_time_left_a_kernel_is_tried_next_to_the_linear_model():
    X, y = problem(300)
    model = RFFRidge(time_limit=1e-9, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8
    compared = model.model_.card["candidates"]
    assert {candidate["kernel"] for candidate in compared} > {"linear"}


def test_enough_time_leaves_nothing_out_and_is_the_fit_without_a_limit_but_for_its_order():
    X, y = problem(300)
    plenty = RFFRidge(time_limit=1e6, random_state=0).fit(X, y)
    plain = RFFRidge(random_state=0).fit(X, y)
    assert plenty.selection_["untried"] == []
    assert_array_equal(plenty.predict(X), plain.predict(X))
