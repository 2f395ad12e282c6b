"""How many clusters: links against scikit-learn, and which number is taken."""

import uuid

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from sklearn.neighbors import NearestNeighbors

from rff_dist import Gaussian, SerialEngine, draw_feature_map, write_dataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.events import PassStarted
from rff_dist.errors import InvalidParameterError, PlanError
from rff_dist.fields import build
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.models.kinds import read_any
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.specs import Clustering
from rff_dist.workbench.jobs.steps import in_this_process
from tests.places import scratch
from tests.refusals import refuses

ENGINE = SerialEngine(1)
X, _ = make_blobs(
    600, 3, centers=[[0, 0, 0], [6, 0, 0], [0, 6, 0], [0, 0, 6]], random_state=0
)
SMALL = {"n_components": 64, "length_scale": "median", "seed": 1}


def stored(X):
    """Return a dataset of the rows in a store in memory."""
    return write_dataset(scratch(f"{uuid.uuid4().hex}/data"), X)


def cluster_rows(dataset, **options):
    """Cluster by the job, and return its result and the stored model."""
    places = {"output": f"{dataset.url}-labels", "model": f"{dataset.url}-model"}
    job = build(Clustering, {"data": dataset.url, **places, **options})
    result = cluster(job, in_this_process(ENGINE))
    model = read_any(places["model"])
    assert_array_equal(model.centres, result.clusters.centres)
    assert model.card.get("shape") == result.record["shape"]
    return result


def test_of_several_numbers_the_blobs_are_taken_as_if_that_had_been_given():
    dataset = stored(X)
    found = cluster_rows(dataset, n_clusters=[6, 2, 4], n_init=4, **SMALL)
    assert found.clusters.n_clusters == 4
    lloyd = LloydOptions(n_clusters=4, n_init=4, seed=1)
    space = ClusterSpace(kernel=Gaussian(), **SMALL)
    alone = kmeans.fit(dataset, space, lloyd, engine=ENGINE).clusters
    assert_array_equal(found.clusters.centres, alone.centres)
    assert found.clusters.inertias == alone.inertias
    assert list(found.record["shape"]["cuts"]) == ["2", "3", "4", "5", "6", "7"]
    assert found.record["shape"]["round_cut"] is None
    assert "4 clusters cut" in found.record["shape"]["sentence"]


def test_links_are_those_of_scikit_learns_neighbours():
    """In given features, so that distances are those of the kernel."""
    dataset = stored(X)
    found = cluster_rows(dataset, n_clusters=[2, 3, 4], **SMALL)
    Z = found.clusters.feature_map.transform(X, dtype=np.float64)
    labels = KMeans(4, n_init=10, random_state=0).fit_predict(Z)
    nearest = NearestNeighbors(n_neighbors=10).fit(Z).kneighbors(return_distance=False)
    ends = np.stack([np.repeat(np.arange(len(Z)), 10), nearest.ravel()])
    clusters = labels[ends]
    is_cut = clusters[0] != clusters[1]
    shares = [is_cut[(clusters == i)[end]].sum() for i in range(4) for end in range(2)]
    touching = [(clusters == i).sum() for i in range(4)]
    cut = np.mean(np.reshape(shares, (4, 2)).sum(axis=1) / touching)
    assert found.record["shape"]["cuts"]["4"] == pytest.approx(cut, abs=1e-12)


@pytest.mark.parametrize("n_init", [2, 3])
def test_all_starts_share_the_passes(n_init):
    rows = np.random.default_rng(2).standard_normal((20_000, 2)).astype(np.float32)
    feature_map = draw_feature_map(
        Gaussian(1.0), n_features=2, n_components=8, random_state=0
    )
    labels = []
    engine = SerialEngine(
        1,
        observers=[
            lambda event: isinstance(event, PassStarted) and labels.append(event.label)
        ],
    )
    job = kmeans_starts.clustering_job(
        ArrayDataset(rows), feature_map, None, engine=engine
    )
    lloyd = LloydOptions(
        n_clusters=4, init="k-means++", n_init=n_init, max_iter=4, tol=0.0
    )
    starts = kmeans.start(job, lloyd)
    labels.clear()
    together = kmeans.move_centres(job, starts, lloyd)[0]
    n_passes = labels.count("lloyd")
    alone = []
    for values in starts.values:
        labels.clear()
        one = kmeans_starts.Starts(values[np.newaxis])
        alone.append(kmeans.move_centres(job, one, lloyd)[0])
        assert labels.count("lloyd") <= n_passes
    best = min(alone, key=lambda clusters: clusters.inertia)
    assert_array_equal(together.centres, best.centres)
    assert_array_equal(together.weights, best.weights)
    assert together.inertias == best.inertias
    assert together.start_inertias == tuple(one.inertia for one in alone)
    assert (together.n_iter, together.converged) == (best.n_iter, best.converged)


def test_an_empty_cluster_of_one_start_is_refilled_as_if_it_were_alone():
    points = X[:200]
    feature_map = draw_feature_map(
        Gaussian(1.0), n_features=3, n_components=16, random_state=0
    )
    job = kmeans_starts.clustering_job(
        ArrayDataset(points), feature_map, None, engine=ENGINE
    )
    values = np.zeros((2, 3, 16))
    values[0] = feature_map.transform(points[:3])
    values[1] = [*feature_map.transform(points[:2]), np.full(16, 50.0)]
    lloyd = LloydOptions(n_clusters=3, max_iter=4, tol=0.0)
    together = kmeans.move_centres(job, kmeans_starts.Starts(values), lloyd)[0]
    alone = [
        kmeans.move_centres(job, kmeans_starts.Starts(start[np.newaxis]), lloyd)[0]
        for start in values
    ]
    best = min(alone, key=lambda clusters: clusters.inertia)
    assert_array_equal(together.centres, best.centres)
    assert together.start_inertias == tuple(one.inertia for one in alone)
    assert alone[1].n_filled == alone[1].n_clusters == 3


def test_given_centres_are_of_one_number():
    with refuses(InvalidParameterError, "`n_clusters`", "[2, 3]"):
        LloydOptions(n_clusters=[2, 3], init=np.zeros((2, 3)))


def test_what_does_not_fit_in_memory_is_refused_before_a_row_is_read(monkeypatch):
    unread = stored(X)
    monkeypatch.setattr(ZarrDataset, "read", lambda *_: pytest.fail("a row was read"))
    monkeypatch.setattr("rff_dist.numerics.machine.available_memory", lambda: 2**29)
    with refuses(PlanError, "10_000", "n_clusters=500", "20", "n_components=1_024"):
        numbers = {"n_clusters": [400, 450, 500], "n_init": 20}
        cluster_rows(unread, length_scale="median", **numbers)
    with refuses(PlanError, "n_components=30_000", "512.0 MiB"):
        space = ClusterSpace(length_scale="median", n_components=30_000)
        kmeans.fit(unread, space, LloydOptions(n_clusters=500), engine=ENGINE)


def test_one_cluster_is_no_choice_and_as_many_as_rows_leave_nothing_over():
    found = cluster_rows(stored(X[:5]), n_clusters=[1, 5], **SMALL)
    assert found.record["shape"]["cuts"]["1"] == 0.0
    assert found.clusters.n_clusters in (1, 5)
    assert cluster_rows(stored(X[:5]), n_clusters=5, **SMALL).clusters.inertia == 0.0
