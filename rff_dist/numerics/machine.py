"""What this machine has for this process: cores and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def available_memory() -> int:
    """Return the bytes that this process may use: the machine's memory, or a control group's lower limit."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_control_group_limits()])


def _control_group_limits() -> Iterator[int]:
    # of version 2 of control groups, and of version 1
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" is no limit
            yield int(text)


def available_cores() -> int:
    """Count the cores that this process may run on.

    The environment does not matter: Dask's workers and its local cluster set OMP_NUM_THREADS to 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
