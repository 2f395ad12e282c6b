"""Everything that the README shows is run, and prints what the README says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rff_dist.engines.cluster import SCHEDULER_VARIABLE
from rff_dist.engines.dask import DaskEngine

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def blocks(project_root):
    return BLOCK.findall((project_root / "README.md").read_text())


@pytest.fixture
def scheduler():
    """A cluster for many commands, so that not each of them starts one: `RFF_DIST_SCHEDULER` names it."""
    with DaskEngine(n_workers=1, threads_per_worker=2) as engine:
        yield engine.address


def run(command: list[str], folder: Path, project_root: Path, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(project_root), "OMP_NUM_THREADS": "1", **variables}
    result = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def test_python_prints_what_the_readme_says(blocks, tmp_path, project_root):
    """The blocks of one story run as one script, up to those that need the command line's files."""
    story, said = [], []
    for kind, text in blocks:
        if kind == "python" and "flows" not in text:
            story.append(text)
        if kind == "text":
            said.append(text)
    assert len(story) == len(said) == 5
    (tmp_path / "story.py").write_text("\n".join(story))
    printed = run([sys.executable, "-W", "error::UserWarning", "story.py"], tmp_path, project_root)
    assert printed == "".join(said)


def commands_of(text: str) -> list[list[str]]:
    commands = [shlex.split(line, comments=True) for line in text.splitlines()]
    return [command[1:] for command in commands if command and command[0] == "rff-dist"]


def test_every_night_goes_as_printed(blocks, tmp_path, project_root):
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist update" in text]
    commands = commands_of(text)
    assert len(commands) == 6
    nights = iter(["monday", "tuesday"])
    (tmp_path / "sales").mkdir()
    said = []
    for arguments in commands:
        if arguments[0] == "ingest":
            write_sales(tmp_path / f"sales/{next(nights)}.csv")
        said.append(run([sys.executable, "-m", "rff_dist.cli", *arguments], tmp_path, project_root))
    assert "1,000 before, 2,000 after" in said[2]
    assert "published" in said[3]
    assert "version 2" in said[3]
    assert "version 1 is the current one" in said[5]


def write_sales(path: Path) -> None:
    inputs = np.random.default_rng(len(path.name)).normal(size=(1000, 2))
    table = np.c_[inputs, inputs @ [1.0, 2.0]]
    np.savetxt(path, table, delimiter=",", header="area,rooms,price", comments="")


@pytest.mark.flows
def test_the_commands_and_the_flow_run_as_printed(blocks, tmp_path, project_root, scheduler):
    places = {"folder": tmp_path, "project_root": project_root, SCHEDULER_VARIABLE: scheduler}
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist generate" in text]
    commands = commands_of(text)
    assert len(commands) == 10
    for arguments in commands:
        run([sys.executable, "-m", "rff_dist.cli", *arguments], **places)
    flow = next(text for kind, text in blocks if kind == "python" and "flows" in text)
    (tmp_path / "nightly.py").write_text(flow)
    run([sys.executable, "nightly.py"], **places)
    assert (tmp_path / "nightly" / "model.json").exists()


def test_links_lead_somewhere(project_root):
    links = re.findall(r"\]\(([^)#]+)\)", (project_root / "README.md").read_text())
    assert links
    assert [link for link in links if not (project_root / link).exists()] == []
