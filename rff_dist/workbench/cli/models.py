"""Registered models: their versions, what each was made of, and which one is current.

A registered model is a folder of numbered versions with a pointer to the current one.
These commands list them, and move the pointer without copying a model.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import asdict
from typing import TYPE_CHECKING

from rff_dist import fields
from rff_dist.errors import RFFDistError
from rff_dist.fields import Count
from rff_dist.typing import Summary
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document, Part

if TYPE_CHECKING:
    from rff_dist.living import new_rows
    from rff_dist.models import versions

group = shell.make_group(
    "models", "List, promote and roll back the versions of registered models."
)
command = functools.partial(shell.command, group=group)
_MODEL = fields.argument(
    "Folder or URL of a registered model, such as models/NAME.", "MODEL"
)
_WHY = fields.option("The reason, for `models show`.", "", placeholder="TEXT")


@command("", "s3://bucket/models --json", name="list")
def list_models(
    registry: str = fields.argument(
        "Folder or URL that holds registered models.", "REGISTRY", "models"
    ),
) -> Document:
    """List the registered models in a folder, with their current versions."""
    from rff_dist.models.versions import RegisteredModel, find_registered
    from rff_dist.workbench.results.versions import COLUMNS, version_cells

    models: list[Summary] = []
    rows = []
    registered = find_registered(registry)
    example = f"{registry.rstrip('/')}/NAME"
    # the folder may be a model itself
    if not registered and RegisteredModel(registry).pointer() is not None:
        registered = [RegisteredModel(registry)]
        example = registry
    for model in registered:
        current = model.current()
        assert current is not None
        facts = {"name": model.name, "url": model.url, "current": current.to_dict()}
        models.append(facts)
        rows.append((model.name, *version_cells(current)))
    return Document(
        f"{words.plural(len(models), 'registered model')} in {registry}",
        [words.Table("", ("model", *COLUMNS), rows, is_text=True)] if models else [],
        record={"registry": registry, "models": models},
        next=[["models", "show", example]] if models else [],
    )


@command("models/NAME", "models/NAME --json")
def show(model: str = _MODEL) -> Document:
    """Show the versions of a registered model: what each was made of, and why it was
    published.
    """
    from rff_dist.workbench.jobs.refusals import refusals_of
    from rff_dist.workbench.results import updates
    from rff_dist.workbench.results.versions import versions_table

    registered = _open(model)
    pointer = registered.pointer()
    refusals = refusals_of(registered.location)
    published = registered.versions()
    data = None
    facts: words.Lines = {"current": words.Alert("none: promote a version")}
    following = ["models", "promote", model, "N"]
    if pointer is not None:
        current = registered.version(pointer.number)
        data = current.lineage.get("data")
        because = f", {pointer.reason}" if pointer.reason else ""
        facts = {
            "current": f"version {pointer.number}, since {pointer.promoted}{because}",
            "trained on": str(data or "rows in memory"),
            "before": ", ".join(map(str, pointer.previous)) or None,
        }
        following = ["info", model]
    if refusals:
        facts["refused"] = "\n".join(_refusal_words(one, data) for one in refusals)
        if data is not None:
            place = {"model": model, "data": data}
            commands = [
                updates.update_command(place, refusal.backfill) for refusal in refusals
            ]
            facts["to judge them again"] = "\n".join(dict.fromkeys(commands))
            facts["to accept them anyway"] = "the same with --force"
    title = f"{model}: {words.plural(len(published), 'version')}"
    parts: list[Part] = [versions_table(registered), facts]
    record = {
        "model": model,
        "pointer": None if pointer is None else asdict(pointer),
        "versions": [version.to_dict() for version in published],
        "refused": [asdict(refusal) for refusal in refusals],
    }
    return Document(title, parts, record=record, next=[following])


@command("models/NAME 3 --reason 'less bias on Mondays'")
def promote(
    model: str = _MODEL,
    number: Count = fields.argument("Which version.", "N"),
    reason: str = _WHY,
) -> Document:
    """Make a version the current one: everyone who reads the model from then on gets
    it.
    """
    return _publish_change(model, _open(model).promote(number, reason=reason))


@command("models/NAME")
def rollback(model: str = _MODEL, reason: str = _WHY) -> Document:
    """Go back to the version that was current before; a second rollback goes one
    further back.
    """
    from rff_dist.workbench.results.updates import AFTER_ROLLBACK

    version = _open(model).rollback(reason=reason)
    return _publish_change(model, version, lead=AFTER_ROLLBACK)


@command("models/NAME --keep 10")
def prune(
    model: str = _MODEL,
    keep: Count = fields.option("How many of the newest versions to keep."),
) -> Document:
    """Remove old versions; the current one, the one before it, and newer ones that were
    rolled back always stay.
    """
    registered = _open(model)
    removed = registered.prune(keep)
    title = f"removed {words.plural(len(removed), 'version')} of {model}"
    roles = {}
    if (pointer := registered.pointer()) is not None:
        roles = dict.fromkeys(pointer.rolled_back, " (rolled back)")
        roles |= dict.fromkeys(pointer.previous[-1:], " (before)")
        roles[pointer.number] = " (current)"
    kept = [
        f"{version.number}{roles.get(version.number, '')}"
        for version in registered.versions()
    ]
    facts = {"removed": words.listed(removed), "kept": ", ".join(kept)}
    return Document(title, [facts], record={"model": model, "removed": removed})


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


def _refusal_words(refusal: new_rows.Refusal, data: str | None) -> str:
    """Return what was refused and why; `data`: the URL of the model's dataset."""
    from rff_dist.storage.datasets import open_dataset
    from rff_dist.workbench.jobs.refusals import source_words

    rows = words.ranges_words([(refusal.start, refusal.stop)])
    if refusal.is_correction:
        rows = f"{words.plural(refusal.n_changed, 'changed row')} among {rows}"
    elif data is not None:
        # the data may be gone, or have fewer rows
        with contextlib.suppress(RFFDistError, IndexError):
            dataset = open_dataset(data, y=None, version=refusal.data_version)
            rows = source_words(dataset, refusal.start, refusal.stop)
    return f"{rows}, since {words.time_words(refusal.refused)}: {refusal.reason}"


def _publish_change(
    model: str, version: versions.Version, *, lead: str = ""
) -> Document:
    """Mirror the model to MLflow, then report that a version is current now."""
    from rff_dist.workbench.integrations.exporters import mirror_in_mlflow

    mirror_in_mlflow(model)
    return Document(
        f"{model}: version {version.number} is the current one",
        lead=lead,
        record={"model": model, "current": version.to_dict()},
        next=[["models", "show", model]],
    )
