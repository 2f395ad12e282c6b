"""decompose and its alpha path against dense formulas and scikit-learn."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.linalg import LinAlgWarning
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from rff_dist.numerics.eigen import decompose
from tests.ridge_problems import draw_problem, hat_matrix, normal_equations


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_path_equals_the_dense_hat_matrix(fit_intercept):
    Z, Y = draw_problem(n_samples=60)
    spectrum = decompose(normal_equations(Z, Y, fit_intercept=fit_intercept))
    alphas = np.array([1e-2, 1.0, 50.0, 1e4])
    hats = [hat_matrix(Z, alpha, fit_intercept) for alpha in alphas]
    rss = np.array([np.square(Y - hat @ Y).sum(axis=0) for hat in hats])
    traces = np.array([np.trace(hat) for hat in hats])
    assert_allclose(spectrum.residual_sum_of_squares(alphas), rss, rtol=1e-8)
    assert_allclose(spectrum.degrees_of_freedom(alphas), traces, rtol=1e-8)
    assert_allclose(
        spectrum.residual_degrees_of_freedom(alphas), len(Z) - traces, rtol=1e-8
    )


def test_clipped_eigenvalues_are_counted_and_logged_with_the_floor(caplog):
    Z, Y = draw_problem(n_samples=20, n_components=30)
    with caplog.at_level(logging.DEBUG, logger="rff_dist.numerics.eigen"):
        spectrum = decompose(normal_equations(Z, Y, fit_intercept=False))
    assert spectrum.n_clipped == 10
    assert spectrum.effective_rank == 20
    assert (spectrum.eigenvalues[:10] == 0.0).all()
    assert (
        f"clipped 10 of 30 eigenvalues at or below the floor {spectrum.floor:.3g}"
        in caplog.text
    )


def test_a_gram_summed_in_float32_is_noticed():
    rng = np.random.default_rng(0)
    Z = np.cos(0.2 * rng.normal(size=(500, 4)) @ rng.normal(size=(4, 200)))
    Y = Z[:, :1]
    decompose(normal_equations(Z, Y))
    with pytest.warns(LinAlgWarning, match=r"negative eigenvalue .* float32") as caught:
        spectrum = decompose(normal_equations(Z, Y, product_dtype=np.float32))
    assert f"negative eigenvalue {-spectrum.floor:.3g} " in str(caught[0].message)


def test_a_thread_limit_of_the_caller_does_not_change_the_bits():
    with threadpool_limits(1):
        equations = normal_equations(*draw_problem(600, 400))
    found = []
    for limit in (1, 2):  # as OMP_NUM_THREADS sets it
        with threadpool_limits(limit):
            spectrum = decompose(equations)
            found.append(
                spectrum.eigenvectors.tobytes()
                + spectrum.solve(1.0).coefficients.tobytes()
            )
    assert found[0] == found[1]


problems = st.builds(
    draw_problem,
    st.integers(2, 40),
    st.integers(1, 30),
    st.just(2),
    seed=st.integers(0, 2**32 - 1),
)


@given(problem=problems, fit_intercept=st.booleans())
def test_more_penalty_never_fits_better_nor_uses_more_parameters(
    problem, fit_intercept
):
    spectrum = decompose(normal_equations(*problem, fit_intercept=fit_intercept))
    alphas = np.geomspace(1e-9, 1e9, 37)
    rss = spectrum.residual_sum_of_squares(alphas)
    slack = spectrum.rss_error_bound(alphas)
    assert (rss >= 0.0).all()
    assert (rss[1:] >= rss[:-1] - slack[:-1] - slack[1:]).all()
    df = spectrum.degrees_of_freedom(alphas)
    assert (np.diff(df) <= 1e-12 * df[:-1]).all()
    assert_allclose(
        df + spectrum.residual_degrees_of_freedom(alphas), spectrum.n_samples, atol=1e-9
    )


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("n_samples", [1, 2, 7, 30])
def test_few_rows_give_the_same_path_as_scikit_learns_ridge(n_samples, fit_intercept):
    rng = np.random.default_rng(n_samples)
    Z = rng.standard_normal((n_samples, 64))
    Y = rng.standard_normal((n_samples, 2))
    spectrum = decompose(normal_equations(Z, Y, fit_intercept=fit_intercept))
    assert spectrum.eigenvectors.shape == (64, n_samples - fit_intercept)
    gram = (
        spectrum.eigenvectors * spectrum.eigenvalues[64 - n_samples + fit_intercept :]
    )
    centred = Z - fit_intercept * Z.mean(axis=0)
    assert_allclose(gram @ spectrum.eigenvectors.T, centred.T @ centred, atol=1e-12)
    for alpha in (1e-3, 1.0, 1e3):
        oracle = Ridge(alpha=alpha, solver="svd", fit_intercept=fit_intercept).fit(Z, Y)
        assert_allclose(
            spectrum.solve(alpha).coefficients, oracle.coef_.T, rtol=1e-9, atol=1e-12
        )
