"""How many clusters: compares several numbers on one dataset, and takes that of the largest silhouette.

All numbers share the same passes, from those that draw candidates to the Lloyd passes. They are judged on a
seeded sample, in the features, where every sampled row counts the same.

References
----------
Rousseeuw (1987), Silhouettes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.samples import sample_inputs
from rff_dist.errors import InvalidParameterError, PlanError
from rff_dist.kmeans.lloyd_pass import label_rows
from rff_dist.kmeans.starts import Clusters
from rff_dist.numerics.machine import available_memory
from rff_dist.numerics.threads import using_threads
from rff_dist.ridge.plan import PROCESS_BYTES
from rff_dist.text import human_bytes
from rff_dist.typing import AnyIntArray, FloatArray

SILHOUETTE_ROWS = 5_000  # fewer if their features would take more than _SAMPLE_BYTES
_SAMPLE_BYTES = 2**28
_PANEL_ROWS = 512


@dataclass(frozen=True, slots=True, eq=False)
class JudgedNumber:
    """Clusters, and how well they describe a sample of the rows.

    `silhouette`: mean of (b - a) / max(a, b) over a sample. a is the mean distance of a row to the others of
      its cluster, b the mean distance to the nearest other cluster, in features. NaN if the sample is in one
      cluster.
    """

    clusters: Clusters
    silhouette: float

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; None for NaN and infinity."""
        return {
            "n_clusters": self.clusters.n_clusters,
            "inertia": self.clusters.inertia,
            "silhouette": float(self.silhouette) if math.isfinite(self.silhouette) else None,
            "n_iter": self.clusters.n_iter,
            "converged": self.clusters.converged,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Candidates by ascending number of clusters. The best has the largest silhouette, the first of equals.

    `n_sampled`: number of rows over which silhouettes are averaged.
    """

    candidates: tuple[JudgedNumber, ...]
    n_sampled: int

    @property
    def best(self) -> Clusters:
        silhouettes = np.nan_to_num([one.silhouette for one in self.candidates], nan=-np.inf)
        return self.candidates[int(np.argmax(silhouettes))].clusters

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [candidate.to_dict() for candidate in self.candidates]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values, for a model's card."""
        return {"candidates": self.rows, "n_sampled": self.n_sampled}


def check_numbers(n_clusters: Sequence[int]) -> list[int]:
    """Return the numbers of clusters in ascending order.

    Raises InvalidParameterError if there are none, or one is below 1 or repeated.
    """
    numbers = sorted(n_clusters)
    if not numbers or len(set(numbers)) < len(numbers) or numbers[0] < 1:
        raise InvalidParameterError(
            f"`n_clusters` is {list(n_clusters)}; expected different whole numbers of at least 1"
        )
    return numbers


def check_samples(dataset: Dataset, n_components: int) -> None:
    """Check that the samples on which numbers are judged fit in this process; raises PlanError otherwise."""
    n_rows = min(_silhouette_rows(n_components), dataset.n_samples)
    needed = PROCESS_BYTES + 8 * 3 * n_rows * n_components  # features, and centred ones; panels
    needed += 8 * n_rows * (dataset.n_features + _PANEL_ROWS)
    if needed > (limit := available_memory()):
        raise PlanError(
            f"the samples on which numbers of clusters are judged need {human_bytes(needed)} "
            f"(n_components={n_components:_}) but this process has {human_bytes(limit)}; ask for fewer "
            "components, or for one number of clusters"
        )


def _silhouette_rows(n_components: int) -> int:
    return max(2, min(SILHOUETTE_ROWS, _SAMPLE_BYTES // (8 * n_components)))


def compare(dataset: Dataset, found: Sequence[Clusters], *, seed: int) -> Comparison:
    """Judge clusterings of a dataset in the same features, ordered by number of clusters."""
    feature_map = found[0].feature_map
    X = sample_inputs(dataset, seed, n_rows=_silhouette_rows(feature_map.n_components))
    rows = Rows(Block(0, 0, len(X)), X)
    labelings = [label_rows(rows, clusters.state) for clusters in found]
    silhouettes = mean_silhouettes(feature_map.transform(X, dtype=np.float64), labelings)
    return Comparison(tuple(map(JudgedNumber, found, silhouettes)), len(X))


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
