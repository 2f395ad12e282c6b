"""Labels, distances and inertia of a dataset's rows for clusters found before."""

from __future__ import annotations

from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Dataset, Rows
from rff_dist.data.columns import Column
from rff_dist.data.labelled import GroupedDataset
from rff_dist.engines.protocol import Engine
from rff_dist.kmeans.agreement import Contingency, count_agreement
from rff_dist.kmeans.cluster_sums import Centres
from rff_dist.kmeans.lloyd_pass import centre_distances, label_rows
from rff_dist.kmeans.starts import Clusters, measure
from rff_dist.ridge.predict import check_dataset, rows_in_memory, write_output
from rff_dist.statistics import inspection
from rff_dist.storage.outputs import Output
from rff_dist.typing import PathLike


def label_in_memory(dataset: Dataset, clusters: Clusters, *, engine: Engine) -> NDArray[np.int32]:
    """Return each row's cluster, shape (n_samples,); ties go to the lowest index.

    Raises DataError if the dataset does not fit the clusters, or values are not finite.
    """
    check_dataset(dataset, clusters)
    return rows_in_memory(dataset, label_rows, clusters.state, engine=engine, label="label")


def inertia_of(dataset: Dataset, clusters: Clusters, *, engine: Engine) -> float:
    """Return Σ w·‖z − c‖² over a dataset's rows and their nearest centres, in one pass.

    Raises DataError as `label_in_memory`, and if a weight is negative.
    """
    check_dataset(dataset, clusters)
    moments = inspection.inspect(dataset, engine=engine) if dataset.weighted else None
    job = measure(dataset, clusters.feature_map, moments, engine=engine)
    state = job.centres(clusters.centres[np.newaxis])
    return float(job.sums(state, label="score").inertias(state, job.sum_of_squared_norms)[0])


def evaluate(dataset: Dataset, labels: Column, clusters: Clusters, *, engine: Engine) -> Contingency:
    """Count the rows of each known label in each cluster, in one pass; weights are ignored.

    `labels`: the known label of each row.
    Raises DataError if the dataset does not fit the clusters, there is not one label for each row, or values
      are not finite.
    """
    check_dataset(dataset, clusters)
    rows = GroupedDataset(dataset.without_targets(), labels)  # known labels travel with rows as groups
    return inspection.sum_rows(rows, _count_rows, clusters.state, engine=engine, label="evaluate")


def _count_rows(rows: Rows, state: Centres) -> Contingency:
    assert rows.groups is not None  # a `GroupedDataset` gave them
    return count_agreement(rows.groups, label_rows(rows, state), state.values.shape[1])


def write_labels(
    dataset: Dataset,
    clusters: Clusters,
    url: PathLike,
    *,
    engine: Engine,
    distances: bool = False,
    overwrite: bool = False,
) -> int:
    """Write each row's cluster to a new Zarr group, as the int32 array `labels`.

    With `distances`, the float64 array `distances` of shape (n_samples, n_clusters) holds the distances to
    all centres. The pass is idempotent, and the output appears at `url` when it is complete.

    Returns `n_samples`: rows written.
    Raises DataError if the dataset does not fit the clusters, or values are not finite; StorageError if the
      output exists and `overwrite` is False, or cannot be written.
    """
    with stage_labels(
        dataset, clusters, url, engine=engine, distances=distances, overwrite=overwrite
    ) as staged:
        staged.publish()
    return staged.n_samples


class StagedLabels:
    """Labels that have been written but appear only when published; leaving the context discards the others.

    `n_samples`: rows written.
    """

    def __init__(self, output: Output, attributes: dict[str, Any]) -> None:
        self.n_samples, self._attributes = output.n_samples, attributes
        self._output: Output | None = output

    def publish(self) -> None:
        """Make the labels appear at their URL; raises StorageError if that fails."""
        if self._output is not None:
            self._output.finish(self._attributes)
            self._output = None

    def discard(self) -> None:
        """Delete the labels if they were not published."""
        if self._output is not None:
            self._output.discard()
            self._output = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()


def stage_labels(
    dataset: Dataset,
    clusters: Clusters,
    url: PathLike,
    *,
    engine: Engine,
    distances: bool = False,
    overwrite: bool = False,
) -> StagedLabels:
    """Write labels as `write_labels` does, but do not publish them yet.

    The model that they belong to, say, can be stored before: a reader then finds both or neither.
    """
    check_dataset(dataset, clusters)
    dataset = dataset.without_targets()
    fields: list[Any] = [("labels", np.int32)]
    if distances:
        fields.append(("distances", np.float64, (clusters.n_clusters,)))
    dtype = np.dtype(fields)
    output = write_output(
        dataset,
        partial(_labelled_rows, dtype=dtype),
        clusters.state,
        url,
        engine=engine,
        label="label",
        attributes=None,
        dtype=dtype,
        overwrite=overwrite,
    )
    attributes = {"feature_map_digest": clusters.feature_map.digest(), "n_clusters": clusters.n_clusters}
    return StagedLabels(output, attributes)


def _labelled_rows(rows: Rows, state: Centres, *, dtype: np.dtype[Any]) -> NDArray[Any]:
    labelled = np.empty(rows.block.n_samples, dtype)
    labelled["labels"] = label_rows(rows, state)
    if "distances" in (dtype.names or ()):
        labelled["distances"] = centre_distances(rows, state)
    return labelled
