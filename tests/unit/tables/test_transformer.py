"""Pipelines of scikit-learn that end with a model of ours; scikit-learn's own
predictions are the oracle.
"""

import base64
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import sklearn
import skops.io
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from rff_dist import load_model, open_dataset, save_model
from rff_dist.data.blocks import Block
from rff_dist.errors import (
    DataError,
    IntegrityError,
    InvalidParameterError,
    UnsafeModelError,
    VersionError,
)
from rff_dist.recipes import transformer as module
from rff_dist.recipes.recipes import Recipe, recipe_of
from rff_dist.recipes.transformer import read_transformer, transformer_of
from tests.plain import plain_ridge
from tests.refusals import refuses
from tests.tables import ingest, ingest_more, predict_table


def make_frame(n, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "sold": rng.random(n) < 0.5,
            "town": rng.choice(["Ulm", "Köln", "Bonn"], n),
            "code": rng.choice(["01067", "89073", "53111"], n),
            "area": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 3, n)),
        }
    )
    frame["price"] = (
        np.nan_to_num(frame["area"]) + (frame["code"] == "01067") + frame["sold"]
    )
    return frame


def columns():
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    codes = OneHotEncoder(handle_unknown="ignore")
    return ColumnTransformer(
        [
            ("n", numbers, ["area"]),
            ("c", codes, ["town", "code"]),
            ("s", "passthrough", ["sold"]),
        ]
    )


def inputs(frame):
    return frame.drop(columns="price")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def pipeline(folder):
    """A pipeline on a frame, which is stored as "model"; the price is among the columns
    that it drops.
    """
    frame = make_frame(400, 0)
    fitted = make_pipeline(columns(), plain_ridge(alpha=1.0))
    fitted.fit(frame, frame["price"])
    save_model(fitted, folder / "model")
    return fitted


def score(*places, **wanted):
    return pd.read_csv(predict_table(*places, **wanted))


class TestPipelines:
    def test_predict_what_they_did_before_they_were_stored(self, pipeline, folder):
        frame = make_frame(50, 1)
        loaded = load_model(folder / "model")
        expected = pipeline.predict(inputs(frame))
        for rows in (inputs(frame), frame, pa.Table.from_pandas(frame)):
            assert_array_equal(loaded.predict(rows), expected)
        made = pd.DataFrame(
            pipeline[0].transform(frame), columns=pipeline[0].get_feature_names_out()
        )
        assert_array_equal(loaded.predict(made), expected)
        assert loaded.score(frame, frame["price"]) == pipeline.score(
            inputs(frame), frame["price"]
        )

    def test_on_arrays_take_arrays_and_tables_without_a_header(self):
        X = np.random.default_rng(0).lognormal(size=(200, 3))
        steps = (FunctionTransformer(np.log1p), StandardScaler())
        fitted = make_pipeline(*steps, plain_ridge(n_components=16)).fit(X, X[:, 0])
        save_model(fitted, "model")
        assert_array_equal(load_model("model").predict(X), fitted.predict(X))
        pd.DataFrame(X).to_csv("new.csv", index=False, header=False)
        found = score("model", "new.csv", "p.csv")
        assert_allclose(found["prediction"], fitted.predict(X), rtol=1e-9)

    def test_say_which_column_is_not_there_or_holds_something_else(
        self, pipeline, folder
    ):
        frame = make_frame(20, 5)
        frame.drop(columns="area").to_csv("less.csv", index=False)
        with refuses(DataError, "'area'", "'sold'"):
            score(folder / "model", "less.csv", "p.csv")
        frame.assign(area="large").to_csv("other.csv", index=False)
        with refuses(DataError, "'large'"):
            score(folder / "model", "other.csv", "p.csv")
        with refuses(DataError, "transformer does not take these rows", "area"):
            load_model(folder / "model").predict(frame.drop(columns="area"))


class TestDatasets:
    def test_of_a_transformer_hold_what_it_makes_and_go_on_with_it(self, pipeline):
        """A fitted transformer is learned from nothing that it is given later."""
        first = make_frame(300, 6)
        later = make_frame(100, 7).assign(town="Rom")
        first.to_csv("first.csv", index=False)
        later.to_csv("later.csv", index=False)
        recipe = Recipe([transformer_of(pipeline[0])])
        dataset = ingest("first.csv", "d", target="price", recipe=recipe)
        assert list(dataset.feature_names) == list(pipeline[0].get_feature_names_out())
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe_of(
            dataset.attributes
        )
        ingest_more("later.csv", "d")
        found = open_dataset("d").read(Block(0, 0, 400)).X
        assert_array_equal(found, pipeline[0].transform(pd.concat([first, later])))
        other = Recipe([transformer_of(columns().fit(first))])
        with refuses(InvalidParameterError, "was made by another"):
            ingest_more("later.csv", "d", recipe=other)


class TestFilesOfTransformers:
    def test_that_hold_other_code_are_refused_and_run_none(self):
        """`Path.touch` would leave a file, as any other function of the machine
        might.
        """
        place = Path("it ran")
        step = FunctionTransformer(Path.touch).fit(np.zeros((1, 1)))
        with refuses(
            UnsafeModelError, "holds 'pathlib", "touch', which skops does not trust"
        ):
            transformer_of(step)
        crafted = skops.io.dumps(
            FunctionTransformer(Path.touch, kw_args={"self": place})
        )
        with refuses(UnsafeModelError, "touch"):
            read_transformer(crafted)
        file = base64.b64encode(crafted).decode()
        good = transformer_of(StandardScaler().fit(np.zeros((2, 1))))
        recipe = Recipe([replace(good, file=file)])
        with refuses(UnsafeModelError, "touch"):
            recipe.encode(pa.record_batch({"0": [1.0]}))
        assert not place.exists()

    def test_that_are_damaged_or_unpack_to_too_much_are_refused(self, monkeypatch):
        content = skops.io.dumps(StandardScaler().fit(np.array([[3.25], [3.25]])))
        assert content.count(np.float64(3.25).tobytes()) == 1
        with refuses(IntegrityError, "32"):
            read_transformer(
                content.replace(np.float64(3.25).tobytes(), np.float64(3.5).tobytes())
            )
        with refuses(IntegrityError, "expected a file of skops.io.dump"):
            read_transformer(b"no zip")
        monkeypatch.setattr(module, "_MAX_UNPACKED", 2**20)
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", compression=zipfile.ZIP_DEFLATED) as members:
            members.writestr("schema.json", b" " * 2**21)
        with refuses(UnsafeModelError, "2"):
            read_transformer(bomb.getvalue())
        monkeypatch.setattr(module, "MAX_BYTES", 100)
        with refuses(InvalidParameterError, "0"):
            read_transformer(content)

    def test_of_another_scikit_learn_are_read_and_it_is_said(self, caplog):
        content = io.BytesIO(
            skops.io.dumps(StandardScaler().fit(np.arange(6.0).reshape(3, 2)))
        )
        older = io.BytesIO()
        with (
            zipfile.ZipFile(content) as members,
            zipfile.ZipFile(older, "w") as changed,
        ):
            for name in members.namelist():
                text = members.read(name)
                changed.writestr(
                    name, text.replace(sklearn.__version__.encode(), b"1.2.3")
                )
        made = read_transformer(older.getvalue())
        assert "fitted by scikit-learn 1.2.3" in caplog.text
        assert_allclose(made.transform(np.array([[2.0, 3.0]])), 0.0)

    @pytest.mark.parametrize(
        ("step", "message"),
        [
            (StandardScaler(), "no fitted transformer"),
            (FunctionTransformer(np.log1p).fit(np.ones((2, 1))), "feature_names_out="),
            (
                FunctionTransformer(lambda X: X).fit(np.ones((2, 1))),
                "cannot be written|does not trust",
            ),
        ],
    )
    def test_that_cannot_be_used_are_refused(self, step, message):
        with pytest.raises((InvalidParameterError, UnsafeModelError), match=message):
            transformer_of(step)

    def test_of_newer_releases_are_refused(self):
        found = Recipe(
            [transformer_of(StandardScaler().fit(np.zeros((2, 1))))]
        ).to_dict()
        with refuses(VersionError, "2", "3"):
            Recipe.from_dict({**found, "format": 3})
