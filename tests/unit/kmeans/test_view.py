"""Pictures of clusters: scikit-learn's principal components of the explicit features,
and a PNG.
"""

import io

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA

from rff_dist import Gaussian, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.workbench.page.pictures import ClusterView, draw_clusters, view_clusters
from rff_dist.workbench.results.figures import png_of
from tests.refusals import refuses

ENGINE = SerialEngine(1)


def cluster(X, n_clusters):
    space = ClusterSpace(kernel=Gaussian(), n_components=64)
    lloyd = LloydOptions(n_clusters=n_clusters, tol=0.0)
    return kmeans.fit(ArrayDataset(X), space, lloyd, engine=ENGINE).clusters


def test_coordinates_and_shares_are_those_of_pca_on_the_features_and_centres_are_means():
    X, _ = make_blobs(400, 3, centers=4, random_state=0)
    found = cluster(X, 4)
    # the sample is all rows, in their order
    view = view_clusters(ArrayDataset(X), found)
    Z = found.feature_map.transform(X, dtype=np.float64)
    theirs = PCA(2).fit(Z)
    expected = theirs.transform(Z)
    signs = np.sign((expected * view.coordinates).sum(axis=0))
    assert_allclose(view.coordinates, expected * signs, atol=1e-10)
    assert_allclose(view.shares, theirs.explained_variance_ratio_, rtol=1e-10)
    assert (
        np.take_along_axis(
            view.coordinates, np.abs(view.coordinates).argmax(axis=0)[np.newaxis], 0
        )
        > 0
    ).all()
    assert_array_equal(
        view.labels,
        kmeans_labels.label_in_memory(ArrayDataset(X), found, engine=ENGINE),
    )
    means = [view.coordinates[view.labels == i].mean(axis=0) for i in range(4)]
    # features of passes are float32
    assert_allclose(view.centres, means, atol=1e-6)


@pytest.mark.parametrize(
    "X", [np.zeros((1, 2)), np.ones((5, 2)), np.arange(2.0)[:, np.newaxis]]
)
def test_rows_without_two_directions_have_zeros_there(X):
    view = view_clusters(ArrayDataset(X), cluster(X, 1))
    # between equal rows only rounding is left
    assert_allclose(view.coordinates[:, 1], 0.0, atol=1e-7)
    assert np.isfinite(view.centres).all()
    assert np.isfinite(view.shares).all()


@pytest.mark.parametrize("n_clusters", [1, 3, 60])
def test_the_picture_is_a_png_of_any_number_of_clusters(n_clusters):
    rng = np.random.default_rng(0)
    labels = rng.integers(n_clusters, size=100)
    view = ClusterView(
        rng.standard_normal((100, 2)), labels, np.zeros((n_clusters, 2)), (0.5, 0.25)
    )
    image = imread(
        io.BytesIO(png_of(draw_clusters(view, title="$rows$", subtitle="100 rows")))
    )
    assert image.shape[2] == 4
    assert np.ptp(image[..., :3]) > 0.5


def test_no_rows_make_no_picture():
    view = ClusterView(np.zeros((0, 2)), np.zeros(0, int), np.zeros((1, 2)), (0.0, 0.0))
    with refuses(DataError, "nothing to draw"):
        draw_clusters(view, title="")
