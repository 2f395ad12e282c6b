"""Workers that only say that tasks are done: hundreds in a process, on a real
scheduler, with a real client.

    python -m benchmarks.stub_workers tcp://127.0.0.1:8786 500

What a worker tells a scheduler is told: its heartbeats, what it fetched, each task's
end and what the engine's blocks took. Nothing is computed: a run of blocks takes the
seconds that are the pass's state, and the result is None."""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
from distributed import comm as comms
from distributed.batched import BatchedSend
from distributed.protocol import to_serialize
from distributed.versions import get_versions

from rff_dist.engines.dask_cluster import SAME_PACKAGES
from rff_dist.engines.runs import RUN_S
from tests.dask_processes import run_dask

HEARTBEAT_S = 5.0
METRICS: dict[str, Any] = {
    "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
    "digests_total_since_heartbeat": {},
    "managed_bytes": 0,
    "memory": 0,
    "spilled_bytes": {"memory": 0, "disk": 0},
}


@dataclass(eq=False)
class Stub:
    """One worker.

    `given`: functions and states of passes by their keys; shared by all stubs.
    """

    scheduler: str
    name: str
    given: dict[Any, Any]
    versions: dict[str, Any]
    address: str = ""
    held: set[Any] = field(default_factory=set)

    async def run(self) -> None:
        """Work until the scheduler goes away."""
        async with comms.listen("tcp://127.0.0.1:0", self._answer) as listener:
            self.address = listener.contact_address
            stream = await comms.connect(self.scheduler)
            await stream.write(self._introduction())
            answer = await stream.read()
            assert answer["status"] == "OK", answer
            self._said = BatchedSend(interval="5ms")
            self._said.start(stream)
            alive = asyncio.create_task(self._beat())
            with contextlib.suppress(OSError):
                while True:
                    for message in await stream.read():
                        self._take(message)
            alive.cancel()

    def _introduction(self) -> dict[str, Any]:
        return {
            "op": "register-worker",
            "reply": False,
            "address": self.address,
            "status": "running",
            "nthreads": 1,
            "name": self.name,
            "now": time.time(),
            "resources": {},
            "memory_limit": 2**33,
            "local_directory": "",
            "services": {},
            "nanny": None,
            "pid": 0,
            "versions": self.versions,
            "metrics": METRICS,
            "extra": {},
            "stimulus_id": f"stub-{self.name}",
            "server_id": self.name,
        }

    async def _answer(self, comm: Any) -> None:
        """Say of what versions it is, and give None for any result."""
        with contextlib.suppress(OSError):
            while True:
                asked = await comm.read()
                if asked["op"] == "get_data":
                    found = {key: to_serialize(None) for key in asked["keys"]}
                    await comm.write({"status": "OK", "data": found})
                    await comm.read()
                elif asked["op"] == "versions":
                    await comm.write(self.versions)
                else:
                    await comm.write({"type": "Worker", "id": self.name})

    async def _beat(self) -> None:
        comm = await comms.connect(self.scheduler)
        with contextlib.suppress(OSError):
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                now = time.time()
                beat = {
                    "op": "heartbeat_worker",
                    "address": self.address,
                    "now": now,
                    "metrics": METRICS,
                }
                await comm.write({**beat, "executing": {}, "reply": True})
                await comm.read()

    def _take(self, message: dict[str, Any]) -> None:
        if message["op"] == "free-keys":
            self.held.difference_update(message["keys"])
        elif message["op"] == "compute-task":
            fetched = [key for key in message["who_has"] if key not in self.held]
            if fetched:
                self.held.update(fetched)
                self._say("add-keys", keys=fetched, stimulus_id="fetched")
            function = message["run_spec"].func.__name__
            arguments = message["run_spec"].args
            if function in ("Parcel", "place_beside"):  # of this test's own client
                [pickled] = (one for one in arguments if isinstance(one, bytes))
                self.given[message["key"]] = cloudpickle.loads(pickled)
            if function == "run_blocks" and arguments[3]:  # which is empty in a merge
                job, seconds = (self.given[one.key] for one in arguments[:2])
                asyncio.get_running_loop().call_later(
                    seconds, self._finish_run, message, job, arguments[2]
                )
            else:
                self._finish(message)

    def _finish_run(self, message: dict[str, Any], job: Any, position: int) -> None:
        # A block is said to take as long as a run may, so that each is a run.
        timings = [(position, 1, RUN_S, 0.0)]
        self._say(
            "log-event",
            topic=job.topic,
            msg=(job.number, job.label, self.address, timings, 0),
        )
        self._finish(message)

    def _finish(self, message: dict[str, Any]) -> None:
        self.held.add(message["key"])
        self._say(
            "task-finished",
            stimulus_id="finished",
            key=message["key"],
            run_id=message["run_id"],
            status="OK",
            nbytes=8,
            type=b"",
            typename="NoneType",
            metadata={},
            thread=0,
            startstops=[],
        )

    def _say(self, op: str, **said: Any) -> None:
        self._said.send({"op": op, **said})


async def work(scheduler: str, n_workers: int) -> None:
    """Run stubs until the scheduler goes away."""
    versions = get_versions(packages=SAME_PACKAGES)
    given = {}
    stubs = [Stub(scheduler, f"stub-{i}", given, versions) for i in range(n_workers)]
    await asyncio.gather(*(stub.run() for stub in stubs))


@contextlib.contextmanager
def running(folder: Path, n_workers: int) -> Iterator[tuple[str, int]]:
    """Run a scheduler and stubs, a process each; yields its address and the scheduler's
    process.
    """
    with run_dask(folder, n_workers=0) as (address, [scheduler]):
        command = [
            sys.executable,
            "-m",
            "benchmarks.stub_workers",
            address,
            f"{n_workers}",
        ]
        with subprocess.Popen(command) as stubs:
            try:
                yield address, scheduler.pid
            finally:
                stubs.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scheduler")
    parser.add_argument("workers", type=int)
    arguments = parser.parse_args()
    asyncio.run(work(arguments.scheduler, arguments.workers))
