"""The way from an empty folder to a scheduled refresh that deploy/README.md prints, as
it is printed.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.storage.datasets import open_dataset
from tests.pages import read_blocks
from tests.processes import Process, wait_for
from tests.system import System, answers, free_port

pytestmark = [
    pytest.mark.documents,
    pytest.mark.flows,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]

DONE = "the block is done"


class Terminal(Process):
    """A shell that is given a page's blocks one after the other; it ends at the first
    command that fails.
    """

    def type(self, text: str) -> None:
        """Type a block, and wait until the prompt is back."""
        before = self.log.read_text().count(DONE)
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{{\n{text}\n}} </dev/null\necho {DONE}\n".encode())
        self.popen.stdin.flush()
        self.wait_until(lambda: self.log.read_text().count(DONE) > before, text, 600)

    def variable(self, name: str) -> str:
        """Return what a variable holds."""
        self.type(f'printf "%s\\n" "{name}=${name}"')
        return self.log.read_text().rpartition(f"{name}=")[2].partition("\n")[0]


@pytest.fixture(scope="module")
def terminal(
    tmp_path_factory: pytest.TempPathFactory, project_root: Path
) -> Iterator[Terminal]:
    """A terminal in an empty folder, but for deploy/."""
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "deploy").symlink_to(project_root / "deploy")
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "RFF_"))
        },
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
    }
    pipe = {"folder": folder, "environment": environment, "stdin": subprocess.PIPE}
    with Terminal.start("worker", "sh", "-e", **pipe) as opened, opened.popen.stdin:
        yield opened


@pytest.fixture(scope="module")
def blocks(project_root: Path) -> list[str]:
    """The four blocks of the way, with a port that is free here."""
    port = str(free_port())
    texts = [
        one.text.replace("4200", port)
        for one in read_blocks(project_root / "deploy/README.md")
    ]
    first = next(i for i, text in enumerate(texts) if "prefect server start" in text)
    return texts[first : first + 4]


@pytest.fixture(scope="module")
def system(terminal: Terminal, blocks: list[str]) -> System:
    """The system when all blocks have been typed."""
    server, *others = blocks
    terminal.type(server)
    api = terminal.variable("PREFECT_API_URL")
    terminal.wait_until(lambda: answers(f"{api}/health"), "Prefect's server")
    for block in others:
        terminal.type(block)
    authentication = terminal.variable("PREFECT_API_AUTH_STRING")
    return System(
        terminal.log.parent, None, "", api, authentication, dict(os.environ), [terminal]
    )


@pytest.fixture(scope="module")
def store(system: System, terminal: Terminal) -> Path:
    return Path(terminal.variable("RFF_DIST_STORE"))


def test_printed_commands_end_with_a_model_that_was_tested(store):
    version = RegisteredModel(store / "models/main").current()
    assert (version.number, version.lineage["n_samples"]) == (
        1,
        open_dataset(store / "data.zarr").n_samples,
    )
    held_out = open_dataset(store / "data-test.zarr")
    assert held_out.n_samples + version.lineage["n_samples"] == 2_000
    metrics = read_model(store / "models/main").card["metrics"]
    assert metrics["n_samples"] == held_out.n_samples
    assert metrics["r2"][0] > 0.99  # a smooth function without noise


def test_the_schedule_refreshes_the_model_by_rows_that_arrived(
    system, store, terminal, blocks
):
    [write] = re.findall(r"^python - .*?^END$", blocks[1], re.MULTILINE | re.DOTALL)
    terminal.type(
        write.replace("2000", "500").replace("first.parquet", "second.parquet")
    )
    before = open_dataset(store / "data.zarr").n_samples
    terminal.type("prefect deployment run ingest/nightly --watch")
    with system.schedule_every("refresh/nightly", seconds=10):
        wait_for(
            lambda: RegisteredModel(store / "models/main").current().number == 2,
            "the scheduled refresh",
            180,
        )
    version = RegisteredModel(store / "models/main").current()
    assert version.lineage["n_samples"] == before + 500
    [run, *_] = system.flow_runs("refresh/nightly", scheduled=True, state="COMPLETED")
    assert run["name"].startswith("main, 20")
    assert "rff-refresh-report-main" in system.artifacts(run["id"])
