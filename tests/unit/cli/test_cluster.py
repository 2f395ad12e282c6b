"""`rff-dist cluster`, its models, and what `predict`, `evaluate` and `info` make of them."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from rff_dist import Gaussian, RFFKMeans, SerialEngine, load_model, open_dataset, save_model, write_dataset
from rff_dist.errors import StorageError
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
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
    known, labels = read_array(data, "groups"), read_array(clustered["output"], "labels")
    found = clustered["agreement"]
    assert found["adjusted_rand_index"] == pytest.approx(adjusted_rand_score(known, labels), abs=1e-12)
    assert found["labels"] == ["east", "north", "south", "west"]
    assert np.sum(found["counts"]) == 500
    again = document("evaluate", clustered["model"], data, "--y", "y", "--serial")
    assert again["agreement"] == found
    predicted = document("predict", clustered["model"], data, tmp_path / "p", "--distances", "--serial")
    assert predicted["arrays"] == ["labels", "distances"]
    np.testing.assert_array_equal(read_array(tmp_path / "p", "labels"), labels)
    told = shown("evaluate", clustered["model"], data, "--y", "groups", "--serial")
    assert f"ARI {found['adjusted_rand_index']:.4g}" in told


def test_info_describes_the_clusters(clustered):
    about = shown("info", clustered["model"])
    for words in ("k-means model", "D = 64, fourier", "the least of 3 starts", "gaussian", "columns a, b, c"):
        assert words in about
    found = document("info", clustered["model"])
    assert found["kind"] == "k-means model"
    assert found["cluster_weights"] == clustered["sizes"]


def test_a_model_loads_as_the_estimator_and_an_estimator_saves_as_a_model(data, clustered, tmp_path):
    model = load_model(clustered["model"])
    assert isinstance(model, RFFKMeans)
    np.testing.assert_array_equal(model.predict(str(data)), read_array(clustered["output"], "labels"))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    assert (model.n_features_in_, model.n_clusters, model.standardize) == (3, 4, False)
    X = open_dataset(data, y=None).take(np.arange(500))[0]
    for parameters in (
        {"features": "nystrom", "n_components": 20},
        {"kernel": "polynomial", "features": "nystrom"},
    ):
        fitted = RFFKMeans(3, random_state=0, **parameters).fit(X)
        save_model(fitted, tmp_path / "saved", overwrite=True)
        loaded = load_model(tmp_path / "saved")
        np.testing.assert_array_equal(loaded.predict(X), fitted.labels_)
        np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))
        assert loaded.clusters_.grid == fitted.clusters_.grid
        assert loaded.clusters_.inertias == fitted.clusters_.inertias


def test_several_numbers_are_compared_and_the_best_is_written(data, tmp_path):
    several = ["--n-clusters", "4,2", *SMALL[2:], "--model", tmp_path / "model"]
    found = document("cluster", data, tmp_path / "labels.zarr", *several)
    assert (found["n_clusters"], found["n_sampled"]) == (4, 500)
    space = ClusterSpace(kernel=Gaussian(), n_components=64, seed=2)
    options = LloydOptions(n_clusters=4, n_init=3, seed=2)
    best = kmeans.fit(open_dataset(data, y=None), space, options, engine=SerialEngine(1))
    assert found["digest"] == best.digest()
    assert [row["n_clusters"] for row in found["candidates"]] == [2, 4]
    assert read_any(tmp_path / "model").card["candidates"] == found["candidates"]
    told = run("cluster", data, tmp_path / "labels.zarr", *several, "--overwrite").stdout
    [chosen] = [line for line in told.splitlines() if "←" in line]
    assert chosen.split()[0] == "4"
    assert "numbers of clusters, by silhouette" in told
    assert "chosen from 2, 4, by silhouette" in shown("info", tmp_path / "model")


@pytest.mark.parametrize("breaks", ["store", "finish"])
def test_a_failing_publication_leaves_nothing_half_done_or_says_what_is_left(
    data, tmp_path, monkeypatch, breaks
):
    def fail(*_, **__):
        raise StorageError("the disk is full")

    monkeypatch.setattr(publishing if breaks == "store" else outputs.Output, breaks, fail)
    told = run("cluster", data, tmp_path / "labels", *SMALL, "--model", tmp_path / "model")
    assert "the disk is full" in told.stderr
    # On a busy machine passes take long, and sums of those that did are kept for the same command.
    left = sorted(path.name for path in tmp_path.iterdir() if not path.name.endswith(".ledger"))
    assert left == ([] if breaks == "store" else ["model"])
    if left:
        assert read_any(tmp_path / "model").n_clusters == 4
        note = f"published at {tmp_path / 'model'}, the labels are not: write them by `rff-dist predict"
        assert note in told.stderr


def test_rows_that_are_not_distinct_and_centres_that_still_move_are_told(tmp_path):
    X = np.repeat(np.arange(3.0), 50)[:, np.newaxis]
    write_dataset(tmp_path / "data.zarr", X)
    assert "4, 3 with rows" in shown("cluster", tmp_path / "data.zarr", tmp_path / "labels.zarr", *SMALL)
    X = np.random.default_rng(0).standard_normal((2000, 3))
    write_dataset(tmp_path / "more.zarr", X)
    few = ["--max-iter", "1", "--init", "k-means++", "--serial", "--n-components", "32"]
    assert "centres still moved" in shown("cluster", tmp_path / "more.zarr", tmp_path / "more", *few)
