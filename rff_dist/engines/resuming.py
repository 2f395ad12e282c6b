"""Keep the sums of a pass's blocks in a ledger, so that a stopped job goes on from
them.

A pass goes in; its name comes out, and the blocks whose sums a ledger has already. The
name is a digest of all that the result depends on: the function, its state, the stored
rows and the blocks. A *run* is consecutive blocks that one task sums. Now and then the
task keeps the sums of the run's first blocks, in place of its earlier ones. Sums are
exact, so kept ones and new ones add up to the bits of an uninterrupted pass.
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
#: If `SHARE` allows it, a run keeps sums when a stop would lose `LEAST_SHARE` of its
#: time so far, so less often the longer it takes; but at least every `LONGEST_S`
#: seconds.
LEAST_SHARE = 1 / 20
LONGEST_S = 120.0
#: The most runs of a pass on several workers, without the short ones at the end: each
#: run leaves a file.
MOST_RUNS = 64


def most_kept(n_blocks: int, n_workers: int, *, are_separate: bool) -> int:
    """Return the most sums that a pass keeps at a time.

    Workers in separate processes keep the sums of each run. A single process keeps one
    sum of all its blocks, and two while the next one is written.
    """
    if not are_separate:
        return min(n_blocks, 2)
    # Guided self-scheduling (`RunQueue`) on W workers: the number of blocks that are
    # left falls by a factor of e with every 2W runs.
    short = 2 * n_workers * (1.0 + math.log(max(1.0, n_blocks / (2 * n_workers))))
    return min(n_blocks, MOST_RUNS + math.ceil(short)) + n_workers


@frozen
class Run:
    """Consecutive blocks, by their positions in the pass."""

    positions: range
    #: Whether a ledger has the sum of all of them already: the run is not cut then.
    is_kept: bool = False
    #: How many workers died while they worked on these blocks.
    n_deaths: int = 0


class Ledger(Protocol):
    """Where sums of passes are kept, in files by `rff_dist.storage.ledger`.

    It pickles, and several processes may use it at a time.
    """

    def spans(self, pass_name: str) -> list[range]:
        """Return the ranges of blocks, by position, whose sums are kept."""

    def find(self, pass_name: str, span: range) -> tuple[Any] | None:
        """Return the sum of some blocks, alone in a tuple; None if gone or damaged."""

    def put(self, pass_name: str, span: range, total: Any) -> None:
        """Keep the sums of some blocks in place of those of fewer, if there is room."""

    def seconds(self, total: Any) -> float:
        """Estimate the seconds to keep some sums; infinite if that is impossible."""

    def output(self, pass_name: str) -> Any:
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
            # If sums are kept from here on, take the longest. Else the run ends where
            # the next kept sums begin.
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
        """Return the sum of consecutive blocks, alone in a tuple, if it is there."""
        return self.ledger.find(self.name, span)


class Keeper:
    """Keeps the sums of a run's first blocks, now and then.

    This takes at most `share` of the run's time, estimated by the ledger. So large sums
    are kept seldom.
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

        With `is_last`, when the run ends, only the share of time decides.
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
    """Return where to keep a pass's sums; None without a ledger, or if the pass has no
    name.
    """
    if ledger is None or not isinstance(function, BlockFunction):
        return None
    name = name_pass(function, blocks, state, combine)
    return None if name is None else PassLedger(ledger, name)


def name_pass(
    function: Any, blocks: Sequence[Block], state: Any, combine: Any = None
) -> str | None:
    """Return a digest of all that a pass depends on; None if the content of a part is
    unknown.
    """
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
    """The content of a part of a pass is unknown."""


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
        # Lambdas, closures and local classes have a "<" in their names, and may differ
        # under the same name.
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
