"""Shapes that the default finds, and what is said where there are none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

from rff_dist import (
    Nystrom,
    RFFKMeans,
    SerialEngine,
    load_model,
    save_model,
    write_dataset,
)
from rff_dist.features.centres import is_isolated, nearest_rows
from rff_dist.kmeans import exact
from tests.places import scratch

CIRCLES = make_circles(800, factor=0.4, noise=0.05, random_state=0)
MOONS = make_moons(800, noise=0.06, random_state=0)


def with_far_rows(X, n_far):
    """Add rows many times as far out as the others; returns also which rows were."""
    rng = np.random.default_rng(1)
    directions = rng.standard_normal((n_far, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    far = directions * rng.uniform(5, 20, (n_far, 1))
    order = rng.permutation(len(X) + n_far)
    return np.vstack([X, far])[order], order < len(X), order


def fit_two(X, **options):
    return RFFKMeans(2, random_state=0, **options).fit(X)


@pytest.fixture(scope="module")
def circles():
    return fit_two(CIRCLES[0])


@pytest.mark.parametrize("rows", [CIRCLES, MOONS], ids=["circles", "moons"])
def test_the_default_finds_what_no_straight_line_parts(circles, rows):
    X, known = rows
    model = circles if rows is CIRCLES else fit_two(X)
    assert adjusted_rand_score(known, model.labels_) > 0.97
    assert_array_equal(model.predict(X), model.labels_)
    assert adjusted_rand_score(known, KMeans(2, random_state=0).fit_predict(X)) < 0.6
    assert "shapes by a Gaussian kernel" in model.shape_
    assert "stable" not in model.shape_


def test_far_rows_take_no_cluster():
    X, known = MOONS
    rows, is_known, order = with_far_rows(X, 4)
    labels = fit_two(rows).labels_
    known_in_order = known[order[is_known]]
    assert adjusted_rand_score(known_in_order, labels[is_known]) > 0.95


def test_rows_far_from_all_others_are_isolated_and_those_of_a_thin_ring_are_not():
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, 100)
    thin = 50 * np.column_stack([np.cos(angles), np.sin(angles)])
    X = np.vstack([rng.standard_normal((500, 2)), thin, [[300.0, 0.0]]])
    isolated = is_isolated(*nearest_rows(X, 7))
    assert isolated[-1]
    assert isolated[500:600].mean() < 0.05


def test_round_clusters_are_those_of_k_means_and_it_is_said():
    X, _ = make_blobs(900, 3, centers=5, random_state=2)
    model = RFFKMeans(5, random_state=0).fit(X)
    theirs = KMeans(5, n_init=10, random_state=0).fit(X)
    assert adjusted_rand_score(theirs.labels_, model.labels_) > 0.99
    assert model.inertia_ == pytest.approx(theirs.inertia_, rel=1e-3)
    assert "no shape beyond round clusters was found" in model.shape_


def test_the_number_of_clusters_is_found_by_the_same_evidence():
    model = RFFKMeans("auto", random_state=0).fit(MOONS[0][:500])
    assert model.clusters_.n_clusters == 2
    assert "more clusters at least" in model.shape_
    angles = np.arange(7) * 2 * np.pi / 7
    centres = 10 * np.column_stack([np.cos(angles), np.sin(angles)])
    blobs, _ = make_blobs(350, centers=centres, random_state=5)
    assert RFFKMeans("auto", random_state=0).fit(blobs).clusters_.n_clusters == 7
    given = RFFKMeans("auto", length_scale=2.0, n_components=64, random_state=0)
    assert "clusters cut" in given.fit(blobs).shape_
    assert 2 <= given.clusters_.n_clusters <= 16


def test_clusters_that_nothing_repeats_are_told():
    X = np.random.default_rng(0).standard_normal((400, 2))
    sentence = RFFKMeans("auto", random_state=0).fit(X).shape_
    assert sentence.startswith("no clear clusters, since ")
    assert "no number of clusters stands out" in sentence or "not stable" in sentence


def test_what_was_chosen_is_what_the_same_options_find(circles):
    again = fit_two(
        CIRCLES[0],
        length_scale=circles.length_scale_,
        features=Nystrom("dense", sample_rows=5_000),
        n_components=512,
        n_principal=1,
        normalize="degree",
    )
    assert_array_equal(again.feature_centers_, circles.feature_centers_)
    assert again.shape_ == ""
    save_model(circles, scratch("shapes"))
    assert load_model(scratch("shapes")).shape_ == circles.shape_


def test_features_of_rows_far_from_all_centres_have_norm_one():
    """Their scores are as small as 1e-196, and squares of these are 0."""
    wide = np.random.default_rng(0).normal(size=(12_000, 1)).astype(np.float32)
    X = np.hstack([wide, wide**2])
    model = RFFKMeans(2, n_components=32, random_state=2).fit(X)
    norms = np.linalg.norm(model.feature_map_.transform(X), axis=1)
    assert_allclose(norms, 1.0, rtol=1e-12)
    assert np.bincount(model.labels_).min() > 1_000


def test_the_lecture_s_algorithm_moves_no_row_from_the_default_s_clusters(circles):
    """Kernel k-means on a Gram matrix, from the labels that the default found."""
    Z = circles.feature_map_.transform(CIRCLES[0])
    labels = circles.labels_.astype(np.intp)
    found = exact.cluster(Z @ Z.T, np.ones(len(Z)), labels, n_clusters=2, max_iter=50)
    assert_array_equal(found.labels, circles.labels_)
    assert found.inertia == pytest.approx(circles.inertia_, rel=1e-6)


@pytest.mark.distributed
def test_shapes_have_the_same_bits_in_any_chunks_and_on_workers(embedded, tmp_path):
    X = MOONS[0][:400]
    found = []
    for chunk_rows, engine in ((100, SerialEngine(1)), (400, embedded)):
        url = tmp_path / f"{chunk_rows}.zarr"
        write_dataset(url, X, chunk_rows=chunk_rows)
        found.append(fit_two(url, engine=engine).predict(X))
    assert_array_equal(*found)
