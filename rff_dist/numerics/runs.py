"""Vectors with long stretches of one value as runs of (count, value): small in JSON, and compared exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

type Runs = tuple[tuple[int, float], ...]


def expand(runs: Runs) -> NDArray[np.float64]:
    """Return runs of (count, value) as an array with one value per place."""
    counts, values = zip(*runs, strict=True)
    return np.repeat(np.asarray(values, np.float64), counts)


def as_runs(values: NDArray[Any]) -> Runs:
    """Return a vector as runs of (count, value)."""
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.diff(np.r_[starts, len(values)])
    return tuple(zip(counts.tolist(), values[starts].tolist(), strict=True))
