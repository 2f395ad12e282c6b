"""The rows that differ between the version of the data that a model was made of, and a later one."""

import bisect
import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np

from rff_dist.data import memory
from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.errors import NoSuchVersionError, StatisticsError
from rff_dist.storage import datasets
from rff_dist.typing import BoolArray, IntArray, frozen

logger = logging.getLogger(__name__)

MAX_COMPARED_ROWS = 2**22  # they are in memory as they were and as they are


type Range = tuple[int, int]


@frozen(eq=False)
class Compared:
    """Rows of chunks that differ: their numbers, their values, and all values of a row as bytes."""

    numbers: np.ndarray
    X: np.ndarray
    y: np.ndarray | None
    sample_weight: np.ndarray | None
    as_bytes: np.ndarray

    def only(self, which: np.ndarray) -> Self:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        chosen: dict[str, Any] = {name: None if old is None else old[which] for name, old in values.items()}
        return replace(self, **chosen)

    def as_dataset(self) -> memory.ArrayDataset | None:
        return memory.ArrayDataset(self.X, self.y, self.sample_weight) if len(self.numbers) else None


@frozen(eq=False)
class Differences:
    """Two versions of the data, compared where their chunks differ.

    `before`, `after`: the version that the model was made of, and the one that it is to follow. A chunk that
      both share, or that is read again, is read from the store only once. None if nothing was compared.
    `was`: the rows that differ, as they were.
    `came`: rows that replaced others, without appended ones; None if there are none.
    `gone`: rows that the model holds and the data no longer have; None if there are none. Rows that only
      moved are in neither.
    `moved`: int64 array of shape (n_moved, 2). Numbers of moved rows now, ascending, and before.
    """

    before: Dataset | None
    after: Dataset | None
    was: Compared
    came: memory.ArrayDataset | None
    gone: memory.ArrayDataset | None
    moved: IntArray

    @property
    def changed(self) -> tuple[Range, ...]:
        """Numbers of the rows of `before` that are now different or gone."""
        return tuple(merge_ranges((row, row + 1) for row in self.was.numbers.tolist()))


_NONE = Compared(np.empty(0, np.int64), np.empty((0, 1)), None, None, np.empty((0, 0), np.uint8))
NO_DIFFERENCES = Differences(None, None, _NONE, None, None, np.empty((0, 2), np.int64))


def find_differences(
    dataset: Dataset,
    version: str | None,
    left_out: Sequence[Range],
    *,
    start: int = 0,
    only_appended: bool = False,
) -> Differences | None:
    """Compare a versioned dataset with the version of it that a model was made of.

    `version`: the version on the model's card.
    `left_out`: rows of that version that the model does not hold.
    `start`: the first row that the model is to hold.
    `only_appended`: whether all rows of that version are known to be unchanged, so that none need be read.
    Returns None if either keeps no versions, or that version has expired.
    Raises StatisticsError if more rows differ than can be compared.
    """
    if version is None or not isinstance(dataset, datasets.ZarrDataset) or dataset.version is None:
        return None
    try:
        before, after, spans = datasets.changed_rows(dataset, version)
    except NoSuchVersionError as error:
        logger.info("the rows are compared by fingerprints: %s", error)
        return None
    if only_appended:
        before, spans = after, []
    if count_rows(spans) > MAX_COMPARED_ROWS:
        raise StatisticsError(
            f"{count_rows(spans):_} rows lie in chunks that differ from version {version} of the data, which "
            f"the model holds; expected at most {MAX_COMPARED_ROWS:_}. Fit again"
        )
    old, new = _read(before, spans), _read(after, spans)
    n_both = len(new.numbers)  # `old` has the same rows, and perhaps more at its end
    # rows beyond the end of the later version are gone, so they count as different
    differs = np.ones(len(old.numbers), bool)
    # as bytes, not as numbers, since NaN is not equal to itself
    differs[:n_both] = (old.as_bytes[:n_both] != new.as_bytes).any(axis=1)
    out = are_in(old.numbers, left_out)
    went = np.flatnonzero(differs & ~out).tolist()
    entered = np.flatnonzero(differs[:n_both] & (new.numbers >= start)).tolist()
    # rows that only moved are not new: they are told by their bytes
    # lists, because equal rows may stand in several places
    held = defaultdict[bytes, list[int]](list)
    for i in went:
        held[old.as_bytes[i].tobytes()].append(i)
    came, gone, moved = np.zeros(n_both, bool), np.zeros(len(old.numbers), bool), []
    for i in entered:
        if alike := held[new.as_bytes[i].tobytes()]:
            moved.append((new.numbers[i], old.numbers[alike.pop()]))
        else:
            came[i] = True
    gone[[i for alike in held.values() for i in alike]] = True
    others = new.only(came).as_dataset(), old.only(gone).as_dataset()
    return Differences(before, after, old.only(differs), *others, np.array(moved, np.int64).reshape(-1, 2))


def has_rows_of(dataset: Dataset, version: str | None, start: int, stop: int) -> bool:
    """Return whether the rows `start:stop` are the same as in another version of the dataset.

    False if that is not known: either keeps no versions, or that version has expired.
    """
    if version is None or not isinstance(dataset, datasets.ZarrDataset) or dataset.version is None:
        return False
    try:
        before, dataset, spans = datasets.changed_rows(dataset, version)
    except NoSuchVersionError:
        return False
    if stop > min(before.n_samples, dataset.n_samples):
        return False
    ranges = [(max(a, start), min(b, stop)) for a, b in spans if a < stop and start < b]
    return bool((_read(before, ranges).as_bytes == _read(dataset, ranges).as_bytes).all())


def _read(dataset: datasets.ZarrDataset, ranges: Sequence[Range]) -> Compared:
    spans = [(start, min(stop, dataset.n_samples)) for start, stop in ranges if start < dataset.n_samples]
    read: list[Rows] = [dataset.read(Block(i, start, stop)) for i, (start, stop) in enumerate(spans)]
    numbers = [np.arange(start, stop) for start, stop in spans]
    if not read:
        return _NONE
    X = np.concatenate([rows.X for rows in read])
    y = None if read[0].y is None else np.concatenate([rows.y for rows in read if rows.y is not None])
    weight = None
    if read[0].sample_weight is not None:
        weight = np.concatenate([rows.sample_weight for rows in read if rows.sample_weight is not None])
    parts = [part.reshape(len(X), -1) for part in (X, y, weight) if part is not None]
    as_bytes = np.hstack([np.ascontiguousarray(part).view(np.uint8) for part in parts])
    if y is not None and dataset.one_dimensional:
        # blocks have y with two axes; the dataset made of these rows needs it as it was stored
        y = y[:, 0]
    return Compared(np.concatenate(numbers), X, y, weight, as_bytes)


# -- ranges of rows --------------------------------------------------------------------------------


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same rows as ascending ranges that neither touch nor overlap."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return merged


def without_rows(ranges: Iterable[Range], taken: Iterable[Range]) -> list[Range]:
    """Return the ranges without the rows of `taken`; ranges are not merged."""
    holes = merge_ranges(taken)
    starts, stops = [start for start, _ in holes], [stop for _, stop in holes]
    left = []
    for start, stop in ranges:
        # corrections of thousands of rows leave thousands of ranges and of holes
        within = holes[bisect.bisect_right(stops, start) : bisect.bisect_left(starts, stop)]
        for hole_start, hole_stop in within:
            if start < hole_start:
                left.append((start, hole_start))
            start = hole_stop
        if start < stop:
            left.append((start, stop))
    return left


def count_rows(ranges: Iterable[Range]) -> int:
    """Return the number of rows."""
    return sum(stop - start for start, stop in ranges)


def as_blocks(ranges: Iterable[Range]) -> list[Block]:
    """Return ranges as blocks, numbered in their order."""
    return [Block(i, start, stop) for i, (start, stop) in enumerate(ranges)]


def cut_ranges(ranges: Iterable[Range], rows: int) -> list[Range]:
    """Cut ranges into pieces of at most `rows` rows."""
    return [(i, min(i + rows, stop)) for start, stop in ranges for i in range(start, stop, rows)]


def are_in(numbers: IntArray, ranges: Iterable[Range]) -> BoolArray:
    """Return which row numbers are in the ranges."""
    edges = np.array(merge_ranges(ranges), np.int64).ravel()
    inside: BoolArray = np.searchsorted(edges, numbers, side="right") % 2 == 1
    return inside
