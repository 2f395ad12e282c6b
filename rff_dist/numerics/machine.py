"""The resources of this machine: cores, memory, and threads that share tiles.

Work goes in as whole tiles. Each free thread takes the next tile, with single-threaded
BLAS. BLAS with threads of its own would split sums by the number of threads, and crash
on large symmetric products.
"""

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
from numpy.typing import DTypeLike
from threadpoolctl import LibController, ThreadpoolController

from rff_dist import contexts
from rff_dist.typing import AnyArray


def available_memory() -> int:
    """Return the bytes that this process may use, of the machine or a control group."""
    # in a container this is still the whole machine's memory, so look at control groups
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    # of version 2 of control groups, and of version 1
    for path in (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue
        if text.isdigit():  # "max" is no limit
            limits.append(int(text))
    return min(limits)


def available_cores() -> int:
    """Count the cores that this process may run on.

    The environment does not matter: Dask's workers and its local cluster set
    OMP_NUM_THREADS to 1.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- threads


threads_in_use: ContextVar[int] = ContextVar("n_threads", default=1)


@contextmanager
def using_threads(n_threads: int) -> Iterator[None]:
    """Let block functions use `n_threads` threads, each with single-threaded BLAS.

    A tile is the work of one thread, so no bit of a result depends on their number.
    """
    with contexts.setting(threads_in_use, n_threads), single_threaded_blas():
        yield


class _Inline(Executor):
    """Runs each task immediately, in the calling thread."""

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Iterator[Any]:
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])


def executor_of(n_threads: int) -> Executor:
    """Return an executor of `n_threads` threads; one is the calling thread."""
    return _Inline() if n_threads == 1 else ThreadPoolExecutor(n_threads)


class SpareMemory:
    """Arrays that one thread no longer uses, for the next.

    Fetching new pages from the system takes longer than filling them.
    """

    def __init__(self) -> None:
        self._arrays: deque[AnyArray] = deque()

    def take(self, size: int, dtype: DTypeLike) -> AnyArray:
        """Return a vector of at least `size` numbers of any value."""
        try:
            array = self._arrays.popleft()
        except IndexError:
            return np.empty(size, dtype)
        if len(array) < size or array.dtype != dtype:
            return np.empty(size, dtype)
        return array

    def give(self, array: AnyArray) -> None:
        """Hand on an array that is no longer used."""
        self._arrays.append(array)


def slices(start: int, stop: int, size: int) -> list[slice]:
    """Return slices of `size` from `start` to `stop`; the last one may be shorter.

    >>> slices(2, 7, 3)
    [slice(2, 5, None), slice(5, 7, None)]
    """
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def share_out[A](function: Callable[[A], None], items: Iterable[A]) -> None:
    """Call a function with each item, in this thread and the others of a block."""
    # popleft is atomic, so threads need no lock; a free thread takes the next item
    remaining = deque(items)

    def work() -> None:
        while True:
            try:
                item = remaining.popleft()
            except IndexError:
                return
            function(item)

    n_others = min(threads_in_use.get(), len(remaining)) - 1
    if n_others < 1:
        work()
        return
    with ThreadPoolExecutor(n_others) as pool:
        others = [pool.submit(work) for _ in range(n_others)]
        try:
            work()
        except BaseException:
            # the others finish their current item, and take no further one
            remaining.clear()
            raise
        for other in others:
            other.result()


def falling_tiles(n_rows: int, most: int, *, multiple: int, least: int) -> list[slice]:
    """Cut rows into tiles that become smaller, so that threads end together.

    Each tile is half of a thread's share of the remaining rows (Polychronopoulos & Kuck
    1987, guided self-scheduling), for the threads of `using_threads`. All but the last
    have from `least` to `most` rows, multiples of `multiple`; with one thread all have
    `most`.
    """
    n_threads = threads_in_use.get()
    tiles = []
    first = 0
    while first < n_rows:
        share = most
        if n_threads > 1:
            share = (n_rows - first) // (2 * n_threads * multiple) * multiple
        last = min(n_rows, first + min(most, max(least, share)))
        tiles.append(slice(first, last))
        first = last
    return tiles


def blas_libraries() -> list[dict[str, Any]]:
    """Return this process's BLAS libraries, as `threadpoolctl.threadpool_info`."""
    return cast("list[dict[str, Any]]", _libraries().info())


def _libraries() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  # brings a BLAS of its own, which must not come later without a limit

    return _libraries_of(len(sys.modules))


@lru_cache(maxsize=1)
def _libraries_of(n_modules: int) -> ThreadpoolController:
    """List the BLAS libraries again when modules, which may bring more, were imported.

    This takes 8 ms.
    """
    return ThreadpoolController().select(user_api="blas")


class _BlasLimit:
    """Keeps BLAS on one thread while any thread of the process needs that.

    How many threads BLAS uses is one number for the whole process. If each of several
    threads set and restored it, one would lift the limit while another computes, and
    the last would restore a limit. So the first user sets it, and the last restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._n_users = 0
        self._threads_before: dict[str, tuple[LibController, int]] = {}

    @contextmanager
    def hold(self) -> Iterator[None]:
        libraries = _libraries().lib_controllers
        with self._lock:
            self._n_users += 1
            for library in libraries:
                self._threads_before.setdefault(
                    library.filepath, (library, library.num_threads)
                )
                _set_threads(library, 1)
        try:
            yield
        finally:
            with self._lock:
                self._n_users -= 1
                if self._n_users == 0:
                    for library, n_threads in self._threads_before.values():
                        _set_threads(library, n_threads)
                    self._threads_before.clear()


def _set_threads(library: LibController, n_threads: int) -> None:
    # since threadpoolctl 3.8 a library obeys the first thread that sets a limit, and
    # ignores the others
    obey_any = getattr(library, "clear_controlling_thread", None)
    if obey_any is not None:
        obey_any(force=True)
    library.set_num_threads(n_threads)
    if obey_any is not None:
        obey_any(force=True)


_blas_limit = _BlasLimit()


def single_threaded_blas() -> AbstractContextManager[None]:
    """Let BLAS use one thread, so that no bit of its sums depends on their number."""
    return _blas_limit.hold()


@contextmanager
def tile_pool(n_threads: int | None = None) -> Iterator[Executor]:
    """Open a pool to run tiles in, by default on all cores, with BLAS on one thread."""
    with (
        single_threaded_blas(),
        ThreadPoolExecutor(n_threads or available_cores()) as pool,
    ):
        yield pool


def measure_gflops() -> float:
    """Measure billions of float64 operations per second of one thread, in 0.2 s."""
    matrix = np.random.Generator(np.random.Philox(0)).standard_normal((1024, 4096))
    best = math.inf
    with single_threaded_blas():
        for _ in range(3):
            start = time.perf_counter()
            # NumPy calls dsyrk for a product with the matrix's own transpose: n²·k
            # operations, not 2·n²·k
            np.matmul(matrix, matrix.T)
            # the fastest of three, since other processes can only slow it down
            best = min(best, time.perf_counter() - start)
    return float(matrix.shape[0] ** 2 * matrix.shape[1] / best / 1e9)
