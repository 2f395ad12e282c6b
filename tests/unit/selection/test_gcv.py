"""GCV against brute force, the choice of alpha, and the trap of Grams summed in
float32.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.numerics.eigen import decompose
from rff_dist.selection.gcv import generalized_cross_validation, select_alpha
from rff_dist.selection.grids import default_alphas
from tests.refusals import refuses
from tests.ridge_problems import draw_problem, hat_matrix, normal_equations


def dense_gcv(Z, Y, alpha):
    """Golub, Heath & Wahba 1979, eq. 1.4, by the n x n smoother."""
    hat = hat_matrix(Z, alpha)
    return np.square(Y - hat @ Y).mean(axis=0) / (1.0 - np.trace(hat) / len(Z)) ** 2


def dense_log_evidence(Z, y, alpha):
    """Log density of y under N(0, σ²·(ZZ'/alpha + I)) at its best σ²: Rasmussen &
    Williams 2006, eq. 2.30.
    """
    covariance = Z @ Z.T / alpha + np.eye(len(Z))
    variance = y @ np.linalg.solve(covariance, y) / len(y)
    return -0.5 * (
        len(y) * (np.log(2 * np.pi * variance) + 1) + np.linalg.slogdet(covariance)[1]
    )


def test_log_evidences_are_dense_densities_up_to_a_constant():
    Z, Y = draw_problem(n_samples=60)
    alphas = np.geomspace(1e-3, 1e5, 9)
    found = decompose(normal_equations(Z, Y, fit_intercept=False)).log_evidences(alphas)
    oracle = np.array(
        [[dense_log_evidence(Z, y, alpha) for y in Y.T] for alpha in alphas]
    )
    assert_allclose(found - found[0], oracle - oracle[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("criterion", ["gcv", "evidence"])
def test_chosen_alpha_is_the_best_of_the_dense_criterion_on_a_fine_grid(criterion):
    Z, Y = draw_problem(n_samples=60)
    by_gcv = criterion == "gcv"
    selection = select_alpha(
        decompose(normal_equations(Z, Y, fit_intercept=by_gcv)), criterion=criterion
    )
    fine = np.geomspace(selection.alphas[0], selection.alphas[-1], 2_000)
    if by_gcv:
        dense = [(dense_gcv(Z, Y, alpha) / Y.var(axis=0)).mean() for alpha in fine]
        assert_allclose(selection.score, dense_gcv(Z, Y, selection.alpha), rtol=1e-8)
    else:
        dense = [-sum(dense_log_evidence(Z, y, alpha) for y in Y.T) for alpha in fine]
    assert (selection.criterion, selection.at_end) == (criterion, None)
    assert selection.alpha == pytest.approx(fine[np.argmin(dense)], rel=0.03)


def test_a_minimum_at_the_end_of_the_grid_is_stated():
    Z, Y = draw_problem(n_targets=1)
    spectrum = decompose(normal_equations(Z, Y))
    inside = select_alpha(spectrum).alpha
    assert (
        select_alpha(spectrum, np.geomspace(inside * 10, inside * 1e3, 5)).at_end
        == "lower"
    )
    assert (
        select_alpha(spectrum, np.geomspace(inside / 1e3, inside / 10, 5)).at_end
        == "upper"
    )
    assert select_alpha(spectrum, [inside / 10, inside, inside * 10]).at_end is None


def test_default_alphas_reach_from_the_floor_to_100_times_the_largest_eigenvalue():
    spectrum = decompose(normal_equations(*draw_problem()))
    alphas = default_alphas(spectrum)
    assert spectrum.floor <= alphas[0] < spectrum.floor * 10 ** (1 / 3)
    assert alphas[-1] == pytest.approx(100.0 * spectrum.eigenvalues[-1])
    assert np.diff(np.log10(alphas)).max() <= 1 / 3 + 1e-9


def test_scores_that_rounding_cannot_tell_apart_go_to_the_larger_alpha():
    Z, _ = draw_problem()
    # no noise: every small alpha interpolates
    spectrum = decompose(normal_equations(Z, Z[:, :1]))
    selection = select_alpha(spectrum)
    relative = (
        selection.scores[:, 0] * spectrum.n_samples / spectrum.total_sum_of_squares[0]
    )
    tied = selection.alphas[relative <= relative.min() + 1e-10]
    assert len(tied) > 1
    assert selection.alpha == tied[-1]


def test_a_residual_that_float64_cannot_resolve_does_not_score_better_than_its_rounding_error():
    Z, _ = draw_problem()
    spectrum = decompose(normal_equations(Z, Z[:, :1] * 1e3))
    alphas = default_alphas(spectrum)
    least = spectrum.rss_error_bound(alphas) / spectrum.n_samples
    assert (
        spectrum.residual_sum_of_squares(alphas) < spectrum.rss_error_bound(alphas)
    ).any()
    assert (generalized_cross_validation(spectrum, alphas) >= least).all()


def test_score_is_infinite_where_nothing_is_left_to_judge_by():
    spectrum = decompose(normal_equations(np.ones((1, 4)), np.ones((1, 2))))
    assert np.isinf(generalized_cross_validation(spectrum, [1.0])).all()
    with refuses(SolveError, "n_samples=1"):
        select_alpha(spectrum)


@pytest.mark.parametrize("criterion", ["gcv", "evidence"])
def test_constant_targets_have_no_say_and_do_no_harm(criterion):
    Z, Y = draw_problem(n_targets=1)
    constant = np.full_like(Y, 7.0)
    alone, beside, only = (
        select_alpha(decompose(normal_equations(Z, y)), criterion=criterion)
        for y in (Y, np.hstack([Y, constant]), constant)
    )
    assert beside.alpha == pytest.approx(alone.alpha, rel=1e-2)
    assert only.alpha == only.alphas[-1]


@pytest.mark.parametrize("alphas", [[], [0.0, 1.0], [-1.0], [np.nan]])
def test_bad_grids_are_refused(alphas):
    with pytest.raises(InvalidParameterError, match="`alpha"):
        select_alpha(decompose(normal_equations(*draw_problem())), alphas)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_samples=st.integers(2, 40),
    n_components=st.integers(1, 40),
    log_noise=st.floats(-12.0, 3.0),
)
def test_scores_are_never_nan_nor_negative(seed, n_samples, n_components, log_noise):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n_samples, n_components)) * 10.0 ** rng.uniform(
        -6, 2, n_components
    )
    Y = Z @ rng.normal(size=(n_components, 2)) + 10.0**log_noise * rng.normal(
        size=(n_samples, 2)
    )
    spectrum = decompose(normal_equations(Z, Y))
    selection = select_alpha(spectrum)
    assert not np.isnan(selection.scores).any()
    assert (selection.scores >= 0.0).all()
    assert np.isfinite(selection.alpha)
