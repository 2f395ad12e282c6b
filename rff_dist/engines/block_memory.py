"""What this process remembers of blocks from one pass to the next, within a budget of bytes.

It belongs to the process, like the thread pools of BLAS: a worker runs blocks for callers that come and go,
and what it remembers must not travel with their tasks. Nothing may depend on it but time: an entry is taken
out while a block is worked on, so that a failure leaves none behind, and one that is gone is made anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any


@dataclass(frozen=True, slots=True)
class _Entry:
    value: Any
    n_bytes: int
    number: int  # of the pass that kept it


_entries: dict[tuple[str, Hashable], _Entry] = {}
_lock = Lock()


def take(run: str, key: Hashable) -> Any:
    """Take out what a run has kept under a key; None where there is nothing."""
    with _lock:
        entry = _entries.pop((run, key), None)
    return None if entry is None else entry.value


def keep(run: str, key: Hashable, value: Any, *, n_bytes: int, number: int, budget: int) -> bool:
    """Keep a value for a run's later passes, if it fits.

    `budget`: bytes that all entries of this process may take. What other runs kept, and what this one kept
      before its last pass, makes room.
    """
    with _lock:
        if not _has_room(run, n_bytes, number=number, budget=budget):
            return False
        _make_room(run, n_bytes, number=number, budget=budget)
        _entries[run, key] = _Entry(value, n_bytes, number)
    return True


def has_room(run: str, n_bytes: int, *, number: int, budget: int) -> bool:
    """Return whether `keep` would keep that many bytes."""
    with _lock:
        return _has_room(run, n_bytes, number=number, budget=budget)


def forget(run: str) -> None:
    """Drop all that a run has kept here."""
    with _lock:
        for place in [place for place in _entries if place[0] == run]:
            del _entries[place]


def remembered_bytes() -> int:
    """Return the bytes that are kept for all runs."""
    with _lock:
        return sum(entry.n_bytes for entry in _entries.values())


def _is_current(place: tuple[str, Hashable], entry: _Entry, run: str, number: int) -> bool:
    return place[0] == run and entry.number >= number - 1


def _has_room(run: str, n_bytes: int, *, number: int, budget: int) -> bool:
    current = (e.n_bytes for place, e in _entries.items() if _is_current(place, e, run, number))
    return n_bytes + sum(current) <= budget


def _make_room(run: str, n_bytes: int, *, number: int, budget: int) -> None:
    total = n_bytes + sum(entry.n_bytes for entry in _entries.values())
    for place, entry in list(_entries.items()):  # the oldest first
        if total <= budget:
            return
        if not _is_current(place, entry, run, number):
            total -= _entries.pop(place).n_bytes
