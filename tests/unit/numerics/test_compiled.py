"""Compiled loops, against NumPy written out."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Gaussian, Laplacian, Linear, draw_feature_map
from rff_dist.numerics import compiled
from rff_dist.numerics.runs import expand

RNG = np.random.default_rng(0)


# -- features ------------------------------------------------------------------------------------------


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_cosines_and_sines_are_right_for_any_angle(angles):
    angles = np.array([angles, angles[::-1]], np.float32)
    out = np.full((2, 2 * angles.shape[1] + 3), 7.0, np.float32)
    compiled.fill_pairs(angles.copy(), out, 3)
    # from an angle of 1e7 turns on, a float64 product with 1/2π loses the turn's fraction
    near = np.abs(angles) < 1e7
    wide = angles.astype(np.float64)
    assert_array_equal(out[:, :3], 7.0)
    assert_allclose(out[:, 3::2][near], np.cos(wide)[near], rtol=0, atol=3e-7)
    assert_allclose(out[:, 4::2][near], np.sin(wide)[near], rtol=0, atol=3e-7)
    assert_allclose(out[:, 3::2] ** 2 + out[:, 4::2] ** 2, 1.0, rtol=0, atol=1e-6)
    phases = np.linspace(0, 6, angles.shape[1], dtype=np.float32)
    cosines = np.full((2, angles.shape[1] + 1), 7.0, np.float32)
    compiled.fill_cosines(angles.copy(), phases, cosines, 1)
    assert_array_equal(cosines[:, 0], 7.0)
    assert_allclose(cosines[:, 1:][near], np.cos(wide + phases.astype(np.float64))[near], rtol=0, atol=3e-7)


def test_an_angle_that_is_not_finite_gives_features_that_are_not():
    out = np.empty((1, 6), np.float32)
    compiled.fill_pairs(np.array([[np.inf, np.nan, -np.inf]], np.float32), out, 0)
    assert np.isnan(out).all()


MAPS = {
    "pairs": draw_feature_map(Gaussian(1.5), n_features=5, n_components=64, random_state=0),
    "phases": draw_feature_map(Gaussian(1.5), n_features=5, n_components=65, map="phases", random_state=0),
    "structured": draw_feature_map(
        Gaussian(1.5), n_features=5, n_components=64, design="structured", random_state=0
    ),
    "structured phases": draw_feature_map(
        Gaussian(1.5), n_features=5, n_components=63, design="structured", map="phases", random_state=0
    ),
    "heavy tails": draw_feature_map(
        Laplacian(1.5), n_features=5, n_components=64, design="iid", random_state=0
    ),
    "two widths": draw_feature_map(
        Gaussian(1.0) + 0.25 * Gaussian(4.0), n_features=5, n_components=80, random_state=0
    ),
    "not single": draw_feature_map(
        Gaussian(1.5) + 9.0 * Linear(), n_features=5, n_components=69, map="phases", random_state=0
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_features_in_single_precision_are_those_of_fill(name):
    feature_map, X = MAPS[name], RNG.standard_normal((200, 5))
    inputs = feature_map.prepare(X)
    dtype = np.float32 if feature_map.single_precision else np.float64
    assert feature_map.single_precision == (name != "not single")
    lines = np.full((200, feature_map.n_components + 2), 7.0, dtype)
    feature_map.fill_lines(inputs, lines, 1)
    expected = np.empty((feature_map.n_components, 200))
    for start, stop in feature_map.stripes:
        feature_map.fill(inputs, expected[start:stop], start, stop)
    assert_array_equal(lines[:, [0, -1]], 7.0)
    # angles err by some roundings of their five terms
    atol = 1e-12
    if feature_map.single_precision:
        frequencies = [
            getattr(part, "frequencies", None) for part in getattr(feature_map, "parts", [feature_map])
        ]
        largest = (
            max(np.abs(f).max() for f in frequencies if f is not None) if frequencies[0] is not None else 3.0
        )
        atol = 3e-7 + 2.0**-23 * 5 * largest * np.abs(inputs).max()
    assert_allclose(lines[:, 1:-1], expected.T, rtol=0, atol=atol)
    if feature_map.squared_norm is not None:
        squares = np.square(lines[:, 1:-1].astype(np.float64) * expand(feature_map.scales)).sum(axis=1)
        assert_allclose(
            squares, np.square(expected * expand(feature_map.scales)[:, np.newaxis]).sum(axis=0), rtol=1e-6
        )


@pytest.mark.parametrize("name", [name for name in MAPS if name != "not single"])
@settings(max_examples=15)
@given(chosen=st.lists(st.integers(0, 299), min_size=1, max_size=150))
def test_a_row_has_the_same_features_in_whatever_company(name, chosen):
    feature_map = MAPS[name]
    inputs = feature_map.prepare(np.random.default_rng(1).standard_normal((300, 5)))
    lines, some = (np.empty((n, feature_map.n_components), np.float32) for n in (300, len(chosen)))
    feature_map.fill_lines(inputs, lines)
    feature_map.fill_lines(inputs[chosen], some)
    assert_array_equal(some, lines[chosen])


# -- nearest centres -----------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data())
def test_the_nearest_centres_and_margins_are_those_of_sorted_scores(data):
    n_clusters, n_rows = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 200))
    n_groups = data.draw(st.integers(1, n_clusters))
    seed, n_values = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from([2, 1000]))
    rng = np.random.default_rng(seed)
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    products = rng.integers(0, n_values, (n_clusters, n_rows)).astype(dtype)  # two values have many ties
    offsets = rng.integers(0, n_values, n_clusters).astype(dtype)
    offsets[rng.random(n_clusters) < 0.2] = np.inf  # centres that are not there
    offsets[0] = 0.0
    best, second = np.empty((2, n_rows), dtype)
    labels, rivals = np.empty((2, n_rows), np.int32)
    margins = np.empty((n_groups, n_rows), dtype)
    compiled.find_least(products[np.newaxis], offsets, best[np.newaxis], labels[np.newaxis])
    found = best.copy(), labels.copy()
    scores = products.copy()
    compiled.find_nearest(scores, offsets, best, second, labels, rivals)
    assert_array_equal(found, (best, labels))
    compiled.find_margins(scores, best, labels, rivals, margins)
    expected = products + offsets[:, np.newaxis]
    assert_array_equal(scores, expected)
    for i in range(n_rows):
        order = np.argsort(expected[:, i], kind="stable")
        assert labels[i] == order[0]
        assert best[i] == expected[order[0], i]
        assert second[i] == (expected[order[1], i] if n_clusters > 1 else np.inf)
        if np.isfinite(second[i]):
            assert rivals[i] == order[1]
        for group in range(n_groups):
            members = range(group, n_clusters, n_groups)
            others = [expected[k, i] for k in members if k not in {labels[i], rivals[i]}]
            assert margins[group, i] == min(others, default=np.inf) - best[i]


def test_a_row_with_nan_has_no_least_score():
    scores = np.array([[1.0, np.nan], [0.5, np.nan]], np.float32)
    best, second = np.empty((2, 2), np.float32)
    labels, rivals = np.empty((2, 2), np.int32)
    compiled.find_nearest(scores, np.zeros(2, np.float32), best, second, labels, rivals)
    assert_array_equal(best, [0.5, np.inf])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n_init=st.integers(1, 3), n_groups=st.integers(0, 4))
def test_labels_are_settled_in_float64_where_float32_leaves_them_open(seed, n_init, n_groups):
    rng = np.random.default_rng(seed)
    lines = rng.standard_normal((70, 12)).astype(np.float32)
    centres = rng.standard_normal((n_init, 5, 12))
    centres[:, 3] = centres[:, 1] + 1e-9 * rng.standard_normal((n_init, 12))  # float32 sees no difference
    centres[:, 4] = centres[:, 2]
    weights, offsets = -2.0 * centres.reshape(-1, 12), np.square(centres).sum(axis=2).ravel()
    exact = lines.astype(np.float64) @ weights.T + offsets
    best, gaps = np.empty((2, n_init, 70), np.float32)
    labels, rivals = np.empty((2, n_init, 70), np.int32)
    margins = np.empty((n_init, n_groups, 70), np.float32)
    narrow = weights.astype(np.float32), offsets.astype(np.float32)
    products = narrow[0] @ lines.T
    scores = (products.T.astype(np.float64) + narrow[1]).astype(np.float32)
    found = best, gaps, labels, rivals, margins
    compiled.label_rows(lines, products, narrow[1], weights, offsets, 1e-3, 1e-12, *found)
    for start in range(n_init):
        own = exact[:, 5 * start : 5 * start + 5]
        tied = own <= own.min(axis=1, keepdims=True) + 1e-12
        assert_array_equal(labels[start], tied.argmax(axis=1))
    assert_array_equal(products.T, scores)


# -- sums ----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    bits=st.integers(22, 39),
    weighted=st.booleans(),
    scaled=st.booleans(),
    moved=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_sums_are_integers_rounded_once(seed, bits, weighted, scaled, moved, dtype):
    rng = np.random.default_rng(seed)
    lines = rng.uniform(-1, 1, (50, 7)).astype(dtype)
    weights = rng.random(50) * rng.integers(0, 2, 50) if weighted else np.ones(50)
    units = np.exp2(rng.integers(-3, 1, 7)) if scaled else np.ones(7)
    added = rng.integers(0, 4, (2, 50)).astype(np.int32)
    taken = rng.integers(-1, 4, (2, 50)).astype(np.int32) if moved else np.full((2, 50), -1, np.int32)
    sums, totals = rng.integers(-100, 100, (2, 4, 7)), rng.integers(0, 100, (2, 4))
    expected, expected_totals = sums.copy(), totals.copy()
    compiled.add_rows(lines, weights, units, 1.5 * 2.0 ** (52 - bits), added, taken, sums, totals)
    # halves go to the even neighbour in both
    whole = np.rint(lines.astype(np.float64) * units * weights[:, np.newaxis] * 2.0**bits).astype(np.int64)
    counts = np.rint(weights * 2.0**bits).astype(np.int64)
    for start in range(2):
        for i in range(50):
            new, old = added[start, i], taken[start, i]
            if new != old:
                expected[start, new] += whole[i]
                expected_totals[start, new] += counts[i]
                if old >= 0:
                    expected[start, old] -= whole[i]
                    expected_totals[start, old] -= counts[i]
    assert_array_equal(sums, expected)
    assert_array_equal(totals, expected_totals)


@given(arrays(np.float64, (3, 2), elements=st.floats(-1, 1)))
def test_a_row_that_goes_and_comes_back_leaves_no_trace(lines):
    sums, totals = np.zeros((1, 2, 2), np.int64), np.zeros((1, 2), np.int64)
    first, second = np.zeros((1, 3), np.int32), np.ones((1, 3), np.int32)
    rest = lines, np.ones(3), np.ones(2), 1.5 * 2.0**13
    compiled.add_rows(*rest, second, first, sums, totals)
    compiled.add_rows(*rest, first, second, sums, totals)
    assert not sums.any()
    assert not totals.any()


# -- where machine code is kept ------------------------------------------------------------------------


def test_it_compiles_where_no_code_can_be_kept(tmp_path):
    """As for a user without a home, of a package that is installed read-only."""
    code = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from rff_dist.numerics import compiled\n"
        "out = np.empty((1, 2), np.float32)\n"
        "compiled.fill_pairs(np.zeros((1, 1), np.float32), out, 0)\n"
        "assert out.tolist() == [[1.0, 0.0]]\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 0, found.stderr


def test_the_package_does_not_import_numba_before_it_is_used():
    code = "import rff_dist, sys; from rff_dist import RFFKMeans, RFFRidge; assert 'numba' not in sys.modules"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env=environment)
