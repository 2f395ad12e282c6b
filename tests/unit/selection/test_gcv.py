"""GCV against brute force, the choice of alpha, and the trap of Grams summed in float32."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import LinAlgWarning
from sklearn.linear_model import RidgeCV

from rff_dist.errors import InvalidParameterError, SolveError
from rff_dist.numerics.eigen import decompose
from rff_dist.selection.gcv import generalized_cross_validation, select_alpha
from rff_dist.selection.grids import default_alphas
from tests.ridge_problems import draw_problem, normal_equations


def dense_gcv(Z, Y, alpha, *, fit_intercept=True):
    """Golub, Heath & Wahba 1979, eq. 1.4, by the n x n smoother."""
    n_samples = len(Z)
    centre = np.full((n_samples, n_samples), 1.0 / n_samples if fit_intercept else 0.0)
    Zc = Z - centre @ Z
    hat = centre + Zc @ np.linalg.solve(Zc.T @ Zc + alpha * np.eye(Z.shape[1]), Zc.T)
    return np.square(Y - hat @ Y).mean(axis=0) / (np.trace(np.eye(n_samples) - hat) / n_samples) ** 2


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_gcv_path_equals_the_dense_hat_matrix(fit_intercept):
    Z, Y = draw_problem(n_samples=60)
    alphas = np.geomspace(1e-3, 1e5, 9)
    spectrum = decompose(normal_equations(Z, Y, fit_intercept=fit_intercept))
    oracle = np.array([dense_gcv(Z, Y, alpha, fit_intercept=fit_intercept) for alpha in alphas])
    np.testing.assert_allclose(generalized_cross_validation(spectrum, alphas), oracle, rtol=1e-8)


def dense_log_evidence(Z, y, alpha):
    """Log density of y under N(0, σ²·(ZZ'/alpha + I)) at its best σ²: Rasmussen & Williams 2006, eq. 2.30."""
    covariance = Z @ Z.T / alpha + np.eye(len(Z))
    variance = y @ np.linalg.solve(covariance, y) / len(y)
    return -0.5 * (len(y) * (np.log(2 * np.pi * variance) + 1) + np.linalg.slogdet(covariance)[1])


def test_log_evidences_are_dense_densities_up_to_a_constant():
    Z, Y = draw_problem(n_samples=60)
    alphas = np.geomspace(1e-3, 1e5, 9)
    found = decompose(normal_equations(Z, Y, fit_intercept=False)).log_evidences(alphas)
    oracle = np.array([[dense_log_evidence(Z, y, alpha) for y in Y.T] for alpha in alphas])
    np.testing.assert_allclose(found - found[0], oracle - oracle[0], rtol=1e-8, atol=1e-8)


def test_alpha_by_evidence_is_the_maximum_of_the_dense_density_on_a_fine_grid():
    Z, Y = draw_problem(n_samples=60)
    equations = normal_equations(Z, Y, fit_intercept=False)
    selection = select_alpha(decompose(equations), criterion="evidence")
    fine = np.geomspace(selection.alphas[0], selection.alphas[-1], 2_000)
    joint = [sum(dense_log_evidence(Z, y, alpha) for y in Y.T) for alpha in fine]
    assert selection.criterion == "evidence"
    assert selection.alpha == pytest.approx(fine[np.argmax(joint)], rel=0.03)
    assert selection.alpha != pytest.approx(select_alpha(decompose(equations)).alpha, rel=0.03)


def test_a_constant_target_has_no_say_in_the_evidence():
    Z, Y = draw_problem(n_samples=60)
    alone = select_alpha(decompose(normal_equations(Z, Y)), criterion="evidence")
    constant = np.column_stack([Y, np.full(len(Y), 7.0)])
    joined = select_alpha(decompose(normal_equations(Z, constant)), criterion="evidence")
    assert joined.alpha == pytest.approx(alone.alpha, rel=1e-2)
    only = select_alpha(decompose(normal_equations(Z, constant[:, -1:])), criterion="evidence")
    assert only.alpha == only.alphas[-1]


def test_chosen_alpha_is_the_minimum_of_the_dense_score_on_a_fine_grid():
    Z, Y = draw_problem(n_samples=60)
    selection = select_alpha(decompose(normal_equations(Z, Y)))
    fine = np.geomspace(selection.alphas[0], selection.alphas[-1], 2_000)
    shared = np.array([(dense_gcv(Z, Y, alpha) / Y.var(axis=0)).mean() for alpha in fine])
    assert selection.at_end is None
    assert selection.alpha == pytest.approx(fine[shared.argmin()], rel=0.02)
    np.testing.assert_allclose(selection.score, dense_gcv(Z, Y, selection.alpha), rtol=1e-8)


def test_refined_alpha_lies_between_the_grids_neighbours_and_scores_no_worse():
    Z, Y = draw_problem(n_targets=1)
    selection = select_alpha(decompose(normal_equations(Z, Y)), np.geomspace(1e-2, 1e5, 8))
    i = selection.best_index
    assert selection.alphas[i - 1] < selection.alpha < selection.alphas[i + 1]
    assert selection.score[0] <= selection.scores[i, 0]


def test_the_units_of_a_target_do_not_change_the_choice():
    Z, Y = draw_problem()
    plain = select_alpha(decompose(normal_equations(Z, Y)))
    scaled = select_alpha(decompose(normal_equations(Z, Y * [1.0, 1e6, 1e-6])))
    assert scaled.alpha == pytest.approx(plain.alpha, rel=1e-2)


def test_the_choice_is_as_good_as_leave_one_out():
    Z, Y = draw_problem(n_samples=400, n_components=50, n_targets=1)
    alphas = np.geomspace(1e-2, 1e6, 30)
    ours = select_alpha(decompose(normal_equations(Z, Y)), alphas)
    leave_one_out = RidgeCV(alphas, scoring=None).fit(Z, Y[:, 0]).alpha_
    assert abs(ours.best_index - int(np.abs(alphas - leave_one_out).argmin())) <= 2


def test_a_minimum_at_the_end_of_the_grid_is_stated():
    Z, Y = draw_problem(n_targets=1)
    spectrum = decompose(normal_equations(Z, Y))
    inside = select_alpha(spectrum).alpha
    assert select_alpha(spectrum, np.geomspace(inside * 10, inside * 1e3, 5)).at_end == "lower"
    assert select_alpha(spectrum, np.geomspace(inside / 1e3, inside / 10, 5)).at_end == "upper"
    assert select_alpha(spectrum, [inside / 10, inside, inside * 10]).at_end is None


def test_default_alphas_reach_from_the_floor_to_100_times_the_largest_eigenvalue():
    spectrum = decompose(normal_equations(*draw_problem()))
    alphas = default_alphas(spectrum)
    assert spectrum.floor <= alphas[0] < spectrum.floor * 10 ** (1 / 3)
    assert alphas[-1] == pytest.approx(100.0 * spectrum.eigenvalues[-1])
    assert np.diff(np.log10(alphas)).max() <= 1 / 3 + 1e-9


def test_scores_that_rounding_cannot_tell_apart_go_to_the_larger_alpha():
    Z, _ = draw_problem()
    spectrum = decompose(normal_equations(Z, Z[:, :1]))  # no noise: every small alpha interpolates
    selection = select_alpha(spectrum)
    relative = selection.scores[:, 0] * spectrum.n_samples / spectrum.total_sum_of_squares[0]
    tied = selection.alphas[relative <= relative.min() + 1e-10]
    assert len(tied) > 1
    assert selection.alpha == tied[-1]


def test_a_residual_that_float64_cannot_resolve_does_not_score_better_than_its_rounding_error():
    Z, _ = draw_problem()
    spectrum = decompose(normal_equations(Z, Z[:, :1] * 1e3))
    alphas = default_alphas(spectrum)
    least = spectrum.rss_error_bound(alphas) / spectrum.n_samples
    assert (spectrum.residual_sum_of_squares(alphas) < spectrum.rss_error_bound(alphas)).any()
    assert (generalized_cross_validation(spectrum, alphas) >= least).all()


def test_score_is_infinite_where_nothing_is_left_to_judge_by():
    spectrum = decompose(normal_equations(np.ones((1, 4)), np.ones((1, 2))))
    assert np.isinf(generalized_cross_validation(spectrum, [1.0])).all()
    with pytest.raises(SolveError, match="n_samples=1 leaves no residual"):
        select_alpha(spectrum)


def test_constant_targets_have_no_say_and_do_no_harm():
    Z, Y = draw_problem(n_targets=1)
    with_constant = np.hstack([Y, np.full_like(Y, 7.0)])
    selection = select_alpha(decompose(normal_equations(Z, with_constant)))
    assert selection.alpha == pytest.approx(select_alpha(decompose(normal_equations(Z, Y))).alpha, rel=1e-2)
    constant_only = select_alpha(decompose(normal_equations(Z, np.full_like(Y, 7.0))))
    assert constant_only.alpha == constant_only.alphas[-1]


def test_constant_features_do_no_harm():
    selection = select_alpha(decompose(normal_equations(np.ones((9, 4)), np.arange(9.0)[:, np.newaxis])))
    assert selection.alpha == 1.0
    assert np.isfinite(selection.score).all()


@pytest.mark.parametrize("alphas", [[], [0.0, 1.0], [-1.0], [np.nan]])
def test_bad_grids_are_refused(alphas):
    with pytest.raises(InvalidParameterError, match="alpha"):
        select_alpha(decompose(normal_equations(*draw_problem())), alphas)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_samples=st.integers(2, 40),
    n_components=st.integers(1, 40),
    log_noise=st.floats(-12.0, 3.0),
)
def test_scores_are_never_nan_nor_negative(seed, n_samples, n_components, log_noise):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n_samples, n_components)) * 10.0 ** rng.uniform(-6, 2, n_components)
    Y = Z @ rng.normal(size=(n_components, 2)) + 10.0**log_noise * rng.normal(size=(n_samples, 2))
    spectrum = decompose(normal_equations(Z, Y))
    selection = select_alpha(spectrum)
    assert not np.isnan(selection.scores).any()
    assert (selection.scores >= 0.0).all()
    assert np.isfinite(selection.alpha)


def rmse(solution, Z, y):
    return np.sqrt(np.square(y - Z @ solution.coefficients - solution.intercept).mean())


# A wide kernel and little noise: the Gram's small eigenvalues carry the signal, and float32 sums lose them
NOISE = 0.2
LENGTH_SCALE = 3.3


@pytest.fixture(scope="module")
def low_noise_problem():
    """8 features, D = 1024, float32 feature values: train and test halves."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8_000, 8))
    angles = X.astype(np.float32) @ (rng.normal(size=(8, 512)) / LENGTH_SCALE).astype(np.float32)
    Z = (np.hstack([np.cos(angles), np.sin(angles)]) / np.float32(np.sqrt(512))).astype(np.float64)
    waves = np.cos(X @ (rng.normal(size=(8, 2_000)) / LENGTH_SCALE) + rng.uniform(0, 2 * np.pi, 2_000))
    signal = waves @ rng.normal(size=2_000) * np.sqrt(2 / 2_000)
    y = (signal + NOISE * rng.normal(size=8_000))[:, np.newaxis]
    return Z[:4_000], y[:4_000], Z[4_000:], y[4_000:]


def test_with_float64_products_a_wide_kernel_reaches_the_noise(low_noise_problem):
    Z, y, Z_test, y_test = low_noise_problem
    spectrum = decompose(normal_equations(Z, y))
    selection = select_alpha(spectrum)
    assert rmse(spectrum.solve(selection.alpha), Z_test, y_test) < 1.3 * NOISE
    assert 0.9 * NOISE < np.sqrt(selection.score[0]) < 1.3 * NOISE


def test_float32_products_blow_up_unless_their_negative_eigenvalues_are_heeded(low_noise_problem):
    Z, y, Z_test, y_test = low_noise_problem
    equations = normal_equations(Z, y, product_dtype=np.float32)

    # what a solver does that uses negative eigenvalues as they are
    eigenvalues, Q = np.linalg.eigh(equations.gram)
    b = Q.T @ equations.moments
    alphas = np.geomspace(1e-9, 1.0, 40)
    explained = [(b[:, 0] ** 2 * (eigenvalues + 2 * a) / (eigenvalues + a) ** 2).sum() for a in alphas]
    rss = equations.total_sum_of_squares[0] - np.array(explained)
    df = np.array([1 + (eigenvalues / (eigenvalues + a)).sum() for a in alphas])
    naive_alpha = alphas[np.argmin(rss / (1 - df / len(Z)) ** 2)]
    w = Q @ (b / (eigenvalues + naive_alpha)[:, np.newaxis])
    naive_prediction = (Z_test - equations.feature_means) @ w + equations.target_means
    # measured: 80 times the noise, 23 times with another seed
    assert np.sqrt(np.square(y_test - naive_prediction).mean()) > 3 * NOISE

    with pytest.warns(LinAlgWarning, match="float32"):
        spectrum = decompose(equations)
    assert rmse(spectrum.solve(select_alpha(spectrum).alpha), Z_test, y_test) < 1.3 * NOISE
