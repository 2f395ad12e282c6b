"""Versioned datasets: their history, and all changes but ingestion.

Each command reads or writes versions of one dataset, an Icechunk repository, and
returns what it found. A change is one new version: readers see all of it or nothing.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rff_dist import fields
from rff_dist.workbench.cli import command_context, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.storage import editing, locations

group = shell.make_group(
    "data", "List the versions of datasets; correct, delete, roll back and expire."
)
command = functools.partial(shell.command, group=group)
_DATA = fields.argument("Path or URL of a versioned dataset.", "DATA", access="changes")
_A_VERSION = "A tag, or a version from `rff-dist data log`."
_VERSION = fields.argument(_A_VERSION, "VERSION")
_ANY_VERSION = fields.argument(
    f"{_A_VERSION} By default the current one.", "VERSION", None
)
_MESSAGE = fields.optional("The reason, for `data log`.", placeholder="TEXT")


@command("data.zarr", "data.zarr --json")
def log(data: str = _DATA) -> Document:
    """List the versions of a dataset, the newest first, with their times, reasons and
    numbers of rows.
    """
    from rff_dist.storage.repositories import read_history

    history = read_history(_versioned(data))
    versions = [snapshot.to_dict() for snapshot in history]
    rows = []
    for entry in versions:
        when = words.time_words(entry["written"])
        tags = ", ".join(entry["tags"])
        why = entry["message"]
        rows.append((entry["version"], when, entry.get("n_after"), why, tags))
    header = ("version", "written (UTC)", "rows", "why", "tags")
    table = words.Table("", header, rows, is_text=True)
    title = f"{data}: {words.plural(len(rows), 'version')}"
    return Document(title, [table], record={"data": data, "versions": versions})


@command("data.zarr audited-2026")
def tag(
    data: str = _DATA,
    name: str = fields.argument("A name that the version keeps for good.", "TAG"),
    version: str | None = _ANY_VERSION,
) -> Document:
    """Give a version a name.

    It can be read by that name, and does not expire unless tags do.
    """
    from rff_dist.storage.repositories import tag_snapshot

    tagged = tag_snapshot(_versioned(data), name, version)
    record = {"data": data, "tag": name, "version": tagged}
    return Document(f"{data}: {name} is version {tagged}", record=record)


@command("data.zarr monday")
def rollback(data: str = _DATA, version: str = _VERSION) -> Document:
    """Make an earlier version the current one again; `update` then takes models back to
    it.
    """
    from rff_dist.storage.repositories import roll_back

    before, after = roll_back(_versioned(data), version)
    title = f"{data}: version {after} is the current one"
    facts = {}
    if before == after:
        title += " already"
    else:
        facts["before"] = f"{before}, which stays readable until it expires"
    record = {"data": data, "before": before, "version": after}
    return Document(title, [facts], record=record)


@command("data.zarr --days 30")
def expire(
    data: str = _DATA,
    days: fields.NonNegative = fields.option(
        "Remove versions older than this.", 30.0, placeholder="DAYS"
    ),
    tags: bool = fields.flag("Remove tagged versions too."),
) -> Document:
    """Remove old versions, and the bytes that only they use; the current version always
    stays.
    """
    from rff_dist.storage import repositories

    location = _versioned(data)
    before = datetime.now(UTC) - timedelta(days=days)
    expired = repositories.expire(location, before, tags=tags)
    kept = [snapshot.id for snapshot in repositories.read_history(location)]
    record = {
        "data": data,
        "expired": list(expired.versions),
        "freed_bytes": expired.n_bytes,
        "kept": kept,
    }
    facts = {
        "freed": f"{expired.n_bytes:,} bytes",
        "kept": words.plural(len(kept), "version"),
    }
    title = f"removed {words.plural(len(expired.versions), 'version')} of {data}"
    return Document(title, [facts], record=record)


@command("plain.zarr", "s3://b/plain s3://b/data")
def convert(
    data: str = fields.argument("Path or URL of plain Zarr.", "DATA", access="reads"),
    output: str | None = fields.argument(
        "Where to write. By default in place of `data`.", "OUT", None, access="writes"
    ),
) -> Document:
    """Turn plain Zarr into a versioned dataset, so that rows can be added, corrected
    and deleted.
    """
    from rff_dist.storage.corrections import convert_dataset

    version = convert_dataset(
        data, output, observer=command_context.row_counter("convert")
    )
    place = output or data
    return Document(
        f"{place} keeps versions from now on",
        [{"version": version}],
        record={"data": place, "version": version},
        next=[["ingest", "FILES", place, "--append"]],
    )


@command("data.zarr corrections.csv --by id")
def correct(
    data: str = _DATA,
    source: str = fields.argument(
        "A file with the corrected rows.", "SOURCE", access="reads"
    ),
    by: str = fields.option(
        "Column that says which row each row of the file replaces: a column of the"
        " dataset in which the value is unique, or else a column of row numbers"
        " from 0.",
        "row",
    ),
    message: str | None = _MESSAGE,
) -> Document:
    """Replace rows by those of a file, in one new version."""
    from rff_dist.workbench.tables import corrections

    corrected = corrections.correct(source, data, by=by, message=message)
    return _change_document(data, "replaced", corrected)


@command("data.zarr rows.csv", "data.zarr customers.csv --by customer")
def delete(
    data: str = _DATA,
    source: str = fields.argument(
        "A file of row numbers from 0, or of values of `by`.", "SOURCE", access="reads"
    ),
    by: str | None = fields.optional("Column whose values say which rows go."),
    keep_order: bool = fields.like(specs.Forget, "keep_order"),
    message: str | None = _MESSAGE,
) -> Document:
    """Delete rows in one new version; earlier versions hold them until they expire."""
    from rff_dist.storage import corrections, editing, locations
    from rff_dist.workbench.tables.corrections import read_rows_to_change

    with editing.editing(locations.parse_location(data)) as dataset:
        rows = read_rows_to_change(source, dataset, by)
        deleted = corrections.delete_from(
            dataset, rows, keep_order=keep_order, message=message
        )
    return _change_document(data, "deleted", deleted)


def _versioned(data: str) -> locations.Location:
    """Return where a versioned dataset is, or raise and say what is there instead."""
    from rff_dist.storage import groups, locations

    location = locations.parse_location(data)
    groups.require_versions(location)
    return location


def _change_document(data: str, verb: str, change: editing.ChangeResult) -> Document:
    facts = {
        "rows": words.change_words(change.n_before, change.n_after),
        "version": change.version,
    }
    title = f"{verb} {words.plural(change.n_rows, 'row')} of {data}"
    return Document(title, [facts], record={"data": data, **asdict(change)})
