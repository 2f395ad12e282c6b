"""Registered models: their versions, what each was made of, and which one is current."""

from __future__ import annotations

import functools
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from rff_dist import fields
from rff_dist.fields import Count
from rff_dist.typing import Facts, Summary
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.living import new_rows
    from rff_dist.models import versions
    from rff_dist.storage import records

group = shell.make_group("models", "List, promote and roll back the versions of registered models.")
command = functools.partial(shell.command, group=group)
_MODEL = fields.argument("Folder or URL of a registered model, such as models/NAME.", "MODEL")
_WHY = fields.option("The reason, for `models show`.", "", unit="TEXT")
_REASON = 58  # characters; the current version's reason is shown in full below the table
_COLUMNS = ("version", "created", "rows", "made of", "digest")


@command("", "s3://bucket/models --json", name="list")
def list_models(
    registry: str = fields.argument("Folder or URL that holds registered models.", "REGISTRY", "models"),
) -> Document:
    """List the registered models in a folder, with their current versions."""
    from rff_dist.models.versions import RegisteredModel, Registry
    from rff_dist.workbench.jobs.publishing import version_rows

    registered = Registry(registry)
    models: list[Summary] = []
    for name in registered.names():
        model = registered.model(name)
        rows = version_rows(model)
        current = next((row for row in rows if row["current"]), None)
        models.append({"name": name, "url": model.url, "n_versions": len(rows), "current": current})
    record = {"registry": registry, "models": models}
    if not models and RegisteredModel(registry).pointer() is not None:
        return Document(
            f"{registry} is a registered model", record=record, next=[["models", "show", registry]]
        )
    if not models:
        following = [["fit", "DATA", f"{registry}/NAME", "--register"]]
        return Document(f"no registered models in {registry}", record=record, next=following)
    none = ["–"] * len(_COLUMNS)
    cells = [(entry["name"], *(_cells(entry["current"]) if entry["current"] else none)) for entry in models]
    table = words.Table("", ("model", *_COLUMNS), cells, is_facts=True)
    first = f"{registry.rstrip('/')}/{models[0]['name']}"
    title = f"{words.plural(len(models), 'registered model')} in {registry}"
    return Document(title, [table], record=record, next=[["models", "show", first]])


@command("models/NAME", "models/NAME --json")
def show(model: str = _MODEL) -> Document:
    """Show the versions of a registered model: what each was made of, and why it was published."""
    from rff_dist.workbench.jobs import publishing, refresh

    registered = _open(model)
    pointer = registered.pointer()
    lacking = refresh.find_lacking(registered.location)
    rows = publishing.version_rows(registered)
    record = {
        "model": model,
        "current": None if pointer is None else pointer.number,
        "previous": [] if pointer is None else list(pointer.previous),
        "promoted": None if pointer is None else pointer.promoted,
        "promoted_because": None if pointer is None else pointer.reason,
        "versions": [version.to_dict() for version in registered.versions()],
        "refused": [asdict(refusal) for refusal in lacking],
    }
    cells = [(*_cells(row), textwrap.shorten(row["reason"], _REASON, placeholder=" …")) for row in rows]
    current = next((row for row in rows if row["current"]), None)
    chosen = None if current is None else rows.index(current)
    table = words.Table("", (*_COLUMNS, "reason"), cells, chosen, is_facts=True)
    facts: words.Lines = {"current": words.Alert("none: promote a version")}
    if pointer is not None and current is not None:
        because = f", {pointer.reason}" if pointer.reason else ""
        facts = {"current": f"version {pointer.number}, since {pointer.promoted}{because}"}
        facts["trained on"] = str(current["data"] or "rows in memory")
        facts["code"] = f"rff_dist {current['code_version']}, seed {words.version_cell(current['seed'])}"
        if pointer.previous:
            facts["before"] = f"version {pointer.previous[-1]}, which a rollback goes back to"
    if lacking:
        facts["refused"] = "\n".join(map(_refusal_words, lacking))
    command = ["evaluate", model, "DATA"] if pointer is not None else ["models", "promote", model, "N"]
    title = f"{model}: {words.plural(len(rows), 'version')}"
    return Document(title, [table, facts], record=record, next=[command])


@command("models/NAME 3 --reason 'less bias on Mondays'")
def promote(
    model: str = _MODEL,
    number: Count = fields.argument("Which version.", "N"),
    reason: str = _WHY,
) -> Document:
    """Make a version the current one: everyone who reads the model from now on gets it."""
    registered = _open(model)
    before = registered.pointer()
    return _changed(model, registered.promote(number, reason=reason), before)


@command("models/NAME")
def rollback(model: str = _MODEL, reason: str = _WHY) -> Document:
    """Go back to the version that was current before; a second rollback goes one further back."""
    registered = _open(model)
    before = registered.pointer()
    return _changed(model, registered.rollback(reason=reason or None), before)


@command("models/NAME --keep 10")
def prune(
    model: str = _MODEL, keep: Count = fields.option("How many of the newest versions to keep.")
) -> Document:
    """Remove old versions; the current one and the one before it always stay."""
    registered = _open(model)
    removed = registered.prune(keep)
    kept = [version.number for version in registered.versions()]
    record = {"model": model, "removed": removed, "kept": kept}
    title = f"removed {words.plural(len(removed), 'version')} of {model}"
    facts = {"removed": words.listed(removed), "kept": words.value_words(kept)}
    return Document(title, [facts], record=record)


def _open(model: str) -> versions.RegisteredModel:
    """Return a registered model that exists."""
    from rff_dist.errors import StorageError
    from rff_dist.models.versions import RegisteredModel

    registered = RegisteredModel(model)
    if registered.pointer() is None and not registered.versions(last=1):
        raise StorageError(
            f"{model} is no registered model: it has no versions. List the models of a folder with "
            "`rff-dist models list FOLDER`, or publish a first version with `rff-dist fit … --register`"
        )
    return registered


def _refusal_words(refusal: new_rows.Refusal) -> str:
    rows = words.ranges_words([(refusal.start, refusal.stop)])
    rows = f"{words.plural(refusal.n_changed, 'changed row')} among {rows}" if refusal.is_change else rows
    return f"{rows}, since {words.time_words(refusal.refused)}: {refusal.reason}"


def _changed(model: str, version: versions.Version, pointer: records.Pointer | None) -> Document:
    """Report that a version is current now; `pointer` named the one before."""
    from rff_dist.workbench.jobs.publishing import mirror

    mirror(model)
    before = None if pointer is None else pointer.number
    record = {"model": model, "before": before, "current": version.to_dict()}
    kernel = (version.lineage.get("spec") or {}).get("kernel")
    facts = {
        "before": "none" if before is None else f"version {before}",
        "published": version.created,
        "kernel": words.kernel_words(kernel) if kernel else None,
        "digest": words.version_cell(version.digest),
    }
    title = f"{model}: version {version.number} is the current one"
    return Document(title, [facts], record=record, next=[["models", "show", model]])


def _cells(row: Facts) -> list[str]:
    """Return the columns `_COLUMNS` of a row of `version_rows`."""
    size = f"k {row['n_clusters']:,}" if row["n_clusters"] else f"D {words.version_cell(row['n_components'])}"
    made_of = f"{size}, {row['kernel'] or 'features'}"
    n_samples, digest = (words.version_cell(row[name]) for name in ("n_samples", "digest"))
    return [str(row["version"]), words.time_words(row["created"]), n_samples, made_of, digest]
