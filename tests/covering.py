"""Few rows of a table of cases in place of all of them."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def covering(*axes: Sequence[Any], meet: int = 2) -> list[tuple[Any, ...]]:
    """Return rows of the axes' product in which any `meet` values of different axes
    stand together.
    """
    rows = list(product(*(range(len(axis)) for axis in axes)))

    def groups(row: tuple[int, ...]) -> set[Any]:
        return set(combinations(enumerate(row), meet))

    missing = set().union(*map(groups, rows))
    found = []
    while missing:
        best = max(rows, key=lambda row: len(missing & groups(row)))
        missing -= groups(best)
        found.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return found
