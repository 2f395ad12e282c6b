"""Laws over solvers, kernels, features, weights and targets: what must not change a
fit, or is refused.
"""

import contextlib
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rff_dist import Gaussian, RFFRidge
from rff_dist.errors import RFFDistError
from tests.refusals import refuses

N_ROWS = 90
EXACT = ["linear", "min", "polynomial:degree=2", "gaussian + 0.1 * linear"]
KERNELS = {
    "fourier": [
        "gaussian",
        "laplacian",
        "matern:nu=1.5",
        "cauchy",
        "sinc",
        "additive",
        *EXACT,
    ],
    "nystrom": [
        "gaussian",
        "rational_quadratic",
        "polynomial:degree=2",
        "gaussian * linear + 1",
        "additive",
    ],
}
WEIGHTS = {
    "none": lambda rng: None,
    "six decades": lambda rng: 10.0 ** rng.uniform(-3, 3, N_ROWS),
    "some zero": lambda rng: (rng.random(N_ROWS) < 0.7).astype(float),
}
fits = st.sampled_from(
    [(features, kernel) for features, of in KERNELS.items() for kernel in of]
)
weights = st.sampled_from(sorted(WEIGHTS))
solvers = st.sampled_from(["direct", "pcg"])
seeds = st.integers(0, 20)
FEW = settings(max_examples=20, deadline=None)


def rows(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.1, 1.9, (N_ROWS, 2))
    return rng, X, np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=N_ROWS)


def fitted(X, y, w=None, **options):
    """Return the predictions at the rows, and whether the model says that its solution
    may not be exact.
    """
    model = RFFRidge(
        **{"length_scale": "median", "n_components": 24, "random_state": 0, **options}
    )
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(X, y, sample_weight=w)
    assert not [str(one.message) for one in seen if "encountered" in str(one.message)]
    solver = model.model_.card["solver"]
    near_floor = solver["alpha_floor"] > 1e-3 * np.min(model.alpha_)
    return model.predict(X), solver["status"] != "ok", near_floor


def distance(one, other, w):
    """Root mean squared difference with the weights that the fit had."""
    w = np.ones(len(one)) if w is None else w
    return np.sqrt(np.average(np.square(one - other), weights=w, axis=0))


@FEW
@given(fits, weights, seeds, st.sampled_from([1e-12, 1e-6, 1e-3, 1.0]), st.booleans())
def test_conjugate_gradients_find_the_direct_predictions_or_say_why_not(
    fit, w, seed, alpha, fit_intercept
):
    rng, X, y = rows(seed)
    weight = WEIGHTS[w](rng)
    options = {
        "features": fit[0],
        "kernel": fit[1],
        "alpha": alpha,
        "fit_intercept": fit_intercept,
    }
    direct, _, near_floor = fitted(X, y, weight, solver="direct", **options)
    iterated, doubts, _ = fitted(X, y, weight, solver="pcg", **options)
    # conjugate gradients end at 1e-7; near the floor the sums have errors of their own
    assert doubts or near_floor or distance(direct, iterated, weight) < 1e-6 * np.std(y)


@FEW
@given(fits, weights, seeds, solvers, st.integers(0, 13), st.sampled_from([-1, 1]))
def test_a_number_added_to_all_targets_is_added_to_predictions(
    fit, w, seed, solver, decades, sign
):
    rng, X, y = rows(seed)
    weight = WEIGHTS[w](rng)
    offset = sign * 10.0**decades
    y = (y + offset) - offset  # what is left of the digits
    options = {"features": fit[0], "kernel": fit[1], "alpha": 1e-2, "solver": solver}
    plain, *_ = fitted(X, y, weight, **options)
    moved, *_ = fitted(X, y + offset, weight, **options)
    assert distance(plain, moved - offset, weight) < 1e-6 * np.std(y) + 2 * np.spacing(
        abs(offset)
    )


@FEW
@given(fits, weights, seeds, solvers, st.integers(-155, 155))
def test_targets_of_any_scale_are_fitted_alike_or_refused(
    fit, w, seed, solver, decades
):
    rng, X, y = rows(seed)
    weight = WEIGHTS[w](rng)
    scale = 10.0**decades
    options = {"features": fit[0], "kernel": fit[1], "alpha": 1e-2, "solver": solver}
    plain, *_ = fitted(X, y, weight, **options)
    if abs(decades) <= 140:
        scaled, *_ = fitted(X, y * scale, weight, **options)
        assert distance(plain, scaled / scale, weight) < 1e-6 * np.std(y)
        return
    with contextlib.suppress(RFFDistError):
        scaled, *_ = fitted(X, y * scale, weight, **options)
        assert distance(plain, scaled / scale, weight) < 1e-6 * np.std(y)


@pytest.mark.filterwarnings("ignore:angles of Fourier features")
@FEW
@given(
    st.sampled_from(["fourier", "nystrom"]),
    st.floats(0, 9),
    st.sampled_from(["cv", "gcv", "evidence"]),
    st.sampled_from(["standard", "high"]),
    st.sampled_from([1.0, 1e6, 1e15]),
    seeds,
)
def test_an_alpha_that_a_fit_chose_can_be_solved(
    features, decades, alpha, precision, heaviest, seed
):
    _, X, y = rows(seed)
    weight = np.where(np.arange(N_ROWS) == 3, heaviest, 1.0)
    options = {
        "features": features,
        "kernel": "gaussian",
        "length_scale": 10.0**decades,
    }
    predictions, doubts, _ = fitted(
        X, y, weight, **options, alpha=alpha, precision=precision
    )
    assert not doubts
    assert np.isfinite(predictions).all()


@pytest.mark.parametrize("solver", ["direct", "pcg"])
@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_constant_columns_give_the_mean(features, solver):
    _, _, y = rows(0)
    found, *_ = fitted(
        np.ones((N_ROWS, 2)),
        y,
        features=features,
        kernel="gaussian",
        alpha=1e-3,
        solver=solver,
    )
    assert np.ptp(found) <= 1e-12
    assert found.mean() == pytest.approx(y.mean(), rel=1e-12)


def test_memory_of_many_targets_grows_with_their_number():
    _, X, y = rows(0)
    model = RFFRidge(n_components=16, kernel="gaussian", length_scale=1.0, alpha=1.0)
    statistics = model.fit(X, np.outer(y, np.arange(1, 301))).statistics_
    assert statistics.targets.shape == (2, 301)
    np.testing.assert_allclose(
        statistics.target_moments.deviations, y.std() * np.arange(1, 301)
    )


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
@pytest.mark.parametrize("weight", [1e-300, 1e-150, 1e60, 1e150, 1e300])
def test_kernels_of_an_extreme_weight_are_refused(features, weight):
    _, X, y = rows(0)
    with refuses(RFFDistError, f"{weight:.3g}", "1e-50"):
        fitted(
            X,
            y,
            features=features,
            kernel=weight * Gaussian(1.0),
            length_scale="auto",
            alpha=1e-3,
        )


def test_a_score_of_targets_whose_squares_overflow_is_refused():
    _, X, y = rows(0)
    model = RFFRidge(
        n_components=16, kernel="gaussian", length_scale=1.0, alpha=1e-3
    ).fit(X, y)
    with refuses(RFFDistError, "float64"):
        model.score(X, y * 1e160)
