"""Waiting is bounded: what is frozen, mute or no scheduler ends in an error, or work
goes on without it.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import dask
import pytest

from rff_dist.engines import dask_cluster, dask_workers
from rff_dist.engines.dask import DaskEngine
from rff_dist.errors import ClusterLostError, ClusterUnavailableError, StorageError
from rff_dist.storage import icechunk_access, repositories
from rff_dist.storage.locations import parse_location
from tests.dask_processes import (
    assert_each_counts_once,
    once_after,
    run_dask,
    scaled,
    slow_power,
)
from tests.engine_contract import unit_blocks
from tests.system import free_port

pytestmark = [pytest.mark.distributed, pytest.mark.faults("F4", "F16")]


@contextmanager
def frozen(process):
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


# -- nobody who answers
# --------------------------------------------------------------------------------


def expect_refusal(address, *, within):
    with pytest.raises(
        ClusterUnavailableError,
        match=rf"no scheduler answers at {address} within {within}:",
    ):
        DaskEngine(address)


@pytest.fixture
def impatient(monkeypatch):
    """Return a function that makes clients wait for a scheduler a tenth as long from
    then on.
    """
    assert dask_cluster.CONNECT_S < 10  # the promise
    return lambda: monkeypatch.setattr(
        dask_cluster, "CONNECT_S", dask_cluster.CONNECT_S / 10
    )


def test_a_mute_port_is_no_scheduler(impatient):
    impatient()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        expect_refusal(f"tcp://127.0.0.1:{listening.getsockname()[1]}", within="0.6 s")


def test_a_port_that_speaks_http_is_no_scheduler(impatient):
    impatient()
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            expect_refusal(f"tcp://127.0.0.1:{server.server_port}", within="0.6 s")
        finally:
            server.shutdown()
            thread.join()


def test_a_frozen_scheduler_does_not_answer_and_a_worker_is_none(tmp_path, impatient):
    with run_dask(tmp_path) as (address, [scheduler, _]):
        with DaskEngine(address) as engine:
            engine.client.wait_for_workers(1, timeout=60)
            [worker] = engine.client.scheduler_info()["workers"]
        with pytest.raises(ClusterUnavailableError, match="it is a Dask worker"):
            DaskEngine(worker)
        impatient()
        with frozen(scheduler):
            expect_refusal(address, within="0.6 s")


# -- in the middle of a pass
# ---------------------------------------------------------------------------


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Wait a fifth as long as promised (which is below a minute); a busy machine may be
    silent for 3 s.
    """
    assert dask_workers.ANSWER_S + dask_workers.POLL_S < 60
    assert dask_workers.SILENT_S + dask_workers.WATCH_S + 10 < 60
    for name in ("ANSWER_S", "SILENT_S", "WATCH_S", "VERSIONS_S"):
        monkeypatch.setattr(dask_workers, name, getattr(dask_workers, name) / 5)


@pytest.mark.usefixtures("in_a_hurry")
def test_a_worker_that_is_frozen_before_it_told_its_versions_is_done_without(tmp_path):
    with (
        run_dask(tmp_path, n_workers=2) as (address, [_, silent, _]),
        DaskEngine(address) as engine,
    ):
        engine.client.wait_for_workers(2, timeout=60)
        with frozen(silent):
            assert engine.n_workers == 1
            assert_each_counts_once(engine, 20)


@pytest.mark.usefixtures("in_a_hurry")
def test_embedded_workers_that_freeze_are_restarted(embedded):
    engine = scaled(embedded, 2)
    pids = list(engine.client.run(os.getpid).values())
    engine.observers = (
        once_after(5, lambda: [os.kill(pid, signal.SIGSTOP) for pid in pids]),
    )
    assert_each_counts_once(engine, 100)


# -- what comes back
# -----------------------------------------------------------------------------------


def test_a_scheduler_that_comes_back_is_joined_anew(tmp_path):
    port = free_port()
    with ExitStack() as stack:
        address, [scheduler, _] = stack.enter_context(run_dask(tmp_path, port=port))
        engine = stack.enter_context(DaskEngine(address))
        state = engine.broadcast({"power": 2})
        engine.observers = (once_after(5, scheduler.kill),)
        with pytest.raises(
            ClusterLostError, match=rf"scheduler at {address} went away"
        ):
            engine.map_reduce(slow_power, unit_blocks(2_000), state)
        with pytest.raises(ClusterUnavailableError):
            engine.map_reduce(slow_power, unit_blocks(20), state)
        engine.observers = ()
        scheduler.join()
        with run_dask(tmp_path, port=port):
            assert_each_counts_once(engine, 20, state)


def test_embedded_workers_that_start_slowly_are_waited_for(embedded):
    engine = scaled(embedded, 2)
    # Dask's own local cluster gives up workers that are not back in time: after 15 s,
    # here at once.
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "10ms"}):
        pids = list(engine.client.run(os.getpid).values())
        engine.observers = (
            once_after(5, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids]),
        )
        assert_each_counts_once(engine, 100)


START_AND_TELL = """
import time
from rff_dist.engines.dask import DaskEngine
if __name__ == "__main__":
    print("starting", flush=True)
    with DaskEngine(n_workers=2, threads_per_worker=1):
        time.sleep(20.0)  # a signal that was lost is not missed on a machine that starts quickly
"""


@pytest.mark.parametrize("seconds", [0.1, 1.5])
def test_ctrl_c_while_an_embedded_cluster_starts_is_not_lost(tmp_path, seconds):
    script = tmp_path / "script.py"
    script.write_text(START_AND_TELL)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A suite that was started in the background ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130), (output, errors)
    # what follows is of Dask's client, whose end may take too long on a busy machine
    ours = errors.split("Exception ignored in")[0]
    assert ours.count("Traceback") == ours.count("KeyboardInterrupt") == 1, errors


class Wire:
    """A connection to a scheduler that can be cut: then nothing comes through, and
    neither side is told.
    """

    def __init__(self, address):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._far = (host, int(port))
        self._is_cut = threading.Event()
        self._near = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._near.getsockname()[1]}"
        self._sockets = [self._near]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        for one in self._sockets:
            one.close()

    def cut(self):
        self._is_cut.set()

    def _accept(self):
        while True:
            try:
                near, _ = self._near.accept()
            except OSError:
                return
            self._sockets.append(near)
            if self._is_cut.is_set():
                continue
            far = socket.create_connection(self._far)
            self._sockets.append(far)
            for ends in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source, target):
        try:
            while (data := source.recv(65_536)) and not self._is_cut.is_set():
                target.sendall(data)
            if not self._is_cut.is_set():
                target.shutdown(socket.SHUT_WR)
        except OSError:
            return


# -- an object store that does not answer
# ----------------------------------------------------------------


@pytest.mark.s3
@pytest.mark.faults("F12")
def test_a_store_that_takes_requests_and_answers_none_is_given_up(monkeypatch):
    pytest.importorskip("obstore", reason="needs the extra s3")
    monkeypatch.setattr(icechunk_access, "_REQUEST_S", 1)
    monkeypatch.setattr("rff_dist.storage.locations.RETRIED_S", 2)
    ended = []

    def read():
        try:
            repositories.find_snapshot(parse_location("s3://bucket/data"))
        except StorageError as error:
            ended.append(error)

    # connections wait in its backlog
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv(
            "AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}"
        )
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_DEFAULT_REGION",
        ):
            monkeypatch.setenv(name, "any")
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(60)
    assert "timed out" in str(ended)
