"""How much a fit tries where options leave it a choice, and in how many seconds.

An effort of 1 to 3 and a time limit go in; what to try, and how many components there
is time for, come out. Without limits the cost of a fit would depend on what the data
happen to need.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rff_dist.typing import frozen

# Share of the seconds that the first round may take: the comparison of candidates on a
# sample of rows.
FIRST_SHARE = 0.4
# Share of the seconds after which searches for length scales end, so that the first
# round has time to compare what they found.
TUNING_SHARE = 0.25
# The first round tunes length scales only if so many of its seconds are left.
TUNING_SECONDS = 3.0
MIN_COMPONENTS = 256
# Up to so many rows Nyström features have every row as a centre, and are the kernel
# itself. Candidates' errors then come from features of the rows
# (`selection.row_folds`), and only the best candidate is summed up: with 930 rows a
# table of errors takes 20 ms in place of 130.
EXACT_ROWS = 2048


@frozen
class EffortLevel:
    """What an effort of 1 to 3 stands for."""

    #: The most components that "auto" takes.
    n_components: int
    #: The most that doubling may reach as long as it gains much; 0 for no doubling.
    n_components_that_pay: int = 0
    #: Whether candidates are compared, with length scales tuned by the evidence. If
    #: not, there is one, with the median distance.
    is_tuned: bool = True
    #: Whether candidates are compared with half of the components.
    compares_with_half: bool = True
    #: Whether many rows are cut into as many folds as few rows.
    many_folds: bool = False
    #: Starts of a search for length scales; by default the number of columns decides.
    n_starts: int | None = None


EFFORTS = {
    1: EffortLevel(1024, is_tuned=False),
    2: EffortLevel(2048, 4096),
    3: EffortLevel(4096, 8192, compares_with_half=False, many_folds=True, n_starts=24),
}
DEFAULT_EFFORT = 2


@frozen
class Pace:
    """How long sums and tables of errors take on this machine."""

    #: For each row and squared component.
    sum_seconds: float
    #: Of the table of all folds, for each cubed component.
    table_seconds: float

    @classmethod
    def slowest(cls, paces: Sequence[Pace], *, n_threads: int) -> Pace:
        """Return the slowest pace, with sums by `n_threads` threads in place of one.

        The slowest, since the machine may be as busy again.
        """
        return cls(
            max(pace.sum_seconds for pace in paces) / n_threads,
            max(pace.table_seconds for pace in paces),
        )

    def seconds(self, n_samples: int, n_components: int) -> float:
        """Return about how long sums of all folds and their table take."""
        # Nyström features are no more than the rows
        rank = min(n_components, n_samples)
        seconds_of_sums = self.sum_seconds * n_samples * n_components**2
        return seconds_of_sums + self.table_seconds * rank**3


class Budget:
    """The seconds that one fit may take, and what was not tried for lack of them."""

    def __init__(self, limit: float | None) -> None:
        self._begun = time.monotonic()
        #: Seconds; None is no limit.
        self.limit = limit
        #: Seconds that reading all rows took.
        self.reading_seconds = 0.0
        self._n_untried = 0
        self._reductions: list[str] = []

    def spent(self) -> float:
        return time.monotonic() - self._begun

    def remaining(self, share: float = 1.0) -> float:
        """Return the remaining seconds of a share of the limit; infinite if none."""
        if self.limit is None:
            return float("inf")
        return share * self.limit - self.spent()

    @property
    def tuning_deadline(self) -> float | None:
        """When searches for length scales end, by `time.monotonic`."""
        return None if self.limit is None else self._begun + TUNING_SHARE * self.limit

    def skip_candidates(self, n_candidates: int) -> None:
        """Record that there was no time for these candidates."""
        self._n_untried += n_candidates

    @property
    def untried(self) -> list[str]:
        """What there was no time for, in words."""
        candidates = [f"{self._n_untried} candidates"] if self._n_untried else []
        return candidates + self._reductions

    def components_in_time(self, pace: Pace, n_samples: int, n_components: int) -> int:
        """Return how many components the final pass has time for."""
        n_fitting = n_components
        # the fewest components are taken even if they will be late: there is always a
        # model
        while n_fitting // 2 >= MIN_COMPONENTS:
            seconds = self.reading_seconds + pace.seconds(n_samples, n_fitting)
            if seconds <= self.remaining():
                break
            n_fitting //= 2
        if n_fitting < n_components:
            n_skipped = n_components - n_fitting
            self._reductions.append(f"{n_skipped:,} of {n_components:,} components")
        return n_fitting
