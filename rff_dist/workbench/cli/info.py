"""Describe what is stored at a path: a dataset, predictions or a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.errors import IntegrityError, StorageError, UnsafeModelError, VersionError
from rff_dist.workbench.cli import display, ingest, shell
from rff_dist.workbench.results import words

if TYPE_CHECKING:
    from rff_dist.models import versions
    from rff_dist.storage.records import Record

_SHOWN_COLUMNS = _SHOWN_CANDIDATES = 6


@shell.command("rff-dist info data.zarr", "rff-dist info model --json")
def info(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A dataset, a model or predictions.")],
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
                "chunks": array.header.chunks,
                "shards": array.header.shards,
                "codecs": array.header.codecs,
                "checksum": array.checksum,
                "zarr_format": array.header.zarr_format,
            }
            for array in arrays
        ],
        "attributes": shown,
    }
    if kind != "dataset":
        return shell.Report(document, _contents_view(document))
    weights = "sample_weight" if "sample_weight" in names and "y" in names else None
    text = any(array.name == "y" and array.header.dtype.kind in "UT" for array in arrays)
    dataset = datasets.open_dataset(path, y=None if text else "y", sample_weight=weights)
    recipe = recipe_of(attributes)
    document |= {
        "n_samples": dataset.n_samples,
        "n_features": dataset.n_features,
        "feature_names": dataset.feature_names,
        "target_names": attributes.get("target_names"),
        "version": dataset.version,
        "fingerprint": dataset.fingerprint(),
        "recipe": ingest.describe_recipe(recipe) or None,
    }
    return shell.Report(
        document, Group(_dataset_facts(document), *ingest.recipe_views(recipe), "", _arrays_view(document))
    )


def _dataset_facts(found: Mapping[str, Any]) -> RenderableType:
    """Return what people ask about a dataset first: its rows, its columns and where they come from."""
    from rff_dist.recipes.recipes import RECIPE

    told = (RECIPE, "feature_names", "target_names")
    facts: words.Facts = {
        "rows": f"{found['n_samples']:,}, {words.plural(found['n_features'], 'feature')}",
        "columns": words.listed(found["feature_names"]),
        "targets": words.listed(found["target_names"]),
        **_attribute_facts({name: one for name, one in found["attributes"].items() if name not in told}),
        **({"version": f"{found['version']}, the current one"} if found["version"] else {}),
        "fingerprint": found["fingerprint"][:16],
    }
    return display.facts_view(f"{found['path']}: dataset", **facts)


def _contents_view(found: Mapping[str, Any]) -> RenderableType:
    facts = _attribute_facts(found["attributes"])
    if found["complete"] is False:
        facts["state"] = words.Alert("unfinished: its writer was stopped")
    title = Text(f"{found['path']}: {found['kind']}", "bold", overflow="fold")
    parts = [title, _arrays_view(found)]
    return Group(*parts, "", display.facts_view("", **facts)) if facts else Group(*parts)


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


def _arrays_view(found: Mapping[str, Any]) -> RenderableType:
    _, table = display.titled_table(
        "", *("array", "shape", "dtype", "chunks", "codecs", "damage is"), numbers=False
    )
    for array in found["arrays"]:
        chunks = display.shape_words(array["chunks"])
        if array["shards"]:
            chunks += f" in {display.shape_words(array['shards'])}"
        # These two say how numbers become bytes and chunks become a shard, which interests nobody.
        plain = ("bytes", "sharding_indexed")
        codecs = ", ".join(dict.fromkeys(name for name in array["codecs"] if name not in plain))
        damage = "noticed" if array["checksum"] else "[yellow]undetectable[/]"
        table.add_row(
            array["name"], display.shape_words(array["shape"]), array["dtype"], chunks, codecs, damage
        )
    if not found["arrays"]:
        table.add_row("(none)")
    return table


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
    parts: list[RenderableType] = []
    if record.kind == "ridge model":
        found, table = _describe_ridge(record), _cross_validation(record)
        document |= found if table is None else {**found, "cross_validation": table}
        facts |= _ridge_facts(record, found.get("products"))
        parts = _ridge_views(record.metadata["card"], table, len(record.arrays["coefficients"]))
    if record.kind == "k-means model":
        facts |= _cluster_facts(record)
        document["cluster_weights"] = record.arrays["cluster_weights"]
    facts["stored"] = f"{len(record.arrays)} arrays, undamaged (SHA-256)"
    return shell.Report(document, Group(display.facts_view(f"{path}: {record.kind}", **facts), *parts))


def _describe_ridge(record: Record) -> dict[str, Any]:
    """Return the estimated errors of a regression or classifier, and how its features are multiplied here."""
    from rff_dist.products.choice import rate_for
    from rff_dist.ridge.describe import estimate_of

    card, dimension = record.metadata["card"], len(record.arrays["coefficients"])
    found = {"estimate": estimate_of(card)}
    spec = record.metadata["feature_map"].get("spec") or {}
    if spec.get("precision") == "standard" and "statistics" in record.metadata:
        rate = rate_for(dimension, float(card["n_samples"]) * dimension**2)
        found["products"] = {"by": rate.products.name, "gflops_per_thread": rate.gflops}
    return found


def _ridge_facts(record: Record, products: Mapping[str, Any] | None) -> words.Facts:
    """Return the facts of a regression or a classifier in words."""
    from rff_dist.workbench.results import models

    metadata = record.metadata
    card, features = metadata["card"], metadata["feature_map"]
    dimension, n_targets = record.arrays["coefficients"].shape
    classifier, window, refused = card.get("classifier"), card.get("window"), card.get("left_out")
    kept = "stored" if "statistics" in metadata else "not stored"
    packages = ", ".join(f"{name} {version}" for name, version in card["environment"]["packages"].items())
    outputs = words.features_and_targets(features["n_features"], n_targets, classifier)
    return {
        "trained on": f"{card['n_samples']:,} rows, {outputs}",
        "left out": f"{words.ranges_words(refused)}, which updates refused" if refused else None,
        "window": window and f"{window['of']}: from row {window['start']:,} of the data on",
        "half-life": card.get("fading", {}).get("half_life"),
        "columns": words.listed(card.get("feature_names")),
        "targets": words.listed(card.get("target_names")),
        "features": words.features_words(features, dimension),
        "kernel": words.kernel_of_features(features),
        "products": products
        and f"by {products['by']} here, {products['gflops_per_thread']:.0f}e9 a second on one thread",
        "alpha": models.alpha_words(metadata["alpha"], card),
        **models.estimate_facts(card),
        **models.classifier_facts(classifier),
        "solver": f"{card['solver']['status'].replace('_', ' ')}; the sums for updates are {kept}",
        "made": f"{card['created']} with {packages}",
        # A model merged from several datasets has none.
        "data fingerprint": card.get("data_fingerprint", "")[:16] or None,
        "digest": metadata["digest"][:16],
    }


def _ridge_views(
    card: Mapping[str, Any], table: Mapping[str, Any] | None, n_components: int
) -> list[RenderableType]:
    from rff_dist.recipes.recipes import recipe_of
    from rff_dist.workbench.results import models

    parts = ingest.recipe_views(recipe_of(card), n_shown=_SHOWN_COLUMNS)
    if table is not None and len(table["widths"]) > 1:
        parts += ["", display.table_view(models.widths_table(table, n_components))]
    if len(card.get("candidates", [])) > 1:
        parts += ["", display.table_view(models.candidates_table(card["candidates"], _SHOWN_CANDIDATES))]
    return parts


def _cluster_facts(record: Record) -> words.Facts:
    """Return the facts of a k-means model in words."""
    from rff_dist.workbench.results.clusters import clusters_facts

    metadata, weights = record.metadata, record.arrays["cluster_weights"]
    card, features = metadata["card"], metadata["feature_map"]
    passes = {"n_filled": int((weights > 0).sum()), "n_passes": metadata["n_iter"]}
    numbers = words.value_words([row["n_clusters"] for row in card.get("candidates", [])])
    return {
        "features": f"D = {record.arrays['centres'].shape[1]:,}, {features['kind']}",
        "columns": words.listed(card.get("feature_names")),
        "kernel": words.kernel_of_features(features),
        **clusters_facts({**metadata, **passes}),
        "sizes": words.value_words([float(weight) for weight in weights]),
        "chosen from": f"{numbers}, by silhouette" if "candidates" in card else None,
        "made": card["created"],
        "data fingerprint": card.get("data_fingerprint", "–")[:16],
        "digest": metadata["digest"][:16],
    }


def _cross_validation(record: Record) -> dict[str, Any] | None:
    """Return a summary of a model's table of k-fold errors; None if alpha was not chosen from one."""
    from rff_dist.data.folding import folds_from_dict
    from rff_dist.selection.cross_validation import CrossValidation

    prefix, metadata = "selection_", record.metadata
    if f"{prefix}cv_errors" not in record.arrays:
        return None
    arrays = {name.removeprefix(prefix): array for name, array in record.arrays.items()}
    table = CrossValidation.from_arrays(folds_from_dict(metadata["card"]["folds"]), arrays)
    chosen = metadata["card"].get("classifier", {}).get("ridge_alpha", metadata["alpha"])
    return display.describe_cross_validation(table, len(record.arrays["coefficients"]), chosen)
