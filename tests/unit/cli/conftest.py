"""What tests of commands begin with."""

import numpy as np
import pytest

from tests.command_line import PLAIN, run
from tests.tables import ingest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder with a table, a dataset of 3 columns, and a model of it; tests only add to it."""
    path = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3)).round(4)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(300)).round(4)
    lines = ["a,b,c,price", *(",".join(map(str, row)) for row in np.column_stack([X, y]))]
    (path / "table.csv").write_text("\n".join(lines))
    ingest(path / "table.csv", path / "data.zarr", target="price", chunk_rows=64)
    fit = ("fit", path / "data.zarr", path / "model", *PLAIN, "--n-components", "64", "--serial")
    found = run(*fit, "--alpha", "gcv")
    assert found.exit_code == 0, found.stderr
    return path


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    monkeypatch.delenv("RFF_DIST_SCHEDULER", raising=False)
