"""Find the rows that differ between two versions of a dataset.

A dataset and an earlier version of it go in; row numbers and rows come out. A model's
sums contain the rows of the version that it was trained on. To update them, rows that
were corrected or deleted since must be subtracted with their old values, and corrected
rows added with their new ones. Only chunks that differ are read, so the cost grows with
the changes and not with the data.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from rff_dist.data.blocks import Block, Dataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import NoSuchVersionError, StatisticsError
from rff_dist.living.ranges import Range, contain_rows, count_rows, merge_ranges
from rff_dist.storage import datasets
from rff_dist.typing import AnyArray, IntArray, frozen

logger = logging.getLogger(__name__)

MAX_COMPARED_ROWS = 2**22  # both versions of these rows are in memory as bytes

#: The earlier version, the later one, and the rows in chunks that differ.
type Versions = tuple[datasets.ZarrDataset, datasets.ZarrDataset, list[Range]]


@frozen
class Differences:
    """How a later version of the data differs from the one that a model was trained on.

    With default values, the versions were not compared, or nothing differs.
    """

    #: The version that the model was trained on, and the later one. They share a cache,
    #: so a chunk that is in both is read only once.
    before: Dataset | None = None
    after: Dataset | None = None
    #: Row numbers of `before` whose values are now different or gone.
    changed: tuple[Range, ...] = ()
    #: Rows to add at changed places, without appended ones; None if there are none.
    replacements: ArrayDataset | None = None
    #: Rows that the model contains and the data no longer have; None if there are none.
    removals: ArrayDataset | None = None
    #: Present rows that only moved: they are neither added nor removed.
    moved_to: tuple[Range, ...] = ()


def find_differences(
    dataset: Dataset,
    version: str | None,
    missing: Sequence[Range],
    *,
    start: int = 0,
    refused: Sequence[Range] = (),
    only_appended: bool = False,
) -> Differences | None:
    """Compare a dataset with the earlier version that a model was trained on.

    `missing` are rows of that version that the model's sums lack, and `start` is the
    first row that they are to contain now. `refused` rows enter only if the model has
    equal ones that left their places. With `only_appended` the old rows are known to be
    unchanged, and nothing is read. Returns None if the dataset keeps no versions, or
    that version has expired. Raises StatisticsError if more rows differ than fit into
    memory.
    """
    versions = _open_versions(dataset, version)
    if versions is None:
        return None
    before, after, spans = versions
    if only_appended:
        # the old rows are the same in both versions, so one dataset serves as both
        return Differences(after, after)
    if count_rows(spans) > MAX_COMPARED_ROWS:
        raise StatisticsError(
            f"{count_rows(spans):_} rows lie in chunks that differ from version"
            f" {version} of the data, which the model holds; expected at most"
            f" {MAX_COMPARED_ROWS:_}. Fit again"
        )
    old_numbers, old = _read_bytes(before, spans)
    new_numbers, new = _read_bytes(after, spans)

    # `new` has the same row numbers, but lacks those beyond the end of `after`
    n_common = len(new_numbers)
    is_changed = np.ones(len(old_numbers), bool)
    if n_common:
        # compared as bytes, because NaN does not equal itself
        is_changed[:n_common] = (old[:n_common] != new).any(axis=1)

    is_in_model = ~contain_rows(missing, old_numbers)
    is_refused = contain_rows(refused, new_numbers)
    is_wanted = new_numbers >= start
    leaving = np.flatnonzero(is_changed & is_in_model).tolist()
    entering = np.flatnonzero(is_changed[:n_common] & is_wanted).tolist()

    # A row that leaves one place and enters another has moved. Rows may be equal, so
    # each content has a list of places, by position in `old` or `new`.
    unmatched = defaultdict[bytes, list[int]](list)
    for place in leaving:
        unmatched[old[place].tobytes()].append(place)
    moved = []
    replacements = []
    for place in entering:
        equal_rows = unmatched[new[place].tobytes()]
        if equal_rows:
            equal_rows.pop()
            moved.append(place)
        elif not is_refused[place]:
            replacements.append(place)
    removals = sorted(place for places in unmatched.values() for place in places)

    return Differences(
        before,
        after,
        _as_ranges(old_numbers[is_changed]),
        take_rows(after, new_numbers[replacements]),
        take_rows(before, old_numbers[removals]),
        _as_ranges(new_numbers[moved]),
    )


def _as_ranges(numbers: IntArray) -> tuple[Range, ...]:
    return tuple(merge_ranges((row, row + 1) for row in numbers.tolist()))


def take_rows(dataset: Dataset, numbers: IntArray) -> ArrayDataset | None:
    """Read single rows into memory as a dataset; None for no rows."""
    if not len(numbers):
        return None
    X, y, weight = dataset.take(numbers)
    if y is not None and dataset.one_dimensional:
        # `take` returns y with two axes, and a stored vector must stay one
        y = y[:, 0]
    return ArrayDataset(X, y, weight, attributes=dataset.attributes)


def _open_versions(dataset: Dataset, version: str | None) -> Versions | None:
    """Open a version, and the dataset again, and find the rows whose chunks differ."""
    if not isinstance(dataset, datasets.ZarrDataset):
        return None
    if version is None or dataset.version is None:
        return None
    try:
        return datasets.compare_versions(dataset, version)
    except NoSuchVersionError as error:
        logger.info("the rows are compared by fingerprints: %s", error)
        return None


def _read_bytes(
    dataset: datasets.ZarrDataset, spans: Sequence[Range]
) -> tuple[IntArray, AnyArray]:
    """Return the numbers of the rows in `spans` that exist, and a row of bytes for
    each.
    """
    numbers = [np.empty(0, np.int64)]
    contents = []
    for start, stop in spans:
        stop = min(stop, dataset.n_samples)
        if start >= stop:
            continue
        rows = dataset.read(Block(0, start, stop))
        parts = [
            np.ascontiguousarray(values.reshape(stop - start, -1)).view(np.uint8)
            for values in (rows.X, rows.y, rows.sample_weight)
            if values is not None
        ]
        numbers.append(np.arange(start, stop))
        contents.append(np.hstack(parts))
    width = contents[0].shape[1] if contents else 0
    return (
        np.concatenate(numbers),
        np.concatenate([np.empty((0, width), np.uint8), *contents]),
    )
