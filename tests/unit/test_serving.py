"""The examples in deploy/ of a model behind HTTP and in batches."""

import asyncio
import importlib.util
from pathlib import Path

import httpx
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from rff_dist import load_model
from tests.command_line import fit_small_table

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fit_small_table(tmp_path_factory.mktemp("served"), "--alpha", "1")


def load(name):
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def post(app, rows):
    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://model"
        ) as client:
            return await client.post("/predict", json={"rows": rows})

    return asyncio.run(ask())


def test_rows_of_a_table_are_predicted_over_http(model, monkeypatch):
    monkeypatch.setenv("MODEL", str(model))
    app = load("serve").app
    frame = pd.read_csv(model.parent / "t.csv").head(3)
    rows = frame.drop(columns=["y", "id"]).to_dict("records")
    expected = load_model(model).predict(frame.assign(day=pd.to_datetime(frame["day"])))
    answer = post(app, rows)
    assert answer.status_code == 200
    assert_allclose(answer.json()["predictions"], expected)
    wrong = post(app, [{"kind": "a"}])
    assert wrong.status_code == 422
    assert "no column 'size'" in wrong.json()["detail"]
    assert post(app, []).status_code == 422


def test_batches_keep_their_ids_and_read_the_model_once(model, monkeypatch):
    module = load("batch")
    made = []
    monkeypatch.setattr(
        module, "load_model", lambda url: made.append(url) or load_model(url)
    )
    frame = pd.read_csv(model.parent / "t.csv", parse_dates=["day"])
    parts = module.predict_batches(iter([frame[:50], frame[50:]]), str(model))
    found = pd.concat(parts)
    assert found["id"].tolist() == frame["id"].tolist()
    assert_allclose(found["prediction"], load_model(model).predict(frame))
    assert made == [str(model)]
