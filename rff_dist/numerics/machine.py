"""What this machine gives a computation: its cores, its memory, and threads that share out whole tiles."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike, NDArray
from threadpoolctl import ThreadpoolController

from rff_dist import contexts


def available_memory() -> int:
    """Return the bytes that this process may use: the machine's memory, or a control group's lower limit."""
    # in a container this is still the whole machine's memory
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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- threads that share out whole tiles, each with single-threaded BLAS ----------------------------


threads_in_use: ContextVar[int] = ContextVar("n_threads", default=1)


@contextmanager
def using_threads(n_threads: int) -> Iterator[None]:
    """Let block functions use `n_threads` threads, each with single-threaded BLAS.

    Threads share out whole tiles, so no bit of a result depends on their number. BLAS with threads of its own
    would cut its sums by their number, and crash on large symmetric products.
    """
    with contexts.setting(threads_in_use, n_threads), limit_blas(1):
        yield


class _Inline(Executor):
    """Run tasks at once, in the calling thread."""

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Iterator[Any]:
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])


def executor_of(n_threads: int) -> Executor:
    """Return an executor of `n_threads` threads; with one, tasks run in the calling thread."""
    return _Inline() if n_threads == 1 else ThreadPoolExecutor(n_threads)


class SpareMemory:
    """Memory that threads hand on to each other: new pages from the system take longer than filling them."""

    def __init__(self) -> None:
        self._arrays: deque[NDArray[Any]] = deque()

    def take(self, size: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array of one dimension with at least `size` numbers of any value."""
        try:
            array = self._arrays.popleft()
        except IndexError:
            return np.empty(size, dtype)
        return array if len(array) >= size and array.dtype == dtype else np.empty(size, dtype)

    def give(self, array: NDArray[Any]) -> None:
        """Hand on an array that is no longer used."""
        self._arrays.append(array)


def share_out[A](function: Callable[[A], None], items: Iterable[A]) -> None:
    """Call a function with each item; this thread and the others of `using_threads` share the items."""
    # its popleft is atomic, so threads need no lock; whoever is free takes the next item
    left = deque(items)

    def work() -> None:
        while True:
            try:
                item = left.popleft()
            except IndexError:
                return
            function(item)

    n_others = min(threads_in_use.get(), len(left)) - 1
    if n_others < 1:
        work()
        return
    with ThreadPoolExecutor(n_others) as pool:
        others = [pool.submit(work) for _ in range(n_others)]
        try:
            work()
        except BaseException:
            # the others finish the item that they work on, and no further one
            left.clear()
            raise
        for other in others:
            other.result()


def falling_tiles(n_rows: int, most: int, *, multiple: int, least: int) -> list[slice]:
    """Cut rows into tiles that become smaller towards the end, so that threads that share them end together.

    Each tile is half of a thread's share of the rows left (Polychronopoulos & Kuck 1987, guided
    self-scheduling), for the threads of `using_threads`. With one thread all tiles have `most` rows.

    `most`, `least`: rows of the largest and the smallest tiles, multiples of `multiple`.
    `multiple`: all tiles but the last have a multiple of so many rows.
    """
    n_threads, tiles, first = threads_in_use.get(), [], 0
    while first < n_rows:
        share = most if n_threads == 1 else (n_rows - first) // (2 * n_threads * multiple) * multiple
        last = min(n_rows, first + min(most, max(least, share)))
        tiles.append(slice(first, last))
        first = last
    return tiles


def limit_blas(n_threads: int) -> AbstractContextManager[object]:
    """Let BLAS and OpenMP use `n_threads` threads for a while: `threadpool_limits`, without its 8 ms."""
    return cast("AbstractContextManager[object]", _libraries(len(sys.modules)).limit(limits=n_threads))


def libraries_with_threads() -> list[dict[str, Any]]:
    """Return the BLAS and OpenMP libraries in this process, as `threadpoolctl.threadpool_info` does."""
    return cast("list[dict[str, Any]]", _libraries(len(sys.modules)).info())


@lru_cache(maxsize=1)
def _libraries(n_modules: int) -> ThreadpoolController:
    """List the libraries with threads of their own, again whenever new modules may have brought more."""
    return ThreadpoolController()


@contextmanager
def tile_pool(n_threads: int | None = None) -> Iterator[Executor]:
    """Open a pool to run tiles in, all cores of the process by default, with BLAS on one thread each."""
    with limit_blas(1), ThreadPoolExecutor(n_threads or available_cores()) as pool:
        yield pool
