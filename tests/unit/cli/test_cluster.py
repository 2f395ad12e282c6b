"""`rff-dist cluster`, its models, and what `predict`, `evaluate` and `info` make of
them.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import adjusted_rand_score

from rff_dist import RFFKMeans, load_model, open_dataset, save_model
from rff_dist.errors import StorageError
from rff_dist.models.kinds import read_any
from rff_dist.storage import outputs
from rff_dist.storage.columns import open_column
from rff_dist.workbench.jobs import publishing
from tests.command_line import document, run, shown
from tests.unit.cli.conftest import SMALL


@pytest.fixture
def data(clustered):
    return clustered["data"]


def read_array(url, name):
    return np.asarray(open_column(url, name).take(np.arange(500)))


def test_known_labels_are_compared_as_scikit_learn_does(data, clustered, tmp_path):
    known = read_array(data, "groups")
    labels = read_array(clustered["output"], "labels")
    found = clustered["agreement"]
    assert found["adjusted_rand_index"] == pytest.approx(
        adjusted_rand_score(known, labels), abs=1e-12
    )
    assert found["labels"] == ["east", "north", "south", "west"]
    assert np.sum(found["counts"]) == 500
    again = document("evaluate", clustered["model"], data, "--y y --serial")
    assert again["agreement"] == found
    predicted = document(
        "predict", clustered["model"], data, "p", "--distances --serial"
    )
    assert predicted["arrays"] == ["labels", "distances"]
    assert_array_equal(read_array(tmp_path / "p", "labels"), labels)
    told = shown("evaluate", clustered["model"], data, "--y groups --serial")
    assert f"ARI {found['adjusted_rand_index']:.4g}" in told


def test_the_result_counts_the_passes_that_the_progress_counts(data):
    options = "--n-clusters 4 --n-init 1 --length-scale 1 --n-components 64 --serial"
    result = run("cluster", data, "counted", options)
    (n_passes,) = re.findall(r"done after (\d+) passes", result.stderr)
    assert f"converged after {n_passes} passes" in result.stdout


def test_a_model_loads_as_the_estimator_and_an_estimator_saves_as_a_model(
    data, clustered
):
    model = load_model(clustered["model"])
    assert isinstance(model, RFFKMeans)
    assert_array_equal(
        model.predict(str(data)), read_array(clustered["output"], "labels")
    )
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert (model.n_features_in_, model.n_clusters, model.standardize) == (3, 4, False)
    X = open_dataset(data, y=None).take(np.arange(500))[0]
    for parameters in (
        {"features": "nystrom", "n_components": 20},
        {"kernel": "polynomial", "features": "nystrom"},
    ):
        fitted = RFFKMeans(3, random_state=0, **parameters).fit(X)
        save_model(fitted, "saved", overwrite=True)
        loaded = load_model("saved")
        assert_array_equal(loaded.predict(X), fitted.labels_)
        assert_array_equal(loaded.transform(X), fitted.transform(X))
        assert loaded.clusters_.grid == fitted.clusters_.grid
        assert loaded.clusters_.inertias == fitted.clusters_.inertias


@pytest.mark.parametrize("breaks", ["store", "finish"])
def test_a_failing_publication_leaves_nothing_half_done_or_says_what_is_left(
    data, tmp_path, monkeypatch, breaks
):
    def fail(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr(
        publishing if breaks == "store" else outputs.Output, breaks, fail
    )
    told = run("cluster", data, "labels", SMALL, "--model model")
    assert "the disk is full" in told.stderr
    # On a busy machine passes take long, and sums of those that did are kept for the
    # same command.
    left = sorted(
        path.name for path in tmp_path.iterdir() if not path.name.endswith(".ledger")
    )
    assert left == ([] if breaks == "store" else ["model"])
    if left:
        assert read_any("model").n_clusters == 4
        note = "published at model, the labels are not: write them by `rff-dist predict"
        assert note in told.stderr


@pytest.mark.parametrize("scaled", [True, False])
def test_a_column_that_decides_alone_is_told_and_columns_that_differ_are_shown(scaled):
    rng = np.random.default_rng(0)
    wide = rng.normal(0, 1000, 300)
    side = rng.integers(2, size=300)
    lines = [f"{wide[i]},{6 * side[i]},{'lr'[side[i]]}ow" for i in range(300)]
    Path("t.csv").write_text("\n".join(["wide,narrow,side", *lines]) + "\n")
    document("ingest", "t.csv", "d")
    options = "--n-clusters 2 --serial --standardize"
    result = run("cluster", "d", "labels", options, "yes" if scaled else "no")
    told = " ".join((result.stdout + result.stderr).split())
    assert ("'wide' has 100.0%" in told) is not scaled
    if scaled:
        shown_columns = told.split("cluster rows ")[1]
        assert shown_columns.startswith(("narrow side wide", "side narrow wide"))
        assert {"low", "row"} <= set(shown_columns.split())
