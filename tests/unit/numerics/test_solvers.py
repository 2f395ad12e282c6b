"""What each way to solve the normal equations keeps to: scikit-learn's Ridge, singular
systems, refusals.
"""

from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgWarning
from sklearn.linear_model import Ridge

from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.numerics.cholesky import solve_cholesky
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.solution import SolveStatus
from tests.covering import covering
from tests.refusals import refuses
from tests.ridge_problems import draw_problem, normal_equations

SOLVERS = {
    "cholesky": solve_cholesky,
    "eigen": lambda equations, alpha: decompose(equations).solve(alpha),
}
EPS = np.finfo(np.float64).eps


@pytest.fixture(params=SOLVERS)
def solve(request):
    return SOLVERS[request.param]


@pytest.mark.parametrize(
    ("fit_intercept", "alpha"),
    covering([False, True], [1e-3, 1.0, 1e3, [0.1, 30.0, 0.1]], meet=1),
    ids=str,
)
def test_solutions_are_those_of_scikit_learns_ridge(solve, fit_intercept, alpha):
    Z, Y = draw_problem()
    solution = solve(
        normal_equations(Z, Y, fit_intercept=fit_intercept), np.asarray(alpha)
    )
    oracle = Ridge(
        alpha=np.asarray(alpha), solver="svd", fit_intercept=fit_intercept
    ).fit(Z, Y)
    scale = np.abs(oracle.coef_).max()
    assert_allclose(solution.coefficients, oracle.coef_.T, rtol=1e-9, atol=1e-9 * scale)
    assert_allclose(solution.intercept, oracle.intercept_, rtol=1e-9, atol=1e-9 * scale)
    assert_array_equal(np.broadcast_to(solution.alpha, 3), np.broadcast_to(alpha, 3))
    rss = np.square(Y - oracle.predict(Z)).sum(axis=0)
    assert_allclose(solution.residual_sum_of_squares, rss, rtol=1e-9)
    assert (
        np.abs(solution.residual_sum_of_squares - rss) <= solution.rss_error_bound
    ).all()
    assert solution.status is SolveStatus.OK
    assert solution.effective_rank == Z.shape[1]


@pytest.mark.parametrize(
    ("n_samples", "rank"), [(120, 30), (20, 20)], ids=["regular", "singular"]
)
def test_without_a_penalty_it_is_the_least_squares_solution_of_least_norm(
    solve, n_samples, rank, recwarn
):
    Z, Y = draw_problem(n_samples)
    solution = solve(normal_equations(Z, Y, fit_intercept=False), 0.0)
    oracle = scipy.linalg.lstsq(Z, Y)[0]
    # the Gram squares the condition number, 3e3 here
    assert_allclose(
        solution.coefficients, oracle, rtol=1e-6, atol=1e-6 * np.abs(oracle).max()
    )
    assert solution.effective_rank == rank
    if rank == 30:
        assert solution.status is SolveStatus.OK
        return
    assert solution.status is SolveStatus.RANK_DEFICIENT
    assert solution.status.causes
    assert solution.status.remedies
    [told] = recwarn
    assert told.category is LinAlgWarning
    assert "rank 20 of 30" in str(told.message)


def test_only_the_upper_triangle_is_read_and_the_gram_is_kept(solve):
    equations = normal_equations(*draw_problem(700, 600))
    before = equations.gram.copy()
    upper = replace(
        equations, gram=np.where(np.tri(600, k=-1, dtype=bool), np.nan, before)
    )
    fortran = replace(equations, gram=np.asfortranarray(before))
    expected = solve(equations, 1.0).coefficients
    assert_array_equal(solve(upper, 1.0).coefficients, expected)
    # LAPACK takes other steps in the other order
    assert_allclose(
        solve(fortran, 1.0).coefficients,
        expected,
        rtol=1e-9,
        atol=1e-9 * np.abs(expected).max(),
    )
    assert_array_equal(equations.gram, before)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_gram_that_is_not_finite_is_refused_by_place(solve, value):
    equations = normal_equations(*draw_problem())
    equations.gram[3, 25] = value
    with refuses(SolveError, f"gram[3, 25] is {value}"):
        solve(equations, 1.0)


@pytest.mark.parametrize(
    "name", ["moments", "total_sum_of_squares", "feature_means", "target_means"]
)
def test_other_sums_that_are_not_finite_are_refused_by_name(solve, name):
    equations = normal_equations(*draw_problem())
    with refuses(SolveError, name):
        solve(
            replace(
                equations, **{name: np.full_like(getattr(equations, name), np.nan)}
            ),
            1.0,
        )


@pytest.mark.parametrize(
    "alpha", [-1.0, np.nan, np.inf, "1", True, [1.0, 2.0], [[1.0]]]
)
def test_bad_alpha_is_refused(solve, alpha):
    with refuses(InvalidParameterError, "alpha"):
        solve(normal_equations(*draw_problem()), alpha)


@pytest.mark.parametrize("name", SOLVERS)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_samples=st.integers(2, 40),
    n_components=st.integers(1, 40),
    log_alpha=st.floats(-6.0, 6.0),
)
def test_solutions_satisfy_the_normal_equations(
    name, seed, n_samples, n_components, log_alpha
):
    equations = normal_equations(*draw_problem(n_samples, n_components, 2, seed=seed))
    alpha = 10.0**log_alpha
    w = SOLVERS[name](equations, alpha).coefficients
    residual = equations.gram @ w + alpha * w - equations.moments
    # backward stability: relative to the size of the matrix, whatever its condition
    size = (np.linalg.norm(equations.gram) + alpha) * np.linalg.norm(
        w
    ) + np.linalg.norm(equations.moments)
    assert np.linalg.norm(residual) <= 40 * n_components * EPS * size
