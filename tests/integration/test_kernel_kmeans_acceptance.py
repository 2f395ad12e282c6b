"""Kernel k-means in 4,096 features beside the exact algorithm, on small data sets, from the same starts.

A start is a labeling: the exact algorithm begins with it, and the features with its clusters' means in Z.
Lloyd iterations fork: features err by about 1/√D per kernel value, and a few rows that go elsewhere in an
early pass may lead to another local optimum, as good or better. So labels are compared where the exact
algorithm itself comes back to the same clusters after a quarter of the start's labels were drawn anew.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score

from rff_dist import Gaussian, KernelKMeans, RFFKMeans, draw_feature_map
from rff_dist.kmeans.exact import Similarities, choose_rows

N_SAMPLES, N_COMPONENTS = 600, 4096
N_STARTS, N_COMPARED, N_DISTURBED = 12, 3, 6

type IntArray = NDArray[np.integer[Any]]

# Rows, known labels, clusters, and a width in units of the inputs: at most half the median distance of rows.
DATA = {
    "digits": (*(part[:N_SAMPLES] for part in load_digits(return_X_y=True)), 10, 24.0),
    "moons": (*make_moons(N_SAMPLES, noise=0.05, random_state=0), 2, 0.5),
    "rings": (*make_circles(N_SAMPLES, factor=0.3, noise=0.05, random_state=0), 2, 0.35),
    "blobs": (*make_blobs(N_SAMPLES, centers=5, random_state=3), 5, 1.5),
}


@dataclass(frozen=True)
class Pair:
    """What both found from one start.

    `exact` and `ours` are the objectives of the two labelings by the Gram matrix, `claimed` ours by the
    features; `stable` is the least agreement of the exact algorithm with itself from disturbed starts.
    """

    labels: IntArray
    our_labels: IntArray
    exact: float
    ours: float
    claimed: float
    stable: float

    @property
    def agreement(self) -> float:
        return float(adjusted_rand_score(self.labels, self.our_labels))


def objective(gram, labels):
    """Return the sum of squared distances to the clusters' means, by its definition, a cluster at a time."""
    return sum(
        np.trace(gram[np.ix_(rows, rows)]) - gram[np.ix_(rows, rows)].mean() * len(rows)
        for rows in (np.flatnonzero(labels == label) for label in np.unique(labels))
    )


def from_labels(gram, n_clusters, labels):
    return KernelKMeans(n_clusters, kernel="precomputed", init=labels).fit(gram)


def disturbed(labels, n_clusters, rng):
    return np.where(rng.random(len(labels)) < 0.25, rng.integers(n_clusters, size=len(labels)), labels)


@cache
def compare(name: str) -> list[Pair]:
    """Run both from those starts that serve the exact algorithm best, the best first."""
    X, _, n_clusters, length_scale = DATA[name]
    kernel = Gaussian(length_scale)
    gram = kernel(X, X)
    feature_map = draw_feature_map(kernel, n_features=X.shape[1], n_components=N_COMPONENTS, random_state=0)
    Z = feature_map.transform(X).astype(np.float64)
    return [
        compare_from(labels, X, gram, Z, kernel=kernel, rng=np.random.default_rng(seed))
        for seed, labels in enumerate(find_starts(gram, n_clusters))
    ]


def find_starts(gram, n_clusters):
    """Return labelings by the nearest row of k-means++, from which the exact algorithm does best."""
    starts = []
    for seed in range(N_STARTS):
        rows = choose_rows(Similarities(gram, np.ones(len(gram))), n_clusters, seed=seed)
        labels = gram[:, rows].argmax(axis=1)
        starts.append((from_labels(gram, n_clusters, labels).inertia_, seed, labels))
    return [labels for _, _, labels in sorted(starts, key=lambda start: start[:2])[:N_COMPARED]]


def compare_from(start, X, gram, Z, *, kernel, rng):
    n_clusters = int(start.max()) + 1
    exact = from_labels(gram, n_clusters, start)
    ours = RFFKMeans(
        n_clusters,
        kernel=kernel,
        init=np.array([Z[start == label].mean(axis=0) for label in range(n_clusters)]),
        n_components=N_COMPONENTS,
        standardize=False,
        tol=0,
        random_state=0,
    ).fit(X)
    np.testing.assert_array_equal(ours.feature_map_.transform(X[:3]), Z[:3])  # the start is in these features
    again = [
        from_labels(gram, n_clusters, disturbed(start, n_clusters, rng)).labels_ for _ in range(N_DISTURBED)
    ]
    return Pair(
        exact.labels_,
        ours.labels_,
        objective(gram, exact.labels_),
        objective(gram, ours.labels_),
        ours.inertia_,
        min(adjusted_rand_score(exact.labels_, labels) for labels in again),
    )


@pytest.mark.parametrize("name", DATA)
def test_labels_agree_where_the_exact_algorithm_is_stable(name):
    stable = [pair for pair in compare(name) if pair.stable >= 0.95]
    assert stable
    assert all(pair.agreement >= 0.95 for pair in stable)


@pytest.mark.parametrize("name", DATA)
def test_objective_is_within_two_per_cent_of_the_exact_one(name):
    for pair in compare(name):
        assert pair.ours == pytest.approx(pair.exact, rel=0.02)
        assert pair.claimed == pytest.approx(pair.exact, rel=0.02)


def test_both_find_rings_where_plain_k_means_does_not():
    X, rings, *_ = DATA["rings"]
    best = compare("rings")[0]
    assert adjusted_rand_score(rings, best.labels) == adjusted_rand_score(rings, best.our_labels) == 1
    plain = KMeans(2, n_init=10, random_state=0).fit_predict(X)
    assert adjusted_rand_score(rings, plain) < 0.01
