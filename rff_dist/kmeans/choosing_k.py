"""How many clusters: compares several numbers on one dataset, and takes the best by a stated rule.

All numbers share the same passes, from those that draw candidates to the Lloyd passes. They are judged on
seeded samples, in the features, where every sampled row counts the same.

References
----------
Rousseeuw (1987), Silhouettes; Tibshirani, Walther & Hastie (2001), Estimating the number of clusters in a
data set via the gap statistic; Ben-Hur, Elisseeff & Guyon (2002) and von Luxburg (2010), on stability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_name
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.samples import sample_inputs
from rff_dist.errors import InvalidParameterError, PlanError
from rff_dist.features.feature_map import FeatureMap
from rff_dist.frequencies.counter import derived_seed, philox
from rff_dist.kmeans.agreement import count_agreement
from rff_dist.kmeans.candidates import choose_centres, improve_centres, scores_of
from rff_dist.kmeans.lloyd_pass import label_rows
from rff_dist.kmeans.starts import Clusters
from rff_dist.numerics.machine import available_memory
from rff_dist.numerics.threads import using_threads
from rff_dist.ridge.plan import PROCESS_BYTES
from rff_dist.text import human_bytes
from rff_dist.typing import AnyIntArray, FloatArray

CRITERIA = ("silhouette", "gap", "stability")
SILHOUETTE_ROWS = 5_000  # fewer if their features would take more than _SAMPLE_BYTES
SAMPLE_ROWS = 1_000  # for gap and stability, which cluster the sample many times
N_REFERENCES, N_RESAMPLINGS = 10, 10
_SAMPLE_BYTES = 2**28
_PANEL_ROWS = 512
_MAX_ITER = 50


@dataclass(frozen=True, slots=True, eq=False)
class JudgedNumber:
    """Clusters, and how well they and their number describe samples of the rows.

    `silhouette`: mean of (b - a) / max(a, b) over a sample. a is the mean distance of a row to the others of
      its cluster, b the mean distance to the nearest other cluster, in features. NaN if the sample is in one
      cluster.
    `gap`, `gap_error`: E log W of uniform rows in the box of the inputs, minus log W of the sample; and the
      standard error of E log W. W is the inertia.
    `stability`: mean adjusted Rand index between the labelings of one sample by pairs of bootstrap samples.
    """

    clusters: Clusters
    silhouette: float
    gap: float
    gap_error: float
    stability: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; None for NaN and infinity."""
        figures = {name: getattr(self, name) for name in ("silhouette", "gap", "gap_error", "stability")}
        return {
            "n_clusters": self.clusters.n_clusters,
            "inertia": self.clusters.inertia,
            **{name: float(value) if math.isfinite(value) else None for name, value in figures.items()},
            "n_iter": self.clusters.n_iter,
            "converged": self.clusters.converged,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Candidates by ascending number of clusters, and which one the criterion takes.

    `n_sampled`: number of rows over which silhouettes are averaged.
    """

    candidates: tuple[JudgedNumber, ...]
    criterion: str
    best_index: int
    n_sampled: int

    @property
    def best(self) -> Clusters:
        return self.candidates[self.best_index].clusters

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [candidate.to_dict() for candidate in self.candidates]


def check_numbers(n_clusters: Sequence[int], criterion: str) -> list[int]:
    """Return the numbers of clusters in ascending order.

    Raises InvalidParameterError if there are none, one is below 1 or repeated, or the criterion is unknown.
    """
    check_name(criterion, CRITERIA, "criterion")
    numbers = sorted(n_clusters)
    if not numbers or len(set(numbers)) < len(numbers) or numbers[0] < 1:
        raise InvalidParameterError(
            f"`n_clusters` is {list(n_clusters)}; expected different whole numbers of at least 1"
        )
    return numbers


def check_samples(dataset: Dataset, n_components: int) -> None:
    """Check that the samples on which numbers are judged fit in this process; raises PlanError otherwise."""
    n_rows = min(_silhouette_rows(n_components), dataset.n_samples)
    # features, centred features and panels; then features of the references
    needed = PROCESS_BYTES + 8 * (3 * n_rows + 4 * SAMPLE_ROWS) * n_components
    needed += 8 * n_rows * (dataset.n_features + _PANEL_ROWS)
    if needed > (limit := available_memory()):
        raise PlanError(
            f"the samples on which numbers of clusters are judged need {human_bytes(needed)} "
            f"(n_components={n_components:_}) but this process has {human_bytes(limit)}; ask for fewer "
            "components, or for one number of clusters"
        )


def _silhouette_rows(n_components: int) -> int:
    return max(2, min(SILHOUETTE_ROWS, _SAMPLE_BYTES // (8 * n_components)))


def compare(dataset: Dataset, found: Sequence[Clusters], *, criterion: str, seed: int) -> Comparison:
    """Judge clusterings of a dataset in the same features, ordered by number of clusters; see `choose`."""
    feature_map, numbers = found[0].feature_map, [clusters.n_clusters for clusters in found]
    X = sample_inputs(dataset, seed, n_rows=_silhouette_rows(feature_map.n_components))
    Z = feature_map.transform(X, dtype=np.float64)
    rows = Rows(Block(0, 0, len(X)), X)
    labelings = [label_rows(rows, clusters.state) for clusters in found]
    few = np.sort(_random(seed, 0).choice(len(X), min(SAMPLE_ROWS, len(X)), replace=False))
    gaps, errors = gap_statistics(X[few], feature_map, numbers, seed=seed)
    silhouettes, stable = mean_silhouettes(Z, labelings), stabilities(Z[few], numbers, seed=seed)
    judged = zip(found, silhouettes, gaps, errors, stable, strict=True)
    candidates = tuple(JudgedNumber(*one) for one in judged)
    return Comparison(candidates, criterion, choose(candidates, criterion), len(X))


def choose(candidates: Sequence[JudgedNumber], criterion: str) -> int:
    """Return the index of the best candidate, of candidates ordered by number of clusters.

    "gap": the first number whose gap is at least the next one's less its error. "silhouette": the largest
    value, the first of equals. "stability": the largest value, the last of equals.
    """
    if criterion == "gap":
        for i, (one, following) in enumerate(pairwise(candidates)):
            if one.gap >= following.gap - following.gap_error:
                return i
        return len(candidates) - 1
    values = np.nan_to_num([getattr(one, criterion) for one in candidates], nan=-np.inf)
    if criterion == "stability":
        return len(values) - 1 - int(np.argmax(values[::-1]))
    return int(np.argmax(values))


# -- on samples ------------------------------------------------------------------------------------


def mean_silhouettes(points: FloatArray, labelings: Sequence[AnyIntArray]) -> FloatArray:
    """Return the mean silhouette of each labeling of the same points, O(n_points² · n_components) for all.

    A row alone in its cluster counts as 0; a labeling with one cluster gives NaN.

    `points`: float64 array of shape (n_points, n_components).
    `labelings`: sequence of int array of shape (n_points,).
    """
    points = points - points.mean(axis=0)  # smaller norms: less cancels in the distances
    norms = np.einsum("ij,ij->i", points, points)
    members = [(labels[:, np.newaxis] == np.unique(labels)).astype(np.float64) for labels in labelings]
    ends = np.cumsum([0, *(member.shape[1] for member in members)])
    together, silhouettes = np.hstack(members), np.zeros((len(labelings), len(points)))
    with using_threads(1):
        for first in range(0, len(points), _PANEL_ROWS):
            here = np.arange(first, min(first + _PANEL_ROWS, len(points)))
            distances = norms[here, np.newaxis] + norms - 2.0 * (points[here] @ points.T)
            distances[here - first, here] = 0.0
            sums = np.sqrt(np.maximum(distances, 0.0)) @ together
            for i, member in enumerate(members):
                silhouettes[i, here] = _silhouettes(
                    sums[:, ends[i] : ends[i + 1]], member[here] > 0, member.sum(axis=0)
                )
    return np.where([member.shape[1] > 1 for member in members], silhouettes.mean(axis=1), np.nan)


def _silhouettes(sums: FloatArray, own: NDArray[np.bool_], sizes: FloatArray) -> FloatArray:
    """Return silhouettes of rows, from the sums of their distances to the rows of each cluster."""
    own_size = own @ sizes
    inside = sums[own] / np.maximum(own_size - 1, 1)
    outside = np.where(own, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(inside, outside)
    usable = (own_size > 1) & (largest > 0) & np.isfinite(outside)
    return np.where(usable, np.divide(outside - inside, largest, where=usable, out=np.zeros(len(sums))), 0.0)


def gap_statistics(
    X: NDArray[Any], feature_map: FeatureMap, n_clusters: Sequence[int], *, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Return the gap statistic of each number of clusters, and its standard error.

    `X`: array of shape (n_samples, n_features). A sample.
    `feature_map`: W is measured in its features.

    Tibshirani, Walther & Hastie (2001), Sec. 3, with references from the box of the inputs (choice a).
    """
    low, high = X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)
    boxes = [low + (high - low) * _random(seed, 1 + i).random(X.shape) for i in range(N_REFERENCES)]
    with using_threads(1):
        here, *references = [
            _log_dispersions(feature_map.transform(rows, dtype=np.float64), n_clusters, seed)
            for rows in (X, *boxes)
        ]
    logs = np.array(references)
    with np.errstate(invalid="ignore"):  # with as many clusters as rows, W is 0 everywhere
        return logs.mean(axis=0) - here, logs.std(axis=0) * math.sqrt(1.0 + 1.0 / N_REFERENCES)


def _log_dispersions(points: FloatArray, n_clusters: Sequence[int], seed: int) -> FloatArray:
    """Return log W of points in memory for each number of clusters; -inf where W is 0."""
    ones, left = np.ones(len(points)), []
    for number in n_clusters:
        centres, labels = _cluster(points, ones, points, number, seed=seed)
        left.append(np.square(points - centres[labels]).sum())
    with np.errstate(divide="ignore"):
        return np.log(left)


def stabilities(points: FloatArray, n_clusters: Sequence[int], *, seed: int) -> FloatArray:
    """Return the stability of each number of clusters under resampling.

    Bootstrap samples of the points are clustered, and each clustering labels all points by their nearest
    centres. The adjusted Rand index is averaged over the pairs of labelings.

    `points`: float64 array of shape (n_points, n_components).
    """
    found = []
    for number in n_clusters:
        with using_threads(1):
            labelings = [_label_by_resampling(points, number, seed, i) for i in range(N_RESAMPLINGS)]
        pairs = combinations(labelings, 2)
        found.append(np.mean([count_agreement(*pair, number).adjusted_rand_index for pair in pairs]))
    return np.array(found)


def _label_by_resampling(points: FloatArray, n_clusters: int, seed: int, index: int) -> AnyIntArray:
    """Cluster a bootstrap sample of points, and return the nearest centre of every point."""
    drawn = _random(seed, 1 + N_REFERENCES + index).integers(len(points), size=len(points))
    weights = np.bincount(drawn, minlength=len(points)).astype(np.float64)
    some = weights > 0
    return _cluster(points[some], weights[some], points, n_clusters, seed=derived_seed(seed, index))[1]


def _cluster(
    points: FloatArray, weights: FloatArray, others: FloatArray, n_clusters: int, *, seed: int
) -> tuple[FloatArray, AnyIntArray]:
    """Cluster points in memory; return the centres, and the nearest centre of each row of `others`."""
    chosen = choose_centres(points, weights, n_clusters, seed=seed)
    centres = improve_centres(points, weights, points[chosen], max_iter=_MAX_ITER)
    return centres, scores_of(others, centres).argmin(axis=1)


def _random(seed: int, stream: int) -> np.random.Generator:
    return np.random.Generator(philox(seed, 2**36 + stream))
