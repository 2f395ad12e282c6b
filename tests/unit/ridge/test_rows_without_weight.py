"""Rows of weight 0, scales, masks, repeated and constant columns: they change nothing,
or are refused.
"""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import (
    RFFPCA,
    Additive,
    Gaussian,
    KernelKMeans,
    Min,
    Polynomial,
    RFFClassifier,
    RFFKMeans,
    RFFRidge,
    RFFSampler,
    SerialEngine,
    draw_feature_map,
    tune_kernels,
    tune_length_scales,
    write_dataset,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.statistics import inspection
from tests import strategies
from tests.covering import covering
from tests.places import scratch
from tests.refusals import refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 2.0, (60, 2))
Y = np.sin(X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=len(X))
LABELS = (X[:, 0] > 1.0).astype(int)
NEW = RNG.uniform(0.0, 2.0, (20, 2))
WHOLE = RNG.integers(0, 4, len(X))
SMALL = {"n_components": 32, "alpha": 0.1, "random_state": 0, "engine": SerialEngine(1)}
SPACE = {"length_scale": 1.0, "random_state": 0, "engine": SerialEngine(1)}

kernels = strategies.composite_kernels(2)
outliers = st.sampled_from([1e6, -1e30, 1e100, 1e300])


def with_row(place, value):
    """Return the rows with one of weight 0 among them."""
    weights = np.insert(np.ones(len(X)), place, 0.0)
    return np.insert(X, place, value, axis=0), np.insert(Y, place, -value), weights


def found_by(kernel, features, X, y, weights):
    """Return predictions, or the error that refuses the kernel."""
    model = RFFRidge(kernel, features=features, standardize=False, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return model.fit(X, y, sample_weight=weights).predict(NEW)
        except InvalidParameterError as error:
            return str(error)


@settings(max_examples=40)
@given(
    kernel=kernels,
    features=st.sampled_from(["fourier", "nystrom"]),
    outlier=outliers,
    place=st.integers(0, len(X)),
)
def test_a_row_of_weight_zero_is_as_good_as_left_out(kernel, features, outlier, place):
    expected = found_by(kernel, features, X, Y, np.ones(len(X)))
    found = found_by(kernel, features, *with_row(place, outlier))
    if isinstance(expected, str):
        assert found == expected
    else:
        # other rounding of the same sums, at alpha = 0.1 and kernels of at most a few
        # thousand
        assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by press")
def test_a_row_of_weight_zero_has_no_say_where_rows_are_left_out_one_by_one():
    model = RFFRidge("gaussian", **SMALL | {"alpha": "auto"})
    expected = model.fit(X, Y).predict(NEW)
    rows, y, weights = with_row(len(X), 1e300)
    found = model.fit(rows, y, sample_weight=weights).predict(NEW)
    assert_allclose(found, expected, rtol=1e-9)


def ridge(**options):
    options = (
        {"n_components": 32, "alpha": 0.1, "features": "fourier"} | SPACE | options
    )

    def predict(X, weights):
        y = np.sin(X[:, 0]) + X[:, 1]
        return RFFRidge("gaussian", **options).fit(X, y, weights).predict(NEW)

    return predict


def classifier(X, weights, **options):
    labels = (X[:, 0] > 1.0).astype(int)
    model = RFFClassifier(
        "gaussian",
        **SPACE | options,
        n_components=32,
        alpha=0.1,
        standardize="rank",
        sample_weight_kind="frequency",
    )
    return model.fit(X, labels, weights).decision_function(NEW)


def inertia(X, weights):
    model = RFFKMeans(
        2, kernel="gaussian", **SPACE, n_components=32, standardize="rank"
    )
    return model.fit(X, sample_weight=weights).inertia_


def exact_inertia(X, weights):
    model = KernelKMeans(
        2, kernel="gaussian", length_scale=1.0, random_state=0, standardize="rank"
    )
    return model.fit(X, sample_weight=weights).inertia_


def ratios(X, weights):
    model = RFFPCA(
        2, kernel="gaussian", **SPACE, n_random_features=32, standardize="rank"
    )
    return model.fit(X, sample_weight=weights).explained_variance_ratio_


FITS = {
    "ridge": ridge(standardize=True, sample_weight_kind="frequency"),
    "ridge by ranks": ridge(standardize="rank", sample_weight_kind="frequency"),
    "ridge of heavy tails": ridge(standardize="auto", sample_weight_kind="frequency"),
    "classifier": classifier,
    "logistic": partial(classifier, loss="logistic", tol=1e-15),
    "hinge": partial(classifier, loss="squared_hinge", tol=1e-15),
    "clusters": inertia,
    "exact clusters": exact_inertia,
    "components": ratios,
}


@pytest.mark.filterwarnings("ignore:44 of 87 rows repeat")
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_a_row_of_weight_three_counts_as_three(fit):
    rows = np.exp(3.0 * X) if fit is FITS["ridge of heavy tails"] else X
    repeated = np.repeat(rows, WHOLE, axis=0)
    found = fit(rows, WHOLE.astype(float))
    expected = fit(repeated, np.ones(len(repeated)))
    # iterations end within their tolerance of scores of this size
    size = np.abs(expected).max()
    assert_allclose(found, expected, rtol=1e-8, atol=1e-9 * size)


@pytest.mark.parametrize(
    ("scale", "standardize"),
    covering([1e-100, 1e-40, 1e40, 1e100], [True, "rank", "auto"], meet=1),
)
def test_a_scale_of_the_inputs_changes_nothing(standardize, scale):
    tails = np.exp(30.0 * RNG.normal(size=400))
    X = np.column_stack([tails, RNG.normal(size=400)])
    y = np.log(tails) / 30.0 + X[:, 1]
    options = {
        "n_components": 64,
        "alpha": 0.1,
        "length_scale": 1.0,
        "standardize": standardize,
    }

    def score(scale):
        return (
            RFFRidge("gaussian", random_state=0, **options)
            .fit(X * scale, y)
            .score(X * scale, y)
        )

    # powers of ten round the inputs
    assert score(scale) == pytest.approx(score(1.0), abs=1e-6)


def test_a_constant_column_changes_nothing():
    wide = np.column_stack([X, np.full(len(X), 7.0)])
    model = RFFRidge(
        Additive(1.0, order_1=1.0, order_2=0.0, dense=0.0), standardize=True, **SMALL
    )
    gaussian = RFFRidge("gaussian", length_scale=1.0, features="nystrom", **SMALL)
    narrow = gaussian.fit(X, Y).predict(X)
    assert_allclose(gaussian.fit(wide, Y).predict(wide), narrow, rtol=1e-9, atol=1e-9)
    assert np.isfinite(model.fit(wide, Y).predict(wide)).all()


def test_a_first_row_that_weighs_next_to_nothing_hides_no_variation():
    rows = X.copy()
    weights = np.ones(len(X))
    rows[0, 0] = 1e11
    weights[0] = 1e-25
    found = inspection.inspect(ArrayDataset(rows, Y, weights), engine=SerialEngine(1))
    assert_allclose(found.standard_deviations[:2], X[1:].std(axis=0), rtol=1e-3)


# -- masks
# --------------------------------------------------------------------------------------


def masked(values):
    mask = np.zeros(values.shape, bool)
    mask.flat[3] = True
    return np.ma.masked_array(values, mask)


MX = masked(X)
MY = masked(Y)
MW = masked(np.ones(len(X)))
MODEL = RFFRidge("gaussian", **SMALL, length_scale=1.0).fit(X, Y)
CLASSIFIER = RFFClassifier("gaussian", **SMALL, length_scale=1.0).fit(X, LABELS)
CLUSTERS = RFFKMeans(2, kernel="gaussian", **SPACE, n_components=16).fit(X)
MASKED = {
    "ridge, X": lambda: RFFRidge(**SMALL).fit(MX, Y),
    "ridge, y": lambda: RFFRidge(**SMALL).fit(X, MY),
    "ridge, weights": lambda: RFFRidge(**SMALL).fit(X, Y, MW),
    "ridge, partial": lambda: (
        RFFRidge("gaussian", **SMALL, length_scale=1.0).fit(X, Y).partial_fit(MX, Y)
    ),
    "ridge, predict": lambda: MODEL.predict(MX),
    "ridge, score": lambda: MODEL.score(X, MY),
    "ridge, score by weights": lambda: MODEL.score(X, Y, sample_weight=MW),
    "classifier, score": lambda: CLASSIFIER.score(X, masked(LABELS)),
    "classifier, X": lambda: RFFClassifier(**SMALL).fit(MX, LABELS),
    "classifier, y": lambda: RFFClassifier(**SMALL).fit(X, masked(LABELS)),
    "classifier, y of texts": (
        lambda: RFFClassifier(**SMALL).fit(
            pd.DataFrame(X.astype("U1"), columns=["a", "b"]), masked(LABELS)
        )
    ),
    "clusters, X": lambda: RFFKMeans(2).fit(MX),
    "clusters, weights": lambda: RFFKMeans(2).fit(X, sample_weight=MW),
    "clusters, predict": lambda: CLUSTERS.predict(MX),
    "exact clusters": lambda: KernelKMeans(2).fit(MX),
    "components": lambda: RFFPCA(2).fit(MX),
    "sampler": lambda: RFFSampler(n_components=16).fit(MX),
    "kernel": lambda: Gaussian(1.0)(MX),
    "kernel, second": lambda: Gaussian(1.0)(X, MX),
    "length scales, X": lambda: tune_length_scales("gaussian", MX, Y),
    "length scales, y": lambda: tune_length_scales("gaussian", X, MY),
    "kernels": lambda: tune_kernels(["gaussian", "laplacian"], MX, Y),
    "features": (
        lambda: draw_feature_map("gaussian", n_features=2, n_components=8).transform(MX)
    ),
    "data": lambda: write_dataset(scratch("masked"), MX, Y),
    "data, y": lambda: write_dataset(scratch("masked"), X, MY),
}


@pytest.mark.parametrize("use", MASKED.values(), ids=MASKED)
def test_masked_values_are_refused(use):
    with refuses(DataError, "masked", "row"):
        use()


def test_a_masked_array_without_masked_values_is_an_array():
    whole = np.ma.masked_array(X, np.zeros(X.shape, bool))
    assert_array_equal(
        RFFRidge(**SMALL).fit(whole, Y).predict(X),
        RFFRidge(**SMALL).fit(X, Y).predict(X),
    )


# -- what no right answer is sensible for
# -------------------------------------------------------------

COUNTS = {"sample_weight_kind": "frequency", **SMALL}
PLAIN = {"standardize": False, **SMALL}
MANY = PLAIN | {"n_components": 256, "features": "fourier"}
REFUSED = {
    "below float32": (
        lambda: RFFRidge("linear", **PLAIN).fit(X * 1e-50, Y),
        "column 0",
    ),
    "far beyond float32's digits": (
        lambda: RFFRidge("linear", **PLAIN).fit(X + 1e9, Y),
        "column 0",
    ),
    "too many counts": (
        lambda: RFFRidge(**COUNTS).fit(X, Y, np.full(len(X), 1e17)),
        "6e+18",
    ),
    "an overflow of features": (
        lambda: RFFRidge(Polynomial(20), **MANY).fit(X * 1e18, Y),
        "standardise",
    ),
    "an overflow of squares": (
        lambda: RFFRidge(Polynomial(9), **MANY).fit(X * 1e30, Y),
        "standardise",
    ),
}


@pytest.mark.parametrize(("use", "figure"), REFUSED.values(), ids=REFUSED)
def test_what_float64_cannot_hold_is_refused(use, figure):
    with refuses(DataError, figure):
        use()


def test_a_min_kernel_with_fewer_components_than_columns_is_refused():
    wide = RNG.uniform(size=(50, 40))
    with refuses(InvalidParameterError, "40 columns", "32", "n_components"):
        RFFRidge(Min(), **SMALL).fit(wide, wide[:, 39])


@pytest.mark.parametrize(
    "kernel", [Gaussian(1.0), Additive(1.0), Min(0.0, 1.0), Polynomial(2)], ids=str
)
def test_no_rows_have_a_gram_without_rows(kernel):
    assert kernel(np.empty((0, 2))).shape == (0, 0)
    assert kernel(np.empty((0, 2)), X).shape == (0, len(X))


def test_angles_that_float32_loses_are_warned_of():
    feature_map = draw_feature_map(Gaussian(1e-8), n_features=2, n_components=64)
    with pytest.warns(UserWarning, match="float32 keeps few of their digits"):
        feature_map.transform(X)


def test_components_of_equal_rows_are_refused_before_eigenvalues_of_rounding_errors():
    with refuses(DataError, "same features"):
        RFFPCA(2, kernel="gaussian", **SPACE, n_random_features=256).fit(
            np.ones((50, 2))
        )
