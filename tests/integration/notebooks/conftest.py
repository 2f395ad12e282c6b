"""The notebook that a file of tests is called as, run once for all of them."""

from pathlib import Path

import nbformat
import pytest

from tests.notebooks import Run, run_notebook

NOTEBOOKS = Path(__file__).resolve().parents[3] / "notebooks"


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    return (
        NOTEBOOKS / f"{request.path.stem.removeprefix('test_').replace('_', '-')}.ipynb"
    )


@pytest.fixture
def stored(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module")
def run(
    request: pytest.FixtureRequest, path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    return run_notebook(path, request.module.PROBE, tmp_path_factory.mktemp("jupyter"))


@pytest.fixture(scope="module")
def values(run):
    return run.values
