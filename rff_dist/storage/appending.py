"""Open a versioned dataset for a change, append rows, and commit: readers see all of
the change or nothing.

New rows go in; a new version comes out. Appending to plain Zarr would show readers half
of the rows, and a retry would append them twice; here rows may have ids, and no id
names two rows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
import zarr

from rff_dist.data import digests, row_batches
from rff_dist.data.blocks import Block
from rff_dist.data.loads import LOADS, Load, describe_loads, read_loads, with_load
from rff_dist.data.row_batches import ColumnNames, RowBatch, column_names
from rff_dist.data.sources import known_sources
from rff_dist.errors import DataError, StorageError
from rff_dist.storage import arrays, locations, repositories, writing
from rff_dist.storage.arrays import Header
from rff_dist.storage.columns import ID, as_column
from rff_dist.storage.commit import complete
from rff_dist.storage.groups import (
    MANIFEST,
    PREFIXES,
    StoredGroup,
    manifest_of,
    require_versions,
)
from rff_dist.storage.locations import Location, parse_location
from rff_dist.text import some
from rff_dist.typing import (
    AnyArray,
    Arrays,
    BoolArray,
    Facts,
    IntArray,
    PathLike,
    Summary,
    frozen,
)

_SHOWN_SOURCES = 20


@frozen
class ChangeResult:
    """The result of a change."""

    n_rows: int  # rows that were appended, replaced or deleted
    n_before: int  # rows of the dataset before, and after
    n_after: int
    version: str | None = None  # the new one; None if there was nothing to do


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
) -> ChangeResult:
    """Append rows to a versioned dataset, like `numpy.concatenate([old, new])` of each
    of its arrays.

    Readers see either the old rows or all rows. No id names two rows: see `ids`.

    Give exactly the arrays that the dataset has, with as many columns, and with dtypes
    that the stored dtypes hold without rounding. `convert_dataset` turns plain Zarr
    into a versioned dataset.

    The manifest's digest of all values becomes a digest of the old digest and the new
    rows' digest. So `fingerprint` changes with each append, and differs from that of
    the same rows written at once; `prefix_fingerprint` does not. An append that fails
    leaves the dataset as it was.

    Parameters
    ----------
    url : str or Path
        The dataset.
    X, y, sample_weight, groups
        As for `write_dataset`.
    ids : array-like of shape (n_samples,), optional
        The rows' names, integers or text, if the dataset was ingested with ids. Rows
        whose ids it has already are left out if their values are the same.
    replace_ids : bool, default=False
        Whether rows of known ids replace the stored ones if their values differ, which
        is an error otherwise.
    message : str, optional
        Why the rows are appended; kept with the version.

    Returns
    -------
    ChangeResult
        The numbers of rows, and the new version.

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
    with editing(parse_location(url)) as dataset:
        known = None
        if ids is not None and ID in dataset.headers:
            column = as_column(ids, name="ids")
            new_ids = column.read(Block(0, 0, column.n_samples))
            known = KnownRows.among(dataset, new_ids, replaces=replace_ids)
        return append_batches(
            dataset,
            batches,
            names=(column_names(X), column_names(y)),
            message=message,
            known=known,
        )


def append_batches(
    dataset: DatasetEditor,
    batches: Iterable[RowBatch],
    *,
    change: Callable[[Facts], Facts | None] = lambda _: {},
    names: ColumnNames = (None, None),
    observer: writing.Progress | None = None,
    message: str | None = None,
    known: KnownRows | None = None,
) -> ChangeResult:
    """Write batches after the existing rows, and commit them.

    After the last batch, since a source counts its rows while they are read, `change`
    makes the attributes to change from the group's attributes; None leaves the dataset
    as it was. `known` says what becomes of rows whose ids
    the dataset has already.
    """
    dataset.check_names(*names)
    n_before = dataset.n_before
    unchanged = f"; it has the {n_before:_} rows of before"
    with locations.store_errors(
        f"rows could not be appended to {dataset.location}", unchanged
    ):
        buffer = dataset.row_buffer()
        for batch in batches:
            parts = dataset.fit_batch(batch, buffer.n_samples)
            buffer.add(parts if known is None else known.take_new(parts, buffer))
            if observer is not None:
                observer(buffer.n_samples - n_before, None)
        n_new = buffer.n_samples - n_before
        n_replaced = 0 if known is None else known.n_replaced
        attributes = change(dataset.attributes)
        if attributes is None or not (n_new or n_replaced or attributes):
            return ChangeResult(0, n_before, n_before)
        digest = buffer.finish()
        if known is not None:
            digest += known.digest
        facts: Summary = {}
        words = f"append {n_new:,} rows"
        if n_replaced:
            words += f", replace {n_replaced:,}"
        n_old_sources = len(known_sources(dataset.attributes))
        new_sources = known_sources(attributes)[n_old_sources:]
        if new_sources:
            source_names = [str(source.get("name")) for source in new_sources]
            words += f" from {some(source_names)}"
            facts["sources"] = source_names[:_SHOWN_SOURCES]
        if n_replaced:
            facts |= {"n_added": n_new, "n_replaced": n_replaced, "n_deleted": 0}
        version = dataset.commit(
            "merge" if n_replaced else "append",
            buffer.n_samples,
            digest=digest,
            attributes=attributes,
            message=message or words,
            facts=facts,
        )
    return ChangeResult(n_new, n_before, buffer.n_samples, version)


# -- open a versioned dataset for changes, and commit them


ROLES = ("X", "y", "sample_weight", "groups", ID, row_batches.TIME)
# how many appends before the last the manifest lists
_MOST_PREFIXES = 1000


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
        """Return which rows came together, before the change."""
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
                        f" expected the columns {some([*map(repr, known)])} in this"
                        " order. Choose and sort them by name"
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

    def fit_batch(self, batch: RowBatch, first_row: int) -> dict[str, AnyArray]:
        """Return a batch's arrays by name, in the dtypes of the dataset's arrays.

        Raises DataError if the dataset has other arrays, or would round the values.
        """
        parts = row_batches.name_parts(batch, first_row)
        if parts.keys() != self.headers.keys():
            raise DataError(
                f"the new rows have the arrays {', '.join(parts)}, and {self.location}"
                f" has {', '.join(self.headers)}; expected the same arrays"
            )
        fitted = {}
        for name, values in parts.items():
            header = self.headers[name]
            shape = (len(parts["X"]), *header.shape[1:])
            fitted[name] = row_batches.fit(
                values, shape, header.dtype, name, self.label(name)
            )
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

        `what` is the kind of change, such as "append", and `digest` one of the changed
        rows. The loads become one more for new rows, unless they are given.
        """
        manifest = manifest_of(self.attributes)
        # A chain, so that old rows need not be read again. The same rows in two appends
        # have another one.
        chain = hashlib.sha256(f"{manifest['sha256']}|{digest}".encode()).hexdigest()
        # After any other change, an earlier version's rows are not the first rows any
        # more.
        prefixes = []
        if what == "append":
            prefixes = manifest[PREFIXES][-_MOST_PREFIXES:]
        if loads is None:
            loads = with_load(self.loads(), n_after)
        state = {
            "n_samples": n_after,
            "sha256": chain,
            PREFIXES: [*prefixes, [n_after, chain]],
            LOADS: describe_loads(loads),
        }
        # Only changed chunks' checksums are read for the manifest; all others are known
        # from the one before.
        complete(
            self._change.store,
            self.headers,
            {**(attributes or {}), MANIFEST: {**manifest, **state}},
            place=self.location,
            changed=self._change.changed_chunks(),
        )
        about = {
            "change": what,
            "n_before": self.n_before,
            "n_after": n_after,
            "sha256": chain,
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
        # The headers come through the checks of what is read; the group for writing is
        # Zarr's own.
        stored = StoredGroup(change.store, str(location))
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
        header = group.read_header(name, text=name in ("y", "groups", ID))
        if header is not None:
            headers[name] = header
    return headers


def _check(dataset: StoredGroup, headers: Mapping[str, Header]) -> int:
    """Return the number of rows; refuse a repository that others wrote."""
    if "X" not in headers or not dataset.manifest:
        raise StorageError(
            f"{dataset.place} is a repository that rff_dist did not write; expected a"
            " versioned dataset. Open its arrays with Icechunk, and write them with"
            " write_dataset"
        )
    shapes = {name: header.shape for name, header in headers.items()}
    n_samples = dataset.manifest.get("n_samples")
    if {shape[:1] for shape in shapes.values()} != {(n_samples,)}:
        raise StorageError(
            f"the arrays of {dataset.place} have the shapes {shapes}, and its manifest"
            f" says {n_samples} rows; expected as many rows in all arrays. Go back to"
            " an earlier version (`rff-dist data rollback`)"
        )
    refuse_others(dataset)
    return shapes["X"][0]


def refuse_others(dataset: StoredGroup) -> None:
    """Refuse a group with further arrays, which would stay as they are."""
    others = sorted({*dataset.list_arrays()}.difference(ROLES))
    if others:
        raise StorageError(
            f"{dataset.place} also holds {some([*map(repr, others)])}; expected only"
            f" {', '.join(ROLES)}. Write other arrays to another group"
        )


# -- rows that are stored already


def select(parts: Arrays, rows: IntArray | BoolArray) -> dict[str, AnyArray]:
    """Return some rows of each array."""
    return {name: values[rows] for name, values in parts.items()}


def digest_rows(*parts: AnyArray) -> str:
    """Return a digest of arrays."""
    return "".join(map(digests.digest_array, parts))


def find_values(
    dataset: DatasetEditor, name: str, values: AnyArray, column: int | None = None
) -> dict[Any, list[int]]:
    """Return the rows of an array, or of one of its columns, that have some values, by
    value; all of the array is read.
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
    """Return the row of each id that the dataset has; no two rows may have one id."""
    rows_of = find_values(dataset, ID, ids)
    for name, rows in rows_of.items():
        if len(rows) > 1:
            raise DataError(
                f"rows {rows[0]:_} and {rows[1]:_} of {dataset.location} have the id"
                f" {name!r}; expected one, which changes with it"
            )
    return {name: row for name, (row,) in rows_of.items()}


def differences(
    dataset: DatasetEditor, rows: IntArray, parts: Arrays
) -> dict[str, tuple[BoolArray, AnyArray]]:
    """Return, for each array, which values differ from those stored in some rows,
    ascending, and the stored values.
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


@dataclass
class KnownRows:
    """What becomes of new rows whose ids a dataset has already, made by `among`.

    Rows with the same values are left out and counted. Others are refused, or replace
    the stored ones.
    """

    dataset: DatasetEditor
    rows: Mapping[Any, int]  # the stored row of each known id
    repeated: Collection[Any]  # ids that come more than once among the new rows
    replaces: bool  # whether rows with other values replace the stored ones
    n_same: int = 0
    n_replaced: int = 0
    digest: str = ""  # of the rows that replaced others
    _digest_of_first: dict[Any, str] = field(default_factory=dict)

    @classmethod
    def among(
        cls,
        dataset: DatasetEditor,
        ids: AnyArray,
        *,
        replaces: bool,
    ) -> Self:
        """Look for new ids among all ids of the dataset."""
        header = dataset.headers[ID]
        # `fit_batch` refuses them
        if not row_batches.can_hold(header.dtype, ids.dtype):
            return cls(dataset, {}, (), replaces)
        different, counts = np.unique(ids.astype(header.dtype), return_counts=True)
        rows = locate_ids(dataset, different)
        repeated = {*different[counts > 1].tolist()}
        return cls(dataset, rows, repeated, replaces)

    def take_new(self, parts: Arrays, buffer: writing.RowBuffer) -> Arrays:
        """Return the rows of a batch that are new, and replace others by the buffer;
        raises DataError if they have other values and may not be replaced.
        """
        ids = parts[ID].tolist()
        is_first = np.array(
            [self._is_first(name, parts, i) for i, name in enumerate(ids)], bool
        )
        stored_rows = np.array([self.rows.get(name, -1) for name in ids], np.int64)
        known = np.flatnonzero((stored_rows >= 0) & is_first)
        known = known[np.argsort(stored_rows[known], kind="stable")]
        self._compare(stored_rows[known], select(parts, known), buffer)
        return select(parts, (stored_rows < 0) & is_first)

    def _is_first(self, name: Any, parts: Arrays, row: int) -> bool:
        """Return whether a row is the first of its id; raises DataError if the others
        have other values.
        """
        if name not in self.repeated:
            return True
        digest = digest_rows(*(values[row : row + 1] for values in parts.values()))
        if name not in self._digest_of_first:
            self._digest_of_first[name] = digest
            return True
        if self._digest_of_first[name] != digest:
            raise DataError(
                f"several of the new rows have the id {name!r}, with different values;"
                " expected each id once. Leave out all rows of this id but one"
            )
        self.n_same += 1
        return False

    def _compare(
        self, rows: IntArray, parts: Arrays, buffer: writing.RowBuffer
    ) -> None:
        """Count rows that are as they are stored, ascending, and replace the others."""
        differs = np.zeros(len(rows), bool)
        for name, (cells, stored) in differences(self.dataset, rows, parts).items():
            differs |= cells.any(axis=1)
            if differs.any() and not self.replaces:
                row, column = np.argwhere(cells)[0].tolist()
                new = parts[name].reshape(len(rows), -1)
                row_id = parts[ID][row : row + 1].tolist()[0]
                raise DataError(
                    f"the row with the id {row_id!r} is in {self.dataset.location}"
                    f" already, with other values: {self._column_name(name, column)} is"
                    f" {new[row, column]!s} and was {stored[row, column]!s}; expected"
                    " new ids, or rows as they are. Replace such rows by"
                    " `replace_ids=True`, or by `rff-dist data correct`"
                )
        n_differing = int(differs.sum())
        self.n_same += len(rows) - n_differing
        self.n_replaced += n_differing
        rows = rows[differs]
        parts = select(parts, differs)
        if n_differing:
            self.digest += digest_rows(rows, *parts.values())
            buffer.overwrite(rows, parts)

    def _column_name(self, name: str, column: int) -> str:
        keys = {"X": "feature_names", "y": "target_names"}
        names = self.dataset.names(keys.get(name, "")) or ()
        return repr(names[column]) if column < len(names) else name
