"""Commands in this process, and what they show."""

import contextlib
import io
import json
import re
from dataclasses import dataclass

from rff_dist.workbench import cli

# choices that are not what a test is about, and would cost a second each
PLAIN = ["--kernel", "gaussian", "--length-scale", "median", "--features", "fourier"]


@dataclass(frozen=True)
class Result:
    """What a command left."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self):
        return self.stdout + self.stderr


def run(*arguments):
    """Run a command; a text of options, as "--serial --alpha 1", is several words."""
    words = []
    for argument in map(str, arguments):
        is_options = re.match("--[a-z-]+ ", argument)
        words += argument.split() if is_options else [argument]
    out = io.StringIO()
    err = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(words)
    return Result(code, out.getvalue(), err.getvalue())


def document(*arguments):
    """Return what a command with --json shows: one JSON document and nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def shown(*arguments):
    """Return the words that a command that succeeds shows, wherever its lines end."""
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return " ".join(result.stdout.split())


def refusal(code, *arguments):
    """Return the message of a command that must fail: one line, and at most one for the
    next step.
    """
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    assert "Traceback" not in result.stderr
    return result.stderr


def fit_small_table(folder, *choices):
    """Return the model of a table with text, ids and a date, t.csv, which are written
    beside it.
    """
    lines = [
        f"{'ab'[i % 2]},{i},k{i},2024-01-{i % 28 + 1:02},{i % 7 + 3 * (i % 2)}"
        for i in range(200)
    ]
    (folder / "t.csv").write_text("\n".join(["kind,size,id,day,y", *lines]))
    document(
        "ingest", folder / "t.csv", folder / "data", "--targets", "y", "--id", "id"
    )
    words = [*PLAIN, "--n-components", "32", *choices, "--serial"]
    document("fit", folder / "data", folder / "model", *words)
    return folder / "model"
