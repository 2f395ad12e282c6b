"""Exact kernel k-means on a Gram matrix, for few rows; also the reference for `fit`.

In go the kernel values of all pairs of rows (the Gram matrix), weights, and a first
label for each row. Out come labels: each row is nearest to the mean of its own cluster.
`fit` approximates this with features, in time linear in the rows.

The centre of a cluster C is the weighted mean of its rows in the kernel's feature
space. With weights w and m = Σ_C w, a row's squared distance to it is

    k(x, x) − (2/m)·Σ_C w_l·k(x, x_l) + (1/m²)·Σ_C Σ_C w_l·w_j·k(x_l, x_j).

An iteration takes O(n_samples² · n_clusters).

Schölkopf, Smola & Müller (1998), section 5; Dhillon, Guan & Kulis (2004), Kernel
k-means, Alg. 1; Arthur & Vassilvitskii (2007), k-means++.
"""

import math
from collections.abc import Callable

import numpy as np

from rff_dist.errors import DataError
from rff_dist.frequencies.uniforms import counter_uniforms, pick
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray, IndexArray, frozen

# Squared distances count as equal if they differ by less than this share of the largest
# k(x, x).
EQUAL = 1e-13
# the first random stream of a seed that starts use, far above all others in use
_STREAM = 2**36


@frozen(eq=False)
class KernelClusters:
    """Centres as means of rows, and the rows' clusters."""

    #: Shape (n_samples,).
    labels: IndexArray
    #: Share of each row in each centre, shape (n_samples, n_clusters).
    shares: FloatArray
    #: ‖centre‖²; infinite for a cluster without rows, which no row is nearest to.
    squared_norms: FloatArray
    #: Squared distances that differ by less count as equal.
    rounding: float
    #: Σ w · squared distance to the nearest centre.
    inertia: float
    #: For each iteration, Σ w · squared distance to the mean of the row's cluster. It
    #: never rises.
    objectives: tuple[float, ...]
    converged: bool

    __repr__ = short_repr

    @property
    def n_filled(self) -> int:
        """Number of clusters that have rows with a weight."""
        return int(np.isfinite(self.squared_norms).sum())

    def scores(self, gram: FloatArray) -> FloatArray:
        """Return squared distances minus k(x, x), of shape (n_rows, n_clusters)."""
        return self.squared_norms - 2.0 * (gram @ self.shares)

    def nearest(self, gram: FloatArray) -> IndexArray:
        """Return the nearest centre of each row of a Gram matrix; if several are
        equally near, the first.
        """
        return _smallest(self.scores(gram), self.rounding)


def cluster(
    gram: FloatArray,
    weights: FloatArray,
    labels: IndexArray,
    *,
    n_clusters: int,
    max_iter: int,
) -> KernelClusters:
    """Assign rows to their nearest centres until no row changes its cluster.

    Ties go to the first cluster. An empty cluster takes the row that is farthest from
    its own centre (of several, the first); several empty clusters take the farthest
    rows in turn. Raises DataError if no row has a weight above 0.
    """
    if not weights.any():
        raise DataError("all sample weights are zero; at least one row must count")
    diagonal = np.diagonal(gram)[:, np.newaxis]
    rounding = _rounding(gram, weights)
    rows = np.arange(len(gram))
    _, _, scores = _centres(gram, weights, labels, n_clusters)
    labels = _fill_empty(labels, scores + diagonal, weights, rounding)
    objectives: list[float] = []
    for _ in range(max_iter):
        shares, squared_norms, scores = _centres(gram, weights, labels, n_clusters)
        distances = np.maximum(scores + diagonal, 0.0)
        objective = float(weights @ np.where(weights > 0, distances[rows, labels], 0.0))
        nearest = _smallest(scores, rounding)
        next_labels = _fill_empty(nearest, scores + diagonal, weights, rounding)
        # The objective cannot rise. If it does not fall, rows move only because of ties
        # and rounding.
        falls = objective < min(objectives, default=math.inf)
        converged = np.array_equal(next_labels, labels) or not falls
        objectives.append(objective)
        if converged:
            break
        labels = next_labels
    inertia = float(weights @ distances[rows, nearest])
    return KernelClusters(
        nearest, shares, squared_norms, rounding, inertia, tuple(objectives), converged
    )


def _centres(
    gram: FloatArray, weights: FloatArray, labels: IndexArray, n_clusters: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the rows' shares in the centres, ‖centre‖², and the scores of all rows."""
    totals = np.bincount(labels, weights, minlength=n_clusters)
    is_filled = totals > 0
    shares = np.zeros((len(gram), n_clusters))
    divisors = np.where(is_filled, totals, 1.0)
    shares[np.arange(len(gram)), labels] = weights / divisors[labels]
    products = gram @ shares
    # ‖c‖² = Σ_i share_i·⟨φ(x_i), c⟩; the scores need this product too
    squared_norms = np.where(is_filled, (shares * products).sum(axis=0), np.inf)
    return shares, squared_norms, squared_norms - 2.0 * products


def _smallest(scores: FloatArray, rounding: float) -> IndexArray:
    """Return the column of each row's smallest score; the first of those that are equal
    up to rounding.
    """
    limits = scores.min(axis=1, keepdims=True) + rounding
    return (scores <= limits).argmax(axis=1)


def _rounding(gram: FloatArray, weights: FloatArray) -> float:
    """Return a bound on the rounding error of a squared distance."""
    diagonal = np.abs(np.diagonal(gram))
    return EQUAL * float(diagonal.max(initial=0.0, where=weights > 0))


def _fill_empty(
    labels: IndexArray, distances: FloatArray, weights: FloatArray, rounding: float
) -> IndexArray:
    """Give each empty cluster the row that is farthest from its own centre, among rows
    that are not the only one of their cluster.

    Clusters stay empty if too few rows differ from their centres.
    """
    labels = labels.copy()
    sizes = np.bincount(labels[weights > 0], minlength=distances.shape[1])
    to_own = np.where(weights > 0, distances[np.arange(len(labels)), labels], 0.0)
    for empty in np.flatnonzero(sizes == 0):
        movable = np.where(sizes[labels] > 1, to_own, 0.0)
        row = int(movable.argmax())
        if not movable[row] > 4.0 * rounding:
            break
        sizes[labels[row]] -= 1
        sizes[empty] = 1
        labels[row] = empty
        to_own[row] = 0.0
    return labels


# -- starts
# ---------------------------------------------------------------------------------


def choose_rows(
    gram: FloatArray, weights: FloatArray, n_clusters: int, *, seed: int, start: int = 0
) -> IndexArray:
    """Choose first centres by greedy k-means++ in feature space.

    Fewer than `n_clusters` if fewer rows with a weight are distinct.
    """
    diagonal = np.diagonal(gram)
    rounding = 4.0 * _rounding(gram, weights)

    def distances_to(rows: IndexArray) -> FloatArray:
        squared = diagonal - 2.0 * gram[rows] + diagonal[rows][:, np.newaxis]
        return np.where(squared > rounding, squared, 0.0)

    return choose_greedily(
        distances_to, weights, n_clusters, seed=seed, stream=_STREAM + start
    )


def choose_greedily(
    distances_to: Callable[[IndexArray], FloatArray],
    weights: FloatArray,
    n_clusters: int,
    *,
    seed: int,
    stream: int,
) -> IndexArray:
    """Choose rows by greedy k-means++, O(n_samples · n_clusters · log(n_clusters)).

    Rows are drawn with probabilities proportional to their weight times their squared
    distance to the nearest chosen row. For each centre 2 + ln(n_clusters) rows are
    drawn, and the row is taken that leaves the smallest inertia. `distances_to` returns
    the squared distances of some rows to all rows, of shape (n_some, n_samples).

    Arthur & Vassilvitskii (2007), Sec. 2.2, and Sec. 6 for the greedy draws.
    """
    uniforms = counter_uniforms(seed, stream, n_clusters, 2 + int(math.log(n_clusters)))
    centres = [int(pick(weights, uniforms[0, 0]))]
    closest = distances_to(np.array(centres))[0]
    for uniform in uniforms[1:]:
        chances = weights * closest
        if not chances.any():
            break
        candidates = np.unique(pick(chances, uniform))
        # squared distances to the nearest centre if that candidate became one
        distances = np.minimum(distances_to(candidates), closest)
        best = int((distances @ weights).argmin())
        centres.append(int(candidates[best]))
        closest = distances[best]
    return np.array(centres, np.intp)


def labels_from_rows(
    gram: FloatArray, weights: FloatArray, centres: IndexArray
) -> IndexArray:
    """Return the position in `centres` of the nearest one to each row."""
    scores = np.diagonal(gram)[centres] - 2.0 * gram[centres].T
    return _smallest(scores, _rounding(gram, weights))
