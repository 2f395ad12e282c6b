"""What is stored somewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from rff_dist.cli import display
from rff_dist.cli.ingest import describe_recipe, recipe_views
from rff_dist.cli.shell import Report, command
from rff_dist.errors import IntegrityError, StorageError, UnsafeModelError, VersionError

if TYPE_CHECKING:
    from rff_dist.registry.versions import Version
    from rff_dist.storage.records import Record

_SHOWN_COLUMNS = 6


@command("rff-dist info data.zarr", "rff-dist info model --json")
def info(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A dataset, a model or predictions.")],
) -> Report:
    """Describe a dataset, predictions or a model; of a model every byte is checked."""
    from rff_dist.ingest.recipe import recipe_of
    from rff_dist.storage import datasets, records
    from rff_dist.storage.contents import list_arrays
    from rff_dist.storage.locations import POINTER_FILE

    try:
        record = records.read_record(path)
    except (IntegrityError, UnsafeModelError, VersionError):
        raise
    except StorageError:
        if any(Path(path, name).exists() for name in ("model.json", POINTER_FILE)):
            raise
    else:
        return _describe_record(path, record, version=_version_of(path))
    if "://" not in path and not Path(path).is_dir():
        datasets.open_dataset(path)  # says what is there instead
    attributes, arrays = list_arrays(path)
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
        return Report(document, _contents_view(document))
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
        "recipe": describe_recipe(recipe) or None,
    }
    return Report(
        document, Group(_dataset_facts(document), *recipe_views(recipe), "", _arrays_view(document))
    )


def _dataset_facts(found: Mapping[str, Any]) -> RenderableType:
    """Return what people ask of a dataset first: its rows, its columns and where they are from."""
    from rff_dist.ingest.recipe import RECIPE

    facts = {"rows": f"{found['n_samples']:,}, {display.plural(found['n_features'], 'feature')}"}
    for label, names in (("columns", found["feature_names"]), ("targets", found["target_names"])):
        if names:
            facts[label] = display.some(names)
    attributes = {
        name: value
        for name, value in found["attributes"].items()
        if name not in (RECIPE, "feature_names", "target_names")
    }
    facts |= _attribute_facts(attributes)
    if found["version"]:
        facts["version"] = f"{found['version']}, the current one"
    facts["fingerprint"] = found["fingerprint"][:16]
    return display.facts_view(f"{found['path']}: dataset", **facts)


def _contents_view(found: Mapping[str, Any]) -> RenderableType:
    facts = _attribute_facts(found["attributes"])
    if found["complete"] is False:
        facts["state"] = "[yellow]unfinished: its writer did not come to the end[/]"
    title = Text(f"{found['path']}: {found['kind']}", "bold", overflow="fold")
    parts = [title, _arrays_view(found)]
    return Group(*parts, "", display.facts_view("", **facts)) if facts else Group(*parts)


def _attribute_facts(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what is stored beside arrays."""
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
        # How numbers become bytes and chunks a shard is no news.
        plain = ("bytes", "sharding_indexed")
        codecs = ", ".join(dict.fromkeys(name for name in array["codecs"] if name not in plain))
        damage = "noticed" if array["checksum"] else "[yellow]undetectable[/]"
        table.add_row(
            array["name"], display.shape_words(array["shape"]), array["dtype"], chunks, codecs, damage
        )
    if not found["arrays"]:
        table.add_row("(none)")
    return table


def _version_of(path: str) -> Version | None:
    """Return the current version of a registered model; None of what is no registered model."""
    from rff_dist.registry.versions import RegisteredModel

    model = RegisteredModel(path)
    return None if model.pointer() is None else model.current()


def _lineage_facts(version: Version) -> dict[str, str]:
    """Return in words which version is read, and what it was made of."""
    lineage = version.lineage
    after = "" if version.parent is None else f", made after version {version.parent}"
    facts = {"version": f"{version.number}, the current one{after}"}
    if version.reason:
        facts["reason"] = version.reason
    facts["data"] = lineage.get("data") or "rows in memory"
    if lineage.get("data_version"):
        facts["data"] += f", version {lineage['data_version']}"
    return facts


def _describe_record(path: str, record: Record, *, version: Version | None = None) -> Report:
    from rff_dist.ingest.recipe import recipe_of
    from rff_dist.jobs.fits import estimate_of
    from rff_dist.products.choice import rate_for

    metadata = dict(record.metadata)
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
        card, features = metadata["card"], metadata["feature_map"]
        spec = features.get("spec")
        dimension, n_targets = record.arrays["coefficients"].shape
        n_features = features["n_features"]
        classifier = card.get("classifier")
        outputs = display.features_and_targets(n_features, n_targets, classifier)
        facts["trained on"] = f"{card['n_samples']:,} rows, {outputs}"
        if card.get("left_out"):
            facts["left out"] = f"{display.ranges_words(card['left_out'])}, which updates refused"
        if "window" in card:
            facts["window"] = f"{card['window']['of']}: from row {card['window']['start']:,} of the data on"
        if "fading" in card:
            facts["half-life"] = card["fading"]["half_life"]
        for label, names in (("columns", "feature_names"), ("targets", "target_names")):
            if names in card:
                facts[label] = display.some(card[names])
        facts["features"] = f"D = {dimension:,}, {features['kind']}"
        if spec is not None:
            facts["features"] += f", {spec['map']}, {spec['design']}, seed {spec['seed']}"
            facts["kernel"] = display.kernel_words(spec["kernel"])
        elif "jitter" in features:
            facts["features"] += f", jitter {features['jitter']:.3g}"
            facts["kernel"] = display.kernel_words(features["kernel"])
        if spec is not None and spec.get("precision") == "standard" and "statistics" in metadata:
            rate = rate_for(dimension, float(card["n_samples"]) * dimension**2)
            document["products"] = {"by": rate.products.name, "gflops_per_thread": rate.gflops}
            facts["products"] = f"by {rate.products.name} here, {rate.gflops:.0f}e9 a second on one thread"
        any_path = any(name.startswith("selection_") for name in record.arrays)
        by = display.chosen_by(card, any_path=any_path)
        facts["alpha"] = display.alpha_words(metadata["alpha"], by, classifier)
        if (table := _cross_validation(record)) is not None:
            document["cross_validation"] = table
        document["estimate"] = estimate_of(card)
        facts |= display.estimate_facts(card)
        if classifier is not None:
            facts |= display.classifier_facts(classifier)
        status, kept = card["solver"]["status"], "kept" if "statistics" in metadata else "left out"
        facts["solver"] = f"{status.replace('_', ' ')}; the sums for updates are {kept}"
        packages = ", ".join(f"{name} {found}" for name, found in card["environment"]["packages"].items())
        facts["made"] = f"{card['created']} with {packages}"
        if "data_fingerprint" in card:  # a model of several sets of rows has none
            facts["data fingerprint"] = card["data_fingerprint"][:16]
        facts["digest"] = metadata["digest"][:16]
        parts += recipe_views(recipe_of(card), n_shown=_SHOWN_COLUMNS)
        if table is not None and len(table["widths"]) > 1:
            parts += ["", display.widths_view(table, dimension)]
        if len(card.get("candidates", [])) > 1:
            parts += ["", display.candidates_view(card["candidates"])]
    if record.kind == "k-means model":
        facts |= _cluster_facts(record)
        document["cluster_weights"] = record.arrays["cluster_weights"]
    facts["stored"] = f"{len(record.arrays)} arrays, all as they were written (SHA-256)"
    return Report(document, Group(display.facts_view(f"{path}: {record.kind}", **facts), *parts))


def _cluster_facts(record: Record) -> dict[str, str]:
    """Return in words what a model of clusters says."""
    from rff_dist.cli.clusters import clusters_words

    metadata, weights = record.metadata, record.arrays["cluster_weights"]
    card, features = metadata["card"], metadata["feature_map"]
    facts = {"features": f"D = {record.arrays['centres'].shape[1]:,}, {features['kind']}"}
    if "feature_names" in card:
        facts["columns"] = display.some(card["feature_names"])
    kernel = features.get("spec", features).get("kernel")
    if kernel is not None:
        facts["kernel"] = display.kernel_words(kernel)
    passes = {"n_filled": int((weights > 0).sum()), "n_passes": metadata["n_iter"]}
    facts |= clusters_words({**metadata, **passes})
    facts["sizes"] = display.some([float(weight) for weight in weights])
    if "chosen_by" in card:
        numbers = display.some([row["n_clusters"] for row in card["candidates"]])
        facts["chosen from"] = f"{numbers}, by {card['chosen_by']}"
    facts["made"] = card["created"]
    facts["data fingerprint"] = card.get("data_fingerprint", "–")[:16]
    facts["digest"] = metadata["digest"][:16]
    return facts


def _cross_validation(record: Record) -> dict[str, Any] | None:
    """Return what a model's table of k-fold errors says; None where alpha was not chosen from one."""
    from rff_dist.data.folds import folds_from_dict
    from rff_dist.selection.cross_validation import CrossValidation

    prefix, metadata = "selection_", record.metadata
    if f"{prefix}cv_errors" not in record.arrays:
        return None
    arrays = {name.removeprefix(prefix): array for name, array in record.arrays.items()}
    table = CrossValidation.from_arrays(folds_from_dict(metadata["card"]["folds"]), arrays)
    chosen = metadata["card"].get("classifier", {}).get("ridge_alpha", metadata["alpha"])
    return display.describe_cross_validation(table, len(record.arrays["coefficients"]), chosen)
