"""How many clusters: silhouettes against scikit-learn, and which number is taken."""

import math
import uuid
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs
from sklearn.metrics import silhouette_score

from rff_dist import Gaussian, SerialEngine, draw_feature_map, write_dataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.events import PassStarted
from rff_dist.errors import PlanError
from rff_dist.fields import build
from rff_dist.kmeans import fit
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.kmeans.fit import ClusterComparison, ScoredClusterCount, mean_silhouettes
from rff_dist.models.kinds import read_any
from rff_dist.numerics import machine
from rff_dist.storage.datasets import ZarrDataset
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.specs import Clustering
from rff_dist.workbench.jobs.steps import in_this_process
from tests.refusals import refuses
from tests.seen import seen

ENGINE = SerialEngine(n_threads=1)
X, LABELS = make_blobs(
    600, 3, centers=[[0, 0, 0], [6, 0, 0], [0, 6, 0], [0, 0, 6]], random_state=0
)
SMALL = {"n_components": 64, "length_scale": "median", "seed": 1}


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(2, 5), st.integers(1, 4))
def test_silhouettes_are_those_of_scikit_learn(seed, n_clusters, n_features):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((40, n_features)) + 3.0
    # with a row alone
    labelings = [rng.integers(n_clusters, size=40), np.r_[[7], np.arange(39) % 2]]
    expected = [
        silhouette_score(points, labels) if len(set(labels)) > 1 else math.nan
        for labels in labelings
    ]
    # squared distances of rows some 1e-2 apart lose four digits
    assert_allclose(mean_silhouettes(points, labelings), expected, atol=1e-9)


def test_panels_do_not_change_silhouettes(monkeypatch):
    whole = mean_silhouettes(X, [LABELS])
    monkeypatch.setattr(fit, "_PANEL_ROWS", 7)
    assert_allclose(mean_silhouettes(X, [LABELS]), whole, rtol=1e-13)


def test_one_cluster_has_no_silhouette_and_equal_rows_have_zero():
    found = mean_silhouettes(
        np.ones((4, 2)), [np.zeros(4, int), np.array([0, 0, 1, 1])]
    )
    assert_array_equal(found, [np.nan, 0.0])


def test_the_largest_silhouette_is_taken_and_the_first_of_equals():
    judged = [
        ScoredClusterCount(number, value)
        for number, value in enumerate([math.nan, 0.5, 0.7, 0.7])
    ]
    assert ClusterComparison(tuple(judged), 100).best == 2


def stored(X):
    """Return a dataset of the rows in a store in memory."""
    return write_dataset(f"memory://{uuid.uuid4().hex}/data", X)


def compare(dataset, **options):
    """Compare numbers of clusters by the job, which stores the best."""
    places = {"output": f"{dataset.url}-labels", "model": f"{dataset.url}-model"}
    job = build(Clustering, {"data": dataset.url, **places, **options})
    comparison = cluster(job, in_this_process(ENGINE)).comparison
    model = read_any(places["model"])
    assert_array_equal(model.centres, comparison.best.centres)
    assert len(model.card["candidates"]) == len(comparison.candidates)
    return comparison


def test_several_numbers_find_what_each_finds_alone_and_the_blobs_are_taken():
    dataset = stored(X)
    found = compare(dataset, n_clusters=[6, 2, 4], n_init=4, **SMALL)
    assert [one.clusters.n_clusters for one in found.candidates] == [2, 4, 6]
    for one in found.candidates:
        number = one.clusters.n_clusters
        lloyd = LloydOptions(n_clusters=number, n_init=4, seed=1)
        alone = kmeans.fit(
            dataset, ClusterSpace(kernel=Gaussian(), **SMALL), lloyd, engine=ENGINE
        )
        assert_array_equal(one.clusters.centres, alone.centres)
        assert one.clusters.inertias == alone.inertias
        assert one.clusters.card == alone.card
        Z = alone.feature_map.transform(X, dtype=np.float64)
        labels = kmeans_labels.label_in_memory(ArrayDataset(X), alone, engine=ENGINE)
        assert one.silhouette == pytest.approx(silhouette_score(Z, labels), abs=1e-9)
    assert (found.best.n_clusters, found.n_sampled) == (4, 600)
    assert [row["n_clusters"] for row in found.rows] == [2, 4, 6]


def test_all_numbers_and_their_starts_share_the_passes():
    rows = np.random.default_rng(2).standard_normal((20_000, 2)).astype(np.float32)
    feature_map = draw_feature_map(
        Gaussian(1.0), n_features=2, n_components=8, random_state=0
    )

    def found_with(*numbers):
        labels = []
        engine = SerialEngine(
            1,
            observers=[
                lambda event: (
                    isinstance(event, PassStarted) and labels.append(event.label)
                )
            ],
        )
        job = kmeans_starts.measure(
            ArrayDataset(rows), feature_map, None, engine=engine
        )
        lloyd = LloydOptions(
            n_clusters=numbers, init="k-means++", n_init=2, max_iter=4, tol=1e-3
        )
        starts = kmeans.start(job, lloyd)
        found = kmeans.finish(kmeans.iterate(job, starts, replace(lloyd, tol=0.0)))
        return found, labels

    together, labels = found_with(2, 4, 7)
    alone = [found_with(number) for number in (2, 4, 7)]
    for one, ((expected,), _) in zip(together, alone, strict=True):
        assert_array_equal(one.centres, expected.centres)
        assert_array_equal(one.weights, expected.weights)
        assert (one.inertias, one.start_inertias) == (
            expected.inertias,
            expected.start_inertias,
        )
        assert (one.n_iter, one.converged) == (expected.n_iter, expected.converged)
    assert labels.count("lloyd") == max(found.count("lloyd") for _, found in alone)
    assert len(labels) <= max(len(found) for _, found in alone)


def test_an_empty_cluster_of_a_smaller_number_is_refilled_and_its_absent_ones_are_not():
    points = X[:200]
    feature_map = draw_feature_map(
        Gaussian(1.0), n_features=3, n_components=16, random_state=0
    )
    job = kmeans_starts.measure(ArrayDataset(points), feature_map, None, engine=ENGINE)
    values = np.zeros((2, 5, 16))
    values[0] = feature_map.transform(points[:5])
    values[1, :3] = [*feature_map.transform(points[:2]), np.full(16, 50.0)]
    lloyd = LloydOptions(n_clusters=5, max_iter=4, tol=0.0)
    together = kmeans.finish(
        kmeans.iterate(job, kmeans_starts.Starts(values, (5, 3)), lloyd)
    )
    alone = [
        kmeans.finish(
            kmeans.iterate(
                job, kmeans_starts.Starts(start[np.newaxis], (len(start),)), lloyd
            )
        )[0]
        for start in (values[1, :3], values[0])
    ]
    for one, expected in zip(together, alone, strict=True):
        assert_array_equal(one.centres, expected.centres)
        assert one.inertias == expected.inertias
    assert together[0].n_filled == together[0].n_clusters == 3


def test_what_does_not_fit_in_memory_is_refused_before_a_row_is_read(monkeypatch):
    unread = stored(X)
    monkeypatch.setattr(ZarrDataset, "read", lambda *_: pytest.fail("a row was read"))
    monkeypatch.setattr("rff_dist.numerics.machine.available_memory", lambda: 2**29)
    with refuses(PlanError, "30_000", "n_clusters=500", "60", "n_components=1_024"):
        numbers = {"n_clusters": [400, 450, 500], "n_init": 20}
        compare(unread, length_scale="median", **numbers)
    with refuses(PlanError, "n_components=30_000", "512.0 MiB"):
        space = ClusterSpace(length_scale="median", n_components=30_000)
        kmeans.fit(unread, space, LloydOptions(n_clusters=500), engine=ENGINE)
    monkeypatch.setattr("rff_dist.numerics.machine.available_memory", lambda: 2**34)
    monkeypatch.setattr(fit, "machine", seen(machine, available_memory=lambda: 2**28))
    with refuses(PlanError, "the samples on which numbers of clusters are judged need"):
        compare(unread, n_clusters=[2, 3], n_components=8_192, length_scale="median")


def test_as_many_clusters_as_rows_leave_nothing_over():
    found = compare(stored(X[:5]), n_clusters=[1, 5], **SMALL)
    assert found.rows[0]["silhouette"] is None
    assert found.rows[1]["inertia"] == 0.0
