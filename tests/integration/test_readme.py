"""Everything that the README shows is run, and prints what the README says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rff_dist.engines.cluster import SCHEDULER_VARIABLE
from tests.pages import commands_of, read_blocks, succeed
from tests.pages import scheduler as scheduler  # a fixture
from tools.pictures import with_defaults


@pytest.fixture(scope="module")
def blocks(project_root):
    return [(one.kind, one.text) for one in read_blocks(project_root / "README.md")]


@pytest.mark.documents
def test_python_prints_what_the_readme_says(blocks, tmp_path, project_root):
    [story], [said] = ([text for kind, text in blocks if kind == wanted] for wanted in ("python", "text"))
    (tmp_path / "story.py").write_text(story)
    command = [sys.executable, "-W", "error::UserWarning", "story.py"]
    environment = {**os.environ, "PYTHONPATH": str(project_root), "OMP_NUM_THREADS": "1"}
    told = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert told.stdout == said


@pytest.mark.documents
@pytest.mark.distributed
def test_every_night_goes_as_printed(blocks, tmp_path, monkeypatch, scheduler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(SCHEDULER_VARIABLE, scheduler)
    [text] = [text for kind, text in blocks if kind == "sh" and "rff-dist update" in text]
    commands = commands_of(text)
    ingest, fit, update, rollback = commands
    Path("sales").mkdir()
    write_sales(Path("sales/monday.csv"))
    succeed(ingest)
    succeed(fit)
    write_sales(Path("sales/tuesday.csv"))
    assert "1,000 before, 2,000 after" in succeed(ingest)
    said = succeed(update)
    assert "published" in said
    assert "version 2" in said
    assert "version 1 is the current one" in succeed(rollback)


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


def test_what_the_readme_says_of_defaults_is_what_their_table_says(project_root):
    readme, table = ((project_root / name).read_text() for name in ("README.md", "DEFAULTS.md"))
    assert "errs less than CatBoost on 7 and more on 2" in with_defaults(
        readme,
        re.sub(r"\| CatBoost \| \d+ \| \d+ \| \d+ \| \d+ ", "| CatBoost | 13 | 7 | 4 | 2 ", table, count=1),
    )
    assert with_defaults(readme, table) == readme, "run `make pictures`"


def test_links_lead_somewhere(project_root):
    links = re.findall(r"\]\(([^)#]+)\)", (project_root / "README.md").read_text())
    assert links
    files = [link for link in links if not link.startswith("https://")]
    assert [link for link in files if not (project_root / link).exists()] == []
