"""Passes over clusters, against k-means written out on an explicit Z."""

import functools
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import kstest

from rff_dist import Gaussian
from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError
from rff_dist.frequencies.uniforms import row_uniforms
from rff_dist.kmeans.cluster_sums import ClusterGrid, ClusterState, fraction_bits_for
from rff_dist.kmeans.lloyd_pass import Tally, centre_distances, label_rows, sum_clusters
from rff_dist.kmeans.nearest import WholeComparer
from rff_dist.numerics.machine import using_threads
from tests.clustered_rows import (
    MAPS,
    N_CLUSTERS,
    N_ROWS,
    WEIGHTS,
    X,
    centres_of,
    draw,
    nearest,
    rounded,
    rows_of,
    squared_distances,
)
from tests.refusals import refuses


@pytest.fixture(params=MAPS)
def feature_map(request):
    return MAPS[request.param]


# -- Lloyd passes
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_a_pass_finds_the_means_weights_and_inertia_of_k_means_on_an_explicit_Z(
    feature_map, weighted
):
    state = centres_of(feature_map, n_init=2, weighted=weighted)
    sums = sum_clusters(rows_of(weighted=weighted), state, with_norms=True)
    Z = feature_map.transform(X)
    w = WEIGHTS if weighted else np.ones(N_ROWS)
    squared_norms = sums.sum_of_squared_norms(state)
    assert squared_norms == pytest.approx(w @ np.square(Z).sum(axis=1), rel=1e-10)
    for start, centres in enumerate(state.centres):
        distances = squared_distances(Z, centres)
        labels = nearest(squared_distances(Z, rounded(feature_map, centres)))
        one_hot = (labels[:, np.newaxis] == np.arange(N_CLUSTERS)) * w[:, np.newaxis]
        # the grid is 2^-39 of the largest feature and weight
        assert_allclose(
            sums.cluster_weights(state.grid)[start], one_hot.sum(axis=0), rtol=1e-10
        )
        expected = one_hot.T @ Z / one_hot.sum(axis=0)[:, np.newaxis]
        assert_allclose(
            sums.means(state)[start], expected, rtol=0, atol=1e-10 * np.abs(Z).max()
        )
        inertia = w @ distances[np.arange(N_ROWS), labels]
        assert sums.inertias(state, squared_norms)[start] == pytest.approx(
            inertia, rel=1e-9
        )
    assert sums.n_samples == N_ROWS


@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=10)
@given(
    cuts=st.sets(st.integers(1, N_ROWS - 1), max_size=5), seed=st.integers(0, 2**32 - 1)
)
def test_sums_have_the_same_bits_for_any_blocks_in_any_order(weighted, cuts, seed):
    state = centres_of(MAPS["phases"], n_init=2, weighted=weighted)
    ends = [0, *sorted(cuts), N_ROWS]
    blocks = list(itertools.pairwise(ends))
    np.random.default_rng(seed).shuffle(blocks)
    parts = [
        sum_clusters(rows_of(a, b, weighted=weighted), state, with_norms=True)
        for a, b in blocks
    ]
    whole = sum_clusters(rows_of(weighted=weighted), state, with_norms=True)
    assert functools.reduce(operator.add, parts) == whole


def test_sums_have_the_same_bits_with_any_number_of_threads(feature_map):
    state = centres_of(feature_map, n_init=3)
    found = []
    for n_threads in (1, 2, 3):
        with using_threads(n_threads):
            found.append(sum_clusters(rows_of(), state, with_norms=True))
    assert found[1] == found[0]
    assert found[2] == found[0]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_components=st.sampled_from([1, 7, 600]),
    largest=st.sampled_from([2, 16_256]),
)
def test_whole_numbers_are_compared_and_added_without_error(
    seed, n_components, largest
):
    """Few distinct values make many ties; the largest values make sums that float32
    rounds.
    """
    rng = np.random.default_rng(seed)
    feature_map = draw(Gaussian(), n_components=n_components, map="phases")
    one = feature_map.scale / 16_256
    rows = rng.integers(-largest, largest, (1_000, n_components), endpoint=True)
    centres = rng.integers(-largest, largest, (2, 4, n_components), endpoint=True)
    centres[:, 1] = centres[:, 0]
    # a difference that float32 may not see
    centres[:, 1, 0] -= np.sign(centres[:, 1, 0])
    off = rng.uniform(-0.49, 0.49, centres.shape)  # rounded away
    state = ClusterState(feature_map, (centres + off) * one, ClusterGrid(39))
    distances = [
        [np.square(rows - centre).sum(axis=1) for centre in start] for start in centres
    ]
    expected = np.argmin(distances, axis=1)  # in 64-bit integers
    features = rows.astype(np.int16)
    labels = WholeComparer(state).labels(features)
    assert_array_equal(labels, expected)
    tally = Tally(state)
    tally.add(features, labels, np.ones(1_000))
    sums = tally.sums(1_000)
    for start, own in enumerate(expected):
        for k in range(4):
            assert_array_equal(
                sums.features[start, k], rows[own == k].sum(axis=0) << 25
            )
            assert sums.weights[start, k] == int((own == k).sum()) << 39


@pytest.mark.parametrize("n_samples", [1, 2**23, 2**23 + 1, 10**9, 2**40])
def test_the_sum_of_all_rows_fits_in_an_integer(n_samples):
    assert n_samples * 2 ** fraction_bits_for(n_samples) <= 2**62
    assert fraction_bits_for(n_samples) >= 22


# -- labels
# --------------------------------------------------------------------------------------


def test_labels_and_distances_are_those_of_an_explicit_Z(feature_map):
    state = centres_of(feature_map)
    Z = feature_map.transform(X)
    compared = squared_distances(Z, rounded(feature_map, state.centres[0]))
    assert_array_equal(label_rows(rows_of(), state), nearest(compared))
    expected = squared_distances(Z, state.centres[0])
    # a distance is the root of a difference: it loses half its digits near 0, none far
    # away
    scale = np.sqrt(expected.max())
    assert_allclose(
        centre_distances(rows_of(), state),
        np.sqrt(expected),
        rtol=1e-9,
        atol=1e-7 * scale,
    )


def test_ties_go_to_the_lowest_index(feature_map):
    state = centres_of(feature_map)
    twice = ClusterState(
        feature_map,
        np.concatenate([state.centres, state.centres], axis=1)[:, ::-1],
        state.grid,
    )
    assert_array_equal(
        label_rows(rows_of(), twice),
        label_rows(
            rows_of(), ClusterState(feature_map, twice.centres[:, :7], state.grid)
        ),
    )


def test_centres_that_are_close_together_get_the_rows_nearest_to_them():
    feature_map = MAPS["high precision"]
    Z = feature_map.transform(X)
    direction = np.random.default_rng(2).standard_normal(64)
    values = np.stack([Z[0] + 1e-9 * direction, Z[0] - 1e-9 * direction])
    state = ClusterState(feature_map, values[np.newaxis], ClusterGrid(39))
    # which side of the plane between the two: no difference of nearly equal numbers
    margin = (Z - Z[0]) @ direction
    clear = np.abs(margin) > 1e-4
    assert clear.sum() > 0.99 * N_ROWS
    assert_array_equal(label_rows(rows_of(), state)[clear], (margin < 0)[clear])


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("X", np.nan, ["NaN", "row 1_234", "column 1"]),
        ("w", -1.0, ["-1.0", "row 1_234"]),
    ],
)
def test_bad_values_are_named_by_row(column, value, message):
    inputs = X.copy()
    weights = WEIGHTS.copy()
    if column == "X":
        inputs[1234, 1] = value
    else:
        weights[1234] = value
    rows = Rows(Block(0, 0, N_ROWS), inputs, None, weights)
    with refuses(DataError, *message):
        sum_clusters(rows, centres_of(MAPS["pairs"], weighted=True))


def test_a_rows_uniform_number_is_its_own():
    whole = row_uniforms(7, 3, 0, 10_000)
    for start, stop in [(0, 1), (1, 2), (3, 9), (4, 8), (4_097, 10_000)]:
        assert_array_equal(row_uniforms(7, 3, start, stop), whole[start:stop])
    assert kstest(whole, "uniform").pvalue > 1e-3
    assert not np.intersect1d(whole, row_uniforms(8, 3, 0, 10_000)).size


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_rows_distances_are_its_own_whatever_rows_are_beside_it(
    feature_map, n_threads
):
    state = centres_of(feature_map)
    whole = centre_distances(rows_of(), state)
    with using_threads(n_threads):
        for start, stop in ((0, 1), (7, 650), (1, N_ROWS)):
            assert_array_equal(
                centre_distances(rows_of(start, stop), state), whole[start:stop]
            )
