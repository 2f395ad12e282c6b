"""One embedded cluster for all tests of a process, which scale it: each start takes seconds."""

from collections.abc import Iterator

import pytest

from rff_dist.engines.dask import DaskEngine


@pytest.fixture(scope="session")
def embedded() -> Iterator[DaskEngine]:
    with DaskEngine(n_workers=1, threads_per_worker=1) as engine:
        yield engine
