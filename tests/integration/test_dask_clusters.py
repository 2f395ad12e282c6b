"""Clusters are found, started, left and lost; what cannot travel to them is refused."""

import math
import os
import time
import uuid

import distributed
import psutil
import pytest

from rff_dist import DaskEngine
from rff_dist.data.blocks import BlockTask
from rff_dist.engines import dask_cluster
from rff_dist.errors import (
    BlockError,
    ClusterError,
    ClusterLostError,
    ClusterUnavailableError,
    InvalidParameterError,
    StorageError,
)
from tests.dask_processes import once_after, run_dask, scaled, slow_power
from tests.engine_contract import BLOCKS, OpenedIn, unit_blocks
from tests.refusals import each, for_each_refusal, once, refuses

pytestmark = pytest.mark.distributed


# -- starting, finding and losing a cluster
# ------------------------------------------------------------


def test_embedded_cluster_leaves_no_process_and_no_environment_behind(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # one of those that Dask sets
    environment = {k: v for k, v in os.environ.items() if k != "__DASK_PARENT_PID"}
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with DaskEngine(n_workers=1, threads_per_worker=2) as engine:
        assert (engine.n_workers, engine.n_threads) == (1, 2)
        # A second test in the same cluster, which takes seconds to start.
        assert_one_block_at_a_time(engine)
        started = {
            process.pid for process in psutil.Process().children(recursive=True)
        } - before
        assert started
        addresses = [
            c.laddr.ip
            for c in psutil.Process().net_connections("tcp")
            if c.status == "LISTEN"
        ]
        assert set(addresses) <= {"127.0.0.1", "::1"}
    # multiprocessing's resource tracker stays for the life of this process.
    left = [
        p
        for p in started
        if psutil.pid_exists(p) and "resource_tracker" not in " ".join(command(p))
    ]
    assert left == []
    assert {
        k: v for k, v in os.environ.items() if k != "__DASK_PARENT_PID"
    } == environment
    engine.close()
    with refuses(ClusterLostError, "closed"):
        engine.map_reduce(slow_power, BLOCKS, None)


def command(pid):
    try:
        return psutil.Process(pid).cmdline()
    except psutil.NoSuchProcess:
        return []


def assert_one_block_at_a_time(engine):
    def running_together(block, _):
        from rff_dist.numerics import machine

        worker = distributed.get_worker()
        worker.running = getattr(worker, "running", 0) + 1
        time.sleep(0.02)
        seen = worker.running
        worker.running -= 1
        return seen, machine.threads_in_use.get()

    assert engine.map_reduce(running_together, unit_blocks(10), None, combine=max) == (
        1,
        2,
    )


def test_a_given_client_stays_open(embedded):
    scaled(embedded, 2)
    with DaskEngine(client=embedded.client) as engine:
        assert engine.map_reduce(lambda b, _: 1, unit_blocks(3), None) == 3
    assert embedded.client.status == "running"
    with refuses(InvalidParameterError, "`scheduler`", "`client`"):
        DaskEngine(embedded.client)


@pytest.fixture
def scheduler(tmp_path):
    """Run a scheduler and a worker without a nanny, in processes of their own."""
    with run_dask(tmp_path) as found:
        yield found


@pytest.mark.faults("F2")
def test_a_cluster_without_workers_ends_the_pass(scheduler):
    address, processes = scheduler
    with DaskEngine(address, patience=1.0) as engine:
        engine.client.wait_for_workers(1, timeout=60)
        engine.observers = (once_after(5, processes[1].kill),)
        with refuses(ClusterLostError, "no worker"):
            engine.map_reduce(slow_power, unit_blocks(1_000), None)


@pytest.mark.parametrize(
    ("address", "full"),
    [
        *(
            (one, one)
            for one in ("tcp://127.0.0.1:1", "tcp://[::1]:1", "tls://cluster.example:1")
        ),
        ("localhost:1", "tcp://localhost:1"),
        ("127.0.0.1", "tcp://127.0.0.1:8786"),
        ("tcp://localhost", "tcp://localhost:8786"),
        ("tcp://[::1]", "tcp://[::1]:8786"),
        ("tls://cluster.example", "tls://cluster.example:8786"),
    ],
)
def test_loopback_and_tls_are_allowed_and_an_address_without_a_port_means_the_port_of_dask(
    address, full
):
    assert dask_cluster.checked_address(address, insecure=False) == full


def test_what_the_caller_insists_on_is_allowed():
    assert (
        dask_cluster.checked_address("tcp://192.0.2.1:1", insecure=True)
        == "tcp://192.0.2.1:1"
    )


def test_no_scheduler_at_the_default_port_is_an_error_that_names_it(monkeypatch):
    async def refuse(address, *_, **__):
        raise OSError(f"nobody at {address}")

    # Whether something listens at this machine's 8786 is not the test's to say.
    monkeypatch.setattr(dask_cluster, "identify", refuse)
    with refuses(ClusterUnavailableError, "tcp://127.0.0.1:8786"):
        DaskEngine("127.0.0.1")


BEYOND = [
    "tcp://192.0.2.1:8786",
    "192.0.2.1:8786",
    "tcp://cluster.example:8786",
    "ws://[2001:db8::1]:80",
]
NO_ADDRESS = [
    "http://127.0.0.1:8786",
    "tcp://127.0.0.1:port",
    "127.0.0.1:",
    "tcp://",
    "127.0.0.1:0",
    "127.0.0.1:65536",
]
NO_SIZE = [0, -1, 2.5, "2", True]


@for_each_refusal(
    each(DaskEngine, BEYOND, "TLS", error=ClusterError),
    each(DaskEngine, NO_ADDRESS, "scheduler"),
    each(DaskEngine, ["tls://127.0.0.1:9"], "RFF_DIST_TLS_CA", error=ClusterError),
    once(
        lambda: DaskEngine("127.0.0.1:1", n_workers=2), "n_workers", "embedded cluster"
    ),
    once(lambda: DaskEngine("127.0.0.1:1", client=object()), "both given"),
    once(lambda: DaskEngine(client="127.0.0.1:1"), "client", "scheduler"),
    *(
        once(
            lambda size={name: value}: DaskEngine(**size),
            f"`{name}` is {value!r}",
            "at least 1",
        )
        for name in ("n_workers", "threads_per_worker")
        for value in NO_SIZE
    ),
)
def test_wrong_addresses_and_sizes_are_refused(call, error, names):
    with refuses(error, *names):
        call()


def test_functions_that_cannot_be_pickled_are_refused(embedded, tmp_path):
    with (
        (tmp_path / "file").open("w") as file,
        refuses(InvalidParameterError, "cannot be pickled"),
    ):
        embedded.map_reduce(lambda b, _: file.name, BLOCKS, None)


# -- data that cannot travel
# ---------------------------------------------------------------------------


def count_rows(rows, _):
    return len(rows.X)


def test_data_that_no_worker_can_open_give_the_error_of_storage_and_no_traceback(
    embedded,
):
    engine = scaled(embedded, 1)
    task = BlockTask(OpenedIn(os.getpid()), count_rows)
    before = tasks_in_the_log(engine)
    with refuses(StorageError, "no dataset at /data: nothing is there") as caught:
        engine.map_reduce(task, BLOCKS, None)
    assert str(caught.value) == "no dataset at /data: nothing is there"
    assert "raised on worker tls://" in "".join(caught.value.__notes__)
    assert tasks_in_the_log(engine) == before  # of others' tests


def tasks_in_the_log(engine):
    """Return what the workers logged of failed tasks, but for one that fails here to
    show that they log.
    """
    marker = f"marker-{uuid.uuid4().hex}"
    failing = engine.client.submit(math.exp, 1_000, key=marker)
    with pytest.raises(OverflowError):
        failing.result()
    failing.release()  # its error's traceback holds it, in a circle
    messages = [
        text for log in engine.client.get_worker_logs().values() for _, text in log
    ]
    assert any(marker in text for text in messages)
    failed = [text for text in messages if "Compute Failed" in text]
    return [text for text in failed if "marker-" not in text]


def test_failures_of_a_pass_are_said_once_and_those_of_other_tasks_stay_in_the_log(
    embedded,
):
    engine = scaled(embedded, 1)
    before = tasks_in_the_log(engine)

    def refuse(left, right):
        raise ArithmeticError("these do not add up")

    with pytest.raises(ArithmeticError):
        engine.map_reduce(lambda block, _: 1, BLOCKS, None, combine=refuse)
    with pytest.raises(BlockError):
        engine.map_reduce(lambda block, _: 1 // 0, BLOCKS, None)
    assert tasks_in_the_log(engine) == before  # of others' tests
