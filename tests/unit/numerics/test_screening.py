"""Scores of bytes: what they are made of, how they are bounded, and that no label depends on them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numba import njit
from numba.core.errors import NumbaError
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Gaussian, draw_feature_map
from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError
from rff_dist.kmeans.cluster_sums import Centres, ClusterGrid
from rff_dist.kmeans.lloyd_pass import Scorer, Tally, label_rows, sum_clusters
from rff_dist.numerics import compiled, vector_code
from rff_dist.numerics.screening import FRACTION, GROUP, LANES, screen_of
from tests.clustered_rows import MAPS, N_CLUSTERS, X, centres_of, nearest, rows_of, squared_distances
from tests.explicit import explicit_Z

SEEDS = st.integers(0, 2**32 - 1)


def screened(weights, offsets, middle_weights=None, middle_offsets=None, **given):
    """Return what scores are screened with, of features in [-1, 1] unless it is given otherwise."""
    n_init, _, D = weights.shape
    middles = np.zeros((n_init, D)) if middle_weights is None else middle_weights
    added = np.zeros(n_init) if middle_offsets is None else middle_offsets
    defaults = {"largest": np.ones(D), "reach": np.sqrt(D), "tolerance": 0.0}
    return screen_of(weights, offsets, middles, added, **{**defaults, **given})


@pytest.fixture
def by_bytes(monkeypatch):
    """Say whether scorers are to screen, on any processor; code for others is slower, and as right."""
    return lambda screened: monkeypatch.setattr(compiled, "has_byte_products", lambda: screened)


# -- what is written for LLVM --------------------------------------------------------------------------


def kernels():
    """Return the parts as functions, compiled for what `has_byte_products` says."""

    @njit
    def multiply(lines, weights, offsets, out):
        for column in range(0, out.shape[1], 4 * LANES):
            vector_code.four_vectors_of_products(lines, weights, offsets, out, 0, column)

    @njit
    def sum_bytes(signed, unsigned):
        return vector_code.sum_byte_products(signed, unsigned)

    return multiply, sum_bytes


@pytest.mark.parametrize("anywhere", [False, True])
def test_products_of_bytes_are_those_of_integers(monkeypatch, anywhere):
    if anywhere:
        monkeypatch.setattr(vector_code, "has_byte_products", lambda: False)
    multiply, sum_bytes = kernels()
    rng = np.random.default_rng(0)
    for n_groups, n_columns in ((16, 64), (48, 192)):
        lines = rng.integers(-128, 128, (6, 2, n_groups * GROUP)).astype(np.int8)
        weights = rng.integers(0, 256, (n_groups, n_columns, GROUP)).astype(np.uint8)
        lines[0], weights[:, 0] = -128, 255  # the largest of all
        offsets = rng.integers(-(2**20), 2**20, n_columns).astype(np.int32)
        out = np.full((6, n_columns), 7, np.int32)
        multiply(lines, weights, offsets, out)
        whole = lines[:, 0].reshape(6, n_groups, GROUP).astype(np.int64)
        expected = np.einsum("rgb,gcb->rc", whole, weights.astype(np.int64)) + offsets
        assert_array_equal(out, expected)
        columns = np.ascontiguousarray(weights[:, 1:3].transpose(1, 0, 2)).reshape(2, -1)
        assert sum_bytes(lines[1], columns) == (lines[1].astype(np.int64) * columns).sum()


@given(n_vectors=st.integers(1, 7), n_values=st.sampled_from([3, 2**28]), seed=SEEDS)
def test_scores_near_the_least_are_found(n_vectors, n_values, seed):
    rng = np.random.default_rng(seed)
    scores, slack = rng.integers(-n_values, n_values, (2, n_vectors * LANES)).astype(np.int32)
    slack = np.abs(slack)
    masks = np.empty(n_vectors, np.uint16)
    found = _find_near(scores, slack, masks)
    near = scores.astype(np.int64) - slack <= scores.min()
    assert found >> 32 == near.sum()
    assert found & 0xFFFFFFFF == np.flatnonzero(near)[-1]
    assert_array_equal((masks[:, np.newaxis] >> np.arange(LANES)) & 1, near.reshape(-1, LANES))


@njit
def _find_near(scores, slack, masks):
    return vector_code.find_near(scores, slack, masks)


def test_arrays_whose_numbers_do_not_lie_side_by_side_are_refused():
    scores = np.zeros(4 * LANES, np.int32)
    with pytest.raises(NumbaError, match="expected a contiguous array"):
        _find_near(scores[::2], scores[::2], np.empty(2, np.uint16))


@given(n_vectors=st.integers(1, 7), n_values=st.sampled_from([3, 2**28]), seed=SEEDS)
def test_the_least_of_the_others_is_found(n_vectors, n_values, seed):
    rng = np.random.default_rng(seed)
    scores, slack = rng.integers(-n_values, n_values, (2, n_vectors * LANES)).astype(np.int32)
    marked = rng.random((n_vectors, LANES)) < rng.random()
    masks = (marked << np.arange(LANES)).sum(axis=1).astype(np.uint16)
    least = np.empty(LANES, np.int32)
    found = _find_least_others(scores, slack, masks, least)
    others = np.where(marked, 2**31 - 1, (scores - slack).reshape(-1, LANES))
    assert_array_equal(least, others.min(axis=0))
    if not marked.all():
        assert others.ravel()[found] == others.min()
        assert not (others.ravel()[found + 1 :] == others.min()).any()


@njit
def _find_least_others(scores, slack, masks, least):
    return vector_code.find_least_others(scores, slack, masks, least)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(n=st.integers(1, 100), seed=SEEDS)
def test_numbers_are_rounded_to_bytes_and_what_is_left_to_254ths(dtype, n, seed):
    line = np.random.default_rng(seed).uniform(-1, 1, n).astype(dtype)
    line[:3] = (1.0, -1.0, 0.5 / 127)[:n]
    units, out = np.full(n, 127, np.float32), np.full((2, n), 99, np.int8)
    assert compiled._to_bytes(line, units, *out)
    left = 127.0 * line.astype(np.float64) - out[0]
    assert np.abs(left).max() <= 0.5 + 1e-5
    assert np.abs(left - out[1] / FRACTION).max() <= 0.5 / FRACTION + 2e-5


@pytest.mark.parametrize("n", [3, 16, 40])
@pytest.mark.parametrize("value", [1.0001, -1.1, 1e30, np.inf, -np.inf, np.nan])
def test_what_no_byte_holds_is_said(n, value):
    for place in (0, n - 1):
        line = np.zeros(n, np.float32)
        line[place] = value
        assert not compiled._to_bytes(line, np.full(n, 127, np.float32), *np.empty((2, n), np.int8))


@given(n=st.integers(1, 100), seed=SEEDS)
def test_an_exact_score_is_that_of_numpy(n, seed):
    rng = np.random.default_rng(seed)
    line, weights = rng.standard_normal((2, n))
    for here in (line, line.astype(np.float32)):
        found = compiled._score_exactly(here, weights, 3.0)
        assert found == pytest.approx(here.astype(np.float64) @ weights + 3.0, rel=0, abs=1e-13 * n)


# -- bounds --------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_exact_scores_are_within_their_bounds(data):
    """Of any centres, for features on a sphere or in a box, and for the worst ones: at half a unit."""
    rng = np.random.default_rng(data.draw(SEEDS))
    D, n_clusters, n_init = data.draw(st.integers(1, 150)), data.draw(st.integers(2, 40)), 2
    largest = np.exp2(rng.integers(-3, 4, D))
    weights = rng.standard_normal((n_init, n_clusters, D)) * 10.0 ** data.draw(st.integers(-8, 8))
    if data.draw(st.booleans()):
        weights[:, 0] *= 1e3  # one centre far away, and the others' bytes are few
    offsets = rng.standard_normal((n_init, n_clusters)) * np.abs(weights).max()
    features = rng.uniform(-1, 1, (30, D))
    kind = data.draw(st.sampled_from(["box", "halves", "sphere"]))
    if kind == "halves":
        features = np.clip((rng.integers(-127, 127, features.shape) + 0.5 - 1e-6) / 127, -1, 1)
    reach = np.linalg.norm(features, axis=1).max() if kind == "sphere" else np.sqrt(D)
    features = (features * largest).astype(np.float32)
    screen = screened(weights, offsets, largest=largest, reach=reach)
    assume(screen is not None)
    scores = np.einsum("nj,ikj->nik", features.astype(np.float64), weights) + offsets
    n_columns = len(screen.offsets) // n_init
    n_bytes = screen.fine_weights.shape[2]
    whole, rest = np.zeros((2, len(features), n_bytes), np.int8)
    for i, line in enumerate(features):
        assert compiled._to_bytes(line, screen.units, whole[i], rest[i])
    whole, rest = whole.astype(np.int64), rest.astype(np.int64)
    fine_weights, coarse_weights = screen.fine_weights.astype(np.int64).transpose(1, 2, 0) - 128
    assert_array_equal(
        screen.weights.astype(np.int64).transpose(0, 2, 1).reshape(n_bytes, -1) - 128, coarse_weights
    )
    coarse = whole @ coarse_weights + screen.offsets
    fine = FRACTION * coarse + whole @ fine_weights + rest @ coarse_weights + screen.fine_offsets
    for start in range(n_init):
        unit = np.abs(weights[start] * largest).max() / 127**2
        here = slice(start * n_columns, start * n_columns + n_clusters)
        own = scores[:, start] / unit
        assert (own <= coarse[:, here]).all()
        assert (own >= coarse[:, here] - screen.slack[here]).all()
        assert (own * FRACTION <= fine[:, here] + 1e-6 * np.abs(own)).all()
        assert (own * FRACTION >= fine[:, here] - screen.fine_slack[here] - 1e-6 * np.abs(own)).all()
        assert (screen.fine_slack[here] <= FRACTION * screen.slack[here]).all()


def test_what_second_bytes_leave_out_is_in_the_bounds():
    """Features and weights without first bytes, whose product of second bytes is not made."""
    D, part = 128, 126 / FRACTION
    weights = np.full((1, 2, D), part / 127)
    weights[0, :, 0], weights[0, 1] = 1.0, -weights[0, 1]
    line = np.full(D, 126.7 / FRACTION / 127, np.float32)
    line[0] = 0.0
    screen = screened(weights, np.zeros((1, 2)))
    labels = np.empty((1, 1), np.int32)
    centres = (weights[0], np.zeros(2), 0.0)
    whole, rest = np.zeros(screen.fine_weights.shape[1:], np.int8)
    assert compiled._to_bytes(line, screen.units, whole, rest)
    assert not whole.any()
    own = weights[0] @ line.astype(np.float64) * 127**2 * FRACTION
    found = FRACTION * screen.offsets[:2].astype(np.int64) + screen.fine_offsets[:2]
    found += (screen.fine_weights[:2, 1].astype(np.int64) - 128) @ rest
    assert (found - screen.fine_slack[:2] <= own).all()
    assert (own <= found).all()
    assert np.abs(own - found + screen.fine_slack[:2] / 2).max() > 0.2 * D * FRACTION
    compiled.label_rows_by_bytes(line[np.newaxis], screen, *centres, labels)
    assert labels[0, 0] == 1


def test_scores_that_bytes_cannot_hold_have_no_screen():
    weights, offsets = np.ones((1, 2, 8)), np.zeros((1, 2))
    assert screened(weights, offsets) is not None
    assert screened(0.0 * weights, offsets) is None  # nothing tells centres apart
    assert screened(weights, offsets + 1e9) is None
    assert screened(weights, offsets + 1e300) is None
    assert screened(weights, offsets, tolerance=1e9) is None
    assert screened(np.ones((1, 2, 20_000)), offsets) is None


# -- labels --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_labels_are_the_lowest_of_the_nearest_by_float64(data):
    rng = np.random.default_rng(data.draw(SEEDS))
    D, n_rows = data.draw(st.integers(1, 140)), data.draw(st.integers(1, 110))
    n_init, n_clusters = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 70))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    lines = rng.uniform(-1, 1, (n_rows, D)).astype(dtype)
    weights = rng.standard_normal((n_init, n_clusters, D))
    offsets = rng.standard_normal((n_init, n_clusters))
    twins = rng.integers(0, n_clusters, (2, n_clusters // 3))
    weights[:, twins[0]], offsets[:, twins[0]] = weights[:, twins[1]], offsets[:, twins[1]]
    if data.draw(st.booleans()):  # hardly apart: bytes leave all of them
        weights = weights[:, :1] + 1e-6 * weights
        offsets = offsets[:, :1] + 1e-6 * offsets
    offsets[:, 1:][rng.random((n_init, n_clusters - 1)) < 0.2] = np.inf  # centres that are not there
    tolerance = 1e-12
    screen = screened(weights, offsets, tolerance=tolerance)
    labels = np.full((n_init, n_rows), -1, np.int32)
    flat = weights.reshape(-1, D), offsets.ravel()
    n_compared = compiled.label_rows_by_bytes(lines, screen, *flat, tolerance, labels)
    scores = np.einsum("nj,ikj->ink", lines.astype(np.float64), weights) + offsets[:, np.newaxis]
    assert_array_equal(labels, (scores <= scores.min(axis=2, keepdims=True) + tolerance).argmax(axis=2))
    assert 0 <= n_compared <= scores.size


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_found_of_other_centres_are_bounds(data):
    rng = np.random.default_rng(data.draw(SEEDS))
    D, n_rows = data.draw(st.integers(1, 140)), data.draw(st.integers(1, 110))
    n_init, n_clusters = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 70))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    lines = rng.uniform(-1, 1, (n_rows, D)).astype(dtype)
    weights, middles = rng.standard_normal((n_init, n_clusters, D)), 3.0 * rng.standard_normal((n_init, D))
    offsets, added = rng.standard_normal((n_init, n_clusters)), rng.standard_normal(n_init)
    weights[:, -1], offsets[:, -1] = weights[:, 0], offsets[:, 0]
    if data.draw(st.booleans()):
        weights, offsets = weights[:, :1] + 1e-4 * weights, offsets[:, :1] + 1e-4 * offsets
    offsets[:, 1:-1][rng.random((n_init, n_clusters - 2)) < 0.2] = np.inf  # centres that are not there
    screen = screened(weights, offsets, middles, added)
    labels, rivals = np.full((2, n_init, n_rows), -1, np.int32)
    best, gaps = np.full((2, n_init, n_rows), np.nan, dtype)
    n_groups = min(n_clusters, LANES)
    margins = np.full((n_init, n_rows, n_groups), np.nan, dtype)
    exact = weights.reshape(-1, D), offsets.ravel(), 1e-12
    compiled.find_nearest_by_bytes(lines, screen, *exact, best, gaps, labels, rivals, margins)
    again = np.empty_like(labels)
    compiled.label_rows_by_bytes(lines, screen, *exact, again)
    assert_array_equal(labels, again)
    wide = lines.astype(np.float64)
    scores = np.einsum("nj,ikj->ink", wide, weights) + offsets[:, np.newaxis]
    room = (
        4 * np.finfo(dtype).eps * (np.abs(weights).sum(axis=2).max() + np.abs(middles).sum(axis=1).max() + 9)
    )
    for start, row in np.ndindex(n_init, n_rows):
        own, label, rival = scores[start, row], labels[start, row], rivals[start, row]
        assert rival != label
        true = own[label] + wide[row] @ middles[start] + added[start]
        assert true - room <= best[start, row]
        assert best[start, row] <= true + 0.01 * (np.abs(weights).max() + np.abs(middles).max()) * D + room
        assert gaps[start, row] <= own[rival] - own[label] + room
        for group in range(n_groups):
            others = [own[k] for k in range(group, n_clusters, n_groups) if k not in {label, rival}]
            assert margins[start, row, group] <= min(others, default=np.inf) - own[label] + room


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("weighted", [False, True])
def test_no_bit_of_a_pass_depends_on_whether_bytes_are_used(by_bytes, name, weighted):
    state = centres_of(MAPS[name], n_init=3, weighted=weighted)
    found = []
    for screened in (True, False):
        by_bytes(screened)
        Scorer(state)  # a scorer of its own
        sums = sum_clusters(rows_of(weighted=weighted), Centres(state.feature_map, state.values, state.grid))
        found.append((sums, label_rows(rows_of(), state).tolist()))
    assert found[0] == found[1]


def features_of(feature_map):
    lines = np.empty((len(X), feature_map.n_components), np.float32)
    feature_map.fill_lines(feature_map.prepare(X), lines)
    return lines


def test_margins_and_distances_by_bytes_are_nearly_those_of_all_centres(by_bytes):
    """Of rows in 512 components: all bounds, and most of what there is to bound."""
    by_bytes(True)
    feature_map = draw_feature_map(Gaussian(1.0), n_features=X.shape[1], n_components=512, random_state=0)
    state = centres_of(feature_map, n_clusters=50)
    scorer, features = Scorer(state), features_of(feature_map)
    exact = squared_distances(explicit_Z(feature_map, X), state.values[0])
    least, second = np.sort(exact, axis=1)[:, :2].T
    found, rows = scorer.nearest(features, n_groups=LANES), np.arange(len(X))
    assert_array_equal(found.labels[0], nearest(exact))
    others = exact.copy()
    others[rows, found.labels[0]] = others[rows, found.rivals[0]] = np.inf
    margins = np.stack([others[:, group::LANES].min(axis=1) for group in range(LANES)]) - least
    assert (found.margins[0] <= margins + scorer.tolerance).all()
    assert (found.rival_margins[0] <= exact[rows, found.rivals[0]] - least + scorer.tolerance).all()
    distances = found.distances[0]
    assert (distances >= np.sqrt(least)).all()
    assert_allclose(distances, np.sqrt(least), atol=3e-3)
    assert (found.rivals[0] == exact.argsort(axis=1)[:, 1]).mean() > 0.97
    assert np.median(found.rival_margins[0] / (second - least)) > 0.95
    assert np.median(found.margins[0] / margins) > 0.85
    by_bytes(False)
    assert_array_equal(Scorer(state).nearest(features, n_groups=LANES).labels, found.labels)


def test_rows_are_added_with_margins_or_without(by_bytes):
    by_bytes(True)
    state = centres_of(MAPS["pairs"], n_init=2)
    features, found = features_of(state.feature_map), []
    for find in (
        lambda *given: Scorer(state).labels(*given),
        lambda *given: Scorer(state).nearest(features, N_CLUSTERS, given[1]),
    ):
        tally = Tally(state)
        with tally.adding(np.ones(len(features))) as addition:
            find(features, addition)
        found.append(tally.sums(len(features)))
    assert found[0] == found[1] == sum_clusters(rows_of(), state)


def test_bytes_are_used_where_the_processor_is_made_for_them(by_bytes):
    state = centres_of(MAPS["pairs"])
    by_bytes(True)
    assert Scorer(state)._screen is not None
    by_bytes(False)
    assert Scorer(state)._screen is None


def test_features_beyond_their_bound_are_labelled_without_bytes(by_bytes):
    """As of new rows, where a first pass has measured how large features are."""
    by_bytes(True)
    state = centres_of(MAPS["pairs"])
    features = features_of(state.feature_map)
    expected = Scorer(state).labels(3.0 * features)
    by_bytes(False)
    assert_array_equal(Scorer(state).labels(3.0 * features), expected)


def test_features_that_are_not_finite_are_refused(by_bytes):
    by_bytes(True)
    state = centres_of(MAPS["pairs"])
    features = features_of(state.feature_map)
    features[5, 3] = np.nan
    with pytest.raises(DataError, match="not finite"):
        Scorer(state).labels(features)
    with pytest.raises(DataError, match="row 5"):
        label_rows(Rows(Block(0, 0, 9), np.where(np.arange(9)[:, np.newaxis] == 5, np.inf, X[:9])), state)


def test_bytes_that_leave_many_centres_are_given_up_for_the_pass(by_bytes):
    """Of rows that are next to one centre, and centres that are next to each other."""
    by_bytes(True)
    rng = np.random.default_rng(0)
    feature_map = draw_feature_map(Gaussian(1.0), n_features=X.shape[1], n_components=64, random_state=0)
    inputs = X[:1] + 1e-4 * rng.standard_normal((200, X.shape[1]))
    far = feature_map.transform(X[:1] + 10.0)
    centres = np.concatenate([feature_map.transform(inputs[:40]), far])[np.newaxis]
    state = Centres(feature_map, centres, ClusterGrid(39))
    scorer, lines = Scorer(state), np.empty((200, 64), np.float32)
    feature_map.fill_lines(feature_map.prepare(inputs), lines)
    first = scorer.labels(lines)
    assert not scorer._screened
    assert_array_equal(scorer.labels(lines), first)
    by_bytes(False)
    assert_array_equal(Scorer(state).labels(lines), first)
