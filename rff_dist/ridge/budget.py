"""How much a fit tries where it is free to, and the seconds that it may take."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rff_dist.typing import frozen

FIRST_SHARE = 0.4  # of the seconds are for the first round
TUNING_SECONDS = 3.0  # that must be left for the first round to tune length scales
MIN_COMPONENTS = 256


@frozen
class Effort:
    """What an effort of 1 to 5 stands for.

    `n_components`: the most that "auto" takes.
    `tuned`, `multiples`, `mapped`, `additive`: which candidates a first round has: length scales tuned by the
      evidence, multiples of the median distance, mapped columns, additive kernels. Without any of them there
      is one candidate.
    `halves`: whether finalists meet with half of the components.
    `many_folds`: whether many rows are cut into as many folds as others.
    `n_starts`: of a search for length scales; None is as many as the columns ask for.
    """

    n_components: int
    tuned: bool = True
    multiples: bool = True
    mapped: bool = True
    additive: bool = True
    halves: bool = True
    many_folds: bool = False
    n_starts: int | None = None


EFFORTS = {
    1: Effort(1024, tuned=False, multiples=False, mapped=False, additive=False),
    2: Effort(1024, multiples=False, mapped=False, additive=False),
    3: Effort(2048),
    4: Effort(2048, halves=False, many_folds=True),
    5: Effort(4096, halves=False, many_folds=True, n_starts=24),
}


@frozen
class Pace:
    """How long sums and tables take here.

    `sums`: seconds for each row and squared component.
    `tables`: seconds for the table of all folds, for each cubed component.
    """

    sums: float
    tables: float

    @classmethod
    def slowest(cls, paces: Sequence[Pace], *, n_threads: int) -> Pace:
        """Return the slowest of some paces of one thread, with sums by `n_threads`.

        The machine may be as busy again, so that the slowest holds.
        """
        return cls(max(pace.sums for pace in paces) / n_threads, max(pace.tables for pace in paces))

    def seconds(self, n_samples: int, n_components: int) -> float:
        """Return about how long sums of all folds and their table take."""
        rank = min(n_components, n_samples)  # of Nyström features, which are no more than rows
        return self.sums * n_samples * n_components**2 + self.tables * rank**3


class Budget:
    """The seconds of one fit: how many are left, and what was left out for them.

    `limit`: seconds; None is no limit.
    `reading`: seconds that reading all rows took.
    `n_untried`: how many candidates there was no time for.
    """

    def __init__(self, limit: float | None) -> None:
        self._begun, self.limit = time.monotonic(), limit
        self.reading = 0.0
        self.n_untried = 0
        self._left_out: list[str] = []

    def spent(self) -> float:
        return time.monotonic() - self._begun

    def left(self, share: float = 1.0) -> float:
        """Return the seconds that are left of a share of the limit; infinite without one."""
        if self.limit is None:
            return float("inf")
        return share * self.limit - self.spent()

    @property
    def untried(self) -> list[str]:
        """What there was no time for, in words."""
        return [*([f"{self.n_untried} candidates"] if self.n_untried else []), *self._left_out]

    def final(
        self, pace: Pace, rows: tuple[int, int], width: int, most: int, *, halves: bool
    ) -> tuple[int, int]:
        """Return with how many components, and of how many finalists, the final ends in time.

        `rows`: how many there are, and on how many several finalists meet.
        `width`: the number of components that is planned.
        `most`: the number of finalists.
        `halves`: whether several meet with half of the components.
        """
        n_samples, n_met = rows
        plans = [(width, most), *((width >> i, 1) for i in range(12) if width >> i >= MIN_COMPONENTS)]
        for n_components, n_maps in plans:
            seconds = self.reading + pace.seconds(n_samples, n_components)
            if n_maps > 1 and (halves or n_met < n_samples):
                met_with = n_components // 2 if halves else n_components
                seconds += self.reading + n_maps * pace.seconds(n_met, met_with)
            elif n_maps > 1:
                seconds *= n_maps
            # the last plan, of the fewest components, is taken even if it will be late: there is always a
            # model
            if seconds <= self.left():
                break
        if n_maps < most:
            self._left_out.append(f"{most - n_maps} of {most} finalists")
        if n_components < width:
            self._left_out.append(f"{width - n_components:,} of {width:,} components")
        return n_components, n_maps
