"""A Dask scheduler and a worker as processes of their own, which tests kill and freeze."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def run_dask(
    folder: Path, *, port: int = 0, n_workers: int = 1
) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """Run a scheduler and workers without nannies; yield its address, and the processes in this order."""
    file = folder / "scheduler.json"
    file.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (folder / "log").open("ab") as log:

        def start(*arguments: str) -> "subprocess.Popen[bytes]":
            return subprocess.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard", "--scheduler-file", str(file)],
                stdout=log,
                stderr=log,
                env=environment,
            )

        processes = [start("scheduler", "--host", "127.0.0.1", "--port", str(port))]
        try:
            deadline = time.monotonic() + 60
            while not (file.exists() and file.stat().st_size):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            for _ in range(n_workers):
                processes.append(start("worker", "--no-nanny", "--host", "127.0.0.1", "--nthreads", "1"))
            yield json.loads(file.read_text())["address"], processes
        finally:
            for process in processes:
                process.kill()
                process.wait()
