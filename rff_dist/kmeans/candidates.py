"""Candidates for centres: rows drawn in passes over blocks, and the choice of centres among them in memory.

A pass draws rows by their squared distances to the candidates so far, as k-means|| does. Whether a row is
drawn depends on the seed and the row's number, not on blocks. Centres are chosen among weighted candidates by
k-means++, local search and a few Lloyd steps: pure NumPy, no Dask and no Zarr.

References
----------
Arthur & Vassilvitskii (2007), k-means++; Bahmani, Moseley, Vattani, Kumar & Vassilvitskii (2012), Scalable
k-means++; Lattanzi & Sohler (2019), local search; Efraimidis & Spirakis (2006), weighted sampling in a pass.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from rff_dist.data import blocks
from rff_dist.frequencies.uniforms import counter_uniforms, pick, row_uniforms
from rff_dist.kmeans import exact, lloyd_pass
from rff_dist.numerics import machine
from rff_dist.typing import FloatArray, IndexArray, IntArray, frozen

_GAIN = 1e-9  # an exchange of centres must lower the cost by more than this share: less may be rounding
_KMEANS_STREAM = 2**34  # first of the seed's random streams for clusters, far above those in use elsewhere
_COMPARED_ROWS = 2048  # rows compared with all centres at a time

# -- rows chosen in a pass -------------------------------------------------------------------------


@frozen(eq=False)
class SeedChoice:
    """The state of a pass that chooses rows far from their nearest points.

    `size`: rows to choose; fewer if fewer rows differ from all points.
    `seed`: None chooses the farthest rows. Otherwise rows are drawn without replacement, with probabilities
      proportional to w·d², which is what Bahmani et al. (2012), Alg. 2, step 4, draw on average.
    `turn`: number of this draw among those with the same seed.
    """

    points: lloyd_pass.Centres
    size: int
    seed: int | None = None
    turn: int = 0


@frozen(eq=False)
class ChosenRows:
    """The rows with the largest keys so far, the largest first; `+` keeps the largest of both.

    `size`: rows to keep.
    `keys`: float64 array of shape (n_chosen,).
    `row_numbers`: int64 array of shape (n_chosen,). In the dataset; the lower of equal keys comes first.
    `features`: float64 array of shape (n_chosen, n_components). Z of these rows.
    """

    size: int
    keys: FloatArray
    row_numbers: IntArray
    features: FloatArray

    def __add__(self, other: ChosenRows) -> ChosenRows:
        keys = np.concatenate([self.keys, other.keys])
        row_numbers = np.concatenate([self.row_numbers, other.row_numbers])
        # ties by row number, so that the same rows stay in whatever order blocks are added
        best = np.lexsort((row_numbers, -keys))[: self.size]
        features = np.concatenate([self.features, other.features])[best]
        return ChosenRows(self.size, keys[best], row_numbers[best], features)


def choose_rows(rows: blocks.Rows, state: SeedChoice) -> ChosenRows:
    """Choose rows of a block: those farthest from their nearest points, or a draw by squared distances.

    Rows of weight 0 and rows at a point are never chosen. The random number of a row depends on the seed, the
    turn and the row's number in the dataset only.

    Efraimidis & Spirakis (2006), Weighted random sampling with a reservoir: the rows with the smallest
    E/(w·d²), E exponential, are such a draw, and draws of several blocks merge by keeping the smallest.
    Raises DataError if a value is not finite or a weight negative.
    """
    block, points = rows.block, state.points
    keys = lloyd_pass.nearest(rows, points)[1]
    weights = rows.weights
    counts = np.flatnonzero((keys > 0) & (weights > 0))
    keys = keys[counts]
    if state.seed is not None:
        stream = _KMEANS_STREAM + 2 * state.turn
        # exponential waiting times of rate w·d²: the smallest are a weighted draw without replacement,
        # however rows are cut into blocks (Efraimidis & Spirakis 2006)
        waits = -np.log(row_uniforms(state.seed, stream, block.start, block.stop)[counts])
        keys = -waits / (keys * weights[counts])  # the smallest waits are the largest keys
    best = np.lexsort((counts, -keys))[: state.size]
    chosen = counts[best]
    features = np.empty((len(chosen), points.feature_map.n_components))

    def gather(first: int, tile: FloatArray) -> None:
        features[first : first + len(tile)] = tile

    lloyd_pass.visit_tiles(rows, points.feature_map, gather, chosen=chosen)
    features *= lloyd_pass.factors_of(points.feature_map)
    return ChosenRows(state.size, keys[best], block.start + chosen, features)


def weigh_points(rows: blocks.Rows, points: lloyd_pass.Centres) -> lloyd_pass.ClusterSums:
    """Sum the weights of the rows nearest to each point in a block; features are not summed.

    Raises DataError if a value is not finite or a weight negative.
    """
    n_samples, n_points = rows.block.n_samples, points.values.shape[1]
    labels, _ = lloyd_pass.nearest(rows, points)
    totals = np.zeros((1, n_points), np.int64)
    np.add.at(totals[0], labels, points.grid.counts_of(rows.sample_weight, n_samples))
    return lloyd_pass.ClusterSums(n_samples, np.zeros((1, n_points, 0), np.int64), totals, 0)


# -- starts, from candidates in memory -------------------------------------------------------------


@frozen(eq=False)
class _Shifted:
    """Points in memory minus their mean, for squared distances between them.

    `points`: float64 array of shape (n_points, n_components).
    `norms`: float64 array of shape (n_points,). Squared norms.
    `nothing`: squared distances up to this count as 0.
    """

    points: FloatArray
    norms: FloatArray
    nothing: float

    @classmethod
    def of(cls, points: FloatArray, weights: FloatArray) -> Self:
        # distances by ‖a‖² − 2a'b + ‖b‖² lose fewer digits the smaller the norms are
        shifted = points - np.average(points, axis=0, weights=weights)
        norms = np.einsum("ij,ij->i", shifted, shifted)
        return cls(shifted, norms, lloyd_pass.EQUAL * float(norms.max()))

    def to(self, chosen: IndexArray) -> FloatArray:
        """Return squared distances between the chosen points and all points, shape (n_chosen, n_points)."""
        products = self.points[chosen] @ self.points.T
        distances: FloatArray = self.norms - 2.0 * products + self.norms[chosen, np.newaxis]
        distances[distances <= self.nothing] = 0.0
        return distances

    def two_nearest(self, which: IndexArray, chosen: IndexArray) -> tuple[IndexArray, FloatArray]:
        """Find the nearest and the second nearest chosen point to each point of `which`.

        Returns their positions in `chosen` and squared distances, each of shape (2, len(which)).
        """
        labels, near = np.empty((2, len(which)), np.intp), np.empty((2, len(which)))
        for first in range(0, len(which), _COMPARED_ROWS):
            here = slice(first, first + _COMPARED_ROWS)
            some = which[here]
            distances = self.norms[some, np.newaxis] - 2.0 * (self.points[some] @ self.points[chosen].T)
            distances += self.norms[chosen]
            distances[distances <= self.nothing] = 0.0
            for i in range(2):
                labels[i, here] = distances.argmin(axis=1)
                near[i, here] = np.take_along_axis(distances, labels[i, here, np.newaxis], 1)[:, 0]
                np.put_along_axis(distances, labels[i, here, np.newaxis], np.inf, 1)
        return labels, near


def choose_centres(points: FloatArray, weights: FloatArray, n_clusters: int, *, seed: int) -> IndexArray:
    """Choose centres among weighted points by greedy k-means++; fewer if there are fewer distinct points.

    For each centre 2 + log(n_clusters) points are drawn with probabilities proportional to w·d², where d is
    the distance to the nearest centre so far, and the best is kept.
    O(n_points · n_clusters · log(n_clusters) · D).

    `points`: float64 array of shape (n_points, n_components).
    `weights`: float64 array of shape (n_points,). Above 0.

    Arthur & Vassilvitskii (2007), Sec. 2.2 and its closing remark on greedy choices.
    """
    stream = _KMEANS_STREAM + 1
    with machine.using_threads(1):
        to = _Shifted.of(points, weights).to
        return exact.choose_greedily(to, weights, n_clusters, seed=seed, stream=stream, distinct=True)


def exchange_centres(
    points: FloatArray, weights: FloatArray, chosen: IndexArray, *, n_steps: int, seed: int
) -> IndexArray:
    """Improve centres among weighted points by local search: each step tries to replace a centre by a point.

    The point is drawn as in k-means++. It replaces the centre for which the sum of w·d² falls most, the first
    of equals, if it falls for any. So one of two centres in the same cluster can move to where two clusters
    share a centre, which Lloyd steps cannot do. O(n_points · D) a step.

    `points`: float64 array of shape (n_points, n_components).
    `weights`: float64 array of shape (n_points,). Above 0.
    `chosen`: int array of shape (n_clusters,). The points that are centres, all different.

    Lattanzi & Sohler (2019), A better k-means++ algorithm via local search, Alg. 2.
    """
    if len(chosen) < 2:
        return chosen
    chosen = chosen.copy()
    uniforms = counter_uniforms(seed, _KMEANS_STREAM + 3, n_steps, 1)[:, 0]
    with machine.using_threads(1):
        rows = _Shifted.of(points, weights)
        labels, near = rows.two_nearest(np.arange(len(points)), chosen)
        for uniform in uniforms:
            potential = weights * near[0]
            if not potential.any():
                break
            tried = int(pick(potential, uniform))
            distances = rows.to(np.array([tried]))[0]
            kept = np.minimum(distances, near[0])
            # if a centre goes, its own points fall back on the second nearest or on the tried one (Lattanzi &
            # Sohler 2019)
            without = weights * (np.minimum(distances, near[1]) - kept)
            costs = float(weights @ kept) + np.bincount(labels[0], without, minlength=len(chosen))
            place = int(costs.argmin())
            if not costs[place] < (1.0 - _GAIN) * float(potential.sum()):
                continue
            chosen[place] = tried
            # only points whose nearest or second nearest centre may have changed
            stale = np.flatnonzero((labels == place).any(axis=0) | (distances < near[1]))
            labels[:, stale], near[:, stale] = rows.two_nearest(stale, chosen)
    return chosen


def improve_centres(
    points: FloatArray, weights: FloatArray, centres: FloatArray, *, max_iter: int = 20
) -> FloatArray:
    """`sklearn.cluster.KMeans(init=centres, tol=0, max_iter=max_iter).fit(points, sample_weight=weights)`.

    Unlike there, a centre without points stays where it is. Returns the centres.

    `points`: float64 array of shape (n_points, n_components).
    `weights`: float64 array of shape (n_points,).
    `centres`: float64 array of shape (n_clusters, n_components).
    """
    labels = np.full(len(points), -1)
    with machine.using_threads(1):
        for _ in range(max_iter):
            former, labels = labels, scores_of(points, centres).argmin(axis=1)
            if np.array_equal(former, labels):
                break
            sums = lloyd_pass.members_of(labels[np.newaxis], len(centres)) @ (points * weights[:, np.newaxis])
            totals = np.bincount(labels, weights=weights, minlength=len(centres))
            filled = totals > 0
            centres = centres.copy()
            centres[filled] = sums[filled] / totals[filled, np.newaxis]
    return centres


def weighted_inertia(points: FloatArray, weights: FloatArray, centres: FloatArray) -> float:
    """`-sklearn.cluster.KMeans.score(points, sample_weight=weights)` with these centres: Σ w·‖z − c‖²."""
    with machine.using_threads(1):
        least = scores_of(points, centres).min(axis=1)
    apart = points - centres.mean(axis=0)
    return float(weights @ (least + np.einsum("ij,ij->i", apart, apart)))


def scores_of(points: FloatArray, centres: FloatArray) -> FloatArray:
    """Return ‖z − c‖² − ‖z − m‖², where m is the mean of the centres, shape (n_points, n_clusters)."""
    middle = centres.mean(axis=0)
    apart = centres - middle
    return np.asarray(np.square(apart).sum(axis=1) - 2.0 * ((points - middle) @ apart.T))
