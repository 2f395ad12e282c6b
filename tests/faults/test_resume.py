"""Jobs that are killed go on: the same bits, and the rows that were done are not read
again.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from rff_dist import (
    DaskEngine,
    SerialEngine,
    convert_dataset,
    open_dataset,
    replace_rows,
    write_dataset,
)
from rff_dist.data.blocks import BlockTask, cut_blocks
from rff_dist.engines import resuming as kept_module
from rff_dist.engines.events import BlockDone, PassResumed, PassStarted
from rff_dist.errors import ClusterLostError
from rff_dist.fields import build
from rff_dist.workbench.jobs import train as training
from rff_dist.workbench.jobs.specs import Train
from rff_dist.workbench.jobs.steps import Runner
from tests.command_line import document, run
from tests.dask_processes import once_after, run_dask, scaled
from tests.stopped_jobs import Eager, eager_ledger, run_killed, sum_slowly, sum_up

pytestmark = pytest.mark.faults("F5")

# eight blocks
N_SAMPLES = 65_536 * 2
ROWS = 16_384


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_SAMPLES, 3)).astype(np.float32)
    folder = tmp_path_factory.mktemp("rows")
    write_dataset(folder / "data.zarr", X, np.sin(X[:, 0]) + X[:, 1], chunk_rows=ROWS)
    return folder


@pytest.fixture
def folder(rows, tmp_path):
    (tmp_path / "data.zarr").symlink_to(rows / "data.zarr")
    return tmp_path


@pytest.fixture(scope="module")
def expected(rows):
    return sum_up(rows, SerialEngine()).digest()


@pytest.fixture(autouse=True)
def keep_every_block(monkeypatch):
    monkeypatch.setattr(kept_module, "LEAST_SHARE", 0.0)


def resumed(folder, engine=None):
    """Sum up again; return the digest, the rows that were kept, and the blocks that
    were summed up.
    """
    events = []
    engine = SerialEngine() if engine is None else engine
    engine.observers = (events.append,)
    digest = sum_up(folder, engine).digest()
    kept = [event.n_kept for event in events if isinstance(event, PassResumed)]
    again = [
        e.block.index
        for e in events
        if isinstance(e, BlockDone) and e.seconds == e.seconds
    ]
    return digest, kept, sorted(again)


def stop_after(folder, n_blocks):
    """Stop a pass in this process after some blocks."""

    def stop(event):
        nonlocal n_blocks
        n_blocks -= isinstance(event, BlockDone)
        if n_blocks < 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sum_up(folder, SerialEngine(observers=(stop,)))


# -- the sums of a pass
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_blocks", [1, 4, 7])
def test_a_stopped_pass_goes_on_with_the_same_bits(folder, expected, n_blocks):
    stop_after(folder, n_blocks)
    digest, kept, again = resumed(folder)
    assert digest == expected
    assert kept == [n_blocks * ROWS]
    assert again == list(range(n_blocks, 8))


def test_damaged_sums_are_made_again(folder, expected):
    stop_after(folder, 4)
    [path] = (folder / "ledger").glob("*.sums")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    digest, _, again = resumed(folder)
    assert digest == expected
    assert again == list(range(8))


def test_other_rows_are_all_read(folder, expected):
    stop_after(folder, 4)
    (folder / "data.zarr").unlink()
    X = np.random.default_rng(0).standard_normal((N_SAMPLES, 3)).astype(np.float32)
    y = np.sin(X[:, 0]) + X[:, 1]
    y[0] += 1.0
    write_dataset(folder / "data.zarr", X, y, chunk_rows=ROWS)
    digest, kept, again = resumed(folder)
    assert digest != expected
    assert (kept, again) == ([], list(range(8)))


def test_one_version_of_the_rows_goes_on_and_the_next_begins_anew(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_SAMPLES, 3))
    y = rng.standard_normal(N_SAMPLES)
    write_dataset(tmp_path / "data.zarr", X, y, chunk_rows=ROWS)
    convert_dataset(tmp_path / "data.zarr")
    stop_after(tmp_path, 5)
    _, kept, again = resumed(tmp_path)
    assert (kept, again) == ([5 * ROWS], [5, 6, 7])
    replace_rows(tmp_path / "data.zarr", [0], X[1:2], y[1:2])
    _, kept, again = resumed(tmp_path)
    assert (kept, again) == ([], list(range(8)))


def test_two_at_once_do_no_harm(folder, expected):
    other = eager_ledger(folder / "ledger")
    stop_after(folder, 3)

    def interfere(event):
        if isinstance(event, BlockDone) and event.block.index == 1:
            resumed(folder)  # another one, which ends first and keeps all

    assert sum_up(folder, SerialEngine(observers=(interfere,))).digest() == expected
    assert resumed(folder)[0] == expected
    other.drop()
    assert resumed(folder)[0] == expected


# -- on a cluster
# ----------------------------------------------------------------------------------


@pytest.fixture
def cluster(embedded):
    return scaled(embedded, 2)


@pytest.mark.distributed
def test_the_process_of_a_pass_on_a_cluster_is_killed(folder, expected, cluster):
    ended = run_killed(2, 5, folder)
    assert ended.returncode == -9, ended.stderr
    kept = resumed(folder, cluster)
    assert kept[0] == expected
    assert kept[1]
    # what was told of is kept, but for the run that was not done
    assert kept[1][0] >= 4 * ROWS
    assert len(kept[2]) == 8 - kept[1][0] // ROWS


@pytest.mark.distributed
def test_a_pass_stopped_in_one_process_goes_on_on_a_cluster_and_back(
    folder, expected, cluster
):
    stop_after(folder, 3)
    digest, kept, again = resumed(folder, cluster)
    assert (digest, kept, again) == (expected, [3 * ROWS], [3, 4, 5, 6, 7])
    assert resumed(folder) == (expected, [8 * ROWS], [])
    assert resumed(folder, cluster) == (expected, [8 * ROWS], [])


@pytest.mark.slow
@pytest.mark.distributed
def test_a_pass_goes_on_where_its_scheduler_was_killed(folder, expected, tmp_path):
    with (
        run_dask(tmp_path, n_workers=2) as (address, [scheduler, *_]),
        DaskEngine(address) as engine,
    ):
        engine.observers = (once_after(5, scheduler.kill),)
        with pytest.raises(ClusterLostError, match="went away"):
            sum_up(folder, engine)
    digest, kept, again = resumed(folder)
    assert digest == expected
    assert kept[0] >= 4 * ROWS
    assert len(again) == 8 - kept[0] // ROWS


@pytest.mark.distributed
def test_what_a_dead_worker_had_kept_is_not_summed_up_again(folder, cluster):
    dataset = open_dataset(folder / "data.zarr")
    killed = []
    blocks = cut_blocks(N_SAMPLES, ROWS // 4, rows_per_block=ROWS // 4)

    def kill(event):
        if (
            isinstance(event, BlockDone)
            and not killed
            and (folder / "done").read_text().count("\n") > 12
        ):
            killed.append(int((folder / "done").read_text().split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    cluster.observers = (kill,)
    task = BlockTask(dataset, sum_slowly, adds=True)
    with cluster.keeping(eager_ledger(folder / "ledger")):
        total = cluster.map_reduce(task, blocks, str(folder))
    assert killed
    whole = SerialEngine(1).map_reduce(task, blocks, str(folder))
    # float64 sums in another order
    assert total[0] == pytest.approx(whole[0], rel=1e-12)
    done = [
        int(line.split()[0])
        for line in (folder / "done").read_text().splitlines()[: -len(blocks)]
    ]
    assert set(done) == set(range(len(blocks)))
    # the block that it was at, and one that it had not told of
    assert len(done) - len(blocks) <= 2


# -- jobs
# --------------------------------------------------------------------------------------


COMMON = "--serial --kernel gaussian --length-scale 1 --features fourier"
FIT = f"fit DATA OUT --n-components 64 {COMMON}"
# the passes that are stopped, and the command
JOBS = {
    "fit": ("accumulate", f"{FIT} --alpha 0.1"),
    "pcg": ("iterate", f"{FIT} --alpha 1 --solver pcg"),
    "candidates": (
        "accumulate",
        "fit DATA OUT --n-components 64 --kernels gaussian --serial",
    ),
    "cluster": (
        "lloyd",
        "cluster DATA LABELS --model OUT --n-clusters 3 --max-iter 5"
        f" --n-components 64 {COMMON}",
    ),
}


@pytest.fixture(scope="module")
def undisturbed(rows):
    """Return the digests of the jobs' results where nothing stops them."""
    return {name: document(*words_of(rows, name))["digest"] for name in JOBS}


def test_a_step_that_is_taken_again_goes_on(folder):
    """What Prefect does after an error that may be gone a minute later."""
    events = []

    def watch(event):
        events.append(event)
        if isinstance(event, BlockDone) and event.label == "accumulate":
            accumulated.append(event.block.index)
            if len(accumulated) == 5:
                raise KeyboardInterrupt

    accumulated = []
    engine = SerialEngine(observers=(watch,))

    def call(step):
        if step.name != "accumulate":
            return step()
        assert engine.ledger is not None
        with engine.keeping(Eager(engine.ledger.location, engine.ledger.token)):
            with pytest.raises(KeyboardInterrupt):
                step()
            return step()

    places = {"data": str(folder / "data.zarr"), "model": str(folder / "model")}
    options = {
        "kernel": "gaussian",
        "length_scale": 1.0,
        "features": "fourier",
        "n_components": 64,
    }
    job = build(Train, {**places, **options, "alpha": 0.1})
    training.train(job, Runner(lambda _: nullcontext(engine), call))
    resumed = [e for e in events if isinstance(e, PassResumed)]
    assert [e.n_kept for e in resumed if e.label == "accumulate"] == [4 * ROWS]
    # only the step that failed is repeated
    assert [e.label for e in events if isinstance(e, PassStarted)][:3] == [
        "inspect",
        *2 * ["accumulate"],
    ]


def words_of(folder, name):
    places = {
        "DATA": folder / "data.zarr",
        "OUT": folder / name,
        "LABELS": folder / f"{name}.zarr",
    }
    return [str(places.get(word, word)) for word in JOBS[name][1].split()]


@pytest.mark.parametrize("name", JOBS)
def test_a_killed_job_goes_on_when_it_is_repeated(folder, undisturbed, name):
    # in a later one of many passes
    n_blocks = {"lloyd": 20, "iterate": 12}.get(JOBS[name][0], 5)
    ended = run_killed(JOBS[name][0], n_blocks, *words_of(folder, name))
    assert ended.returncode == -9, ended.stderr
    assert list(folder.glob(".*.ledger/*.sums"))
    again = run(*words_of(folder, name), "--json")
    assert "continues a stopped job" in again.stderr
    assert json.loads(again.stdout)["digest"] == undisturbed[name]
    assert not list(folder.glob(".*.ledger"))
    assert not list(folder.glob(".*.run-*"))


def test_a_killed_prediction_keeps_the_rows_that_it_wrote(folder, undisturbed, rows):
    out = folder / "out.csv"
    expected = folder / "whole.csv"
    model_and_data = ("predict", str(rows / "fit"), str(folder / "data.zarr"))
    words = [*model_and_data, str(out), "--serial"]
    whole = document(*model_and_data, str(expected), "--serial")
    ended = run_killed("predict", 6, *words)
    assert ended.returncode == -9, ended.stderr
    [staged] = folder.glob(".out.csv.ledger/output-*")
    damaged = staged / "predictions" / "c" / "1"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    again = run(*words)
    assert (
        "predict: continues a stopped job: 62 % of the rows are there" in again.stderr
    )
    assert out.read_bytes() == expected.read_bytes()
    assert whole["n_samples"] == N_SAMPLES
    assert not list(folder.glob(".*"))


def test_an_interrupted_command_says_where_it_goes_on(folder, undisturbed):
    words = words_of(folder, "fit")
    process = subprocess.Popen(
        [
            sys.executable,
            *["-m", "tests.stopped_jobs", "accumulate", "5"],
            *words,
            "--interrupt",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    _, told = process.communicate(timeout=240)
    assert process.returncode == 130
    assert f"partial results are kept in {folder / '.fit.ledger'}" in " ".join(
        told.split()
    )
    assert f"to go on: rff-dist {shlex.join(words)}" in told
    again = run(*words, "--json")
    assert json.loads(again.stdout)["digest"] == undisturbed["fit"]
