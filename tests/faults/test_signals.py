"""A command that a signal stops leaves neither processes nor output."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from rff_dist.storage.writing import write_dataset
from tests.command_line import PLAIN

pytestmark = pytest.mark.distributed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("RFF_DIST_SCHEDULER", raising=False)
    X = np.random.default_rng(0).standard_normal((40_000, 3)).astype(np.float32)
    write_dataset(tmp_path / "data.zarr", X, np.sin(X).sum(axis=1), chunk_rows=4096)
    return tmp_path


def start_long_fit(folder):
    """Start a fit that would take minutes, wait for its longest pass, and find its
    processes.
    """
    command = [
        sys.executable,
        "-m",
        "rff_dist.workbench.cli",
        "fit",
        folder / "data.zarr",
        folder / "stopped",
        *PLAIN,
    ]
    command += [
        "--n-components",
        "8192",
        "--alpha",
        "1",
        "--n-workers",
        "1",
        "--n-threads",
        "1",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if line.startswith("sum over rows: "):
            break
    return process, psutil.Process(process.pid).children(recursive=True)


@pytest.mark.faults("F6")
@pytest.mark.parametrize(
    ("number", "to_all", "code", "name"),
    [(signal.SIGTERM, False, 143, "SIGTERM"), (signal.SIGINT, True, 130, "Ctrl-C")],
)
def test_a_signal_stops_the_cluster_and_leaves_neither_processes_nor_output(
    folder, number, to_all, code, name
):
    process, children = start_long_fit(folder)
    time.sleep(0.5)
    try:
        # A terminal sends Ctrl-C to the workers too.
        (os.killpg if to_all else os.kill)(process.pid, number)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code
    assert stdout == ""
    assert f"error: stopped by {name}" in stderr
    assert "Traceback" not in stderr
    assert children
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []
    # The sums of a pass that took long are kept for the same command.
    assert {path.name for path in folder.iterdir() if "stopped" in path.name} <= {
        ".stopped.ledger"
    }
