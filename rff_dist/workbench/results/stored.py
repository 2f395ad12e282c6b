"""What is stored at a path, as a document: a dataset, predictions or a model.

A path goes in; a document for `rff-dist info` and for model cards comes out. The user
need not know what a folder holds: it is read as a model first, then as a Zarr group.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rff_dist import fields
from rff_dist.data import sources as row_sources
from rff_dist.errors import IntegrityError, StorageError, UnsafeModelError, VersionError
from rff_dist.models import versions
from rff_dist.recipes import recipes
from rff_dist.storage import datasets, locations, output_places, records
from rff_dist.storage.manifests import Header
from rff_dist.text import first_few
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.results import rows, words
from rff_dist.workbench.results.document import Document, Part

# shown in tables; the record has all
MAX_COLUMNS = 6
MAX_CANDIDATES = 6


def stored_document(path: str) -> Document:
    """Return the document of what is stored at a path; every byte of a model is
    checked.
    """
    try:
        stored = records.read_record(path)
    except (IntegrityError, UnsafeModelError, VersionError):
        raise
    except StorageError:
        if output_places.holds_model(locations.parse_location(path)):
            raise  # it is a model, but cannot be read
        return _group_document(path)
    return _record_document(path, stored, versions.RegisteredModel(path).current())


def _group_document(path: str) -> Document:
    """Return the document of a Zarr group: a dataset, predictions, or any other."""
    attributes, arrays = datasets.list_arrays(path)
    kind = "Zarr group"
    if "X" in arrays:
        kind = "dataset"
    elif "predictions" in arrays or "labels" in arrays:
        kind = "predictions"
    manifest = attributes.pop("rff_dist", None)
    is_ours = isinstance(manifest, Mapping)
    record: Summary = {
        "path": path,
        "kind": kind,
        "written_by_rff_dist": is_ours,
        "complete": manifest.get("state") == "complete" if is_ours else None,
        "arrays": [_array_record(name, header) for name, header in arrays.items()],
        "attributes": attributes,
    }
    parts: list[Part] = [_arrays_table(record)]
    details: list[Part] = []
    if kind == "dataset":
        dataset = _open_dataset(path, arrays)
        recipe = recipes.recipe_of(attributes)
        record |= {
            **rows.describe_dataset(dataset),
            "path": path,
            "target_names": attributes.get("target_names"),
            "fingerprint": dataset.fingerprint(),
            "recipe": rows.describe_recipe(recipe) or None,
        }
        details = [*rows.recipe_parts(recipe, 20), *parts]
        parts = [_dataset_facts(dataset, attributes)]
        unchecked = [name for name, array in arrays.items() if not array.checksum]
        if unchecked:
            parts.append({"checksums": words.Alert(f"none of {first_few(unchecked)}")})
    else:
        facts = _attribute_facts(attributes)
        if record["complete"] is False:
            facts["state"] = words.Alert("unfinished: its writer was stopped")
        parts.append(facts)
    more = [["info", path, "--details"]] if details else []
    title = f"{path}: {kind}"
    return Document(title, parts, details=details, record=record, next=more)


def _array_record(name: str, header: Header) -> Summary:
    is_text = header.dtype.kind in "UT"
    return {
        "name": name,
        "shape": header.shape,
        "dtype": "text" if is_text else header.dtype.name,
        **fields.values_of(
            header, "chunks", "shards", "codecs", "checksum", "zarr_format"
        ),
    }


def _open_dataset(path: str, arrays: Mapping[str, Header]) -> datasets.ZarrDataset:
    # labels are no targets of a regression; weights are of use only with targets
    has_targets = "y" in arrays and arrays["y"].dtype.kind not in "UT"
    has_weights = {"sample_weight", "y"} <= arrays.keys()
    return datasets.open_dataset(
        path,
        y="y" if has_targets else None,
        sample_weight="sample_weight" if has_weights else None,
    )


def _dataset_facts(dataset: datasets.ZarrDataset, attributes: Facts) -> words.Lines:
    """Return the first facts about a dataset: rows, columns and origin."""
    known = (recipes.RECIPE, "feature_names", "target_names", "dropped_rows")
    others = {name: value for name, value in attributes.items() if name not in known}
    return {
        **rows.dataset_facts(dataset),
        "targets": words.listed(attributes.get("target_names")),
        **_attribute_facts(others),
        "fingerprint": dataset.fingerprint()[:16],
    }


def _attribute_facts(attributes: Facts) -> dict[str, str]:
    """Return the attributes of a group in words."""
    facts = {}
    for name, value in attributes.items():
        # long values that only an append reads are left out; `--json` has all
        if name not in (row_sources.SOURCES, "made_with", "seen"):
            text = _short(value)
            if name.endswith("digest"):
                text = text[:16]
            facts[name] = text
    if (how := rows.split_words(attributes)) is not None:
        facts["split"] = how  # `PARTS` in words
        del facts[row_sources.PARTS]
    if row_sources.OTHER_PART in facts:
        facts["other part"] = facts.pop(row_sources.OTHER_PART)
    if sources := row_sources.known_sources(attributes):
        name = _short(sources[-1].get("name"))
        last = f"{name}, {sources[-1].get('n_samples', 0):,} rows"
        if len(sources) > 1:
            last = f"{len(sources):,} files, the last is {last}"
        facts["made of"] = last
    return facts


def _arrays_table(record: Facts) -> words.Table:
    lines: list[tuple[str, ...]] = []
    for array in record["arrays"]:
        chunks = _shape_words(array["chunks"])
        if array["shards"]:
            chunks += f" in {_shape_words(array['shards'])}"
        # left out: all arrays have these two, which make bytes of numbers and a shard
        # of chunks
        plain = ("bytes", "sharding_indexed")
        codecs = dict.fromkeys(name for name in array["codecs"] if name not in plain)
        checksum = "yes" if array["checksum"] else words.Alert("none")
        shape = _shape_words(array["shape"])
        storage = (chunks, ", ".join(codecs), checksum)
        lines.append((array["name"], shape, array["dtype"], *storage))
    header = ("array", "shape", "dtype", "chunks", "codecs", "checksum")
    return words.Table("arrays", header, lines or [("(none)",)], is_text=True)


def _lineage_facts(version: versions.Version) -> words.Lines:
    """Return in words which version is read, and the data that it was made from."""
    lineage = version.lineage
    number = f"{version.number}, the current one"
    if version.parent is not None:
        number += f", made after version {version.parent}"
    data = lineage.get("data") or "rows in memory"
    if lineage.get("data_version"):
        data += f", version {lineage['data_version']}"
    return {
        "version": number,
        "reason": version.reason or None,
        "data": data,
        "table": words.table_words(lineage.get("data_table")),
    }


def _record_document(
    path: str, stored: records.Record, version: versions.Version | None
) -> Document:
    """Return the document of a stored model."""
    arrays = stored.arrays
    metadata = dict(stored.metadata)
    has_statistics = metadata.pop("statistics", None) is not None
    record: Summary = {
        "path": path,
        "kind": stored.kind,
        "version": None if version is None else version.number,
        "lineage": None if version is None else version.lineage,
        "format_version": stored.format_version,
        "rff_dist_version": stored.rff_dist_version,
        "arrays": {
            name: {"shape": array.shape, "dtype": array.dtype.name}
            for name, array in arrays.items()
        },
        **metadata,
        "has_statistics": has_statistics,
    }
    facts = {} if version is None else _lineage_facts(version)
    details = list[Part]()
    if stored.kind == "ridge model":
        from rff_dist.workbench.results import models

        card = metadata["card"]
        record |= models.describe_stored(stored)
        more_details = models.stored_details(stored)
        facts |= models.stored_facts(stored)
        # these errors come first, not among the details
        facts["cross-validation"] = more_details.pop("cross-validation", None)
        details = [more_details]
        details += models.group_parts(card.get("metrics"), card.get("target_names"))
        details += rows.recipe_parts(recipes.recipe_of(card), MAX_COLUMNS)
        table = record.get("cross_validation")
        if table is not None and len(table["widths"]) > 1:
            details.append(models.widths_table(table, len(arrays["coefficients"])))
        candidates = card.get("candidates", [])
        if len(candidates) > 1:
            details.append(models.candidates_table(candidates, MAX_CANDIDATES))
    if stored.kind == "k-means model":
        from rff_dist.workbench.results import clusters

        facts |= clusters.stored_facts(stored)
        record["cluster_weights"] = arrays["cluster_weights"]
    facts["stored"] = f"{len(arrays)} arrays, undamaged (checksums)"
    title = f"{path}: {stored.kind}"
    more = [["info", path, "--details"]] if details else []
    return Document(title, [facts], details=details, record=record, next=more)


def _shape_words(lengths: Sequence[int]) -> str:
    """Return a shape such as 1,000 × 8."""
    return " × ".join(f"{length:,}" for length in lengths)


def _short(value: Any) -> str:
    """Return a value's text, cut where it is long."""
    text = first_few(value) if isinstance(value, list) else str(value)
    return text if len(text) <= 200 else text[:200] + " …"
