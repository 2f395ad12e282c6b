"""What every test starts from: no telemetry, a private Prefect home, repeatable examples."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# Set before anything imports Prefect, and inherited by every process that a test starts.
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
# Tests import Prefect before `flows`, which says the same: 20 s are too few on a busy machine.
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

# A pass or a failure must not depend on the day or on the machine's load. To look for new examples:
# make test ARGS="--hypothesis-profile=explore"
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("explore", max_examples=1_000, deadline=None, print_blob=True)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the user's own Prefect server, profiles and database out of reach of the tests."""
    prefect_home = tempfile.TemporaryDirectory(prefix="rff_dist-prefect-", ignore_cleanup_errors=True)
    config.add_cleanup(prefect_home.cleanup)
    os.environ["PREFECT_HOME"] = prefect_home.name
    for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session")
def project_root() -> Path:
    """Return the folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent
