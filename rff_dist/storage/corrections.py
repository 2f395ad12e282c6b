"""Replace or delete rows of a versioned dataset, and convert plain Zarr to one.

Row numbers and new rows go in; one new version comes out. Only chunks with changed rows
are written, so that a later update of a model reads little. So a deletion moves the
last rows to the places of deleted ones, unless the order is to stay.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data.array_checks import check_rows
from rff_dist.data.loads import with_load, without_deleted
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import arrays, datasets, locations, writing
from rff_dist.storage.arrays import ZarrArray
from rff_dist.storage.columns import ID, id_column
from rff_dist.storage.editing import (
    ROLES,
    ChangeResult,
    DatasetEditor,
    differences,
    digest_rows,
    editing,
    find_values,
    in_stored_order,
    read_headers,
    refuse_others,
    select,
)
from rff_dist.storage.groups import find_group
from rff_dist.storage.locations import parse_location
from rff_dist.storage.manifests import MANIFEST
from rff_dist.storage.output_places import check_output
from rff_dist.typing import AnyDType, Arrays, Facts, IntArray, PathLike, frozen

_NO_ROWS = np.empty(0, np.int64)


def replace_rows(
    url: PathLike,
    rows: ArrayLike,
    X: Any,
    y: Any = None,
    *,
    sample_weight: Any = None,
    groups: Any = None,
    ids: Any = None,
    message: str | None = None,
) -> ChangeResult:
    """Replace rows of a versioned dataset, like `array[rows] = new` for each of its
    arrays, in one commit.

    Parameters
    ----------
    url : str or Path
        The dataset.
    rows : int array of shape (n_rows,), or bool array of shape (n_samples,)
        Numbers of the rows, counted from 0, without repeats.
    X, y, sample_weight, groups, ids
        The new rows, in the order of `rows`; as for `append_dataset`.
    message : str, optional
        Why the rows are replaced; kept with the version.

    Raises
    ------
    DataError
        If arrays, shapes, dtypes or column names differ from the dataset's.
    InvalidParameterError
        If a row does not exist or is named twice.
    OutputBusyError, ConflictError, StorageError
        As `append_dataset`.
    """
    batches, _, names = writing.read_source(X, y, sample_weight, groups, ids)
    with editing(parse_location(url)) as dataset:
        dataset.check_names(*names)
        parts = dataset.cast_all(batches)
        return replace_in(dataset, rows, parts, message=message, attributes={})


def replace_in(
    dataset: DatasetEditor,
    rows: ArrayLike,
    parts: Arrays,
    *,
    message: str | None,
    attributes: Facts,
) -> ChangeResult:
    """Replace rows of a dataset that is open for changes, change some attributes of its
    group, and commit.

    `parts` are new rows from `DatasetEditor.cast_all`, in the order of `rows`.
    """
    numbers = check_rows(rows, dataset.n_before)
    unique_numbers, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        raise InvalidParameterError(
            f"row {unique_numbers[counts > 1][0]:_} is named {counts.max()} times;"
            " expected each row once"
        )
    n_rows = len(parts["X"])
    n_before = dataset.n_before
    if n_rows != len(numbers):
        raise DataError(
            f"{n_rows:_} rows for {len(numbers):_} row numbers; expected one of each"
        )
    if not n_rows:
        return ChangeResult(0, n_before, n_before)
    version = _commit(
        dataset,
        "replace",
        message or f"replace {_rows(n_rows)}",
        parts=parts,
        rows=numbers,
        facts={"n_rows": n_rows},
        attributes=attributes,
    )
    return ChangeResult(n_rows, n_before, n_before, version)


def delete_rows(
    url: PathLike,
    rows: ArrayLike,
    *,
    keep_order: bool = False,
    message: str | None = None,
) -> ChangeResult:
    """Delete rows by their numbers, like `numpy.delete(array, rows, axis=0)` of each
    array, in one commit.

    By default the order changes: the last rows take the places of the deleted ones, so
    that few chunks change and `update` reads little. If the order matters, as with
    `TimeFolds`, `keep_order` moves all later rows up instead.

    Earlier versions still hold the rows until they expire.

    Parameters
    ----------
    url : str or Path
        The dataset.
    rows : int array of shape (n_rows,), or bool array of shape (n_samples,)
        Numbers of the rows, counted from 0; repeats do no harm.
    keep_order : bool, default=False
        Whether the remaining rows keep their order. All chunks from the first deleted
        row on are then rewritten.
    message : str, optional
        Why the rows are deleted; kept with the version.

    Raises
    ------
    DataError
        If no row would be left.
    InvalidParameterError
        If a row does not exist.
    OutputBusyError, ConflictError, StorageError
        As `append_dataset`.
    """
    with editing(parse_location(url)) as dataset:
        return delete_from(dataset, rows, keep_order=keep_order, message=message)


def delete_from(
    dataset: DatasetEditor,
    rows: ArrayLike,
    *,
    keep_order: bool,
    message: str | None,
    change_kind: str = "delete",
    attributes: Facts | None = None,
) -> ChangeResult:
    """Delete rows of a dataset that is open for changes, change some attributes of its
    group, and commit.

    `change_kind` is the kind of change that the version records.
    """
    n_before = dataset.n_before
    # ascending and without repeats, as `_delete` and `without_deleted` need them
    deleted = np.unique(check_rows(rows, n_before))
    n_rows = len(deleted)
    if not n_rows:
        return ChangeResult(0, n_before, n_before)
    version = _commit(
        dataset,
        change_kind,
        message or f"{change_kind} {_rows(n_rows)}",
        deleted=deleted,
        keep_order=keep_order,
        facts={"n_rows": n_rows, "order_kept": keep_order},
        attributes=attributes or {},
    )
    return ChangeResult(n_rows, n_before, n_before - n_rows, version)


def _rows(n_rows: int) -> str:
    return f"{n_rows:,} row{'s' * (n_rows != 1)}"


@frozen
class MergeResult:
    """The result of `merge_rows`: numbers of rows, and the new version."""

    n_added: int
    n_replaced: int
    n_deleted: int
    version: str


def merge_rows(
    dataset: DatasetEditor,
    parts: Arrays,
    rows: IntArray,
    deleted: IntArray,
    *,
    message: Callable[[int, int, int], str],
    attributes: Facts,
) -> MergeResult:
    """Replace, append and delete rows of a dataset that is open for changes, in one
    commit.

    `parts` are new rows from `DatasetEditor.cast_all`, and `rows` has the stored row
    that each of them replaces, -1 to append it. A new row with the values that are
    stored already changes nothing. `deleted` are ascending row numbers, whose places
    the last rows take. `message` gets the numbers of added, replaced and deleted rows.
    """
    changes = rows < 0  # whether each new row changes the dataset
    known = in_stored_order(rows)
    compared = differences(dataset, rows[known], select(parts, known))
    for is_different, _ in compared.values():
        changes[known] |= is_different.any(axis=1)
    rows = rows[changes]
    n_added = int((rows < 0).sum())
    n_replaced = len(rows) - n_added
    n_deleted = len(deleted)
    version = _commit(
        dataset,
        "merge" if n_replaced or n_deleted else "append",
        message(n_added, n_replaced, n_deleted),
        parts=select(parts, changes),
        rows=rows,
        deleted=deleted,
        facts={
            "n_added": n_added,
            "n_replaced": n_replaced,
            "n_deleted": n_deleted,
        },
        attributes=attributes,
    )
    return MergeResult(n_added, n_replaced, n_deleted, version)


def _commit(
    dataset: DatasetEditor,
    change_kind: str,
    message: str,
    *,
    facts: Facts,
    attributes: Facts,
    parts: Arrays = MappingProxyType({}),
    rows: IntArray = _NO_ROWS,
    deleted: IntArray = _NO_ROWS,
    keep_order: bool = False,
) -> str:
    """Write, then delete rows, and commit; return the new version.

    `rows` has the stored row that each row of `parts` replaces, -1 to append it;
    `deleted` has ascending row numbers.
    """
    is_added = rows < 0
    n_all = dataset.n_before + int(is_added.sum())
    n_after = n_all - len(deleted)
    if not n_after:
        raise DataError(
            f"all {n_all:_} rows of {dataset.location} would be deleted; expected one"
            " to stay"
        )
    with locations.store_errors(
        f"rows of {dataset.location} could not be changed", "; they are unchanged"
    ):
        replacing = in_stored_order(rows)
        dataset.overwrite(rows[replacing], select(parts, replacing))
        digest = digest_rows(rows, deleted, np.array([keep_order]), *parts.values())
        if n_all > dataset.n_before:
            buffer = dataset.row_buffer()
            buffer.add(select(parts, is_added))
            buffer.finish()
        loads = with_load(dataset.loads(), n_all)
        if len(deleted):
            _delete(dataset, deleted, n_all, keep_order=keep_order)
            loads = without_deleted(loads, deleted, keep_order=keep_order)
        return dataset.commit(
            change_kind,
            n_after,
            digest=digest,
            message=message,
            facts=facts,
            attributes=attributes,
            loads=loads,
        )


def _delete(
    dataset: DatasetEditor, deleted: IntArray, n_all: int, *, keep_order: bool
) -> None:
    """Remove rows, whose numbers ascend, from all arrays, which have `n_all` rows."""
    n_after = n_all - len(deleted)
    # holes: deleted rows below the new length; the movers are as many, and fill them
    holes = deleted[deleted < n_after]
    last = np.arange(n_after, n_all)
    movers = np.setdiff1d(last, deleted, assume_unique=True)
    for name in dataset.headers:
        array = dataset.array(name)
        label = dataset.label(name)
        if keep_order:
            _move_up(array, deleted, label)
        elif len(holes):
            array.oindex[holes] = arrays.gather_rows(array, movers, label=label)
        # The last chunk is stored whole, and would still contain deleted values behind
        # the last row: erase them.
        chunk_rows = array.chunks[0]
        chunk_end = min(n_all, -(-n_after // chunk_rows) * chunk_rows)
        if chunk_end > n_after:
            array[n_after:chunk_end] = array.fill_value
        array.resize((n_after, *array.shape[1:]))


def _move_up(array: ZarrArray, deleted: IntArray, label: str) -> None:
    """Move rows up over deleted ones, chunk by chunk.

    No row is overwritten before it is read, since rows only move up.
    """
    chunk_rows = array.chunks[0]
    n_samples = array.shape[0]
    first = int(deleted[0]) // chunk_rows * chunk_rows
    target = first  # the row to write next
    # read, and to be written when they fill a chunk
    waiting = np.empty((0, *array.shape[1:]), array.dtype)
    for start in range(first, n_samples, chunk_rows):
        stop = min(start + chunk_rows, n_samples)
        rows = arrays.read_rows(array, start, stop, label=label)
        staying = np.isin(np.arange(start, stop), deleted, invert=True)
        waiting = np.concatenate([waiting, rows[staying]])
        if len(waiting) >= chunk_rows:
            array[target : target + chunk_rows] = waiting[:chunk_rows]
            target += chunk_rows
            waiting = waiting[chunk_rows:]
    if len(waiting):
        array[target : target + len(waiting)] = waiting


# -- find rows by values


def find_rows(
    dataset: DatasetEditor, column: str, values: Sequence[Any]
) -> list[IntArray]:
    """Return, for each value, the numbers of the rows that have it in a column; all of
    the column is read.

    `column` is the name of a column of X or y, or "groups" or "id", or the name that
    groups or ids had in their table.
    """
    name, position = _column_of(dataset, column)
    dtype = dataset.array(name).dtype
    stored = [_as_stored(value, dtype) for value in values]
    wanted = np.array([value for value in stored if value is not None], dtype)
    rows_of = find_values(dataset, name, wanted, position)
    return [np.array(rows_of.get(value, []), np.int64) for value in stored]


def _as_stored(value: Any, dtype: AnyDType) -> Any:
    """Return a value as an array of this dtype stores it; None if the array cannot
    contain it.
    """
    if dtype.kind == "T":
        return str(value)
    try:
        if dtype.kind == "f":
            return dtype.type(value).item()
        whole = int(value)  # float64 would take 2⁵³ and 2⁵³ + 1 for the same id
    except (ValueError, OverflowError):  # such as other text, or NaN
        return None
    if not isinstance(value, str) and whole != value:
        return None
    if dtype.kind == "b":
        return whole if whole in (0, 1) else None
    limits = np.iinfo(dtype)
    return whole if limits.min <= whole <= limits.max else None


def _column_of(dataset: DatasetEditor, column: str) -> tuple[str, int | None]:
    """Return the name of a column's array, and the column's position there; None
    instead of a position if the array has one axis.
    """
    places: dict[str, tuple[str, int | None]] = {}
    for name, source in (
        ("groups", dataset.attributes.get("groups_column")),
        (ID, id_column(dataset.attributes)),
    ):
        if name in dataset.headers:
            places[name] = (name, None)
            if source is not None:
                places[source] = (name, None)
    for name, key in (("y", "target_names"), ("X", "feature_names")):
        if name in dataset.headers:
            is_vector = len(dataset.headers[name].shape) == 1
            for i, known in enumerate(dataset.names(key) or ()):
                places[known] = (name, None if is_vector else i)
    if column not in places:
        shown = ", ".join(map(repr, [*places][:20])) or "no names"
        raise InvalidParameterError(
            f"{dataset.location} has no column {column!r}; it has {shown}"
        )
    return places[column]


# -- conversion


def convert_dataset(
    url: PathLike,
    output: PathLike | None = None,
    *,
    observer: writing.Progress | None = None,
) -> str:
    """Convert plain Zarr, of format 2 or 3 and by any writer, to a versioned dataset.

    Parameters
    ----------
    url : str or Path
        The plain dataset: X and, if present, y, sample_weight, groups and id.
    output : str or Path, optional
        Where to write. By default the plain dataset is replaced when the new one is
        complete, which an object store cannot do.
    observer : callable, optional
        Called with (rows written, rows in all) after each batch.

    Returns
    -------
    str
        The new version.

    Raises
    ------
    StorageError
        If there is no plain dataset, it holds other arrays, or the output cannot be
        written.
    OutputExistsError
        If there is something at `output`.
    """
    location = parse_location(url)
    target = location if output is None else parse_location(output)
    if locations.is_versioned(location):
        raise StorageError(
            f"{location} keeps versions already; there is nothing to convert"
        )
    if output is not None:
        check_output(target, overwrite=False, inputs=[location])
    group = find_group(url)
    headers = read_headers(group)
    if "X" not in headers:
        raise StorageError(f"{group.url} has no array 'X'; expected a dataset")
    refuse_others(group)
    n_samples = headers["X"].shape[0]
    chunk_rows = headers["X"].stored_rows
    attributes = dict(group.attributes)
    attributes.pop(MANIFEST, None)
    names = attributes.pop("feature_names", None), attributes.pop("target_names", None)
    stored = datasets.read_arrays(url, [*headers], n_rows=chunk_rows)
    batches = (tuple(map(parts.get, ROLES)) for parts in stored)
    # With the same chunks, since blocks end on their edges: results have the same bits,
    # and a stopped job can go on from its kept sums.
    write_options = writing.WriteOptions(
        chunk_rows,
        overwrite=output is None,
        observer=observer,
        versioned=True,
        message=f"convert {n_samples:,} rows of plain Zarr",
    )
    dataset = writing.write_batches(
        target,
        batches,
        n_samples=n_samples,
        names=names,
        attributes=attributes,
        write_options=write_options,
    )
    assert dataset.version is not None
    return dataset.version
