"""Loads of a versioned dataset: which rows came together, and when.

A load is what one append brought. The manifest lists where each load ends, in the order of the rows. A
deletion that keeps the order moves the ends up. Any other deletion puts the newest rows in the places of
older ones, and from then on they belong to those loads.
"""

import bisect
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rff_dist.typing import Facts, IntArray, frozen

LOADS = "loads"  # the member of the manifest that lists where each load ends and when it came
MOST_LOADS = 4096  # that the manifest lists


@frozen
class Load:
    """Rows that came together, from the end of the load before.

    `stop`: the row after the last one.
    `written`: when they came; None if that was not recorded.
    """

    stop: int
    written: datetime | None


def read_loads(manifest: Facts, n_samples: int) -> list[Load]:
    """Return a dataset's loads from its manifest; all rows are one load if none were recorded."""
    entries = manifest.get(LOADS)
    if entries is None:
        return [Load(n_samples, None)]
    return [Load(stop, None if when is None else datetime.fromisoformat(when)) for stop, when in entries]


def describe_loads(loads: Sequence[Load]) -> list[list[Any]]:
    """Return the manifest's entry for loads, the newest `MOST_LOADS`."""
    return [
        [load.stop, None if load.written is None else load.written.isoformat(timespec="seconds")]
        for load in loads[-MOST_LOADS:]
    ]


def with_load(loads: Sequence[Load], n_after: int) -> list[Load]:
    """Return loads with one more, of the rows up to `n_after`, unless that is empty."""
    new = [Load(n_after, datetime.now(UTC))] if not loads or n_after > loads[-1].stop else []
    return [*loads, *new]


def without_deleted(loads: Sequence[Load], gone: IntArray, *, keep_order: bool) -> list[Load]:
    """Return the loads after a deletion, without those that have no row left.

    `gone`: numbers of the deleted rows, ascending.
    """
    left: list[Load] = []
    n_after = loads[-1].stop - len(gone)
    for load in loads:
        stop = load.stop - bisect.bisect_left(gone, load.stop) if keep_order else min(load.stop, n_after)
        if stop > (left[-1].stop if left else 0):
            left.append(Load(stop, load.written))
    return left
