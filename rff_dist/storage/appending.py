"""Change a versioned dataset in one commit: readers see all of it or nothing."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import zarr

from rff_dist.data import blocks, memory, row_batches
from rff_dist.data import sources as row_sources
from rff_dist.data.loads import LOADS, Load, describe_loads, read_loads, with_load
from rff_dist.errors import DataError, StorageError
from rff_dist.storage import arrays, columns, documents, locations, repositories, writing
from rff_dist.storage.columns import ID
from rff_dist.storage.groups import StoredGroup, complete, require_versions
from rff_dist.text import some
from rff_dist.typing import Arrays, Facts, IntArray, PathLike, Summary, frozen

_SHOWN_SOURCES = 20


@frozen
class Changed:
    """The result of a change.

    `n_rows`: rows that were appended, replaced or deleted.
    `n_before`, `n_after`: rows of the dataset before and after.
    `version`: the new snapshot; None if there was nothing to do.
    """

    n_rows: int
    n_before: int
    n_after: int
    version: str | None = None


def append_dataset(
    url: PathLike,
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    ids: Any = None,
    replace_ids: bool = False,
    message: str | None = None,
) -> Changed:
    """Append rows to a versioned dataset, like `numpy.concatenate([old, new])` of each of its arrays.

    Readers see either the old rows or all rows. No id names two rows: see `ids`.

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
        The rows' names, integers or text, if the dataset was ingested with ids. Rows whose ids it has already
        are left out if their values are the same.
    replace_ids : bool, default=False
        Whether rows of known ids replace the stored ones if their values differ, which is an error otherwise.
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
    batches, _ = writing.read_source(X, y, sample_weight, groups, ids)
    names = row_batches.column_names(X), row_batches.column_names(y)
    with editing(locations.parse_location(url)) as dataset:
        known = None
        if ids is not None and ID in dataset.headers:
            column = columns.as_column(ids, name="ids")
            given = column.read(blocks.Block(0, 0, column.n_samples))
            known = KnownRows.among(dataset, given, replaces=replace_ids)
        return append_batches(
            dataset, batches, names=names, change=lambda *_: {}, message=message, known=known
        )


def append_batches(
    dataset: Editing,
    batches: Iterable[row_batches.RowBatch],
    *,
    change: Callable[[Facts, int], Facts | None],
    names: row_batches.ColumnNames = (None, None),
    observer: writing.Progress | None = None,
    message: str | None = None,
    known: KnownRows | None = None,
) -> Changed:
    """Write batches after the existing rows, and commit them.

    `change`: called after the last batch with the group's attributes and the number of new rows. It returns
      the attributes to change, or None to leave the dataset as it was.
    `names`: column names of X and y, compared with the dataset's.
    `observer`: called with (rows appended, None) after each batch.
    `known`: what becomes of rows whose ids the dataset has already; without it, all rows are appended.
    """
    dataset.check_names(*names)
    n_before = dataset.n_before
    unchanged = f"; it has the {n_before:_} rows of before"
    with locations.store_errors(f"rows could not be appended to {dataset.location}", unchanged):
        buffer = writing.RowBuffer.onto({name: dataset.array(name) for name in dataset.headers}, n_before)
        for batch in batches:
            parts = dataset.fit_batch(batch, buffer.n_samples)
            buffer.add(parts if known is None else known.take_new(parts))
            if observer is not None:
                observer(buffer.n_samples - n_before, None)
        n_new = buffer.n_samples - n_before
        # after the last batch, because a source counts its rows while they are read
        attributes = change(dataset.attributes, n_new)
        n_replaced = 0 if known is None else known.n_replaced
        if attributes is None or (not n_new and not n_replaced and not attributes):
            return Changed(0, n_before, n_before)
        digest = buffer.finish() + ("" if known is None else known.finish())
        new = row_sources.known_sources(attributes)[len(row_sources.known_sources(dataset.attributes)) :]
        came_from = [str(source.get("name")) for source in new]
        words = f"append {n_new:,} rows" + (f", replace {n_replaced:,}" if n_replaced else "")
        words = message or words + (f" from {some(came_from)}" if came_from else "")
        facts: Summary = {"sources": came_from[:_SHOWN_SOURCES]} if came_from else {}
        if n_replaced:
            facts |= {"n_added": n_new, "n_replaced": n_replaced, "n_deleted": 0}
        what = "merge" if n_replaced else "append"
        version = dataset.commit(
            what, buffer.n_samples, digest=digest, attributes=attributes, message=words, facts=facts
        )
    return Changed(n_new, n_before, buffer.n_samples, version)


# -- open a versioned dataset for changes, and commit them -----------------------------------------


ROLES = ("X", "y", "sample_weight", "groups", ID, row_batches.TIME)
_LONGEST_LINE = 1000  # how many earlier versions of a line of appends the manifest lists


@frozen
class Editing:
    """A dataset that is open for changes, made by `editing`.

    `n_before`: rows before the change.
    `attributes`: the group's attributes.
    `headers`: the arrays' headers by name.
    """

    location: locations.Location
    n_before: int
    attributes: Facts
    headers: Mapping[str, arrays.Header]
    group: zarr.Group
    _change: repositories.Change

    def names(self, key: str) -> tuple[str, ...] | None:
        """Return the column names of X or y (`key`: "feature_names" or "target_names"), if there are any."""
        names = self.attributes.get(key)
        return tuple(map(str, names)) if isinstance(names, list) else None

    def loads(self) -> list[Load]:
        """Return the loads before the change."""
        return read_loads(documents.manifest_of(self.attributes), self.n_before)

    def check_names(self, features: Sequence[str] | None, targets: Sequence[str] | None) -> None:
        """Raise DataError if column names of X or y differ from the dataset's."""
        for key, names in (("feature_names", features), ("target_names", targets)):
            known = self.names(key)
            if names is None or known is None or tuple(names) == known:
                continue
            differing = next(pair for pair in itertools.zip_longest(names, known) if pair[0] != pair[1])
            raise DataError(
                f"`{key}`: {differing[0]!r} where {self.location} has {differing[1]!r}; expected the columns "
                f"{some([*map(repr, known)])} in this order. Choose and sort them "
                "by name"
            )

    def array(self, name: str) -> arrays.ZarrArray:
        """Return an array for writing."""
        return cast("arrays.ZarrArray", self.group[name]).with_config(arrays.EVERY_CHUNK)

    def label(self, name: str) -> str:
        """Return an array's name in errors."""
        return f"array {name!r} of {self.location}"

    def fit_batch(self, batch: row_batches.RowBatch, first_row: int) -> dict[str, np.ndarray]:
        """Return a batch's arrays by name, in the dtypes of the dataset's arrays.

        Raises DataError if the dataset has other arrays, or does not hold the values without rounding.
        """
        parts = row_batches.name_parts(batch, first_row)
        if parts.keys() != self.headers.keys():
            raise DataError(
                f"the new rows have the arrays {', '.join(parts)}, and {self.location} has "
                f"{', '.join(self.headers)}; expected the same arrays"
            )
        fitted = {}
        for name, values in parts.items():
            header, label = self.headers[name], self.label(name)
            shape = (len(parts["X"]), *header.shape[1:])
            fitted[name] = row_batches.fit(values, shape, header.dtype, name, label)
        return fitted

    def commit(
        self,
        what: str,
        n_after: int,
        *,
        digest: str,
        message: str,
        facts: Facts,
        attributes: Facts | None = None,
        loads: Sequence[Load] | None = None,
    ) -> str:
        """Make the change the current version, and return its name.

        `what`: the kind of change, such as "append".
        `digest`: digest of the changed rows.
        `attributes`: attributes of the group that change.
        `loads`: the loads after the change; None: the loads before, and one more for new rows.
        """
        manifest = documents.manifest_of(self.attributes)
        # A chain, so that old rows need not be read again. The same rows in two appends have another one.
        chain = hashlib.sha256(f"{manifest['sha256']}|{digest}".encode()).hexdigest()
        # After any other change, an earlier version's rows are not the first rows any more.
        line = manifest[documents.LINE][-_LONGEST_LINE:] if what == "append" else []
        state = {
            "n_samples": n_after,
            "sha256": chain,
            documents.LINE: [*line, [n_after, chain]],
            LOADS: describe_loads(with_load(self.loads(), n_after) if loads is None else loads),
        }
        attributes = {**(attributes or {}), documents.MANIFEST: {**manifest, **state}}
        # Only these chunks' checksums are read for the manifest; all others are known from the one before.
        changed = self._change.changed_chunks()
        complete(self._change.store, self.headers, attributes, place=self.location, changed=changed)
        about = {"change": what, "n_before": self.n_before, "n_after": n_after, "sha256": chain}
        return self._change.commit(message, {**about, **facts})


def find_values(
    dataset: Editing, name: str, values: np.ndarray, column: int | None = None
) -> dict[Any, list[int]]:
    """Return the rows of an array that hold some values, by value; all of the array is read.

    `values`: in the dtype of the array.
    `column`: where to look in an array of two axes.
    """
    array, found = dataset.array(name), dict[Any, list[int]]()
    for block in blocks.cut_blocks(dataset.n_before, array.chunks[0], rows_per_block=array.chunks[0]):
        read = arrays.read_rows(array, block.start, block.stop, label=dataset.label(name))
        read = read if column is None else read[:, column]
        hits = np.flatnonzero(np.isin(read, values))
        for row, value in zip((block.start + hits).tolist(), read[hits].tolist(), strict=True):
            found.setdefault(value, []).append(row)
    return found


def locate_ids(dataset: Editing, ids: np.ndarray) -> dict[Any, int]:
    """Return the row of each id that the dataset has; all ids of the dataset are read.

    `ids`: array of different ids, in the dtype of the dataset's ids.
    Raises DataError if several rows have one of them.
    """
    found = find_values(dataset, ID, ids)
    for one, rows in found.items():
        if len(rows) > 1:
            raise DataError(
                f"rows {rows[0]:_} and {rows[1]:_} of {dataset.location} have the id {one!r}; "
                "expected one, which changes with it"
            )
    return {one: row for one, (row,) in found.items()}


def differences(dataset: Editing, rows: IntArray, parts: Arrays) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return, for each array, which values of some rows, ascending, differ from those stored, and these."""
    found = {}
    for name in dataset.headers if len(rows) else ():
        stored = arrays.gather_rows(dataset.array(name), rows, label=dataset.label(name))
        differs = _as_bits(stored) != _as_bits(parts[name])
        found[name] = differs.reshape(len(rows), -1), stored.reshape(len(rows), -1)
    return found


def _as_bits(values: np.ndarray) -> np.ndarray:
    """Return floats as integers, since 0.0 equals -0.0."""
    return values.view(f"u{values.itemsize}") if values.dtype.kind == "f" else values


@dataclass
class KnownRows:
    """What becomes of new rows whose ids a dataset has already: no id names two rows.

    Rows with the same values are left out and counted. Others are refused, or replace the stored ones.

    `rows`: the stored row of each known id.
    `repeated`: ids that come more than once among the new rows.
    `replaces`: whether rows with other values replace the stored ones.
    `not_compared`: columns of X whose values differ between equal rows, such as cross-fitted means.
    """

    dataset: Editing
    rows: Mapping[Any, int]
    repeated: Collection[Any]
    replaces: bool
    not_compared: Sequence[int] = ()
    n_same: int = 0
    n_replaced: int = 0

    def __post_init__(self) -> None:
        self._first: dict[Any, str] = {}
        chunk_rows = self.dataset.array("X").chunks[0]
        # the rows of a last chunk that is not full wait in the buffer that appends rows
        self._tail_start = self.dataset.n_before // chunk_rows * chunk_rows
        self._tail: list[tuple[IntArray, dict[str, np.ndarray]]] = []
        self._digests: list[str] = []

    @classmethod
    def among(
        cls,
        dataset: Editing,
        ids: np.ndarray,
        *,
        replaces: bool,
        not_compared: Sequence[int] = (),
    ) -> Self:
        """Find which of some new ids the dataset has; all ids of the dataset are read."""
        header = dataset.headers[ID]
        if not row_batches.can_hold(header.dtype, ids.dtype):  # `fit_batch` refuses them
            return cls(dataset, {}, (), replaces)
        different, counts = np.unique(ids.astype(header.dtype), return_counts=True)
        repeated = set(different[counts > 1].tolist())
        return cls(dataset, locate_ids(dataset, different), repeated, replaces, not_compared)

    def take_new(self, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the rows of a batch that are new; raises DataError if others have other values."""
        ids = parts[ID].tolist()
        is_first = np.array([self._is_first(one, parts, i) for i, one in enumerate(ids)], bool)
        places = np.array([self.rows.get(one, -1) for one in ids], np.int64)
        known = np.flatnonzero((places >= 0) & is_first)
        known = known[np.argsort(places[known], kind="stable")]
        self._compare(places[known], {name: values[known] for name, values in parts.items()})
        is_new = (places < 0) & is_first
        return parts if is_new.all() else {name: values[is_new] for name, values in parts.items()}

    def finish(self) -> str:
        """Write what is left to replace, after the new rows; return a digest of all that was replaced."""
        for rows, parts in self._tail:
            self._write(rows, parts)
        return "".join(self._digests)

    def _is_first(self, one: Any, parts: Arrays, row: int) -> bool:
        """Return whether a row is the first of its id; raises DataError if the others have other values."""
        if one not in self.repeated:
            return True
        digest = digest_rows(*(values[row : row + 1] for values in parts.values()))
        if one not in self._first:
            self._first[one] = digest
            return True
        if self._first[one] != digest:
            raise DataError(
                f"several of the new rows have the id {one!r}, with different values; expected "
                "each id once. Leave out all rows of this id but one"
            )
        self.n_same += 1
        return False

    def _compare(self, rows: IntArray, parts: dict[str, np.ndarray]) -> None:
        differs = np.zeros(len(rows), bool)
        for name, (cells, stored) in differences(self.dataset, rows, parts).items():
            if name == "X":
                cells[:, list(self.not_compared)] = False
            differs |= cells.any(axis=1)
            if differs.any() and not self.replaces:
                row, column = np.argwhere(cells)[0].tolist()
                known = self.dataset.names({"X": "feature_names", "y": "target_names"}.get(name, "")) or ()
                called = repr(known[column]) if column < len(known) else name
                now = parts[name].reshape(len(rows), -1)[row, column]
                (one,) = parts[ID][row : row + 1].tolist()
                raise DataError(
                    f"the row with the id {one!r} is in {self.dataset.location} already, with other values: "
                    f"{called} is {now!s} and was {stored[row, column]!s}; expected new ids, or rows as they "
                    "are. Replace such rows by `replace_ids=True`, or by `rff-dist data correct`"
                )
        self.n_same += int((~differs).sum())
        self.n_replaced += int(differs.sum())
        replaced = {name: values[differs] for name, values in parts.items()}
        rows = rows[differs]
        if len(rows):
            self._digests.append(digest_rows(rows, *replaced.values()))
        is_tail = rows >= self._tail_start
        self._write(rows[~is_tail], {name: values[~is_tail] for name, values in replaced.items()})
        self._tail.append((rows[is_tail], {name: values[is_tail] for name, values in replaced.items()}))

    def _write(self, rows: IntArray, parts: Arrays) -> None:
        for name in self.dataset.headers if len(rows) else ():
            self.dataset.array(name).oindex[rows] = parts[name]


@contextmanager
def editing(location: locations.Location) -> Iterator[Editing]:
    """Open a versioned dataset for one change.

    Raises OutputBusyError if another run is changing it; StorageError if there is no versioned dataset.
    """
    require_versions(location)
    with repositories.changing(location) as change:
        stored = StoredGroup(change.store, str(location))
        # The headers come through the checks of what is read; the group for writing is Zarr's own.
        headers, group = read_headers(stored), zarr.open_group(change.store, mode="r+")
        n_before = _check(stored, headers)
        yield Editing(location, n_before, stored.attributes, headers, group, change)


def digest_rows(*parts: np.ndarray) -> str:
    """Return a digest of arrays."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(memory.canonical_bytes(part))
    return digest.hexdigest()


def read_headers(group: StoredGroup) -> dict[str, arrays.Header]:
    """Return the checked headers of a dataset's arrays by name."""
    headers = {name: group.read_header(name, text=name in ("y", "groups", ID)) for name in ROLES}
    return {name: header for name, header in headers.items() if header is not None}


def _check(dataset: StoredGroup, headers: Mapping[str, arrays.Header]) -> int:
    """Refuse a repository that this package did not write, or whose arrays disagree; return its rows."""
    if "X" not in headers or not documents.manifest_of(dataset.attributes):
        raise StorageError(
            f"{dataset.place} is a repository that rff_dist did not write; expected a versioned dataset. "
            "Open its arrays with Icechunk, and write them with write_dataset"
        )
    shapes = {name: header.shape for name, header in headers.items()}
    n_samples = documents.manifest_of(dataset.attributes).get("n_samples")
    if {shape[:1] for shape in shapes.values()} != {(n_samples,)}:
        raise StorageError(
            f"the arrays of {dataset.place} have the shapes {shapes}, and its manifest says "
            f"{n_samples} rows; expected as many rows in all arrays. Go back to an earlier version "
            "(`rff-dist data rollback`)"
        )
    refuse_others(dataset)
    return int(next(iter(shapes.values()))[0])


def refuse_others(dataset: StoredGroup) -> None:
    """Refuse a group with further arrays, which a change or a conversion would leave behind."""
    others = sorted(set(dataset.list_arrays()).difference(ROLES))
    if others:
        raise StorageError(
            f"{dataset.place} also holds {some([*map(repr, others)])}; expected only {', '.join(ROLES)}. "
            "Write other arrays to another group"
        )
