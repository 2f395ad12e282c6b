"""Read and write stored models of any kind: ridge models, and clusters.

A URL goes in, a model comes out; the record says which kind it is. Clusters are stored
here, as JSON and checksummed arrays; ridge models by `rff_dist.ridge.models`.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from rff_dist.errors import IntegrityError, StorageError
from rff_dist.fields import values_of
from rff_dist.kmeans import lloyd_pass, starts
from rff_dist.ridge import models
from rff_dist.storage import records
from rff_dist.text import redact
from rff_dist.typing import PathLike, Summary

KIND = "k-means model"
_RESULTS = ("inertia", "inertias", "start_inertias", "n_iter", "converged")

type AnyModel = models.RidgeModel | starts.Clusters


def write_clusters(
    clusters: starts.Clusters, url: PathLike, *, overwrite: bool = False
) -> None:
    """Store clusters; a reader sees either the old ones or the new ones."""
    features, arrays = models.record_features(clusters.feature_map)
    card = {
        "environment": models.describe_environment(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **clusters.card,
    }
    metadata = {
        **values_of(clusters, "n_clusters", *_RESULTS),
        "grid": asdict(clusters.grid),
        "feature_map": features,
        "card": card,
        "digest": clusters.digest(),
    }
    arrays = {
        "centres": clusters.centres,
        "cluster_weights": clusters.weights,
        **arrays,
    }
    records.write_record(
        url, kind=KIND, metadata=metadata, arrays=arrays, overwrite=overwrite
    )


def read_any(url: PathLike) -> AnyModel:
    """Read a model of any kind; raises StorageError as `records.read_record`."""
    record = records.read_record(url)
    if record.kind == models.KIND:
        return models.model_from(record, url)
    if record.kind == KIND:
        return _clusters_from(record, url)
    raise StorageError(
        f"{redact(str(url))} holds a {record.kind!r}; expected a {models.KIND!r} or a"
        f" {KIND!r}"
    )


def write_any(model: AnyModel, url: PathLike, *, overwrite: bool = False) -> None:
    """Store a model of any kind; a reader sees either the old one or the new one."""
    if isinstance(model, starts.Clusters):
        write_clusters(model, url, overwrite=overwrite)
    else:
        models.write_model(model, url, overwrite=overwrite)


def kind_of(model: AnyModel) -> str:
    """Return "regression", "classifier" or "clusters"."""
    if isinstance(model, starts.Clusters):
        return "clusters"
    return "classifier" if "classifier" in model.card else "regression"


def chosen_of(model: AnyModel) -> Summary:
    """Return what the lineage records about a model besides its features."""
    if isinstance(model, starts.Clusters):
        return {"n_clusters": model.n_clusters}
    return {"alpha": model.plain_alpha}


def _clusters_from(record: records.Record, url: PathLike) -> starts.Clusters:
    arrays = record.arrays
    values = record.metadata
    try:
        grid = values["grid"]
        exponents = tuple(
            (int(count), float(value)) for count, value in grid["exponents"]
        )
        results: dict[str, Any] = {name: values[name] for name in _RESULTS}
        # JSON has lists only
        for name in ("inertias", "start_inertias"):
            results[name] = tuple(results[name])
        return starts.Clusters(
            models.read_features(values["feature_map"], arrays),
            arrays["centres"],
            arrays["cluster_weights"],
            **results,
            grid=lloyd_pass.ClusterGrid(
                grid["fraction_bits"], grid["weight_exponent"], exponents
            ),
            card=values["card"],
        )
    except KeyError as error:
        raise IntegrityError(
            f"the clusters at {redact(str(url))} lack {error}; store them again"
        ) from error
