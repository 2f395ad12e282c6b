"""Everything that the README shows is run, and prints what the README says."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rff_dist.engines.cluster import SCHEDULER_VARIABLE
from tests.pages import commands_of, read_blocks, succeed
from tests.pages import scheduler as scheduler  # a fixture
from tests.prefect_server import prefect_server  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def blocks(project_root):
    return [(one.kind, one.text) for one in read_blocks(project_root / "README.md")]


@pytest.mark.documents
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
    command = [sys.executable, "-W", "error::UserWarning", "story.py"]
    environment = {**os.environ, "PYTHONPATH": str(project_root), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout == "".join(said)


@pytest.mark.documents
@pytest.mark.distributed
def test_every_night_goes_as_printed(blocks, tmp_path, monkeypatch, scheduler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist update" in text]
    commands = commands_of(text)
    assert len(commands) == 13
    Path("fixed.csv").write_text("sale,area,rooms,price\n3,0.1,0.2,0.5\n1007,1,1,3\n")
    Path("gone.csv").write_text("sale\n5\n")
    Path("asked.csv").write_text("sale\n7\n")
    nights = iter(["monday", "tuesday"])
    Path("sales").mkdir()
    said = []
    for arguments in commands:
        if arguments[0] == "ingest":
            write_sales(Path(f"sales/{next(nights)}.csv"))
        said.append(succeed(arguments))
    assert "1,000 before, 2,000 after" in said[2]
    assert "published" in said[3]
    assert "version 2" in said[3]
    assert "version 1 is the current one" in said[5]
    assert "2,000 before, 1,999 after" in said[8]
    assert "forgot 1 row" in said[10]
    assert "of the window 90d: from row 0 on" in said[11]
    assert "half-life  30d" in said[12]


@pytest.mark.documents
@pytest.mark.slow
@pytest.mark.distributed
def test_one_command_makes_a_model_of_a_table(blocks, tmp_path, monkeypatch, scheduler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist auto" in text]
    [arguments] = commands_of(text)
    write_sales(Path("prices.csv"))
    assert "next: rff-dist predict prices-auto/model" in succeed(arguments)


def write_sales(path: Path) -> None:
    first = 0 if path.stem == "monday" else 1000
    inputs = np.random.default_rng(first).normal(size=(1000, 2))
    table = np.c_[np.arange(first, first + 1000), inputs, inputs @ [1.0, 2.0]]
    np.savetxt(path, table, delimiter=",", header="sale,area,rooms,price", comments="")


@pytest.mark.documents
@pytest.mark.flows
@pytest.mark.usefixtures("prefect_server")
def test_the_commands_and_the_flow_run_as_printed(blocks, tmp_path, monkeypatch, scheduler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist generate" in text]
    assert text.count("50000") == 2
    commands = commands_of(text.replace("50000", "1000"))  # rows: their number is not what is tested
    assert len(commands) == 10
    for arguments in commands:
        succeed(arguments)
    flow = next(text for kind, text in blocks if kind == "python" and "flows" in text)
    Path("nightly.py").write_text(flow)
    runpy.run_path("nightly.py", run_name="__main__")
    assert Path("nightly", "model.json").exists()


def test_links_lead_somewhere(project_root):
    links = re.findall(r"\]\(([^)#]+)\)", (project_root / "README.md").read_text())
    assert links
    files = [link for link in links if not link.startswith("https://")]
    assert [link for link in files if not (project_root / link).exists()] == []
