"""Sets of row numbers as lists of ranges (start, stop), where `stop` is outside.

Ranges go in, and ranges, row numbers or blocks come out. A model's data may have
millions of rows, so that a list of single numbers would be long.
"""

import bisect
from collections.abc import Iterable, Sequence

import numpy as np

from rff_dist.data.blocks import Block
from rff_dist.typing import BoolArray, IntArray

type Range = tuple[int, int]


def merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same rows as ascending ranges that neither touch nor overlap."""
    merged: list[Range] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif start < stop:
            merged.append((start, stop))
    return merged


def without_rows(ranges: Iterable[Range], excluded: Iterable[Range]) -> list[Range]:
    """Return the ranges without the rows of `excluded`.

    A range with stop ≤ start, in either list, has no rows and is dropped.
    """
    holes = merge_ranges(excluded)
    starts = [start for start, _ in holes]
    stops = [stop for _, stop in holes]
    remaining = []
    for start, stop in ranges:
        # bisection, as corrections may make thousands of ranges and of holes
        first = bisect.bisect_right(stops, start)
        last = bisect.bisect_left(starts, stop)
        for hole_start, hole_stop in holes[first:last]:
            if start < hole_start:
                remaining.append((start, hole_start))
            start = hole_stop
        if start < stop:
            remaining.append((start, stop))
    return remaining


def count_rows(ranges: Iterable[Range]) -> int:
    """Return the number of rows in the ranges."""
    return sum(stop - start for start, stop in ranges)


def row_numbers(ranges: Iterable[Range]) -> IntArray:
    """Return the numbers of the rows in the ranges, one by one."""
    return np.concatenate([np.empty(0, np.int64), *(np.arange(*r) for r in ranges)])


def newest_rows(ranges: Sequence[Range], n_wanted: int) -> list[Range]:
    """Return the last `n_wanted` rows of ascending ranges, or all of fewer rows."""
    newest: list[Range] = []
    for start, stop in reversed(ranges):
        if n_wanted == 0:
            break
        first = max(start, stop - n_wanted)
        newest.insert(0, (first, stop))
        n_wanted -= stop - first
    return newest


def cut_ranges(ranges: Iterable[Range], max_rows: int) -> list[Range]:
    """Cut ranges into pieces of at most `max_rows` rows."""
    return [
        (i, min(i + max_rows, stop))
        for start, stop in ranges
        for i in range(start, stop, max_rows)
    ]


def overlapping(ranges: Iterable[Range], others: Sequence[Range]) -> list[Range]:
    """Return the ranges that share a row with one of `others`.

    `others` ascend and do not overlap.
    """
    starts = [start for start, _ in others]
    stops = [stop for _, stop in others]
    # others that start before the range ends, less those that stop before it starts
    return [
        (start, stop)
        for start, stop in ranges
        if bisect.bisect_left(starts, stop) > bisect.bisect_right(stops, start)
    ]


def contain_rows(ranges: Iterable[Range], numbers: IntArray) -> BoolArray:
    """Return for each row number whether it lies in the ranges."""
    # starts and stops alternate, so a number inside has an odd number of edges before
    edges = np.array(merge_ranges(ranges), np.int64).ravel()
    inside: BoolArray = np.searchsorted(edges, numbers, side="right") % 2 == 1
    return inside


def as_blocks(ranges: Iterable[Range]) -> list[Block]:
    """Return ranges as blocks, numbered in their order."""
    return [Block(i, start, stop) for i, (start, stop) in enumerate(ranges)]
