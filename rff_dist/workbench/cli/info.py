"""Describe what is stored at a path: a dataset, predictions or a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rff_dist import fields
from rff_dist.errors import IntegrityError, StorageError, UnsafeModelError, VersionError
from rff_dist.workbench.cli import display, ingest, shell
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.models import versions
    from rff_dist.storage.records import Record

_SHOWN_COLUMNS = _SHOWN_CANDIDATES = 6


@shell.command("rff-dist info data.zarr", "rff-dist info model --json")
def info(
    path: str = fields.option("A dataset, a model or predictions.", argument=True, unit="PATH"),
) -> shell.Report:
    """Describe a dataset, predictions or a model. Every byte of a model is checked."""
    from rff_dist.recipes.recipes import recipe_of
    from rff_dist.storage import datasets, locations, records

    try:
        record = records.read_record(path)
    except (IntegrityError, UnsafeModelError, VersionError):
        raise
    except StorageError:
        if any(Path(path, name).exists() for name in ("model.json", locations.POINTER_FILE)):
            raise  # it is a model, but cannot be read
    else:
        return _describe_record(path, record, _version_of(path))
    if "://" not in path and not Path(path).is_dir():
        datasets.open_dataset(path)  # raises an error that says what is there instead
    attributes, arrays = datasets.list_arrays(path)
    shown = {name: value for name, value in attributes.items() if name != "rff_dist"}
    mark = attributes.get("rff_dist")
    names = [array.name for array in arrays]
    written = {"predictions", "labels"} & set(names)
    kind = "dataset" if "X" in names else "predictions" if written else "Zarr group"
    document: dict[str, Any] = {
        "path": path,
        "kind": kind,
        "written_by_rff_dist": isinstance(mark, Mapping),
        "complete": mark.get("state") == "complete" if isinstance(mark, Mapping) else None,
        "arrays": [
            {
                "name": array.name,
                "shape": array.header.shape,
                "dtype": "text" if array.header.dtype.kind in "UT" else array.header.dtype.name,
                **fields.values_of(array.header, "chunks", "shards", "codecs"),
                "checksum": array.checksum,
                "zarr_format": array.header.zarr_format,
            }
            for array in arrays
        ],
        "attributes": shown,
    }
    if kind != "dataset":
        return shell.Report(document, _contents_parts(document))
    weights = "sample_weight" if "sample_weight" in names and "y" in names else None
    text = any(array.name == "y" and array.header.dtype.kind in "UT" for array in arrays)
    dataset = datasets.open_dataset(path, y=None if text else "y", sample_weight=weights)
    recipe = recipe_of(attributes)
    document |= {
        **fields.values_of(dataset, "n_samples", "n_features", "feature_names"),
        "target_names": attributes.get("target_names"),
        "version": dataset.version,
        "fingerprint": dataset.fingerprint(),
        "recipe": ingest.describe_recipe(recipe) or None,
    }
    view = display.facts_view(f"{path}: dataset", **_dataset_facts(document))
    return shell.Report(document, [view, *ingest.recipe_views(recipe), _arrays_table(document)])


def _dataset_facts(document: Mapping[str, Any]) -> words.Facts:
    """Return what people ask about a dataset first: its rows, its columns and where they come from."""
    from rff_dist.recipes.recipes import RECIPE

    shown = (RECIPE, "feature_names", "target_names")
    return {
        "rows": f"{document['n_samples']:,}, {words.plural(document['n_features'], 'feature')}",
        "columns": words.listed(document["feature_names"]),
        "targets": words.listed(document["target_names"]),
        **_attribute_facts({key: value for key, value in document["attributes"].items() if key not in shown}),
        **({"version": f"{document['version']}, the current one"} if document["version"] else {}),
        "fingerprint": document["fingerprint"][:16],
    }


def _contents_parts(document: Mapping[str, Any]) -> list[display.Part]:
    facts = _attribute_facts(document["attributes"])
    if document["complete"] is False:
        facts["state"] = words.Alert("unfinished: its writer was stopped")
    table = _arrays_table(document, f"{document['path']}: {document['kind']}")
    return [table, "", display.facts_view("", **facts)] if facts else [table]


def _attribute_facts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the attributes, which are stored beside the arrays, in words."""
    from rff_dist.storage.appending import SOURCES, known_sources

    facts = {
        name: display.short(value)[: 16 if name.endswith("digest") else None]
        for name, value in attributes.items()
        if name != SOURCES
    }
    if sources := known_sources(attributes):
        last = f"{display.short(sources[-1].get('name'))}, {sources[-1].get('n_samples', 0):,} rows"
        facts["made of"] = last if len(sources) == 1 else f"{len(sources):,} files, the last is {last}"
    return facts


def _arrays_table(document: Mapping[str, Any], caption: str = "") -> words.Table:
    rows: list[tuple[str, ...]] = []
    for array in document["arrays"]:
        chunks = display.shape_words(array["chunks"])
        if array["shards"]:
            chunks += f" in {display.shape_words(array['shards'])}"
        # These two say how numbers become bytes and chunks become a shard, which interests nobody.
        plain = ("bytes", "sharding_indexed")
        codecs = ", ".join(dict.fromkeys(name for name in array["codecs"] if name not in plain))
        damage = "noticed" if array["checksum"] else words.Alert("undetectable")
        shape = display.shape_words(array["shape"])
        rows.append((array["name"], shape, array["dtype"], chunks, codecs, damage))
    header = ("array", "shape", "dtype", "chunks", "codecs", "damage is")
    return words.Table(caption, header, rows or [("(none)",)], is_facts=True)


def _version_of(path: str) -> versions.Version | None:
    """Return the current version of a registered model; None if the path is not one."""
    from rff_dist.models.versions import RegisteredModel

    model = RegisteredModel(path)
    return None if model.pointer() is None else model.current()


def _lineage_facts(version: versions.Version) -> words.Facts:
    """Return in words which version is read, and the data it was made of."""
    lineage = version.lineage
    after = "" if version.parent is None else f", made after version {version.parent}"
    of_data = f", version {lineage['data_version']}" if lineage.get("data_version") else ""
    return {
        "version": f"{version.number}, the current one{after}",
        "reason": version.reason or None,
        "data": (lineage.get("data") or "rows in memory") + of_data,
    }


def _describe_record(path: str, record: Record, version: versions.Version | None) -> shell.Report:
    from rff_dist.workbench.results import clusters, models

    metadata = record.metadata
    document = {
        "path": path,
        "kind": record.kind,
        "version": None if version is None else version.number,
        "lineage": None if version is None else version.lineage,
        "format_version": record.format_version,
        "rff_dist_version": record.rff_dist_version,
        "arrays": {
            name: {"shape": array.shape, "dtype": array.dtype.name} for name, array in record.arrays.items()
        },
        **{name: value for name, value in metadata.items() if name != "statistics"},
        "has_statistics": "statistics" in metadata,
    }
    facts = {} if version is None else _lineage_facts(version)
    parts: list[display.Part] = []
    if record.kind == "ridge model":
        described = models.describe_stored(record)
        document |= described
        facts |= models.stored_facts(record, described.get("products"))
        parts = _ridge_parts(
            metadata["card"], described.get("cross_validation"), len(record.arrays["coefficients"])
        )
    if record.kind == "k-means model":
        facts |= clusters.stored_facts(record)
        document["cluster_weights"] = record.arrays["cluster_weights"]
    facts["stored"] = f"{len(record.arrays)} arrays, undamaged (SHA-256)"
    return shell.Report(document, [display.facts_view(f"{path}: {record.kind}", **facts), *parts])


def _ridge_parts(
    card: Mapping[str, Any], table: Mapping[str, Any] | None, n_components: int
) -> list[display.Part]:
    from rff_dist.recipes.recipes import recipe_of
    from rff_dist.workbench.results import models

    parts: list[display.Part] = [*ingest.recipe_views(recipe_of(card), n_shown=_SHOWN_COLUMNS)]
    if table is not None and len(table["widths"]) > 1:
        parts.append(models.widths_table(table, n_components))
    if len(card.get("candidates", [])) > 1:
        parts.append(models.candidates_table(card["candidates"], _SHOWN_CANDIDATES))
    return parts
