"""A stored model gives what its pipeline gave, whichever way it is asked; or it says
why it cannot.
"""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import xarray
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    SplineTransformer,
    StandardScaler,
)

from rff_dist import (
    Gaussian,
    HashFolds,
    Linear,
    RFFClassifier,
    RFFKMeans,
    RFFRidge,
    load_model,
    save_model,
    write_dataset,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.estimators.mlflow import _Predictor
from rff_dist.export.write import describe, export
from rff_dist.models.kinds import read_any
from rff_dist.recipes.frames import encode_table
from rff_dist.recipes.recipes import recipe_of
from tests.covering import covering
from tests.places import scratch
from tests.refusals import refuses
from tests.tables import ingest, predict_table

NUMBERS = ["width", "age"]
SMALL = {"length_scale": 1.0, "n_components": 16, "random_state": 0}
MODELS = {
    "regression": RFFRidge(
        "gaussian", alpha=0.1, features="fourier", standardize=False, **SMALL
    ),
    "classifier": RFFClassifier(
        "gaussian", alpha=0.1, features="fourier", standardize=False, **SMALL
    ),
    "clusters": RFFKMeans(3, **SMALL),
}
TRANSFORMERS = {
    "keeps names": StandardScaler(),
    "keeps names, bounded": MinMaxScaler(),
    "other names": ColumnTransformer(
        [
            ("n", SplineTransformer(), make_column_selector(dtype_include=np.number)),
            ("t", OneHotEncoder(), ["town"]),
        ]
    ),
    "none": "passthrough",
}
LEARNED = {"learned": ["town", *NUMBERS], "learned, of numbers": NUMBERS}


def make_frame(n_rows, seed, columns):
    rng = np.random.default_rng(seed)
    values = {
        "town": rng.choice(["Bonn", "Köln", "Ulm"], n_rows),
        "width": rng.normal(100.0, 10.0, n_rows),
        "age": rng.normal(size=n_rows),
    }
    return pd.DataFrame(values)[columns]


def targets(frame):
    return np.sin(frame["width"].to_numpy() / 10) + frame["age"].to_numpy()


def known(kind, frame):
    y = targets(frame)
    return np.where(y > 0, "high", "low") if kind == "classifier" else y


def zarr_array(frame):
    values = frame.to_numpy(np.float64)
    array = zarr.create_array({}, shape=values.shape, dtype=values.dtype)
    array[:] = values
    return array


def raw_dataset(frame):
    names = list(frame.columns)
    return write_dataset(
        scratch("doors-raw"),
        frame.to_numpy(np.float64),
        feature_names=names,
        overwrite=True,
    )


def grid(frame):
    return xarray.Dataset(
        {name: ("x", frame[name].to_numpy(np.float64)) for name in frame.columns}
    )


CONTAINERS = {
    "array": lambda frame: frame.to_numpy(),
    "lists": lambda frame: frame.to_numpy().tolist(),
    "pandas": lambda frame: frame,
    "polars": polars.from_pandas,
    "lazy polars": lambda frame: polars.from_pandas(frame).lazy(),
    "arrow table": pa.Table.from_pandas,
    "arrow batch": pa.RecordBatch.from_pandas,
    "dask frame": lambda frame: dd.from_pandas(frame, npartitions=3),
    "dask array": lambda frame: da.from_array(frame.to_numpy(), chunks=(17, 1)),
    "zarr array": zarr_array,
    "array dataset": lambda frame: ArrayDataset(frame.to_numpy(np.float64)),
    "stored rows": raw_dataset,
    "path of stored rows": lambda frame: raw_dataset(frame).url,
    "grid": grid,
}
#: Whoever names the columns gets the numbers, never a refusal.
FRAMES = {"pandas", "polars", "lazy polars", "arrow table", "arrow batch", "dask frame"}


REASONS = [
    "'width'",
    "transformer does not take these rows",
    "could not convert string to float",
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a function that stores a model once; it returns columns, what must be
    predicted, and a place.
    """
    places = {}

    def store(kind, transformer):
        if (kind, transformer) not in places:
            places[kind, transformer] = fit_and_store(
                kind, transformer, tmp_path_factory.mktemp("doors")
            )
        return places[kind, transformer]

    return store


def fit_and_store(kind, transformer, folder):
    columns = LEARNED.get(transformer) or [
        *(["town"] if transformer == "other names" else []),
        *NUMBERS,
    ]
    frame = make_frame(150, 0, columns)
    model = clone(MODELS[kind])
    if transformer not in LEARNED:
        fitted = make_pipeline(clone(TRANSFORMERS[transformer], safe=False), model).fit(
            frame, known(kind, frame)
        )
        save_model(fitted, folder / "model")
        return columns, fitted.predict, folder / "model"
    frame.assign(y=known(kind, frame)).to_csv(folder / "t.csv", index=False)
    learned = ingest(folder / "t.csv", folder / "rows", target="y")
    save_model(model.fit(folder / "rows"), folder / "model")

    def predict(rows):
        codes = rows.replace({"town": {"Bonn": 0, "Köln": 1, "Ulm": 2}})
        write_dataset(
            scratch("doors-codes"),
            codes.to_numpy(np.float64),
            attributes={"recipe": learned.attributes["recipe"]},
            overwrite=True,
        )
        return model.predict(scratch("doors-codes"))

    return columns, predict, folder / "model"


def answer(call, *rows):
    """Return an answer; None if it was refused for a reason that names a column or an
    option of the model.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            warnings.filterwarnings("ignore", "X is split into 2 pieces")
            return np.asarray(call(*rows))
    except ValueError as error:
        return None if any(why in str(error) for why in REASONS) else error


@pytest.mark.parametrize(
    ("kind", "transformer"), covering(list(MODELS), [*TRANSFORMERS, *LEARNED], meet=1)
)
def test_rows_in_any_container_get_what_the_pipeline_said_or_a_reason(
    stored, kind, transformer
):
    columns, predict, place = stored(kind, transformer)
    model = load_model(place)
    rows = make_frame(40, 1, columns)
    expected = predict(rows)
    labels = known(kind, rows)
    answers = 0
    for name, contain in CONTAINERS.items():
        if "town" in columns and contain in (
            zarr_array,
            raw_dataset,
            grid,
            CONTAINERS["array dataset"],
        ):
            continue  # these hold numbers only
        if "town" in columns and name == "path of stored rows":
            continue
        found = answer(model.predict, contain(rows))
        assert not isinstance(found, ValueError), (name, found)
        assert found is not None or name not in FRAMES, name
        if found is None:
            continue
        # codes of classes, whose names are attributes
        if name == "grid" and kind == "classifier":
            found = model.classes_[found.astype(int)]
        answers += 1
        if kind == "regression":
            assert_allclose(found.ravel(), expected, rtol=1e-9, err_msg=name)
        else:
            assert_array_equal(found.ravel(), expected, err_msg=name)
        if name in FRAMES and "dask" not in name and kind != "clusters":
            assert model.score(contain(rows), labels) == pytest.approx(
                load_model(place).score(rows, labels)
            )
    assert answers >= len(FRAMES)


def test_rows_that_a_dataset_says_are_encoded_are_not_encoded_again(stored, tmp_path):
    for transformer in LEARNED:
        columns, predict, place = stored("regression", transformer)
        rows = make_frame(40, 1, columns)
        rows.to_csv("new.csv", index=False)
        recipe = recipe_of(read_any(place).card)
        dataset = ingest("new.csv", tmp_path / transformer, recipe=recipe)
        assert_allclose(load_model(place).predict(dataset), predict(rows), rtol=1e-9)
        other = ingest(
            place.parent / "t.csv",
            tmp_path / f"{transformer} other",
            target="y",
            impute="mean",
        )
        if transformer == "learned":
            with refuses(DataError, "another recipe"):
                load_model(place).predict(other)


def test_numbers_are_refused_by_a_model_of_texts():
    """Dates make more columns of X than the table has: the width gives nothing away."""
    days = pd.date_range("2024-01-01", periods=60)
    table = make_frame(60, 0, ["town", *NUMBERS]).assign(day=days)
    table.assign(y=table[NUMBERS[0]]).to_csv("t.csv", index=False)
    rows = ingest("t.csv", "rows", target="y")
    save_model(clone(MODELS["regression"]).fit("rows"), "model")
    codes = rows.take(range(60)).X
    assert codes.shape[1] > table.shape[1]
    model = load_model("model")
    with refuses(DataError, "'town'"):
        model.predict(codes)
    assert len(model.predict("rows")) == 60


def test_tables_and_stored_rows_at_the_command_line(stored):
    columns, predict, place = stored("regression", "keeps names")
    rows = make_frame(40, 1, columns)
    rows.to_csv("new.csv", index=False)
    found = pd.read_csv(predict_table(place, "new.csv", "p.csv"))
    assert_allclose(found["prediction"], predict(rows), rtol=1e-9)
    write_dataset("raw.zarr", rows.to_numpy(), feature_names=columns)
    with refuses(DataError, "raw.zarr", "StandardScaler", "'width'"):
        predict_table(place, "raw.zarr", "q.csv")


# -- what a model keeps
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("transformer", ["keeps names", "other names", "learned"])
@pytest.mark.parametrize("kind", ["regression", "classifier"])
def test_models_with_more_rows_read_the_same_tables(stored, kind, transformer):
    columns, _, place = stored(kind, transformer)
    rows = make_frame(40, 1, columns)
    more = make_frame(60, 2, columns)
    model = load_model(place).partial_fit(more, known(kind, more))
    expected = model.predict(rows)
    save_model(model, "more")
    again = load_model("more")
    assert_array_equal(again.predict(rows), expected)
    assert_array_equal(_Predictor("more").predict(rows), expected)
    assert again.score(rows, known(kind, rows)) == model.score(rows, known(kind, rows))
    # an independent fit of all rows, by the same features
    if kind == "regression":
        encoder = recipe_of(model.model_.card)
        parts = [
            encode_table(encoder, part) for part in (make_frame(150, 0, columns), more)
        ]
        Z = model.feature_map_.transform(np.vstack(parts), dtype=np.float64)
        y = np.concatenate([targets(make_frame(150, 0, columns)), targets(more)])
        plain = Ridge(0.1).fit(Z, y)
        Z_new = model.feature_map_.transform(
            encode_table(encoder, rows), dtype=np.float64
        )
        assert_allclose(expected, plain.predict(Z_new), rtol=1e-6)


PARAMETERS = [
    RFFRidge(
        length_scale=1.0,
        n_components=32,
        features="fourier",
        alpha_per_target=True,
        random_state=5,
    ),
    RFFRidge(
        Gaussian(2.0) + Linear(),
        cv=HashFolds(3, seed=2),
        alpha=[0.1, 1.0],
        effort=1,
        random_state=0,
    ),
    RFFRidge("gaussian", features="nystrom", time_limit=60.0, effort=1, random_state=0),
    RFFClassifier(
        "gaussian",
        loss="logistic",
        class_weight={"low": 2.0},
        n_components=16,
        random_state=1,
    ),
    RFFKMeans(3, init=np.eye(3, 2), n_components=64, random_state=2),
]


@pytest.mark.parametrize("estimator", PARAMETERS, ids=lambda one: type(one).__name__)
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")
def test_a_clone_of_a_loaded_estimator_fits_the_same_model(estimator):
    frame = make_frame(150, 0, NUMBERS)
    y = known(
        "classifier" if isinstance(estimator, RFFClassifier) else "regression", frame
    )
    fitted = clone(estimator).fit(frame, y)
    save_model(fitted, scratch("doors-parameters"), overwrite=True)
    loaded = load_model(scratch("doors-parameters"))
    assert repr(loaded.get_params()) == repr(fitted.get_params())
    assert_array_equal(
        clone(loaded).fit(frame, y).predict(frame), fitted.predict(frame)
    )
    turned = frame[NUMBERS[::-1]]
    for contain in (pd.DataFrame, polars.from_pandas, pa.Table.from_pandas):
        with refuses(DataError, "feature names should match", f"{NUMBERS}"):
            loaded.predict(contain(turned))


def test_a_splitter_of_scikit_learn_is_not_kept_and_another_fit_asks_for_folds():
    frame = make_frame(150, 0, NUMBERS)
    fitted = RFFRidge(
        "gaussian", alpha=0.1, cv=KFold(4), features="fourier", **SMALL
    ).fit(frame, targets(frame))
    save_model(fitted, scratch("doors-parameters"), overwrite=True)
    loaded = load_model(scratch("doors-parameters"))
    with refuses(DataError, "`groups`"):
        clone(loaded).fit(frame, targets(frame))


# -- single doors
# ----------------------------------------------------------------------------------


CHANGED = {
    "kernel": "laplacian",
    "length_scale": np.array([9.0, 1.0]),
    "n_components": 48,
    "standardize": True,
    "random_state": 9,
    "sample_weight_kind": "frequency",
    "alpha": -1.0,
    "fit_intercept": "no",
}


@pytest.mark.parametrize("door", ["in memory", "loaded"])
@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("classifier", name, value) for name, value in CHANGED.items()),
        ("classifier", "class_weight", {"high": 3.0}),
        ("classifier", "loss", "squared"),
        *(("regression", name, value) for name, value in CHANGED.items()),
    ],
)
def test_rows_are_added_by_the_parameters_of_the_fit_only(kind, name, value, door):
    frame = make_frame(150, 0, NUMBERS)
    y = known(kind, frame)
    model = clone(MODELS[kind])
    if name == "loss":
        model.set_params(loss="logistic")
    model.fit(frame, y)
    if door == "loaded":
        save_model(model, scratch("doors-parameters"), overwrite=True)
        model = load_model(scratch("doors-parameters"))
    with refuses(InvalidParameterError, f"`{name}`"):
        model.set_params(**{name: value}).partial_fit(frame, y)


def test_other_parameters_may_change_while_rows_are_added():
    frame = make_frame(150, 0, NUMBERS)
    for kind in ("regression", "classifier"):
        y = known(kind, frame)
        model = clone(MODELS[kind]).fit(frame, y)
        model.set_params(alpha=0.7, cv=3, verbose=0).partial_fit(frame, y)
        assert model.alpha_ == 0.7


@pytest.mark.parametrize("transformer", ["keeps names", "other names"])
def test_exports_do_not_leave_a_recipe_out_in_silence(stored, tmp_path, transformer):
    model = read_any(stored("regression", transformer)[2])
    with refuses(InvalidParameterError, "`encoded`", "width"):
        export(model, "out")
    export(model, "out", encoded=True)
    assert "encoding" in (tmp_path / "out" / "model.json").read_text()
    with refuses(StorageError, "zarr.json", "export"):
        load_model("out")
    assert (
        describe(
            read_any(stored("regression", "learned, of numbers")[2]), encoded=False
        ).facts["encoding"]
        == ""
    )


# -- tables that are not like those before
# -------------------------------------------------------------


@pytest.mark.parametrize("level", ["Rom", "12"])
def test_unknown_levels_are_counted_and_named(stored, level):
    columns, _, place = stored("regression", "learned")
    rows = make_frame(40, 1, columns)
    rows.loc[:2, "town"] = level
    model = load_model(place)
    for contain in (CONTAINERS[name] for name in FRAMES - {"dask frame"}):
        with pytest.warns(UserWarning, match=f"3 of 40 .*'town'.*'{level}'"):
            model.predict(contain(rows))
    with pytest.warns(UserWarning, match="of 1[34] .*'town'"):
        model.predict(CONTAINERS["dask frame"](rows)).compute(scheduler="synchronous")


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda frame: frame.assign(town=["Bonn", 1, None] * 10), ["town"]),
        (lambda frame: pd.concat([frame, frame[["age"]]], axis=1), ["age"]),
        (lambda frame: frame.drop(columns="age"), ["age", "town"]),
        (lambda frame: frame.assign(age="old"), ["age"]),
        (
            lambda frame: pa.Table.from_pandas(frame).append_column(
                "age", pa.array([1.0] * 30)
            ),
            ["age"],
        ),
    ],
)
def test_frames_that_are_no_such_tables_are_refused_by_column(stored, change, names):
    columns, _, place = stored("regression", "learned")
    with refuses(DataError, *names):
        load_model(place).predict(change(make_frame(30, 1, columns)))
