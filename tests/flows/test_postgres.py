"""A Prefect server with authentication on PostgreSQL, and a flow's script that works
through it.
"""

import os
import secrets
import sys

import httpx
import numpy as np
import pytest

from rff_dist import write_dataset
from tests.postgres_server import find_programs, serve_postgres
from tests.processes import Process
from tests.system import answers, free_port

pytestmark = [
    pytest.mark.flows,
    pytest.mark.slow,
    pytest.mark.skipif(find_programs() is None, reason="needs PostgreSQL"),
]


def test_a_flow_runs_through_a_server_on_postgresql_that_refuses_others(
    tmp_path, project_root
):
    X = np.random.default_rng(0).standard_normal((400, 3))
    write_dataset(tmp_path / "data.zarr", X, np.sin(X[:, 0]))
    login = ("check", secrets.token_urlsafe(16))
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    environment = {
        **os.environ,
        "DO_NOT_TRACK": "1",
        "PREFECT_API_AUTH_STRING": ":".join(login),
        "PREFECT_API_URL": api,
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(project_root),
    }
    with serve_postgres() as place:
        of_server = {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://{place}",
            "PREFECT_SERVER_API_AUTH_STRING": ":".join(login),
        }
        command = (
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        )
        started = Process.start(
            "server",
            sys.executable,
            "-m",
            *command,
            folder=tmp_path,
            environment=environment | of_server,
        )
        with started as server:
            server.wait_until(lambda: answers(f"{api}/health"), "Prefect's server")
            assert httpx.get(f"{api}/admin/version").status_code == 401
            words = (
                "data=data.zarr",
                "model=model",
                "n_components=32",
                "kernel=gaussian",
                "serial=true",
            )
            script = str(project_root / "flows/train.py")
            with Process.start(
                "flow",
                sys.executable,
                script,
                *words,
                folder=tmp_path,
                environment=environment,
            ) as flow:
                assert flow.popen.wait(240) == 0, flow.log.read_text()
            runs = httpx.post(
                f"{api}/flow_runs/filter", json={}, auth=login, timeout=30
            ).json()
    assert [run["state_type"] for run in runs] == ["COMPLETED"]
    assert runs[0]["state_name"].startswith("Published: RMSE ")
    assert (tmp_path / "model").is_dir()
