"""Rows that are forgotten: no byte of theirs is left, and models are as if they had never been there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rff_dist.engines.serial import SerialEngine
from rff_dist.kernels.stationary import Gaussian
from rff_dist.registry.versions import RegisteredModel
from rff_dist.ridge.model import read_model, write_model
from rff_dist.statistics import passes
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.corrections import replace_rows
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import tag_snapshot
from rff_dist.storage.writing import write_dataset
from tests.command_line import document, refusal
from tests.plain import fit_ridge
from tests.tables import ingest

N = 1000
ROWS = [3, 500, 998]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    write_dataset("d", X, X[:, 0] + 0.1 * rng.standard_normal(N), chunk_rows=128, versioned=True)
    Path("rows.csv").write_text("row\n" + "\n".join(map(str, ROWS)) + "\n")
    return open_dataset("d")


def fit(dataset, **options):
    options = {"length_scale": 1.0, "n_components": 16, "alpha": 0.1, **options}
    return fit_ridge(dataset, Gaussian(), engine=SerialEngine(1), **options)[0]


def values_of(dataset, rows):
    X, y, _ = dataset.take(np.array(rows))
    return [value.tobytes() for value in np.concatenate([X.ravel(), y.ravel()])]


def files_with(folder, values):
    """The oracle: which files below a folder have the bytes of one of the values."""
    contents = {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}
    return sorted(str(path) for path, content in contents.items() if any(one in content for one in values))


def test_no_byte_of_the_rows_is_left_and_the_model_is_as_if_they_had_never_been_there(data):
    begun = fit(data)
    write_model(begun, "model")
    X, y, _ = data.take(np.array([7]))
    replace_rows("d", [3], X, y[:, 0])
    values = values_of(data, ROWS)
    assert files_with("d", values)
    before = {path.name for path in Path("model").iterdir()}
    found = document("forget", "d", "--rows", "rows.csv", "--model", "model", "--serial")
    assert (found["n_rows"], found["n_after"], len(found["expired"])) == (3, N - 3, 2)
    assert files_with(".", values) == []
    assert before & {path.name for path in Path("model").iterdir()} == {"model.json"}
    model, left = read_model("model"), open_dataset("d")
    expected = passes.accumulate(left, begun.feature_map, engine=SerialEngine(1), spec=begun.statistics.spec)
    assert model.statistics.digest() == expected.digest()
    assert model.card["data_version"] == found["version"] == left.version
    assert [one["what"] for one in found["holders"]] == ["model"]  # its standardisation, which is said
    assert "standardisation" in found["holders"][0]["why"]


def test_what_still_holds_rows_is_named_with_what_removes_it(data):
    tag_snapshot(parse_location("d"), "audited")
    values = values_of(data, ROWS)
    found = document("forget", "d", "--rows", "rows.csv", "--serial")
    [holder] = found["holders"]
    assert data.version in holder["what"]
    assert "audited" in holder["until"]
    assert files_with("d", values)
    document("data", "expire", "d", "--days", "0", "--tags")
    assert files_with("d", values) == []


def test_versions_stay_for_the_days_that_are_asked_for(data):
    found = document("forget", "d", "--rows", "rows.csv", "--days", "30", "--serial")
    assert found["expired"] == []
    assert any(data.version in one["what"] for one in found["holders"])
    assert open_dataset("d", version=data.version).n_samples == N


def test_rows_are_named_by_their_ids(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = "\n".join(f"c{i:03d},{i * 0.731},{i * 1.9}" for i in range(300))
    Path("t.csv").write_text("customer,x,y\n" + table + "\n")
    ingest("t.csv", "d", target="y", id="customer")
    values = values_of(open_dataset("d"), [17, 230])
    Path("who.csv").write_text("customer\nc017\nc230\n")
    found = document("forget", "d", "--rows", "who.csv", "--id", "--serial")
    assert (found["n_rows"], found["n_after"]) == (2, 298)
    assert files_with("d", [*values, b"c017", b"c230"]) == []
    assert any("t.csv" in one["what"] for one in found["holders"])  # would bring them back
    assert "no row of" in refusal(65, "forget", "d", "--rows", "who.csv", "--id", "--serial")


def test_a_registered_model_names_the_versions_that_hold_sums(data):
    document("fit", "d", "models/m", "--register", "--components", "16", "--serial")
    found = document("forget", "d", "--rows", "rows.csv", "--model", "models/m", "--serial")
    assert RegisteredModel("models/m").current().number == 2
    assert any(one["what"].startswith("version 1 of models/m") for one in found["holders"])


def test_centres_of_nystrom_features_are_rows_and_are_found(data):
    words = ["--kernel", "gaussian", "--features", "nystrom", "--components", "900", "--alpha", "0.1"]
    document("fit", "d", "model", *words, "--length-scale", "median", "--serial")
    found = document("forget", "d", "--rows", "rows.csv", "--model", "model", "--serial")
    assert any("centres" in one["why"] for one in found["holders"])


def test_rows_that_the_model_has_not_seen_are_judged_and_forgotten_ones_are_not(data):
    write_model(fit(data), "model")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 3))
    append_dataset("d", X, 100 * rng.standard_normal(300))
    found = document("forget", "d", "--rows", "rows.csv", "--model", "model", "--serial")
    assert found["updates"][0]["decision"] == "kept"
    assert any("was refused" in one["until"] for one in found["holders"])


def test_nothing_is_deleted_where_something_is_wrong(data):
    before = data.version
    document("fit", "d", "plain", "--no-statistics", "--components", "16", "--serial")
    refused = [
        (1, ("--model", "plain"), "cannot be updated"),
        (65, ("--model", "nowhere"), "nothing is there"),
        (2, ("--id",), "have no ids"),
    ]
    for code, words, text in refused:
        assert text in refusal(code, "forget", "d", "--rows", "rows.csv", "--serial", *words)
    assert "there is no file at" in refusal(65, "forget", "d", "--rows", "missing.csv", "--serial")
    Path("bad.csv").write_text("row\n5000\n")
    assert "is no row of" in refusal(65, "forget", "d", "--rows", "bad.csv", "--serial")
    write_dataset("p", np.ones((9, 2)), np.ones(9))
    assert "rff-dist data convert" in refusal(65, "forget", "p", "--rows", "rows.csv", "--serial")
    assert open_dataset("d").version == before
