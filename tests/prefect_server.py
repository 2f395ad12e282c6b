"""Prefect's temporary server in tests: it starts with the first flow and serves all that follow."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """Leave the server to stop at exit, and silence its farewell to streams that are closed by then."""
    yield
    logging.getLogger("prefect").setLevel(logging.WARNING)
