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

import numpy as np

from rff_dist.errors import DataError
from rff_dist.frequencies.uniforms import counter_uniforms, pick
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray, IndexArray, frozen

EQUAL = 1e-13  # squared distances that differ by less than this share of the largest k(x, x) count as equal
_STREAM = 2**36  # first of the seed's random streams for starts, far above the streams of other rooms


@frozen(eq=False)
class KernelClusters:
    """Clusters of rows, their centres as means of rows, and how they were found.

    `members` has the share of each row in each centre. The squared norm of a cluster without rows is
    infinite, so that no row is assigned to it. `inertia` is the sum of w · squared distance to the nearest
    centre; `objectives` are those to the mean of the row's own cluster, for each partition in turn, which
    never rise.
    """

    labels: IndexArray
    members: FloatArray
    squared_norms: FloatArray
    rounding: float
    inertia: float
    objectives: tuple[float, ...]
    converged: bool

    __repr__ = short_repr

    @property
    def n_filled(self) -> int:
        """Number of clusters that have rows with a weight."""
        return int(np.isfinite(self.squared_norms).sum())

    def scores(self, gram: FloatArray) -> FloatArray:
        """Return squared distances minus k(x, x), of shape (n_rows, n_clusters)."""
        return self.squared_norms - 2.0 * (gram @ self.members)

    def nearest(self, gram: FloatArray) -> IndexArray:
        """Return the nearest centre of each row of a Gram; the first of equals."""
        return _nearest(self.scores(gram), self.rounding)


def cluster(
    gram: FloatArray, weights: FloatArray, labels: IndexArray, *, n_clusters: int, max_iter: int
) -> KernelClusters:
    """Assign rows to their nearest centres until no row changes its cluster.

    Ties go to the first cluster. An empty cluster takes the row that is farthest from its own centre, the
    first such row; several empty clusters take the farthest rows in turn.

    Raises DataError if no row has a weight above 0.
    """
    if not weights.any():
        raise DataError("all sample weights are zero; at least one row must count")
    diagonal, rounding = np.diagonal(gram)[:, np.newaxis], _rounding(gram, weights)
    rows = np.arange(len(gram))
    objectives: list[float] = []
    scores = _scores(gram, weights, labels, n_clusters)[2]
    labels = _refill(labels, scores + diagonal, weights, rounding)
    for _ in range(max_iter):
        members, squared_norms, scores = _scores(gram, weights, labels, n_clusters)
        distances = scores + diagonal
        own = np.where(weights > 0, distances[rows, labels], 0.0)
        objectives.append(float(weights @ np.maximum(own, 0.0)))
        nearest = _nearest(scores, rounding)
        following = _refill(nearest, distances, weights, rounding)
        stays = np.array_equal(following, labels)
        # the objective cannot rise, so if it does not fall, only ties and rounding move rows
        converged = stays or objectives[-1] >= min(objectives[:-1], default=math.inf)
        if converged:
            break
        labels = following
    labels = labels if stays else nearest
    inertia = float(weights @ np.maximum(distances[rows, labels], 0.0))
    return KernelClusters(labels, members, squared_norms, rounding, inertia, tuple(objectives), converged)


def _scores(
    gram: FloatArray, weights: FloatArray, labels: IndexArray, n_clusters: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the centres of a partition, as shares of rows and ‖c‖², and the scores of all rows."""
    totals = np.bincount(labels, weights, minlength=n_clusters)
    members = np.zeros((len(gram), n_clusters))
    members[np.arange(len(gram)), labels] = weights / np.where(totals > 0, totals, 1.0)[labels]
    products = gram @ members
    # ‖c‖² = Σ_i share_i·⟨φ(x_i), c⟩, from the product that the scores need anyway
    squared_norms = np.where(totals > 0, (members * products).sum(axis=0), np.inf)
    return members, squared_norms, squared_norms - 2.0 * products


def _nearest(scores: FloatArray, rounding: float) -> IndexArray:
    """Return the centre with the least score for each row; the first of those equal up to rounding."""
    return np.asarray((scores <= scores.min(axis=1, keepdims=True) + rounding).argmax(axis=1))


def _rounding(gram: FloatArray, weights: FloatArray) -> float:
    """Return a bound on the rounding error of a squared distance between rows with weight."""
    return EQUAL * float(np.abs(np.diagonal(gram)).max(initial=0.0, where=weights > 0))


def _refill(labels: IndexArray, distances: FloatArray, weights: FloatArray, rounding: float) -> IndexArray:
    """Move a row to each empty cluster: the farthest from its centre that is not alone in its cluster.

    Clusters stay empty if too few rows lie off their centres.
    """
    labels = labels.copy()
    counts = np.bincount(labels[weights > 0], minlength=distances.shape[1])
    own = np.where(weights > 0, distances[np.arange(len(labels)), labels], 0.0)
    for empty in np.flatnonzero(counts == 0):
        movable = np.where(counts[labels] > 1, own, 0.0)
        row = int(movable.argmax())
        if not movable[row] > 4.0 * rounding:
            break
        counts[labels[row]] -= 1
        counts[empty] = 1
        labels[row] = empty
        own[row] = 0.0
    return labels


# -- starts ----------------------------------------------------------------------------------------


def choose_rows(
    gram: FloatArray, weights: FloatArray, n_clusters: int, *, seed: int, start: int = 0
) -> IndexArray:
    """Choose initial rows by greedy k-means++ in feature space; see `choose_greedily`.

    Fewer than `n_clusters` if fewer rows with a weight are distinct.
    """
    diagonal = np.diagonal(gram)

    def to_rows(chosen: IndexArray) -> FloatArray:
        squared = diagonal - 2.0 * gram[chosen] + diagonal[chosen][:, np.newaxis]
        return np.where(squared > 4.0 * _rounding(gram, weights), squared, 0.0)

    return choose_greedily(to_rows, weights, n_clusters, seed=seed, stream=_STREAM + start)


def choose_greedily(
    distances_to: Callable[[IndexArray], FloatArray],
    weights: FloatArray,
    n_clusters: int,
    *,
    seed: int,
    stream: int,
    distinct: bool = False,
) -> IndexArray:
    """Choose rows by greedy k-means++, O(n_samples · n_clusters · log(n_clusters)).

    A row is drawn with a probability proportional to its weight times its squared distance to the nearest row
    chosen so far. Of 2 + ln(n_clusters) such draws the one that leaves the least inertia is taken.

    `distances_to`: gives squared distances of all rows to some, of shape (n_some, n_samples).
    `distinct`: whether a row that is drawn twice for one centre is compared once.

    Arthur & Vassilvitskii (2007), Sec. 2.2, and Sec. 6 for the greedy draws.
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


def labels_from_rows(gram: FloatArray, weights: FloatArray, chosen: IndexArray) -> IndexArray:
    """Return the position in `chosen` of the row that is nearest to each row; the first of equals."""
    return _nearest(np.diagonal(gram)[chosen] - 2.0 * gram[chosen].T, _rounding(gram, weights))
