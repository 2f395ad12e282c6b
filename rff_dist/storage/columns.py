"""Columns: one label, group or id for each row, as integers, booleans or text, in memory or in Zarr."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from rff_dist.checks import as_array
from rff_dist.data import blocks, columns, dask_collections, folding, grids, labelled, memory
from rff_dist.data.row_batches import TIME
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import arrays, datasets, groups
from rff_dist.typing import AnyDType, Facts, FloatArray, PathLike

ID = "id"  # the array of the rows' ids, which are written next to their predictions
TIME_COLUMN = "time_column"  # the attribute that names the column by which later rows were held out
_MOST_TIMES = 2**22  # times that cuts between folds are taken from
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class StoredColumn:
    """A 1-D Zarr array, made by `open_column` or `as_column`.

    It pickles as its URL, and unpickling opens it again.

    `array`: zarr.Array of shape (n_samples,).
    `url`: the group that holds it; None for an array that was handed over open.
    """

    array: arrays.ZarrArray
    url: str | None
    _header: arrays.Header
    _label: str
    _reopen: tuple[Callable[..., "StoredColumn"], tuple[Any, ...]] | None

    in_memory = False

    def __post_init__(self) -> None:
        if len(shape := self._header.shape) != 1:
            why = f"{self._label} has shape {shape}; expected one value a row, shape (n_samples,)"
            raise StorageError(why)

    @property
    def n_samples(self) -> int:
        return self._header.shape[0]

    @property
    def dtype(self) -> AnyDType:
        return self._header.dtype

    @property
    def chunk_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return self._header.stored_rows

    def read(self, block: blocks.Block) -> np.ndarray:
        """Read the values of a block's rows.

        Raises StorageError if there are no such rows, a chunk is missing (unless `missing_chunks="fill"`) or
          the store does not answer; IntegrityError if a chunk's bytes are damaged; DataError, with the row's
          number, if a value is NaN or a fraction.
        """
        values = arrays.read_rows(self.array, block.start, block.stop, label=self._label)
        return columns.check_values(values, self._label, np.arange(block.start, block.stop))

    def take(self, indices: np.ndarray | Sequence[int]) -> np.ndarray:
        """Read single rows, in the order of `indices`; raises as `read`."""
        # Ascending and without repeats, so that each stored object is read once.
        rows, places = np.unique(memory.check_indices(indices, self.n_samples), return_inverse=True)
        values = arrays.gather_rows(self.array, rows, label=self._label)
        return columns.check_values(values, self._label, rows)[places]

    def fingerprint(self) -> str:
        """Return a digest of the metadata and of up to 8 chunks, the first and the last among them."""
        return arrays.sample_digest(self.array, self._header, label=self._label)

    def content_key(self) -> str | None:
        """Return a key of the stored values, for the names of kept sums; None if the values may change.

        See `engines.resuming`.
        """
        group, *options = (None,) if self._reopen is None else self._reopen[1]
        return group.content_key(*options) if isinstance(group, groups.StoredGroup) else None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._reopen is None:
            raise groups.cannot_travel(self._label, self.array.store, "it with open_column(url, name)")
        return self._reopen

    def __repr__(self) -> str:
        return f"StoredColumn({self._label}: {self.n_samples:_} rows, {self.dtype})"


def open_column(
    url: PathLike | zarr.Group, name: str, *, missing_chunks: str = "error", version: str | None = None
) -> StoredColumn:
    """Open a 1-D array of a Zarr group as labels or groups; metadata are checked, no rows are read.

    `name`: an array of integers, booleans, text of fixed or variable width, or floats that are whole numbers.
    `missing_chunks`, `version`: as in `open_dataset`.
    Raises StorageError if there is no such array, or it has more than one axis or another dtype.
    """
    return _open(groups.find_group(url, version), name, missing_chunks)


def open_labelled(
    url: PathLike, label: str, names: Facts
) -> tuple[datasets.ZarrDataset | grids.GridDataset, columns.Column]:
    """Open a dataset without targets, and the labels of its rows.

    `names`: arguments of `open_dataset`. If `x` is a list, cells of the grid without a label are no rows.
    """
    if isinstance(names.get("x", ""), str):
        dataset = datasets.open_dataset(url, **{**names, "y": None})
        return dataset, column_of(dataset, label)
    labelled = datasets.open_dataset(url, **{**names, "y": label})
    assert isinstance(labelled, grids.GridDataset)
    return labelled.without_targets(), grids.GridColumn(labelled, "y")


def column_of(dataset: blocks.Dataset, name: str) -> StoredColumn:
    """Open another array of a dataset's group as labels or groups, with the dataset's options.

    Raises StorageError as `open_column`, and if the dataset was made of open arrays, which have no group;
      InvalidParameterError if its rows are cells of a grid.
    """
    if isinstance(dataset, grids.GridDataset):
        raise InvalidParameterError(
            f"{name!r} would be labels or groups of the cells of a grid; expected none. Compare labels with "
            "`rff-dist evaluate`, and give groups by `group_by_block`"
        )
    if dataset.url is None:
        raise StorageError(
            f"{dataset!r} was made of open arrays, so {name!r} names nothing; give the values themselves, or "
            "open the dataset by its URL"
        )
    return open_column(dataset.url, name, missing_chunks=dataset.missing_chunks, version=dataset.version)


def id_column(attributes: Facts) -> str | None:
    """Return the column of the ingested table that a dataset's ids came from; None if it has no ids."""
    recipe = attributes.get("recipe")
    name = recipe.get("id") if isinstance(recipe, Mapping) else None
    return None if name is None else str(name)


def ids_of(dataset: Any) -> StoredColumn | None:
    """Return the ids of a stored dataset's rows; None if it has no ids."""
    if not isinstance(dataset, datasets.ZarrDataset) or id_column(dataset.attributes) is None:
        return None
    return column_of(dataset, ID)


def as_column(values: Any, *, name: str = "y") -> columns.Column:
    """Return labels or groups as a column. A Zarr array is not read yet, a Dask collection is computed.

    `values`: array-like, series, Zarr or Dask array, or Column, of shape (n_samples,). Integers, booleans,
      text, or floats that are whole numbers.
    Raises DataError if it has more than one axis, or, with the row's number, if a value is missing, NaN, a
      fraction, a time or another object.
    """
    if isinstance(values, columns.MemoryColumn | StoredColumn):
        return values
    if isinstance(values, zarr.Array):
        return _of_array(values, name)
    if hasattr(values, "__dask_graph__"):
        (values,) = dask_collections.compute(values)
    array = as_array(values, name)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        array = np.array(values, object)  # np.asarray(["a", 1]) would turn the 1 into text.
    # A column of a frame in two dimensions is refused, not flattened: it may have two columns.
    return columns.MemoryColumn(columns.check_values(array, name, np.arange(array.size)))


def _open(group: groups.StoredGroup, name: str, missing_chunks: str) -> StoredColumn:
    label, (header, array) = group.label(name), group.require_array(name, missing_chunks)
    reopen = None if group.url is None else (_open, (group, name, missing_chunks))
    return StoredColumn(array, group.url, header, label, reopen)


def _of_array(array: arrays.ZarrArray, name: str) -> StoredColumn:
    header, label, array = groups.take_open(array, name, text=True)
    # An open array travels only as the path of a local folder; its store may hold credentials.
    movable = groups.local_root(array.store, "") is not None
    reopen = (_of_array, (array, array.path)) if movable else None
    return StoredColumn(arrays.require_chunks(array), None, header, label, reopen)


# -- folds of time ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TimeFoldColumn:
    """The fold of each row of a dataset by the row's time, the earliest is 0.

    `times`: the stored times, or numbers that order rows.
    `cuts`: float64 array of shape (n_folds - 1,), ascending. The first time of each later fold.
    """

    times: StoredColumn
    cuts: FloatArray

    in_memory = False
    dtype = np.dtype(np.int64)

    @property
    def n_samples(self) -> int:
        return self.times.n_samples

    @property
    def chunk_rows(self) -> int:
        return self.times.chunk_rows

    def read(self, block: blocks.Block) -> np.ndarray:
        times = arrays.read_rows(self.times.array, block.start, block.stop, label=TIME)
        return np.searchsorted(self.cuts, times, side="right")

    def take(self, indices: np.ndarray) -> np.ndarray:
        rows, places = np.unique(memory.check_indices(indices, self.n_samples), return_inverse=True)
        times = arrays.gather_rows(self.times.array, rows, label=TIME)
        return np.searchsorted(self.cuts, times, side="right")[places]

    def fingerprint(self) -> str:
        return f"{self.times.fingerprint()}|{memory.digest_array(self.cuts)}"

    def content_key(self) -> str | None:
        key = self.times.content_key()
        return None if key is None else f"{key}|{memory.digest_array(self.cuts)}"


def fold_by_time(
    dataset: blocks.Dataset, n_folds: int | None = None
) -> tuple[blocks.Dataset, folding.DatedFolds] | None:
    """Return a dataset whose later rows were held out, with folds of time; None for any other dataset.

    Rows of the same time are in one fold. By default there are 5 folds, or fewer if there are fewer times.

    Raises DataError if there are fewer times than `n_folds`.
    """
    attributes = getattr(dataset, "attributes", {})
    if not isinstance(dataset, datasets.ZarrDataset) or dataset.url is None or TIME_COLUMN not in attributes:
        return None
    times = column_of(dataset, TIME)
    step = -(-times.n_samples // _MOST_TIMES)
    parts = [np.empty(0)]
    for block in blocks.cut_blocks(times.n_samples, times.chunk_rows, rows_per_block=times.chunk_rows):
        parts.append(arrays.read_rows(times.array, block.start, block.stop, label=TIME)[::step])
    values = np.sort(np.concatenate(parts))
    wanted = n_folds or folding.Folds.n_folds
    cuts = np.unique(values[-(-np.arange(1, wanted) * len(values) // wanted)])
    cuts = cuts[cuts > values[0]]
    if len(cuts) + 1 < wanted:  # many rows have the same time: as many times in each fold, then
        moments = np.unique(values)
        n_cut = min(wanted, len(moments))
        cuts = moments[-(-np.arange(1, n_cut) * len(moments) // n_cut)]
    name = attributes[TIME_COLUMN]
    if n_folds is not None and len(cuts) + 1 < n_folds:
        raise DataError(
            f"the rows of {dataset.url} have {len(cuts) + 1} values in {name!r}, by which later rows were "
            f"held out, fewer than the {n_folds} folds; expected a value or more for each fold"
        )
    if not len(cuts):
        _log.warning(
            "all rows to train on have one value in %r, by which later rows were held out, so folds are not "
            "in the order of time",
            name,
        )
        return None
    _log.info("later rows were held out by %r, so folds are in the order of time", name)
    return labelled.GroupedDataset(dataset, TimeFoldColumn(times, cuts)), folding.DatedFolds(len(cuts) + 1)
