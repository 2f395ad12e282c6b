"""Exact kernel k-means on one Gram matrix: for few rows, and as the reference for `kmeans.fit`.

The centre of a cluster C is the weighted mean of its rows in feature space. With weights w and m = Σ_C w, a
row's squared distance to it is

    k(x, x) − (2/m)·Σ_C w_l·k(x, x_l) + (1/m²)·Σ_C Σ_C w_l·w_m·k(x_l, x_m).

Each iteration assigns all rows to their nearest centres, until no row changes its cluster. An iteration takes
O(n_samples² · n_clusters), and O(n_samples · n_clusters) memory besides the Gram.

Schölkopf, Smola & Müller (1998), section 5; Dhillon, Guan & Kulis (2004), Kernel k-means, Alg. 1; Arthur &
Vassilvitskii (2007), k-means++.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rff_dist.errors import DataError
from rff_dist.frequencies.uniforms import counter_uniforms, pick
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray, IndexArray

EQUAL = 1e-13  # squared distances that differ by less than this share of the largest k(x, x) count as equal
_STREAM = 2**36  # first of the seed's random streams for starts, far above the streams of other rooms


@dataclass(frozen=True, slots=True, eq=False)
class Similarities:
    """The rows to cluster: their Gram matrix and weights.

    `gram`: float64 array of shape (n_samples, n_samples). Symmetric, positive semi-definite.
    `weights`: float64 array of shape (n_samples,). Not negative.
    """

    gram: FloatArray
    weights: FloatArray

    @property
    def diagonal(self) -> FloatArray:
        """Return k(x_i, x_i), shape (n_samples,)."""
        return np.diagonal(self.gram)

    @property
    def rounding(self) -> float:
        """Bound on the rounding error of a squared distance."""
        return EQUAL * float(np.abs(self.diagonal).max(initial=0.0))


@dataclass(frozen=True, slots=True, eq=False)
class ExactCentres:
    """Centres of clusters, given by the rows that they are means of.

    `members`: float64 array of shape (n_samples, n_clusters). Share of each row in each centre: w/m in its
      own cluster, else 0.
    `squared_norms`: float64 array of shape (n_clusters,). ‖c‖²; infinite for a cluster without rows, so that
      no row is assigned to it.
    `weights`: float64 array of shape (n_clusters,). m.
    `rounding`: squared distances that differ by less count as equal.
    """

    members: FloatArray
    squared_norms: FloatArray
    weights: FloatArray
    rounding: float

    __repr__ = short_repr

    def scores(self, gram: FloatArray) -> FloatArray:
        """Return squared distances minus k(x, x), shape (n_rows, n_clusters).

        `gram`: float64 array of shape (n_rows, n_samples). Kernel of these rows and the clustered rows.
        """
        return self.squared_norms - 2.0 * (gram @ self.members)

    def nearest(self, gram: FloatArray) -> IndexArray:
        """Return the nearest centre of each row of a Gram; the first of equals."""
        return nearest(self.scores(gram), self.rounding)

    def distances(self, gram: FloatArray, diagonal: FloatArray) -> FloatArray:
        """Return squared distances, shape (n_rows, n_clusters), at least 0; `diagonal` is k(x, x)."""
        return np.asarray(np.maximum(self.scores(gram) + diagonal[:, np.newaxis], 0.0))


def centres_of(rows: Similarities, labels: IndexArray, n_clusters: int) -> tuple[ExactCentres, FloatArray]:
    """Return the centres of a partition and the scores of its rows, O(n_samples² · n_clusters)."""
    weights = np.bincount(labels, rows.weights, minlength=n_clusters)
    filled = weights > 0
    members = np.zeros((len(labels), n_clusters))
    shares = rows.weights / np.where(filled, weights, 1.0)[labels]
    members[np.arange(len(labels)), labels] = shares
    products = rows.gram @ members
    to_own = products[np.arange(len(labels)), labels]
    # ‖c‖² = Σ_i share_i·⟨φ(x_i), c⟩ over c's own rows, from the product that the scores need anyway
    squared_norms = np.bincount(labels, shares * to_own, minlength=n_clusters)
    # no row is near an empty cluster
    centres = ExactCentres(members, np.where(filled, squared_norms, np.inf), weights, rows.rounding)
    return centres, centres.squared_norms - 2.0 * products


def nearest(scores: FloatArray, rounding: float) -> IndexArray:
    """Return the cluster with the least score for each row; the first of those equal up to rounding."""
    least = scores.min(axis=1, keepdims=True)
    return np.asarray((scores <= least + rounding).argmax(axis=1))


# -- starts ----------------------------------------------------------------------------------------


def choose_rows(rows: Similarities, n_clusters: int, *, seed: int, start: int = 0) -> IndexArray:
    """Choose initial rows by greedy k-means++ in feature space, O(n_samples · n_clusters · log(n_clusters)).

    A row is drawn with a probability proportional to its weight times its squared distance to the nearest row
    chosen so far. Of 2 + ln(n_clusters) such draws the one that leaves the least inertia is taken.

    `start`: number of the start; each has its own random numbers.
    Returns `chosen`, int array of shape (n_chosen,): fewer than `n_clusters` if fewer rows with a weight are
      distinct.

    Arthur & Vassilvitskii (2007), Sec. 2.2, and Sec. 6 for the greedy draws.
    """
    diagonal = rows.diagonal

    def to_rows(chosen: IndexArray) -> FloatArray:
        squared = diagonal - 2.0 * rows.gram[chosen] + diagonal[chosen][:, np.newaxis]
        return np.where(squared > 4.0 * rows.rounding, squared, 0.0)  # 0 if within rounding

    return choose_greedily(to_rows, rows.weights, n_clusters, seed=seed, stream=_STREAM + start)


def choose_greedily(
    distances_to: Callable[[IndexArray], FloatArray],
    weights: FloatArray,
    n_clusters: int,
    *,
    seed: int,
    stream: int,
    distinct: bool = False,
) -> IndexArray:
    """Choose rows as `choose_rows` says, by any distance.

    `distances_to`: gives squared distances of all rows to some, of shape (n_some, n_samples).
    `distinct`: whether a row that is drawn twice for one centre is compared once.
    """
    uniforms = counter_uniforms(seed, stream, n_clusters, 2 + int(math.log(n_clusters)))
    chosen = [int(pick(weights, uniforms[0, 0]))]
    closest = distances_to(np.array(chosen))[0]
    for uniform in uniforms[1:]:
        chances = weights * closest
        if not chances.any():
            break
        drawn = pick(chances, uniform)
        drawn = np.unique(drawn) if distinct else drawn
        # shape (n_drawn, n_samples): squared distances if that row became a centre
        left = np.minimum(distances_to(drawn), closest)
        best = int((left @ weights).argmin())
        chosen.append(int(drawn[best]))
        closest = left[best]
    return np.array(chosen, np.intp)


def labels_from_rows(rows: Similarities, chosen: IndexArray) -> IndexArray:
    """Return the position in `chosen` of the row that is nearest to each row."""
    scores = rows.diagonal[chosen] - 2.0 * rows.gram[chosen].T
    return nearest(scores, rows.rounding)


# -- iterations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class KernelClusters:
    """Clusters, and how they were found.

    `labels`: int array of shape (n_samples,). The nearest centre of each row.
    `inertia`: Σ w · squared distance to the nearest centre.
    `objectives`: Σ w · squared distance to the mean of the row's own cluster, for each partition in turn; it
      never rises.
    `n_iter`: number of assignments made.
    `converged`: whether the assignments stopped changing before `max_iter`.
    """

    labels: IndexArray
    centres: ExactCentres
    inertia: float
    objectives: tuple[float, ...]
    n_iter: int
    converged: bool

    @property
    def n_filled(self) -> int:
        """Number of clusters that have rows with a weight."""
        return int((self.centres.weights > 0).sum())


def improve(rows: Similarities, labels: IndexArray, *, n_clusters: int, max_iter: int) -> KernelClusters:
    """Assign rows to their nearest centres until assignments stay, O(n_samples² · n_clusters) each time.

    Ties go to the first cluster. An empty cluster takes the row that is farthest from its own centre, the
    first such row; several empty clusters take the farthest rows in turn. Iterations stop when assignments
    repeat, or when the objective no longer falls, which ties within rounding may cause.

    `labels`: int array of shape (n_samples,). The initial assignment.
    Raises DataError if no row has a weight above 0.
    """
    if not rows.weights.any():
        raise DataError("all sample weights are zero; at least one row must count")
    total = float(rows.weights @ rows.diagonal)
    labels = _refill(labels, *centres_of(rows, labels, n_clusters), rows)
    objectives: list[float] = []
    for n_iter in range(1, max_iter + 1):
        centres, scores = centres_of(rows, labels, n_clusters)
        filled = centres.weights > 0
        # Σ w·‖φ(x) − c‖² = Σ w·k(x, x) − Σ_c w_c·‖c‖², as each c is the mean of its rows
        objectives.append(max(0.0, total - float(centres.weights[filled] @ centres.squared_norms[filled])))
        assigned = nearest(scores, rows.rounding)
        following = _refill(assigned, centres, scores, rows)
        stays = np.array_equal(following, labels)
        # the objective cannot rise, so if it does not fall, only ties and rounding move rows
        converged = stays or (n_iter > 1 and objectives[-1] >= objectives[-2])
        if converged:
            break
        labels = following
    if stays:
        assigned = labels
    squared = np.maximum(scores[np.arange(len(assigned)), assigned] + rows.diagonal, 0.0)
    inertia = float(rows.weights @ squared)
    return KernelClusters(assigned, centres, inertia, tuple(objectives), n_iter, bool(converged))


def _refill(labels: IndexArray, centres: ExactCentres, scores: FloatArray, rows: Similarities) -> IndexArray:
    """Move a row to each empty cluster: the farthest from its centre that is not alone in its cluster.

    Clusters stay empty if too few rows lie off their centres.
    """
    n_clusters = len(centres.weights)
    counts = np.bincount(labels[rows.weights > 0], minlength=n_clusters)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return labels
    labels = labels.copy()
    squared = rows.diagonal + scores[np.arange(len(labels)), labels]
    squared = np.where((rows.weights > 0) & (squared > 4.0 * rows.rounding), squared, 0.0)
    farthest = iter(np.argsort(-squared, kind="stable")[: np.count_nonzero(squared)])
    for cluster in empty:
        row = next((row for row in farthest if counts[labels[row]] > 1), None)
        if row is None:
            break
        counts[labels[row]] -= 1
        labels[row] = cluster
        counts[cluster] = 1
    return labels


def cluster(rows: Similarities, n_clusters: int, *, n_init: int, max_iter: int, seed: int) -> KernelClusters:
    """Cluster rows from `n_init` k-means++ starts; return those of least inertia, the first of equals."""
    best: KernelClusters | None = None
    for start in range(n_init):
        chosen = choose_rows(rows, n_clusters, seed=seed, start=start)
        clusters = improve(rows, labels_from_rows(rows, chosen), n_clusters=n_clusters, max_iter=max_iter)
        if best is None or clusters.inertia < best.inertia * (1.0 - EQUAL):
            best = clusters
    assert best is not None  # there is a start
    return best
