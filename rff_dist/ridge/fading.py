"""Weights that fade with age: they halve from one span of loads to the next.

Sums are divided by two without rounding. So when a new span begins the total is halved, and only rows that
came, went or changed are read. A row whose weight was halved more than `MOST_HALVINGS` times weighs less than
a millionth, and is left out.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rff_dist.ridge.row_ranges import Range
from rff_dist.storage.loads import NO_HALF_LIFE, HalfLife, Load

MOST_HALVINGS = 20  # sums count multiples of 2^-20 of their grid, so that these do not round


@dataclass(frozen=True, slots=True)
class Fading:
    """How often the weights of a dataset's rows are halved.

    `half_life`: text for `HalfLife.parse`; "none" if all rows weigh the same.
    `spans`: the end (its last row + 1) and the number of each span of loads, ascending.
    """

    half_life: str = NO_HALF_LIFE
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, half_life: str, loads: Sequence[Load]) -> Self:
        """Return how the rows of these loads fade.

        Raises InvalidParameterError if there is no such half-life, or loads that would count are no longer
          known.
        """
        numbers = HalfLife.parse(half_life).spans(loads, MOST_HALVINGS)
        if not numbers:
            return cls()
        last = {number: load.stop for number, load in zip(numbers, loads, strict=True)}
        return cls(half_life, tuple((stop, number) for number, stop in last.items()))

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> Self:
        found = card.get("fading")
        return cls() if found is None else cls(found["half_life"], tuple(map(tuple, found["spans"])))

    def to_card(self) -> dict[str, Any]:
        """Return the entry of a model's card that `from_card` reads."""
        return {} if not self.spans else {"fading": {"half_life": self.half_life, "spans": self.spans}}

    @property
    def halvings(self) -> int:
        """The most times that a weight may be halved."""
        return MOST_HALVINGS if self.spans else 0

    def age(self, row: int) -> int:
        if not self.spans:
            return 0
        place = bisect.bisect_right(self.spans, row, key=lambda span: span[0])
        return self.spans[-1][1] - self.spans[place][1]

    def halved_since(self, before: Fading) -> int:
        """Return how often weights were halved since `before`, of rows whose spans are the same."""
        if self.half_life != before.half_life or not self.spans:
            return 0
        return self.spans[-1][1] - before.spans[-1][1]

    @property
    def first_row(self) -> int:
        return max((stop for stop, _ in self.spans[:-1] if self.age(stop - 1) > MOST_HALVINGS), default=0)

    def by_age(self, ranges: Iterable[Range]) -> dict[int, set[Range]]:
        """Cut ranges at the ends of spans, and group them by how often their weights are halved."""
        found: dict[int, set[Range]] = {}
        edges = [stop for stop, _ in self.spans[:-1]]
        for start, stop in ranges:
            inside = edges[bisect.bisect_right(edges, start) : bisect.bisect_left(edges, stop)]
            for piece in itertools.pairwise([start, *inside, stop]):
                found.setdefault(self.age(piece[0]), set()).add(piece)
        return found


NO_FADING = Fading()
