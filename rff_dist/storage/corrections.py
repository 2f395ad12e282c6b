"""Replace or delete rows of a versioned dataset, and convert plain Zarr to a versioned dataset."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks, loads, memory, row_batches
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import appending, documents, locations, output_places, writing
from rff_dist.storage.arrays import ZarrArray, gather_rows, read_rows, stored_rows
from rff_dist.storage.columns import ID, id_column
from rff_dist.storage.groups import find_group
from rff_dist.typing import AnyDType, Arrays, Facts, IntArray, PathLike, frozen


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
) -> appending.Changed:
    """Replace rows of a versioned dataset, like `array[rows] = new` for each of its arrays, in one commit.

    Parameters
    ----------
    url : str or Path
        The dataset.
    rows : int array of shape (n_rows,)
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
    batches, _ = writing.read_source(X, y, sample_weight, groups, ids)
    with appending.editing(locations.parse_location(url)) as dataset:
        dataset.check_names(row_batches.column_names(X), row_batches.column_names(y))
        return replace_batches(dataset, rows, batches, message=message)


def replace_batches(
    dataset: appending.Editing,
    rows: ArrayLike,
    batches: Iterator[row_batches.RowBatch],
    *,
    message: str | None,
) -> appending.Changed:
    """Replace the rows numbered `rows` by the batches' rows, in this order, and commit."""
    numbers = memory.check_indices(np.asarray(rows, np.int64), dataset.n_before)
    values, counts = np.unique(numbers, return_counts=True)
    if (counts > 1).any():
        raise InvalidParameterError(
            f"row {values[counts > 1][0]:_} is named {counts.max()} times; expected each row once"
        )
    read = [dataset.fit_batch(batch, 0) for batch in batches]
    parts = {name: np.concatenate([part[name] for part in read]) for name in dataset.headers} if read else {}
    n_rows, n_before = len(parts["X"]) if parts else 0, dataset.n_before
    if n_rows != len(numbers):
        raise DataError(f"{n_rows:_} rows for {len(numbers):_} row numbers; expected one of each")
    if not n_rows:
        return appending.Changed(0, n_before, n_before)
    # in the order of the stored rows, so that each chunk is read and written once
    order = np.argsort(numbers)
    with _changing(dataset, "replaced"):
        for name, values in parts.items():
            dataset.array(name).oindex[numbers[order]] = values[order]
        digest = appending.digest_rows(numbers[order], *(values[order] for values in parts.values()))
        words = message or f"replace {n_rows:,} row{'s' * (n_rows != 1)}"
        version = dataset.commit("replace", n_before, digest=digest, message=words, facts={"n_rows": n_rows})
    return appending.Changed(n_rows, n_before, n_before, version)


def delete_rows(
    url: PathLike, rows: ArrayLike, *, keep_order: bool = False, message: str | None = None
) -> appending.Changed:
    """Delete rows by their numbers, like `numpy.delete(array, rows, axis=0)` of each array, in one commit.

    By default the order changes: the last rows take the places of the deleted ones, so that few chunks change
    and `update` reads little. If the order matters, as with `TimeFolds`, `keep_order` moves all later rows up
    instead.

    Earlier versions still hold the rows until they expire.

    Parameters
    ----------
    url : str or Path
        The dataset.
    rows : int array of shape (n_rows,)
        Numbers of the rows, counted from 0; repeats do no harm.
    keep_order : bool, default=False
        Whether the remaining rows keep their order. All chunks from the first deleted row on are then
        rewritten.
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
    with appending.editing(locations.parse_location(url)) as dataset:
        return delete_from(dataset, rows, keep_order=keep_order, message=message)


def delete_from(
    dataset: appending.Editing,
    rows: ArrayLike,
    *,
    keep_order: bool,
    message: str | None,
    what: str = "delete",
    attributes: Facts | None = None,
) -> appending.Changed:
    """Delete rows of a dataset that is open for changes, and commit.

    `what`: the kind of change, for its version.
    `attributes`: attributes of the group that change.
    """
    # ascending, as `np.setdiff1d` and the loads' ends need them
    gone = np.unique(memory.check_indices(np.asarray(rows, np.int64), dataset.n_before))
    n_before, n_after = dataset.n_before, dataset.n_before - len(gone)
    if not len(gone):
        return appending.Changed(0, n_before, n_before)
    if not n_after:
        raise DataError(f"all {n_before:_} rows of {dataset.location} would be deleted; expected one to stay")
    with _changing(dataset, "deleted"):
        _take_out(dataset, gone, n_before, keep_order=keep_order)
        left = loads.without_deleted(dataset.loads(), gone, keep_order=keep_order)
        digest = appending.digest_rows(gone, np.array([keep_order]))
        words = message or f"{what} {len(gone):,} row{'s' * (len(gone) != 1)}"
        facts = {"n_rows": len(gone), "order_kept": keep_order}
        version = dataset.commit(
            what, n_after, digest=digest, message=words, facts=facts, attributes=attributes, loads=left
        )
    return appending.Changed(len(gone), n_before, n_after, version)


@frozen
class Merged:
    """The result of `merge_rows`: how many rows were added, replaced and deleted, and the new version."""

    n_added: int
    n_replaced: int
    n_deleted: int
    version: str


def merge_rows(
    dataset: appending.Editing,
    parts: Arrays,
    rows: IntArray,
    gone: IntArray,
    *,
    message: Callable[[int, int, int], str],
    attributes: Facts,
) -> Merged:
    """Replace, append and delete rows of a dataset that is open for changes, in one commit.

    `parts`: new values by the names of arrays, from `Editing.fit_batch`.
    `rows`: int64 array of shape (n_new,). The row that each new one replaces, -1 to append it. Rows that are
      stored with the same values already are left as they are.
    `gone`: rows to delete, ascending; the last rows take their places.
    `message`: gets the numbers of added, replaced and deleted rows.
    `attributes`: attributes of the group that change.
    Raises DataError if no row would be left.
    """
    added, order = rows < 0, np.argsort(rows, kind="stable")
    order, n_before = order[~added[order]], dataset.n_before
    n_all = n_before + int(added.sum())
    if n_all == len(gone):
        raise DataError(f"no row of {dataset.location} would be left; expected one to stay")
    with _changing(dataset, "changed"):
        differing = appending.differences(dataset, rows[order], {name: parts[name][order] for name in parts})
        differs = np.zeros(len(order), bool)
        for cells, _ in differing.values():
            differs |= cells.any(axis=1)
        order = order[differs]
        numbers = rows[order]
        for name in dataset.headers if len(order) else ():
            dataset.array(name).oindex[numbers] = parts[name][order]
        digest = appending.digest_rows(numbers, gone, *(parts[name][order] for name in dataset.headers))
        if added.any():
            arrays = {name: dataset.array(name) for name in dataset.headers}
            buffer = writing.RowBuffer.onto(arrays, n_before)
            buffer.add({name: parts[name][added] for name in arrays})
            digest += buffer.finish()
        came = loads.with_load(dataset.loads(), n_all)
        if len(gone):
            _take_out(dataset, gone, n_all, keep_order=False)
            came = loads.without_deleted(came, gone, keep_order=False)
        counts = n_all - n_before, len(order), len(gone)
        facts = dict(zip(("n_added", "n_replaced", "n_deleted"), counts, strict=True))
        what, n_after, words = "merge" if any(counts[1:]) else "append", n_all - len(gone), message(*counts)
        version = dataset.commit(
            what, n_after, digest=digest, message=words, facts=facts, attributes=attributes, loads=came
        )
    return Merged(*counts, version)


def _changing(dataset: appending.Editing, what: str) -> AbstractContextManager[None]:
    return locations.store_errors(f"rows of {dataset.location} could not be {what}", "; they are as before")


def _take_out(dataset: appending.Editing, gone: IntArray, n_before: int, *, keep_order: bool) -> None:
    """Remove rows, ascending, from all arrays, which have `n_before` rows; some are left."""
    n_after = n_before - len(gone)
    for name in dataset.headers:
        array, label = dataset.array(name), dataset.label(name)
        if keep_order:
            _move_up(array, gone, label)
        else:
            # As many of the last rows stay as there are holes before them.
            holes = gone[gone < n_after]
            movers = np.setdiff1d(np.arange(n_after, n_before), gone, assume_unique=True)
            if len(holes):
                array.oindex[holes] = gather_rows(array, movers, label=label)
        # Values beyond the last row of its chunk are never read, but would still be stored: erase them.
        chunk_end = min(n_before, -(-n_after // array.chunks[0]) * array.chunks[0])
        if chunk_end > n_after:
            array[n_after:chunk_end] = array.fill_value
        array.resize((n_after, *array.shape[1:]))


def find_rows(dataset: appending.Editing, column: str, values: Sequence[Any]) -> list[IntArray]:
    """Return, for each value, the numbers of the rows that have it in a column; all of the column is read.

    `column`: the name of a column of X or y, or "groups" or "id", or the name that these had in their table.
    Raises InvalidParameterError if there is no such column.
    """
    name, place = _column_of(dataset, column)
    dtype = dataset.array(name).dtype
    wanted = [_held(value, dtype) for value in values]
    sought = np.array([value for value in wanted if value is not None], dtype)
    found = appending.find_values(dataset, name, sought, place)
    return [np.array(found.get(value, []), np.int64) for value in wanted]


def _held(value: Any, dtype: AnyDType) -> Any:
    """Return a number or text as an array of this dtype holds it; None if it cannot hold it."""
    if dtype.kind == "T":
        return str(value)
    try:
        if dtype.kind == "f":
            return dtype.type(value).item()
        whole = int(value)  # float64 would take 2⁵³ and 2⁵³ + 1 for the same id
    except (ValueError, OverflowError):  # such as other text, or NaN
        return None
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    is_same = isinstance(value, str) or whole == value
    return whole if is_same and lowest <= whole <= highest else None


def convert_dataset(
    url: PathLike, output: PathLike | None = None, *, observer: writing.Progress | None = None
) -> str:
    """Convert plain Zarr, of format 2 or 3 and by any writer, to a versioned dataset.

    Parameters
    ----------
    url : str or Path
        The plain dataset: X and, if present, y, sample_weight, groups and id.
    output : str or Path, optional
        Where to write. By default the plain dataset is replaced when the new one is complete, which an object
        store cannot do.
    observer : callable, optional
        Called with (rows written, rows in all) after each batch.

    Returns
    -------
    str
        The new version.

    Raises
    ------
    StorageError
        If there is no plain dataset, it holds other arrays, or the output cannot be written.
    OutputExistsError
        If there is something at `output`.
    """
    location = locations.parse_location(url)
    place = location if output is None else locations.parse_location(output)
    if locations.is_versioned(location):
        raise StorageError(f"{location} keeps versions already; there is nothing to convert")
    if output is not None:
        output_places.check_output(place, overwrite=False, inputs=[location])
    group = find_group(url)
    headers = appending.read_headers(group)
    if "X" not in headers:
        raise StorageError(f"{group.place} has no array 'X'; expected a dataset")
    appending.refuse_others(group)
    arrays = {name: group.require_array(name)[1] for name in headers}
    n_samples, chunk_rows = arrays["X"].shape[0], stored_rows(arrays["X"])
    attributes = {key: value for key, value in group.attributes.items() if key != documents.MANIFEST}
    names = attributes.pop("feature_names", None), attributes.pop("target_names", None)

    def batches() -> Iterator[row_batches.RowBatch]:
        for block in blocks.cut_blocks(n_samples, chunk_rows, rows_per_block=chunk_rows):
            yield tuple(
                read_rows(arrays[name], block.start, block.stop, label=name) if name in arrays else None
                for name in appending.ROLES
            )

    # In the same chunks: blocks end on their edges, so that passes keep their bits and kept sums.
    message = f"convert {n_samples:,} rows of plain Zarr"
    how = writing.Writing(
        chunk_rows, overwrite=output is None, observer=observer, versioned=True, message=message
    )
    written = writing.write_batches(
        place, batches(), n_samples=n_samples, names=names, attributes=attributes, how=how
    )
    assert written.version is not None
    return written.version


def _move_up(array: ZarrArray, gone: IntArray, label: str) -> None:
    """Move the remaining rows up over the deleted ones; each chunk is read before it is overwritten."""
    chunk_rows, n_samples = array.chunks[0], array.shape[0]
    first = int(gone[0]) // chunk_rows * chunk_rows
    target, waiting = first, np.empty((0, *array.shape[1:]), array.dtype)
    for start in range(first, n_samples, chunk_rows):
        stop = min(start + chunk_rows, n_samples)
        kept = np.setdiff1d(np.arange(start, stop), gone, assume_unique=True) - start
        waiting = np.concatenate([waiting, read_rows(array, start, stop, label=label)[kept]])
        if len(waiting) >= chunk_rows:
            array[target : target + chunk_rows] = waiting[:chunk_rows]
            target, waiting = target + chunk_rows, waiting[chunk_rows:]
    if len(waiting):
        array[target : target + len(waiting)] = waiting


def _column_of(dataset: appending.Editing, column: str) -> tuple[str, int | None]:
    """Return a column's array and its position in it; the position is None if the array has one axis."""
    for name, key in (("X", "feature_names"), ("y", "target_names")):
        names = dataset.names(key) or ()
        if column in names and name in dataset.headers:
            return name, names.index(column) if len(dataset.headers[name].shape) == 2 else None
    others = {"groups": dataset.attributes.get("groups_column"), ID: id_column(dataset.attributes)}
    for name, source in others.items():
        if column in (name, source) and name in dataset.headers:
            return name, None
    known = [*(dataset.names("feature_names") or ()), *(dataset.names("target_names") or ())]
    known += [name for name in others if name in dataset.headers]
    shown = ", ".join(map(repr, known[:20])) or "no names"
    raise InvalidParameterError(f"{dataset.location} has no column {column!r}; it has {shown}")
