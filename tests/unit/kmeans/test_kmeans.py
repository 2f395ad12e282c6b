"""Kernel k-means in features: against scikit-learn's KMeans on an explicit Z, and its
own promises.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs, make_circles, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, pairwise_distances
from sklearn.metrics.pairwise import rbf_kernel

from rff_dist import (
    RFFPCA,
    Gaussian,
    Linear,
    RFFKMeans,
    SerialEngine,
    draw_feature_map,
    open_dataset,
    write_dataset,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, OutputExistsError
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.cluster_options import LloydOptions
from rff_dist.statistics.inspection import inspect
from rff_dist.statistics.row_passes import blocks_of
from tests.places import scratch
from tests.refusals import refuses

ENGINE = SerialEngine(1)


def draw_blobs(n_samples=2_000, n_clusters=6, *, seed=0):
    return make_blobs(
        n_samples,
        4,
        centers=n_clusters,
        cluster_std=0.7,
        center_box=(-5, 5),
        random_state=seed,
    )


@pytest.fixture(scope="module")
def blobs():
    return draw_blobs()


def theirs_from(Z, start, sample_weight=None, **parameters):
    """scikit-learn's k-means on an explicit Z from the same start, until no label
    changes.
    """
    model = KMeans(
        len(start), init=start, n_init=1, tol=0.0, algorithm="lloyd", **parameters
    )
    return model.fit(Z, sample_weight=sample_weight)


def ours_from(start, X, sample_weight=None, **parameters):
    model = RFFKMeans(
        len(start),
        init=start,
        tol=0.0,
        random_state=0,
        **{"n_components": 64, **parameters},
    )
    return model.fit(X, sample_weight=sample_weight)


def find(rows, feature_map, n_clusters, *, engine=ENGINE, **options):
    dataset = ArrayDataset(rows) if isinstance(rows, np.ndarray) else rows
    moments = inspect(dataset, engine=engine) if dataset.weighted else None
    job = kmeans_starts.clustering_job(dataset, feature_map, moments, engine=engine)
    lloyd = LloydOptions(n_clusters=n_clusters, **options)
    return kmeans.move_centres(job, kmeans.start(job, lloyd), lloyd)[0]


def assert_same_clusters(ours, theirs, X):
    assert_array_equal(ours.labels_, theirs.labels_)
    assert_allclose(ours.feature_centers_, theirs.cluster_centers_, rtol=0, atol=1e-9)
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-9)
    assert_array_equal(ours.predict(X), theirs.labels_)


# -- the solution, against scikit-learn's KMeans on the explicit features
# ------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"n_components": 65},
        {
            "kernel": Gaussian(2.0) + 0.5 * Linear(),
            "standardize": False,
            "n_components": 68,
        },
        {"features": "nystrom", "n_components": 50},
        {"features": "nystrom", "kernel": Gaussian(2.0) * Linear(), "n_components": 50},
    ],
    ids=["pairs", "phases", "with linear terms", "Nyström", "Nyström, unbounded"],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_k_means_on_the_explicit_features(blobs, parameters, weighted):
    X, _ = blobs
    weights = np.random.default_rng(1).exponential(size=len(X)) if weighted else None
    ours = ours_from(X[:6], X, weights, **parameters)
    Z = ours.feature_map_.transform(X)
    theirs = theirs_from(Z, Z[:6], weights)
    # a Z of linear terms reaches 30, and scikit-learn's own sums round in float64
    assert_same_clusters(ours, theirs, X)
    assert ours.clusters_.converged
    assert ours.n_iter_ == len(ours.clusters_.inertias)
    expected = np.sqrt(
        np.square(Z[:100, np.newaxis] - theirs.cluster_centers_).sum(axis=2)
    )
    assert_allclose(ours.transform(X[:100]), expected, atol=1e-6)
    assert ours.score(X, sample_weight=weights) == pytest.approx(
        -ours.inertia_, rel=1e-9
    )


PROBLEMS = {
    "many blobs": lambda: (draw_blobs(3_000, 25)[0], {"n_components": 256}),
    "digits": lambda: (load_digits().data, {"n_components": 512}),
    "no clusters, phases": lambda: (
        np.random.default_rng(1).uniform(size=(2_000, 3)),
        {"n_components": 129},
    ),
    "skew": lambda: (
        np.random.default_rng(2).exponential(size=(1_500, 10)),
        {"length_scale": 5.0},
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("problem", PROBLEMS)
def test_rounded_centres_find_what_lloyds_algorithm_finds_in_float64(problem):
    X, parameters = PROBLEMS[problem]()
    start = X[:: len(X) // 10][:10]
    first, last = (ours_from(start, X, max_iter=n, **parameters) for n in (1, 300))
    Z = first.feature_map_.transform(X)
    once = theirs_from(Z, Z[:: len(X) // 10][:10], max_iter=1)
    # like this package, scikit-learn labels rows again after its last update
    distances = np.sort(
        pairwise_distances(Z, once.cluster_centers_, "sqeuclidean"), axis=1
    )
    differ = first.labels_ != once.labels_
    # a centre's rounding is 2**-15 of the largest feature, in each of D directions
    tied = (distances[:, 1] - distances[:, 0]) < 1e-4 * np.sqrt(distances[:, 1])
    assert tied[differ].all()
    theirs = theirs_from(Z, Z[:: len(X) // 10][:10], max_iter=300)
    assert last.inertia_ == pytest.approx(theirs.inertia_, rel=5e-4)


# -- bits
# --------------------------------------------------------------------------------------


def assert_same_bits(one, other):
    assert_array_equal(one.centres, other.centres)
    assert one.inertias == other.inertias
    assert one.start_inertias == other.start_inertias
    assert_array_equal(one.weights, other.weights)


@pytest.fixture(scope="module")
def many_rows():
    return draw_blobs(20_000, 9)[0].astype(np.float32)


@pytest.mark.parametrize("init", ["k-means||", "k-means++"])
def test_clusters_have_the_same_bits_for_any_chunks_and_threads(many_rows, init):
    datasets = [
        write_dataset(scratch(f"kmeans-{init}-{rows}"), many_rows, chunk_rows=rows)
        for rows in (5_000, 12_345)
    ]
    assert len({blocks_of(dataset)[0].n_samples for dataset in datasets}) == 2
    feature_map = draw_feature_map(
        Gaussian(4.0), n_features=4, n_components=32, random_state=0
    )
    options = {"n_init": 2, "init": init, "max_iter": 4, "seed": 3}
    found = [
        find(dataset, feature_map, 9, engine=SerialEngine(n_threads), **options)
        for dataset, n_threads in [(datasets[0], 1), (datasets[0], 2), (datasets[1], 3)]
    ]
    assert_same_bits(found[1], found[0])
    if init == "k-means||":  # a sample of rows is read by chunks
        assert_same_bits(found[2], found[0])
        labels = [
            kmeans_labels.label_in_memory(dataset, found[0], engine=ENGINE)
            for dataset in datasets
        ]
        assert_array_equal(labels[1], labels[0])


# -- starts
# --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(
    "ignore:the centres still moved:sklearn.exceptions.ConvergenceWarning"
)
@pytest.mark.parametrize(
    "n_samples", [1_500, 6_000], ids=["a sample", "drawn from all rows"]
)
def test_a_single_start_finds_blobs_that_are_apart_whatever_the_seed(n_samples):
    X, blobs = make_blobs(n_samples, 2, centers=15, cluster_std=0.25, random_state=5)
    for seed in range(4):
        model = RFFKMeans(
            15, length_scale=0.3, n_components=128, max_iter=3, random_state=seed
        )
        found = model.set_params(standardize=True).fit(X)
        assert adjusted_rand_score(blobs, found.labels_) > 0.97


def test_an_empty_cluster_moves_to_the_row_farthest_from_its_own_centre(blobs):
    X, _ = blobs
    probe = ours_from(X[:6], X)
    Z = probe.feature_map_.transform(X)
    nowhere = np.full((2, 64), 100.0)
    start = np.concatenate([Z[:1], nowhere[:1], Z[1:2], nowhere[1:]])
    found = find(X, probe.feature_map_, 4, init=start, max_iter=1)
    distances = np.square(Z[:, np.newaxis] - Z[:2]).sum(axis=2)
    farthest = np.argsort(-distances.min(axis=1))[:2]
    assert_allclose(found.centres[[1, 3]], Z[farthest], rtol=0, atol=1e-9)
    labels = distances.argmin(axis=1)
    assert_allclose(
        found.centres[[0, 2]],
        [Z[labels == i].mean(axis=0) for i in (0, 1)],
        rtol=0,
        atol=1e-9,
    )
    assert (found.weights > 0).all()


# -- principal components
# ------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_clusters_in_principal_components_are_k_means_of_the_scores(blobs, features):
    X, _ = blobs
    parameters = {"length_scale": 1.0, "features": features, "random_state": 0}
    scores = RFFPCA(5, n_random_features=60, **parameters).fit_transform(X)
    ours = RFFKMeans(
        6, init=scores[:6], n_principal=5, n_components=60, tol=0.0, **parameters
    ).fit(X)
    assert ours.feature_map_.n_components == 5
    assert ours.length_scale_ == 1.0
    assert_same_clusters(ours, theirs_from(scores, scores[:6]), X)


def test_degree_normalised_clusters_are_k_means_of_unit_rows_of_eigenvectors(blobs):
    """Ng, Jordan & Weiss (2001) on the Gram matrix: Nyström features of all rows."""
    X, _ = blobs
    X = X[:200]
    degrees = (gram := rbf_kernel(X, gamma=0.5)).sum(axis=1)
    # as far rows' degrees are
    roots = np.sqrt(np.maximum(degrees, 0.05 * degrees.mean()))
    leading = np.linalg.eigh(gram / np.outer(roots, roots))[1][:, -6:]
    unit = leading / np.linalg.norm(leading, axis=1, keepdims=True)
    options = {"length_scale": 1.0, "features": "nystrom", "normalize": "degree"}
    ours = RFFKMeans(
        6, init=X[:6], n_principal=5, n_components=200, tol=0.0, random_state=0
    )
    ours.set_params(**options).fit(X)
    theirs = KMeans(6, init=unit[:6], n_init=1, tol=0.0).fit(unit)
    assert adjusted_rand_score(theirs.labels_, ours.labels_) == 1.0
    assert ours.inertia_ == pytest.approx(theirs.inertia_, rel=1e-2)


@pytest.mark.parametrize("make", [make_circles, make_moons])
def test_spectral_clusters_part_rings_and_moons(make):
    """Neither k-means nor kernel k-means with the same length scale finds them."""
    options = {"factor": 0.5} if make is make_circles else {}
    X, known = make(1_500, noise=0.05, random_state=0, **options)
    parameters = {
        "length_scale": 0.2,
        "features": "nystrom",
        "n_components": 200,
        "random_state": 0,
    }
    parameters["standardize"] = True
    spectral = RFFKMeans(2, n_principal=1, normalize="degree", **parameters).fit(X)
    assert adjusted_rand_score(known, spectral.labels_) > 0.99
    assert_array_equal(spectral.predict(X), spectral.labels_)
    assert adjusted_rand_score(known, RFFKMeans(2, **parameters).fit_predict(X)) < 0.9
    assert adjusted_rand_score(known, KMeans(2, random_state=0).fit_predict(X)) < 0.6


# -- storage
# --------------------------------------------------------------------------------------


def test_labels_and_distances_are_written_to_zarr(blobs, tmp_path):
    X, _ = blobs
    write_dataset(tmp_path / "rows.zarr", X, X[:, 0], chunk_rows=300)
    model = RFFKMeans(6, n_components=64, random_state=0).fit(tmp_path / "rows.zarr")
    assert not hasattr(model, "labels_")
    dataset = open_dataset(tmp_path / "rows.zarr")
    url = tmp_path / "labels.zarr"
    output = kmeans_labels.write_labels(
        dataset, model.clusters_, url, engine=ENGINE, distances=True
    )
    assert output.n_samples == len(X)
    in_memory = RFFKMeans(6, n_components=64, random_state=0).fit(X)
    assert_array_equal(in_memory.feature_centers_, model.feature_centers_)
    written = open_dataset(url, x="distances", y="labels")
    rows = written.take(np.arange(len(X)))
    assert_array_equal(rows[1][:, 0], in_memory.labels_)
    assert_array_equal(rows[0], in_memory.transform(X))
    with pytest.raises(OutputExistsError):
        kmeans_labels.write_labels(dataset, model.clusters_, url, engine=ENGINE)
    kmeans_labels.write_labels(
        dataset, model.clusters_, url, engine=ENGINE, overwrite=True
    )


# -- bad input
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("centres", "named"),
    [
        (np.zeros((3, 5)), ["(3, 5", "(3, 4", "(3, 32"]),
        (np.zeros((2, 4)), ["(2, 4", "3"]),
        (np.full((3, 4), np.nan), ["init", "NaN"]),
    ],
)
def test_centres_that_do_not_fit_are_refused(blobs, centres, named):
    with refuses(DataError, *named):
        RFFKMeans(3, n_components=32, init=centres).fit(blobs[0])


def test_too_few_passes_are_told_of(blobs):
    with pytest.warns(
        ConvergenceWarning, match=r"the centres still moved after max_iter=1 passes"
    ):
        model = ours_from(blobs[0][:6], blobs[0], max_iter=1)
    assert not model.clusters_.converged
    assert_array_equal(np.bincount(model.labels_, minlength=6), model.clusters_.weights)
