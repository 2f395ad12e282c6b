"""Every way of multiplying gives the sums of integer arithmetic, at the extremes of 15
bits too.
"""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from threadpoolctl import threadpool_limits

from rff_dist.products.bytes import ByteProducts
from rff_dist.products.choice import find_wrong_sums
from rff_dist.products.protocol import (
    COSINE_ONE,
    MOST_ROWS,
    UNITS_PER_ONE,
    Float64Products,
)

pytestmark = pytest.mark.usefixtures("exact_bytes")
every_way = pytest.mark.parametrize(
    "products",
    [
        pytest.param(Float64Products(), id="float64"),
        pytest.param(ByteProducts(), id="bytes"),
    ],
)


def integers(shape, *, seed=0, kind="random"):
    rng = np.random.default_rng(seed)
    if kind == "random":
        return rng.integers(-COSINE_ONE, COSINE_ONE, shape, endpoint=True)
    if kind == "extreme":
        return rng.choice(
            [COSINE_ONE, COSINE_ONE - 64, -COSINE_ONE, -COSINE_ONE + 63, 0], shape
        )
    return np.full(shape, COSINE_ONE if kind == "all +1" else -COSINE_ONE)


def fill(tile, numbers, *, components=200, rows=300):
    """Put features in pieces whose borders are not those of any operand."""
    for start in range(0, tile.n_components, components):
        for row in range(0, tile.n_rows, rows):
            put(
                tile,
                numbers,
                slice(start, start + components),
                slice(row, min(row + rows, tile.n_rows)),
            )


def put(tile, numbers, components, rows):
    stop = min(components.stop, tile.n_components)
    panel = tile.panel(components.start, stop, rows)
    panel[...] = numbers[components.start : stop, rows] / UNITS_PER_ONE
    tile.put(components.start, rows, panel)


def gram(tile, left, right):
    """Return sums of products of whole numbers."""
    out = np.full((left.stop - left.start, right.stop - right.start), np.nan)
    tile.gram(left, right, out)
    return out * UNITS_PER_ONE**2


@every_way
# each example makes a few products of a millisecond
@settings(max_examples=20, deadline=None)
@given(
    n_components=st.integers(1, 700),
    n_rows=st.integers(1, 700),
    kind=st.sampled_from(["random", "extreme", "all +1", "all -1"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_grams_are_those_of_integers(products, n_components, n_rows, kind, seed):
    numbers = integers((n_components, n_rows), seed=seed, kind=kind)
    expected = numbers @ numbers.T
    tile = products.make_tile(n_components, n_rows)
    fill(tile, numbers)
    edges = [slice(i, min(i + 512, n_components)) for i in range(0, n_components, 512)]
    for i, left in enumerate(edges):
        for right in edges[i:]:
            assert_array_equal(gram(tile, left, right), expected[left, right])


@every_way
@pytest.mark.parametrize("kind", ["extreme", "all +1", "all -1"])
def test_sums_of_the_most_rows_do_not_overflow(products, kind):
    numbers = integers((8, MOST_ROWS), kind=kind)
    tile = products.make_tile(8, MOST_ROWS)
    fill(tile, numbers, rows=8192)
    assert_array_equal(gram(tile, slice(0, 8), slice(0, 8)), numbers @ numbers.T)


@every_way
def test_a_tile_begins_anew_with_fewer_rows(products):
    numbers = integers((300, 500))
    tile = products.make_tile(300, 500)
    for n_rows in (500, 130, 1, 400):
        tile.clear(n_rows)
        fill(tile, numbers[:, :n_rows])
        expected = numbers[:, :n_rows] @ numbers[:, :n_rows].T
        assert_array_equal(gram(tile, slice(0, 300), slice(0, 300)), expected)


@every_way
def test_a_tile_is_filled_and_multiplied_by_threads(products):
    numbers = integers((1024, 512))
    tile = products.make_tile(*numbers.shape)
    expected = numbers @ numbers.T
    edges = [slice(i, i + 256) for i in range(0, 1024, 256)]
    pairs = [(left, right) for i, left in enumerate(edges) for right in edges[i:]] * 5
    with threadpool_limits(1), ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda edge: put(tile, numbers, edge, slice(0, 512)), edges))
        found = list(pool.map(lambda pair: gram(tile, *pair), pairs))
    for (left, right), product in zip(pairs, found, strict=True):
        assert_array_equal(product, expected[left, right])


def test_bytes_are_multiplied_without_threads_of_their_own():
    before = threading.active_count()
    assert find_wrong_sums(ByteProducts()) is None
    assert threading.active_count() == before
