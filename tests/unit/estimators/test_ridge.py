import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import LinAlgWarning
from sklearn.base import clone
from sklearn.linear_model import Ridge

from rff_dist import Gaussian, Laplacian, Linear, Min, load_model, save_model
from rff_dist.errors import DataError
from rff_dist.ridge.solve import solve
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refusals import refuses


def draw_rows(n_samples=300, n_features=4, n_targets=None, *, seed=0):
    """Draw inputs with means, and targets that are smooth in them, with noise."""
    rng = np.random.default_rng(seed)
    X = (
        rng.normal(size=(n_samples, n_features)) * [1.0, 3.0, 0.2, 10.0][:n_features]
        + 5.0
    )
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * rng.normal(size=n_samples) + 40.0
    if n_targets is None:
        return X, y
    return X, np.column_stack([y * (i + 1) - i * X[:, 0] for i in range(n_targets)])


@pytest.fixture(scope="module")
def rows():
    return draw_rows()


# -- the solution, against scikit-learn's Ridge on the explicit features
# -------------------------------


def assert_same_ridge(model, X, y, sample_weight=None, *, tolerance=1e-9):
    """Compare with scikit-learn's Ridge on the float64 Z of the same features, relative
    to the largest.
    """
    Z = model.feature_map_.transform(X)
    assert Z.dtype == np.float64
    explicit = Ridge(
        alpha=model.alpha_, fit_intercept=model.fit_intercept, solver="cholesky"
    )
    explicit.fit(Z, y, sample_weight)
    for ours, theirs in (
        (model.feature_coef_, explicit.coef_),
        (model.feature_intercept_, explicit.intercept_),
        (model.predict(X), explicit.predict(Z)),
    ):
        # scikit-learn drops the target axis of a single column, and has one zero for
        # all intercepts
        shape = np.shape(ours)
        theirs = (
            np.reshape(theirs, shape) if np.size(theirs) > 1 else np.full(shape, theirs)
        )
        assert_allclose(
            ours, theirs, rtol=0, atol=tolerance * max(1e-300, np.abs(theirs).max())
        )


@pytest.mark.parametrize(
    ("n_targets", "weighted", "options"),
    [
        *itertools.product((None, 1, 3), (False, True), ({}, {"fit_intercept": False})),
        *((2, False, {"n_components": n}) for n in (1, 2, 7, 511, 512, 514, 901)),
        *((2, False, {"alpha": alpha}) for alpha in ("auto", "gcv", [1e-6, 1e-2, 1.0])),
        *(
            (None, False, {"kernel": kernel, "design": "iid"})
            for kernel in (
                Gaussian(1.5) + Linear(),
                1 + Min().on([0]) + Gaussian() * Laplacian(3.0),
            )
        ),
    ],
    ids=str,
)
def test_coefficients_are_those_of_ridge_on_explicit_features(
    n_targets, weighted, options
):
    X, y = draw_rows(500, n_targets=n_targets)
    weights = np.random.default_rng(1).exponential(size=len(X)) if weighted else None
    model = plain_ridge(
        **{"n_components": 64, "alpha": 0.3, "random_state": 0} | options
    )
    assert_same_ridge(model.fit(X, y, weights), X, y, weights)


def test_coefficients_are_those_of_ridge_when_tiles_and_blocks_end_anywhere():
    # 40,001 rows in memory: five chunks of 8,192, two blocks, tiles of 4,096, a last
    # tile of few rows
    X, y = draw_rows(40_001)
    model = plain_ridge(n_components=96, alpha=0.02).fit(X.astype(np.float32), y)
    assert_same_ridge(model, X.astype(np.float32), y)


def test_inputs_far_from_zero_are_standardised_before_they_are_float32(rows):
    # seconds since 1970: float32 alone resolves two minutes
    X, y = rows
    near = plain_ridge(n_components=64, alpha=0.1, length_scale=2.0).fit(X, y)
    far = plain_ridge(n_components=64, alpha=0.1, length_scale=2.0).fit(X + 1.7e9, y)
    assert_allclose(far.predict(X + 1.7e9), near.predict(X), atol=1e-3 * y.std())


def test_without_standardisation_the_length_scale_is_in_the_inputs_units(rows):
    X, y = rows
    scale = X.std(axis=0)
    ours = plain_ridge(alpha=0.1, length_scale=2.0).fit(X, y)
    plain = plain_ridge(alpha=0.1, length_scale=2.0 * scale, standardize=False).fit(
        X - X.mean(axis=0), y
    )
    assert_allclose(
        ours.predict(X), plain.predict(X - X.mean(axis=0)), atol=1e-4 * y.std()
    )


def test_alpha_zero_on_a_singular_system_is_finite_and_warns_with_the_rank(rows):
    X, y = rows
    ridge = plain_ridge(n_components=512, alpha=0, length_scale=20.0, precision="high")
    with pytest.warns(LinAlgWarning, match="rank"):
        model = ridge.fit(X[:50], y[:50])
    assert np.isfinite(model.predict(X)).all()


# -- fit
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint16, np.int64, bool, np.float16, np.float32]
)
def test_any_real_dtype_gives_the_coefficients_of_its_values(dtype):
    X = (
        np.random.default_rng(0)
        .integers(0, 2 if dtype is bool else 100, (200, 3))
        .astype(dtype)
    )
    y = X.astype(float).sum(axis=1)
    model = plain_ridge(alpha=0.1)
    coefficients = clone(model).fit(X, y).feature_coef_
    assert_array_equal(
        coefficients, clone(model).fit(X.astype(np.float64), y).feature_coef_
    )


def test_one_row_and_constant_columns_fit(rows):
    X, y = rows
    one = plain_ridge(alpha=0.1).fit(X[:1], y[:1])
    assert_allclose(one.predict(X[:1]), y[:1])
    constant = plain_ridge().fit(np.ones((20, 2)), np.arange(20.0))
    assert_allclose(constant.predict(np.ones((1, 2))), [9.5])


# -- rows that come in pieces
# --------------------------------------------------------------------------

N_FIRST = 60  # rows of the first call, which fixes what is standardised and subtracted


@given(
    cuts=st.lists(st.integers(N_FIRST + 1, 299), max_size=4, unique=True),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=10)
def test_pieces_in_any_order_have_the_same_bits_and_agree_with_all_rows_at_once(
    cuts, order
):
    X, y = draw_rows(n_targets=2)

    def fit_in(pieces):
        model = plain_ridge(alpha=0.1, length_scale=3.0)
        for piece in [slice(0, N_FIRST), *pieces]:
            model.partial_fit(X[piece], y[piece])
        return model

    edges = [N_FIRST, *sorted(cuts), len(X)]
    pieces = [slice(*edge) for edge in itertools.pairwise(edges)]
    shuffled = order.sample(pieces, len(pieces))
    pieced = fit_in(pieces)
    once = fit_in([slice(N_FIRST, len(X))])
    assert fit_in(shuffled).statistics_ == pieced.statistics_
    # Tiles begin anew in each piece and their products are rounded, here to a grid of
    # 2^-49
    assert pieced.statistics_.n_samples == once.statistics_.n_samples == len(X)
    assert_allclose(
        pieced.statistics_.ZtZ(), once.statistics_.ZtZ(), rtol=0, atol=1e-12
    )
    assert_allclose(pieced.predict(X), once.predict(X), rtol=1e-9)


def test_solving_waits_until_the_coefficients_are_asked_for(rows, monkeypatch):
    X, y = rows
    model = plain_ridge().partial_fit(X[:100], y[:100])
    solves = []
    monkeypatch.setattr(
        "rff_dist.ridge.solve.solve", lambda *args: solves.append(1) or solve(*args)
    )
    for start in range(100, 300, 50):
        model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert model.statistics_.n_samples == 300
    assert not solves
    _ = model.feature_coef_, model.feature_intercept_, model.alpha_, model.predict(X)
    assert len(solves) == 1


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_a_loaded_model_goes_on_where_it_was_stored(rows, features):
    X, y = rows
    given = {"random_state": 0, "sample_weight_kind": "frequency", "features": features}
    model = plain_ridge(**given).partial_fit(X[:100], y[:100])
    save_model(model, scratch(f"goes-on-{features}"))
    loaded = load_model(scratch(f"goes-on-{features}")).partial_fit(X[100:], y[100:])
    assert loaded.sample_weight_kind == "frequency"
    model.partial_fit(X[100:], y[100:])
    assert loaded.statistics_ == model.statistics_
    assert_array_equal(loaded.predict(X), model.predict(X))


def test_weights_beyond_the_first_calls_grid_are_refused_with_the_largest(rows):
    X, y = rows
    weights = np.full(len(y), 3.0)
    model = plain_ridge().partial_fit(X, y, weights)
    model.partial_fit(X, y, weights + 1.0)  # 4 = 2², the head-room
    with refuses(DataError, "sample_weight", "4.5", "row 2", "4"):
        model.partial_fit(X, y, np.where(np.arange(len(y)) == 2, 4.5, 1.0))
    assert model.statistics_.n_samples == 600


@pytest.mark.parametrize("n_targets", [1, 2], ids=["one column", "two columns"])
def test_other_targets_than_the_first_calls_are_refused(rows, n_targets):
    X, y = rows
    model = plain_ridge().partial_fit(X, y)
    with refuses(DataError, f"matrix of {n_targets} columns", "vector"):
        model.partial_fit(X, np.column_stack([y] * n_targets))


def test_fit_forgets_what_partial_fit_has_added(rows):
    X, y = rows
    model = plain_ridge(alpha=0.1)
    model.partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    assert_array_equal(
        model.fit(X, y).feature_coef_, clone(model).fit(X, y).feature_coef_
    )
