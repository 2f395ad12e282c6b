"""Candidates for centres, compared with distances written out on an explicit Z."""

import functools
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare
from sklearn.cluster import kmeans_plusplus
from sklearn.datasets import make_blobs

from rff_dist.data.blocks import Block, Rows
from rff_dist.kmeans.candidates import (
    SeedChoice,
    choose_centres,
    choose_rows,
    exchange_centres,
    weigh_points,
)
from rff_dist.kmeans.cluster_sums import ClusterGrid, ClusterState
from tests.clustered_rows import (
    MAPS,
    N_ROWS,
    X,
    centres_of,
    nearest,
    rows_of,
    squared_distances,
)


@pytest.fixture(params=MAPS)
def feature_map(request):
    return MAPS[request.param]


# -- rows chosen in a pass
# -----------------------------------------------------------------------------


def test_the_farthest_rows_are_found_and_the_lower_goes_first_of_equals(feature_map):
    state = centres_of(feature_map)
    twice = Rows(Block(0, 100, 100 + 2 * N_ROWS), np.concatenate([X, X]))
    found = choose_rows(twice, SeedChoice(state, 6))
    Z = feature_map.transform(X)
    farthest = np.argsort(-squared_distances(Z, state.centres[0]).min(axis=1))[:3]
    expected = [
        row for first in farthest for row in (100 + first, 100 + first + N_ROWS)
    ]
    assert_array_equal(np.sort(found.row_numbers), np.sort(expected))
    assert_array_equal(found.row_numbers, expected)
    assert_allclose(
        found.features, np.repeat(Z[farthest], 2, axis=0), rtol=0, atol=1e-9
    )


def test_rows_at_a_centre_or_without_weight_are_not_chosen():
    feature_map = MAPS["pairs"]
    state = ClusterState(
        feature_map, feature_map.transform(X[:2])[np.newaxis], ClusterGrid(39)
    )
    rows = Rows(Block(0, 0, 4), X[[0, 1, 2, 3]], None, np.array([1.0, 1.0, 0.0, 2.0]))
    for seed in (None, 5):
        assert choose_rows(rows, SeedChoice(state, 4, seed)).row_numbers.tolist() == [3]


@given(
    cuts=st.sets(st.integers(1, N_ROWS - 1), max_size=4), seed=st.integers(0, 2**64 - 1)
)
@settings(max_examples=10)
def test_the_same_rows_are_drawn_from_any_blocks(cuts, seed):
    state = centres_of(MAPS["pairs"])
    choice = SeedChoice(state, 20, seed)
    ends = [0, *sorted(cuts), N_ROWS]
    parts = [choose_rows(rows_of(a, b), choice) for a, b in itertools.pairwise(ends)]
    found = functools.reduce(operator.add, parts)
    whole = choose_rows(rows_of(), choice)
    assert_array_equal(found.row_numbers, whole.row_numbers)
    assert_array_equal(found.features, whole.features)


def test_rows_are_drawn_with_probabilities_in_proportion_to_weight_and_squared_distance():
    feature_map = MAPS["linear"]
    inputs = np.array([[1.0, 0, 0], [0, 2.0, 0], [3.0, 0, 0], [0, 0, 0]])
    weights = np.array([9.0, 1.0, 1.0, 1.0])
    state = ClusterState(
        feature_map, np.zeros((1, 1, 3)), ClusterGrid(39, 4, ((3, 2),))
    )
    rows = Rows(Block(0, 0, 4), inputs, None, weights)
    drawn = [
        choose_rows(rows, SeedChoice(state, 1, seed)).row_numbers[0]
        for seed in range(1500)
    ]
    expected = 1500 * np.array([9.0, 4.0, 9.0]) / 22
    assert chisquare(np.bincount(drawn, minlength=3), expected).pvalue > 1e-3


@pytest.mark.parametrize("weighted", [False, True])
def test_points_weigh_what_the_rows_nearest_to_them_weigh(feature_map, weighted):
    state = centres_of(feature_map, n_clusters=60, weighted=weighted)
    rows = rows_of(weighted=weighted)
    distances = squared_distances(feature_map.transform(X), state.centres[0])
    expected = np.bincount(nearest(distances), rows.sample_weight, minlength=60)
    lowest, second = np.sort(distances, axis=1)[:, :2].T
    tied = second <= lowest * (1 + 1e-12)  # features of 0 and 1 have many
    expected_of_tied = np.sum(
        tied if rows.sample_weight is None else rows.sample_weight[tied]
    )
    sums = weigh_points(rows, state)
    weights = sums.cluster_weights(state.grid)[0]
    assert sums.n_samples == N_ROWS
    assert weights.sum() == pytest.approx(expected.sum(), rel=1e-9)
    assert np.abs(weights - expected).sum() <= 2 * expected_of_tied + 1e-6


# -- starts
# --------------------------------------------------------------------------------------


def test_starts_are_as_good_as_scikit_learns_k_means_plus_plus():
    points, _ = make_blobs(1_000, 5, centers=20, cluster_std=0.5, random_state=0)
    potentials = {"ours": [], "theirs": []}
    for seed in range(15):
        ours = points[choose_centres(points, np.ones(1_000), 20, seed=seed)]
        theirs = kmeans_plusplus(points, 20, random_state=seed)[0]
        for name, centres in (("ours", ours), ("theirs", theirs)):
            potentials[name].append(
                squared_distances(points, centres).min(axis=1).sum()
            )
    assert np.median(potentials["ours"]) < 1.1 * np.median(potentials["theirs"])


def test_weights_of_points_count_as_repetitions():
    points = np.random.default_rng(3).standard_normal((50, 4))
    weights = np.random.default_rng(4).integers(1, 5, 50)
    chosen = choose_centres(points, weights.astype(float), 10, seed=0)
    repeated = np.repeat(np.arange(50), weights)
    assert_array_equal(
        repeated[choose_centres(points[repeated], np.ones(len(repeated)), 10, seed=0)],
        chosen,
    )


def test_no_more_centres_are_chosen_than_points_are_distinct():
    points = (
        np.repeat(np.random.default_rng(3).standard_normal((3, 4)), 10, axis=0) + 100.0
    )
    chosen = choose_centres(points, np.ones(30), 5, seed=0)
    assert len(np.unique(points[chosen], axis=0)) == len(chosen) == 3


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_each_exchange_is_the_best_place_for_a_point_and_never_costs(
    seed, n_clusters, n_steps
):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((40, 3))
    weights = rng.exponential(size=40)
    chosen = rng.choice(40, n_clusters, replace=False)

    def cost(some):
        return weights @ squared_distances(points, points[some]).min(axis=1)

    before = exchange_centres(points, weights, chosen, n_steps=n_steps - 1, seed=seed)
    after = exchange_centres(points, weights, chosen, n_steps=n_steps, seed=seed)
    changed = np.flatnonzero(after != before)
    assert len(changed) <= 1
    if len(changed):
        point = after[changed[0]]
        places = [
            np.where(np.arange(n_clusters) == i, point, before)
            for i in range(n_clusters)
        ]
        costs = [cost(place) for place in places]
        assert cost(after) == pytest.approx(min(costs), rel=1e-12)
        assert cost(after) < cost(before)
    assert len(np.unique(after)) == n_clusters
