"""Where commands run: a scheduler, an embedded cluster, this process."""

import signal
import subprocess
import sys
import threading

import pytest

from rff_dist.engines.cluster import Cluster
from rff_dist.engines.dask_cluster import spare_children_ctrl_c
from tests.command_line import PLAIN, refusal

SMALL = [*PLAIN, "--n-components 64 --alpha 1"]


@pytest.mark.parametrize("words", [["fit", "--model model"], ["plan", *SMALL]])
def test_a_scheduler_of_the_environment_that_does_not_answer_exits_69(
    folder, words, monkeypatch
):
    monkeypatch.setattr("rff_dist.engines.dask_cluster.CONNECT_S", 0.3)
    monkeypatch.setenv("RFF_DIST_SCHEDULER", "tcp://127.0.0.1:1")
    message = refusal(69, *words, "--data", folder / "data.zarr")
    assert "no scheduler answers at tcp://127.0.0.1:1" in message


@pytest.mark.parametrize(
    ("n_workers", "n_threads", "n_cpus", "size"),
    [
        (None, None, 2, (1, 2)),
        (None, None, 16, (4, 4)),
        (2, None, 16, (2, 8)),
        (None, 1, 8, (8, 1)),
        (3, 5, 2, (3, 5)),
        (4, None, 2, (4, 1)),
    ],
)
def test_the_embedded_cluster_uses_the_cpus_there_are(
    monkeypatch, n_workers, n_threads, n_cpus, size
):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(n_cpus)))
    assert Cluster(n_workers=n_workers, n_threads=n_threads).size() == size


def test_children_ignore_a_ctrl_c_that_is_not_lost_for_this_process():
    told = []

    def start_child_and_interrupt():
        with spare_children_ctrl_c():
            code = (
                "import signal; print(signal.SIGINT in"
                " signal.pthread_sigmask(signal.SIG_BLOCK, []))"
            )
            child = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            )
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            told.append(child.stdout)

    # a suite that was started in the background ignores SIGINT
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start_child_and_interrupt()
        assert told == ["True\n"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
