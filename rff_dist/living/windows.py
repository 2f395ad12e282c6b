"""Windows over a dataset's loads: which rows a model holds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from rff_dist.data import loads as stored_loads
from rff_dist.data.loads import Load
from rff_dist.errors import InvalidParameterError

_LONGEST = 100_000  # days or loads of a window
_LENGTH = re.compile(r"(?P<days>[0-9]*\.?[0-9]+)d|(?P<loads>[0-9]{1,9})")
ALL_ROWS = "all"


@dataclass(frozen=True)
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
        """Read the option's text; raises InvalidParameterError."""
        if text == ALL_ROWS:
            return cls()
        match = _LENGTH.fullmatch(text)
        days = None if match is None or match["days"] is None else float(match["days"])
        n_loads = None if match is None or match["loads"] is None else int(match["loads"])
        if not 0 < (days or n_loads or 0) <= _LONGEST:
            raise InvalidParameterError(
                f"`window` is {text!r}; expected a number of loads, such as 12, of days, such as 30d, or "
                f"{ALL_ROWS}"
            )
        return cls(n_loads, days)

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
        if len(loads) >= stored_loads.MOST_LOADS:
            raise InvalidParameterError(
                f"`window` reaches beyond the last {stored_loads.MOST_LOADS:_} loads, and a dataset lists no "
                "earlier ones; take a shorter one, or append more rows at a time"
            )
        return 0
