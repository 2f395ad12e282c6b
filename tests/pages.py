"""Run what a page of prose shows, block by block in one folder, as a reader would.

A block is what stands between ``` and ```, and the word after the first ``` says what
is done with it:

- `sh`: its commands are run one after the other, those of rff-dist in this process, all
  others by the shell;
- `python`: it is run, with the names of the page's blocks before;
- any with a `title="name"`: it is written to a file of that name;
- `text`: it is what the block before printed, with `...` for what differs from run to
  run.

There is no other kind, so that whatever a page shows has been run.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import pytest

from tests.command_line import run

_FENCE = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_ANY_FENCE = re.compile(r"^\s*(```|~~~)", re.MULTILINE)
_SAME = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Long runs of these; a test looks whether the names are known.
_BENCHMARKS = ["python", "-m", "benchmarks"]


@dataclass(frozen=True)
class Block:
    """One block of a page.

    `kind`: the word after the first ```.
    `title`: of the file that it is, "" of none.
    `text`: what it holds.
    """

    kind: str
    title: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    """Return all blocks of a page.

    Raises AssertionError if a block is written otherwise, and would not be run.
    """
    text = page.read_text(encoding="utf-8")
    found = [Block(*groups) for groups in _FENCE.findall(text)]
    assert len(_ANY_FENCE.findall(text)) == 2 * len(found), (
        f"{page} has a block that is not run"
    )
    return found


def commands_of(text: str) -> list[list[str]]:
    """Return the commands of a block that are rff-dist's, without its name."""
    commands = [shlex.split(line, comments=True) for line in _lines(text)]
    return [command[1:] for command in commands if command and command[0] == "rff-dist"]


def _lines(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


def succeed(arguments: Sequence[str]) -> str:
    """Run a command of rff-dist in this process, and return what it prints."""
    result = run(*arguments)
    assert result.exit_code == 0, f"{arguments}\n{result.output}"
    return str(result.stdout)


def run_page(blocks: Sequence[Block], folder: Path) -> None:
    """Run all blocks of a page in a folder."""
    names: dict[str, Any] = {"__name__": "page"}
    said = ""
    with contextlib.chdir(folder):
        for block in blocks:
            if block.title:
                Path(block.title).write_text(block.text, encoding="utf-8")
            elif block.kind == "sh":
                said = "".join(_run_line(line) for line in _lines(block.text))
            elif block.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    exec(compile(block.text, "page", "exec"), names)
                said = printed.getvalue()
            elif block.kind == "text":
                assert _SAME.check_output(block.text, said, _FLAGS), (
                    f"{block.text}\nis shown for\n{said}"
                )
            else:
                raise AssertionError(f"a block of the kind {block.kind!r} is not run")


def _run_line(line: str) -> str:
    words = shlex.split(line, comments=True)
    if not words or words[:3] == _BENCHMARKS:
        return ""
    if words[0] == "rff-dist" and not set(line) & set("|>"):
        return succeed(words[1:])
    # `python` and `rff-dist` are this interpreter's
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["sh", "-c", line], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


def benchmarks_of(blocks: Sequence[Block]) -> Iterator[str]:
    """Yield the names of the benchmarks that a page says how to run."""
    for block in blocks:
        for line in _lines(block.text) if block.kind == "sh" else []:
            words = shlex.split(line, comments=True)
            if words[:3] == _BENCHMARKS:
                yield words[3]


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A cluster for many commands, so that not each of them starts one:
    `RFF_DIST_SCHEDULER` names it.
    """
    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=2,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
    ) as cluster:
        yield cluster.scheduler_address
