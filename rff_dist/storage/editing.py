"""Open a versioned dataset for one change, and commit it: readers see all of it or
nothing.

A location goes in; a `DatasetEditor` comes out, which reads and writes rows and commits
the new version. Writing to plain Zarr would show readers half of a change, and a retry
would make it twice.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from rff_dist.data import digests, row_batches
from rff_dist.data.loads import LOADS, Load, describe_loads, read_loads, with_load
from rff_dist.data.row_batches import RowBatch
from rff_dist.data.sources import OTHER_PART
from rff_dist.errors import DataError, StorageError
from rff_dist.storage import arrays, locations, repositories, writing
from rff_dist.storage.columns import ID
from rff_dist.storage.commit import complete_change
from rff_dist.storage.groups import StoredGroup, find_group, require_versions
from rff_dist.storage.locations import Location
from rff_dist.storage.manifests import (
    MANIFEST,
    PREFIXES,
    ROWS_DIGEST,
    Header,
    manifest_of,
)
from rff_dist.storage.zarr_access import zarr
from rff_dist.text import first_few
from rff_dist.typing import (
    AnyArray,
    Arrays,
    BoolArray,
    Facts,
    IntArray,
    Summary,
    frozen,
)

ROLES = ("X", "y", "sample_weight", "groups", ID, row_batches.TIME)
# The most earlier appends whose digests the manifest lists; see `PREFIXES`.
_MOST_PREFIXES = 1000
_log = logging.getLogger(__name__)


@frozen
class ChangeResult:
    """The result of a change."""

    n_rows: int  # rows that were appended, replaced or deleted
    n_before: int  # rows of the dataset before, and after
    n_after: int
    version: str | None = None  # the new one; None if there was nothing to do


@frozen
class DatasetEditor:
    """A dataset that is open for changes, made by `editing`."""

    location: Location
    n_before: int  # rows before the change
    attributes: Facts  # of the group
    headers: Mapping[str, Header]  # of the arrays, by name
    group: zarr.Group
    _change: repositories.Change

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return the "feature_names" or "target_names", if there are any."""
        names = self.attributes.get(key)
        return tuple(map(str, names)) if isinstance(names, list) else None

    def loads(self) -> list[Load]:
        """Return the loads before the change: the rows of each append."""
        return read_loads(manifest_of(self.attributes), self.n_before)

    def check_names(
        self, features: Sequence[str] | None, targets: Sequence[str] | None
    ) -> None:
        """Raise DataError if column names of X or y differ from the dataset's."""
        for key, names in (("feature_names", features), ("target_names", targets)):
            known = self.names(key)
            if names is None or known is None:
                continue
            for name, expected in itertools.zip_longest(names, known):
                if name != expected:
                    raise DataError(
                        f"`{key}`: {name!r} where {self.location} has {expected!r};"
                        f" expected the columns {first_few([*map(repr, known)])} in"
                        " this order. Choose and sort them by name"
                    )

    def array(self, name: str) -> arrays.ZarrArray:
        """Return an array for writing."""
        array = cast("arrays.ZarrArray", self.group[name])
        return array.with_config(arrays.EVERY_CHUNK)

    def label(self, name: str) -> str:
        """Return an array's name in errors."""
        return f"array {name!r} of {self.location}"

    def row_buffer(self) -> writing.RowBuffer:
        """Return a buffer that writes after the existing rows."""
        stored = {name: self.array(name) for name in self.headers}
        return writing.RowBuffer.onto(stored, self.n_before)

    def overwrite(self, rows: IntArray, parts: Arrays) -> None:
        """Write values over rows of all arrays."""
        for name in self.headers if len(rows) else ():
            self.array(name).oindex[rows] = parts[name]

    def cast_batch(self, batch: RowBatch, first_row: int) -> dict[str, AnyArray]:
        """Return a batch's arrays by name, in the dtypes of the dataset's arrays.

        `first_row`, for messages: the number of new rows before the batch. Raises
        DataError if the dataset has other arrays, or would round the values.
        """
        parts = row_batches.name_parts(batch, first_row)
        return row_batches.cast_parts(parts, self.headers, str(self.location), "")

    def cast_all(self, batches: Iterable[RowBatch]) -> dict[str, AnyArray]:
        """Return the rows of all batches by array, as `cast_batch` does for one."""
        stacked = {
            name: [np.empty((0, *header.shape[1:]), header.dtype)]
            for name, header in self.headers.items()
        }
        n_rows = 0
        for batch in batches:
            parts = self.cast_batch(batch, n_rows)
            n_rows += len(parts["X"])
            for name, values in parts.items():
                stacked[name].append(values)
        return {name: np.concatenate(arrays) for name, arrays in stacked.items()}

    def commit(
        self,
        change_kind: str,
        n_after: int,
        *,
        digest: str,
        message: str,
        facts: Facts,
        attributes: Facts | None = None,
        loads: Sequence[Load] | None = None,
    ) -> str:
        """Make the change the current version, and return its name.

        `change_kind` is "append", for example, and `digest` covers the changed
        rows. By default the new rows become one more load.
        """
        manifest = manifest_of(self.attributes)
        # A chain of digests, so that old rows need not be read again. It depends on the
        # appends: the same rows in two appends give another digest than in one.
        chain = hashlib.sha256(f"{manifest['sha256']}|{digest}".encode()).hexdigest()
        # After any other change than an append, this version no longer begins with the
        # rows of earlier ones.
        prefixes = []
        if change_kind == "append":
            prefixes = manifest[PREFIXES][-_MOST_PREFIXES:]
        if loads is None:
            loads = with_load(self.loads(), n_after)
        state = {
            "n_samples": n_after,
            ROWS_DIGEST: chain,
            PREFIXES: [*prefixes, [n_after, chain]],
            LOADS: describe_loads(loads),
        }
        # Only changed chunks' checksums are read for the manifest; the last manifest
        # has all others.
        complete_change(
            self._change,
            self.headers,
            {**(attributes or {}), MANIFEST: {**manifest, **state}},
            changed=self._change.changed_row_chunks(),
        )
        about = {
            "change": change_kind,
            "n_before": self.n_before,
            "n_after": n_after,
            ROWS_DIGEST: chain,
        }
        return self._change.commit(message, {**about, **facts})


@contextmanager
def editing(location: Location) -> Iterator[DatasetEditor]:
    """Open a versioned dataset for one change.

    Raises OutputBusyError if another run is changing it; StorageError if there is no
    versioned dataset.
    """
    require_versions(location)
    with repositories.changing(location) as change:
        # Headers are read and checked as for readers; the group to write to is Zarr's.
        stored = StoredGroup(location.url, snapshot=change.store)
        headers = read_headers(stored)
        group = zarr.open_group(change.store, mode="r+")
        n_before = _check(stored, headers)
        yield DatasetEditor(
            location, n_before, stored.attributes, headers, group, change
        )


def read_headers(group: StoredGroup) -> dict[str, Header]:
    """Return the checked headers of a dataset's arrays by name."""
    headers = {}
    for name in ROLES:
        header = group.read_header(name, allows_text=name in ("y", "groups", ID))
        if header is not None:
            headers[name] = header
    return headers


def _check(dataset: StoredGroup, headers: Mapping[str, Header]) -> int:
    """Return the number of rows; refuse a repository that others wrote."""
    if "X" not in headers or not dataset.manifest:
        raise StorageError(
            f"{dataset.url} is a repository that rff_dist did not write; expected a"
            " versioned dataset. Open its arrays with Icechunk, and write them with"
            " write_dataset"
        )
    shapes = {name: header.shape for name, header in headers.items()}
    n_samples = dataset.manifest.get("n_samples")
    if {shape[:1] for shape in shapes.values()} != {(n_samples,)}:
        raise StorageError(
            f"the arrays of {dataset.url} have the shapes {shapes}, and its manifest"
            f" says {n_samples} rows; expected as many rows in all arrays. Go back to"
            " an earlier version (`rff-dist data rollback`)"
        )
    refuse_others(dataset)
    return shapes["X"][0]


def refuse_others(dataset: StoredGroup) -> None:
    """Refuse a group with further arrays, which a change of rows would not reach."""
    others = sorted({*dataset.list_arrays()}.difference(ROLES))
    if others:
        raise StorageError(
            f"{dataset.url} also holds {first_few([*map(repr, others)])}; expected only"
            f" {', '.join(ROLES)}. Write other arrays to another group"
        )


# -- rows that are stored already


def select(parts: Arrays, rows: IntArray | BoolArray) -> dict[str, AnyArray]:
    """Return some rows of each array."""
    return {name: values[rows] for name, values in parts.items()}


def in_stored_order(rows: IntArray) -> IntArray:
    """Return where `rows` has a stored row, not -1, in the order of the stored rows; so
    each chunk is read and written once.
    """
    order = np.argsort(rows, kind="stable")
    return order[rows[order] >= 0]


def digest_rows(*parts: AnyArray) -> str:
    """Return a digest of arrays."""
    return "".join(map(digests.digest_array, parts))


def find_values(
    dataset: DatasetEditor, name: str, values: AnyArray, column: int | None = None
) -> dict[Any, list[int]]:
    """Return, for each of some values, the rows of an array that have it, in one of its
    columns if it has several; all of the array is read.
    """
    rows_of = dict[Any, list[int]]()
    for start, stored in arrays.iterate_rows(
        dataset.array(name), dataset.n_before, label=dataset.label(name)
    ):
        cells = stored if column is None else stored[:, column]
        hits = np.flatnonzero(np.isin(cells, values))
        for row, value in zip(hits.tolist(), cells[hits].tolist(), strict=True):
            rows_of.setdefault(value, []).append(start + row)
    return rows_of


def locate_ids(dataset: DatasetEditor, ids: AnyArray) -> dict[Any, int]:
    """Return the stored row of each id that the dataset has.

    Raises DataError if two rows have the same id.
    """
    rows_of = find_values(dataset, ID, ids)
    for row_id, rows in rows_of.items():
        if len(rows) > 1:
            raise DataError(
                f"rows {rows[0]:_} and {rows[1]:_} of {dataset.location} have the id"
                f" {row_id!r}; expected one row of this id, which could be changed"
            )
    return {row_id: row for row_id, (row,) in rows_of.items()}


def describe_other_part(output: Location, other: Location) -> Summary:
    """Return the attribute by which a dataset knows where the held-out or the other
    rows are: by a name if they are neighbours, so that both can be moved together.
    """
    return {OTHER_PART: other.name if other.parent == output.parent else other.url}


def other_part(dataset: Location, attributes: Facts) -> Location | None:
    """Return where the other rows of a dataset's table are; None if it was not split,
    or they are not there.
    """
    place = str(attributes.get(OTHER_PART, ""))
    other = dataset.parent.child(place)
    if "/" in place:
        other = locations.parse_location(place)
    return other if place and locations.exists(other) else None


def find_in_other_part(
    dataset: DatasetEditor, ids: Set[Any]
) -> tuple[Location | None, Set[Any]]:
    """Return where the other rows of the dataset's table are, and which of some ids are
    theirs: a row in both datasets would be trained on and tested on.

    Returns no ids if the table was not split, or the other dataset is not there.
    """
    other = other_part(dataset.location, dataset.attributes)
    found = set[Any]()
    if other is not None:
        stored = find_group(other.url).find_array(ID, allows_text=True)
        if stored is not None:
            for _, known in arrays.iterate_rows(
                stored.array, stored.header.shape[0], label=stored.label
            ):
                found.update(ids & {*known.tolist()})
    if found:
        _log.warning(
            "%d rows belong to %s by their ids, and are kept out of %s: %s",
            len(found),
            other,
            dataset.location,
            first_few(sorted(found)),
        )
    return other, found


def differences(
    dataset: DatasetEditor, rows: IntArray, parts: Arrays
) -> dict[str, tuple[BoolArray, AnyArray]]:
    """Compare new values with the stored ones in some rows, whose numbers ascend.

    Returns, for each array, which values differ, and the stored values.
    """
    n_rows = len(rows)
    result = {}
    for name in dataset.headers if n_rows else ():
        stored = arrays.gather_rows(
            dataset.array(name), rows, label=dataset.label(name)
        )
        differs = _as_bits(stored) != _as_bits(parts[name])
        result[name] = differs.reshape(n_rows, -1), stored.reshape(n_rows, -1)
    return result


def _as_bits(values: AnyArray) -> AnyArray:
    """Return floats as integers, since 0.0 equals -0.0."""
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values
