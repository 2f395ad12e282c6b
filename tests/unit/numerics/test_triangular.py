"""Triangular factors in tiles, against SciPy's on the whole matrix."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import cholesky, solve_triangular

from rff_dist.numerics.machine import tile_pool
from rff_dist.numerics.triangular import (
    cholesky_in_place,
    solve_transposed,
    solve_upper,
    whiten_in_place,
)


def positive_definite(n):
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((2 * n, n))
    return rows.T @ rows / n


@pytest.mark.parametrize("n", [1, 5, 256, 257, 700])
class TestAgainstSciPy:
    def test_whitening_is_two_triangular_solves(self, n):
        factor = np.ascontiguousarray(cholesky(positive_definite(n)))
        matrix = positive_definite(n)
        matrix += matrix[::-1, ::-1]
        half = solve_triangular(factor, matrix, trans="T")
        expected = solve_triangular(factor, half.T, trans="T")
        with tile_pool(2) as pool:
            whiten_in_place(matrix, factor, pool)
        # condition about 30
        assert_allclose(matrix, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
        assert_array_equal(matrix, matrix.T)

    def test_solves(self, n):
        factor = positive_definite(n)
        x = np.random.default_rng(0).standard_normal((n, 3))
        with tile_pool(1) as pool:
            assert cholesky_in_place(factor, pool) is None
        upper = np.triu(factor)
        for solve, trans in ((solve_transposed, "T"), (solve_upper, "N")):
            solved = x.copy()
            solve(factor, solved)
            assert_allclose(
                solved, solve_triangular(upper, x, trans=trans), rtol=1e-10, atol=1e-12
            )


def test_whitening_has_the_same_bits_on_any_number_of_threads():
    factor = cholesky(positive_definite(600))
    found = []
    for n_threads in (1, 3):
        matrix = positive_definite(600)[::-1, ::-1].copy()
        with tile_pool(n_threads) as pool:
            whiten_in_place(matrix, factor, pool)
        found.append(matrix)
    assert_array_equal(*found)
