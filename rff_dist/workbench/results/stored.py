"""What is said of what is stored at a path: a dataset, predictions or a model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rff_dist import fields
from rff_dist.data import sources as row_sources
from rff_dist.errors import IntegrityError, StorageError, UnsafeModelError, VersionError
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.storage import datasets, locations, records
from rff_dist.text import some
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import clusters, models, rows, words
from rff_dist.workbench.results.document import Document, Part
from rff_dist.workbench.tables.ingest import PARTS

_SHOWN_COLUMNS = _SHOWN_CANDIDATES = 6


def stored_document(path: str) -> Document:
    """Return what is stored at a path; every byte of a model is checked."""
    try:
        stored = records.read_record(path)
    except (IntegrityError, UnsafeModelError, VersionError):
        raise
    except StorageError:
        if any(Path(path, name).exists() for name in ("model.json", locations.POINTER_FILE)):
            raise  # it is a model, but cannot be read
    else:
        return _describe_record(path, stored, versions.RegisteredModel(path).current())
    attributes, arrays = datasets.list_arrays(path)
    shown = {name: value for name, value in attributes.items() if name != "rff_dist"}
    mark = attributes.get("rff_dist")
    written = {"predictions", "labels"} & set(arrays)
    kind = "dataset" if "X" in arrays else "predictions" if written else "Zarr group"
    record: Summary = {
        "path": path,
        "kind": kind,
        "written_by_rff_dist": isinstance(mark, Mapping),
        "complete": mark.get("state") == "complete" if isinstance(mark, Mapping) else None,
        "arrays": [
            {
                "name": name,
                "shape": header.shape,
                "dtype": "text" if header.dtype.kind in "UT" else header.dtype.name,
                **fields.values_of(header, "chunks", "shards", "codecs", "checksum", "zarr_format"),
            }
            for name, header in arrays.items()
        ],
        "attributes": shown,
    }
    if kind != "dataset":
        facts = _attribute_facts(shown)
        if record["complete"] is False:
            facts["state"] = words.Alert("unfinished: its writer was stopped")
        return Document(f"{path}: {kind}", [_arrays_table(record), facts], record=record)
    weights = "sample_weight" if {"sample_weight", "y"} <= arrays.keys() else None
    text = "y" in arrays and arrays["y"].dtype.kind in "UT"
    dataset = datasets.open_dataset(path, y=None if text else "y", sample_weight=weights)
    recipe = recipes.recipe_of(attributes)
    record |= {
        **fields.values_of(dataset, "n_samples", "n_features", "feature_names"),
        "target_names": attributes.get("target_names"),
        "version": dataset.version,
        "fingerprint": dataset.fingerprint(),
        "recipe": rows.describe_recipe(recipe) or None,
    }
    parts = [_dataset_facts(record), *rows.recipe_parts(recipe, 20), _arrays_table(record)]
    return Document(f"{path}: dataset", parts, record=record)


def _dataset_facts(record: Facts) -> words.Lines:
    """Return what people ask about a dataset first: its rows, its columns and where they come from."""
    shown = (recipes.RECIPE, "feature_names", "target_names", "dropped_rows")
    return {
        "rows": f"{record['n_samples']:,}, {words.plural(record['n_features'], 'feature')}",
        "columns": words.listed(record["feature_names"]),
        "targets": words.listed(record["target_names"]),
        **_attribute_facts({key: value for key, value in record["attributes"].items() if key not in shown}),
        **({"version": f"{record['version']}, the current one"} if record["version"] else {}),
        "dropped": words.dropped_words(record["attributes"].get("dropped_rows", 0)),
        "follows": words.table_words(row_sources.followed_table(record["attributes"])),
        "fingerprint": record["fingerprint"][:16],
    }


def _attribute_facts(attributes: Facts) -> dict[str, str]:
    """Return the attributes, which are stored next to the arrays, in words."""
    facts = {
        name: _short(value)[: 16 if name.endswith("digest") else None]
        for name, value in attributes.items()
        if name not in (row_sources.SOURCES, "made_with", "seen")  # of appends; `--json` has all
    }
    if (how := rows.split_words(attributes)) is not None:
        facts["split"] = how
        del facts[PARTS]
    if sources := row_sources.known_sources(attributes):
        last = f"{_short(sources[-1].get('name'))}, {sources[-1].get('n_samples', 0):,} rows"
        facts["made of"] = last if len(sources) == 1 else f"{len(sources):,} files, the last is {last}"
    return facts


def _arrays_table(record: Facts) -> words.Table:
    cells: list[tuple[str, ...]] = []
    for array in record["arrays"]:
        chunks = _shape_words(array["chunks"])
        if array["shards"]:
            chunks += f" in {_shape_words(array['shards'])}"
        # These two say how numbers become bytes and chunks become a shard, which interests no one.
        plain = ("bytes", "sharding_indexed")
        codecs = ", ".join(dict.fromkeys(name for name in array["codecs"] if name not in plain))
        checksum = "yes" if array["checksum"] else words.Alert("none")
        shape = _shape_words(array["shape"])
        cells.append((array["name"], shape, array["dtype"], chunks, codecs, checksum))
    header = ("array", "shape", "dtype", "chunks", "codecs", "checksum")
    return words.Table("arrays", header, cells or [("(none)",)], is_facts=True)


def _lineage_facts(version: versions.Version) -> words.Lines:
    """Return in words which version is read, and the data it was made of."""
    lineage = version.lineage
    after = "" if version.parent is None else f", made after version {version.parent}"
    of_data = f", version {lineage['data_version']}" if lineage.get("data_version") else ""
    return {
        "version": f"{version.number}, the current one{after}",
        "reason": version.reason or None,
        "data": (lineage.get("data") or "rows in memory") + of_data,
        "table": words.table_words(lineage.get("data_table")),
    }


def _describe_record(path: str, record: records.Record, version: versions.Version | None) -> Document:
    metadata = record.metadata
    described: Summary = {
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
    facts, parts = {} if version is None else _lineage_facts(version), list[Part]()
    if record.kind == "ridge model":
        card = metadata["card"]
        described |= models.describe_stored(record)
        facts |= models.stored_facts(record, described.get("products"))
        table = described.get("cross_validation")
        parts += models.group_parts(card.get("metrics"), card.get("target_names"))
        parts += rows.recipe_parts(recipes.recipe_of(card), _SHOWN_COLUMNS)
        if table is not None and len(table["widths"]) > 1:
            parts.append(models.widths_table(table, len(record.arrays["coefficients"])))
        if len(card.get("candidates", [])) > 1:
            parts.append(models.candidates_table(card["candidates"], _SHOWN_CANDIDATES))
    if record.kind == "k-means model":
        facts |= clusters.stored_facts(record)
        described["cluster_weights"] = record.arrays["cluster_weights"]
    facts["stored"] = f"{len(record.arrays)} arrays, undamaged (SHA-256)"
    return Document(f"{path}: {record.kind}", [facts, *parts], record=described)


def _shape_words(lengths: Sequence[int]) -> str:
    """Return a shape such as 1,000 × 8."""
    return " × ".join(f"{length:,}" for length in lengths)


def _short(value: Any) -> str:
    """Return a value's text, cut where it is long."""
    text = some(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else text[:200] + " …"
