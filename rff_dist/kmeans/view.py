"""The data for a picture of clusters: a seeded sample of rows in two kernel principal components."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.samples import sample_inputs
from rff_dist.kmeans.lloyd_pass import label_rows
from rff_dist.kmeans.starts import Clusters
from rff_dist.numerics.threads import using_threads
from rff_dist.ridge.predict import check_dataset
from rff_dist.typing import FloatArray

SAMPLE_ROWS = 2_000


@dataclass(frozen=True, slots=True, eq=False)
class ClusterView:
    """A sample of rows and the centres in the two directions of the sample's greatest variance in Z.

    `scores`: float64 array of shape (n_sampled, 2). Coordinates of the rows; if there is one direction only,
      the second column is 0.
    `labels`: int array of shape (n_sampled,). Clusters of the rows.
    `centres`: float64 array of shape (n_clusters, 2). Coordinates of the centres.
    `shares`: tuple of 2 floats. Each direction's share of the sample's variance.
    """

    scores: FloatArray
    labels: NDArray[np.integer[Any]]
    centres: FloatArray
    shares: tuple[float, float]


def view_clusters(
    dataset: Dataset, clusters: Clusters, *, seed: int = 0, n_rows: int = SAMPLE_ROWS
) -> ClusterView:
    """Label a seeded sample of rows, and project it on its own first two kernel principal components.

    Takes no pass over the data, but O(n_rows² · n_components) time in this process. `pca.fit.fit_components`
    computes the components of all rows.

    `seed`: seed of the sample.
    `n_rows`: largest size of the sample.
    Raises DataError if the columns do not fit the clusters, or a sampled row holds NaN or infinity.
    """
    check_dataset(dataset, clusters)
    X = sample_inputs(dataset.without_targets(), seed, n_rows=n_rows)
    labels = label_rows(Rows(Block(0, 0, len(X)), X), clusters.state)
    Z = clusters.feature_map.transform(X, dtype=np.float64)
    middle = Z.mean(axis=0)
    Z -= middle
    n_kept = min(2, len(X))
    with using_threads(1):
        gram = Z @ Z.T
        total = float(np.trace(gram))
        values, vectors = scipy.linalg.eigh(gram, subset_by_index=(len(X) - n_kept, len(X) - 1))
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        # eigenvectors have no sign of their own: make the score of largest size positive
        vectors *= np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[np.newaxis], 0))
        scores, centres = np.zeros((len(X), 2)), np.zeros((clusters.n_clusters, 2))
        scores[:, :n_kept] = vectors * np.sqrt(values)
        above = values > 1e-12 * max(total, math.ulp(0.0))
        axes = Z.T @ vectors[:, above] / np.sqrt(values[above])
        centres[:, :n_kept][:, above] = (clusters.centres - middle) @ axes
    shares = [float(value) / total if total > 0 else 0.0 for value in values]
    return ClusterView(scores, labels, centres, (shares[0], shares[1] if n_kept > 1 else 0.0))
