"""What a pass keeps of its sums in a ledger, so that a stopped job goes on from there.

A pass is named by a digest of all that its result depends on: the function, its state,
the stored rows and the blocks. A run is consecutive blocks that one task sums. Whoever
computes it keeps the sums of its first blocks now and then, in place of those that it
kept before. Sums are exact, so the kept ones and those of the other blocks add up to
the bits of an uninterrupted pass.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np

from rff_dist.data.blocks import Block, BlockFunction
from rff_dist.typing import frozen

logger = logging.getLogger(__name__)

#: Share of the time of summing that keeping the sums may take. A pass over 200,000 rows
#: at D = 2,048 then takes 1.9 % more CPU time; killed half-way, it repeats 9 %.
SHARE = 0.03
#: Where `SHARE` allows it, a run keeps sums whenever `LEAST_SHARE` of its time so far
#: is not kept yet, and so less often the longer it is; but at least every `LONGEST_S`
#: seconds.
LEAST_SHARE = 1 / 20
LONGEST_S = 120.0
#: Runs that passes on several workers are cut into at most, next to the short ones at
#: the end: each leaves a file.
MOST_RUNS = 64


def most_kept(n_blocks: int, n_workers: int, *, are_separate: bool) -> int:
    """Return how many sums a pass keeps at most.

    Workers in separate processes keep the sums of each run. A single process keeps one
    sum of all its blocks, and two while the next one is written.
    """
    if not are_separate:
        return min(n_blocks, 2)
    # Guided self-scheduling on W workers: the blocks left fall by a factor of e with
    # every 2W runs.
    short = 2 * n_workers * (1.0 + math.log(max(1.0, n_blocks / (2 * n_workers))))
    return min(n_blocks, MOST_RUNS + math.ceil(short)) + n_workers


@frozen
class Run:
    """Consecutive blocks, by their positions in the pass."""

    positions: range
    #: Whether a ledger has their sums already, so that they stay together.
    is_kept: bool = False
    #: How many workers died while they were at these blocks.
    n_deaths: int = 0


class Ledger(Protocol):
    """Where sums of passes are kept, in files by `rff_dist.storage.ledger`.

    It pickles, and several processes may use it at a time.
    """

    def spans(self, name: str) -> list[range]:
        """Return the stretches of blocks, by position, whose sums are kept."""

    def find(self, name: str, span: range) -> tuple[Any] | None:
        """Return the sums of some blocks; None where they are gone or damaged."""

    def put(self, name: str, span: range, total: Any) -> None:
        """Keep the sums of some blocks in place of those of fewer, if there is room."""

    def seconds(self, total: Any) -> float:
        """Estimate the seconds to keep some sums; infinite where that is impossible."""

    def output(self, name: str) -> Any:
        """Return where to write the rows of an unfinished writing pass, if anywhere."""


@frozen
class PassLedger:
    """Where the sums of one pass are kept: a ledger, and the pass's name in it."""

    ledger: Ledger
    name: str

    def cut(self, positions: range) -> list[Run]:
        """Cut consecutive blocks into runs whose sums are kept, and those between."""
        spans = self.ledger.spans(self.name)
        runs = []
        start = positions.start
        while start < positions.stop:
            # Of the sums that begin here, the longest; else up to where the next begin.
            kept_stops = []
            next_starts = [positions.stop]
            for span in spans:
                if span.start == start < span.stop <= positions.stop:
                    kept_stops.append(span.stop)
                elif span and start < span.start:
                    next_starts.append(span.start)
            stop = max(kept_stops) if kept_stops else min(next_starts)
            runs.append(Run(range(start, stop), is_kept=bool(kept_stops)))
            start = stop
        return runs

    def find(self, span: range) -> tuple[Any] | None:
        """Return the sums of consecutive blocks, if they are there."""
        return self.ledger.find(self.name, span)


class Keeper:
    """Keep the sums of a run's first blocks, now and then.

    This takes a share of the run's time, judged by what keeping took before. So large
    sums are kept seldom.
    """

    def __init__(
        self, pass_ledger: PassLedger, first: int, *, share: float = SHARE
    ) -> None:
        self._ledger = pass_ledger.ledger
        self._name = pass_ledger.name
        self._first = first
        self._share = share
        self._begun = time.perf_counter()
        self._kept_at = self._begun

    def note(self, stop: int, total: Any, *, is_last: bool) -> None:
        """Keep the sums of the blocks before position `stop`, if it is time for that.

        `is_last`: the run ends here.
        """
        now = time.perf_counter()
        interval = self._ledger.seconds(total) / self._share
        if not is_last:
            interval = max(interval, min(LONGEST_S, LEAST_SHARE * (now - self._begun)))
        if now - self._kept_at < interval:
            return
        self._ledger.put(self._name, range(self._first, stop), total)
        self._kept_at = time.perf_counter()


# -- names


def ledger_of_pass(
    ledger: Ledger | None,
    function: Any,
    blocks: Sequence[Block],
    state: Any,
    combine: Any,
) -> PassLedger | None:
    """Return where to keep a pass's sums; None without a ledger, or without a name."""
    if ledger is None or not isinstance(function, BlockFunction):
        return None
    name = name_pass(function, blocks, state, combine)
    return None if name is None else PassLedger(ledger, name)


def name_pass(
    function: Any, blocks: Sequence[Block], state: Any, combine: Any = None
) -> str | None:
    """Return a digest of all that a pass depends on; None if a part is unknown."""
    hasher = hashlib.sha256()
    try:
        for value in (version("rff_dist"), np.__version__, function, state, combine):
            _describe(value, hasher)
    except _UnknownError as error:
        logger.debug("the sums of a pass are not kept: %s", error)
        return None
    hasher.update(np.array([(block.start, block.stop) for block in blocks], np.int64))
    return hasher.hexdigest()[:40]


class _UnknownError(Exception):
    """A part of a pass has nothing that identifies its content."""


def _describe(value: Any, hasher: hashlib._Hash) -> None:
    """Feed the content of a value to a hash."""
    hasher.update(f"<{type(value).__module__}.{type(value).__qualname__}".encode())
    content_key = getattr(value, "content_key", None)
    if callable(content_key):
        _describe_all([_known(content_key(), value)], hasher)
    elif isinstance(value, Enum):
        hasher.update(value.name.encode())
    elif isinstance(value, bool | int | float | str | bytes | np.dtype | range | None):
        hasher.update(repr(value).encode())
    elif (
        isinstance(value, np.ndarray | np.generic)
        and np.asarray(value).dtype.kind in "biufcU"
    ):
        array = np.ascontiguousarray(value)
        hasher.update(f"{array.dtype.str}{array.shape}".encode())
        hasher.update(array.reshape(-1).view(np.uint8))
    elif isinstance(value, np.ndarray):
        _describe_all(value.tolist(), hasher)
    elif isinstance(value, list | tuple):
        _describe_all(value, hasher)
    elif isinstance(value, Mapping):
        _describe_all([part for item in value.items() for part in item], hasher)
    elif isinstance(value, partial):
        _describe_all([value.func, value.args, value.keywords], hasher)
    elif isinstance(value, np.ufunc):
        hasher.update(value.__name__.encode())
    elif is_dataclass(value) and not isinstance(value, type):
        _describe_all([getattr(value, member.name) for member in fields(value)], hasher)
    else:
        # Names of lambdas, closures and local classes have a "<" and say too little.
        name = getattr(value, "__qualname__", "<")
        content = None if "<" in name else f"{value.__module__}.{name}"
        hasher.update(_known(content, value).encode())
    hasher.update(b">")


def _describe_all(values: Iterable[Any], hasher: hashlib._Hash) -> None:
    for value in values:
        _describe(value, hasher)


def _known[T](content: T | None, value: object) -> T:
    if content is None:
        raise _UnknownError(
            f"a {type(value).__name__} has neither a `content_key` nor a name in a"
            " module"
        )
    return content
