"""The same data and the same spec have the same bits, whatever runs them and in
whatever order.
"""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rff_dist import HashFolds, SerialEngine, write_dataset
from rff_dist.data import blocks as cut
from rff_dist.data.blocks import BlockTask, cut_blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.fold_models import solve_fold_models
from rff_dist.ridge.held_out import score_sample
from rff_dist.statistics import passes, row_passes
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from tests.bits import bits_of
from tests.dask_processes import scaled
from tests.places import scratch
from tests.plain import plain_ridge
from tools import digests

BLOCK_ROWS = 8_192  # two tiles
# four blocks; three output tiles, one of them narrow
N_ROWS = 26_000
N_COMPONENTS = 520


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Cut data into blocks of half as many rows as usual, so that half of the rows have
    as many blocks.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "MIN_BLOCK_ROWS", BLOCK_ROWS)
        patch.setattr(digests, "N_ROWS", digests.N_ROWS // 2)
        yield


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 5)).astype(np.float32) * [1, 10, 0.1, 3, 1] + 100
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(
        size=(N_ROWS, 2)
    )
    url = tmp_path_factory.mktemp("bits") / "data.zarr"
    return write_dataset(
        url, X.astype(np.float32), Y, chunk_rows=4096, sample_weight=rng.random(N_ROWS)
    )


def fit(dataset, engine):
    return plain_ridge(n_components=N_COMPONENTS, alpha=0.01, engine=engine).fit(
        dataset
    )


@pytest.fixture(scope="module")
def expected(dataset):
    """Return the fit of the serial engine with one thread: the specification."""
    assert len(row_passes.blocks_of(dataset)) == 4
    return fit(dataset, SerialEngine(1))


def assert_same_bits(model, expected):
    assert model.statistics_.digest() == expected.statistics_.digest()
    assert model.statistics_ == expected.statistics_
    assert_array_equal(model.feature_coef_, expected.feature_coef_)
    assert_array_equal(model.feature_intercept_, expected.feature_intercept_)
    assert model.model_.digest() == expected.model_.digest()


@pytest.mark.parametrize("n_threads", [2, 3])
def test_serial_fits_have_the_same_bits_with_any_number_of_threads(
    dataset, expected, n_threads
):
    assert_same_bits(fit(dataset, SerialEngine(n_threads=n_threads)), expected)


# -- Dask
# --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def jobs_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")
    digests.write_data(folder)
    return folder


# Whole jobs; passes of every kind are in tests/engine_contract.py, and below.
TITLES = (
    "several numbers of features and intervals",
    "conjugate gradients",
    "clusters of principal components",
    "an update, and predictions of it",
)
ALL_JOBS = dict(digests.jobs())
JOBS = [pytest.param(ALL_JOBS[title], id=title) for title in TITLES]


@pytest.mark.distributed
@pytest.mark.parametrize("run", JOBS)
def test_jobs_find_the_same_bits_by_two_workers_and_by_two_threads(
    jobs_folder, embedded, run
):
    assert run(jobs_folder, scaled(embedded, 2)) == run(
        jobs_folder, SerialEngine(n_threads=2)
    )


@pytest.mark.distributed
def test_passes_that_judge_a_model_have_the_same_bits_on_dask(embedded):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 3))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1]]) + 0.1 * rng.normal(size=(20_000, 2))
    data = ArrayDataset(X, Y, rng.random(20_000))
    assert len(row_passes.blocks_of(data)) > 1
    model = plain_ridge(n_components=64, alpha=0.01).fit(data).model_
    members = [Accumulation(model.feature_map, model.statistics.spec)]

    def judged(engine):
        [folds] = passes.accumulate_folds(
            data, members, folds=HashFolds(3), engine=engine
        )
        models = solve_fold_models(folds, model.feature_map, alpha=0.01)
        return bits_of(
            [
                prediction.calibrate(data, model, engine=engine),
                score_sample(data, folds, models, engine=engine),
            ]
        )

    assert (
        judged(embedded) == judged(SerialEngine(n_threads=2)) == judged(SerialEngine(1))
    )


# -- chunks: what the promise rests on, and where it ends
# ----------------------------------------------


def with_chunks(dataset, chunk_rows):
    X, y, weights = dataset.take(np.arange(N_ROWS))
    return write_dataset(
        scratch(f"bits-{chunk_rows}"),
        X,
        y,
        sample_weight=weights,
        chunk_rows=chunk_rows,
        overwrite=True,
    )


@pytest.mark.parametrize("chunk_rows", [2048, BLOCK_ROWS])
def test_other_chunks_that_make_the_same_blocks_have_the_same_bits(
    dataset, expected, chunk_rows
):
    other = with_chunks(dataset, chunk_rows)
    assert row_passes.blocks_of(other) == row_passes.blocks_of(dataset)
    assert_same_bits(fit(other, SerialEngine(n_threads=2)), expected)


def sum_blocks(dataset, model, blocks):
    state = Accumulation(model.feature_map_, model.statistics_.spec)
    task = BlockTask(dataset, accumulate_rows)
    return SerialEngine(n_threads=2).map_reduce(task, blocks, state)


def test_blocks_of_whole_tiles_have_the_same_bits_however_they_are_cut(
    dataset, expected
):
    for tiles in (1, 3):
        blocks = cut_blocks(N_ROWS, 4096, rows_per_block=tiles * 4096)
        assert sum_blocks(dataset, expected, blocks) == expected.statistics_
