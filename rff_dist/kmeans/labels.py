"""Labels, distances and inertia of a dataset's rows for clusters found before.

A dataset and clusters go in. A row's label is the number of its cluster. The argument
`label` of a pass is something else: the name under which progress shows it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data import samples
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.data.columns import Column
from rff_dist.data.labelled import GroupedDataset
from rff_dist.engines.protocol import Engine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.composed import PrincipalFeatureMap
from rff_dist.fitting import predicting
from rff_dist.kmeans import cluster_sums, lloyd_pass, starts
from rff_dist.recipes import model_rows
from rff_dist.statistics import inspection, row_passes
from rff_dist.storage import outputs
from rff_dist.typing import (
    AnyArray,
    AnyDType,
    FloatArray,
    IntArray,
    PathLike,
    Summary,
    frozen,
)


def label_in_memory(
    dataset: Dataset, clusters: starts.Clusters, *, engine: Engine
) -> NDArray[np.int32]:
    """Return each row's cluster, shape (n_samples,); ties go to the lowest index.

    Raises DataError if the dataset does not fit the clusters, or values are not finite.
    """
    dataset = model_rows.rows_for(dataset, clusters)
    return predicting.rows_in_memory(
        dataset, lloyd_pass.label_rows, clusters.state, engine=engine, label="label"
    )


def label_sample(
    dataset: Dataset, clusters: starts.Clusters, *, seed: int, n_rows: int
) -> tuple[AnyArray, NDArray[np.int32]]:
    """Return the inputs of up to `n_rows` sampled rows, and their clusters.

    Raises DataError as `label_in_memory`.
    """
    dataset = model_rows.rows_for(dataset, clusters)
    X = samples.sample_inputs(dataset.without_targets(), seed, n_rows=n_rows)
    rows = Rows(Block(0, 0, len(X)), X)
    return X, lloyd_pass.label_rows(rows, clusters.state)


def inertia_of(dataset: Dataset, clusters: starts.Clusters, *, engine: Engine) -> float:
    """Return Σ w·‖z − c‖² over a dataset's rows and their nearest centres, in one pass.

    Raises DataError as `label_in_memory`, and if a weight is negative.
    """
    dataset = model_rows.rows_for(dataset, clusters)
    moments = None
    if dataset.weighted:  # the grid of the sums depends on the largest weight
        moments = inspection.inspect(dataset, engine=engine)
    job = starts.clustering_job(dataset, clusters.feature_map, moments, engine=engine)
    state = job.centres(clusters.centres[np.newaxis])
    sums = job.sums(state, label="score")
    return float(sums.inertias(state, job.sum_of_squared_norms)[0])


def evaluate(
    dataset: Dataset, labels: Column, clusters: starts.Clusters, *, engine: Engine
) -> Contingency:
    """Count the rows of each known label in each cluster, in one pass without weights.

    Raises DataError if the dataset does not fit the clusters, there is not one label
    for each row, or values are not finite.
    """
    dataset = model_rows.rows_for(dataset, clusters)
    # a pass reads the known labels with the rows, as their groups
    rows = GroupedDataset(dataset.without_targets(), labels)
    return row_passes.sum_rows(
        rows, _count_rows, clusters.state, engine=engine, label="evaluate"
    )


def _count_rows(rows: Rows, state: cluster_sums.ClusterState) -> Contingency:
    assert rows.groups is not None  # a `GroupedDataset` gave them
    _, n_clusters, _ = state.centres.shape  # (n_starts, n_clusters, n_components)
    return count_agreement(rows.groups, lloyd_pass.label_rows(rows, state), n_clusters)


def write_labels(
    dataset: Dataset,
    clusters: starts.Clusters,
    url: PathLike,
    *,
    engine: Engine,
    distances: bool = False,
    principal: bool = False,
    overwrite: bool = False,
    publish: bool = True,
) -> outputs.StagedOutput:
    """Write each row's cluster to a new Zarr group, as the int32 array `labels`.

    With `distances`, the float64 array `distances` of shape (n_samples, n_clusters)
    holds the distances to all centres. With `principal`, the array `principal` holds
    the principal components that were clustered. The pass is idempotent, and the output
    appears at `url` when it is complete; without `publish` it stays hidden, so that the
    caller can store the model first and then publish both.

    Raises DataError if the dataset does not fit the clusters, or values are not finite;
    StorageError if the output exists and `overwrite` is False, or cannot be written;
    InvalidParameterError if `principal` is True and the clusters were not found in
    principal components.
    """
    if principal and not isinstance(clusters.feature_map, PrincipalFeatureMap):
        raise InvalidParameterError(
            "`principal` is wanted, but these clusters were not found in principal"
            " components; give `n_principal` when clustering, or leave it out"
        )
    dataset = model_rows.rows_for(dataset, clusters)
    dataset = dataset.without_targets()
    fields: list[Any] = [("labels", np.int32)]
    if distances:
        fields.append(("distances", np.float64, (clusters.n_clusters,)))
    if principal:
        fields.append(("principal", np.float64, (clusters.feature_map.n_components,)))
    dtype = np.dtype(fields)
    return predicting.write_output(
        dataset,
        partial(_labelled_rows, dtype=dtype),
        clusters.state,
        predicting.layout_of(
            dataset,
            dtype=dtype,
            meanings={i: f"cluster_{i}" for i in range(clusters.n_clusters)},
        ),
        url,
        engine=engine,
        label="label",
        attributes=attributes_of(clusters),
        overwrite=overwrite,
        publish=publish,
    )


def _labelled_rows(
    rows: Rows, state: cluster_sums.ClusterState, *, dtype: AnyDType
) -> AnyArray:
    labelled = np.empty(rows.block.n_samples, dtype)
    labelled["labels"] = lloyd_pass.label_rows(rows, state)
    if "distances" in (dtype.names or ()):
        labelled["distances"] = lloyd_pass.centre_distances(rows, state)
    if "principal" in (dtype.names or ()):
        labelled["principal"] = state.feature_map.transform(rows.X)
    return labelled


def attributes_of(clusters: starts.Clusters) -> Summary:
    """Return the attributes that are stored with labels, about their clusters."""
    return {
        "feature_map_digest": clusters.feature_map.digest(),
        "n_clusters": clusters.n_clusters,
    }


# -- agreement
# -------------------------------------------------------------------------------------
#
# References
# ----------
# Hubert & Arabie (1985), Comparing partitions, eq. 5: the adjusted Rand index; Vinh,
# Epps & Bailey (2010), Information theoretic measures for clusterings comparison, table
# 2: normalised mutual information.


@frozen(eq=False)
class Contingency:
    """Counts of rows by known label and by cluster; `+` joins sets of rows exactly."""

    #: Array of shape (n_labels,). The distinct known labels, sorted.
    labels: AnyArray
    #: Number of rows of each label in each cluster; shape (n_labels, n_clusters).
    counts: IntArray

    def __add__(self, other: Contingency) -> Contingency:
        if self.counts.shape[1] != other.counts.shape[1]:
            raise DataError(
                f"cannot add counts of {self.counts.shape[1]} and"
                f" {other.counts.shape[1]} clusters; count rows of one clustering"
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
        """`sklearn.metrics.adjusted_rand_score`: the share of pairs of rows on which
        labels and clusters agree, corrected for chance.

        1 for the same partition, 0 for agreement by chance. Two labelings with one
        cluster each are the same partition, and so are two with one row in each
        cluster.
        """
        # the number of pairs of rows that are together: in both, by their labels, by
        # their clusters
        both = _count_pairs(self.counts)
        rows = _count_pairs(self.counts.sum(axis=1))
        columns = _count_pairs(self.counts.sum(axis=0))
        pairs = _count_pairs(self.counts.sum())
        # numerator and denominator, both times 2 · pairs, which makes them whole
        above = 2 * (pairs * both - rows * columns)
        below = pairs * (rows + columns) - 2 * rows * columns
        return 1.0 if below == 0 else above / below

    @property
    def normalized_mutual_information(self) -> float:
        """`sklearn.metrics.normalized_mutual_info_score`: 1 for the same partition.

        Mutual information divided by the mean of both entropies.
        1 if both labelings have one cluster only, 0 if just one of them has.
        """
        shares = self.counts / max(1, self.n_samples)
        rows = shares.sum(axis=1)
        columns = shares.sum(axis=0)
        mean_entropy = (_entropy(rows) + _entropy(columns)) / 2
        if mean_entropy == 0:
            return 1.0
        filled = shares > 0
        ratios = shares[filled] / np.outer(rows, columns)[filled]
        return float(np.clip(shares[filled] @ np.log(ratios) / mean_entropy, 0.0, 1.0))


def count_agreement(
    labels: AnyArray, clusters: AnyArray, n_clusters: int
) -> Contingency:
    """Count rows by known label and cluster, also for clusters without rows.

    Like `sklearn.metrics.cluster.contingency_matrix`; labels may be of any type that
    can be sorted.
    """
    distinct, codes = np.unique(labels, return_inverse=True)
    counts = np.bincount(
        codes * n_clusters + clusters, minlength=len(distinct) * n_clusters
    )
    return Contingency(
        distinct, counts.reshape(len(distinct), n_clusters).astype(np.int64)
    )


def _count_pairs(counts: Any) -> int:
    """Return Σ n·(n − 1)/2 in Python's integers, which do not overflow."""
    return sum(n * (n - 1) // 2 for n in np.ravel(counts).tolist())


def _entropy(shares: FloatArray) -> float:
    filled = shares[shares > 0]
    return float(-(filled @ np.log(filled)))
