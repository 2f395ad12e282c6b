import logging
import math
import operator
import os
import pickle
import re
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import psutil
import pytest
import zarr
from distributed.comm.core import CommClosedError

from rff_dist.data.blocks import Block, BlockTask, Rows, cut_blocks
from rff_dist.data.row_parts import RowParts
from rff_dist.engines import dask_cluster, dask_pass
from rff_dist.engines import worker as dask_tasks
from rff_dist.engines.dask import DaskEngine
from rff_dist.engines.dask_arrays import DaskArrayDataset
from rff_dist.engines.progress import BlockDone, Event, PassTimings
from rff_dist.engines.serial import SerialEngine
from rff_dist.engines.worker import state_digests
from rff_dist.errors import (
    BlockError,
    BroadcastError,
    ClusterError,
    ClusterLostError,
    ClusterUnavailableError,
    DataError,
    InvalidParameterError,
    MissingDependencyError,
    StorageError,
)
from rff_dist.statistics.accumulate import add_each
from rff_dist.storage.datasets import dataset_from_arrays, open_dataset
from rff_dist.storage.writing import write_dataset
from tests.dask_processes import run_dask
from tests.engine_contract import BLOCKS, Counting, EngineContract, FileOutput, unit_blocks
from tests.plain import plain_ridge

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def embedded() -> Iterator[DaskEngine]:
    """Start one local cluster for this file; tests scale it."""
    with DaskEngine(n_workers=1, threads_per_worker=1) as engine:
        yield engine


def scaled(engine: DaskEngine, n_workers: int) -> DaskEngine:
    engine.client.cluster.scale(n_workers)
    deadline = time.monotonic() + 60
    while engine.n_workers != n_workers:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    engine.observers = ()
    return engine


class TestDaskEngineWithOneWorker(EngineContract):
    @pytest.fixture
    def engine(self, embedded: DaskEngine) -> DaskEngine:
        return scaled(embedded, 1)


class TestDaskEngineWithTwoWorkers(EngineContract):
    @pytest.fixture
    def engine(self, embedded: DaskEngine) -> DaskEngine:
        return scaled(embedded, 2)


class TestDaskEngineWithThreeWorkers(EngineContract):
    @pytest.fixture
    def engine(self, embedded: DaskEngine) -> DaskEngine:
        return scaled(embedded, 3)


def once_after(n_blocks: int, action: Callable[[], None]) -> Callable[[Event], None]:
    """Act in the middle of a pass, while it waits."""
    count = 0

    def observer(event: Event) -> None:
        nonlocal count
        count += isinstance(event, BlockDone)
        if count == n_blocks and isinstance(event, BlockDone):
            action()

    return observer


def slow_power(block: Block, _: object) -> int:
    time.sleep(0.01)
    return 1 << block.index


# -- workers come and go -------------------------------------------------------------------------------


def test_a_late_worker_gets_blocks_and_the_broadcast_state(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 1)
    state = engine.broadcast(np.arange(1_000))
    timings = PassTimings()
    engine.observers = (once_after(5, lambda: scaled_keeping_observers(engine, 2)), timings)

    def function(block: Block, array: np.ndarray) -> int:
        time.sleep(0.02)
        return int(array[block.start])

    total = engine.map_reduce(function, unit_blocks(200), state, combine=operator.add)
    assert total == sum(range(200))
    assert len({done.worker for done in timings.blocks}) == 2


def scaled_keeping_observers(engine: DaskEngine, n_workers: int) -> None:
    observers = engine.observers
    scaled(engine, n_workers)
    engine.observers = observers


@pytest.mark.faults("F1", "F2")
@pytest.mark.parametrize("n_killed", [1, 2], ids=["one worker", "all workers at once"])
@pytest.mark.parametrize("n_done", [30, 80], ids=["in the midst", "with all blocks summed"])
def test_killed_workers_change_no_bit(embedded: DaskEngine, n_killed: int, n_done: int) -> None:
    engine = scaled(embedded, 2)
    state = engine.broadcast({"power": 2})
    pids = list(engine.client.run(os.getpid).values())[:n_killed]

    def kill() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    timings = PassTimings()
    engine.observers = (once_after(n_done, kill), timings)
    total = engine.map_reduce(slow_power, unit_blocks(80), state, combine=operator.add)
    assert bin(total) == bin(2**80 - 1)
    assert sorted(done.block.index for done in timings.blocks) == list(range(80))
    assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.faults("F15")
def test_a_block_that_kills_its_worker_is_named(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)

    def die(block: Block, _: object) -> int:
        if block.start == 140:
            os._exit(1)
        return 1

    def allow_failures(n: int) -> None:
        engine.client.run_on_scheduler(lambda dask_scheduler: setattr(dask_scheduler, "allowed_failures", n))

    allow_failures(0)
    try:
        with pytest.raises(BlockError, match=r"rows 140:210\) was running on 1 workers when they died"):
            engine.map_reduce(die, BLOCKS[2:3], None, combine=operator.add)
    finally:
        allow_failures(3)


@pytest.mark.slow
@pytest.mark.faults("F15")
def test_a_block_that_kills_its_workers_is_found_in_its_run(embedded: DaskEngine) -> None:
    def die(block: Block, _: object) -> int:
        if block.index == 25:
            os._exit(1)
        return 1

    with pytest.raises(
        BlockError, match=r"block 25 \(rows 25:26\) was running on \d+ workers when they died"
    ):
        scaled(embedded, 2).map_reduce(die, unit_blocks(40), None, combine=operator.add)


# -- what is held where --------------------------------------------------------------------------------


def test_each_workers_total_travels_once(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 3)

    def received(dask_worker: Any) -> int:
        return sum(one["total"] for one in dask_worker.transfer_incoming_log)

    def ones(block: Block, _: object) -> np.ndarray:
        time.sleep(0.01)
        return np.ones(2**17)

    before = sum(engine.client.run(received).values())
    total = engine.map_reduce(ones, unit_blocks(60), None, combine=operator.add)
    assert (total == 60.0).all()
    n_bytes = sum(engine.client.run(received).values()) - before
    # Two of the three totals, of 1 MiB each; and the function and its state, some KiB.
    assert 2 * 2**20 <= n_bytes < 3 * 2**20


@pytest.mark.parametrize("piece_bytes", [1_000, 10**9])
def test_a_result_of_a_worker_out_of_reach_comes_in_pieces(
    embedded: DaskEngine, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    async def out_of_reach(*_: object) -> bool:
        return False

    scaled(embedded, 2)
    monkeypatch.setattr(dask_pass, "_is_in_reach", out_of_reach)
    monkeypatch.setattr(dask_pass, "PIECE_BYTES", piece_bytes)
    with DaskEngine(client=embedded.client) as engine:
        total = engine.map_reduce(lambda b, _: np.arange(1_000), unit_blocks(7), None, combine=operator.add)
    np.testing.assert_array_equal(total, 7 * np.arange(1_000))


def test_a_client_finds_out_whether_it_reaches_a_worker(embedded: DaskEngine) -> None:
    client = scaled(embedded, 1).client
    [worker] = client.nthreads()
    for address, expected in ((worker, True), ("tls://127.0.0.1:9", False)):
        assert client.sync(dask_pass._is_in_reach, client, address) is expected


def test_partials_in_memory_do_not_grow_with_the_number_of_blocks(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    # State and function; of each worker its total, and two short runs that the client may not know are done.
    most = 2 + 2 * 3

    def tasks_in_memory(dask_scheduler: Any) -> int:
        return sum(task.state == "memory" for task in dask_scheduler.tasks.values())

    samples: list[tuple[int, int]] = []

    def sample(event: Event) -> None:
        if isinstance(event, BlockDone) and event.block.index % 10 == 9:
            deadline = time.monotonic() + 5.0
            # A release that is under way may be overtaken by the question; no block is given out meanwhile.
            while (in_memory := engine.client.run_on_scheduler(tasks_in_memory)) > most:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            samples.append((in_memory, len(engine.client.futures)))

    engine.observers = (sample,)
    engine.map_reduce(lambda block, _: 1, unit_blocks(200), None, combine=operator.add)
    assert len(samples) == 20
    assert max(in_memory for in_memory, _ in samples) <= most
    assert max(futures for _, futures in samples) <= most


def wait_until_no_tasks(engine: DaskEngine) -> None:
    deadline = time.monotonic() + 30
    while left := engine.client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks)):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_nothing_is_left_on_the_cluster_after_a_pass(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    engine.map_reduce(slow_power, unit_blocks(9), engine.broadcast("state"), combine=operator.add)
    wait_until_no_tasks(engine)


def test_ctrl_c_cancels_what_is_outstanding(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)

    def interrupt(event: Event) -> None:
        if isinstance(event, BlockDone):
            raise KeyboardInterrupt

    engine.observers = (interrupt,)
    with pytest.raises(KeyboardInterrupt) as caught:
        engine.map_reduce(slow_power, unit_blocks(50), None, combine=operator.add)
    wait_until_no_tasks(engine)
    assert caught.value.__traceback__ is not None  # its frames still hold the futures


def test_a_run_that_nobody_waits_for_ends_with_its_block(embedded: DaskEngine, tmp_path: Path) -> None:
    engine = scaled(embedded, 1)

    def touch(block: Block, folder: Path) -> int:
        time.sleep(0.01)
        (folder / f"{block.index}").touch()
        return 1

    def interrupt(event: Event) -> None:
        if isinstance(event, BlockDone) and event.block.index > 4:
            raise KeyboardInterrupt

    engine.observers = (interrupt,)
    with pytest.raises(KeyboardInterrupt):
        engine.map_reduce(touch, unit_blocks(10_000), tmp_path, combine=operator.add)
    wait_until_no_tasks(engine)
    engine.observers = ()
    assert engine.map_reduce(lambda block, _: 1, unit_blocks(3), None, combine=operator.add) == 3
    n_touched = len(list(tmp_path.iterdir()))
    assert n_touched < 5_000  # half of the blocks were one run
    time.sleep(0.1)
    assert len(list(tmp_path.iterdir())) == n_touched


def test_blocks_are_shared_out_to_all_workers(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 3)
    timings = PassTimings()
    engine.observers = (timings,)
    engine.map_reduce(slow_power, unit_blocks(12), None, combine=operator.add)
    assert len({done.worker for done in timings.blocks}) == 3


# -- the same state everywhere -------------------------------------------------------------------------


class DrawnHere:
    """State whose digest differs between processes, as frequencies from another NumPy might."""

    def digest(self) -> str:
        return f"drawn in {os.getpid()}"


class Drawn:
    def digest(self) -> str:
        return "always the same"


def test_broadcast_of_differing_state_names_worker_and_digests(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    with pytest.raises(
        BroadcastError, match=rf"tls://.*drawn in \d+, expected drawn in {os.getpid()}"
    ) as caught:
        engine.broadcast(("centres", DrawnHere()))
    assert "Use the same versions and one type of machine" in str(caught.value)
    assert "doctor" not in str(caught.value)


def test_plain_state_that_differs_is_found_by_the_first_block(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    with pytest.raises(BroadcastError, match=r"state\['map'\] is drawn in"):
        engine.map_reduce(slow_power, unit_blocks(3), {"map": DrawnHere()}, combine=operator.add)


def test_broadcast_of_equal_state_is_accepted(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    handle = engine.broadcast((Drawn(), 3))
    assert engine.map_reduce(lambda b, s: s[1], unit_blocks(4), handle, combine=operator.add) == 12


def test_digests_are_found_in_members_and_attributes() -> None:
    class Holder:
        def __init__(self) -> None:
            self.map = Drawn()
            self.number = 3

    assert state_digests(None) == {}
    assert state_digests(Drawn()) == {"state": "always the same"}
    nested = [Holder(), {"map": (1, Drawn())}, Drawn]
    assert state_digests(nested) == {
        "state[0].map": "always the same",
        "state[1]['map'][1]": "always the same",
    }


@pytest.mark.faults("F18")
def test_other_versions_on_workers_are_refused_with_a_table(
    embedded: DaskEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = distributed.versions.get_versions(["rff_dist", "scipy"])
    here["packages"]["numpy"] = "1.0"
    monkeypatch.setattr("distributed.versions.get_versions", lambda packages=None: here)
    engine = DaskEngine(client=embedded.client)
    with pytest.raises(
        ClusterError, match=r"(?s)other versions.*where +python .*numpy.*client .*1\.0.*tls://"
    ):
        engine.map_reduce(slow_power, BLOCKS, None, combine=operator.add)


# -- starting, finding and losing a cluster ------------------------------------------------------------


def test_embedded_cluster_leaves_no_process_and_no_environment_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # one of those that Dask sets
    environment = {k: v for k, v in os.environ.items() if k != "__DASK_PARENT_PID"}
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with DaskEngine(n_workers=1, threads_per_worker=2) as engine:
        assert (engine.n_workers, engine.n_threads) == (1, 2)
        # A second test in the same cluster, which takes seconds to start.
        assert_one_block_at_a_time(engine)
        started = {process.pid for process in psutil.Process().children(recursive=True)} - before
        assert started
        addresses = [c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"]
        assert set(addresses) <= {"127.0.0.1", "::1"}
    # multiprocessing's resource tracker stays for the life of this process.
    left = [p for p in started if psutil.pid_exists(p) and "resource_tracker" not in " ".join(command(p))]
    assert left == []
    assert {k: v for k, v in os.environ.items() if k != "__DASK_PARENT_PID"} == environment
    engine.close()
    with pytest.raises(ClusterLostError, match="closed"):
        engine.map_reduce(slow_power, BLOCKS, None, combine=operator.add)


def command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def assert_one_block_at_a_time(engine: DaskEngine) -> None:
    def running_together(block: Block, _: object) -> tuple[int, int]:
        from rff_dist.numerics import threads

        worker = distributed.get_worker()
        worker.running = getattr(worker, "running", 0) + 1
        time.sleep(0.02)
        seen = worker.running
        worker.running -= 1
        return seen, threads.threads_in_use.get()

    assert engine.map_reduce(running_together, unit_blocks(10), None, combine=max) == (1, 2)


def test_a_given_client_stays_open(embedded: DaskEngine) -> None:
    scaled(embedded, 2)
    with DaskEngine(client=embedded.client) as engine:
        assert engine.map_reduce(lambda b, _: 1, unit_blocks(3), None, combine=operator.add) == 3
    assert embedded.client.status == "running"


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """Run a scheduler and a worker without a nanny, in processes of their own."""
    with run_dask(tmp_path) as found:
        yield found


@pytest.mark.faults("F4")
def test_a_lost_scheduler_ends_the_pass_with_its_name(
    scheduler: tuple[str, list[subprocess.Popen[bytes]]],
) -> None:
    address, processes = scheduler
    with DaskEngine(address) as engine:
        engine.observers = (once_after(5, processes[0].kill),)
        start = time.monotonic()
        with pytest.raises(ClusterLostError, match=rf"scheduler at {address} went away"):
            engine.map_reduce(slow_power, unit_blocks(1_000), None, combine=operator.add)
        assert time.monotonic() - start < 60  # the promise, not a measurement


@pytest.mark.faults("F2")
def test_a_cluster_without_workers_ends_the_pass(
    scheduler: tuple[str, list[subprocess.Popen[bytes]]],
) -> None:
    address, processes = scheduler
    with DaskEngine(address, patience=1.0) as engine:
        engine.client.wait_for_workers(1, timeout=60)
        engine.observers = (once_after(5, processes[1].kill),)
        with pytest.raises(ClusterLostError, match=r"has had no worker for \d+ s"):
            engine.map_reduce(slow_power, unit_blocks(1_000), None, combine=operator.add)


def test_no_scheduler_is_an_error_that_names_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_S", 0.5)
    with pytest.raises(ClusterUnavailableError, match=r"no scheduler answers at tcp://127\.0\.0\.1:9"):
        DaskEngine("127.0.0.1:9")


@pytest.mark.parametrize(
    "address",
    ["tcp://192.0.2.1:8786", "192.0.2.1:8786", "tcp://cluster.example:8786", "ws://[2001:db8::1]:80"],
)
def test_a_scheduler_beyond_this_machine_needs_tls(address: str) -> None:
    with pytest.raises(ClusterError, match="without TLS"):
        DaskEngine(address)


@pytest.mark.parametrize(
    ("address", "insecure"),
    [
        ("tcp://127.0.0.1:1", False),
        ("localhost:1", False),
        ("tcp://[::1]:1", False),
        ("tls://cluster.example:1", False),
        ("tcp://192.0.2.1:1", True),
    ],
)
def test_loopback_tls_and_what_the_caller_insists_on_are_allowed(address: str, insecure: bool) -> None:
    assert dask_cluster.checked_address(address, insecure=insecure).endswith(address)


@pytest.mark.parametrize(
    ("address", "full"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:8786"),
        ("tcp://localhost", "tcp://localhost:8786"),
        ("tcp://[::1]", "tcp://[::1]:8786"),
        ("tls://cluster.example", "tls://cluster.example:8786"),
    ],
)
def test_an_address_without_a_port_means_the_port_of_dask(address: str, full: str) -> None:
    assert dask_cluster.checked_address(address, insecure=False) == full


def test_no_scheduler_at_the_default_port_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(address: str, *_: Any) -> None:
        raise OSError(f"nobody at {address}")

    # Whether something listens at this machine's 8786 is not the test's to say.
    monkeypatch.setattr(dask_cluster, "_greet", refuse)
    with pytest.raises(
        ClusterUnavailableError, match=r"answers at tcp://127\.0\.0\.1:8786 .*nobody at tcp://"
    ):
        DaskEngine("127.0.0.1")


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:8786",
        "tcp://127.0.0.1:port",
        "127.0.0.1:",
        "tcp://",
        "127.0.0.1:0",
        "127.0.0.1:65536",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidParameterError, match="no address"):
        DaskEngine(address)


def test_tls_without_certificates_is_refused() -> None:
    with pytest.raises(ClusterError, match="security"):
        DaskEngine("tls://127.0.0.1:9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheduler": "127.0.0.1:1", "n_workers": 2}, "`n_workers` size an embedded cluster"),
        ({"scheduler": "127.0.0.1:1", "client": object()}, "both given"),
    ],
)
def test_parameters_that_exclude_each_other_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameterError, match=message):
        DaskEngine(**arguments)


@pytest.mark.parametrize("name", ["n_workers", "threads_per_worker"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "2", True])
def test_a_size_that_is_no_number_of_workers_or_threads_is_refused(name: str, value: Any) -> None:
    expected = re.escape(f"`{name}` is {value!r}; expected None or an integer in [1, inf)")
    with pytest.raises(InvalidParameterError, match=expected):
        DaskEngine(**{name: value})


def test_functions_that_cannot_be_pickled_are_refused(embedded: DaskEngine, tmp_path: Path) -> None:
    with (
        (tmp_path / "file").open("w") as file,
        pytest.raises(InvalidParameterError, match="cannot be pickled"),
    ):
        embedded.map_reduce(lambda b, _: file.name, BLOCKS, None, combine=operator.add)


# -- data that cannot travel ---------------------------------------------------------------------------


class Placed(Counting):
    """Rows, or an output, that say where they are."""

    url = "memory://here"  # type: ignore[assignment]

    def write(self, block: Block, array: np.ndarray) -> None:
        raise AssertionError("refused before work")


def count_rows(rows: Rows, _: object) -> int:
    return len(rows.X)


def assert_refused(engine: DaskEngine, work: Callable[[], object], message: str) -> None:
    seen: list[Event] = []
    engine.observers = (seen.append,)
    with pytest.raises(StorageError, match=message) as caught:
        work()
    assert "install" not in str(caught.value)
    assert seen == []
    wait_until_no_tasks(engine)


def test_data_in_the_clients_memory_are_refused_before_work(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 1)
    task = BlockTask(Placed(), count_rows)
    assert_refused(
        engine,
        lambda: engine.map_reduce(task, BLOCKS, None, combine=operator.add),
        r"memory://here is in the memory of this process.*workers of the cluster at tls://.*serial engine",
    )


def test_an_output_in_the_clients_memory_is_refused_before_work(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 1)
    task = BlockTask(Counting(), lambda rows, _: rows.X)
    assert_refused(
        engine, lambda: engine.map_write(task, BLOCKS, None, Placed()), "memory://here is in the memory"
    )


def test_data_in_memory_serve_workers_that_are_threads_of_this_process() -> None:
    with (
        distributed.Client(
            processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as client,
        DaskEngine(client=client) as engine,
    ):
        task = BlockTask(Placed(), count_rows)
        assert engine.map_reduce(task, BLOCKS, None, combine=operator.add) == 1_000


def test_open_arrays_without_a_url_are_refused_in_the_words_of_storage(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 1)
    array = zarr.create_array({}, shape=(1_000, 2), chunks=(70, 2), dtype="f8")
    task = BlockTask(dataset_from_arrays(array), count_rows)
    with pytest.raises(StorageError) as words:
        pickle.dumps(task)
    assert_refused(
        engine,
        lambda: engine.map_reduce(task, BLOCKS, None, combine=operator.add),
        f"^{re.escape(str(words.value))}$",
    )


class OnlyHere(Counting):
    """Rows that cannot be opened in another process, as in a folder that only this machine has."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        object.__setattr__(self, "pid", pid)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_here, (self.__dict__["pid"],)


def _open_here(pid: int) -> OnlyHere:
    if os.getpid() != pid:
        raise StorageError("no dataset at /data: nothing is there")
    return OnlyHere(pid)


def test_data_that_no_worker_can_open_give_the_error_of_storage_and_no_traceback(
    embedded: DaskEngine,
) -> None:
    engine = scaled(embedded, 1)
    task = BlockTask(OnlyHere(os.getpid()), count_rows)
    with pytest.raises(StorageError, match="no dataset at /data: nothing is there") as caught:
        engine.map_reduce(task, BLOCKS, None, combine=operator.add)
    assert str(caught.value) == "no dataset at /data: nothing is there"
    assert "raised on worker tls://" in "".join(caught.value.__notes__)
    assert tasks_in_the_log(engine) == []


def tasks_in_the_log(engine: DaskEngine) -> list[str]:
    """Return what the workers logged of failed tasks, but for one that fails here to show that they log."""
    marker = f"marker-{uuid.uuid4().hex}"
    with pytest.raises(OverflowError):
        engine.client.submit(math.exp, 1_000, key=marker).result()
    messages = [text for log in engine.client.get_worker_logs().values() for _, text in log]
    assert any(marker in text for text in messages)
    failed = [text for text in messages if "Compute Failed" in text]
    return [text for text in failed if "marker-" not in text]


def test_failures_of_a_pass_are_said_once_and_those_of_other_tasks_stay_in_the_log(
    embedded: DaskEngine,
) -> None:
    engine = scaled(embedded, 1)

    def refuse(left: int, right: int) -> int:
        raise ArithmeticError("these do not add up")

    with pytest.raises(ArithmeticError):
        engine.map_reduce(lambda block, _: 1, BLOCKS, None, combine=refuse)
    with pytest.raises(BlockError):
        engine.map_reduce(lambda block, _: 1 // 0, BLOCKS, None, combine=operator.add)
    assert tasks_in_the_log(engine) == []


def record_of(message: str, error: BaseException | None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, None)
    return logging.LogRecord("distributed.worker", logging.ERROR, "worker.py", 1, message, (), exc_info)


HEARTBEAT = "Failed to communicate with scheduler during heartbeat."


@pytest.mark.parametrize(
    ("message", "error", "is_said"),
    [
        # What a worker logs whose heartbeat is under way when the client closes the cluster.
        (HEARTBEAT, CommClosedError("in <TCP (closed)>: Stream is closed"), False),
        (HEARTBEAT, ConnectionRefusedError("nobody listens"), False),
        ("Failed to log closing event", CommClosedError("Connection has been closed."), False),
        ("Compute Failed\nFunction:  run_blocks(...)", ValueError("bad"), False),
        (HEARTBEAT, TypeError("another error than a lost connection"), True),
        ("Unexpected exception during heartbeat. Closing worker.", CommClosedError("closed"), True),
        ("Worker stream died during communication: tcp://127.0.0.1:1", CommClosedError("closed"), True),
        ("failed during get data", None, True),
    ],
)
def test_embedded_workers_leave_it_to_the_client_to_say_that_the_scheduler_is_gone(
    embedded: DaskEngine, message: str, error: BaseException | None, is_said: bool
) -> None:
    filters = embedded.client.run(
        lambda: [one.__name__ for one in logging.getLogger("distributed.worker").filters]
    )
    assert all(names.count("_is_said_here_only") == 1 for names in filters.values())
    assert dask_tasks._is_said_here_only(record_of(message, error)) is is_said


# -- metrics -------------------------------------------------------------------------------------------


def metrics_of(engine: DaskEngine, label: str) -> dict[str, float]:
    """Fetch the scheduler's page for Prometheus, and return what it counts of passes of this name."""
    page = engine.client.dashboard_link.replace("/status", "/metrics")
    text = urllib.request.urlopen(page, timeout=30).read().decode()
    found = re.findall(rf'^rff_dist_(\w+)_total{{pass="{label}"}} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_the_schedulers_page_for_prometheus_counts_what_a_pass_did(
    embedded: DaskEngine, tmp_path: Path
) -> None:
    engine = scaled(embedded, 1)
    timings = PassTimings()
    engine.observers = (timings,)
    write_dataset(tmp_path / "data.zarr", X_VALUES, Y_VALUES, chunk_rows=10)
    task = BlockTask(open_dataset(tmp_path / "data.zarr"), count_rows)
    blocks = cut_blocks(100, 10, rows_per_block=20)
    for n_passes in (1, 2):
        assert engine.map_reduce(task, blocks, None, combine=operator.add, label="count-some") == 100
        found = metrics_of(engine, "count-some")
        assert found.pop("seconds") == pytest.approx(sum(done.seconds for done in timings.blocks))
        # Three columns of float32 and a target of float64.
        assert found == {
            "blocks": 5 * n_passes,
            "rows": 100 * n_passes,
            "bytes": 100 * (3 * 4 + 8) * n_passes,
            "retries": 0,
        }


@pytest.mark.slow
@pytest.mark.faults("F1", "F7")
def test_a_block_whose_worker_died_counts_once_and_its_retry_too(
    embedded: DaskEngine, tmp_path: Path
) -> None:
    engine = scaled(embedded, 1)

    def die_once(block: Block, _: object) -> int:
        if block.index == 3 and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os._exit(1)
        return 1

    assert engine.map_reduce(die_once, unit_blocks(8), None, combine=operator.add, label="die once") == 8
    found = metrics_of(engine, "die once")
    assert (found["blocks"], found["rows"]) == (8, 8)
    # The block that died, and at most all that the worker held and was given.
    assert 1 <= found["retries"] <= 8


def test_an_engine_works_where_the_scheduler_cannot_count(
    embedded: DaskEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise MissingDependencyError("metrics need the package prometheus_client")

    engine = scaled(embedded, 1)
    engine.client.unregister_scheduler_plugin(dask_tasks.CountBlocks.name)
    monkeypatch.setattr(dask_tasks, "pass_counters", refuse)
    with DaskEngine(client=engine.client) as another:
        assert another.map_reduce(lambda b, _: 1, unit_blocks(3), None, combine=operator.add) == 3
    assert "metrics need the package prometheus_client" in caplog.text

    # And where rff_dist cannot be imported, say.
    engine.client.unregister_scheduler_plugin(dask_tasks.CountBlocks.name)
    monkeypatch.setattr(distributed.Client, "register_plugin", lambda *_: 1 / 0)
    with caplog.at_level("INFO", "rff_dist"), DaskEngine(client=engine.client) as another:
        assert another.map_reduce(lambda b, _: 1, unit_blocks(3), None, combine=operator.add) == 3
    assert "exports no metrics of rff_dist: ZeroDivisionError" in caplog.text


# -- performance reports -------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_performance_report_is_written_of_passes_that_end_and_that_fail(
    embedded: DaskEngine, tmp_path: Path
) -> None:
    pytest.importorskip("bokeh")
    engine = scaled(embedded, 1)
    with engine.performance_report(tmp_path / "good.html"):
        engine.map_reduce(slow_power, unit_blocks(5), None, combine=operator.add, label="reported")
    with pytest.raises(BlockError), engine.performance_report(tmp_path / "bad.html"):
        engine.map_reduce(lambda b, _: 1 // 0, unit_blocks(5), None, combine=operator.add, label="failed")
    assert "reported" in (tmp_path / "good.html").read_text()
    assert "Dask Performance Report" in (tmp_path / "bad.html").read_text()


def test_without_bokeh_a_performance_report_is_refused_before_work(
    embedded: DaskEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"pip install rff_dist\[report\]"):
        embedded.performance_report(tmp_path / "report.html").__enter__()
    assert list(tmp_path.iterdir()) == []


# -- Dask collections ----------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
X_VALUES = RNG.normal(size=(100, 3)).astype(np.float32)
Y_VALUES = RNG.normal(size=100)


def gather_rows(rows: Rows, _: object) -> tuple[RowParts, ...]:
    return tuple(RowParts.of(rows.block, np.asarray(part)) for part in (rows.X, rows.y, rows.sample_weight))


@pytest.mark.parametrize("distributed_engine", [False, True], ids=["serial", "dask"])
@pytest.mark.parametrize("chunks", [20, (30, 10, 60)], ids=["regular", "irregular"])
def test_dask_arrays_give_their_rows(
    embedded: DaskEngine, chunks: int | tuple[int, ...], distributed_engine: bool
) -> None:
    engine = scaled(embedded, 2) if distributed_engine else SerialEngine()
    data = DaskArrayDataset(
        da.from_array(X_VALUES, chunks=(chunks, 3)),
        da.from_array(Y_VALUES, chunks=33),
        da.from_array(np.arange(100), chunks=50),
    )
    assert (data.n_samples, data.n_features, data.n_targets, data.url) == (100, 3, 1, None)
    assert data.dtype == np.float32
    blocks = cut_blocks(100, data.chunk_rows, rows_per_block=25)
    found = engine.map_reduce(BlockTask(data, gather_rows), blocks, None, combine=add_each)
    X, y, weights = (parts.joined() for parts in found)
    np.testing.assert_array_equal(X, X_VALUES)
    np.testing.assert_array_equal(y, Y_VALUES[:, np.newaxis])
    np.testing.assert_array_equal(weights, np.arange(100.0))
    assert (X.dtype, y.dtype, weights.dtype) == (np.float32, np.float64, np.float64)


def test_rows_of_a_persisted_collection_do_not_pass_through_the_client(embedded: DaskEngine) -> None:
    engine = scaled(embedded, 2)
    X = engine.client.persist(da.from_array(X_VALUES, chunks=(20, 3)))
    task = BlockTask(DaskArrayDataset(X), lambda rows, _: (rows.X.sum(dtype=np.float64), rows.y))
    total, _ = engine.map_reduce(
        task, cut_blocks(100, 20, rows_per_block=20), None, combine=lambda a, b: (a[0] + b[0], None)
    )
    assert total == pytest.approx(X_VALUES.sum(dtype=np.float64), rel=1e-12)


def test_a_block_of_a_collection_that_fails_is_named(embedded: DaskEngine) -> None:
    def fail_late(piece: np.ndarray, block_info: Any = None) -> np.ndarray:
        if block_info and block_info[0]["chunk-location"][0] == 2:
            raise ValueError("this file is broken")
        return piece

    X = da.from_array(X_VALUES, chunks=(20, 3)).map_blocks(fail_late, dtype=np.float32)
    with pytest.raises(BlockError, match=r"rows 40:60\).*this file is broken"):
        scaled(embedded, 2).map_reduce(
            BlockTask(DaskArrayDataset(X), gather_rows),
            cut_blocks(100, 20, rows_per_block=20),
            None,
            combine=operator.add,
        )


def test_writing_from_a_collection(embedded: DaskEngine, tmp_path: Path) -> None:
    path = tmp_path / "out.npy"
    np.save(path, np.zeros((100, 3)))
    task = BlockTask(DaskArrayDataset(da.from_array(X_VALUES, chunks=(20, 3))), lambda rows, k: k * rows.X)
    blocks = cut_blocks(100, 20, rows_per_block=20)
    assert scaled(embedded, 2).map_write(task, blocks, 2.0, FileOutput(path)) == 100
    np.testing.assert_array_equal(np.load(path), 2 * X_VALUES)


def test_unknown_chunk_sizes_are_computed_in_one_pass_without_touching_the_callers_arrays() -> None:
    frame = pd.DataFrame(X_VALUES, columns=list("abc")).assign(y=Y_VALUES)
    source = dd.from_pandas(frame, npartitions=3)
    passes = 0

    def counting_get(*args: Any, **kwargs: Any) -> Any:
        nonlocal passes
        passes += 1
        return dask.get(*args, **kwargs)

    with dask.config.set(scheduler=counting_get):
        data = DaskArrayDataset(source[["a", "b", "c"]], source["y"])
        assert passes == 1
        assert (data.n_samples, data.n_features, data.n_targets) == (100, 3, 1)
        rows = data.read(Block(0, 0, 100))
        np.testing.assert_array_equal(rows.X, X_VALUES)
        np.testing.assert_array_equal(rows.y, Y_VALUES[:, np.newaxis])
        X = source[["a", "b", "c"]].to_dask_array()
        DaskArrayDataset(X)
        assert np.isnan(X.chunks[0]).all()


def frame_of_columns(*names: str) -> Any:
    return dd.from_pandas(pd.DataFrame(X_VALUES, columns=list(names)), npartitions=2)


def test_columns_of_dask_frames_are_kept_as_names() -> None:
    frame = frame_of_columns("a", "b", "c")
    names = [
        (data.feature_names, data.target_names)
        for data in (
            DaskArrayDataset(frame[["c", "a"]], frame[["b"]]),
            DaskArrayDataset(frame, frame["b"]),
            DaskArrayDataset(frame.to_dask_array(lengths=True), Y_VALUES),
            DaskArrayDataset(frame.rename(columns={"a": 0})),
        )
    ]
    assert names == [(("c", "a"), ("b",)), (("a", "b", "c"), None), (None, None), (("0", "b", "c"), None)]


@pytest.mark.parametrize("names", [("b", "a", "c"), ("a", "b", "d")], ids=["another order", "another name"])
def test_predicting_for_other_columns_than_those_of_the_fit_is_refused(names: tuple[str, ...]) -> None:
    model = plain_ridge(n_components=8, random_state=0)
    model.fit(frame_of_columns("a", "b", "c"), da.from_array(Y_VALUES, chunks=50))
    with pytest.raises(DataError, match="feature names should match"):
        model.predict(frame_of_columns(*names))
    assert model.predict(frame_of_columns("a", "b", "c")).shape == (100,)


def test_columns_split_into_chunks_are_rechunked_with_one_warning() -> None:
    with pytest.warns(UserWarning, match="2 pieces along its columns") as caught:
        data = DaskArrayDataset(da.from_array(X_VALUES, chunks=(20, 2)))
    assert len(caught) == 1
    assert data.read(Block(0, 0, 40)).X.shape == (40, 3)


def test_rows_are_taken_in_the_order_of_the_indices() -> None:
    data = DaskArrayDataset(da.from_array(X_VALUES, chunks=(20, 3)), Y_VALUES)
    indices = np.array([77, 3, 41, 3])
    X, y, _ = data.take(indices)
    np.testing.assert_array_equal(X, X_VALUES[indices])
    np.testing.assert_array_equal(y, Y_VALUES[indices, np.newaxis])


def test_fingerprint_follows_the_data() -> None:
    def fingerprint(values: np.ndarray) -> str:
        return DaskArrayDataset(da.from_array(values, chunks=(20, 3))).fingerprint()

    assert fingerprint(X_VALUES) == fingerprint(X_VALUES.copy())
    assert fingerprint(X_VALUES) != fingerprint(X_VALUES + 1)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (da.zeros(5), None, r"X has shape \(5,\)"),
        (da.zeros((0, 2)), None, "at least one of each"),
        (da.zeros((5, 0)), None, "at least one of each"),
        (da.zeros((5, 2), dtype=complex), None, "X has dtype complex128"),
        (da.zeros((5, 2), dtype=object, chunks=(5, 2)), None, "X has dtype object"),
        (da.zeros((5, 2)), np.array(list("abcde"), dtype=object), "y has dtype object"),
        (da.zeros((5, 2)), da.zeros(4), r"y has shape \(4,\), but X has 5 rows"),
    ],
)
def test_dask_arrays_that_are_no_data_are_refused(X: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DaskArrayDataset(X, y)
