"""Dask clusters for tests: embedded ones, and processes of their own, which are killed
and frozen.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import dask
from dask.cli import run_cli

from rff_dist import DaskEngine
from rff_dist.data.blocks import Block
from rff_dist.engines.connecting import read_scheduler_file
from rff_dist.engines.events import BlockDone, Event
from tests.engine_contract import unit_blocks
from tests.processes import wait_for


class DaskProcess(ForkServerProcess):
    """`dask scheduler …` or `dask worker …`, forked: a new interpreter would import for
    seconds.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        super().__init__(daemon=True)
        self.log = log
        self.arguments = arguments
        self.environment = os.environ | {
            "DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "10"  # as in deploy/
        }

    def run(self) -> None:
        os.environ.clear()
        os.environ.update(self.environment)
        dask.config.refresh()
        with self.log.open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        sys.argv = ["dask", *self.arguments]
        run_cli()

    def again(self) -> "DaskProcess":
        """Start such a process once more."""
        return started(self.log, *self.arguments)


def started(log: Path, *arguments: str) -> DaskProcess:
    start_fork_server()
    process = DaskProcess(log, *arguments)
    process.start()
    return process


@contextmanager
def run_dask(
    folder: Path, *, port: int = 0, n_workers: int = 1, worker_port: int = 0
) -> Iterator[tuple[str, list[DaskProcess]]]:
    """Run a scheduler and workers without nannies; yield its address, and the processes
    in this order.
    """
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    common = ("--no-dashboard", "--scheduler-file", str(file), "--host", "127.0.0.1")
    worker = ("--no-nanny", "--nthreads", "1", "--worker-port", str(worker_port))
    processes = [started(folder / "log", "scheduler", *common, "--port", str(port))]
    try:
        wait_for(file.exists, "the scheduler's file", 60)
        for _ in range(n_workers):
            processes.append(started(folder / "log", "worker", *common, *worker))
        yield read_scheduler_file(file), processes
    finally:
        for process in processes:
            process.kill()
            process.join()


@cache
def start_fork_server() -> None:
    """Start the process that workers are forked from, which imports all that passes
    need, once for all.
    """
    imported = [
        "distributed",
        "distributed.cli.dask_scheduler",
        "distributed.cli.dask_worker",
        "rff_dist.engines.worker",
        "rff_dist.estimators.ridge",
        "rff_dist.storage.datasets",
    ]
    multiprocessing.get_context("forkserver").set_forkserver_preload(imported)
    forkserver.ensure_running()


@contextmanager
def forked_workers(**environment: str) -> Iterator[None]:
    """Fork new workers, from a process whose environment they have, and what is
    given.
    """
    start_fork_server()
    options = {
        "distributed.worker.multiprocessing-method": "forkserver",
        "distributed.nanny.environ": environment,
    }
    with dask.config.set(options):
        yield


def scaled(engine: DaskEngine, n_workers: int) -> DaskEngine:
    """Give an embedded cluster another number of workers, and forget who observed
    it.
    """
    engine.client.cluster.scale(n_workers)
    wait_for(
        lambda: engine.n_workers == n_workers, f"a cluster of {n_workers} workers", 60
    )
    engine.observers = ()
    return engine


def wait_until_no_tasks(engine: DaskEngine) -> None:
    def held(dask_scheduler: Any) -> list[str]:
        # Dask remembers names of tasks that a collection's graph brought and nobody
        # wants: "released".
        return [
            str(key)
            for key, task in dask_scheduler.tasks.items()
            if task.state != "released"
        ]

    deadline = time.monotonic() + 30
    while left := engine.client.run_on_scheduler(held):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def once_after(n_blocks: int, action: Callable[[], None]) -> Callable[[Event], None]:
    """Act in the middle of a pass, while it waits."""
    count = 0

    def observer(event: Event) -> None:
        nonlocal count
        count += isinstance(event, BlockDone)
        if count == n_blocks and isinstance(event, BlockDone):
            action()

    return observer


def slow_power(block: Block, _: object) -> int:
    time.sleep(0.01)
    return 1 << block.index


def assert_each_counts_once(
    engine: DaskEngine, n_blocks: int, state: Any = None
) -> None:
    """A pass over so many blocks, each of which takes a hundredth of a second, counts
    each of them once.
    """
    total = engine.map_reduce(slow_power, unit_blocks(n_blocks), state)
    assert total == 2**n_blocks - 1, bin(total)
