import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist.data.blocks import Block
from rff_dist.storage.writing import WriteOptions
from rff_dist.workbench.tables.generate import RandomRows, generate_dataset
from tests.places import scratch


def some(X):
    return np.sin(X) @ [1.0, 2.0, 3.0]


def generate(url, n_samples=20_000, function=some, **changes):
    options = {"n_features": 3, "noise": 0.25, "seed": 11, "overwrite": True} | changes
    how = WriteOptions(options.pop("chunk_rows", None), options.pop("overwrite"))
    rows = generate_dataset(url, function, RandomRows(n_samples, **options), how)
    return rows, rows.read(Block(0, 0, n_samples))


def test_the_best_possible_error_is_the_one_stated():
    dataset, rows = generate(scratch("g"))
    residual = rows.y[:, 0] - some(rows.X.astype(np.float64))
    best = dataset.attributes["best_rmse"]
    assert best == 0.25
    # The mean square of n normals has the standard deviation noise² · sqrt(2/n).
    assert abs(np.mean(residual**2) - best**2) < 4 * best**2 * np.sqrt(2 / 20_000)


def test_inputs_are_independent_standard_normals():
    _, rows = generate(scratch("g"))
    moments = np.cov(rows.X, rowvar=False)
    assert_allclose(moments, np.eye(3), atol=5 * np.sqrt(2 / 20_000))
    assert_allclose(rows.X.mean(axis=0), 0, atol=5 / np.sqrt(20_000))
    assert len(np.unique(rows.X[:, 0])) > 19_900


def test_rows_depend_on_the_seed_and_their_number_alone():
    _, long = generate(scratch("long"))
    _, short = generate(scratch("short"), n_samples=9_001, chunk_rows=77)
    _, other = generate(scratch("other"), n_samples=9_001, seed=12)
    assert_array_equal(short.X, long.X[:9_001])
    assert_array_equal(short.y, long.y[:9_001])
    assert not np.any(np.all(other.X == short.X, axis=1))


@pytest.mark.parametrize("first_row", [1, 4_095, 4_096, 10_000])
def test_a_later_first_row_gives_the_rows_that_follow(first_row):
    _, long = generate(scratch("long"))
    _, later = generate(scratch("later"), n_samples=9_001, first_row=first_row)
    own = slice(first_row, first_row + 9_001)
    assert_array_equal(later.X, long.X[own])
    # the function's own product rounds by the rows that it gets at a time
    assert_allclose(later.y, long.y[own], rtol=0, atol=1e-14)


def test_without_noise_y_is_the_function():
    _, rows = generate(scratch("g"), noise=0.0)
    assert_array_equal(rows.y[:, 0], some(rows.X.astype(np.float64)))
