"""solve_cholesky against scikit-learn on explicit features, and where systems are
singular or hostile.
"""

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgWarning
from threadpoolctl import threadpool_info, threadpool_limits

from rff_dist.errors import SolveError
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.solution import SolveStatus
from tests.refusals import refuses
from tests.ridge_problems import normal_equations

EPS = np.finfo(np.float64).eps


def spd_equations(n_components, n_targets, *, seed=0):
    """Well-conditioned equations of any size, without going through rows."""
    rng = np.random.default_rng(seed)
    low_rank = rng.normal(size=(n_components, 20))
    gram = low_rank @ low_rank.T + np.diag(rng.uniform(5.0, 6.0, n_components))
    empty = normal_equations(
        np.zeros((2, n_components)), np.zeros((2, n_targets)), fit_intercept=False
    )
    return replace(empty, gram=gram, moments=rng.normal(size=(n_components, n_targets)))


# 256 is a tile and a strip: one less, one more, whole tiles, and a last tile of one row
@pytest.mark.parametrize(
    ("n_components", "n_targets"),
    [(1, 1), (255, 1), (256, 2), (257, 257), (700, 600), (1025, 3)],
)
def test_tiled_factorisation_equals_scipys_solve(n_components, n_targets):
    equations = spd_equations(n_components, n_targets)
    solution = solve_cholesky(equations, 0.5)
    oracle = scipy.linalg.solve(
        equations.gram + 0.5 * np.eye(n_components), equations.moments, assume_a="pos"
    )
    # condition number below 20 · n_components: errors stay within a few hundred eps of
    # the largest weight
    assert_allclose(
        solution.coefficients, oracle, rtol=1e-11, atol=1e-11 * np.abs(oracle).max()
    )


def test_bits_do_not_depend_on_threads_or_on_the_environments_limit(monkeypatch):
    equations = spd_equations(1_100, 300)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with threadpool_limits(2):
        one = solve_cholesky(equations, 0.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    for _ in range(3):
        several = solve_cholesky(equations, 0.5)
        assert several.coefficients.tobytes() == one.coefficients.tobytes()
        assert (
            several.residual_sum_of_squares.tobytes()
            == one.residual_sum_of_squares.tobytes()
        )
    with threadpool_limits(1):
        assert (
            solve_cholesky(equations, 0.5).coefficients.tobytes()
            == one.coefficients.tobytes()
        )


def test_the_callers_thread_limits_are_restored():
    equations = spd_equations(300, 1)
    with threadpool_limits(2):
        before = threadpool_info()
        solve_cholesky(equations, 0.5)
        assert threadpool_info() == before


def test_gram_is_left_alone_unless_it_may_be_overwritten():
    equations = spd_equations(600, 2)
    before = equations.gram.copy()
    kept = solve_cholesky(equations, 1.0)
    assert_array_equal(equations.gram, before)
    overwritten = solve_cholesky(equations, 1.0, overwrite_gram=True)
    assert (equations.gram != before).any()
    assert_array_equal(overwritten.coefficients, kept.coefficients)
    assert_array_equal(
        overwritten.residual_sum_of_squares, kept.residual_sum_of_squares
    )


def test_all_features_zero_gives_zero_weights_and_says_rank_zero():
    equations = normal_equations(np.zeros((9, 5)), np.ones((9, 1)))
    with pytest.warns(LinAlgWarning, match="rank 0 of 5"):
        solution = solve_cholesky(equations, 0.0)
    assert_array_equal(solution.coefficients, 0.0)
    assert_array_equal(solution.intercept, 1.0)


def hilbert_equations():
    """The smallest eigenvalues are rounding error, yet the factorisation does not break
    down.
    """
    gram = scipy.linalg.hilbert(12)
    empty = normal_equations(np.zeros((2, 12)), np.zeros((2, 1)), fit_intercept=False)
    return replace(empty, gram=gram, moments=gram @ np.ones((12, 1)))


def test_alpha_far_below_the_floor_warns_with_the_floor():
    equations = hilbert_equations()
    floor = 12 * EPS * np.linalg.eigvalsh(equations.gram)[-1]
    with pytest.warns(
        LinAlgWarning, match=f"alpha=1e-18 is below the floor {floor:.3g}"
    ):
        solution = solve_cholesky(equations, 1e-18)
    assert solution.status is SolveStatus.ILL_CONDITIONED
    assert solution.floor == pytest.approx(floor, rel=1e-3)
    assert np.isfinite(solution.coefficients).all()


def test_alpha_a_little_below_the_floor_shrinks_coefficients_as_it_should():
    equations = hilbert_equations()
    floor = equations.floor()
    solution = solve_cholesky(equations, 0.4 * floor)
    assert solution.status is SolveStatus.OK
    assert solution.alpha < solution.floor
    # (A + alpha)⁻¹A shortens every vector, here of ones; rounding adds 4e-7 of its
    # length here, and 6 % with alpha = 1e-18
    assert np.linalg.norm(solution.coefficients) < 1.001 * np.sqrt(12)


def test_alpha_zero_on_a_nearly_singular_system_does_not_return_rounding_error():
    with pytest.warns(LinAlgWarning, match=r"rank 1[01] of 12"):
        solution = solve_cholesky(hilbert_equations(), 0.0)
    assert solution.status is SolveStatus.RANK_DEFICIENT
    # the exact solution is all ones; taking the factorisation's answer is off by 0.5
    assert_allclose(solution.coefficients, 1.0, atol=0.05)


def test_residual_below_rounding_error_is_reported_as_zero_with_a_bound():
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(200, 40))
    Y = Z @ rng.normal(size=(40, 5)) * 1e6
    for seed in range(5):
        rotated = Z @ np.linalg.qr(np.random.default_rng(seed).normal(size=(40, 40)))[0]
        solution = solve_cholesky(normal_equations(rotated, Y), 1e-12)
        true_rss = np.square(
            Y - rotated @ solution.coefficients - solution.intercept
        ).sum(axis=0)
        assert (solution.residual_sum_of_squares >= 0.0).all()
        assert (
            np.abs(solution.residual_sum_of_squares - true_rss)
            <= solution.rss_error_bound
        ).all()


def test_a_gram_that_is_no_gram_warns_and_stays_finite_and_is_refused_once_it_is_overwritten():
    equations = spd_equations(300, 1)
    equations.gram[280, 280] = -1e3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        solution = solve_cholesky(equations, 1.0)
    assert any("negative eigenvalue" in str(w.message) for w in caught)
    assert solution.status is SolveStatus.RANK_DEFICIENT
    assert np.isfinite(solution.coefficients).all()
    with refuses(SolveError, "280"):
        solve_cholesky(equations, 1.0, overwrite_gram=True)
