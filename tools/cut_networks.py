"""Clusters on separate machines, which lose the way to one another or to the data: part
of `make soak`.

    python -m tools.cut_networks "not mounted"

Scheduler, workers and client have a network namespace of Linux each, on one bridge,
which takes root. `rff-dist fit --scheduler tls://…` must end: with the model of a
single process, or with the exit code and the words that a scenario expects, within
`BOUND_S` of its last progress."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import distributed
import numpy as np
from rich.console import Console

from rff_dist import write_dataset
from rff_dist.ridge.models import read_model
from tests.processes import environment_of_all_cores
from tools.kill_schedules import FIT

N_WORKERS = 3
N_ROWS = 400_000
N_COMPONENTS = "2048"
#: Seconds from a command's last progress to its next, or to its end; and those for
#: starts on a busy machine.
BOUND_S = 60.0
START_S = 240.0
WORKERS = [f"worker-{i}" for i in range(N_WORKERS)]
#: Each host's address ends with its place here.
HOSTS = ["hub", "scheduler", "client", *WORKERS, "late"]
_DASK = [sys.executable, "-m", "dask"]
_NOBODY = "02:00:00:00:00:01"  # no host has this hardware address


def ip(*words: str) -> None:
    """Run Linux's `ip`, or raise CalledProcessError."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Return why this process may not make network namespaces; None if it may."""
    if shutil.which("ip") is None:
        return (
            "network scenarios are left out: they need `ip`, of Debian's package"
            " iproute2"
        )
    name = f"rff-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except subprocess.CalledProcessError as error:
        return (
            "network scenarios are left out: no network namespaces here"
            f" ({error.stderr.strip()})"
        )
    return None


class Network:
    """Hosts on one bridge, each with its address, and the processes on them."""

    def __enter__(self) -> "Network":
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            for host in HOSTS:
                name = self.name(host)
                ip("netns", "add", name)
                stack.callback(ip, "netns", "delete", name)
                ip("-n", name, "link", "set", "lo", "up")
                if host == "hub":
                    ip("-n", name, "link", "add", "bridge", "type", "bridge")
                    ip("-n", name, "link", "set", "bridge", "up")
                    continue
                hub = self.name("hub")
                wire = f"to-{host}"
                ip(
                    "link",
                    "add",
                    "wire",
                    "netns",
                    name,
                    "type",
                    "veth",
                    "peer",
                    "name",
                    wire,
                    "netns",
                    hub,
                )
                ip("-n", hub, "link", "set", wire, "master", "bridge", "up")
                ip(
                    "-n",
                    name,
                    "address",
                    "add",
                    f"{self.address(host)}/24",
                    "dev",
                    "wire",
                )
                ip("-n", name, "link", "set", "wire", "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @staticmethod
    def name(host: str) -> str:
        """Return the name of a host's namespace."""
        return f"rff-{os.getpid()}-{host}"

    @staticmethod
    def address(host: str) -> str:
        """Return a host's address."""
        return f"10.213.0.{HOSTS.index(host) + 1}"

    def cut(self, hosts: list[str]) -> None:
        """Let nothing through between any two of the hosts; neither is told."""
        for one in hosts:
            for other in hosts:
                if one != other:
                    neighbour = (
                        "neighbour",
                        "replace",
                        self.address(other),
                        "lladdr",
                        _NOBODY,
                    )
                    ip(
                        "-n",
                        self.name(one),
                        *neighbour,
                        "dev",
                        "wire",
                        "nud",
                        "permanent",
                    )

    @contextlib.contextmanager
    def run(
        self,
        host: str,
        words: list[str],
        *,
        environment: dict[str, str],
        log: Path,
        mounts: str = "",
    ) -> "Iterator[subprocess.Popen[bytes]]":
        """Run a command on a host until the context is left.

        `mounts`: a shell command before it, whose mounts nobody else sees.
        """
        words = [
            "ip",
            "netns",
            "exec",
            self.name(host),
            "sh",
            "-c",
            f'{mounts or ":"} && exec "$@"',
            "-",
            *words,
        ]
        with log.open("ab") as out:
            process = subprocess.Popen(words, stdout=out, stderr=out, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Scenario:
    """What happens to a fit, and how it may end.

    `apart`: hosts that cannot reach one another from the start.
    `mounts`: a shell command that changes what the first worker sees at `$DATA`.
    `during`: done in the middle of the pass.
    `codes`: exit codes that are right; 0 with the right model only.
    `words`: what standard error must say then.
    """

    name: str
    codes: tuple[int, ...]
    words: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    mounts: str = ""
    during: "Callable[[Cluster], object] | None" = None


@dataclass
class Cluster:
    """A network with a scheduler and workers.

    `data`: the dataset of this scenario.
    """

    network: Network
    folder: Path
    data: Path
    environment: dict[str, str]
    stack: contextlib.ExitStack

    def start_scheduler(self) -> str:
        """Start the scheduler; returns its address."""
        address = f"tls://{self.network.address('scheduler')}:8786"
        file = self.folder / "scheduler.json"
        self._start(
            "scheduler",
            "scheduler",
            "--protocol",
            "tls",
            "--host",
            self.network.address("scheduler"),
            "--scheduler-file",
            str(file),
        )
        deadline = time.monotonic() + START_S
        while not file.exists():
            assert time.monotonic() < deadline, (
                self.folder / "scheduler.log"
            ).read_text()
            time.sleep(0.1)
        return address

    def start_worker(self, host: str, mounts: str = "") -> None:
        """Start a worker."""
        self._start(
            host,
            "worker",
            f"tls://{self.network.address('scheduler')}:8786",
            "--no-nanny",
            "--nthreads",
            "1",
            "--memory-limit",
            "2 GiB",
            "--host",
            self.network.address(host),
            "--local-directory",
            str(self.folder / host),
            mounts=mounts,
        )

    def _start(self, host: str, *words: str, mounts: str = "") -> None:
        certificates = [
            part
            for name in ("ca-file", "cert", "key")
            for part in (
                f"--tls-{name}",
                self.environment["RFF_DIST_TLS_" + name.removesuffix("-file").upper()],
            )
        ]
        command = [*_DASK, *words, *certificates, "--no-dashboard"]
        log = self.folder / f"{host}.log"
        self.stack.enter_context(
            self.network.run(
                host, command, environment=self.environment, log=log, mounts=mounts
            )
        )


def _write_again(cluster: Cluster) -> None:
    """Write a chunk again, and have another worker join."""
    chunk = sorted(cluster.data.glob("X/c/*/*"))[-1]
    chunk.write_bytes(chunk.read_bytes())
    cluster.start_worker("late")


def _cut(cluster: Cluster) -> None:
    cluster.network.cut(WORKERS)


_GONE = 'mount -t tmpfs none "$DATA"'
_OLD = 'mount --bind "$OLD" "$DATA"'
FIRST = Network.address("worker-0")

SCENARIOS = [
    Scenario(
        "a chunk is written again and a worker joins",
        (75,),
        ("changed",),
        during=_write_again,
    ),
    Scenario(
        "a worker has not mounted the data", (65, 75), (FIRST, "nothing"), mounts=_GONE
    ),
    Scenario("a worker has an old copy of the data", (65, 75), (FIRST,), mounts=_OLD),
    Scenario("workers do not reach one another", (0,), apart=tuple(WORKERS)),
    Scenario("workers are cut from one another in the pass", (0,), during=_cut),
]


def run(say: Callable[[str], object], only: str = "") -> list[str]:
    """Play all scenarios whose name has `only` in it; returns the names of those that
    went wrong.
    """
    if (reason := why_not()) is not None:
        say(reason)
        return []
    wrong = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        environment = _environment(folder)
        X = np.random.default_rng(0).normal(size=(N_ROWS, 4))
        write_dataset(folder / "rows.zarr", X, np.sin(X[:, 0]), chunk_rows=16_384)
        # without the files' times
        shutil.copytree(folder / "rows.zarr", folder / "old.zarr")
        shutil.rmtree(folder / "old.zarr" / "X" / "c" / "3")
        with (
            Network() as network,
            network.run(
                "client",
                _fit(folder / "rows.zarr", folder / "model", "--serial"),
                environment=environment,
                log=folder / "log",
            ) as plain,
        ):
            assert plain.wait(START_S) == 0, (folder / "log").read_text()
        expected = str(read_model(folder / "model").digest())
        for number, scenario in enumerate(SCENARIOS):
            if only not in scenario.name:
                continue
            place = folder / str(number)
            place.mkdir()
            started = time.monotonic()
            end = _play(scenario, place, folder, environment, expected)
            say(f"      {time.monotonic() - started:6.1f} s  {scenario.name}: {end}")
            wrong += [scenario.name] * (not end.startswith("ok"))
    return wrong


def _environment(folder: Path) -> dict[str, str]:
    made = distributed.Security.temporary()
    (folder / "ca.pem").write_text(made.tls_ca_file)
    (folder / "key.pem").write_text(made.tls_client_key)
    pem = {"CA": "ca.pem", "CERT": "ca.pem", "KEY": "key.pem"}
    tls = {f"RFF_DIST_TLS_{name}": str(folder / file) for name, file in pem.items()}
    return (
        environment_of_all_cores()
        | tls
        | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RFF_DIST_LOG": "json",
        }
    )


def _fit(data: Path, model: Path, *engine: str) -> list[str]:
    program = str(Path(sys.executable).with_name("rff-dist"))
    options = [N_COMPONENTS if word == "1024" else word for word in FIT]
    return [program, "fit", str(data), str(model), *options, *engine]


def _play(
    scenario: Scenario,
    place: Path,
    folder: Path,
    environment: dict[str, str],
    expected: str,
) -> str:
    """Play a scenario; returns how it ended: "ok" and the seconds, or what was
    wrong.
    """
    data = place / "rows.zarr"
    shutil.copytree(folder / "rows.zarr", data)
    environment = environment | {"DATA": str(data), "OLD": str(folder / "old.zarr")}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        network.cut(list(scenario.apart))
        cluster = Cluster(network, place, data, environment, stack)
        address = cluster.start_scheduler()
        for host in WORKERS:
            cluster.start_worker(host, scenario.mounts if host == "worker-0" else "")
        _wait_for(place, WORKERS)
        log = place / "client.log"
        command = _fit(data, place / "model", "--scheduler", address)
        fit = stack.enter_context(
            network.run("client", command, environment=environment, log=log)
        )
        if scenario.during is not None:
            deadline = time.monotonic() + START_S
            while '"block done", "pass": "accumulate"' not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                assert fit.poll() is None, log.read_text()
                time.sleep(0.1)
            time.sleep(1)
            scenario.during(cluster)
        since = told = time.monotonic()
        size = 0
        while fit.poll() is None:
            time.sleep(0.1)
            if log.stat().st_size > size:
                size = log.stat().st_size
                told = time.monotonic()
            if time.monotonic() - told > BOUND_S:
                return f"hung: {log.read_text()[-1000:]}"
    code = fit.returncode
    seconds = time.monotonic() - since
    said = log.read_text()
    lacking = [word for word in scenario.words if word not in said]
    if code not in scenario.codes or lacking:
        return f"wrong: exit code {code}, without the words {lacking}: {said[-3000:]}"
    if code == 0 and str(read_model(place / "model").digest()) != expected:
        return "wrong: another model"
    return f"ok, exit code {code} after {seconds:.1f} s"


def _wait_for(place: Path, hosts: list[str]) -> None:
    deadline = time.monotonic() + START_S
    for host in hosts:
        log = place / f"{host}.log"
        while "Registered to" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


if __name__ == "__main__":
    console = Console(soft_wrap=True, highlight=False)
    sys.exit(len(run(console.print, *sys.argv[1:])))
