"""Whatever operation fails or kills a writer, readers see the old or the new, and
nobody is blocked.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rff_dist.errors import StorageError
from tests.faults.works import WORKS, Operations, fail, moments, watched

# A few in the default suite, all others with the slow ones.
FAST = {"predictions", "rows appended", "table followed", "next version"}
EVERY = [
    pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in WORKS
]


MOST = 20  # moments of a work that are tried, spread over all that there are


class Case:
    """A work in folders of its own, and what is to come of it."""

    def __init__(self, name, folder):
        self.work = WORKS[name]
        self.folder = folder
        self.begin = folder / "begin"
        self.begin.mkdir()
        self.work.prepare(str(self.begin))
        self.before = self.work.state(str(self.begin))
        whole = self.new("whole")
        writes = Operations(str(whole), -1, int)
        opens = Operations(str(whole), -1, int, reads=True)
        with watched(writes), watched(opens):
            self.work.run(str(whole))
        self.n_writes = writes.n_seen
        self.n_opens = opens.n_seen
        self.after = self.work.state(str(whole))
        self.left = names_in(whole)
        assert self.after != self.before

    def new(self, name):
        return Path(shutil.copytree(self.begin, self.folder / name))

    def assert_goes_on(self, place):
        """The same work succeeds now; returns what was there before that."""
        found = self.work.state(str(place))
        assert found in (self.before, self.after)
        if found == self.before:
            self.work.run(str(place))
        assert self.work.state(str(place)) == self.after
        return found


def names_in(folder):
    """Return the names of outputs, and of what is left beside them that the same work
    does not go on with.
    """
    return {path.name for path in folder.iterdir() if not path.name.endswith(".ledger")}


def complaint(case, place):
    """Do the work, and return what the error of storage says that ends it."""
    try:
        case.work.run(str(place))
    except StorageError as error:
        return str(error)
    return None


@pytest.mark.faults("F12", "F13")
@pytest.mark.parametrize(
    ("code", "and_later"),
    [(errno.EIO, False), (errno.ENOSPC, True)],
    ids=["one", "full from then on"],
)
@pytest.mark.parametrize("name", EVERY)
def test_whatever_operation_fails_nothing_else_is_left_and_the_same_work_succeeds_afterwards(
    name, code, and_later, tmp_path
):
    case = Case(name, tmp_path)
    for n in moments(case.n_writes, most=MOST):
        here = case.new(str(n))
        failing = Operations(str(here), n, lambda: fail(code), and_later=and_later)
        with watched(failing):
            said = complaint(case, here)
        assert failing.n_hit == 1 or (and_later and failing.n_hit > 1)
        if said is None:  # what failed was not needed
            assert case.work.state(str(here)) == case.after
        else:
            assert os.strerror(code) in said
        assert names_in(here) <= names_in(case.begin) | case.left
        case.assert_goes_on(here)
        shutil.rmtree(here)


type Driver = Callable[[str, int, Path, str], int]


@pytest.fixture(scope="module")
def driver(project_root):
    """Return what does a work in another process and gives its exit code."""
    command = [sys.executable, "-m", "tests.faults.works"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        command, cwd=project_root, stderr=subprocess.DEVNULL, **pipes
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked = process.stdin
        said = process.stdout

        def drive(how, number, place, name):
            asked.write(json.dumps([how, number, str(place), name]) + "\n")
            asked.flush()
            return int(said.readline())

        yield drive
        process.stdin.close()


@pytest.mark.faults("F5")
@pytest.mark.parametrize("name", EVERY)
def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new_and_locks_nobody_out(
    name, tmp_path, driver
):
    case = Case(name, tmp_path)
    found = []
    for n in moments(case.n_opens, most=MOST):
        here = case.new(str(n))
        code = driver("kill at", n, here, name)
        found.append(case.assert_goes_on(here))
        shutil.rmtree(here)
        if code == 0:  # Icechunk does not open as many files each time
            assert n > case.n_opens / 2
            break
        assert code == -signal.SIGKILL
    assert found[0] == case.before
    # Once the new is there it stays.
    assert found == sorted(found, key=lambda state: state == case.after)


@pytest.mark.faults("F13")
@pytest.mark.parametrize("name", EVERY)
def test_a_file_that_cannot_grow_beyond_any_size_leaves_the_old_and_nothing_else(
    name, tmp_path, driver
):
    case = Case(name, tmp_path)
    codes = []
    for limit in (0, 60, 300, 600, 1_200, 3_000, 10_000, 10**6):
        here = case.new(str(limit))
        codes.append(driver("full at", limit, here, name))
        assert names_in(here) <= names_in(case.begin) | case.left
        case.assert_goes_on(here)
        shutil.rmtree(here)
    assert codes[0] == 1
    assert codes[-1] == 0
