"""Append rows to a versioned dataset, in which no id names two rows.

New rows go in; a new version comes out. A row whose id the dataset has already is left
out if its values are the same, and else refused, or it replaces the stored row.
Appending alone would store a row twice if a retry sends it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from rff_dist.data import row_batches
from rff_dist.data.blocks import Block
from rff_dist.data.row_batches import ColumnNames, RowBatch
from rff_dist.data.sources import known_sources
from rff_dist.errors import DataError
from rff_dist.storage import locations, writing
from rff_dist.storage.columns import ID, as_column, id_column
from rff_dist.storage.editing import (
    ChangeResult,
    DatasetEditor,
    differences,
    digest_rows,
    editing,
    find_in_other_part,
    in_stored_order,
    locate_ids,
    select,
)
from rff_dist.storage.locations import parse_location
from rff_dist.text import first_few
from rff_dist.typing import (
    AnyArray,
    Arrays,
    BoolArray,
    Facts,
    IntArray,
    PathLike,
    Summary,
)

_SHOWN_SOURCES = 20


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
    rows' digest. So `fingerprint` changes with each append, and the same rows written
    at once have another one. Their `prefix_fingerprint`, a digest of rows that are
    read, is the same. An append that fails leaves the dataset as it was.

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
    batches, _, names = writing.read_source(X, y, sample_weight, groups, ids)
    with editing(parse_location(url)) as dataset:
        # ids that the dataset does not have are refused by `cast_batch`
        id_check = None
        if ids is not None and ID in dataset.headers:
            column = as_column(ids, name="ids")
            new_ids = column.read(Block(0, 0, column.n_samples))
            id_check = IdCheck.among(dataset, new_ids, replaces=replace_ids)
        return append_batches(
            dataset,
            batches,
            names=names,
            message=message,
            id_check=id_check,
        )


def append_batches(
    dataset: DatasetEditor,
    batches: Iterable[RowBatch],
    *,
    change: Callable[[Facts], Facts | None] = lambda _: {},
    names: ColumnNames = (None, None),
    observer: writing.Progress | None = None,
    message: str | None,
    id_check: IdCheck | None,
) -> ChangeResult:
    """Write batches after the existing rows, and commit them.

    `change` returns the attributes to change, from the group's attributes; if it
    returns None, the dataset stays as it was. It is called after the last batch, since
    a source counts its rows while they are read. `id_check` decides what happens to
    rows whose ids the dataset has already.
    """
    dataset.check_names(*names)
    n_before = dataset.n_before
    unchanged = f"; it still has its {n_before:_} rows"
    with locations.store_errors(
        f"rows could not be appended to {dataset.location}", unchanged
    ):
        buffer = dataset.row_buffer()
        for batch in batches:
            parts = dataset.cast_batch(batch, buffer.n_samples)
            buffer.add(parts if id_check is None else id_check.take_new(parts, buffer))
            if observer is not None:
                observer(buffer.n_samples - n_before, None)
        n_new = buffer.n_samples - n_before
        n_replaced = 0 if id_check is None else id_check.n_replaced
        attributes = change(dataset.attributes)
        is_unchanged = not (n_new or n_replaced or attributes)
        if attributes is None or is_unchanged:
            return ChangeResult(0, n_before, n_before)
        digest = buffer.finish()
        if id_check is not None:
            digest += id_check.digest
        facts: Summary = {}
        words = f"append {n_new:,} rows"
        if n_replaced:
            words += f", replace {n_replaced:,}"
        n_old_sources = len(known_sources(dataset.attributes))
        new_sources = known_sources(attributes)[n_old_sources:]
        if new_sources:
            source_names = [str(source.get("name")) for source in new_sources]
            words += f" from {first_few(source_names)}"
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


# -- rows that the dataset has already


@dataclass
class IdCheck:
    """Decides by its id what happens to each new row; made by `among`.

    A row of a new id is appended. A row whose id a stored row or an earlier new row has
    is left out and counted, if it has the same values. If they differ, it replaces the
    stored row, or is refused; a repeated new row is always refused. A row of the other
    part of a split table is left out and counted.
    """

    dataset: DatasetEditor
    row_of_id: Mapping[Any, int]  # the stored row of each known id
    repeated: Collection[Any]  # ids that come more than once among the new rows
    replaces: bool  # whether rows with other values replace the stored ones
    of_other_part: Collection[Any] = ()  # ids of rows that are left out
    n_same: int = 0  # rows left out, which a caller reports
    n_replaced: int = 0
    digest: str = ""  # of the rows that replaced others
    #: per batch, which of its rows are appended
    is_new: list[BoolArray] = field(default_factory=list)
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
        # Ids of another type are refused later, by `cast_batch`.
        if not row_batches.can_hold(header.dtype, ids.dtype):
            return cls(dataset, {}, (), replaces)
        unique_ids, counts = np.unique(ids.astype(header.dtype), return_counts=True)
        row_of_id = locate_ids(dataset, unique_ids)
        repeated = {*unique_ids[counts > 1].tolist()}
        _, of_other_part = find_in_other_part(dataset, {*unique_ids.tolist()})
        return cls(dataset, row_of_id, repeated, replaces, of_other_part)

    def take_new(self, parts: Arrays, buffer: writing.RowBuffer) -> Arrays:
        """Return the rows of a batch that are new; overwrite stored rows of known ids
        through the buffer if their values differ.

        Raises DataError if values differ and may not be replaced.
        """
        ids = parts[ID].tolist()
        is_first = np.array(
            [self._is_first(row_id, parts, i) for i, row_id in enumerate(ids)], bool
        )
        stored_rows = np.array(
            [self.row_of_id.get(row_id, -1) for row_id in ids], np.int64
        )
        known = in_stored_order(np.where(is_first, stored_rows, -1))
        self._replace_different(stored_rows[known], select(parts, known), buffer)
        is_new = (stored_rows < 0) & is_first
        self.is_new.append(is_new)
        return select(parts, is_new)

    def _is_first(self, row_id: Any, parts: Arrays, row: int) -> bool:
        """Return whether a new row is the first with its id, and may be in the dataset.

        A repeat is counted; raises DataError if its values differ from the first's.
        """
        if row_id in self.of_other_part:
            return False
        if row_id not in self.repeated:
            return True
        digest = digest_rows(*(values[row : row + 1] for values in parts.values()))
        if row_id not in self._digest_of_first:
            self._digest_of_first[row_id] = digest
            return True
        if self._digest_of_first[row_id] != digest:
            raise DataError(
                f"several of the new rows have the id {row_id!r}, with different"
                " values; expected each id once. Leave out all rows of this id but one"
            )
        self.n_same += 1
        return False

    def _replace_different(
        self, rows: IntArray, parts: Arrays, buffer: writing.RowBuffer
    ) -> None:
        """Replace stored rows whose values differ from the new ones in `parts`, and
        count the others.

        `rows` are the stored rows' numbers, ascending.
        """
        differs = np.zeros(len(rows), bool)
        compared = differences(self.dataset, rows, parts)
        for name, (is_different, stored) in compared.items():
            differs |= is_different.any(axis=1)
            if differs.any() and not self.replaces:
                row, column = np.argwhere(is_different)[0].tolist()
                new = parts[name].reshape(len(rows), -1)
                row_id = parts[ID][row : row + 1].tolist()[0]
                names = {
                    "X": self.dataset.names("feature_names"),
                    "y": self.dataset.names("target_names"),
                }.get(name)
                what = name if names is None else repr(names[column])
                by = id_column(self.dataset.attributes) or "COLUMN"
                raise DataError(
                    f"the row with the id {row_id!r} is in {self.dataset.location}"
                    f" already, with other values: {what} is"
                    f" {new[row, column]!s} and was {stored[row, column]!s}; expected"
                    " new ids, or rows as they are. Replace such rows by"
                    f" `replace_ids=True`, or by `rff-dist data correct --by {by}`"
                )
        n_differing = int(differs.sum())
        self.n_same += len(rows) - n_differing
        self.n_replaced += n_differing
        rows = rows[differs]
        parts = select(parts, differs)
        if n_differing:
            self.digest += digest_rows(rows, *parts.values())
            buffer.overwrite(rows, parts)
