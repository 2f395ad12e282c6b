"""Sums of Z'Z in parts, a pass for each, where the memory of a worker does not hold the whole of it.

A part has some of the output tiles. Each pass reads all rows and makes their features again, which is a small
share of the work where D is large, and multiplies for its own tiles only. What is joined has the bits of the
sums of one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rff_dist.engines.progress import Announcer, Rounds
from rff_dist.engines.protocol import Engine
from rff_dist.errors import StatisticsError
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.statistics.spec import WHOLE, Part

type Sums = tuple[RidgeStatistics | None, ...]  # None where no row was counted


def sum_in_parts(accumulate: Callable[[Part], Sums], n_parts: int, *, engine: Engine) -> Sums:
    """Return whole statistics of passes that each sum up a part of them.

    `accumulate`: runs the pass of a part.
    Raises StatisticsError if the rows changed between the passes.
    """
    if n_parts == 1:
        return accumulate(WHOLE)
    Announcer(engine.observers)(Rounds("accumulate", n_parts))
    wholes: Sums = ()
    for index in range(n_parts):
        found = accumulate((index, n_parts))
        wholes = tuple(map(_fill, wholes or (None,) * len(found), found, [index == 0] * len(found)))
    return wholes


def _fill(whole: RidgeStatistics | None, part: RidgeStatistics | None, first: bool) -> RidgeStatistics | None:
    """Put a part's numbers where they are in the whole, which the first part makes."""
    if first and part is not None:
        spec = replace(part.spec, part=WHOLE)
        size = spec.layout.size
        high = None if part.high is None else np.zeros(size, np.int64)
        whole = replace(part, spec=spec, low=np.zeros(size, np.int64), high=high)
    if whole is None or part is None:
        if whole is not part:
            raise _changed()
        return None
    if (whole.n_samples, whole.n_observations) != (part.n_samples, part.n_observations):
        raise _changed()
    if whole.cross != part.cross or whole.targets != part.targets:
        raise _changed()
    places = {(row, column): offset for row, column, offset in whole.spec.layout.tiles()}
    layout = part.spec.layout
    for row, column, offset in layout.tiles():
        for into, limb in ((whole.low, part.low), (whole.high, part.high)):
            if into is not None and limb is not None:
                place = places[row, column]
                layout.view(into, row, column, place)[:] = layout.view(limb, row, column, offset)
    return whole


def _changed() -> StatisticsError:
    return StatisticsError(
        "two passes over the same rows found other sums: the data changed meanwhile; run it again on data "
        "that stay as they are"
    )
