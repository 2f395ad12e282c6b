"""Versioned datasets: their history, and all changes but ingestion."""

from __future__ import annotations

import functools
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rff_dist import fields
from rff_dist.workbench.cli import display, shell
from rff_dist.workbench.jobs import specs
from rff_dist.workbench.results import words
from rff_dist.workbench.results.document import Document

if TYPE_CHECKING:
    from rff_dist.storage import appending, locations

group = shell.make_group("data", "List the versions of datasets; correct, delete, roll back and expire.")
command = functools.partial(shell.command, group=group)
_DATA = fields.argument("Path or URL of a versioned dataset.", "DATA", place="changes")
_A_VERSION = "A tag, or a version from `rff-dist data log`."
_VERSION = fields.argument(_A_VERSION, "VERSION")
_ANY_VERSION = fields.argument(f"{_A_VERSION} By default the current one.", "VERSION", None)
_MESSAGE = fields.optional("The reason, for `data log`.", unit="TEXT")

_DIGITS = 8


@command("data.zarr", "data.zarr --json")
def log(
    data: str = _DATA,
    version: str | None = fields.optional("Begin at this version, not at the current one.", unit="VERSION"),
) -> Document:
    """List the versions of a dataset, the newest first, with their times, reasons and numbers of rows."""
    from rff_dist.storage.repositories import read_history

    versions = [snapshot.to_dict() for snapshot in read_history(_versioned(data), version)]
    rows = []
    for entry in versions:
        version_cell, when = entry["version"][:_DIGITS], words.time_words(entry["written"])
        rows.append((version_cell, when, entry.get("n_after"), entry["message"], ", ".join(entry["tags"])))
    table = words.Table("", ("version", "written (UTC)", "rows", "why", "tags"), rows, is_facts=True)
    title = f"{data}: {words.plural(len(rows), 'version')}"
    return Document(title, [table], record={"data": data, "versions": versions})


@command("data.zarr monday", "data.zarr monday tuesday")
def diff(data: str = _DATA, before: str = _VERSION, after: str | None = _ANY_VERSION) -> Document:
    """Count the chunks that differ between two versions."""
    from rff_dist.storage import datasets, repositories

    location = _versioned(data)
    names = [repositories.find_snapshot(location, before), repositories.find_snapshot(location, after)]
    old, new = (datasets.open_dataset(data, y=None, version=name) for name in names)
    n_rows = max(old.n_samples, new.n_samples)
    n_chunks = -(-n_rows // new.chunk_rows)
    n_changed = {
        name: n_chunks if chunks is None else len({place[0] for place in chunks})
        for name, chunks in repositories.changed_chunks(location, *names).items()
    }
    record = {
        "data": data,
        "before": names[0],
        "after": names[1],
        "n_before": old.n_samples,
        "n_after": new.n_samples,
        "chunk_rows": new.chunk_rows,
        "changed_chunks": n_changed,
    }
    facts = {
        "rows": words.change_words(old.n_samples, new.n_samples),
        **{name: f"{n:,} of {n_chunks:,} chunks differ" for name, n in n_changed.items()},
    }
    return Document(f"{data}: {names[0][:_DIGITS]} to {names[1][:_DIGITS]}", [facts], record=record)


@command("data.zarr audited-2026")
def tag(
    data: str = _DATA,
    name: str = fields.argument("A name that the version keeps for good.", "TAG"),
    version: str | None = _ANY_VERSION,
) -> Document:
    """Give a version a name. It can be read by that name, and does not expire unless tags do."""
    from rff_dist.storage.repositories import tag_snapshot

    tagged = tag_snapshot(_versioned(data), name, version)
    record = {"data": data, "tag": name, "version": tagged}
    return Document(f"{data}: {name} is version {tagged}", record=record)


@command("data.zarr monday")
def rollback(data: str = _DATA, version: str = _VERSION) -> Document:
    """Make an earlier version the current one again; `update` then takes models back to it."""
    from rff_dist.storage.repositories import roll_back

    before, after = roll_back(_versioned(data), version)
    facts = {"before": f"{before}, which stays readable until it expires"} if before != after else {}
    is_one = "is the current one" if before != after else "is the current one already"
    record = {"data": data, "before": before, "version": after}
    return Document(f"{data}: version {after[:_DIGITS]} {is_one}", [facts], record=record)


@command("data.zarr --days 30")
def expire(
    data: str = _DATA,
    days: fields.NonNegative = fields.option("Remove versions older than this.", 30.0, unit="DAYS"),
    tags: bool = fields.flag("Remove tagged versions too."),
) -> Document:
    """Remove old versions, and the bytes that only they use; the current version always stays."""
    from rff_dist.storage.repositories import expire, read_history

    location = _versioned(data)
    expired = expire(location, datetime.now(UTC) - timedelta(days=days), tags=tags)
    kept = [snapshot.id for snapshot in read_history(location)]
    record = {"data": data, "expired": list(expired.versions), "freed_bytes": expired.n_bytes, "kept": kept}
    facts = {"freed": f"{expired.n_bytes:,} bytes", "kept": words.plural(len(kept), "version")}
    title = f"removed {words.plural(len(expired.versions), 'version')} of {data}"
    return Document(title, [facts], record=record)


@command("plain.zarr", "s3://b/plain s3://b/data")
def convert(
    data: str = fields.argument("Path or URL of plain Zarr.", "DATA", place="reads"),
    output: str | None = fields.argument(
        "Where to write. By default in place of `data`.", "OUT", None, place="writes"
    ),
) -> Document:
    """Turn plain Zarr into a versioned dataset, so that rows can be added, corrected and deleted."""
    from rff_dist.storage.corrections import convert_dataset

    version = convert_dataset(data, output, observer=display.count_rows("convert"))
    place = output or data
    following = [["ingest", "FILES", place, "--append"]]
    record = {"data": place, "version": version}
    title, facts = f"{place} keeps versions from now on", {"version": version}
    return Document(title, [facts], record=record, next=following)


@command("data.zarr corrections.csv --by id")
def correct(
    data: str = _DATA,
    source: str = fields.argument("A file with the corrected rows.", "SOURCE", place="reads"),
    by: str = fields.option(
        "Column that says which row each row of the file replaces: a column of the dataset in which the "
        "value is unique, or else a column of row numbers from 0.",
        "row",
    ),
    message: str | None = _MESSAGE,
) -> Document:
    """Replace rows by those of a file, in one new version."""
    from rff_dist.workbench.tables.corrections import correct

    return _corrected(data, "replaced", correct(source, data, by=by, message=message))


@command("data.zarr rows.csv", "data.zarr customers.csv --by customer")
def delete(
    data: str = _DATA,
    source: str = fields.argument(
        "A file of row numbers from 0, or of values of `by`.", "SOURCE", place="reads"
    ),
    by: str | None = fields.optional("Column whose values say which rows go."),
    keep_order: bool = fields.like(specs.Forget, "keep_order"),
    message: str | None = _MESSAGE,
) -> Document:
    """Delete rows in one new version; earlier versions hold them until they expire."""
    from rff_dist.storage import appending, corrections, locations
    from rff_dist.workbench.tables.corrections import read_rows_to_change

    with appending.editing(locations.parse_location(data)) as dataset:
        rows = read_rows_to_change(source, dataset, by)
        corrected = corrections.delete_from(dataset, rows, keep_order=keep_order, message=message)
    return _corrected(data, "deleted", corrected)


def _versioned(data: str) -> locations.Location:
    """Return where a versioned dataset is; the error says what is there instead."""
    from rff_dist.storage import groups, locations

    location = locations.parse_location(data)
    groups.require_versions(location)
    return location


def _corrected(data: str, what: str, corrected: appending.Changed) -> Document:
    facts = {
        "rows": words.change_words(corrected.n_before, corrected.n_after),
        "version": corrected.version or None,
    }
    title = f"{what} {words.plural(corrected.n_rows, 'row')} of {data}"
    return Document(title, [facts], record={"data": data, **asdict(corrected)})
