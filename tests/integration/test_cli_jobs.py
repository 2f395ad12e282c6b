"""The command line as a process of its own: clusters, signals, pipes."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from rff_dist.storage.writing import write_dataset
from tests.command_line import PLAIN, document

RFF_DIST = [sys.executable, "-m", "rff_dist.cli"]
pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli_jobs")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40_000, 3)).astype(np.float32)
    write_dataset(path / "data.zarr", X, np.sin(X).sum(axis=1), chunk_rows=4096)
    return path


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("RFF_DIST_SCHEDULER", raising=False)


def run(*arguments, code=0):
    """Run a command and return its JSON document, the only thing on its standard output."""
    command = [*RFF_DIST, *map(str, arguments), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return json.loads(result.stdout)


def test_the_embedded_cluster_gives_the_same_model_as_this_process(folder):
    arguments = [folder / "data.zarr", *PLAIN, "--components", "64"]
    serial = document("fit", *arguments[:1], folder / "serial", *arguments[1:], "--serial", "--threads", "1")
    dask = run("fit", *arguments[:1], folder / "dask", *arguments[1:], "--workers", "2", "--threads", "1")
    assert dask["engine"] == {"kind": "embedded dask", "n_workers": 2, "n_threads": 1}
    assert serial["engine"] == {"kind": "serial", "n_workers": 1, "n_threads": 1}
    assert dask["statistics_digest"] == serial["statistics_digest"]
    assert dask["digest"] == serial["digest"]


def start_long_fit(folder, *, until):
    """Start a fit that would take minutes, wait for a line of its progress, and find its processes."""
    command = [*RFF_DIST, "fit", folder / "data.zarr", folder / "stopped", *PLAIN, "--components", "8192"]
    command += ["--alpha", "1", "--workers", "1", "--threads", "1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for line in process.stderr:
        if line.startswith(until):
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
    process, children = start_long_fit(folder, until="accumulate: ")
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
    assert {path.name for path in folder.iterdir() if "stopped" in path.name} <= {".stopped.ledger"}


def test_a_reader_that_stops_reading_is_no_error(folder):
    process = subprocess.Popen(
        [*RFF_DIST, "info", folder / "data.zarr"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
