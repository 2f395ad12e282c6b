"""Columns: one label, group or id for each row, in memory or in Zarr.

Array-likes and names of arrays go in; objects with the methods of
`rff_dist.data.columns.Column` come out, with integers, booleans or text. Workers read
stored columns themselves, block by block: a column in memory would travel with each
task.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from rff_dist.checks import as_array
from rff_dist.data import dask_collections
from rff_dist.data.blocks import Block, Dataset
from rff_dist.data.columns import Column, MemoryColumn, check_values
from rff_dist.data.digests import digest_array
from rff_dist.data.folding import DatedFolds, Folds, first_values
from rff_dist.data.grids import GridColumn, GridDataset
from rff_dist.data.labelled import GroupedDataset, source_of
from rff_dist.data.row_batches import TIME
from rff_dist.errors import DataError, InvalidParameterError, StorageError
from rff_dist.storage import arrays
from rff_dist.storage.arrays import ZarrArray
from rff_dist.storage.datasets import ZarrDataset, open_dataset
from rff_dist.storage.groups import StoredArray, find_group
from rff_dist.typing import AnyArray, AnyDType, Facts, FloatArray, PathLike

ID = "id"  # the array of the rows' ids, which are written next to their predictions
# The attribute that names, as in the table, the column of times by which later rows
# were held out. Its values are the array `TIME`.
TIME_COLUMN = "time_column"
# The cuts between folds follow from the times of so many rows at most, evenly spread.
_MOST_TIMES = 2**22
_log = logging.getLogger(__name__)


class StoredValues:
    """The base of columns whose values come from a stored array."""

    in_memory = False

    def __init__(self, values: StoredArray) -> None:
        self.values = values

    @property
    def n_samples(self) -> int:
        return self.values.header.shape[0]

    @property
    def chunk_rows(self) -> int:
        """Rows of one stored object: a shard, else a chunk."""
        return self.values.header.stored_rows


class StoredColumn(StoredValues):
    """A 1-D Zarr array, made by `open_column`; it pickles as its URL."""

    def __init__(self, values: StoredArray) -> None:
        super().__init__(values)
        if len(shape := values.header.shape) != 1:
            raise StorageError(
                f"{values.label} has shape {shape}; expected one value per row, shape"
                " (n_samples,)"
            )

    @property
    def url(self) -> str:
        """The group that it is in."""
        return self.values.group.url

    @property
    def array(self) -> ZarrArray:
        """The Zarr array itself."""
        return self.values.array

    @property
    def dtype(self) -> AnyDType:
        return self.values.header.dtype

    def read(self, block: Block) -> AnyArray:
        """Read the values of a block's rows.

        Raises StorageError if they cannot be read, IntegrityError if bytes are damaged;
        DataError, with the row's number, if a value is NaN or a fraction.
        """
        values = self.values.read(block.start, block.stop)
        rows = np.arange(block.start, block.stop)
        return check_values(values, self.values.label, rows)

    def take(self, indices: Any) -> AnyArray:
        """Read single rows, in the order of `indices`; raises the errors of `read`."""
        values = self.values.take(indices)
        return check_values(values, self.values.label, np.asarray(indices))

    def fingerprint(self) -> str:
        """Return a digest of the metadata and of up to 8 chunks."""
        return self.values.fingerprint()

    def content_key(self) -> str | None:
        """Return a key of the values, if a committed version has them; see
        `engines.resuming`.
        """
        return self.values.content_key()

    def __repr__(self) -> str:
        return (
            f"StoredColumn({self.values.label}: {self.n_samples:_} rows, {self.dtype})"
        )


def open_column(
    url: PathLike,
    name: str,
    *,
    missing_chunks: str = "error",
    version: str | None = None,
) -> StoredColumn:
    """Open a 1-D array of a Zarr group as labels or groups; metadata are checked, no
    rows are read.

    Parameters
    ----------
    url : str or Path
        As in `open_dataset`, like `missing_chunks` and `version`.
    name : str
        An array of integers, booleans, text of fixed or variable width, or floats that
        are whole numbers.

    Raises
    ------
    StorageError
        If there is no such array, or it has more than one axis or another dtype.
    """
    return StoredColumn(find_group(url, version).open_array(name, missing_chunks))


def open_labelled(
    url: PathLike, label: str, names: Facts
) -> tuple[ZarrDataset | GridDataset, Column]:
    """Open a dataset without targets, and the labels of its rows.

    `names` are arguments of `open_dataset`. In a grid, a cell without a label is no
    row, so there the labels are opened as targets first.
    """
    # in a grid, x is a list of variables
    is_table = isinstance(names.get("x", ""), str)
    if is_table:
        dataset = open_dataset(url, **{**names, "y": None})
        return dataset, column_of(dataset, label)
    labelled = open_dataset(url, **{**names, "y": label})
    assert isinstance(labelled, GridDataset)
    return labelled.without_targets(), GridColumn(labelled, "y")


def column_of(dataset: Dataset, name: str) -> StoredColumn:
    """Open another array of a dataset's group as labels or groups."""
    if isinstance(dataset, GridDataset):
        raise InvalidParameterError(
            f"{name!r} would be labels or groups of the cells of a grid; expected none."
            " Compare labels with `rff-dist evaluate`, and give groups by"
            " `group_by_block`"
        )
    if dataset.url is None:
        raise StorageError(
            f"{dataset!r} is not stored, so {name!r} names nothing; give the values"
            " themselves, or open the dataset by its URL"
        )
    return open_column(
        dataset.url,
        name,
        missing_chunks=dataset.missing_chunks,
        version=dataset.version,
    )


def id_column(attributes: Facts) -> str | None:
    """Return the name of the ids' column in the ingested table, if any."""
    recipe = attributes.get("recipe")
    name = recipe.get("id") if isinstance(recipe, Mapping) else None
    return None if name is None else str(name)


def ids_of(dataset: Dataset) -> StoredColumn | None:
    """Return the ids of a stored dataset's rows; None if it has no ids."""
    dataset = source_of(dataset)
    if isinstance(dataset, ZarrDataset) and id_column(dataset.attributes) is not None:
        return column_of(dataset, ID)
    return None


def as_column(values: Any, *, name: str = "y") -> Column:
    """Return labels or groups as a column.

    An open Zarr array is read, a Dask collection is computed. Raises DataError if
    there is more than one axis, or, with the row's number, if a value is missing, NaN,
    a fraction, a time or another object.
    """
    if isinstance(values, MemoryColumn | StoredColumn):
        return values
    if isinstance(values, StoredArray):  # a stored dataset's targets
        return StoredColumn(values)
    if hasattr(values, "__dask_graph__"):
        (values,) = dask_collections.compute(values)
    array = as_array(values, name)
    if array.dtype.kind == "U" and isinstance(values, list | tuple):
        # np.asarray(["a", 1]) would turn the 1 into text.
        array = np.array(values, object)
    # An array with two axes is refused, not flattened: it may have two columns.
    return MemoryColumn(check_values(array, name, np.arange(array.size)))


# -- folds of time


class TimeFoldColumn(StoredValues):
    """The fold of each row of a dataset by the row's time; the earliest fold is 0."""

    dtype = np.dtype(np.int64)

    def __init__(self, times: StoredArray, cuts: FloatArray) -> None:
        super().__init__(times)
        self.cuts = cuts  # the first time of each fold after fold 0, ascending

    def read(self, block: Block) -> AnyArray:
        return self._folds(self.values.read(block.start, block.stop))

    def take(self, indices: Any) -> AnyArray:
        return self._folds(self.values.take(indices))

    def _folds(self, times: AnyArray) -> AnyArray:
        return np.searchsorted(self.cuts, times, side="right")

    def fingerprint(self) -> str:
        return f"{self.values.fingerprint()}|{digest_array(self.cuts)}"

    def content_key(self) -> str | None:
        key = self.values.content_key()
        return None if key is None else f"{key}|{digest_array(self.cuts)}"


def fold_by_holdout_time(
    dataset: Dataset, n_folds: int | None = None
) -> tuple[Dataset, DatedFolds] | None:
    """Return a dataset with folds of time if later rows were held out of it for a test.

    None for any other dataset; and with a warning, if all rows have one time.

    Rows of the same time are in one fold. By default there are 5 folds, or fewer if
    there are fewer times; fewer times than `n_folds` raise DataError.
    """
    if not isinstance(dataset, ZarrDataset):
        return None
    name_in_table = dataset.attributes.get(TIME_COLUMN)
    if name_in_table is None:
        return None
    times = column_of(dataset, TIME)
    step = -(-times.n_samples // _MOST_TIMES)
    parts = [np.empty(0)]
    for _, rows in arrays.iterate_rows(times.array, times.n_samples, label=TIME):
        parts.append(rows[::step])
    cuts = _cuts(np.sort(np.concatenate(parts)), n_folds or Folds.n_folds)
    n_cut = len(cuts) + 1
    if n_folds is not None and n_cut < n_folds:
        raise DataError(
            f"the rows of {dataset.url} have {n_cut} values in {name_in_table!r}, by"
            f" which later rows were held out, fewer than the {n_folds} folds; expected"
            " a value or more for each fold"
        )
    if not len(cuts):
        _log.warning(
            "all rows to train on have one value in %r, by which later rows were held"
            " out, so folds are not in the order of time",
            name_in_table,
        )
        return None
    _log.info(
        "later rows were held out by %r, so folds are in the order of time",
        name_in_table,
    )
    folds = TimeFoldColumn(times.values, cuts)
    return GroupedDataset(dataset, folds), DatedFolds(n_cut)


def _cuts(times: FloatArray, n_folds: int) -> FloatArray:
    """Return the first time of each fold after fold 0, from ascending times."""
    cuts = np.unique(first_values(times, n_folds))
    cuts = cuts[cuts > times[0]]
    if len(cuts) + 1 < n_folds:
        # Many rows have the same time. Each fold then gets as many times, not rows.
        distinct = np.unique(times)
        cuts = first_values(distinct, min(n_folds, len(distinct)))
    return cuts
