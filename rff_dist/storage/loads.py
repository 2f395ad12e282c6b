"""Loads of a versioned dataset (which rows came together, and when), and windows and half-lives over them.

A load is what one append brought. The manifest lists where each load ends, in the order of the rows, and a
window is all rows from the beginning of a load on. A deletion that keeps the order moves the ends up. Any
other deletion puts the newest rows in the places of older ones, and from then on they belong to those loads.
"""

import bisect
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from rff_dist.errors import InvalidParameterError
from rff_dist.storage import documents
from rff_dist.typing import IntArray

MOST_LOADS = 4096  # that the manifest lists
_LONGEST = 100_000  # days or loads of a window or half-life
_LENGTH = re.compile(r"(?P<days>[0-9]*\.?[0-9]+)d|(?P<loads>[0-9]{1,9})")
ALL_ROWS, NO_HALF_LIFE = "all", "none"


@dataclass(frozen=True, slots=True)
class Load:
    """Rows that came together, from the end of the load before.

    `stop`: the row after the last one.
    `written`: when they came; None if that was not recorded.
    """

    stop: int
    written: datetime | None


def read_loads(attributes: Mapping[str, Any], n_samples: int) -> list[Load]:
    """Return a dataset's loads from its attributes; all rows are one load if none were recorded."""
    entries = documents.manifest_of(attributes).get(documents.LOADS)
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


@dataclass(frozen=True, slots=True)
class Window:
    """The newest loads; `Window.parse` reads "12" (loads), "30d" (days) and "all".

    With neither field the window holds all rows.

    `n_loads`: how many of the newest loads it holds.
    `days`: it holds the loads of so many days before the newest load.

    >>> Window.parse("2").first_row([Load(100, None), Load(150, None), Load(180, None)])
    100
    """

    n_loads: int | None = None
    days: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a window's text; raises InvalidParameterError."""
        return cls() if text == ALL_ROWS else cls(*_parse_length("window", text, ALL_ROWS))

    def first_row(self, loads: Sequence[Load]) -> int:
        """Return the first row of the window.

        Raises InvalidParameterError if it begins before the first load that the manifest still lists.
        """
        newest = loads[-1].written
        if self.n_loads is not None:
            outside = len(loads) - self.n_loads
        elif self.days is not None and newest is not None:
            since = newest - timedelta(days=self.days)
            # If a clock was set back, an old load may lie between newer ones; the window starts after the
            # last old load, since its rows must be one range.
            times = [load.written for load in loads]
            outside = max((i for i, when in enumerate(times, 1) if when is None or when < since), default=0)
        else:
            return 0
        if outside <= 0 and len(loads) >= MOST_LOADS:
            raise _beyond("window")
        return loads[outside - 1].stop if outside > 0 else 0


@dataclass(frozen=True, slots=True)
class HalfLife:
    """Spans of loads or days: a row of one span weighs half as much as a row of the next.

    `HalfLife.parse` reads "12" (loads), "30d" (days) and "none". With neither field there are no spans.

    `n_loads`: loads of a span, counted from the first load.
    `days`: days of a span, counted from the beginning of 1970.

    >>> HalfLife.parse("2").spans([Load(100, None), Load(150, None), Load(180, None)], at_most=9)
    [0, 0, 1]
    """

    n_loads: int | None = None
    days: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a half-life's text; raises InvalidParameterError."""
        return cls() if text == NO_HALF_LIFE else cls(*_parse_length("half_life", text, NO_HALF_LIFE))

    def spans(self, loads: Sequence[Load], at_most: int) -> list[int]:
        """Return the number of each load's span, ascending; an empty list if there are no spans.

        A load without a time gets the time of the first load that has one.

        `at_most`: how many spans before the newest one count.
        Raises InvalidParameterError if one of these begins before the first load that the manifest lists.
        """
        if self.n_loads is not None:
            numbers = [i // self.n_loads for i in range(len(loads))]
        elif self.days is not None:
            seconds = self.days * timedelta(days=1).total_seconds()
            times = [load.written.timestamp() for load in loads if load.written is not None]
            first = times[0] if times else 0.0
            each = [first if load.written is None else load.written.timestamp() for load in loads]
            # `max`: if a clock was set back, a later load still belongs to no earlier span.
            numbers = list(itertools.accumulate((int(time // seconds) for time in each), max))
        else:
            return []
        if len(loads) >= MOST_LOADS and (self.days is None or numbers[-1] - numbers[0] <= at_most):
            raise _beyond("half_life")
        return numbers


def _parse_length(option: str, text: str, nothing: str) -> tuple[int | None, float | None]:
    """Return a number of loads or of days, the other None."""
    match = _LENGTH.fullmatch(text)
    days = None if match is None or match["days"] is None else float(match["days"])
    n_loads = None if match is None or match["loads"] is None else int(match["loads"])
    if not 0 < (days or n_loads or 0) <= _LONGEST:
        raise InvalidParameterError(
            f"`{option}` is {text!r}; expected a number of loads, such as 12, of days, such as 30d, "
            f"or {nothing}"
        )
    return n_loads, days


def _beyond(option: str) -> InvalidParameterError:
    return InvalidParameterError(
        f"`{option}` reaches beyond the last {MOST_LOADS:_} loads, and a dataset lists no earlier ones; "
        "take a shorter one, or append more rows at a time"
    )
