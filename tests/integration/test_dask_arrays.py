"""Dask arrays and frames as data: their rows, names and errors, on workers and here."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from rff_dist import SerialEngine
from rff_dist.data.blocks import Block, BlockTask, RowParts, cut_blocks
from rff_dist.engines.dask_arrays import DaskArrayDataset
from rff_dist.errors import BlockError, DataError
from rff_dist.statistics.accumulate import add_each
from tests.dask_processes import scaled
from tests.engine_contract import FileOutput
from tests.refusals import refuses

pytestmark = pytest.mark.distributed


RNG = np.random.default_rng(0)
X_VALUES = RNG.normal(size=(100, 3)).astype(np.float32)
Y_VALUES = RNG.normal(size=100)


def gather_rows(rows, _):
    return tuple(
        RowParts.of(rows.block, np.asarray(part))
        for part in (rows.X, rows.y, rows.sample_weight)
    )


@pytest.mark.parametrize("distributed_engine", [False, True])
@pytest.mark.parametrize("chunks", [20, (30, 10, 60)], ids=["regular", "irregular"])
def test_dask_arrays_give_their_rows(embedded, chunks, distributed_engine):
    engine = scaled(embedded, 2) if distributed_engine else SerialEngine()
    data = DaskArrayDataset(
        da.from_array(X_VALUES, chunks=(chunks, 3)),
        da.from_array(Y_VALUES, chunks=33),
        da.from_array(np.arange(100), chunks=50),
    )
    assert (data.n_samples, data.n_features, data.n_targets, data.url) == (
        100,
        3,
        1,
        None,
    )
    assert data.dtype == np.float32
    blocks = cut_blocks(100, data.chunk_rows, rows_per_block=25)
    found = engine.map_reduce(
        BlockTask(data, gather_rows), blocks, None, combine=add_each
    )
    X, y, weights = (parts.joined() for parts in found)
    assert_array_equal(X, X_VALUES)
    assert_array_equal(y, Y_VALUES[:, np.newaxis])
    assert_array_equal(weights, np.arange(100.0))
    assert (X.dtype, y.dtype, weights.dtype) == (np.float32, np.float64, np.float64)


def test_rows_of_a_persisted_collection_do_not_pass_through_the_client(embedded):
    engine = scaled(embedded, 2)
    X = engine.client.persist(da.from_array(X_VALUES, chunks=(20, 3)))
    task = BlockTask(
        DaskArrayDataset(X), lambda rows, _: (rows.X.sum(dtype=np.float64), rows.y)
    )
    total, _ = engine.map_reduce(
        task,
        cut_blocks(100, 20, rows_per_block=20),
        None,
        combine=lambda a, b: (a[0] + b[0], None),
    )
    assert total == pytest.approx(X_VALUES.sum(dtype=np.float64), rel=1e-12)


def test_a_block_of_a_collection_that_fails_is_named(embedded):
    def fail_late(piece, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 2:
            raise ValueError("this file is broken")
        return piece

    X = da.from_array(X_VALUES, chunks=(20, 3)).map_blocks(fail_late, dtype=np.float32)
    with refuses(BlockError, "rows 40", "60"):
        scaled(embedded, 2).map_reduce(
            BlockTask(DaskArrayDataset(X), gather_rows),
            cut_blocks(100, 20, rows_per_block=20),
            None,
        )


def test_writing_from_a_collection(embedded, tmp_path):
    path = tmp_path / "out.npy"
    np.save(path, np.zeros((100, 3)))
    task = BlockTask(
        DaskArrayDataset(da.from_array(X_VALUES, chunks=(20, 3))),
        lambda rows, k: k * rows.X,
    )
    blocks = cut_blocks(100, 20, rows_per_block=20)
    assert scaled(embedded, 2).map_write(task, blocks, 2.0, FileOutput(path)) == 100
    assert_array_equal(np.load(path), 2 * X_VALUES)


def test_unknown_chunk_sizes_are_computed_in_one_pass_without_touching_the_callers_arrays():
    frame = pd.DataFrame(X_VALUES, columns=list("abc")).assign(y=Y_VALUES)
    source = dd.from_pandas(frame, npartitions=3)
    passes = 0

    def counting_get(*args, **kwargs):
        nonlocal passes
        passes += 1
        return dask.get(*args, **kwargs)

    with dask.config.set(scheduler=counting_get):
        data = DaskArrayDataset(source[["a", "b", "c"]], source["y"])
        assert passes == 1
        assert (data.n_samples, data.n_features, data.n_targets) == (100, 3, 1)
        rows = data.read(Block(0, 0, 100))
        assert_array_equal(rows.X, X_VALUES)
        assert_array_equal(rows.y, Y_VALUES[:, np.newaxis])
        X = source[["a", "b", "c"]].to_dask_array()
        DaskArrayDataset(X)
        assert np.isnan(X.chunks[0]).all()


def test_rows_are_taken_in_the_order_of_the_indices():
    data = DaskArrayDataset(da.from_array(X_VALUES, chunks=(20, 3)), Y_VALUES)
    indices = np.array([77, 3, 41, 3])
    X, y, _ = data.take(indices)
    assert_array_equal(X, X_VALUES[indices])
    assert_array_equal(y, Y_VALUES[indices, np.newaxis])


@pytest.mark.parametrize(
    ("X", "y", "names"),
    [
        (da.zeros(5), None, ("X", "(5,")),
        (da.zeros((0, 2)), None, ("at least one",)),
        (da.zeros((5, 0)), None, ("0 feature(s)", "(5, 0)")),
        (da.zeros((5, 2), dtype=complex), None, ("X", "complex128")),
        (da.zeros((5, 2), dtype=object, chunks=(5, 2)), None, ("X", "object")),
        (da.zeros((5, 2)), np.array(list("abcde"), dtype=object), ("y", "object")),
        (da.zeros((5, 2)), da.zeros(4), ("(X, y)", "[5, 4]")),
    ],
)
def test_dask_arrays_that_are_no_data_are_refused(X, y, names):
    with refuses(DataError, *names):
        DaskArrayDataset(X, y)
