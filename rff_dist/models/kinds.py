"""Read and write stored models of any kind: ridge models, and clusters.

A URL goes in, a model comes out, or the other way round; the stored record says which
kind it is. Clusters are stored here, as JSON and checksummed arrays; ridge models by
`rff_dist.ridge.models`.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rff_dist.errors import StorageError
from rff_dist.fields import values_of
from rff_dist.ridge import models
from rff_dist.storage import records
from rff_dist.text import redact
from rff_dist.typing import PathLike, Summary

if TYPE_CHECKING:
    from rff_dist.kmeans import starts

KIND = "k-means model"
_RESULTS = ("inertia", "inertias", "start_inertias", "n_iter", "converged")

type AnyModel = models.RidgeModel | starts.Clusters


def read_any(url: PathLike) -> AnyModel:
    """Read a model of any kind; StorageError if there is none, or it is damaged."""
    record = records.read_record(url)
    if record.kind == models.KIND:
        return models.model_from(record, url)
    if record.kind == KIND:
        return _clusters_from(record)
    raise StorageError(
        f"{redact(str(url))} holds a {record.kind!r}; expected a {models.KIND!r} or a"
        f" {KIND!r}"
    )


def write_any(model: AnyModel, url: PathLike, *, overwrite: bool = False) -> None:
    """Store a model of any kind; a reader sees either the old one or the new one."""
    if isinstance(model, models.RidgeModel):
        models.write_model(model, url, overwrite=overwrite)
        return

    features, arrays = models.record_features(model.feature_map)
    arrays["centres"] = model.centres
    arrays["cluster_weights"] = model.weights
    created = datetime.now(UTC).isoformat(timespec="seconds")
    environment = models.describe_environment()
    metadata = {
        **values_of(model, "n_clusters", *_RESULTS),
        "grid": asdict(model.grid),
        "feature_map": features,
        "card": {"environment": environment, "created": created, **model.card},
        "digest": model.digest(),
    }
    records.write_record(
        url, kind=KIND, metadata=metadata, arrays=arrays, overwrite=overwrite
    )


def kind_of(model: AnyModel) -> str:
    """Return "regression", "classifier" or "clusters"; records tell only two kinds."""
    if not isinstance(model, models.RidgeModel):
        return "clusters"
    return "classifier" if "classifier" in model.card else "regression"


def chosen_parameters(model: AnyModel) -> Summary:
    """Return the parameter that the fit chose: alpha, or the number of clusters."""
    if isinstance(model, models.RidgeModel):
        return {"alpha": model.plain_alpha}
    return {"n_clusters": model.n_clusters}


def _clusters_from(record: records.Record) -> starts.Clusters:
    from rff_dist.kmeans import cluster_sums, starts

    values = record.metadata
    grid = values["grid"]
    exponents = tuple((int(count), float(value)) for count, value in grid["exponents"])
    results: dict[str, Any] = {name: values[name] for name in _RESULTS}
    # JSON has lists only
    for name in ("inertias", "start_inertias"):
        results[name] = tuple(results[name])
    return starts.Clusters(
        models.read_features(values["feature_map"], record.arrays),
        record.arrays["centres"],
        record.arrays["cluster_weights"],
        **results,
        grid=cluster_sums.ClusterGrid(
            grid["fraction_bits"], grid["weight_exponent"], exponents
        ),
        card=values["card"],
    )
