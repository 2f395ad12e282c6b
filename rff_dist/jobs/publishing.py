"""Where models are published: as a folder, or as the next version of a registered model with its lineage."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rff_dist.features.kernel_of import kernel_of
from rff_dist.kernels.stationary import own_length_scale
from rff_dist.kmeans.model import AnyModel, kind_of
from rff_dist.registry.versions import RegisteredModel, Version
from rff_dist.storage.locations import RECORD_FILE, Location, parse_location
from rff_dist.storage.output_places import check_output

# Members of a lineage's spec that are columns of the table of versions.
_OF_SPEC = ("length_scale", "n_components", "alpha", "n_clusters", "seed")
# What a lineage copies from a model's card, None where the card does not have it.
_OF_DATA = ("data_fingerprint", "data_version", "prefix_fingerprint", "n_samples")


def check_place(url: str, *, register: bool, overwrite: bool, inputs: Sequence[Location]) -> Location:
    """Check that a model can be published at `url`, with `register` as the next version of a registered one.

    Returns: the location of `url`.
    Raises OutputExistsError if there is something at `url` and `overwrite` is False, or with `register`
      something other than a registered model; StorageError if a model cannot be written there.
    """
    output = parse_location(url)
    if register:
        RegisteredModel(url).check(inputs=inputs)
    else:
        check_output(output, overwrite=overwrite, inputs=inputs, marker=(RECORD_FILE,))
    return output


def store(
    model: AnyModel,
    url: str,
    *,
    register: bool,
    overwrite: bool,
    data: str | None,
    reason: str,
    n_samples: int | None = None,
) -> Version | None:
    """Write a model, or with `register` publish and return it as the next version of a registered one.

    `n_samples`: rows that it was made of, for the lineage; by default those of the model's card.
    """
    if register:
        lineage = None if n_samples is None else {"n_samples": n_samples}
        return publish(model, url, data=data, reason=reason, lineage=lineage)
    write(model, url, overwrite=overwrite)
    return None


def publish(
    model: AnyModel,
    url: str | os.PathLike[str],
    *,
    data: str | None,
    reason: str = "",
    promote: bool = True,
    lineage: Mapping[str, Any] | None = None,
) -> Version:
    """Store a model as the next version of the registered model at `url`.

    `url`: the registered model's folder, such as `models/NAME`; it need not exist yet.
    `data`: URL of the rows that the model was trained on; None if they were in memory.
    `reason`: why it is published.
    `promote`: whether it becomes the current version.
    `lineage`: more JSON values for its lineage. `parent` is the version that it was made from, by default the
      current one.
    Raises StorageError if it cannot be written; the current version then stays.
    """
    place = None if data is None else parse_location(data).url
    lineage = {**lineage_of(model, data=place), **(lineage or {})}
    return RegisteredModel(url).publish(
        lambda place: write(model, place), lineage=lineage, reason=reason, promote=promote
    )


def write(model: AnyModel, url: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a model of any kind to a folder of its own."""
    kind_of(model).write(model, url, overwrite=overwrite)


def lineage_of(model: AnyModel, *, data: str | None) -> dict[str, Any]:
    """Return what a model was made from.

    `data`: URL of the rows.
    Returns `lineage`: `data`, `data_fingerprint`, `n_samples` and, in `spec`, the features, the kernel with
      its length scale, D, design, map, seed, precision, and alpha or the number of clusters. What is not
      known is None.
    """
    feature_map = model.feature_map
    kernel, drawn = kernel_of(feature_map), feature_map.spec
    spec = {
        "features": feature_map.kind,
        "kernel": None if kernel is None else kernel.to_dict(),
        "length_scale": own_length_scale(kernel),
        "n_components": feature_map.n_components,
        "design": None if drawn is None else drawn.design.name,
        **{name: getattr(drawn, name, None) for name in ("map", "seed", "precision")},
        **kind_of(model).chosen(model),
    }
    return {"data": data, **{name: model.card.get(name) for name in _OF_DATA}, "spec": spec}


def version_rows(model: RegisteredModel, *, last: int | None = None) -> list[dict[str, Any]]:
    """Return the lineage of a registered model's versions as a table, the newest first.

    `last`: how many of the newest versions; by default all.
    Returns `rows`, list of dict: `version`, `current` (whether it is the current one), `created`, `parent`,
      `n_samples`, `data`, `data_fingerprint`, `kernel`, `length_scale`, `n_components`, `alpha`,
      `n_clusters`, `seed`, `code_version`, `digest` and `reason`.
    """
    pointer = model.pointer()
    return [
        _row(version, is_current=pointer is not None and version.number == pointer.number)
        for version in reversed(model.versions(last=last))
    ]


def _row(version: Version, *, is_current: bool) -> dict[str, Any]:
    lineage = version.lineage
    spec = lineage.get("spec") or {}
    return {
        "version": version.number,
        "current": is_current,
        "created": version.created,
        "parent": version.parent,
        **{name: lineage.get(name) for name in ("n_samples", "data", "data_fingerprint")},
        "kernel": (spec.get("kernel") or {}).get("name"),
        **{name: spec.get(name) for name in _OF_SPEC},
        "code_version": lineage["code_version"],
        "digest": version.digest,
        "reason": version.reason,
    }
