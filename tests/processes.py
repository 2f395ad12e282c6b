"""What tests need for the processes that they start."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

START_S = 240.0
_PR_SET_PDEATHSIG = 1

# Not ru_maxrss, which begins with the peak of the process that started this one.
PEAK = """
def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024
"""


def environment_of_all_cores() -> dict[str, str]:
    """Return the environment without the suite's limit of BLAS threads, as a user's
    process has it.
    """
    return {
        name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"
    }


def run_script(script: str, *arguments: object, **variables: str) -> Any:
    """Return the JSON that code prints, which has a process and all cores for itself,
    and may call `peak`.
    """
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


@dataclass
class Process:
    """A program that runs in the background, with its output in a file.

    Attributes
    ----------
    name : str
    popen : subprocess.Popen
    log : Path
    """

    name: str
    popen: "subprocess.Popen[bytes]"
    log: Path

    @classmethod
    def start(
        cls,
        name: str,
        *command: str,
        folder: Path,
        environment: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
    ) -> Self:
        """Start a program in a process group of its own."""
        log = folder / f"{name}.log"
        with open(log, "wb") as file:
            popen = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        return cls(name, popen, log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until(
        self, done: Callable[[], Any], what: str, seconds: float = START_S
    ) -> Any:
        """Wait until `done` returns something true, and give up when the program has
        ended.
        """

        def look() -> Any:
            if self.popen.poll() is not None:
                raise AssertionError(
                    f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}"
                )
            return done()

        try:
            return wait_for(look, what, seconds)
        except TimeoutError as error:
            raise AssertionError(
                f"{error}; {self.name} says:\n{self.tail()}"
            ) from error

    def tail(self, n_lines: int = 40) -> str:
        """Return the last lines of the output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-n_lines:])

    def stop(self) -> None:
        """End the program and what it started."""
        try:
            family = psutil.Process(self.popen.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGCONT)
            os.killpg(self.popen.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def wait_for(done: Callable[[], Any], what: str, seconds: float) -> Any:
    """Return what `done` returns as soon as it is something."""
    end = time.monotonic() + seconds
    while (found := done()) in (None, False, [], ""):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return found


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
