"""Clusters on disk, as JSON and checksummed arrays: what new rows are labelled with later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rff_dist.errors import IntegrityError, StorageError
from rff_dist.kmeans.cluster_sums import ClusterGrid
from rff_dist.kmeans.starts import Clusters
from rff_dist.ridge.model import KIND as RIDGE
from rff_dist.ridge.model import RidgeModel, describe_environment, model_from, read_features, record_features
from rff_dist.storage.records import Record, read_record, write_record
from rff_dist.text import redact

KIND = "k-means model"


def write_clusters(
    clusters: Clusters,
    url: str | os.PathLike[str],
    *,
    facts: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Store clusters; a reader sees the old ones or the new ones.

    Parameters
    ----------
    facts : mapping, optional
        JSON values that are kept on the card too, such as what the number of clusters was chosen from.
    overwrite : bool
        Whether a model that is there may be replaced.

    Raises
    ------
    OutputExistsError
        If there is something at `url` and `overwrite` is False.
    StorageError
        If it cannot be written.
    """
    features, arrays = record_features(clusters.feature_map)
    card = {
        "environment": describe_environment(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **clusters.facts,
        **(facts or {}),
    }
    metadata = {
        "n_clusters": clusters.n_clusters,
        "inertia": clusters.inertia,
        "inertias": list(clusters.inertias),
        "start_inertias": list(clusters.start_inertias),
        "n_iter": clusters.n_iter,
        "converged": clusters.converged,
        "grid": asdict(clusters.grid),
        "feature_map": features,
        "card": card,
        "digest": digest_of(clusters),
    }
    arrays = {"centres": clusters.centres, "cluster_weights": clusters.weights, **arrays}
    write_record(url, kind=KIND, metadata=metadata, arrays=arrays, overwrite=overwrite)


def read_clusters(url: str | os.PathLike[str]) -> Clusters:
    """Read clusters that `write_clusters` stored; their facts are the card's.

    Raises
    ------
    StorageError
        If there are no clusters, or they are damaged (IntegrityError), unsafe (UnsafeModelError) or too new
        (VersionError).
    """
    return _clusters_from(read_record(url, kind=KIND), url)


def read_any(url: str | os.PathLike[str]) -> RidgeModel | Clusters:
    """Read a model of either kind.

    Raises
    ------
    StorageError
        As `read_clusters`.
    """
    record = read_record(url)
    if record.kind not in READERS:
        expected = " or ".join(f"a {kind!r}" for kind in READERS)
        raise StorageError(f"{redact(str(url))} holds a {record.kind!r}; expected {expected}")
    return READERS[record.kind](record, url)


def digest_of(clusters: Clusters) -> str:
    """Return the SHA-256 of all that labels depend on."""
    hasher = hashlib.sha256(clusters.feature_map.digest().encode())
    hasher.update(np.ascontiguousarray(clusters.centres).astype("<f8", copy=False).tobytes())
    return hasher.hexdigest()


def _clusters_from(record: Record, url: str | os.PathLike[str]) -> Clusters:
    arrays, values = record.arrays, record.metadata
    try:
        grid = values["grid"]
        return Clusters(
            read_features(values["feature_map"], arrays),
            arrays["centres"],
            arrays["cluster_weights"],
            values["inertia"],
            tuple(values["inertias"]),
            tuple(values["start_inertias"]),
            values["n_iter"],
            values["converged"],
            ClusterGrid(
                grid["fraction_bits"],
                grid["weight_exponent"],
                tuple((int(count), float(value)) for count, value in grid["exponents"]),
            ),
            values["card"],
        )
    except KeyError as error:
        raise IntegrityError(f"the clusters at {redact(str(url))} lack {error}; store them again") from error


#: What reads each kind of stored model.
READERS: dict[str, Callable[[Record, str | os.PathLike[str]], RidgeModel | Clusters]] = {
    RIDGE: model_from,
    KIND: _clusters_from,
}
