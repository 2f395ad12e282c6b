"""A command ends, whichever party of its cluster is frozen or cut off, and whenever in
a pass it is.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rff_dist import DaskEngine, write_dataset
from rff_dist.engines import dask_pass
from rff_dist.engines.events import BlockDone, PassMerging
from rff_dist.ridge.models import read_model
from tests.command_line import run
from tests.dask_processes import run_dask
from tests.faults.test_waiting import Wire, in_a_hurry  # noqa: F401  # a fixture
from tests.processes import environment_of_all_cores, wait_for
from tools.kill_schedules import FIT

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.faults("F4", "F16"),
    pytest.mark.timeout(180),
]

LOST = 75
#: When something happens in the pass over all rows: before its first block, after it,
#: and after the last one.
MOMENTS: dict[str, Callable[[object], bool]] = {
    "before": lambda event: event is None,
    "during": lambda event: isinstance(event, BlockDone),
    "at the end": lambda event: isinstance(event, PassMerging),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    X = np.random.default_rng(0).normal(size=(60_000, 4))
    write_dataset(folder / "rows", X, np.sin(X[:, 0]), chunk_rows=4_096)
    assert (
        run("fit", folder / "rows", folder / "model", *FIT, "--serial").exit_code == 0
    )
    return folder


def digest(model):
    return str(read_model(model).digest())


@pytest.fixture
def at(monkeypatch):
    """Return a function that has something done at a moment; its result tells when it
    has been done.
    """

    def at(moment, action):
        done = []

        def events(running):
            def look(event):
                if (
                    running._definition.label == "accumulate"
                    and not done
                    and MOMENTS[moment](event)
                ):
                    done.append(moment)
                    action()

            look(None)
            for event in original(running):
                look(event)
                yield event

        original = dask_pass.Pass.sum_up
        monkeypatch.setattr(dask_pass.Pass, "sum_up", events)
        return done

    return at


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    with run_dask(tmp_path_factory.mktemp("dask"), n_workers=2) as running:
        yield running


@pytest.fixture
def cluster(processes):
    """Return a scheduler's address, and its process and two workers': new ones in place
    of lost ones.
    """
    address, [_, *workers] = processes
    for place, worker in enumerate(workers, 1):
        if not worker.is_alive():
            processes[1][place] = worker.again()
    with DaskEngine(address) as engine:
        engine.client.wait_for_workers(2, timeout=60)
    return processes


@contextlib.contextmanager
def stopped(processes):
    """Yield what freezes processes, of which workers are killed in the end, and others
    go on.
    """
    try:
        yield (
            lambda: (
                [os.kill(process.pid, signal.SIGSTOP) for process in processes] and None
            )
        )
    finally:
        for process in processes:
            os.kill(process.pid, signal.SIGCONT)
            if "worker" in process.arguments:
                process.kill()
                process.join()


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize(
    ("party", "moment"),
    [
        *itertools.product(["worker", "scheduler", "wire"], MOMENTS),
        ("all workers", "during"),
    ],
)
def test_a_command_ends_whoever_freezes(
    rows, tmp_path, cluster, at, party, moment, monkeypatch
):
    defaults = DaskEngine.__init__.__kwdefaults__ | {"patience": 6.0}
    monkeypatch.setattr(DaskEngine.__init__, "__kwdefaults__", defaults)
    with contextlib.ExitStack() as stack:
        address, [scheduler, *workers] = cluster
        hit = {
            "worker": workers[:1],
            "all workers": workers,
            "scheduler": [scheduler],
            "wire": [],
        }[party]
        freeze = stack.enter_context(stopped(hit))
        if party == "wire":
            wire = stack.enter_context(Wire(address))
            address = wire.address
            freeze = wire.cut
        done = at(moment, freeze)
        result = run(
            "fit", rows / "rows", tmp_path / "model", *FIT, "--scheduler", address
        )
    assert done == [moment], result.output
    if party == "worker":
        assert result.exit_code == 0, result.stderr
        assert digest(tmp_path / "model") == digest(rows / "model")
    else:
        assert result.exit_code == LOST, result.output
        assert not (tmp_path / "model").exists()


def test_a_command_that_is_stopped_and_goes_on_has_the_same_bits(
    rows, tmp_path, cluster
):
    words = [
        str(Path(sys.executable).with_name("rff-dist")),
        "fit",
        str(rows / "rows"),
        str(tmp_path / "model"),
    ]
    environment = environment_of_all_cores() | {"RFF_DIST_LOG": "json"}
    marks = ["pass started", '"block done", "pass": "accumulate"', "pass merging"]
    address, _ = cluster
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*words, *FIT, "--scheduler", address],
            stderr=out,
            stdout=out,
            env=environment,
        ) as process,
    ):
        for mark in marks:
            wait_for(
                lambda mark=mark: mark in log.read_text() or process.poll() is not None,
                mark,
                100,
            )
            process.send_signal(signal.SIGSTOP)
            time.sleep(2.0)
            process.send_signal(signal.SIGCONT)
        assert process.wait(100) == 0, log.read_text()
    assert digest(tmp_path / "model") == digest(rows / "model")
