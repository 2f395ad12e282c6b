"""The job files of deploy/slurm run as plain scripts, with the environment that Slurm
would give them.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import Process

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RFF_DIST = Path(sys.executable).with_name("rff-dist")


@pytest.fixture
def job(tmp_path):
    """Return a job's environment, its shared folder with certificates in it."""
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip(
            "the jobs find each other by this machine's name, which has no address"
        )
    subprocess.run(
        ["sh", DEPLOY / "tls.sh", tmp_path / "run/tls"], check=True, capture_output=True
    )
    return {
        **os.environ,
        "RFF_DIST_RUN": str(tmp_path / "run"),
        "RFF_DIST_VENV": sys.prefix,
        "RFF_DIST_SCHEDULER_FILE": str(tmp_path / "run/scheduler-1.json"),
        "SLURM_JOB_ID": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "SLURM_MEM_PER_NODE": "2048",
        "SLURM_ARRAY_JOB_ID": "2",
    }


def test_jobs_find_each_other_and_give_the_digest_of_one_process(job, tmp_path):
    def rff_dist(*arguments):
        done = subprocess.run(
            [RFF_DIST, *arguments, "--json"],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        return done.stdout

    rff_dist("generate", "data.zarr", "--rows", "20000")
    alone = rff_dist("fit", "data.zarr", "alone", "--n-components", "64", "--serial")
    fit = ["fit", "data.zarr", "together", "--n-components", "64", "--json"]
    with contextlib.ExitStack() as stack:
        for name, task in (("scheduler", "0"), ("workers", "1"), ("workers", "2")):
            command = str(DEPLOY / f"slurm/{name}.sbatch")
            environment = {**job, "SLURM_ARRAY_TASK_ID": task}
            started = Process.start(
                f"{name}-{task}",
                "bash",
                command,
                folder=tmp_path,
                environment=environment,
            )
            stack.enter_context(started)
        client = ["bash", str(DEPLOY / "slurm/client.sbatch"), *fit]
        done = subprocess.run(
            client,
            env=job,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        # The scheduler takes its file away when it ends.
        scheduler = json.loads((tmp_path / "run/scheduler-1.json").read_text())
    assert done.returncode == 0, done.stderr
    assert scheduler["address"].startswith("tls://")
    assert json.loads(done.stdout)["digest"] == json.loads(alone)["digest"]
