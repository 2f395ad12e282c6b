"""What tests need for the processes that they start."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Not ru_maxrss, which begins with the peak of the process that started this one.
PEAK = """
def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024
"""


def environment_of_all_cores() -> dict[str, str]:
    """Return the environment without the suite's limit of BLAS threads, as a user's process has it."""
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def run_script(script: str, *arguments: object, **variables: str) -> Any:
    """Return the JSON that code prints, which has a process and all cores for itself, and may call `peak`."""
    run = subprocess.run(
        [sys.executable, "-c", PEAK + script, *map(str, arguments)],
        cwd=Path(__file__).resolve().parent.parent,
        env=environment_of_all_cores() | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
