"""Windows and half-lives over a dataset's loads: which rows a model holds, and how much old ones weigh."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Self

from rff_dist.data import loads as stored_loads
from rff_dist.data.loads import Load
from rff_dist.errors import InvalidParameterError

_LONGEST = 100_000  # days or loads of a window or half-life
_LENGTH = re.compile(r"(?P<days>[0-9]*\.?[0-9]+)d|(?P<loads>[0-9]{1,9})")
ALL_ROWS, NO_HALF_LIFE = "all", "none"


@dataclass(frozen=True)
class _Length:
    """A number of loads or of days; with neither field the option is off."""

    n_loads: int | None = None
    days: float | None = None
    option: ClassVar[str]
    nothing: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the option's text; raises InvalidParameterError."""
        if text == cls.nothing:
            return cls()
        match = _LENGTH.fullmatch(text)
        days = None if match is None or match["days"] is None else float(match["days"])
        n_loads = None if match is None or match["loads"] is None else int(match["loads"])
        if not 0 < (days or n_loads or 0) <= _LONGEST:
            raise InvalidParameterError(
                f"`{cls.option}` is {text!r}; expected a number of loads, such as 12, of days, such as 30d, "
                f"or {cls.nothing}"
            )
        return cls(n_loads, days)

    def _check_reach(self, loads: Sequence[Load]) -> None:
        if len(loads) >= stored_loads.MOST_LOADS:
            raise InvalidParameterError(
                f"`{self.option}` reaches beyond the last {stored_loads.MOST_LOADS:_} loads, and a dataset "
                "lists no earlier ones; take a shorter one, or append more rows at a time"
            )


class Window(_Length):
    """The newest loads; `Window.parse` reads "12" (loads), "30d" (days) and "all".

    With neither field the window holds all rows.

    `n_loads`: how many of the newest loads it holds.
    `days`: it holds the loads of so many days before the newest load.

    >>> Window.parse("2").first_row([Load(100, None), Load(150, None), Load(180, None)])
    100
    """

    option, nothing = "window", ALL_ROWS

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
        if outside > 0:
            return loads[outside - 1].stop
        self._check_reach(loads)
        return 0


class HalfLife(_Length):
    """Spans of loads or days: a row of one span weighs half as much as a row of the next.

    `HalfLife.parse` reads "12" (loads), "30d" (days) and "none". With neither field there are no spans.

    `n_loads`: loads of a span, counted from the first load.
    `days`: days of a span, counted from the beginning of 1970.

    >>> HalfLife.parse("2").spans([Load(100, None), Load(150, None), Load(180, None)], at_most=9)
    [0, 0, 1]
    """

    option, nothing = "half_life", NO_HALF_LIFE

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
        if self.days is None or numbers[-1] - numbers[0] <= at_most:
            self._check_reach(loads)
        return numbers
