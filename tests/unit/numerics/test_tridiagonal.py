"""The tridiagonal form against dense solves and eigenvalues."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist.errors import SolveError
from rff_dist.numerics.eigen import decompose
from rff_dist.numerics.tridiagonal import tridiagonalize
from tests.refusals import refuses
from tests.ridge_problems import draw_problem, normal_equations

ALPHAS = np.array([1e-3, 1.0, 1.0, 50.0])


@pytest.mark.parametrize("n_components", [1, 2, 3, 70, 200])
def test_each_column_is_solved_with_its_own_alpha(n_components):
    rng = np.random.default_rng(n_components)
    Z = rng.standard_normal((300, n_components))
    Y = rng.standard_normal((300, 2))
    equations = normal_equations(Z, Y)
    columns = rng.standard_normal((n_components, len(ALPHAS)))
    solved = tridiagonalize(equations).solve(columns, ALPHAS)
    for column, alpha, found in zip(columns.T, ALPHAS, solved.T, strict=True):
        oracle = scipy.linalg.solve(
            equations.gram + alpha * np.eye(n_components), column, assume_a="pos"
        )
        assert_allclose(found, oracle, rtol=1e-9, atol=1e-9 * np.abs(oracle).max())


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_eigenvalues_and_degrees_of_freedom_are_those_of_the_decomposition(
    fit_intercept,
):
    equations = normal_equations(
        *draw_problem(n_samples=60), fit_intercept=fit_intercept
    )
    reduced = tridiagonalize(equations)
    spectrum = decompose(equations)
    assert_allclose(
        reduced.eigenvalues, spectrum.eigenvalues, rtol=1e-9, atol=spectrum.floor
    )
    assert_allclose(
        reduced.degrees_of_freedom(ALPHAS),
        spectrum.degrees_of_freedom(ALPHAS),
        rtol=1e-9,
    )
    assert reduced.floor == pytest.approx(spectrum.floor)


def test_with_few_rows_an_alpha_below_the_floor_counts_as_the_floor():
    Z, Y = draw_problem(n_samples=20, n_components=50)
    equations = normal_equations(Z, Y)
    reduced = tridiagonalize(equations)
    assert (reduced.eigenvalues == 0).sum() == 50 - 19
    moments = equations.moments[:, :2]
    below, at = (
        reduced.solve(moments, np.full(2, share * reduced.floor))
        for share in (1e-6, 1.0)
    )
    assert_array_equal(below, at)
    # moments lie in the range of the Gram, where the floor is next to nothing
    assert_allclose(
        equations.gram @ at, moments, rtol=1e-6, atol=1e-6 * np.abs(moments).max()
    )


@pytest.mark.parametrize("n_components", [4, 8, 30])
def test_columns_that_add_up_to_a_constant_are_solved_at_the_floor_without_a_warning(
    n_components,
):
    rng = np.random.default_rng(n_components)
    for _ in range(30):  # the least eigenvalue is rounding, of either sign
        Z = rng.standard_normal((400, n_components))
        Z[:, :3] = np.eye(3)[rng.integers(0, 3, 400)]
        Z = (Z - Z.mean(axis=0)) / Z.std(axis=0)
        y = rng.standard_normal((400, 1))
        equations = normal_equations(Z, y)
        found = tridiagonalize(equations).solve(equations.moments, np.array([1e-30]))
        expected = Z @ np.linalg.lstsq(Z, y - y.mean(), rcond=1e-10)[0]
        # along the sum of the columns, which predicts nothing, rounding may be as large
        # as the rest
        assert_allclose(Z @ found, expected, atol=1e-6)


def test_the_equations_stay_as_they_are_and_threads_side_by_side_give_the_same_bits():
    equations = normal_equations(*draw_problem())
    before = equations.gram.copy()
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: tridiagonalize(equations), range(3)))
    assert_array_equal(equations.gram, before)
    for one in found[1:]:
        assert_array_equal(one.form.diagonal, found[0].form.diagonal)
        assert_array_equal(
            one.solve(equations.moments, ALPHAS[:3]),
            found[0].solve(equations.moments, ALPHAS[:3]),
        )


def test_eigenvalues_that_do_not_converge_are_a_solve_error(monkeypatch):
    def fails(*_, **__):
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(scipy.linalg, "eigvalsh_tridiagonal", fails)
    with refuses(SolveError, "do not converge"):
        tridiagonalize(normal_equations(*draw_problem()))


def test_a_gram_of_other_rows_is_named_negative():
    equations = normal_equations(*draw_problem())
    equations.gram[...] -= 0.5 * np.diag(np.diagonal(equations.gram))
    with pytest.warns(scipy.linalg.LinAlgWarning, match="negative eigenvalue"):
        tridiagonalize(equations)
