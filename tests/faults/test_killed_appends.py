"""Processes that append to one dataset and are killed, or are two at once."""

import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rff_dist import append_dataset, open_dataset
from tests.unit.storage.test_appending import make_rows, read_all, write

APPEND = """
import sys, numpy as np
from rff_dist.storage.appending import append_dataset
X = np.load(sys.argv[2])
def batches():
    for i in range(0, len(X), 500):
        yield X[i : i + 500], X[i : i + 500, 0].astype("f8")
print("begun", flush=True)
print(append_dataset(sys.argv[1], batches()).n_after, flush=True)
"""


def start_append(url, X):
    return subprocess.Popen(
        [sys.executable, "-c", APPEND, str(url), str(X)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    X, _ = make_rows(30_000)
    np.save(folder / "X.npy", X[1300:])
    write(folder / "data.zarr", X[:1300], X[:1300, 0].astype("f8"), chunk_rows=512)
    return folder


@pytest.mark.faults("F5")
def test_a_killed_append_leaves_the_old_rows_or_all_and_nobody_locked_out(folder, tmp_path):
    """Killed at any moment from its beginning to its end, by signals in steps over the time that it takes."""
    timed = start_append(shutil.copytree(folder / "data.zarr", tmp_path / "timed"), folder / "X.npy")
    timed.stdout.readline()
    begun = time.monotonic()
    timed.communicate()
    assert timed.returncode == 0
    takes, sizes = time.monotonic() - begun, []
    for i in range(6):
        url = shutil.copytree(folder / "data.zarr", tmp_path / str(i))
        process = start_append(url, folder / "X.npy")
        process.stdout.readline()
        time.sleep(takes * (i + 0.5) / 5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        sizes.append(open_dataset(url).n_samples)
        n_before = sizes[-1]
        np.testing.assert_array_equal(read_all(url).X, make_rows(30_000)[0][:n_before])
        assert append_dataset(url, *make_rows(10)).n_after == n_before + 10
    assert set(sizes) <= {1300, 30_000}
    assert sizes[0] == 1300


@pytest.mark.faults("F16")
def test_of_two_that_append_at_once_both_are_there_or_one_was_told(folder, tmp_path):
    url = shutil.copytree(folder / "data.zarr", tmp_path / "two")
    both = [start_append(url, folder / "X.npy") for _ in range(2)]
    outcomes = [(process.communicate(), process.returncode) for process in both]
    done = [code == 0 for _, code in outcomes]
    for (_, errors), code in outcomes:
        assert code == 0 or b"OutputBusyError" in errors
    assert any(done)
    assert open_dataset(url).n_samples == 1300 + 28_700 * sum(done)
