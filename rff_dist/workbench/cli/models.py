"""Registered models: their versions, what each was made of, and which one is current.

A registered model is a folder of numbered versions with a pointer to the current one.
These commands list them, and move the pointer without copying a model.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import TYPE_CHECKING

from rff_dist import fields
from rff_dist.fields import Count
from rff_dist.typing import Summary
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Part

if TYPE_CHECKING:
    from rff_dist.living import new_rows
    from rff_dist.models import versions
    from rff_dist.storage import records

group = shell.make_group(
    "models", "List, promote and roll back the versions of registered models."
)
command = functools.partial(shell.command, group=group)
_MODEL = fields.argument(
    "Folder or URL of a registered model, such as models/NAME.", "MODEL"
)
_WHY = fields.option("The reason, for `models show`.", "", unit="TEXT")


@command("", "s3://bucket/models --json", name="list")
def list_models(
    registry: str = fields.argument(
        "Folder or URL that holds registered models.", "REGISTRY", "models"
    ),
) -> Document:
    """List the registered models in a folder, with their current versions."""
    from rff_dist.models.versions import find_registered
    from rff_dist.workbench.results.versions import COLUMNS, version_cells

    models: list[Summary] = []
    rows = []
    for model in find_registered(registry):
        current = model.current()
        assert current is not None
        found = {"name": model.name, "url": model.url, "current": current.to_dict()}
        models.append({**found, "n_versions": len(model.versions())})
        rows.append((model.name, *version_cells(current)))
    table = words.Table("", ("model", *COLUMNS), rows, is_facts=True)
    following = ["fit", "DATA", f"{registry}/NAME", "--register"]
    if models:
        following = ["models", "show", f"{registry.rstrip('/')}/{models[0]['name']}"]
    return Document(
        f"{words.plural(len(models), 'registered model')} in {registry}",
        [table] if models else [],
        record={"registry": registry, "models": models},
        next=[following],
    )


@command("models/NAME", "models/NAME --json")
def show(model: str = _MODEL) -> Document:
    """Show the versions of a registered model: what each was made of, and why it was
    published.
    """
    from rff_dist.workbench.jobs.refusals import find_lacking
    from rff_dist.workbench.results.versions import versions_table

    registered = _open(model)
    pointer = registered.pointer()
    refusals = find_lacking(registered.location)
    published = registered.versions()
    record: Summary = {
        "model": model,
        "current": None,
        "previous": [],
        "versions": [version.to_dict() for version in published],
        "refused": [asdict(refusal) for refusal in refusals],
    }
    facts: words.Lines = {"current": words.Alert("none: promote a version")}
    following = ["models", "promote", model, "N"]
    if pointer is not None:
        record |= {
            "current": pointer.number,
            "previous": list(pointer.previous),
            "promoted": pointer.promoted,
            "promoted_because": pointer.reason,
        }
        current = registered.version(pointer.number)
        because = f", {pointer.reason}" if pointer.reason else ""
        before = None
        if pointer.previous:
            before = f"version {pointer.previous[-1]}, which a rollback goes back to"
        facts = {
            "current": f"version {pointer.number}, since {pointer.promoted}{because}",
            "trained on": str(current.lineage.get("data") or "rows in memory"),
            "before": before,
        }
        following = ["evaluate", model, "DATA"]
    if refusals:
        facts["refused"] = "\n".join(map(_refusal_words, refusals))
    title = f"{model}: {words.plural(len(published), 'version')}"
    parts: list[Part] = [versions_table(registered), facts]
    return Document(title, parts, record=record, next=[following])


@command("models/NAME 3 --reason 'less bias on Mondays'")
def promote(
    model: str = _MODEL,
    number: Count = fields.argument("Which version.", "N"),
    reason: str = _WHY,
) -> Document:
    """Make a version the current one: everyone who reads the model from now on gets
    it.
    """
    registered = _open(model)
    before = registered.pointer()
    return _changed(model, registered.promote(number, reason=reason), before)


@command("models/NAME")
def rollback(model: str = _MODEL, reason: str = _WHY) -> Document:
    """Go back to the version that was current before; a second rollback goes one
    further back.
    """
    registered = _open(model)
    before = registered.pointer()
    return _changed(model, registered.rollback(reason=reason or None), before)


@command("models/NAME --keep 10")
def prune(
    model: str = _MODEL,
    keep: Count = fields.option("How many of the newest versions to keep."),
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
            f"{model} is no registered model: it has no versions. List the models of a"
            " folder with `rff-dist models list FOLDER`, or publish a first version"
            " with `rff-dist fit … --register`"
        )
    return registered


def _refusal_words(refusal: new_rows.Refusal) -> str:
    rows = words.ranges_words([(refusal.start, refusal.stop)])
    if refusal.is_change:
        rows = f"{words.plural(refusal.n_changed, 'changed row')} among {rows}"
    return f"{rows}, since {words.time_words(refusal.refused)}: {refusal.reason}"


def _changed(
    model: str, version: versions.Version, pointer: records.Pointer | None
) -> Document:
    """Report that a version is current now; `pointer` named the one before."""
    from rff_dist.workbench.integrations.exporters import mirror

    mirror(model)
    before = None if pointer is None else pointer.number
    return Document(
        f"{model}: version {version.number} is the current one",
        [{"before": "none" if before is None else f"version {before}"}],
        record={"model": model, "before": before, "current": version.to_dict()},
        next=[["models", "show", model]],
    )
