"""The command line as a process of its own: clusters and pipes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from rff_dist.storage.writing import write_dataset
from tests.command_line import PLAIN, document

RFF_DIST = [sys.executable, "-m", "rff_dist.workbench.cli"]
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
    arguments = [folder / "data.zarr", *PLAIN, "--n-components", "64"]
    serial = document(
        "fit", *arguments[:1], folder / "serial", *arguments[1:], "--serial", "--n-threads", "1"
    )
    dask = run("fit", *arguments[:1], folder / "dask", *arguments[1:], "--n-workers", "2", "--n-threads", "1")
    assert dask["engine"] == {"kind": "embedded dask", "n_workers": 2, "n_threads": 1}
    assert serial["engine"] == {"kind": "serial", "n_workers": 1, "n_threads": 1}
    assert dask["statistics_digest"] == serial["statistics_digest"]
    assert dask["digest"] == serial["digest"]


def test_a_reader_that_stops_reading_is_no_error(folder):
    process = subprocess.Popen(
        [*RFF_DIST, "info", folder / "data.zarr"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
