"""Draw candidates for centres in passes over blocks, and choose centres among them.

Blocks of rows go in; candidates come out, in the space of the features Z, and then
centres that are chosen among them. A pass draws rows by their squared distances to the
candidates so far, as k-means|| does. Whether a row is drawn depends on the seed and the
row's number, not on blocks. Centres are chosen among weighted candidates by k-means++,
local search and a few Lloyd steps: pure NumPy, no Dask and no Zarr.

References
----------
Arthur & Vassilvitskii (2007), k-means++; Bahmani, Moseley, Vattani, Kumar &
Vassilvitskii (2012), Scalable k-means++; Lattanzi & Sohler (2019), local search;
Efraimidis & Spirakis (2006), weighted sampling in a pass.
"""

from __future__ import annotations

import numpy as np

from rff_dist.data import blocks
from rff_dist.frequencies.uniforms import counter_uniforms, pick, row_uniforms
from rff_dist.kmeans import cluster_sums, exact, lloyd_pass, nearest
from rff_dist.typing import FloatArray, IndexArray, IntArray, frozen

# An exchange of centres must lower the cost by more than this share; less may be
# rounding.
_GAIN = 1e-9
# the first random stream of a seed that clusters use, far above all others in use
_KMEANS_STREAM = 2**34
_COMPARED_ROWS = 2048  # rows compared with all centres at a time
# squared distances up to this share of the largest squared norm count as 0
_EQUAL = 1e-12

# -- rows chosen in a pass
# -------------------------------------------------------------------------


@frozen(eq=False)
class SeedChoice:
    """The state of a pass that chooses rows far from their nearest points."""

    points: cluster_sums.ClusterState
    #: Number of rows to choose; fewer are chosen if fewer differ from all points.
    size: int
    #: None chooses the farthest rows. Otherwise rows are drawn without replacement,
    #: with probabilities proportional to w·d², which is what Bahmani et al. (2012),
    #: Alg. 2, step 4, draw on average.
    seed: int | None = None
    #: Number of this draw among the draws with the same seed.
    turn: int = 0


@frozen(eq=False)
class RowsByKey:
    """The rows with the largest keys so far; `+` keeps the largest of both."""

    #: Number of rows to keep.
    size: int
    #: In descending order, shape (n_chosen,).
    keys: FloatArray
    #: The rows' numbers in the dataset, shape (n_chosen,). If keys are equal, the lower
    #: number comes first.
    row_numbers: IntArray
    #: Z of these rows; shape (n_chosen, n_components).
    features: FloatArray

    def __add__(self, other: RowsByKey) -> RowsByKey:
        keys = np.concatenate([self.keys, other.keys])
        row_numbers = np.concatenate([self.row_numbers, other.row_numbers])
        # row numbers decide ties, so the order in which blocks are added has no effect
        best = np.lexsort((row_numbers, -keys))[: self.size]
        features = np.concatenate([self.features, other.features])[best]
        return RowsByKey(self.size, keys[best], row_numbers[best], features)


def choose_rows(rows: blocks.Rows, state: SeedChoice) -> RowsByKey:
    """Choose rows of a block: the farthest from their nearest points, or a draw.

    Rows of weight 0, and rows that equal a point, are never chosen. A row's random
    number depends only on the seed, the turn and the row's number, so draws of several
    blocks merge. Raises DataError if a value is not finite or a weight negative.
    """
    block = rows.block
    points = state.points
    distances = nearest.distances_to_nearest(rows, points)
    weights = rows.weights
    places = np.flatnonzero((distances > 0) & (weights > 0))
    keys = distances[places]
    if state.seed is not None:
        stream = _KMEANS_STREAM + 2 * state.turn
        # Each row has an exponential waiting time of rate w·d². The rows with the
        # smallest times are a weighted draw without replacement, however rows are cut
        # into blocks (Efraimidis & Spirakis 2006). The keys are the negative times, as
        # the largest keys are kept.
        uniforms = row_uniforms(state.seed, stream, block.start, block.stop)[places]
        keys = np.log(uniforms) / (keys * weights[places])
    best = np.lexsort((places, -keys))[: state.size]
    chosen_rows = places[best]
    features = points.feature_map.transform(rows.X[chosen_rows], dtype=np.float64)
    return RowsByKey(state.size, keys[best], block.start + chosen_rows, features)


def weigh_points(
    rows: blocks.Rows, points: cluster_sums.ClusterState
) -> cluster_sums.ClusterSums:
    """Sum the weights of a block's rows nearest to each point, but not their features.

    Sums of features took a quarter of the time of all passes for candidates, with 2,401
    points and 1,024 components.
    """
    n_points = points.centres.shape[1]
    grid = points.grid
    counts = np.ldexp(rows.weights, grid.fraction_bits - grid.weight_exponent)
    totals = np.zeros((1, n_points), np.int64)
    labels = lloyd_pass.label_rows(rows, points)
    np.add.at(totals[0], labels, np.rint(counts).astype(np.int64))
    features = np.zeros((1, n_points, 0), np.int64)
    return cluster_sums.ClusterSums(rows.block.n_samples, features, totals, 0)


# -- starts, from candidates in memory, for callers with one BLAS thread
# -------------------------------------------------------------


class _ShiftedPoints:
    """Points in memory minus their mean, for squared distances between them."""

    def __init__(self, points: FloatArray, weights: FloatArray) -> None:
        # ‖a‖² − 2a'b + ‖b‖² loses fewer digits if the norms are small
        self.points = points - np.average(points, axis=0, weights=weights)
        self.norms = np.einsum("ij,ij->i", self.points, self.points)
        # squared distances up to this count as 0
        self.rounding = _EQUAL * float(self.norms.max())

    def distances_to(self, positions: IndexArray) -> FloatArray:
        """Return squared distances of the points at some positions to all points."""
        products = self.points[positions] @ self.points.T
        own_norms = self.norms[positions, np.newaxis]
        distances: FloatArray = self.norms - 2.0 * products + own_norms
        distances[distances <= self.rounding] = 0.0
        return distances

    def two_nearest(
        self, positions: IndexArray, centres: IndexArray
    ) -> tuple[IndexArray, FloatArray]:
        """Find the two centres nearest to each of some points, all by their positions.

        Returns places in `centres` and squared distances, each of shape (2,
        len(positions)).
        """
        labels = np.empty((2, len(positions)), np.intp)
        near = np.empty((2, len(positions)))
        for first in range(0, len(positions), _COMPARED_ROWS):
            here = slice(first, first + _COMPARED_ROWS)
            part = positions[here]
            products = self.points[part] @ self.points[centres].T
            distances = self.norms[part, np.newaxis] - 2.0 * products
            distances += self.norms[centres]
            distances[distances <= self.rounding] = 0.0
            rows = np.arange(len(part))
            for i in range(2):
                places = distances.argmin(axis=1)
                labels[i, here] = places
                near[i, here] = distances[rows, places]
                distances[rows, places] = np.inf
        return labels, near


def choose_centres(
    points: FloatArray, weights: FloatArray, n_clusters: int, *, seed: int
) -> IndexArray:
    """Choose centres among points with weights above 0 by greedy k-means++.

    Returns positions in `points`; fewer if fewer points are distinct. O(n_points ·
    n_clusters · log(n_clusters) · D).
    """
    distances_to = _ShiftedPoints(points, weights).distances_to
    stream = _KMEANS_STREAM + 1
    return exact.choose_greedily(
        distances_to, weights, n_clusters, seed=seed, stream=stream
    )


def exchange_centres(
    points: FloatArray,
    weights: FloatArray,
    centres: IndexArray,
    *,
    n_steps: int,
    seed: int,
) -> IndexArray:
    """Improve centres, given as positions of different points, by local search.

    Each step draws a point as in k-means++, O(n_points · D). It replaces the centre for
    which Σ w·d² falls most, the first of equals, if it falls for any. So one of two
    centres in the same cluster can move to where two clusters share a centre, which
    Lloyd steps cannot do.

    Lattanzi & Sohler (2019), A better k-means++ algorithm via local search, Alg. 2.
    """
    if len(centres) < 2:
        return centres
    centres = centres.copy()
    uniforms = counter_uniforms(seed, _KMEANS_STREAM + 3, n_steps, 1)[:, 0]
    shifted = _ShiftedPoints(points, weights)
    labels, near = shifted.two_nearest(np.arange(len(points)), centres)
    for uniform in uniforms:
        to_nearest, to_second = near
        potential = weights * to_nearest
        if not potential.any():
            break
        point = int(pick(potential, uniform))
        to_point = shifted.distances_to(np.array([point]))[0]

        # the cost with the point as one more centre
        closest = np.minimum(to_point, to_nearest)
        cost = float(weights @ closest)
        # if a centre is removed, each of its points goes to its second nearest centre
        # or to the new one
        losses = weights * (np.minimum(to_point, to_second) - closest)
        costs = cost + np.bincount(labels[0], losses, minlength=len(centres))
        place = int(costs.argmin())
        if not costs[place] < (1.0 - _GAIN) * float(potential.sum()):
            continue

        centres[place] = point
        # the points whose nearest or second nearest centre may have changed
        is_near_place = (labels == place).any(axis=0)
        stale = np.flatnonzero(is_near_place | (to_point < to_second))
        labels[:, stale], near[:, stale] = shifted.two_nearest(stale, centres)
    return centres


def improve_centres(
    points: FloatArray, weights: FloatArray, centres: FloatArray, *, max_iter: int
) -> FloatArray:
    """Move centres as `sklearn.cluster.KMeans` does, on weighted points in memory; but
    a centre without points stays where it is.
    """
    labels = np.full(len(points), -1)
    for _ in range(max_iter):
        former = labels
        labels = shifted_distances(points, centres).argmin(axis=1)
        if np.array_equal(former, labels):
            break
        members = lloyd_pass.members_of(labels[np.newaxis], len(centres))
        sums = members @ (points * weights[:, np.newaxis])
        totals = np.bincount(labels, weights=weights, minlength=len(centres))
        filled = totals > 0
        centres = centres.copy()
        centres[filled] = sums[filled] / totals[filled, np.newaxis]
    return centres


def weighted_inertia(
    points: FloatArray, weights: FloatArray, centres: FloatArray
) -> float:
    """Return Σ w·‖z − c‖² over points and their nearest centres."""
    smallest = shifted_distances(points, centres).min(axis=1)
    offsets = points - centres.mean(axis=0)
    return float(weights @ (smallest + np.einsum("ij,ij->i", offsets, offsets)))


def shifted_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Return ‖z − c‖² − ‖z − m‖², m the centres' mean, shape (n_points, n_clusters)."""
    middle = centres.mean(axis=0)
    offsets = centres - middle
    products = (points - middle) @ offsets.T
    return np.square(offsets).sum(axis=1) - 2.0 * products
