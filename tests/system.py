"""The whole system as real processes on loopback: Prefect's server and a worker, Dask
with TLS, S3.

Every process is ended when the context is left, by its number, and by the kernel if
this one dies before."""

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from rff_dist.engines.connecting import read_scheduler_file
from tests.processes import Process, wait_for
from tests.s3_server import S3Server, serve_s3

PROJECT = Path(__file__).resolve().parent.parent
POOL = "rff-dist"
# States in which a flow run stays.
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
DEPLOYMENTS = PROJECT / "deploy/prefect.yaml"
_OURS = ("AWS_", "DASK_", "PREFECT_", "RFF_DIST_")
RUN_S = 180.0


def missing_programs() -> list[str]:
    """Return the names of programs and packages that the system needs and this machine
    lacks.
    """
    import importlib.util

    packages = [
        name
        for name in ("moto", "obstore", "flask")
        if importlib.util.find_spec(name) is None
    ]
    return packages + [name for name in ("openssl", "sh") if shutil.which(name) is None]


@dataclass
class System:
    """Addresses and credentials of all parts, and what a user does with them.

    Attributes
    ----------
    folder : Path
        Of the processes' logs, Prefect's home and the certificates.
    s3 : S3Server
    scheduler : str
        Dask's address, tls://….
    api : str
        Prefect's address.
    authentication : str
        What Prefect's server asks for.
    environment : dict
        Of every process.
    processes : list of Process
    """

    folder: Path
    s3: S3Server
    scheduler: str
    api: str
    authentication: str
    environment: dict[str, str]
    processes: list[Process] = field(default_factory=list)

    def process(self, name: str) -> Process:
        """Return a process by its name."""
        return next(process for process in self.processes if process.name == name)

    def run(self, *command: str, code: int = 0, **environment: str) -> str:
        """Run a Python program to its end and return its output."""
        result = subprocess.run(
            [sys.executable, "-m", *command],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**self.environment, **environment},
            timeout=RUN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == code, (
            f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        )
        return result.stdout

    # -- Prefect's REST interface
    # --------------------------------------------------------------------------

    def call(self, method: str, path: str, document: Any = None) -> Any:
        """Ask Prefect's server, and return its answer."""
        user, _, password = self.authentication.partition(":")

        def ask() -> Any:
            got = httpx.request(
                method,
                f"{self.api}{path}",
                json=document,
                auth=(user, password),
                timeout=60,
                trust_env=False,
            )
            # What it says where SQLite is locked; Prefect's own client asks again, too.
            return None if got.status_code == 503 else got

        answer = wait_for(ask, f"an answer of Prefect's server to {path}", 60)
        assert answer.is_success, (
            f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
        )
        return answer.json() if answer.content else None

    def deployment(self, name: str) -> dict[str, Any]:
        """Return a deployment by "flow/name"."""
        return dict(self.call("GET", f"/deployments/name/{name}"))

    def start(self, name: str, **parameters: Any) -> str:
        """Start a run of a deployment with some parameters changed, and return its
        id.
        """
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        path = f"/deployments/{self.deployment(name)['id']}/create_flow_run"
        return str(self.call("POST", path, body)["id"])

    def flow_run(self, run: str) -> dict[str, Any]:
        """Return a flow run."""
        return dict(self.call("GET", f"/flow_runs/{run}"))

    @contextlib.contextmanager
    def schedule_every(self, name: str, *, seconds: int) -> Iterator[None]:
        """Let a deployment run by a schedule of its own for a while; at the end none of
        its runs is left.
        """
        path = f"/deployments/{self.deployment(name)['id']}/schedules"
        schedule = {"schedule": {"interval": seconds}, "active": True}
        [made] = self.call("POST", path, [schedule])
        try:
            yield
        finally:
            self.call("DELETE", f"{path}/{made['id']}")
        self.process("worker").wait_until(
            lambda: (
                not self.flow_runs(
                    name, scheduled=True, state="PENDING|RUNNING|CANCELLING"
                )
            ),
            f"the last scheduled run of {name}",
            RUN_S,
        )

    def flow_runs(
        self, name: str, *, scheduled: bool, state: str
    ) -> list[dict[str, Any]]:
        """Return the runs of a deployment in one of some states ("A|B"), in the order
        of their start.
        """
        body = {
            "flow_runs": {"deployment_id": {"any_": [self.deployment(name)["id"]]}},
            "sort": "EXPECTED_START_TIME_ASC",
        }
        runs = self.call("POST", "/flow_runs/filter", body)
        return [
            run
            for run in runs
            if run["state_type"] in state.split("|")
            and run["auto_scheduled"] == scheduled
        ]

    def finish(self, run: str, state: str = "COMPLETED") -> dict[str, Any]:
        """Wait for the end of a flow run, which must be in `state`."""
        found = self.process("worker").wait_until(
            lambda: (one := self.flow_run(run))["state_type"] in ENDED and one,
            f"the end of run {run}",
            RUN_S,
        )
        assert found["state_type"] == state, (
            f"{found['name']}: {found['state']}\n{self.log_of(run)}"
        )
        return dict(found)

    def store_secret(self, name: str, value: str) -> None:
        """Keep a word in a Prefect block, which the server stores encrypted."""
        kind = self.call("GET", "/block_types/slug/secret")["id"]
        only = {"block_schemas": {"block_type_id": {"any_": [kind]}}}
        schema = self.call("POST", "/block_schemas/filter", only)[0]["id"]
        block = {
            "name": name,
            "data": {"value": value},
            "block_type_id": kind,
            "block_schema_id": schema,
        }
        self.call("POST", "/block_documents/", block)

    def set_variable(self, name: str, value: str) -> None:
        """Let all flows' processes have a variable in their environment, which may be a
        block's content.
        """
        template = self.call("GET", f"/work_pools/{POOL}")["base_job_template"]
        template["variables"]["properties"]["env"]["default"] = {name: value}
        self.call("PATCH", f"/work_pools/{POOL}", {"base_job_template": template})

    def log_of(self, run: str) -> str:
        """Return what a flow run logged."""
        body = {
            "logs": {"flow_run_id": {"any_": [run]}},
            "sort": "TIMESTAMP_ASC",
            "limit": 200,
        }
        return "\n".join(
            line["message"] for line in self.call("POST", "/logs/filter", body)
        )

    def artifacts(self, run: str) -> dict[str, Any]:
        """Return the data of a flow run's artifacts by their keys."""
        body = {"artifacts": {"flow_run_id": {"any_": [run]}}}
        return {
            one["key"]: one["data"]
            for one in self.call("POST", "/artifacts/filter", body)
        }

    def told_of_stop(self, run: str) -> str:
        """Return what the artifact of a train run that stopped says; the worker makes
        it after the end.
        """
        return str(
            self.process("worker").wait_until(
                lambda: next(
                    (
                        told
                        for key, told in self.artifacts(run).items()
                        if "-result-" in key
                    ),
                    None,
                ),
                f"what is left of run {run}",
                120,  # the worker imports the flow first: 30 s on a busy machine
            )
        )

    def cancel(self, run: str) -> None:
        """Ask for the end of a flow run, as `prefect flow-run cancel` does."""
        self.call(
            "POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}}
        )

    def kill_flow(self, run: str) -> None:
        """Kill the process of a flow run, as the kernel does when memory is short."""
        worker = psutil.Process(self.process("worker").popen.pid)
        family = [
            child for child in worker.children(recursive=True) if _is_about(child, run)
        ]
        assert family, f"no process of run {run} below the worker"
        for child in family:
            child.send_signal(signal.SIGKILL)

    @contextlib.contextmanager
    def stopped_workers(self, when: Callable[[], Any], what: str) -> Iterator[None]:
        """Let Dask's workers stand still from the moment when something is true: passes
        do not end then.
        """
        workers = [
            process
            for process in self.processes
            if process.name.startswith("dask-worker")
        ]
        self.process("worker").wait_until(when, what, RUN_S)
        for worker in workers:
            os.killpg(worker.popen.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in workers:
                os.killpg(worker.popen.pid, signal.SIGCONT)


@contextlib.contextmanager
def run_system(folder: Path, **environment: str) -> Iterator[System]:
    """Start all parts, and end them on leaving.

    Parameters
    ----------
    folder : Path
        A temporary folder.
    **environment
        Further variables of every process.
    """
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(serve_s3())
        authentication = f"user:{secrets.token_urlsafe(16)}"
        port = free_port()
        api = f"http://127.0.0.1:{port}/api"
        tls = folder / "tls"
        subprocess.run(
            ["sh", str(PROJECT / "deploy/tls.sh"), str(tls)],
            check=True,
            capture_output=True,
        )
        everywhere = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(_OURS)
            },
            **s3.environment(),
            "DO_NOT_TRACK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": api,
            "PREFECT_API_AUTH_STRING": authentication,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "RFF_DIST_TLS_CA": str(tls / "ca.pem"),
            "RFF_DIST_TLS_CERT": str(tls / "client.pem"),
            "RFF_DIST_TLS_KEY": str(tls / "client-key.pem"),
            **environment,
        }
        system = System(folder, s3, "", api, authentication, everywhere)

        def start(name: str, *command: str, **more: str) -> Process:
            python = (sys.executable, "-m", *command)
            running = Process.start(
                name, *python, folder=folder, environment={**everywhere, **more}
            )
            system.processes.append(process := stack.enter_context(running))
            return process

        server = start(
            "prefect-server", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port),
            PREFECT_SERVER_API_AUTH_STRING=authentication,
            # Schedules that are changed are looked at soon.
            PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS="5",
        )  # fmt: skip
        file = folder / "scheduler.json"
        scheduler = start(
            "dask-scheduler", "dask", "scheduler", "--host", "tls://127.0.0.1", "--port", "0",
            "--no-dashboard", "--scheduler-file", str(file), *_tls_options(tls, "scheduler"),
        )  # fmt: skip
        scheduler.wait_until(file.exists, "Dask's scheduler")
        system.scheduler = read_scheduler_file(file)
        everywhere["RFF_DIST_SCHEDULER"] = system.scheduler
        for i in (1, 2):
            start(
                f"dask-worker-{i}", "dask", "worker", system.scheduler, "--nthreads", "1", "--no-dashboard",
                "--host", "127.0.0.1", "--memory-limit", "2GiB", "--name", f"worker-{i}",
                "--local-directory", str(folder / "dask"), *_tls_options(tls, "worker"),
            )  # fmt: skip
        server.wait_until(lambda: answers(f"{api}/health"), "Prefect's server")
        workers = [
            process
            for process in system.processes
            if process.name.startswith("dask-worker")
        ]
        scheduler.wait_until(
            lambda: all(
                "Registered to" in worker.log.read_text() for worker in workers
            ),
            "Dask's workers",
        )
        yield system


def deploy(system: System, store: str, stack: contextlib.ExitStack) -> None:
    """Create the pool, deploy all flows of deploy/prefect.yaml and start a worker, as
    its head says.

    The worker has no secret key of the object store; the flows' processes get it from a
    Prefect block."""
    variables = {"RFF_DIST_STORE": store}
    system.run("prefect", "work-pool", "create", POOL, "--type", "process", **variables)
    system.run(
        "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(DEPLOYMENTS),
        **variables,
    )  # fmt: skip
    system.store_secret("s3-secret-key", system.environment["AWS_SECRET_ACCESS_KEY"])
    # In prefect.yaml it would be resolved when flows are deployed, and stored readably
    # with each of them.
    system.set_variable(
        "AWS_SECRET_ACCESS_KEY", "{{ prefect.blocks.secret.s3-secret-key }}"
    )
    environment = {
        name: value
        for name, value in system.environment.items()
        if name != "AWS_SECRET_ACCESS_KEY"
    }
    worker = Process.start(
        "worker", sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL,
        folder=system.folder, environment=environment,
    )  # fmt: skip
    system.processes.append(stack.enter_context(worker))


def free_port() -> int:
    """Return a port that nobody listens on, below those that systems give to
    connections (32768 on).
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _tls_options(folder: Path, role: str) -> list[str]:
    return [
        "--protocol", "tls",
        "--tls-ca-file", str(folder / "ca.pem"),
        "--tls-cert", str(folder / f"{role}.pem"),
        "--tls-key", str(folder / f"{role}-key.pem"),
    ]  # fmt: skip


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, timeout=5, trust_env=False).status_code in (200, 401)
    return False


def _is_about(process: psutil.Process, run: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return run in process.environ().values() or run in " ".join(process.cmdline())
    return False
