"""Windows over a dataset's loads: the rows that a model is to have.

A text such as "12" or "30d" and a dataset's loads go in; the first row of the window
comes out. A load is the rows of one append. A window is a number of loads, or the loads
of some days up to the newest one: old rows leave the model as new ones come.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from rff_dist.data import loads as stored_loads
from rff_dist.data.loads import Load
from rff_dist.errors import InvalidParameterError

_LONGEST = 100_000  # days or loads of a window
_LENGTH = re.compile(r"[0-9]*\.?[0-9]+d|[0-9]{1,9}")
ALL_ROWS = "all"


@dataclass(frozen=True)
class Window:
    """The newest loads: a number of them, or those of some days; else all rows.

    >>> Window.parse("2").first_row([Load(100, None), Load(150, None), Load(180, None)])
    100
    """

    n_loads: int | None = None
    #: The most days between a load and the newest one.
    days: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "12" (loads), "30d" (days) or "all"; raises InvalidParameterError."""
        if text == ALL_ROWS:
            return cls()
        is_length = _LENGTH.fullmatch(text) is not None
        if not is_length or not 0 < float(text.removesuffix("d")) <= _LONGEST:
            raise InvalidParameterError(
                f"`window` is {text!r}; expected a number of loads, such as 12, of"
                f" days, such as 30d, or {ALL_ROWS}"
            )
        if text.endswith("d"):
            return cls(days=float(text.removesuffix("d")))
        return cls(n_loads=int(text))

    def first_row(self, loads: Sequence[Load]) -> int:
        """Return the first row of the window.

        Raises InvalidParameterError if it begins before the first load that the
        manifest still lists.
        """
        newest = loads[-1].written
        if self.n_loads is not None:
            n_outside = len(loads) - self.n_loads
        elif self.days is not None and newest is not None:
            since = newest - timedelta(days=self.days)
            # After a clock was set back, an old load may lie between newer ones. The
            # window starts behind the last old load, since it must be one range of
            # rows.
            n_outside = 0
            for i, load in enumerate(loads, 1):
                if load.written is None or load.written < since:
                    n_outside = i
        else:
            return 0  # all rows, also if it was not recorded when they came
        if n_outside > 0:
            return loads[n_outside - 1].stop
        if len(loads) >= stored_loads.MOST_LOADS:
            raise InvalidParameterError(
                f"`window` reaches beyond the last {stored_loads.MOST_LOADS:_} loads,"
                " and a dataset lists no earlier ones; take a shorter one, or append"
                " more rows at a time"
            )
        return 0
