"""Everything that the README shows is run, and prints what the README says."""

import os
import re
import subprocess
import sys

import pytest

from rff_dist.engines.cluster import SCHEDULER_VARIABLE
from tests.pages import read_blocks
from tools.pictures import with_defaults


@pytest.mark.documents
@pytest.mark.distributed
def test_its_commands_run_as_printed_in_an_empty_folder(project_root, tmp_path):
    lines = []
    said = []
    for block in read_blocks(project_root / "README.md"):
        if block.kind == "sh":
            lines += block.text.splitlines()
        elif block.kind == "python":
            lines += [
                "echo begin",
                "python - <<'END'",
                block.text.rstrip(),
                "END",
                "echo end",
            ]
        else:
            said.append(block.text)
    assert lines.pop(0).startswith("make demo ")  # which a test of its own runs
    # what it has made then, and what a clone has
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "notebooks").symlink_to(project_root / "notebooks")
    kept = ("HOME", "LANG", "PREFECT_HOME", SCHEDULER_VARIABLE)
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {
        "PATH": os.defpath,
        "PYTHONPATH": str(project_root),
        "OMP_NUM_THREADS": "1",
    }
    environment |= {"PYTHONWARNINGS": "error::UserWarning"}
    script = "\n".join(lines)
    told = subprocess.run(
        ["sh", "-e"],
        input=script,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert (
        re.findall(r"^begin\n(.*?)^end$", told.stdout, re.MULTILINE | re.DOTALL) == said
    )
    shown = " ".join(told.stdout.split())  # wherever lines end
    assert "next: rff-dist predict prices-auto/model" in shown
    assert "800 before, 1,000 after" in shown
    assert "version 2 " in shown  # after its place, whose long name may be broken
    assert "version 1 is the current one" in shown
    assert "one worker and eight: equal" in shown


def test_what_the_readme_says_of_defaults_is_what_their_table_says(project_root):
    readme, table = (
        (project_root / name).read_text()
        for name in ("README.md", "notebooks/manual/pages/defaults.md")
    )
    found = "CatBoost's error is higher on 7, equal on 4 and lower on 2"
    assert found in with_defaults(
        readme,
        re.sub(
            r"\| CatBoost \| \d+ \| \d+ \| \d+ \| \d+ ",
            "| CatBoost | 13 | 7 | 4 | 2 ",
            table,
            count=1,
        ),
    )
    assert with_defaults(readme, table) == readme, "run `make pictures`"


def test_links_lead_somewhere(project_root):
    links = re.findall(r"\]\(([^)#]+)\)", (project_root / "README.md").read_text())
    assert links
    files = [link for link in links if not link.startswith("https://")]
    assert [link for link in files if not (project_root / link).exists()] == []
