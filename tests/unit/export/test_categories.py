"""Exported models of tables with categories: the reader and ONNX say what the model
says, of levels that it has seen and of others.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from rff_dist import load_model, write_dataset
from rff_dist.data.blocks import Block, Rows
from rff_dist.fitting.predicting import predict_rows
from rff_dist.recipes.encoders import Category, Number
from rff_dist.recipes.recipes import RECIPE, Recipe
from rff_dist.ridge.models import read_model
from tests.command_line import document, refusal
from tests.tables import ingest, save
from tests.unit.export.conftest import FEATURES

TOWNS = ["(missing)", "5", "Köln", "Rom"]
KINDS = {
    **{kind: FEATURES[kind] for kind in FEATURES if kind != "ranks"},
    "laplacian": ["--kernel", "laplacian", "--features", "nystrom"],
    "laplacian pairs": ["--kernel", "laplacian", "--features", "fourier"],
    "rational quadratic": ["--kernel", "rational_quadratic", "--features", "nystrom"],
    "product": ["--kernel", "gaussian * matern:nu=0.5", "--features", "nystrom"],
    "additive pairs": ["--kernel", "additive", "--features", "fourier"],
    "weights of columns": [
        "--kernel",
        "additive:order_1=0.5/2/0/1,order_2=0.3",
        "--features",
        "nystrom",
    ],
}


def make_rows(n_rows, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, 4)) * [1, 1, 10, 1] + [0, 0, 100, 0]
    X[:, 1] = rng.integers(0, 4, n_rows)
    X[:, 3] = rng.integers(0, 2, n_rows)
    return X


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Return a function that fits features of a kind, and returns the model's place."""
    folder = tmp_path_factory.mktemp("categories")
    X = make_rows(300, 0)
    y = np.sin(X[:, 0]) + np.array([0, 2, -1, 1])[X[:, 1].astype(int)] * X[:, 2] / 100
    recipe = Recipe(
        [
            Number("x"),
            Category("town", TOWNS),
            Number("z"),
            Category("colour", ["red", "blue"]),
        ]
    )
    write_dataset(
        folder / "data",
        X,
        y,
        feature_names=recipe.names,
        attributes={RECIPE: recipe.to_dict()},
    )

    def fit(kind):
        place = folder / kind
        if not place.exists():
            small = "--n-components 32 --alpha 0.1 --serial"
            scale = [] if "--length-scale" in KINDS[kind] else ["--length-scale=median"]
            document("fit", folder / "data", place, small, *scale, *KINDS[kind])
        return place

    return fit


def new_rows():
    """Return rows with all pairs of levels, some of them unseen, and their names."""
    X = make_rows(50, 1)
    X[:, 1] = np.arange(50) % 5
    X[:, 3] = np.arange(50) % 3
    towns = [None, "5.0", "Ko\u0308ln", "Rom", "Atlantis"]
    rows = []
    for row in X.tolist():
        colour = ["red", "blue", "mauve"][int(row[3])]
        rows.append([row[0], towns[int(row[1])], row[2], colour])
    return X, rows


def predicted(place, X):
    model = read_model(str(place))
    return predict_rows(Rows(Block(0, 0, len(X)), X), model.linear)


def reader_of(folder):
    path = Path(folder) / "reader.py"
    spec = importlib.util.spec_from_file_location("reader", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reader_takes_codes_and_names(model_of, tmp_path, kind):
    document("export", model_of(kind), tmp_path / "slim")
    reader = reader_of(tmp_path / "slim")
    X, rows = new_rows()
    expected = predicted(model_of(kind), X)
    tolerance = 1e-9 * np.abs(expected).max()
    for given in (X, rows, np.array(rows, object), np.where(X == 4, -1, X)):
        found = reader.predict(given)
        assert found.shape == (len(rows),)
        assert_allclose(found, expected[:, 0], 0, tolerance)
    readme = (tmp_path / "slim" / "README.md").read_text("utf-8")
    assert "town, colour" in readme


def test_the_reader_fills_gaps_as_the_model_does(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 2)).round(3)
    x[::50, 1] = np.nan
    town = rng.choice(["Köln", "Rom"], 200)
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "town": town})
    y = frame.a + frame.b.fillna(0) + (town == "Rom")
    ingest(save(frame.assign(y=y), "t.csv"), "data", target="y", impute="median")
    document("fit", "data", "model", *KINDS["pairs"], "--n-components 32 --serial")
    document("export", "model", "slim")
    found = reader_of("slim").predict(frame.to_numpy(object))
    expected = load_model("model").predict(frame)
    assert_allclose(found, expected, atol=2e-3 * expected.std())


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_takes_codes(model_of, tmp_path, kind):
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    words = ["export", model_of(kind), tmp_path / "m.onnx"]
    assert "town" in refusal(2, *words)
    document(*words, "--encoded")
    (levels,) = onnx.load(tmp_path / "m.onnx").metadata_props
    assert json.loads(levels.value) == [[1, TOWNS], [3, ["red", "blue"]]]
    X, _ = new_rows()
    session = onnxruntime.InferenceSession(
        tmp_path / "m.onnx", providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"X": X})
    expected = predicted(model_of(kind), X)
    # cosines of float32 that differ in their last bit may round to the next of 16,256
    # steps
    tolerance = 1e-9 if {"nystrom", "linear"} & set(KINDS[kind]) else 2e-3
    assert_allclose(found, expected, 0, tolerance * np.abs(expected).max())
    assert np.median(np.abs(found - expected)) < 1e-6 * expected.std()
