"""Processes that end as soon as their work is done."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

# At its last reading the store's threads get a core only where nobody else wants one.
SCRIPT = """
import os, sys
from pathlib import Path
import numpy as np
from rff_dist import open_dataset, write_dataset
write_dataset(sys.argv[1], np.ones((400, 2)), np.ones(400), versioned=True, chunk_rows=64)
threads = [task for task in Path("/proc/self/task").iterdir() if "tokio" in (task / "comm").read_text()]
for thread in threads:
    os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))
assert threads and open_dataset(sys.argv[1]).n_samples == 400
"""


@pytest.mark.faults("F19")
@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="needs Linux's scheduler")
def test_a_process_whose_store_has_late_threads_does_not_die_of_them(tmp_path):
    def run(number):
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / f"{number}.zarr")]
        return subprocess.run(command, capture_output=True, check=False).returncode

    # more than there are cores
    with ThreadPoolExecutor(2 * len(os.sched_getaffinity(0))) as pool:
        assert list(pool.map(run, range(12))) == [0] * 12
