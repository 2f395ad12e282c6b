"""How a command ends: whatever becomes of its time, its output and its reader, it
leaves a code.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rff_dist import write_dataset
from rff_dist.engines import events
from rff_dist.errors import DataError, JobTimeoutError
from rff_dist.numerics import machine
from rff_dist.workbench.jobs import limits
from rff_dist.workbench.jobs.limits import JobLimits
from rff_dist.workbench.page import pages
from tests.command_line import PLAIN, run
from tests.refusals import refuses

PROGRAM = [sys.executable, "-m", "rff_dist.workbench.cli"]
C_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


def ended(command, *, folder, streams="", environment=None):
    """Return how a command ends in a shell: its exit code, and what it wrote to
    standard error.
    """
    line = f'exec "$@" {streams}'
    done = subprocess.run(
        ["/bin/sh", "-c", line, "sh", *PROGRAM, *command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)
@pytest.mark.parametrize(
    ("command", "streams", "environment", "code", "last"),
    [
        ("info data.zarr", ">/dev/full", {}, 73, "(No space left on device)"),
        ("info none.zarr --json", ">/dev/full 2>/dev/full", {}, 65, None),
        ("--version", ">&- 2>&-", {}, 73, None),
        ("fit --help", "", C_LOCALE, 0, None),
    ],
)
def test_a_result_that_cannot_be_shown_is_said_by_the_last_line_and_the_code(
    folder, command, streams, environment, code, last
):
    found, told = ended(
        command.split(), folder=folder, streams=streams, environment=environment
    )
    lines = [line for line in told.splitlines() if line.startswith("error: ")]
    assert found == code, told
    assert "Traceback" not in told
    assert [line.rpartition(" cannot be written ")[2] for line in lines] == (
        [last] if last else []
    )


def test_a_reader_that_stops_reading_is_no_error(folder):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        done = subprocess.run(
            [*PROGRAM, "info", "data.zarr"],
            cwd=folder,
            stdout=closed,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_while_modules_are_imported_ends_the_program_without_a_traceback(folder):
    # the sleep stands for a slow import: nothing has installed the handler of a job
    slow = (
        "import sys, time; sys.modules['cyclopts'] = None; import"
        " rff_dist.workbench.cli as cli\n"
    )
    slow += (
        "cli.run = lambda words: (print('ready', flush=True),"
        " time.sleep(60))\ncli.main()"
    )
    command = [sys.executable, "-c", slow]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("tune", ""),
        *((label, "--effort 1") for label in ("inspect", "accumulate", "solve")),
        *((label, "--effort 1") for label in ("hold out", "publish")),
    ],
)
def test_ctrl_c_ends_a_fit_in_each_of_its_steps_and_leaves_nothing(
    tmp_path, monkeypatch, label, words
):
    X = np.random.default_rng(0).standard_normal((1500, 8))
    write_dataset(tmp_path / "data.zarr", X, np.sin(2 * X[:, 0]) * X[:, 1])
    later = []
    announce = events.Announcer.__call__

    def announce_and_interrupt(announcer, event):
        announce(announcer, event)
        # by another thread than the one that Python raises KeyboardInterrupt in
        if later or (event.label == label and not isinstance(event, events.Remark)):
            later.append(event)
            if len(later) == 1:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(events.Announcer, "__call__", announce_and_interrupt)
    ended = run(
        "fit", tmp_path / "data.zarr", tmp_path / "m", *words.split(), "--serial"
    )
    assert ended.exit_code == 130, ended.output
    assert "Ctrl-C" in ended.stderr
    # the steps that were under way in each thread; tuning has 100
    assert len(later) <= 3 * machine.available_cores() + 3, later
    left = {path.name for path in tmp_path.iterdir()}
    # sums that took long are kept for the same command
    assert left - {".m.ledger"} == {"data.zarr"}


COMMANDS = {
    "fit": [
        "fit",
        "data.zarr",
        "{out}",
        *PLAIN,
        "--n-components",
        "64",
        "--alpha",
        "1",
        "--serial",
    ],
    "predict a table": ["predict", "model", "table.csv", "{out}.csv", "--serial"],
    "update": ["update", "model", "data.zarr", "--dry-run", "--serial"],
}


# A signal that arrives in a callback of the collector, or before a coroutine is awaited,
# is told by Python as a warning; the job's time ends a moment later.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_job_is_done_or_says_that_its_time_is_over_whenever_that_is(
    folder, tmp_path, command, monkeypatch
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(limits, "_AGAIN_S", 0.05)
    started = time.perf_counter()
    assert (
        run(*(word.format(out=tmp_path / "whole") for word in command)).exit_code == 0
    )
    needed = time.perf_counter() - started
    for i, share in enumerate((0.01, 0.3, 0.6, 0.9)):
        words = [word.format(out=tmp_path / str(i)) for word in command]
        ended = run(*words, "--timeout-minutes", share * needed / 60)
        assert ended.exit_code in (0, 1), ended.output
        # a fit may also be refused by its plan
        assert ("timeout" in ended.stderr) == (ended.exit_code == 1), ended.output


def test_an_end_that_a_destructor_or_a_handler_swallows_comes_again(monkeypatch):
    monkeypatch.setattr(limits, "_AGAIN_S", 0.05)
    swallowed = []
    before = signal.getsignal(signal.SIGALRM)
    with (
        refuses(JobTimeoutError, "timeout_minutes"),
        JobLimits(timeout_minutes=0.05 / 60).timed(),
    ):
        for _ in range(2):
            try:
                time.sleep(30)
            except BaseException as error:
                swallowed.append(error)
        time.sleep(30)
    assert len(swallowed) == 2
    assert not any(isinstance(error, Exception) for error in swallowed)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_cleans_up_after_the_end_is_not_stopped(monkeypatch):
    monkeypatch.setattr(limits, "_AGAIN_S", 0.02)
    cleaned = []
    with (
        refuses(JobTimeoutError, "timeout_minutes"),
        JobLimits(timeout_minutes=0.05 / 60).timed(),
    ):
        try:
            time.sleep(30)
        finally:
            time.sleep(0.2)
            cleaned.append(True)
    assert cleaned == [True]


def test_an_error_of_the_page_says_that_the_job_is_done(folder, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise DataError("rows for the page are gone; expected them")

    monkeypatch.setattr(pages, "page_of", fail)
    words = (*PLAIN, "--alpha 1 --n-components 32 --report page.html --serial")
    ended = run("fit", folder / "data.zarr", tmp_path / "model", *words)
    assert ended.exit_code == 65
    assert "the job is done, and its result is in its place" in ended.stderr
    assert (tmp_path / "model").is_dir()
