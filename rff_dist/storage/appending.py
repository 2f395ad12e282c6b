"""Append rows to a versioned dataset in one commit: readers see none of the new rows before it."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rff_dist.storage.editing import Editing, editing
from rff_dist.storage.locations import parse_location, store_errors
from rff_dist.storage.sources import RowBatch, column_names, read_source
from rff_dist.storage.writing import Progress, RowBuffer

SOURCES = "sources"  # the group's attribute that lists what was ingested
_SHOWN_SOURCES = 20
_FORGOTTEN = "forgotten name, SHA-256 "
_log = logging.getLogger(__name__)

type NewAttributes = Callable[[Mapping[str, Any], int], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append.

    `n_before`, `n_after`: rows of the dataset before and after; equal if there was nothing to do.
    `version`: the new snapshot; None if there was nothing to do.
    """

    n_before: int
    n_after: int
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows came from. A dataset remembers its sources and takes the rows of each only once.

    `name`: a file's path, for example.
    `sha256`: digest of the content, by which a source is recognised.
    `facts`: further JSON values to keep in the dataset's attribute `sources`.
    """

    name: str
    sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self, n_samples: int) -> dict[str, Any]:
        """Return the entry of this source in the dataset's attribute `sources`."""
        return {"name": self.name, "sha256": self.sha256, "n_samples": n_samples, **self.facts}


def append_dataset(
    url: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    ids: Any = None,
    source: Source | None = None,
    message: str | None = None,
) -> Appended:
    """Append rows to a versioned dataset; readers see either the old rows or all rows.

    Give exactly the arrays that the dataset has, with as many columns, and with dtypes that the stored dtypes
    hold without rounding. `convert_dataset` turns plain Zarr into a versioned dataset.

    The manifest's digest of all values becomes a digest of the old digest and the new rows' digest. So
    `fingerprint` changes with each append, and differs from that of the same rows written at once;
    `prefix_fingerprint` does not. An append that fails leaves the dataset as it was.

    Parameters
    ----------
    url : str or Path
        The dataset.
    X, y, sample_weight, groups
        As for `write_dataset`.
    ids : array-like of shape (n_samples,), optional
        The rows' names, integers or text, if the dataset was ingested with ids.
    source : Source, optional
        Where the rows came from; stored in the attribute `sources`. If a source with the same digest is
        stored already, nothing is appended.
    message : str, optional
        Why the rows are appended; kept with the version.

    Raises
    ------
    DataError
        If arrays, shapes, dtypes or column names differ from the dataset's.
    OutputBusyError
        If another run is changing the dataset.
    ConflictError
        If another program changed the dataset meanwhile.
    StorageError
        If there is no versioned dataset, or it cannot be read or written.
    """
    batches, _ = read_source(X, y, sample_weight, groups, ids)

    def remember(attributes: Mapping[str, Any], n_samples: int) -> Mapping[str, Any] | None:
        if source is None:
            return {}
        return {SOURCES: [*known_sources(attributes), source.to_dict(n_samples)]}

    location = parse_location(url)
    with editing(location) as dataset:
        if source is not None and source.sha256 in known_digests(dataset.attributes):
            _log.info("%s holds the rows of %s already", location, source.name)
            return Appended(dataset.n_before, dataset.n_before)
        names = column_names(X), column_names(y)
        return append_batches(dataset, batches, names=names, change=remember, message=message)


def is_named(source: Mapping[str, Any], name: str) -> bool:
    """Return whether a stored source has a name, which may be forgotten by now."""
    return source.get("name") in (name, _digest_of_name(name))


def without_name(source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored source with a digest in place of its name.

    People read the names of files (`info`, `data log`, the list of `forget`), so a dataset keeps them until
    rows are forgotten: a file may be named after the person who asked for it. `--append` compares digests as
    well, so it still skips the files that it knows, and an error about one that has grown names the file that
    was given. Whoever guesses a name can compare it.
    """
    name = str(source.get("name"))
    return {**source, "name": name if name.startswith(_FORGOTTEN) else _digest_of_name(name)}


def _digest_of_name(name: str) -> str:
    return _FORGOTTEN + hashlib.sha256(name.encode()).hexdigest()[:32]


def known_sources(attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the sources that a dataset's attributes list."""
    found = attributes.get(SOURCES)
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def known_digests(attributes: Mapping[str, Any]) -> set[str]:
    """Return the digests of a dataset's sources."""
    return {str(source.get("sha256")) for source in known_sources(attributes)}


def append_batches(
    dataset: Editing,
    batches: Iterable[RowBatch],
    *,
    change: NewAttributes,
    names: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None),
    observer: Progress | None = None,
    message: str | None = None,
) -> Appended:
    """Write batches after the existing rows, and commit them.

    `change`: called after the last batch with the group's attributes and the number of new rows. It returns
      the attributes to change, or None to leave the dataset as it was.
    `names`: column names of X and y, compared with the dataset's.
    `observer`: called with (rows appended, None) after each batch.
    """
    dataset.check_names(*names)
    n_before = dataset.n_before
    unchanged = f"; it has the {n_before:_} rows of before"
    with store_errors(f"rows could not be appended to {dataset.location}", unchanged):
        buffer = RowBuffer.onto({name: dataset.array(name) for name in dataset.headers}, n_before)
        for batch in batches:
            buffer.add(dataset.fit_batch(batch, buffer.n_samples))
            if observer is not None:
                observer(buffer.n_samples - n_before, None)
        n_new = buffer.n_samples - n_before
        found = change(dataset.attributes, n_new)
        if found is None or (not n_new and not found):
            return Appended(n_before, n_before)
        digest = buffer.finish()
        new = known_sources(found)[len(known_sources(dataset.attributes)) :]
        came_from = [str(one.get("name")) for one in new]
        words = f"append {n_new:,} rows" + (f" from {_some(came_from)}" if came_from else "")
        version = dataset.commit(
            "append",
            buffer.n_samples,
            digest=digest,
            attributes=found,
            message=message or words,
            facts={"sources": came_from[:_SHOWN_SOURCES]} if came_from else {},
        )
    return Appended(n_before, buffer.n_samples, version)


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
