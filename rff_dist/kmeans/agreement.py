"""How well two labelings of the same rows agree, from exact counts of the rows with each pair of labels.

References
----------
Hubert & Arabie (1985), Comparing partitions, eq. 5: the adjusted Rand index; Vinh, Epps & Bailey (2010),
Information theoretic measures for clusterings comparison, table 2: normalised mutual information.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import DataError
from rff_dist.typing import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Contingency:
    """Counts of rows by known label and by cluster; `+` joins two sets of rows and does not round.

    `labels`: array of shape (n_labels,). The distinct known labels, sorted.
    `counts`: int64 array of shape (n_labels, n_clusters). Number of rows of each label in each cluster.
    """

    labels: NDArray[Any]
    counts: IntArray

    def __add__(self, other: Contingency) -> Contingency:
        if self.counts.shape[1] != other.counts.shape[1]:
            raise DataError(
                f"cannot add counts of {self.counts.shape[1]} and {other.counts.shape[1]} clusters; "
                "count rows of one clustering"
            )
        labels = np.unique(np.concatenate([self.labels, other.labels]))
        counts = np.zeros((len(labels), self.counts.shape[1]), np.int64)
        for part in (self, other):
            counts[np.searchsorted(labels, part.labels)] += part.counts
        return Contingency(labels, counts)

    @property
    def n_samples(self) -> int:
        return int(self.counts.sum())

    @property
    def adjusted_rand_index(self) -> float:
        """Share of pairs of rows on which both agree, corrected for chance.

        1 for the same partition, 0 for agreement by chance. Two labelings with one cluster each are the same
        partition, and so are two with one row in each cluster.
        """
        both, rows, columns = (
            sum(n * (n - 1) // 2 for n in part.ravel().tolist())
            for part in (self.counts, self.counts.sum(axis=1), self.counts.sum(axis=0))
        )
        pairs = self.n_samples * (self.n_samples - 1) // 2
        # numerator and denominator times 2 · pairs are whole, and Python's integers do not overflow
        above, below = 2 * (pairs * both - rows * columns), pairs * (rows + columns) - 2 * rows * columns
        return 1.0 if below == 0 else above / below

    @property
    def normalized_mutual_information(self) -> float:
        """Mutual information divided by the mean of both entropies: 1 for the same partition.

        1 if both labelings have one cluster only, 0 if just one of them has.
        """
        shares = self.counts / max(1, self.n_samples)
        rows, columns = shares.sum(axis=1), shares.sum(axis=0)
        mean_entropy = (_entropy(rows) + _entropy(columns)) / 2
        if mean_entropy == 0:
            return 1.0
        filled = shares > 0
        ratios = shares[filled] / np.outer(rows, columns)[filled]
        return float(np.clip(shares[filled] @ np.log(ratios) / mean_entropy, 0.0, 1.0))


def count_agreement(labels: NDArray[Any], clusters: NDArray[Any], n_clusters: int) -> Contingency:
    """Count the rows of each known label in each cluster.

    `labels`: array of shape (n_samples,). Known labels, of any type that can be sorted.
    `clusters`: int array of shape (n_samples,). In [0, n_clusters).
    """
    found, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(codes * n_clusters + clusters, minlength=len(found) * n_clusters)
    return Contingency(found, counts.reshape(len(found), n_clusters).astype(np.int64))


def _entropy(shares: FloatArray) -> float:
    filled = shares[shares > 0]
    return float(-(filled @ np.log(filled)))
