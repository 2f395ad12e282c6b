import pickle
import subprocess
import sys

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rff_dist.data.blocks import Block, cut_blocks
from rff_dist.errors import (
    DataError,
    InvalidParameterError,
    OutputExistsError,
    StorageError,
)
from rff_dist.storage import commit
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.outputs import Layout, create_output
from rff_dist.storage.writing import write_dataset
from tests.tables import all_rows

SIZES = {"n_samples": 50, "n_columns": 2, "dtype": "float64", "chunk_rows": 8}
BLOCKS = cut_blocks(50, 8, rows_per_block=16)
VALUES = np.arange(100.0).reshape(50, 2)


def write_blocks(output, blocks=BLOCKS, values=VALUES):
    for block in blocks:
        output.write(block, values[block.start : block.stop])


@settings(max_examples=30)
@given(
    order=st.permutations(range(len(BLOCKS))),
    again=st.lists(st.integers(0, len(BLOCKS) - 1), max_size=3),
)
def test_blocks_may_come_in_any_order_and_more_than_once(order, again):
    output = create_output("out", Layout(**SIZES), overwrite=True)
    write_blocks(output, [BLOCKS[i] for i in [*order, *again]])
    output.finish()
    assert_array_equal(all_rows(open_dataset("out", x="predictions")).X, VALUES)


def test_workers_write_through_a_pickled_handle(tmp_path, project_root):
    output = create_output("p", Layout(**SIZES, column_names=["a", "b"]))
    script = (
        "import pickle, sys, numpy as np\noutput, blocks ="
        " pickle.load(sys.stdin.buffer)\nfor b in blocks: output.write(b,"
        " np.arange(100.0).reshape(50, 2)[b.start:b.stop])\n"
    )
    content = pickle.dumps((output, BLOCKS[1:]))
    subprocess.run(
        [sys.executable, "-c", script], input=content, cwd=project_root, check=True
    )
    # of which another worker has written one
    write_blocks(pickle.loads(pickle.dumps(output)), BLOCKS[:2])
    output.finish({"model": "m"})
    dataset = open_dataset("p", x="predictions")
    assert_array_equal(all_rows(dataset).X, VALUES)
    assert dataset.attributes["model"] == "m"
    assert dataset.feature_names == ("a", "b")
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@pytest.mark.parametrize(
    "span", [(1, 8), (0, 7), (8, 15), (48, 56), (8, 8), (-8, 8), (48, 49)]
)
def test_blocks_that_are_not_whole_chunks_are_refused(span):
    output = create_output("out", Layout(**SIZES), overwrite=True)
    with pytest.raises(StorageError, match="not whole chunks"):
        output.write(Block(0, *span), np.zeros((max(0, span[1] - span[0]), 2)))


def test_values_of_another_shape_are_refused():
    output = create_output("out", Layout(**SIZES), overwrite=True)
    with pytest.raises(
        DataError, match=r"shape \(8, 3\) for rows 0:8; expected \(8, 2\)"
    ):
        output.write(Block(0, 0, 8), np.zeros((8, 3)))


def test_an_unfinished_output_is_not_published_and_says_so():
    url = "p"
    output = create_output(url, Layout(**SIZES))
    # All zeros: if the writer left out empty chunks, it would seem unfinished.
    output.write(BLOCKS[0], np.zeros((16, 2)))
    with pytest.raises(StorageError, match="2 of 7 chunks of 8 rows were written"):
        output.finish()
    with pytest.raises(StorageError, match="unfinished output of it"):
        open_dataset(url, x="predictions")
    with pytest.raises(StorageError, match="is unfinished"):
        open_dataset(output.publication.staged.url, x="predictions")
    write_blocks(output, BLOCKS[1:], 0 * VALUES)
    output.finish()
    assert open_dataset(url, x="predictions").n_samples == 50


def test_a_discarded_output_leaves_nothing_and_cannot_be_written(tmp_path):
    output = create_output("p", Layout(**SIZES))
    output.discard()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StorageError, match="is gone"):
        output.write(BLOCKS[0], np.zeros((16, 2)))


def test_an_output_that_exists_is_kept_until_the_new_one_is_finished(tmp_path):
    write_dataset("p", VALUES)
    with pytest.raises(OutputExistsError):
        create_output("p", Layout(**SIZES))
    output = create_output("p", Layout(**SIZES), overwrite=True)
    assert open_dataset("p").n_samples == 50
    write_blocks(output)
    output.finish()
    assert open_dataset("p", x="predictions").n_samples == 50
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


@pytest.mark.faults("F16")
def test_two_runs_on_one_output_publish_one():
    first, second = (create_output("p", Layout(**SIZES)) for _ in range(2))
    for value, output in enumerate((first, second)):
        write_blocks(output, values=np.full((50, 2), value))
    first.finish()
    with pytest.raises(OutputExistsError, match="meanwhile"):
        second.finish()
    assert all_rows(open_dataset("p", x="predictions")).X.max() == 0


@pytest.mark.parametrize("where", ["a", "a/p", ".", "link"])
def test_an_output_that_overlaps_its_input_is_refused(tmp_path, where):
    write_dataset("a", VALUES)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StorageError, match="overlap"):
        create_output(
            tmp_path / where, Layout(**SIZES), inputs=[tmp_path / "a"], overwrite=True
        )
    assert open_dataset("a").n_samples == 50


def test_fields_are_arrays_of_their_own_types_and_shapes():
    fields = np.dtype([("labels", "<U5"), ("probabilities", "f8", (2,))])
    sizes = {"n_samples": 5, "n_columns": None, "chunk_rows": 3}
    output = create_output(
        "p", Layout(**sizes, dtype=fields, column_names=["no", "yes"])
    )
    values = np.zeros(5, fields)
    values["labels"] = ["yes", "", "näyes", "no", "no"]
    values["probabilities"] = np.arange(10.0).reshape(5, 2)
    output.write(Block(0, 0, 3), values[:3])
    with pytest.raises(StorageError, match="1 of 2 chunks"):
        output.finish()
    with pytest.raises(DataError, match="expected the fields"):
        output.write(Block(1, 3, 5), np.zeros(2))
    output.write(Block(1, 3, 5), values[3:])
    output.finish()
    group = zarr.open_group("p", mode="r")
    assert group["labels"][:].tolist() == values["labels"].tolist()
    assert_array_equal(group["probabilities"][:], values["probabilities"])
    assert open_dataset("p", x="probabilities").feature_names == (
        "no",
        "yes",
    )


@pytest.mark.parametrize(
    ("dtype", "n_columns"),
    [([("a", "f8")], 2), ([("a", "O")], None), ([("a", "f8", (0,))], None)],
)
def test_fields_that_no_array_holds_are_refused(dtype, n_columns):
    with pytest.raises(InvalidParameterError, match="expected sizes"):
        create_output(
            "p",
            Layout(
                n_samples=5, n_columns=n_columns, dtype=np.dtype(dtype), chunk_rows=3
            ),
        )


@pytest.mark.parametrize("exchanges", [True, False])
def test_overwriting_needs_no_file_system_that_exchanges_names(
    tmp_path, monkeypatch, exchanges
):
    exchange = commit._exchange
    told = []

    def watched(one, other):
        told.append(exchanges and exchange(one, other))
        return told[-1]

    monkeypatch.setattr(commit, "_exchange", watched)
    for i in (1, 2):
        write_dataset("d", np.full((3, 2), float(i)), overwrite=True)
    assert told == [exchanges]
    assert open_dataset("d").take([0]).X.tolist() == [[2.0, 2.0]]
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
