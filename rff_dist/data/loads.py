"""Loads of a versioned dataset: which rows came together, and when.

A load is the rows of one append. The manifest has a list of loads, with the row at
which each ends, in the order of the rows. Functions here take that list, and return it
as an append or a deletion changes it. A deletion that keeps the order renumbers the
rows behind. Any other one moves the newest rows to the places of deleted ones, and then
they belong to the loads of these places.
"""

import bisect
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rff_dist.typing import Facts, IntArray, frozen

# the member of the manifest that lists where each load ends and when it came
LOADS = "loads"
# The manifest lists only the newest, so that it stays small, as each commit writes it
# and each opening reads it. The rows of older loads stay; a window that begins among
# them is refused.
MOST_LOADS = 4096


@frozen
class Load:
    """Rows that came together, from the end of the load before.

    The first load in a list begins at row 0; it may contain older loads that are no
    longer listed.
    """

    #: One more than the number of its last row.
    stop: int
    #: When they came; None if that was not recorded.
    written: datetime | None


def read_loads(manifest: Facts, n_samples: int) -> list[Load]:
    """Return a dataset's loads from its manifest, or one load of all rows."""
    entries = manifest.get(LOADS)
    if entries is None:
        return [Load(n_samples, None)]
    return [
        Load(stop, None if when is None else datetime.fromisoformat(when))
        for stop, when in entries
    ]


def describe_loads(loads: Sequence[Load]) -> list[list[Any]]:
    """Return the manifest's entry for loads, the newest `MOST_LOADS`."""
    entries: list[list[Any]] = []
    for load in loads[-MOST_LOADS:]:
        when = load.written
        entries.append([load.stop, when and when.isoformat(timespec="seconds")])
    return entries


def with_load(loads: Sequence[Load], n_after: int) -> list[Load]:
    """Return loads with one more, of the rows up to `n_after`, unless that is empty."""
    if loads and n_after <= loads[-1].stop:
        return [*loads]
    return [*loads, Load(n_after, datetime.now(UTC))]


def without_deleted(
    loads: Sequence[Load], deleted: IntArray, *, keep_order: bool
) -> list[Load]:
    """Return the loads after rows, of ascending numbers `deleted`, were deleted.

    Loads without a row are dropped.
    """
    remaining: list[Load] = []
    n_after = loads[-1].stop - len(deleted)
    start = 0
    for load in loads:
        if keep_order:
            stop = load.stop - bisect.bisect_left(deleted, load.stop)
        else:
            stop = min(load.stop, n_after)
        if stop > start:
            remaining.append(Load(stop, load.written))
            start = stop
    return remaining
