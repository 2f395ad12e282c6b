"""Registered models at the command line: publish, list, show, promote, roll back,
prune.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rff_dist import open_dataset, write_dataset
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.workbench.results.versions import version_cells, versions_table
from tests.command_line import PLAIN, document, refusal, run, shown
from tests.versions import publish

SMALL = (*PLAIN, "--n-components", 32, "--serial")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with data, and three versions of the model `prices`, of which the last
    one is current.
    """
    path = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    write_dataset(path / "data.zarr", X, np.sin(2 * X[:, 0]) + X[:, 1], chunk_rows=64)
    for alpha in (1, 0.1, 0.01):
        fit(path, "models/prices", "--alpha", alpha, "--register")
    return path


def fit(path, model, *options):
    return document("fit", path / "data.zarr", path / model, *SMALL, *options)


@pytest.fixture
def prices():
    """A model with three small versions that a test may change."""
    url = "models/prices"
    for i in (1, 2, 3):
        publish(url, i)
    return url


# -- publishing
# --------------------------------------------------------------------------------------


def test_each_fit_becomes_the_next_version(folder):
    url = folder / "models/prices"
    found = document("models", "show", url)
    pointer = found["pointer"]
    assert (pointer["number"], pointer["previous"]) == (3, [1, 2])
    alphas = [version["lineage"]["spec"]["alpha"] for version in found["versions"]]
    assert (
        alphas
        == [1, 0.1, 0.01]
        == [read_model(url / f"versions/{i}").alpha for i in (1, 2, 3)]
    )
    assert read_model(url).digest() == found["versions"][2]["digest"]


def test_the_lineage_is_that_of_the_model_and_of_its_data(folder):
    model = read_model(folder / "models/prices")
    dataset = open_dataset(folder / "data.zarr")
    version = document("models", "show", folder / "models/prices")["versions"][-1]
    lineage = version["lineage"]
    estimate = model.card.get("estimate") or {}
    assert lineage["errors"].get("rmse") == estimate.get("rmse")
    assert (version["parent"], version["kind"], version["reason"]) == (
        2,
        "ridge model",
        "fitted",
    )
    assert lineage["data"] == dataset.url
    assert lineage["data_fingerprint"] == dataset.fingerprint()
    assert lineage["n_samples"] == dataset.n_samples == 300
    kernel = model.feature_map.spec.kernel
    assert lineage["spec"] == {
        "features": "fourier",
        "kernel": kernel.to_dict(),
        "length_scale": kernel.length_scale,
        "n_components": 32,
        "design": "orthogonal",
        "map": "pairs",
        "seed": 0,
        "precision": "standard",
        "alpha": 0.01,
    }


def test_what_reads_a_model_reads_the_current_version_or_the_one_it_is_given(folder):
    url = folder / "models/prices"
    data = folder / "data.zarr"
    described = document("info", url)
    assert (described["version"], described["alpha"]) == (3, 0.01)
    first = document("info", url / "versions/1")
    assert (first["version"], first["alpha"]) == (None, 1)
    assert "3, the current one" in run("info", url).stdout
    errors = [
        document("evaluate", place, data, "--serial")["targets"]
        for place in (url, url / "versions/3")
    ]
    assert errors[0] == errors[1]
    written = document("predict", url, data, "out.zarr", "--serial")
    assert written["model_digest"] == described["digest"]


def test_a_model_of_versions_is_not_replaced(folder):
    for more in ((), ("--overwrite",)):
        message = refusal(
            73, "fit", folder / "data.zarr", folder / "models/prices", *more, "--serial"
        )
        assert (
            "keeps all of its versions; publish the next one with --register" in message
        )


# -- which version is current
# -------------------------------------------------------------------------------


def test_list_shows_each_model_with_its_current_version(folder):
    by_name = {
        one["name"]: one
        for one in document("models", "list", folder / "models")["models"]
    }
    assert by_name["prices"]["current"]["number"] == 3
    assert (
        by_name["prices"]["current"]["digest"]
        == read_model(folder / "models/prices").digest()
    )
    told = shown("models", "list", folder / "models")
    assert " prices 3 " in told
    assert "next: rff-dist models show" in told


def test_next_commands_are_about_what_is_there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert "next:" not in shown("models", "list", "data.zarr")
    ingested = document("ingest", "data.zarr", "whole.zarr", "--holdout 20%")
    part = ingested["test"]["path"]
    options = (*SMALL, "--alpha 1 --register")
    fitted = shown("fit", "whole.zarr", "models/of", *options)
    assert f"evaluate models/of {Path(part).name}" in fitted
    assert "rff-dist info models/of" in shown("models", "show", "models/of")
    _, _, standardize = shown("cluster", "--help-all").partition("--standardize")
    assert "default: false" in standardize.partition("--")[0]


def test_list_of_a_model_itself_shows_it(prices):
    listed = document("models", "list", prices)
    assert [one["name"] for one in listed["models"]] == ["prices"]
    assert listed["models"][0]["current"]["number"] == 3


def test_promote_and_rollback_change_what_readers_get(prices):
    promoted = document("models", "promote", prices, 1, "--reason", "less bias")
    assert promoted["command"] == "models promote"
    assert promoted["current"]["number"] == 1
    assert document("models", "show", prices)["pointer"]["reason"] == "less bias"
    assert document("models", "rollback", prices)["current"]["number"] == 3
    assert "version 2 is the current one" in run("models", "rollback", prices).stdout


def test_prune_tells_what_it_removed(prices):
    pruned = document("models", "prune", prices, "--keep", 1)
    assert pruned["removed"] == [1]
    assert [version.number for version in RegisteredModel(prices).versions()] == [2, 3]
    nothing = shown("models", "prune", prices, "--keep", 1)
    assert "removed 0 versions" in nothing
    assert "kept 2 (before), 3 (current)" in nothing
    assert "before 2 " in shown("models", "show", prices)
    document("models", "rollback", prices)
    rolled_back = shown("models", "prune", prices, "--keep", 1)
    assert "kept 2 (current), 3 (rolled back)" in rolled_back
    assert "was current before is left" in refusal(65, "models", "rollback", prices)
    assert refusal(2, "models", "prune", prices)


def test_show_tells_of_versions_that_wait():
    publish("m", 1, promote=False)
    told = shown("models", "show", "m")
    assert "none: promote a version" in told
    assert "next: rff-dist models promote" in told


def test_a_tested_version_has_the_digest_of_its_test_rows(folder):
    rows = np.random.default_rng(1).standard_normal((50, 3))
    test = write_dataset(folder / "test.zarr", rows, rows[:, 0])
    fit(folder, "models/tested", "--alpha", 1, "--register", f"--test={test.url}")
    lineage = RegisteredModel(folder / "models/tested").current().lineage
    assert lineage["judged_on"] == test.fingerprint() != lineage["data_fingerprint"]


def test_a_version_shows_the_error_that_it_was_judged_by(prices):
    version = RegisteredModel(prices).current()
    judged = replace(version, lineage={"errors": {"rmse": [2.5]}})
    assert "RMSE 2.5" in version_cells(judged)
    assert "–" in version_cells(version)


def test_versions_show_which_errors_are_on_other_rows_than_those_of_the_version_before(
    prices,
):
    version = RegisteredModel(prices).current()

    def judged(error, rows, **more):
        lineage = {"errors": {"rmse": [error]}, "judged_on": rows, **more}
        return replace(version, lineage=lineage)

    listed = [
        judged(3.0, "a"),
        judged(2.0, "a"),
        judged(4.0, "b", errors_before={"rmse": [5.0]}),
        judged(1.0, "c"),
    ]
    model = SimpleNamespace(versions=lambda last: listed, pointer=lambda: None)
    assert [row[3] for row in versions_table(model).rows] == [
        "RMSE 1 (other rows)",
        "RMSE 4 (before 5)",
        "RMSE 2",
        "RMSE 3",
    ]
    assert "on different rows" in versions_table(model).caption
    del listed[2:]
    assert versions_table(model).caption == "errors of versions are on the same rows"
