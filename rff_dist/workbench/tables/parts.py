"""A dataset → two datasets: one to train on, and one of held-out rows.

The address of a dataset and a `Holdout`, which chooses the test rows, go in; the two
written datasets come out. Both are made from one version, and keep its rows in their
order. A random choice would tear apart rows of one group or id.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rff_dist import fields
from rff_dist.data import row_batches
from rff_dist.data import sources as row_sources
from rff_dist.errors import DataError
from rff_dist.storage import (
    datasets,
    editing,
    groups,
    locations,
    manifests,
    output_places,
    writing,
)
from rff_dist.storage.columns import ID, TIME_COLUMN
from rff_dist.typing import Arrays, BoolArray, PathLike
from rff_dist.workbench.tables import files
from rff_dist.workbench.tables.holdout import Holdout, warn_of_chance

_ROWS = 2**16  # read at a time


def is_dataset(sources: Sequence[str]) -> bool:
    """Return whether the sources are a Zarr group with a matrix X, and no table."""
    # a name with a table's suffix is a table; this needs no request to a store
    if len(sources) != 1 or files.table_kind(sources[0]) is not None:
        return False
    place = locations.parse_location(sources[0])
    if place.scheme == locations.ICEBERG:
        return False
    if not any(locations.has_file(place, name) for name in locations.DATASET_FILES):
        return False
    _, arrays = datasets.list_arrays(sources[0])
    return "X" in arrays and len(arrays["X"].shape) == 2


def split_dataset(
    data: str,
    urls: tuple[PathLike, PathLike],
    holdout: Holdout,
    write_options: writing.WriteOptions,
) -> tuple[datasets.ZarrDataset, datasets.ZarrDataset]:
    """Write each row of a dataset to one of two: to train on, or held out.

    Rows of one group stay together, or else of one id, unless `holdout.by` names a
    column of X. The test dataset is written first, and stays if the other cannot be
    written. Raises DataError if either has no row.
    """
    inputs = [locations.parse_location(data)]
    train, test = map(locations.parse_location, urls)
    # Both are made from one version, whatever is committed meanwhile.
    version = groups.find_group(data).version
    attributes, stored = datasets.list_arrays(data, version)
    arrays = [name for name in editing.ROLES if name in stored]
    read = partial(datasets.read_arrays, data, n_rows=_ROWS, version=version)
    feature_names = attributes.pop("feature_names", None)
    target_names = attributes.pop("target_names", None)
    # These describe the whole dataset, or how it was held out of a larger one itself,
    # and would be wrong of a half.
    for name in (manifests.MANIFEST, row_sources.SOURCES, row_sources.PARTS):
        attributes.pop(name, None)

    column = None
    if holdout.by is not None:
        known = list(feature_names or ())
        fields.check_names([holdout.by], known, what="column of X")
        column = known.index(holdout.by)
        attributes[TIME_COLUMN] = holdout.by
    for output in (train, test):
        output_places.check_output(
            output,
            overwrite=write_options.overwrite,
            inputs=inputs,
            markers=locations.DATASET_FILES,
        )
    # columns of X are named, as the table's are not here
    warn_of_chance(attributes, holdout, has_groups="groups" in stored, is_encoded=True)
    is_test = _held_out_rows(read, stored, holdout, column)
    if is_test.all() or not is_test.any():
        raise DataError(
            f"{is_test.sum():,} of {len(is_test):,} rows are held out; expected some in"
            " both parts. Change the share `holdout`"
        )

    def batches(is_wanted: np.ndarray) -> Iterator[row_batches.RowBatch]:
        start = 0
        for batch in read(arrays):
            if column is not None:
                batch[row_batches.TIME] = batch["X"][:, column]
            rows = is_wanted[start : start + len(batch["X"])]
            start += len(batch["X"])
            # a `RowBatch` has the arrays of `ROLES` in this order, `TIME` among them
            yield tuple(
                batch[name][rows] if name in batch else None for name in editing.ROLES
            )

    def write(
        output: locations.Location, other: locations.Location, is_wanted: BoolArray
    ) -> datasets.ZarrDataset:
        return writing.write_batches(
            output,
            batches(is_wanted),
            n_samples=int(is_wanted.sum()),
            names=(feature_names, target_names),
            attributes=attributes | editing.describe_other_part(output, other),
            write_options=write_options,
            inputs=inputs,
        )

    test_dataset = write(test, train, is_test)
    return write(train, test, ~is_test), test_dataset


def _held_out_rows(
    read: Callable[[Sequence[str]], Iterable[Arrays]],
    stored: Mapping[str, Any],
    holdout: Holdout,
    column: int | None,
) -> BoolArray:
    """Return which rows are held out: the latest by a column of X, or by a hash."""
    if column is not None:
        times = np.concatenate([batch["X"][:, column] for batch in read(["X"])])
        return times >= holdout.first_test_value(times)
    for name in ("groups", ID):
        if name in stored:
            choices = [holdout.holds(batch[name]) for batch in read([name])]
            return np.concatenate(choices)
    return holdout.holds(np.arange(stored["X"].shape[0]))
