"""Every form of the same rows gives the same model, and bad rows are refused in
each.
"""

import warnings
from decimal import Decimal

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import polars
import pytest
import scipy.sparse as sp
import xarray
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from rff_dist import (
    RFFPCA,
    KernelKMeans,
    RFFKMeans,
    RFFRidge,
    RFFSampler,
    SerialEngine,
    write_dataset,
)
from rff_dist.data.blocks import Block
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.dask_arrays import DaskArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.estimators.inputs import suitable_engine
from rff_dist.estimators.labelled_rows import as_labelled
from rff_dist.estimators.splits import with_groups
from rff_dist.storage.columns import as_column, open_column
from tests.places import scratch
from tests.plain import plain_ridge
from tests.refusals import refuses
from tests.tables import all_rows

N = 300
D = 4


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    # zeros, for the sparse forms
    X = rng.normal(size=(N, D)) * (rng.random((N, D)) < 0.7)
    return (
        X,
        X @ [1.0, -2.0, 0.5, 0.0]
        + np.sin(3 * X[:, 3])
        + 0.1 * rng.normal(size=N)
        + 7.0,
    )


def unknown_chunks(array):
    """Return a Dask array that does not know how many rows its chunks have."""
    return (
        dd.from_pandas(pd.DataFrame(array), npartitions=3)
        .to_dask_array()
        .astype(array.dtype)
    )


def zarr_array(values, chunks):
    array = zarr.create_array({}, shape=values.shape, dtype=values.dtype, chunks=chunks)
    array[:] = values
    return array


def stored(X, y, name):
    return write_dataset(scratch(f"inputs-{name}"), X, y, chunk_rows=64, overwrite=True)


FORMS = {
    "lists": lambda X, y: (X.tolist(), y.tolist()),
    "column-major array": lambda X, y: (np.asfortranarray(X), y),
    "big-endian array": lambda X, y: (X.astype(">f8"), y.astype(">f8")),
    "pandas": lambda X, y: (pd.DataFrame(X, columns=list("abcd")), pd.Series(y)),
    "polars": lambda X, y: (polars.DataFrame(X, schema=list("abcd")), polars.Series(y)),
    "csr_matrix": lambda X, y: (sp.csr_matrix(X), y),
    "csc_array": lambda X, y: (sp.csc_array(X), y),
    "Dask array": lambda X, y: (da.from_array(X, chunks=(100, D)), da.from_array(y, chunks=100)),
    "Dask array with NumPy y": lambda X, y: (da.from_array(X, chunks=(70, D)), y),
    "Dask array, unknown chunks": lambda X, y: (unknown_chunks(X), unknown_chunks(y[:, np.newaxis])[:, 0]),
    "Dask frame": lambda X, y: (
        dd.from_pandas(pd.DataFrame(X, columns=list("abcd")), npartitions=3),
        dd.from_pandas(pd.Series(y), npartitions=3),
    ),
    "Zarr arrays": lambda X, y: (zarr_array(X, (64, D)), zarr_array(y, (50,))),
    "path": lambda X, y: (stored(X, y, "path").url, None),
    "dataset": lambda X, y: (stored(X, y, "dataset"), None),
    "array dataset": lambda X, y: (ArrayDataset(X, y), None),
}  # fmt: skip


def as_numpy(values):
    return np.asarray(values.compute() if dask.is_dask_collection(values) else values)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_in_any_form_give_the_same_bits(rows, form):
    X, y = rows
    expected = plain_ridge().fit(X, y)
    given_X, given_y = FORMS[form](X, y)
    model = plain_ridge().fit(given_X, given_y)
    assert model.n_features_in_ == D
    assert model.statistics_ == expected.statistics_
    assert_array_equal(model.feature_coef_, expected.feature_coef_)
    assert model.feature_intercept_ == expected.feature_intercept_
    predictions = model.predict(given_X)
    assert dask.is_dask_collection(predictions) == dask.is_dask_collection(given_X)
    # the sum over features is BLAS's, which may round by the number of rows it is given
    assert_allclose(as_numpy(predictions), expected.predict(X), rtol=1e-13)
    assert model.score(given_X, given_y) == pytest.approx(
        expected.score(X, y), rel=1e-12
    )


# Forms become rows in one place, whichever the estimator: one of each kind.
@pytest.mark.parametrize("form", ["csr_matrix", "Dask frame", "path"])
@pytest.mark.parametrize(
    "estimator",
    [
        RFFSampler(n_components=32, random_state=0),
        RFFPCA(2, n_random_features=32, random_state=0),
        RFFKMeans(3, n_components=32, random_state=0),
        KernelKMeans(3, random_state=0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_estimators_without_targets_take_any_form_alike(rows, form, estimator):
    X, y = rows
    expected = clone(estimator).fit(X)
    # y is not looked at
    damaged = "dataset" in form and not isinstance(estimator, RFFSampler)
    given = FORMS[form](X, y * np.nan if damaged else y)[0]
    model = clone(estimator).fit(given)
    for name in {"transform", "predict"} & set(dir(estimator)):
        found = getattr(model, name)(given)
        if not isinstance(estimator, KernelKMeans):  # for few rows: it computes at once
            assert dask.is_dask_collection(found) == dask.is_dask_collection(given)
        # matrix products round by the number of rows worked on together
        assert_allclose(as_numpy(found), getattr(expected, name)(X), rtol=0, atol=1e-7)


@pytest.mark.parametrize("form", ["Dask array", "Zarr arrays", "dataset", "csr_matrix"])
def test_weights_and_several_targets_in_any_form_give_the_same_bits(rows, form):
    X, y = rows
    Y = np.column_stack([y, -y, X[:, 0]])
    weights = np.linspace(0.0, 2.0, N)
    expected = plain_ridge().fit(X, Y, weights)
    lazy = (
        da.from_array(X, chunks=(100, 4)),
        da.from_array(Y, chunks=(90, 2)),
        da.from_array(weights),
    )
    arguments = {
        "dataset": (
            write_dataset(
                scratch("weighted"), X, Y, sample_weight=weights, overwrite=True
            ),
        ),
        "Dask array": lazy,
        "Zarr arrays": (
            zarr_array(X, (64, 4)),
            zarr_array(Y, (50, 3)),
            zarr_array(weights, (300,)),
        ),
        "csr_matrix": (sp.csr_array(X), Y, weights),
    }[form]
    model = plain_ridge().fit(*arguments)
    assert model.statistics_ == expected.statistics_
    assert_array_equal(model.feature_coef_, expected.feature_coef_)
    assert_allclose(
        as_numpy(model.predict(arguments[0])),
        expected.predict(X),
        rtol=1e-13,
        atol=1e-13,
    )
    assert model.score(*arguments) == pytest.approx(
        expected.score(X, Y, weights), rel=1e-12
    )


# -- Dask collections
# ----------------------------------------------------------------------------------


def test_predictions_of_a_dask_array_are_lazy_and_in_its_chunks(rows):
    X, y = rows
    model = plain_ridge(alpha=0.1).fit(X, y)
    predictions = model.predict(da.from_array(X, chunks=(70, D)))
    assert isinstance(predictions, da.Array)
    assert (predictions.shape, predictions.chunks) == ((N,), ((70, 70, 70, 70, 20),))
    Z = (
        RFFSampler(n_components=32, random_state=0)
        .fit(X)
        .transform(da.from_array(X, chunks=(70, D)))
    )
    assert (Z.shape, Z.dtype) == ((N, 32), np.float64)
    several = plain_ridge(alpha=0.1).fit(X, np.column_stack([y, y, y]))
    assert several.predict(da.from_array(X, chunks=(70, D))).chunks == (
        (70, 70, 70, 70, 20),
        (3,),
    )


def test_a_dask_array_split_along_columns_gets_one_warning_and_the_same_bits(rows):
    X, y = rows
    expected = plain_ridge(alpha=0.1).fit(X, y)
    split = da.from_array(X, chunks=(100, 2))
    model = plain_ridge(alpha=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(split, y)
    assert [str(w.message).partition(";")[0] for w in caught] == [
        "X is split into 2 pieces along its columns"
    ]
    assert_array_equal(model.feature_coef_, expected.feature_coef_)
    with pytest.warns(UserWarning, match="split into 2 pieces"):
        predictions = model.predict(split)
    assert_allclose(predictions.compute(), expected.predict(X), rtol=1e-13)


# -- engines
# --------------------------------------------------------------------------------------


def run_by(engine, dataset):
    with suitable_engine(engine, dataset) as chosen:
        return type(chosen).__name__


@pytest.fixture
def client():
    with distributed.Client(
        processes=False,
        n_workers=1,
        threads_per_worker=1,
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
    ) as client:
        yield client


@pytest.mark.distributed
def test_with_a_current_client_stored_and_lazy_data_run_on_it_and_memory_does_not(
    rows, client, tmp_path
):
    X, y = rows
    dataset = write_dataset("data.zarr", X, y)
    assert run_by(None, dataset) == "DaskEngine"
    assert run_by(None, ArrayDataset(X, y)) == "SerialEngine"
    assert run_by(SerialEngine(1), dataset) == "SerialEngine"
    expected = plain_ridge().fit(X, y)
    for given in ((tmp_path / "data.zarr",), (da.from_array(X, chunks=(100, D)), y)):
        before = client.run_on_scheduler(
            lambda dask_scheduler: dask_scheduler.transition_counter
        )
        model = plain_ridge().fit(*given)
        after = client.run_on_scheduler(
            lambda dask_scheduler: dask_scheduler.transition_counter
        )
        assert after > before  # the cluster worked
        assert_array_equal(model.feature_coef_, expected.feature_coef_)
        assert_allclose(
            as_numpy(model.predict(given[0])), expected.predict(X), rtol=1e-13
        )
    assert client.status == "running"


# -- bad rows
# --------------------------------------------------------------------------------------


def with_value(X, value):
    X = X.copy()
    X[123, 2] = value
    return X


@pytest.mark.parametrize(
    ("form", "value"),
    [("Dask array", np.nan), ("Zarr arrays", np.inf), ("path", -np.inf)],
)
def test_a_value_that_is_not_finite_is_named_by_row_and_column(rows, form, value):
    X, y = rows
    kind = "NaN" if np.isnan(value) else "infinity"
    with refuses(ValueError, "Input X", kind, "row 123", "column 2") as caught:
        plain_ridge().fit(*FORMS[form](with_value(X, value), y))
    assert isinstance(caught.value, DataError)
    with refuses(DataError, "Input y", kind, "row 123"):
        plain_ridge().fit(*FORMS[form](X, np.where(np.arange(N) == 123, value, y)))
    model = plain_ridge(alpha=0.1).fit(X, y)
    counted = "partition" if form == "Dask array" else "row 123"
    with refuses(DataError, "Input X", kind, "column 2", counted):
        as_numpy(model.predict(FORMS[form](with_value(X, value), y)[0]))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (
            lambda X, y: (da.from_array(X), None),
            DataError,
            "RFFRidge requires y to be passed",
        ),
        (
            lambda X, y: (da.from_array(X), y, np.ones(3)),
            DataError,
            "[300, 300, 3] (X, y, sample_weight)",
        ),
        (
            lambda X, y: (da.from_array(X), y, -np.ones(N)),
            DataError,
            "sample_weight is -1.0 in row 0",
        ),
        (
            lambda X, y: (da.from_array(X), y, np.zeros(N)),
            DataError,
            "all sample weights are zero",
        ),
        (lambda X, y: (zarr_array(X, (64, 4)), y[:-1]), DataError, "299"),
        (lambda X, y: (zarr.create_group({}), y), StorageError, "path or URL"),
        (
            lambda X, y: (zarr_array(X, (64, 4)), None),
            DataError,
            "RFFRidge requires y to be passed",
        ),
        (
            lambda X, y: (stored(X, None, "no-y"), None),
            DataError,
            "RFFRidge requires y to be passed",
        ),
        (lambda X, y: (stored(X, y, "y-twice"), y), DataError, "belong to the dataset"),
        (lambda X, y: (xarray.DataArray(X), y), DataError, "pass X.values"),
        (
            lambda X, y: (xarray.Dataset({"a": ("i", X[:, 0])}), y),
            DataError,
            "pass X.to_dataframe()",
        ),
        (lambda X, y: (__file__, "price"), StorageError, "rff-dist ingest"),
        (
            lambda X, y: (scratch("inputs-nothing-here"), None),
            StorageError,
            "inputs-nothing-here",
        ),
        (
            lambda X, y: (sp.csr_array(with_value(X, np.nan)), y),
            ValueError,
            "Input X contains NaN",
        ),
    ],
)
def test_bad_rows_are_refused_in_any_form(rows, given, error, said):
    with refuses(error, said):
        plain_ridge().fit(*given(*rows))


@pytest.mark.parametrize("form", ["Dask array", "path"])
def test_another_number_of_columns_is_refused_in_any_form(rows, form):
    X, y = rows
    given = FORMS[form](X[:, :3], y)[0]
    with refuses(ValueError, "3 features", "RFFRidge is expecting 4 features"):
        plain_ridge(alpha=0.1).fit(X, y).predict(given)
    with refuses(ValueError, "3 features", "RFFSampler is expecting 4 features"):
        RFFSampler(n_components=32).fit(X).transform(given)


def test_a_dataset_with_other_column_names_is_refused(rows):
    X, y = rows
    trained, other = (
        write_dataset(
            scratch(f"names-{names}"), X, y, feature_names=list(names), overwrite=True
        )
        for names in ("abcd", "abce")
    )
    model = plain_ridge(alpha=0.1).fit(trained)
    assert list(model.feature_names_in_) == list("abcd")
    with refuses(DataError, "'e'", "'d'"):
        model.predict(other)


# -- labels and groups
# -----------------------------------------------------------------------------

LABELLED = {
    "array": lambda X, y: (X, y),
    "lists": lambda X, y: (X.tolist(), y.tolist()),
    "pandas": lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    "polars": lambda X, y: (polars.DataFrame(X), polars.Series(y)),
    "csr_matrix": lambda X, y: (sp.csr_matrix(X), y),
    "Dask array": lambda X, y: (
        da.from_array(X, chunks=(90, -1)),
        da.from_array(y.astype("U"), chunks=70),
    ),
    "Dask frame": lambda X, y: (dd.from_pandas(pd.DataFrame(X), npartitions=3), y),
    "Dask array, column": lambda X, y: (
        da.from_array(X, chunks=(90, -1)),
        as_column(y),
    ),
    "Zarr arrays": lambda X, y: (
        zarr_array(X, (64, D)),
        zarr_array(y.astype("U"), (50,)),
    ),
    "path": lambda X, y: (stored(X, y, "labels").url, None),
    "dataset": lambda X, y: (stored(X, y, "labels"), None),
    "dataset and a name": lambda X, y: (stored(X, y, "labels"), "y"),
}


@pytest.mark.parametrize("form", LABELLED)
def test_every_form_of_labelled_rows_gives_the_same_rows_and_labels(rows, form):
    X = rows[0]
    y = np.array(["a", "b", "ü"], object)[np.arange(N) % 3]
    estimator = RFFRidge()
    source, labels = as_labelled(estimator, *LABELLED[form](X, y), reset=True)
    block = Block(0, 0, N)
    assert labels.read(block).tolist() == y.tolist()
    assert_array_equal(source.read(block).X, X)
    assert source.n_targets == 0
    assert estimator.n_features_in_ == D


@pytest.mark.parametrize(
    "dataset",
    [
        lambda X, y: ArrayDataset(X, y),
        lambda X, y: stored(X, y, "codes"),
        lambda X, y: DaskArrayDataset(da.from_array(X, chunks=(90, -1)), y),
    ],
)
def test_numbers_that_a_dataset_has_as_targets_are_its_labels(rows, dataset):
    X = rows[0]
    y = np.arange(N) % 3
    source, labels = as_labelled(RFFRidge(), dataset(X, y), reset=True)
    assert source.n_targets == 0
    assert all_rows(source).y is None
    assert all_rows(labels).tolist() == y.tolist()


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (np.ones((3, 1)), [1.0, 1.2, 3.1], "1.2, no whole number up to 2^53, in row 1"),
        (np.ones((3, 1)), [0.5, 1.2, 3.1], "RFFRidge"),
        (np.ones((3, 1)), np.ones((3, 2)), "shape (3, 2"),
        (da.ones((3, 1)), None, "requires y to be passed"),
        (da.ones((3, 1)), [1, 2], "inconsistent numbers of samples: [3, 2"),
        (da.ones((3, 1)), [1.0, 2.5, 3.0], "no whole number"),
        (ArrayDataset(np.ones((3, 1))), None, "requires y to be passed"),
        (
            ArrayDataset(np.ones((3, 1)), [1, 2, 3]),
            [1, 2, 3],
            "`y` belongs to the dataset",
        ),
        (
            ArrayDataset(np.ones((3, 1)), np.ones((3, 2))),
            None,
            "2 targets; expected one label",
        ),
        (ArrayDataset(np.ones((3, 1)), [1, 2, 3]), "species", "are not stored"),
    ],
)
def test_labels_that_do_not_fit_are_refused(X, y, said):
    with refuses(ValueError, said):
        as_labelled(RFFRidge(), X, y, reset=True)


def test_groups_are_given_by_value_or_by_the_name_of_a_stored_array(rows):
    X, y = rows
    groups = np.array(["u", "v"])[np.arange(N) % 2]
    dataset = write_dataset(
        scratch("inputs-groups"), X, y, groups=groups, overwrite=True
    )
    column = open_column(scratch("inputs-groups"), "groups")
    for given in (
        "groups",
        groups,
        pd.Series(groups),
        da.from_array(groups, chunks=70),
        column,
    ):
        assert all_rows(with_groups(dataset, given)).groups.tolist() == groups.tolist()
    assert with_groups(dataset, None) is dataset
    with refuses(InvalidParameterError, "groups", "'groups'"):
        with_groups(ArrayDataset(X, y), "groups")
    with refuses(DataError, "300", "2"):
        with_groups(dataset, [1, 2])
    with refuses(DataError, "groups is missing"):
        with_groups(dataset, [1.0, np.nan])


@pytest.mark.parametrize(
    "form", ["array", "frame", "objects", "decimals", "frame with text", "target"]
)
def test_integers_that_become_equal_are_warned_of_once(form):
    steps = np.arange(20)
    huge = 2**60 + steps  # float64 holds multiples of 256 there
    exact = 2**60 + 256 * steps
    X = pd.DataFrame({"a": huge, "b": exact})
    where = " in column 'a'"
    y = steps
    if form == "array":
        X = X.to_numpy()
        where = " in column 0"
    elif form == "objects":
        X["a"] = (2**10 * huge.astype(object)).tolist()
        X = X.astype(object)
    elif form == "decimals":
        X["a"] = [Decimal(value) for value in huge.tolist()]
    elif form == "frame with text":
        X["c"] = huge.astype(str)
    elif form == "target":
        X = X[["b"]]
        where = ""
        y = huge
    name = "y" if form == "target" else "X"
    with pytest.warns(
        UserWarning, match=f"^{name} has integers beyond 2⁵³{where},"
    ) as met:
        plain_ridge().fit(X, y)
    assert len(met) == 1
