"""Places for the datasets and models of tests: a folder of each test, or one for all."""

import tempfile
from pathlib import Path

import pytest

_folder = tempfile.TemporaryDirectory(prefix="rff_dist-places-")


def scratch(name: str) -> str:
    """Return the path of a name in a folder that ends with the process."""
    return f"{_folder.name}/{name}"


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder of its own, so that files have short names."""
    monkeypatch.chdir(tmp_path)
