"""Loads: which rows of a versioned dataset came together, and when; windows and spans of them.

A load is what one append brought. The manifest lists where each ends, in the order of the rows, and a window
is the rows from the beginning of a load on. A deletion that keeps the order moves these ends up. Any other
puts the newest rows in the places of older ones, whose loads they belong to from then on.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rff_dist.errors import InvalidParameterError
from rff_dist.storage.generations import LOADS, manifest_of
from rff_dist.typing import IntArray

MOST_LOADS = 4096
_LONGEST = 100_000  # days, or loads
_LENGTH = re.compile(r"(?P<days>[0-9]*\.?[0-9]+)d|(?P<loads>[0-9]{1,9})")
ALL_ROWS, NO_HALF_LIFE = "all", "none"


@dataclass(frozen=True, slots=True)
class Load:
    """Rows that came together, behind those of the load before.

    `stop`: the first row behind them.
    `written`: when; None where that was not recorded.
    """

    stop: int
    written: datetime | None


def read_loads(attributes: Mapping[str, Any], n_samples: int) -> list[Load]:
    """Return the loads of a dataset by its attributes; all rows are one where none were recorded."""
    found = manifest_of(attributes).get(LOADS)
    if found is None:
        return [Load(n_samples, None)]
    return [Load(stop, None if when is None else datetime.fromisoformat(when)) for stop, when in found]


def describe_loads(loads: Sequence[Load]) -> list[list[Any]]:
    """Return what the manifest holds of loads, the newest ones if there are too many."""
    return [
        [one.stop, None if one.written is None else one.written.isoformat(timespec="seconds")]
        for one in loads[-MOST_LOADS:]
    ]


def with_load(loads: Sequence[Load], n_after: int) -> list[Load]:
    """Return loads with one more, which ends at a row, unless it is empty."""
    new = [Load(n_after, datetime.now(UTC))] if not loads or n_after > loads[-1].stop else []
    return [*loads, *new]


def without_deleted(loads: Sequence[Load], gone: IntArray, *, keep_order: bool) -> list[Load]:
    """Return loads without deleted rows, and without loads that have no row left.

    `gone`: numbers of the rows, ascending.
    """
    left: list[Load] = []
    n_after = loads[-1].stop - len(gone)
    for one in loads:
        stop = one.stop - bisect.bisect_left(gone, one.stop) if keep_order else min(one.stop, n_after)
        if stop > (left[-1].stop if left else 0):
            left.append(Load(stop, one.written))
    return left


@dataclass(frozen=True, slots=True)
class Window:
    """The newest rows, by loads: `Window.parse` reads "12", "30d" and "all".

    `n_loads`: the last loads; None where days say which.
    `days`: loads of so many days before the newest one; None where loads are counted. Neither is all rows.
    """

    n_loads: int | None = None
    days: float | None = None

    @classmethod
    def parse(cls, text: str) -> Window:
        """Read how a window is written; raises InvalidParameterError."""
        return cls() if text == ALL_ROWS else cls(*_parse_length("window", text, ALL_ROWS))

    def first_row(self, loads: Sequence[Load]) -> int:
        """Return the first row of the window.

        Raises InvalidParameterError if it begins before the first load that the dataset still knows.
        """
        newest = loads[-1].written
        if self.n_loads is not None:
            outside = len(loads) - self.n_loads
        elif self.days is not None and newest is not None:
            since = newest - timedelta(days=self.days)
            # a clock that was set back must not cut a load in the middle of others
            times = [one.written for one in loads]
            outside = max((i for i, when in enumerate(times, 1) if when is None or when < since), default=0)
        else:
            return 0
        if outside <= 0 and len(loads) >= MOST_LOADS:
            raise _beyond("window")
        return loads[outside - 1].stop if outside > 0 else 0


@dataclass(frozen=True, slots=True)
class HalfLife:
    """Spans of so many loads or days; a row of one weighs half as much as a row of the next.

    `HalfLife.parse` reads "12", "30d" and "none".

    `n_loads`: loads of a span, from the first one on; None where days cut them.
    `days`: days of a span, from the beginning of 1970 on; None where loads are counted. Neither is no spans.
    """

    n_loads: int | None = None
    days: float | None = None

    @classmethod
    def parse(cls, text: str) -> HalfLife:
        """Read how a half-life is written; raises InvalidParameterError."""
        return cls() if text == NO_HALF_LIFE else cls(*_parse_length("half_life", text, NO_HALF_LIFE))

    def spans(self, loads: Sequence[Load], at_most: int) -> list[int]:
        """Return the number of each load's span, ascending; of no spans none.

        A load without a time counts with the first that has one.

        `at_most`: spans before the newest one that count.
        Raises InvalidParameterError if one of these begins before the first load that the dataset knows.
        """
        if self.n_loads is not None:
            numbers = [i // self.n_loads for i in range(len(loads))]
        elif self.days is not None:
            seconds = self.days * timedelta(days=1).total_seconds()
            times = [one.written.timestamp() for one in loads if one.written is not None]
            first = times[0] if times else 0.0
            each = [first if one.written is None else one.written.timestamp() for one in loads]
            numbers = list(itertools.accumulate((int(time // seconds) for time in each), max))
        else:
            return []
        if len(loads) >= MOST_LOADS and (self.days is None or numbers[-1] - numbers[0] <= at_most):
            raise _beyond("half_life")
        return numbers


def _parse_length(option: str, text: str, nothing: str) -> tuple[int | None, float | None]:
    """Return a number of loads, or of days."""
    found = _LENGTH.fullmatch(text)
    days = None if found is None or found["days"] is None else float(found["days"])
    n_loads = None if found is None or found["loads"] is None else int(found["loads"])
    if not 0 < (days or n_loads or 0) <= _LONGEST:
        raise InvalidParameterError(
            f"`{option}` is {text!r}; expected a number of loads, such as 12, of days, such as 30d, "
            f"or {nothing}"
        )
    return n_loads, days


def _beyond(option: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"`{option}` reaches beyond the last {MOST_LOADS:_} loads, which are all that the dataset "
        "remembers; take a shorter one, or bring in more rows at a time"
    )
