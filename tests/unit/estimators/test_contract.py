"""What all estimators refuse, beyond scikit-learn's own checks (test_scikit_learn), and
what seeds decide.
"""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.metrics.pairwise import rbf_kernel

from rff_dist import (
    RFFPCA,
    Gaussian,
    KernelKMeans,
    Linear,
    RFFKMeans,
    RFFSampler,
    TimeFolds,
)
from rff_dist.errors import DataError, InvalidParameterError
from tests.covering import covering
from tests.plain import plain_classifier, plain_ridge
from tests.refusals import refuses

ALL = {
    "ridge": plain_ridge(alpha=0.1),
    "classifier": plain_classifier(alpha=0.1),
    "sampler": RFFSampler(n_components=32),
    "k-means": RFFKMeans(3, n_components=32),
    "PCA": RFFPCA(2, n_random_features=32),
    "exact k-means": KernelKMeans(3),
}
ESTIMATORS = pytest.mark.parametrize("estimator", ALL.values(), ids=ALL)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = np.repeat([0.0, 1.0], 30)

# -- parameters
# --------------------------------------------------------------------------------------

# A message names the parameter and the value; where these are others than those given,
# they stand after it.
NOT_ONE_OR_MORE = [0, -1, 2.5, "8", True]
WRONG = {
    "n_components": NOT_ONE_OR_MORE,
    "length_scale": [0, -1.0, np.nan, "wide"],
    "kernel": ["gausian", 3],
    "design": ["ortogonal"],
    "features": ["nystroem"],
    "standardize": ["yes", 1],
    "random_state": ["zero", -1],
    "engine": ["dask"],
    "verbose": [-1, "yes", 1.5],
    "alpha": [
        -1,
        [0.1, -0.1],
        [0.0, 1.0],
        [[1.0]],
        [],
        np.inf,
        np.nan,
        1j,
        "gvc",
        True,
        None,
    ],
    "alpha_per_target": ["each"],
    "cv": ["five", True],
    "fit_intercept": [1],
    "loss": ["hinge", None],
    "tol": [-1.0, np.nan, "small"],
    "max_iter": NOT_ONE_OR_MORE,
    "class_weight": ["even"],
    "n_clusters": NOT_ONE_OR_MORE,
    "n_init": [0, "some"],
    "init": ["random"],
    "n_principal": NOT_ONE_OR_MORE,
    "normalize": ["rows"],
    "whiten": ["yes"],
}
NOT_TOGETHER = [
    ("ridge", {"n_components": []}, "n_components", "empty"),
    ("ridge", {"n_components": [16, 3.5]}, "n_components", 3.5),
    ("ridge", {"length_scale": [1.0, 2.0, -3.0, 4.0]}, "length_scale", -3.0),
    ("ridge", {"length_scale": [1.0, 2.0]}, "length_scale", 2, 4),
    ("ridge", {"cv": 3, "alpha": 0}, "alpha", 0),
    ("ridge", {"cv": 3, "alpha": "gcv"}, "cv", 3),
    (
        "ridge",
        {"n_components": [16, 32], "alpha": "evidence"},
        "n_components",
        "[16, 32]",
    ),
    (
        "ridge",
        {"cv": TimeFolds(2), "alpha": "cv", "n_components": [8, 16]},
        "one split",
    ),
    ("ridge", {"kernel": Gaussian(2.0), "length_scale": 3.0}, "length_scale", 3.0),
    ("classifier", {"tol": 0}, "tol", 0),
    ("classifier", {"class_weight": {7: 1.0}}, "class_weight", 7),
    ("k-means", {"init": np.zeros((3, 4)), "n_init": 2}, "n_init", 2),
    ("k-means", {"n_principal": 33}, "n_principal", 33, "n_components"),
    ("k-means", {"normalize": "degree"}, "normalize", "n_principal"),
    ("k-means", {"normalize": "rows", "n_principal": 2}, "normalize", "'rows'"),
    ("PCA", {"n_components": 33}, "n_components", 33, "n_random_features"),
    *(
        (name, {"length_scale": "evidence"}, "'evidence'")
        for name in ("k-means", "PCA", "exact k-means")
    ),
    *(
        (name, {"features": "nystrom", "design": "iid"}, "design", "iid", "Nyström")
        for name in ("ridge", "classifier", "sampler", "k-means", "PCA")
    ),
]


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(a, b) for a, e in ALL.items() for b in WRONG if b in e.get_params()],
)
def test_a_value_that_cannot_be_is_refused_at_fit_and_named(name, parameter):
    for value in WRONG[parameter]:
        # the constructor only stores
        model = clone(ALL[name]).set_params(**{parameter: value})
        with refuses(InvalidParameterError, parameter, repr(value)) as caught:
            model.fit(X, Y)
        assert isinstance(caught.value, ValueError)
        assert "_fitted" not in vars(model)


@pytest.mark.parametrize(
    ("name", "parameters", "named"), [(a, b, c) for a, b, *c in NOT_TOGETHER]
)
def test_values_that_do_not_go_together_are_refused_at_fit_and_named(
    name, parameters, named
):
    with refuses(InvalidParameterError, *named):
        clone(ALL[name]).set_params(**parameters).fit(X, Y)


# -- rows
# --------------------------------------------------------------------------------------


def with_value(value):
    changed = X.copy()
    changed[7, 2] = value
    return changed


def outputs(model):
    return model.transform(X) if hasattr(model, "transform") else model.predict(X)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (X[:, 0], ["X has shape (60,)", "np.reshape(X, (len(X), -1))"]),
        (X[:0], ["0 sample(s)"]),
        (X[np.newaxis], ["X has shape (1, 60, 4)", "np.reshape(X, (len(X), -1))"]),
        (pd.Series(X[0]), ["X is a Series", "X.to_frame().T"]),
        (None, ["X is a NoneType"]),
        ({"a": X[:, 0]}, ["X is a dict", "pandas.DataFrame(X)"]),
        (iter(X), ["X is a iterator", "pandas.DataFrame(X)"]),
        ([["a"] * 4] * 60, ["text"]),
        (with_value(np.nan), ["Input X", "NaN"]),
        (with_value(-np.inf), ["Input X", "infinity"]),
    ],
    ids=[
        "1-D",
        "0 rows",
        "3-D",
        "Series",
        "None",
        "dict",
        "iterator",
        "strings",
        "NaN",
        "infinity",
    ],
)
@ESTIMATORS
def test_bad_rows_are_refused_in_scikit_learns_words_and_leave_the_fit_before(
    estimator, rows, named
):
    model = clone(estimator).fit(X, Y)
    before = outputs(model)
    for method in ("fit", "predict", "transform"):
        if hasattr(model, method):
            with refuses(ValueError, *named):
                getattr(model, method)(*([rows, Y] if method == "fit" else [rows]))
    assert_array_equal(outputs(model), before)


CONTAINERS = {
    "array": (lambda columns: np.column_stack(list(columns.values())), 1),
    "pandas": (pd.DataFrame, "'b'"),
    "polars": (pl.DataFrame, "'b'"),
    "Arrow": (pa.table, "'b'"),
    "rows": (
        lambda columns: [list(row) for row in zip(*columns.values(), strict=True)],
        1,
    ),
}
BAD_VALUES = {
    "text": (["u"], ["text", "row 7", "'u'"], "OneHotEncoder", "numbers at the fit"),
    "missing": ([None], ["NaN", "row 7"], "median", "median"),
    "infinity": ([np.inf], ["infinity", "row 7"], "", ""),
}


@pytest.mark.parametrize("bad", BAD_VALUES)
@pytest.mark.parametrize("container", CONTAINERS)
def test_a_value_that_is_no_number_is_named_by_column_and_row_with_a_way_on(
    container, bad
):
    make, label = CONTAINERS[container]
    values, named, at_fit, at_predict = BAD_VALUES[bad]
    # texts of numbers are numbers to scikit-learn
    others = ["1"] if bad == "text" else [1.0]
    columns = {"a": [0.5] * 12, "b": others * 7 + values + others * 4}
    good = make({"a": [0.5, 1.5] * 6, "b": [1.0, 2.0, 3.0] * 4})
    rows = make(columns)
    y = np.arange(12.0)
    for estimator in (ALL["ridge"], ALL["classifier"], ALL["k-means"]):
        fitted = clone(estimator).fit(good, y % 2)
        calls = [(at_predict, lambda model=fitted: model.predict(rows))]
        # a fit to a frame takes its text for categories
        if bad != "text" or container in ("array", "rows"):
            calls.append(
                (at_fit, lambda model=estimator: clone(model).fit(rows, y % 2))
            )
        for way_on, call in calls:
            with refuses(DataError, f"column {label}", *named, way_on):
                call()


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "Arrow"]
)
def test_dates_are_refused_by_their_column_and_not_taken_as_nanoseconds(make):
    days = np.arange("2020-01-01", "2020-01-13", dtype="datetime64[D]").astype(
        "datetime64[ns]"
    )
    model = clone(ALL["ridge"])
    model.fit(make({"x": np.arange(12.0), "when": np.arange(12.0)}), np.arange(12.0))
    with refuses(DataError, "column 'when'", "dates", "dt.total_seconds()"):
        model.predict(make({"x": np.arange(12.0), "when": days}))
    hours = np.arange(12) * np.timedelta64(1, "h")
    rows_and_targets = [(days[:, None], X[:12, 0]), (X[:12], days), (X[:12], hours)]
    for rows, y in rows_and_targets:
        with refuses(DataError, "dates", "dt.total_seconds()"):
            clone(ALL["ridge"]).fit(rows, y)
    with refuses(DataError, "sample_weight", "dates", "dt.total_seconds()"):
        clone(ALL["ridge"]).fit(X[:12], np.arange(12.0), sample_weight=days)


def test_targets_and_weights_that_are_no_numbers_are_named_by_row():
    bad = {
        "y contains NaN: row 5": {"y": np.where(np.arange(60) == 5, np.nan, Y)},
        "y contains infinity: row 5": {"y": np.where(np.arange(60) == 5, np.inf, Y)},
        "y contains text: row 0": {"y": ["yes", "no"] * 30},
        "sample_weight contains text: row 0": {"y": Y, "sample_weight": ["a"] * 60},
        "sample_weight contains NaN: row 3": {
            "y": Y,
            "sample_weight": [1.0, 1, 1, np.nan] * 15,
        },
    }
    for named, given in bad.items():
        with refuses(DataError, named):
            clone(ALL["ridge"]).fit(X, **given)
    with refuses(DataError, "row 1"):
        clone(ALL["classifier"]).fit(X, ["a", None] * 30)


@pytest.mark.parametrize("estimator", [type(model) for model in ALL.values()], ids=ALL)
def test_scikit_learns_words_for_kernels_get_ours_as_an_answer(estimator):
    answers = {
        "gamma": "give `length_scale`",
        "sigma": "give `length_scale`",
        "seed": "give `random_state`",
        "n_jobs": "SerialEngine(n_threads",
        "kernl": "give kernel",
        "widgets": "'length_scale'",
    }
    for name, answer in answers.items():
        with refuses(TypeError, repr(name), answer):
            estimator(**{name: 2})
        with refuses(InvalidParameterError, repr(name), answer):
            estimator().set_params(**{name: 2})
    with refuses(InvalidParameterError, "rbf", "gaussian", "length_scale"):
        estimator(kernel="rbf").fit(X, Y)
    # the answer that both messages give
    gamma = 0.5
    K = rbf_kernel(X[:9], gamma=0.5)
    assert_allclose(Gaussian(1 / np.sqrt(2 * gamma))(X[:9]), K)


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        (1.0 - 3 * (np.arange(60) == 9), ["sample_weight", "-2.0", "row 9"]),
        (np.zeros(60), ["at least one non-zero"]),
        (np.full(60, np.nan), ["sample_weight", "NaN"]),
        (np.ones(3), ["(3,)"]),
        ("age", ["sample_weight", "X['age']"]),
        (np.full(60, 1e308), ["sample_weight", "1e+308"]),
        (1e308 ** (np.arange(60) == 9), ["1e+308"]),
    ],
    ids=["negative", "zero", "NaN", "another length", "a name", "overflow", "one"],
)
@pytest.mark.parametrize(
    "name", ["ridge", "classifier", "k-means", "PCA", "exact k-means"]
)
def test_bad_weights_are_refused(name, weights, named):
    with refuses(ValueError, *named):
        clone(ALL[name]).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("name", ["ridge", "classifier"])
@pytest.mark.parametrize(
    ("y", "named"),
    [
        (None, ["requires y to be passed"]),
        (Y[:-1], ["inconsistent numbers of samples: [60, 59]"]),
        (np.where(np.arange(60) == 3, np.nan, Y), ["NaN", "row 3"]),
        (np.where(np.arange(60) == 3, np.inf, Y), ["row 3"]),
        (Y + 1j, []),
        ("price", ["X['price']"]),
        (csr_array(Y[:, None]), ["toarray()"]),
    ],
    ids=["none", "another length", "NaN", "infinity", "complex", "a name", "sparse"],
)
def test_bad_targets_are_refused(name, y, named):
    with refuses(ValueError, *named):
        clone(ALL[name]).fit(X, y)


@pytest.mark.parametrize("name", ["ridge", "classifier"])
def test_an_index_in_another_order_is_warned_of_and_the_advice_ends_it(name):
    frame = pd.DataFrame(X)
    y = pd.Series(Y > 0)
    turned = y[::-1]
    expected = clone(ALL[name]).fit(frame, y).predict(frame)
    with pytest.warns(UserWarning, match="y has the index of X in another order"):
        clone(ALL[name]).fit(frame, turned)
    for part in ("sample_weight", "groups"):
        with pytest.warns(UserWarning, match=f"{part} has the index of X"):
            clone(ALL[name]).fit(frame, y, **{part: 1 + turned})
    model = clone(ALL[name]).fit(frame, turned.loc[frame.index])
    assert_array_equal(model.predict(frame), expected)


@pytest.mark.parametrize("name", ["k-means", "exact k-means"])
def test_fewer_rows_than_clusters_are_refused_and_fewer_distinct_ones_are_told(name):
    with refuses(DataError, "n_samples=2", "n_clusters=3"):
        clone(ALL[name]).fit(X[:2])
    repeated = np.repeat(X[:3], 20, axis=0)
    model = clone(ALL[name]).set_params(n_clusters=5, standardize=True, random_state=0)
    with pytest.warns(
        ConvergenceWarning, match=r"clusters \(3\) found smaller than n_clusters \(5\)"
    ):
        model.fit(repeated)
    assert len(np.unique(model.labels_)) == 3
    assert model.inertia_ == pytest.approx(0.0, abs=1e-12)
    # without features an empty cluster has none
    n_centres = 5 if name == "k-means" else 3
    assert np.isfinite(model.transform(repeated)).all(axis=0).sum() == n_centres


# -- fits
# --------------------------------------------------------------------------------------


@ESTIMATORS
def test_the_seed_decides_and_a_generator_gives_one(estimator):
    def fitted(random_state):
        return outputs(
            clone(estimator).set_params(random_state=random_state).fit(X, X[:, 0] > 0)
        )

    for same in (
        lambda: 3,
        lambda: np.random.default_rng(3),
        lambda: np.random.RandomState(3),
    ):
        assert_array_equal(fitted(same()), fitted(same()))
    # others may find the same classes and clusters
    if estimator in (ALL["ridge"], ALL["sampler"]):
        assert (fitted(3) != fitted(4)).any()
        for moving in (None, np.random.default_rng(3), np.random.RandomState(3)):
            assert (fitted(moving) != fitted(moving)).any()


@ESTIMATORS
def test_before_fit_there_is_nothing_to_ask(estimator):
    known = {
        name
        for name in dir(type(estimator))
        if name.endswith("_") and not name.startswith("_")
    }
    for name in {
        *known,
        "feature_map_",
        "feature_coef_",
        "labels_",
        "feature_components_",
    }:
        assert not hasattr(estimator, name), name
    for method in (
        "predict",
        "predict_proba",
        "decision_function",
        "transform",
        "score",
    ):
        if hasattr(estimator, method):
            with refuses(NotFittedError, type(estimator).__name__):
                getattr(estimator, method)(*([X, Y] if method == "score" else [X]))


# -- attributes that other programs read by name
# ---------------------------------------------------------

# Programs rank or draw inputs by these, so each has one entry per input, or is not
# there.
PER_INPUT = (
    "coef_",
    "feature_importances_",
    "components_",
    "mean_",
    "cluster_centers_",
    "scale_",
    "var_",
)


@pytest.mark.parametrize(
    ("n_components", "kernel", "name"),
    covering(
        [32, 4],
        ["gaussian", "linear"],
        [name for name in ALL if name != "exact k-means"],
    ),
    ids=str,
)
def test_an_attribute_that_others_read_per_input_has_one_entry_per_input(
    name, kernel, n_components
):
    width = {"n_random_features" if name == "PCA" else "n_components": n_components}
    model = clone(ALL[name]).set_params(kernel=kernel, **width).fit(X, Y)
    there = {attribute for attribute in PER_INPUT if hasattr(model, attribute)}
    assert there == (
        {"coef_"} if kernel == "linear" and name in ("ridge", "classifier") else set()
    )
    assert all(
        np.shape(getattr(model, attribute))[-1] == X.shape[1] for attribute in there
    )


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
@pytest.mark.parametrize(
    "kernel", [Linear(), 0.5 * Linear() + 1.0, Linear().on([1])], ids=str
)
def test_slopes_of_a_linear_kernel_are_in_units_of_the_inputs(kernel, features):
    far = X * [1e-3, 1.0, 10.0, 1e3] + [0.0, 5.0, 1e3, 0.0]
    Y2 = np.column_stack([Y, 3.0 - far[:, 1]])
    model = plain_ridge(kernel=kernel, features=features, alpha=0.1).fit(far, Y2)
    assert_allclose(
        far @ model.coef_.T + model.intercept_, model.predict(far), atol=1e-4
    )
    assert not hasattr(
        clone(model).set_params(standardize="rank").fit(far, Y2), "coef_"
    )  # not linear in them
