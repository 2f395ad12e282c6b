"""Tables around models: rows from files, predictions to files."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pyarrow import csv, parquet

from rff_dist import SerialEngine, load_model, open_dataset
from rff_dist.classify.fit import LossOptions
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    OutputExistsError,
    StorageError,
)
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge.fit import fit
from rff_dist.ridge.models import write_model
from rff_dist.storage.columns import open_column
from rff_dist.workbench.jobs.places import DataSource
from tests.plain import fit_labels
from tests.refusals import refuses
from tests.tables import ingest, predict_table

OPTIONS = RidgeOptions(
    kernel="gaussian", length_scale=1.0, n_components=32, alpha=1.0, features="fourier"
)


def make_frame(n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Ulm", "Köln", "Bonn"], n),
            "day": (
                pd.Timestamp("2020-01-01")
                + pd.to_timedelta(rng.integers(0, 900, n), "D")
            ),
            "area": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 3, n)),
            "key": [f"k{seed}-{i}" for i in range(n)],
        }
    )
    frame["price"] = np.nan_to_num(frame["area"]) + (frame["town"] == "Ulm")
    frame["class"] = np.where(frame["price"] > 1.5, "dear", "cheap")
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    make_frame(400, 0).to_csv(folder / "old.csv", index=False)
    given = {"columns": ["town", "day", "area"], "id": "key", "impute": "median"}
    dataset = ingest(folder / "old.csv", folder / "prices", target="price", **given)
    write_model(fit(dataset, OPTIONS, engine=SerialEngine()).model, folder / "model")
    dataset = ingest(folder / "old.csv", folder / "classes", target="class", **given)
    labels = open_column(folder / "classes", "y")
    model = fit_labels(
        dataset, labels, OPTIONS, LossOptions("squared", None), engine=SerialEngine()
    )
    write_model(model, folder / "classifier")
    make_frame(70_000, 1).drop(columns=["price", "class"]).to_csv(
        folder / "new.csv", sep=";", index=False
    )
    return folder


def test_a_table_is_predicted_by_the_recipe_of_its_model(folder, tmp_path):
    """The oracle: the same rows encoded by hand, then the model on arrays."""
    frame = make_frame(70_000, 1)
    model = load_model(folder / "model")
    old = make_frame(400, 0)
    days = (frame["day"] - pd.Timestamp("1970-01-01")).dt.days
    town = frame["town"].map({"Bonn": 0, "Köln": 1, "Ulm": 2})
    dates = [days, frame["day"].dt.day_of_year, frame["day"].dt.day_of_week]
    areas = [frame["area"].fillna(old["area"].median()), frame["area"].isna()]
    X = np.column_stack([town, *dates, *areas])
    X = pd.DataFrame(X, columns=open_dataset(folder / "prices").feature_names)
    expected, std = model.predict(X, return_std=True)
    wanted = {"std": True, "coverage": 0.9}
    written = predict_table(folder / "model", folder / "new.csv", "p.parquet", **wanted)
    found = parquet.read_table(written)
    names = ["key", "prediction", "standard_deviation", "lower", "upper"]
    assert found.column_names == names
    assert found["key"].to_pylist() == frame["key"].tolist()
    assert_allclose(found["prediction"], expected, rtol=1e-9)
    assert_allclose(found["standard_deviation"], std, rtol=1e-9)
    width = np.subtract(found["upper"], found["lower"])
    assert_allclose(width, 2 * 1.6448536269514722 * std, rtol=1e-9)
    table = pa.Table.from_pandas(frame)
    for given in (frame, table):
        assert_allclose(model.predict(given), expected, rtol=1e-9)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.csv.zst"])
def test_probabilities_are_columns_by_their_class(folder, tmp_path, name):
    frame = make_frame(300, 1)
    frame.to_csv("few.csv", index=False)
    few = tmp_path / "few.csv"
    path = predict_table(
        folder / "classifier", few, tmp_path / name, probabilities=True
    )
    found = csv.read_csv(path).to_pandas()
    assert list(found.columns) == [
        "key",
        "label",
        "probability of cheap",
        "probability of dear",
    ]
    model = load_model(folder / "classifier")
    assert_array_equal(found["label"], model.predict(frame))
    assert_allclose(found.iloc[:, 2:], model.predict_proba(frame), rtol=1e-9)


def test_classes_that_are_numbers_are_named_as_their_table_writes_them(tmp_path):
    frame = make_frame(90, 3)
    frame["class"] = (frame["price"] > 1).astype(int)
    frame.to_csv("n.csv", index=False)
    columns = {"columns": ["town", "area"], "impute": "median"}
    dataset = ingest("n.csv", "numbers", target="class", **columns)
    labels = open_column("numbers", "y")
    loss = LossOptions("squared", None)
    model = fit_labels(dataset, labels, OPTIONS, loss, engine=SerialEngine())
    write_model(model, tmp_path / "m")
    path = predict_table(
        tmp_path / "m", "n.csv", tmp_path / "p.csv", probabilities=True
    )
    names = csv.read_csv(path).column_names
    assert names == ["label", "probability of 0", "probability of 1"]


def test_ids_are_in_zarr_too(folder):
    predict_table(folder / "model", folder / "new.csv", "p.zarr")
    ids = open_column("p.zarr", "id").take([0, 69_999]).tolist()
    assert ids == ["k1-0", "k1-69999"]


def test_levels_that_are_new_and_columns_that_are_absent(folder):
    frame = make_frame(5, 2).assign(town="Rom").drop(columns="key")
    frame.to_parquet("new.parquet")
    found = csv.read_csv(predict_table(folder / "model", "new.parquet", "p.csv"))
    assert found.column_names == ["prediction"]
    frame.drop(columns="area").to_csv("less.csv", index=False)
    with refuses(DataError, "'area'", "'town', 'day'"):
        predict_table(folder / "model", "less.csv", "q.csv")
    with refuses(DataError, "'area'"):
        load_model(folder / "model").predict(frame.drop(columns="area"))


def test_what_cannot_be_is_refused_before_a_pass(folder, tmp_path):
    (tmp_path / "p.csv").write_text("kept")
    make_frame(400, 3).to_csv("other.csv", index=False)
    ingest("other.csv", "other", columns=["town", "day", "area"], impute="median")
    new = folder / "new.csv"
    old = DataSource(data=str(folder / "new.csv"), version="v1")
    for error, said, data, output, options in (
        (OutputExistsError, "p.csv exists", new, tmp_path / "p.csv", {}),
        (StorageError, "make the folder", new, tmp_path / "no" / "p.csv", {}),
        (StorageError, "new.csv", new, new, {"overwrite": True}),
        (DataError, "another recipe", tmp_path / "other", tmp_path / "q.csv", {}),
        (InvalidParameterError, "no versions", old, tmp_path / "q.csv", {}),
    ):
        with refuses(error, said):
            predict_table(folder / "model", data, output, **options)
    assert (tmp_path / "p.csv").read_text() == "kept"
    assert not (tmp_path / "q.csv").exists()
