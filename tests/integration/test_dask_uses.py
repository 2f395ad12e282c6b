"""Dask as people use it: fits in tasks, persisted collections, large partitions, sums
that kill workers.
"""

import asyncio
import gc
import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import joblib
import numpy as np
import pandas as pd
import psutil
import pytest

from benchmarks.measure import PassTimings
from rff_dist import DaskEngine, RFFRidge, SerialEngine, write_dataset
from rff_dist.data.blocks import BlockTask, cut_blocks
from rff_dist.engines import dask_workers
from rff_dist.engines.cluster import Cluster
from rff_dist.engines.connecting import open_engine
from rff_dist.engines.dask_arrays import DaskArrayDataset
from rff_dist.errors import ClusterError, DataError, InvalidParameterError
from tests.dask_processes import forked_workers, scaled, slow_power, wait_until_no_tasks
from tests.engine_contract import unit_blocks
from tests.refusals import refuses

pytestmark = pytest.mark.distributed

RNG = np.random.default_rng(0)
X_VALUES = RNG.normal(size=(600, 3))
Y_VALUES = np.sin(X_VALUES[:, 0])
BOUND_S = 60.0  # of what a defect would wait for without end


def digest(*arrays):
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
    ).hexdigest()


def ridge(X, y=None, engine=None):
    options = {"length_scale": 1.0, "n_components": 16, "alpha": 1.0, "random_state": 0}
    model = RFFRidge("gaussian", engine=engine, **options).fit(X, y)
    # of a collection, predictions would be one that waits
    rows = X if isinstance(X, str) else X_VALUES
    return digest(model.predict(rows), model.score(X, y))


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    path = tmp_path_factory.mktemp("uses") / "data.zarr"
    write_dataset(path, X_VALUES, Y_VALUES, chunk_rows=200)
    return str(path)


@pytest.fixture(scope="module")
def expected(url):
    return ridge(url, engine=SerialEngine())


@pytest.fixture(autouse=True)
def nothing_left(embedded):
    """Leave nothing on the shared cluster, which errors that pytest keeps would
    hold.
    """
    yield
    gc.collect()
    wait_until_no_tasks(embedded)


def collections(client=None):
    X = da.from_array(X_VALUES, chunks=(200, 3))
    y = da.from_array(Y_VALUES, chunks=200)
    return (X, y) if client is None else tuple(client.persist([X, y]))


# -- in a task
# --------------------------------------------------------------------------------------


def with_client(*data):
    with distributed.worker_client():
        return ridge(*data)


def with_engine(*data):
    with DaskEngine(client=distributed.get_client()) as engine:
        return ridge(*data, engine=engine)


def in_threads(*data):
    distributed.get_client()  # the worker's, which these threads see too
    with ThreadPoolExecutor(2) as pool:
        [result] = set(pool.map(lambda _: ridge(*data), range(2)))
    return result


def by_joblib(client, *data):
    with joblib.parallel_config("dask", client=client):
        return joblib.Parallel()(joblib.delayed(ridge)(*data) for _ in range(2))


def submitted(function):
    return lambda client, *data: [
        client.submit(function, *data, pure=False).result(BOUND_S)
    ]


WAYS: dict[str, Callable[..., list[str]]] = {
    "submit": submitted(ridge),
    "delayed": lambda client, *data: [
        client.compute(dask.delayed(ridge)(*data)).result(BOUND_S)
    ],
    "worker_client": submitted(with_client),
    "engine": submitted(with_engine),
    "threads": submitted(in_threads),
    "joblib": by_joblib,
    "many": lambda client, url, *y: [
        future.result(BOUND_S)
        for future in client.map(
            with_engine, [url] * 3, *([v] * 3 for v in y), pure=False
        )
    ],
}


def rarely(*case):
    """Return a case like others, which runs with the slow tests: each fit in a task
    takes seconds.
    """
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        ("submit", "url"),
        ("engine", "url"),
        ("threads", "url"),
        ("joblib", "url"),
        ("submit", "lazy"),
        ("submit", "persisted"),
        rarely("delayed", "url"),
        rarely("worker_client", "url"),
        rarely("many", "url"),
        rarely("engine", "persisted"),
    ],
)
def test_a_fit_in_a_task_ends_and_has_the_serial_bits(
    embedded, url, expected, way, kind
):
    client = scaled(embedded, 1).client
    data = (
        (url,)
        if kind == "url"
        else collections(client if kind == "persisted" else None)
    )
    assert set(WAYS[way](client, *data)) == {expected}


def test_a_thread_of_a_task_does_not_wait_for_other_tasks(embedded):
    def pass_in_thread():
        engine = DaskEngine(client=distributed.get_client())
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(
                engine.map_reduce, slow_power, unit_blocks(3), None
            ).result()

    error = scaled(embedded, 1).client.submit(pass_in_thread).exception(BOUND_S)
    assert isinstance(error, InvalidParameterError)
    assert "thread" in str(error)


def test_an_engine_does_not_travel(embedded):
    with pytest.raises(TypeError) as caught:
        embedded.client.submit(ridge, X_VALUES, Y_VALUES, embedded)
    assert "leave `engine` out" in str(caught.value.__cause__)


# -- starts and ends
# ------------------------------------------------------------------------------------


def test_an_asynchronous_client_is_refused(embedded, url):
    async def use():
        options = {"asynchronous": True, "security": embedded.client.security}
        async with distributed.Client(embedded.address, **options) as client:
            for start in (
                lambda: DaskEngine(client=client),
                lambda: ridge(url),
                lambda: ridge(*collections()),
            ):
                with refuses(InvalidParameterError, "asynchronous"):
                    start()

    asyncio.run(asyncio.wait_for(use(), BOUND_S))


def test_a_process_that_may_start_no_others_is_told_so(embedded):
    def start():
        with pytest.raises(ClusterError) as caught:
            open_engine(Cluster(n_workers=1))
        return str(caught.value)

    message = scaled(embedded, 1).client.submit(start).result(BOUND_S)
    assert "daemonic" in message
    assert "serial" in message
    assert "__main__" not in message


def test_a_script_from_standard_input_is_told_so(monkeypatch):
    def fail(*_, **__):
        raise FileNotFoundError("<stdin>")

    # xdist has none
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    monkeypatch.setattr(distributed.LocalCluster, "__init__", fail)
    with refuses(ClusterError, "<stdin>", "file", "serial"):
        open_engine(Cluster(n_workers=1))


@pytest.mark.faults("F6")
@pytest.mark.parametrize("moment", ["cluster", rarely("client"), rarely("engine")])
def test_an_interrupted_start_leaves_nothing(monkeypatch, moment):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    if moment != "cluster":
        places = {
            "client": (distributed.Client, "__init__"),
            "engine": (DaskEngine, "_join"),
        }
        monkeypatch.setattr(*places[moment], interrupt)
    before = set(psutil.Process().children(recursive=True))
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        # while its workers start, as a job's time limit does
        signal.setitimer(signal.ITIMER_REAL, 0.2 if moment == "cluster" else 0.0)
        with forked_workers(), pytest.raises(KeyboardInterrupt):
            DaskEngine(n_workers=1, threads_per_worker=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    psutil.wait_procs(
        set(psutil.Process().children(recursive=True)) - before, timeout=10
    )
    assert set(psutil.Process().children(recursive=True)) <= before


def test_no_topic_is_left_on_the_scheduler(embedded):
    def topics(dask_scheduler):
        return set(dask_scheduler._broker._topics)

    before = embedded.client.run_on_scheduler(topics)
    with DaskEngine(client=embedded.client) as engine:
        engine.map_reduce(slow_power, unit_blocks(3), None)
        assert embedded.client.run_on_scheduler(topics) > before
    assert embedded.client.run_on_scheduler(topics) == before


# -- workers of other versions, threads that share an engine
# --------------------------------------------


@pytest.mark.faults("F18")
def test_a_worker_of_another_version_that_joins_is_left_out(embedded, caplog):
    def pretend(version):
        distributed.versions._version_cached.cache_clear()
        distributed.versions.version = lambda name: version or metadata.version(name)

    client = scaled(embedded, 2).client
    stranger, other = client.nthreads()
    client.run(pretend, "1.0", workers=[stranger])
    timings = PassTimings()
    try:
        with DaskEngine(client=client, observers=[timings]) as engine:
            assert (
                engine.map_reduce(
                    slow_power, unit_blocks(20), engine.broadcast("state")
                )
                == 2**20 - 1
            )
            assert {done.worker for done in timings.blocks} == {other}
            assert engine.n_workers == 1
    finally:
        client.run(pretend, None, workers=[stranger])
    assert stranger in caplog.text
    assert "1.0" in caplog.text


def test_threads_that_share_an_engine_look_at_its_workers_together(
    embedded, monkeypatch
):
    workers = embedded._reach_workers()
    monkeypatch.setattr(dask_workers, "POLL_S", 0.0)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(
                    lambda _: [workers.current() for _ in range(2_000)][-1], range(4)
                )
            )
    finally:
        sys.setswitchinterval(switch_interval)
    assert [list(one) for one in found] == [list(workers.look())] * 4


# -- persisted parts
# -----------------------------------------------------------------------------------


@pytest.fixture
def elsewhere():
    """Return a client of another cluster, in this process; it is not the default."""
    options = {
        "n_workers": 1,
        "threads_per_worker": 1,
        "processes": False,
        "dashboard_address": ":0",
    }
    with (
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("engine", "kind"),
    [
        ("own", "unknown"),
        ("none", "frame"),
        rarely("own", "known"),
        rarely("serial", "unknown"),
    ],
)
def test_persisted_parts_are_used_where_they_are(embedded, expected, engine, kind):
    client = scaled(embedded, 1).client
    X, y = collections()
    if kind == "unknown":
        y = y[X[:, 0] > -9.0]
        X = X[X[:, 0] > -9.0]
    if kind == "frame":
        frame = client.persist(
            dd.from_pandas(pd.DataFrame(X_VALUES).assign(y=Y_VALUES), npartitions=3)
        )
        X = frame[[0, 1, 2]].to_dask_array()
        y = frame["y"]
    else:
        X, y = client.persist([X, y])
    chosen = {"own": embedded, "none": None, "serial": SerialEngine()}[engine]
    assert ridge(X, y, engine=chosen) == expected


def test_collections_are_computed_on_the_cluster_of_the_engine(embedded, tmp_path):
    def load(piece):
        if len(piece):  # Dask asks for the dtype with none
            (tmp_path / str(os.getpid())).touch()
        return piece

    X, y = collections()
    X = X.map_blocks(load, dtype=float)
    # lengths and a sample too
    model = RFFRidge(n_components=16, random_state=0, engine=scaled(embedded, 1))
    model.fit(X[X[:, 0] > -9.0], y[X[:, 0] > -9.0])
    assert list(tmp_path.iterdir())
    assert not (tmp_path / str(os.getpid())).exists()


def test_parts_on_another_cluster_are_refused_by_name(embedded, elsewhere, expected):
    X, y = collections(elsewhere)
    assert ridge(X, y) == expected
    with refuses(InvalidParameterError, "engine", "client", embedded.address, "inproc"):
        ridge(X, y, engine=embedded)
    with refuses(InvalidParameterError, embedded.address, "inproc"):
        ridge(X, collections(embedded.client)[1])
    elsewhere.close()
    with refuses(InvalidParameterError, "client", "closed"):
        ridge(X, y)


# -- partitions
# --------------------------------------------------------------------------------------


def rows_and_count(rows, _):
    return np.array([len(rows.X), int(rows.X.sum()), int(rows.y.sum())])


@pytest.mark.parametrize("distributed_engine", [True, False])
@pytest.mark.parametrize("block_rows", [40, 130])
def test_a_partition_of_many_blocks_is_computed_once_in_a_pass(
    embedded, tmp_path, block_rows, distributed_engine
):
    def load(piece, block_info=None):
        if block_info:
            number = block_info[0]["chunk-location"][0]
            (tmp_path / f"{number}-{time.monotonic_ns()}").touch()
        return piece

    sizes = (300, 100, 250, 50)
    values = np.arange(700 * 2).reshape(700, 2)
    X = da.from_array(values, chunks=(sizes, 2)).map_blocks(load, dtype=values.dtype)
    task = BlockTask(DaskArrayDataset(X, X[:, 0]), rows_and_count)
    engine = scaled(embedded, 2) if distributed_engine else SerialEngine()
    total = engine.map_reduce(
        task, cut_blocks(700, block_rows, rows_per_block=block_rows), None
    )
    assert total.tolist() == [700, values.sum(), values[:, 0].sum()]
    assert sorted(path.name.partition("-")[0] for path in tmp_path.iterdir()) == list(
        "0123"
    )


def test_a_partition_with_other_rows_than_its_chunks_say_is_refused(embedded):
    X = da.ones((100, 2), chunks=(50, 2)).map_blocks(
        lambda piece: piece[:-1], dtype=float
    )
    task = BlockTask(DaskArrayDataset(X), lambda rows, _: len(rows.X))
    for engine in (scaled(embedded, 1), SerialEngine()):
        with refuses(DataError, "0:50", "49"):
            engine.map_reduce(task, cut_blocks(100, 10, rows_per_block=10), None)


# -- kept sums
# --------------------------------------------------------------------------------------


class StubLedger:
    """Sums of 40 blocks in one stretch, which `find` does not give."""

    def __init__(self, folder, *, is_deadly):
        self.folder = folder
        self.is_deadly = is_deadly

    def spans(self, name):
        return [range(40)]

    def find(self, name, span):
        (self.folder / f"{time.monotonic_ns()}").touch()
        if self.is_deadly:
            os._exit(1)  # as the kernel does to a worker without memory

    def put(self, name, span, total):
        pass

    def seconds(self, total):
        return np.inf

    def output(self, name):
        return None


def count_on_two_workers(rows, folder):
    """Return the number of rows once two workers have begun a block."""
    Path(folder, str(os.getpid())).touch()
    stop = time.monotonic() + BOUND_S
    while len(os.listdir(folder)) < 2:
        if time.monotonic() > stop:
            raise TimeoutError("no second worker has got a block")
        time.sleep(0.01)
    return len(rows.X)


@pytest.mark.faults("F15")
@pytest.mark.parametrize("is_deadly", [True, False])
def test_kept_sums_that_fail_are_made_again_by_all_workers(
    embedded, tmp_path, url, is_deadly
):
    from rff_dist import open_dataset

    engine = scaled(embedded, 2)
    lookups = tmp_path / "lookups"
    processes = tmp_path / "processes"
    lookups.mkdir()
    processes.mkdir()
    task = BlockTask(open_dataset(url), count_on_two_workers)
    blocks = cut_blocks(600, 15, rows_per_block=15)
    with engine.keeping(StubLedger(lookups, is_deadly=is_deadly)):
        assert engine.map_reduce(task, blocks, str(processes)) == 600
    assert len(list(lookups.iterdir())) == 1


@pytest.mark.slow
@pytest.mark.faults("F15")
def test_merges_that_kill_workers_end_the_pass(embedded):
    here = os.getpid()

    def add(left, right):
        if left + right == 20 and os.getpid() != here:
            os._exit(1)
        return left + right

    def one(*_):
        time.sleep(0.02)
        return 1

    with refuses(ClusterError, "merge", "4"):
        scaled(embedded, 2).map_reduce(one, unit_blocks(20), None, combine=add)
