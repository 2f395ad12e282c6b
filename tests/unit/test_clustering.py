"""Passes over clusters, against k-means written out on an explicit Z."""

import functools
import itertools
import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import chisquare, kstest
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.datasets import make_blobs

from rff_dist import Gaussian, Laplacian, Linear, Min, Nystrom, draw_feature_map
from rff_dist.blocks import Block, Rows, using_threads
from rff_dist.clustering import (
    Centres,
    Choice,
    ClusterGrid,
    Scorer,
    centre_distances,
    choose_centres,
    choose_rows,
    exchange_centres,
    fraction_bits_for,
    improve_centres,
    label_rows,
    measure_tiles,
    row_uniforms,
    sum_clusters,
    weighted_inertia,
)
from rff_dist.errors import DataError, StatisticsError
from rff_dist.feature_map import draw_nystrom
from rff_dist.runs import as_runs
from tests.explicit import explicit_Z

N_ROWS, N_FEATURES, N_CLUSTERS = 3_000, 3, 7
RNG = np.random.default_rng(0)
X = RNG.uniform(0, 3, (N_ROWS, N_FEATURES))
WEIGHTS = RNG.exponential(size=N_ROWS)
draw = functools.partial(draw_feature_map, n_features=N_FEATURES, random_state=0)


def nystrom(kernel):
    sample = X[:200].astype(np.float32)
    return draw_nystrom(kernel, sample, n_components=40, nystrom=Nystrom(), seed=0)


MAPS = {
    "pairs": draw(Gaussian(1.5), n_components=64),
    "phases": draw(Gaussian(1.5), n_components=65, map="phases"),
    "structured": draw(Gaussian(1.5), n_components=64, design="structured"),
    "Laplacian": draw(Laplacian(1.5), n_components=64, design="iid"),
    "two widths": draw(Gaussian(1.0) + 0.25 * Gaussian(4.0), n_components=80),
    "with linear terms": draw(Gaussian(1.5) + 9.0 * Linear(), n_components=67, map="phases"),
    "linear": draw(Linear(), n_components=3, map="phases"),
    "Min": draw(Min(0.0, 3.0), n_components=60),
    "Nyström": nystrom(Gaussian(1.5)),
    "Nyström, unbounded": nystrom(Gaussian(1.5) * Linear()),
}


@pytest.fixture(params=MAPS)
def feature_map(request):
    return MAPS[request.param]


def rows_of(start=0, stop=N_ROWS, *, weighted=False):
    return Rows(Block(0, start, stop), X[start:stop], None, WEIGHTS[start:stop] if weighted else None)


def grid_of(feature_map, *, weighted=False):
    largest = measure_tiles(rows_of(), feature_map)
    exponents = as_runs(np.where(largest > 0, np.frexp(largest)[1], 0))
    weight_exponent = int(np.frexp(WEIGHTS.max())[1]) if weighted else 0
    return ClusterGrid(fraction_bits_for(N_ROWS), weight_exponent, exponents)


def centres_of(feature_map, *, n_init=1, n_clusters=N_CLUSTERS, weighted=False):
    Z = feature_map.transform(X)
    chosen = np.random.default_rng(1).choice(N_ROWS, n_init * n_clusters, replace=False)
    values = Z[chosen].reshape(n_init, n_clusters, -1) * 0.9
    return Centres(feature_map, values, grid_of(feature_map, weighted=weighted))


def squared_distances(Z, centres):
    """‖z − c‖² as it is written, in float64."""
    return np.square(Z[:, np.newaxis] - centres).sum(axis=2)


def nearest(distances):
    """The lowest of those that rounding alone tells apart: features of 0 and 1 have many ties."""
    return (distances <= distances.min(axis=1, keepdims=True) * (1 + 1e-12)).argmax(axis=1)


# -- Lloyd passes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_a_pass_finds_the_means_weights_and_inertia_of_k_means_on_an_explicit_Z(feature_map, weighted):
    state = centres_of(feature_map, n_init=2, weighted=weighted)
    sums = sum_clusters(rows_of(weighted=weighted), state, squared_norms=True)
    Z, w = explicit_Z(feature_map, X), WEIGHTS if weighted else np.ones(N_ROWS)
    squared_norms = sums.sum_of_squared_norms(state)
    assert squared_norms == pytest.approx(w @ np.square(Z).sum(axis=1), rel=1e-10)
    for start, centres in enumerate(state.values):
        distances = squared_distances(Z, centres)
        labels = nearest(distances)
        one_hot = (labels[:, np.newaxis] == np.arange(N_CLUSTERS)) * w[:, np.newaxis]
        # the grid is 2^-39 of the largest feature and weight
        assert_allclose(sums.cluster_weights(state.grid)[start], one_hot.sum(axis=0), rtol=1e-10)
        expected = one_hot.T @ Z / one_hot.sum(axis=0)[:, np.newaxis]
        assert_allclose(sums.means(state)[start], expected, rtol=0, atol=1e-10 * np.abs(Z).max())
        inertia = w @ distances.min(axis=1)
        assert sums.inertias(state, squared_norms)[start] == pytest.approx(inertia, rel=1e-9)
    assert sums.n_samples == N_ROWS


@pytest.mark.parametrize("weighted", [False, True])
@settings(max_examples=10)
@given(cuts=st.sets(st.integers(1, N_ROWS - 1), max_size=5), seed=st.integers(0, 2**32 - 1))
def test_sums_have_the_same_bits_for_any_blocks_in_any_order(weighted, cuts, seed):
    state = centres_of(MAPS["phases"], n_init=2, weighted=weighted)
    ends = [0, *sorted(cuts), N_ROWS]
    blocks = list(itertools.pairwise(ends))
    np.random.default_rng(seed).shuffle(blocks)
    parts = [sum_clusters(rows_of(a, b, weighted=weighted), state, squared_norms=True) for a, b in blocks]
    whole = sum_clusters(rows_of(weighted=weighted), state, squared_norms=True)
    assert functools.reduce(operator.add, parts) == whole


def test_sums_have_the_same_bits_with_any_number_of_threads(feature_map):
    state = centres_of(feature_map, n_init=3)
    found = []
    for n_threads in (1, 2, 3):
        with using_threads(n_threads):
            found.append(sum_clusters(rows_of(), state, squared_norms=True))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_sums_of_other_shapes_are_not_added():
    sums = [sum_clusters(rows_of(), centres_of(MAPS["pairs"], n_clusters=k)) for k in (2, 3)]
    with pytest.raises(StatisticsError, match=r"sums over clusters of shape \(1, 2, 64\) and \(1, 3, 64\)"):
        operator.add(*sums)


@pytest.mark.parametrize("n_samples", [1, 2**23, 2**23 + 1, 10**9, 2**40])
def test_the_sum_of_all_rows_fits_in_an_integer(n_samples):
    assert n_samples * 2 ** fraction_bits_for(n_samples) <= 2**62
    assert fraction_bits_for(n_samples) >= 22


# -- labels --------------------------------------------------------------------------------------------


def test_labels_and_distances_are_those_of_an_explicit_Z(feature_map):
    state = centres_of(feature_map)
    expected = squared_distances(explicit_Z(feature_map, X), state.values[0])
    assert_array_equal(label_rows(rows_of(), state), nearest(expected))
    # a distance is the root of a difference: half the digits near 0, all of them far away
    scale = np.sqrt(expected.max())
    assert_allclose(centre_distances(rows_of(), state), np.sqrt(expected), rtol=1e-9, atol=1e-7 * scale)


def test_ties_go_to_the_lowest_index(feature_map):
    state = centres_of(feature_map)
    twice = Centres(feature_map, np.concatenate([state.values, state.values], axis=1)[:, ::-1], state.grid)
    assert_array_equal(
        label_rows(rows_of(), twice),
        label_rows(rows_of(), Centres(feature_map, twice.values[:, :7], state.grid)),
    )


def test_centres_that_float32_cannot_tell_apart_get_the_rows_nearest_to_them():
    feature_map = MAPS["pairs"]
    Z = explicit_Z(feature_map, X)
    direction = np.random.default_rng(2).standard_normal(64)
    values = np.stack([Z[0] + 1e-9 * direction, Z[0] - 1e-9 * direction])
    state = Centres(feature_map, values[np.newaxis], ClusterGrid(39))
    # which side of the plane between the two: no difference of nearly equal numbers
    margin = (Z - Z[0]) @ direction
    clear = np.abs(margin) > 1e-6
    assert clear.sum() > 0.99 * N_ROWS
    assert_array_equal(label_rows(rows_of(), state)[clear], (margin < 0)[clear])
    # beside a third one far away, single precision of whole scores would see no difference
    far = Centres(feature_map, np.concatenate([values, -values[:1]])[np.newaxis], ClusterGrid(39))
    labels = label_rows(rows_of(), far)
    assert_array_equal(labels[clear & (labels < 2)], (margin < 0)[clear & (labels < 2)])


def test_scores_err_by_less_than_the_tolerance_that_settles_them():
    feature_map = draw(Gaussian(1.0), n_components=512)
    state = centres_of(feature_map, n_clusters=50)
    scorer = Scorer(state)
    features = np.empty((N_ROWS, 512), np.float32)
    feature_map.fill_lines(feature_map.prepare(X), features)
    exact = squared_distances(explicit_Z(feature_map, X), state.values[0])
    least, second = np.sort(exact, axis=1)[:, :2].T
    found = scorer.nearest(features, n_groups=50)  # a group for each centre
    margins = found.margins[0].T
    others = np.isfinite(margins)
    assert (others.sum(axis=1) == 48).all()  # all but the nearest and its rival
    assert scorer.dtype is np.float32
    assert np.abs(margins - (exact - least[:, np.newaxis]))[others].max() < scorer.tolerance < 1e-4
    assert np.abs(found.rival_margins[0] - (second - least)).max() < scorer.tolerance
    distances, sure = found.distances[0], np.isfinite(found.distances[0])
    assert sure.mean() > 0.9
    assert (distances[sure] >= np.sqrt(least)[sure]).all()
    assert_allclose(distances[sure], np.sqrt(least)[sure], atol=1e-3)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [("X", np.nan, "Input X contains NaN: row 1_234, column 1"), ("w", -1.0, "weight is -1.0 in row 1_234")],
)
def test_bad_values_are_named_by_row(column, value, message):
    inputs, weights = X.copy(), WEIGHTS.copy()
    if column == "X":
        inputs[1234, 1] = value
    else:
        weights[1234] = value
    rows = Rows(Block(0, 0, N_ROWS), inputs, None, weights)
    with pytest.raises(DataError, match=message):
        sum_clusters(rows, centres_of(MAPS["pairs"], weighted=True))


def test_features_that_overflow_are_refused():
    rows = Rows(Block(0, 0, 1), np.full((1, 3), 3e38))  # finite in float32, its angles are not
    state = centres_of(MAPS["pairs"])
    for compute in (label_rows, centre_distances, sum_clusters):
        with pytest.raises(DataError, match="features of some rows are not finite: their inputs overflow"):
            compute(rows, state)


# -- rows chosen in a pass -----------------------------------------------------------------------------


def test_the_farthest_rows_are_found_and_the_lower_goes_first_of_equals(feature_map):
    state = centres_of(feature_map)
    twice = Rows(Block(0, 100, 100 + 2 * N_ROWS), np.concatenate([X, X]))
    found = choose_rows(twice, Choice(Centres(feature_map, state.values, state.grid, precise=True), 6))
    Z = explicit_Z(feature_map, X)
    farthest = np.argsort(-squared_distances(Z, state.values[0]).min(axis=1))[:3]
    expected = [row for first in farthest for row in (100 + first, 100 + first + N_ROWS)]
    assert_array_equal(np.sort(found.row_numbers), np.sort(expected))
    assert_array_equal(found.row_numbers, expected)
    assert_allclose(found.features, np.repeat(Z[farthest], 2, axis=0), rtol=0, atol=1e-9)


def test_rows_at_a_centre_or_without_weight_are_not_chosen():
    feature_map = MAPS["pairs"]
    state = Centres(feature_map, explicit_Z(feature_map, X[:2])[np.newaxis], ClusterGrid(39))
    rows = Rows(Block(0, 0, 4), X[[0, 1, 2, 3]], None, np.array([1.0, 1.0, 0.0, 2.0]))
    for seed in (None, 5):
        assert choose_rows(rows, Choice(state, 4, seed)).row_numbers.tolist() == [3]


@given(cuts=st.sets(st.integers(1, N_ROWS - 1), max_size=4), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=10)
def test_the_same_rows_are_drawn_from_any_blocks(cuts, seed):
    state = centres_of(MAPS["pairs"])
    ends = [0, *sorted(cuts), N_ROWS]
    parts = [choose_rows(rows_of(a, b), Choice(state, 20, seed, 3)) for a, b in itertools.pairwise(ends)]
    found, whole = functools.reduce(operator.add, parts), choose_rows(rows_of(), Choice(state, 20, seed, 3))
    assert_array_equal(found.row_numbers, whole.row_numbers)
    assert_array_equal(found.features, whole.features)


def test_rows_are_drawn_with_probabilities_in_proportion_to_weight_and_squared_distance():
    feature_map = MAPS["linear"]
    inputs, weights = (
        np.array([[1.0, 0, 0], [0, 2.0, 0], [3.0, 0, 0], [0, 0, 0]]),
        np.array([9.0, 1.0, 1.0, 1.0]),
    )
    state = Centres(feature_map, np.zeros((1, 1, 3)), ClusterGrid(39, 4, ((3, 2),)))
    rows = Rows(Block(0, 0, 4), inputs, None, weights)
    drawn = [choose_rows(rows, Choice(state, 1, seed)).row_numbers[0] for seed in range(1500)]
    expected = 1500 * np.array([9.0, 4.0, 9.0]) / 22
    assert chisquare(np.bincount(drawn, minlength=3), expected).pvalue > 1e-3


def test_a_rows_uniform_number_is_its_own():
    whole = row_uniforms(7, 3, 0, 10_000)
    for start, stop in [(0, 1), (1, 2), (3, 9), (4, 8), (4_097, 10_000)]:
        assert_array_equal(row_uniforms(7, 3, start, stop), whole[start:stop])
    assert kstest(whole, "uniform").pvalue > 1e-3
    assert not np.intersect1d(whole, row_uniforms(8, 3, 0, 10_000)).size


# -- starts --------------------------------------------------------------------------------------------


def test_starts_are_as_good_as_scikit_learns_k_means_plus_plus():
    points, _ = make_blobs(1_000, 5, centers=20, cluster_std=0.5, random_state=0)
    potentials = {"ours": [], "theirs": []}
    for seed in range(15):
        ours = points[choose_centres(points, np.ones(1_000), 20, seed=seed)]
        theirs = kmeans_plusplus(points, 20, random_state=seed)[0]
        for name, centres in (("ours", ours), ("theirs", theirs)):
            potentials[name].append(squared_distances(points, centres).min(axis=1).sum())
    assert np.median(potentials["ours"]) < 1.1 * np.median(potentials["theirs"])


def test_weights_of_points_count_as_repetitions():
    points = np.random.default_rng(3).standard_normal((50, 4))
    weights = np.random.default_rng(4).integers(1, 5, 50)
    chosen = choose_centres(points, weights.astype(float), 10, seed=0)
    repeated = np.repeat(np.arange(50), weights)
    assert_array_equal(repeated[choose_centres(points[repeated], np.ones(len(repeated)), 10, seed=0)], chosen)


def test_no_more_centres_are_chosen_than_points_are_distinct():
    points = np.repeat(np.random.default_rng(3).standard_normal((3, 4)), 10, axis=0) + 100.0
    chosen = choose_centres(points, np.ones(30), 5, seed=0)
    assert len(np.unique(points[chosen], axis=0)) == len(chosen) == 3


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_each_exchange_is_the_best_place_for_a_point_and_never_costs(seed, n_clusters, n_steps):
    rng = np.random.default_rng(seed)
    points, weights = rng.standard_normal((40, 3)), rng.exponential(size=40)
    chosen = rng.choice(40, n_clusters, replace=False)

    def cost(some):
        return weights @ squared_distances(points, points[some]).min(axis=1)

    before = exchange_centres(points, weights, chosen, n_steps=n_steps - 1, seed=seed)
    after = exchange_centres(points, weights, chosen, n_steps=n_steps, seed=seed)
    changed = np.flatnonzero(after != before)
    assert len(changed) <= 1
    if len(changed):
        point = after[changed[0]]
        places = [np.where(np.arange(n_clusters) == i, point, before) for i in range(n_clusters)]
        costs = [cost(place) for place in places]
        assert cost(after) == pytest.approx(min(costs), rel=1e-12)
        assert cost(after) < cost(before)
    assert len(np.unique(after)) == n_clusters


def test_exchanges_take_one_of_two_centres_from_a_cluster_to_one_without():
    points, blobs = make_blobs(500, 2, centers=5, cluster_std=0.3, random_state=1)
    poor = np.concatenate(
        [np.flatnonzero(blobs == i)[:1] for i in (0, 1, 2, 3)] + [np.flatnonzero(blobs == 3)[1:2]]
    )
    chosen = exchange_centres(points, np.ones(500), poor, n_steps=25, seed=0)
    assert len(np.unique(blobs[chosen])) == 5
    stuck, found = (
        improve_centres(points, np.ones(500), points[some], max_iter=100) for some in (poor, chosen)
    )
    inertia = weighted_inertia(points, np.ones(500), found)
    assert inertia < 0.2 * weighted_inertia(points, np.ones(500), stuck)
    assert inertia == pytest.approx(squared_distances(points, found).min(axis=1).sum(), rel=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_candidates_centres_improve_as_scikit_learns_do():
    points = np.random.default_rng(5).standard_normal((400, 6)) + 10.0
    weights = np.random.default_rng(6).exponential(size=400)
    start = points[:8]
    model = KMeans(8, init=start, n_init=1, max_iter=5, tol=0.0).fit(points, sample_weight=weights)
    improved = improve_centres(points, weights, start, max_iter=5)
    assert_allclose(improved, model.cluster_centers_, rtol=1e-12)
    alone = improve_centres(points, weights, np.concatenate([start, np.full((1, 6), 1e3)]), max_iter=5)
    assert_array_equal(alone[8], np.full(6, 1e3))  # an empty one stays


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_rows_distances_are_its_own_whatever_rows_are_beside_it(feature_map, n_threads):
    state = centres_of(feature_map)
    whole = centre_distances(rows_of(), state)
    with using_threads(n_threads):
        for start, stop in ((0, 1), (7, 650), (1, N_ROWS)):
            assert_array_equal(centre_distances(rows_of(start, stop), state), whole[start:stop])
