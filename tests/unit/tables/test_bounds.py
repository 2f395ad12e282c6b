"""Memory that does not grow with what a table holds: many levels, long texts, many classes."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.workbench.tables import learn
from tests import tables
from tests.refusals import refuses
from tests.tables import ingest

N = 120_000


def save(columns, path):
    return tables.save(pd.DataFrame(columns), path)


def numbers(n_levels, n=N, seed=0):
    return np.random.default_rng(seed).permutation(n) % n_levels


def texts(n_levels, n=N, seed=0):
    return np.char.add("t", numbers(n_levels, n, seed).astype(str))


def peak(job):
    """Return the most memory, in MiB, that Python and NumPy had at a time."""
    tracemalloc.start()
    try:
        job()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("target", ["y", "text"])
def test_a_column_of_texts_that_all_differ_is_left_out(tmp_path, target):
    columns = {"id": texts(N), "y": np.arange(N) % 7 * 1.0, "text": texts(50), "x": 1.0}
    source = save(columns, tmp_path / "t.feather")
    found = []
    assert peak(lambda: found.append(ingest(source, tmp_path / "d", target=target, drop=["x"]))) < 150
    assert "id" in found[0].attributes["recipe"]["left_out"]


@pytest.mark.parametrize("feature", [texts(40_000), np.arange(N)])
def test_a_target_of_too_many_texts_is_refused_by_name(tmp_path, feature):
    """40,000 levels of a feature times as many classes would be 64 GB of sums."""
    source = save({"k": feature, "price": texts(N, seed=1)}, tmp_path / "t.feather")

    def refuse():
        with refuses(DataError, "'price'", "10,000"):
            ingest(source, tmp_path / "d", target="price")

    assert peak(refuse) < 150
    assert not (tmp_path / "d").exists()


def test_hardly_any_text_of_a_target_twice_is_refused(tmp_path):
    source = save({"x": np.arange(900.0), "y": texts(600, 900)}, tmp_path / "t.feather")
    with refuses(DataError, "'y'", "600", "900"):
        ingest(source, tmp_path / "d", target="y")


def test_many_classes_have_no_means_of_their_own(tmp_path):
    source = save({"k": texts(40_000), "y": texts(5000, seed=1)}, tmp_path / "t.feather")
    found = []
    assert peak(lambda: found.append(ingest(source, tmp_path / "d", target="y"))) < 250
    assert found[0].feature_names[-1] == "k=…"
    assert len(found[0].feature_names) == learn.MOST_COLUMNS + 1
    with refuses(InvalidParameterError, "'y'", "100", "'one-hot'"):
        ingest(source, tmp_path / "e", target="y", categories="target")


def test_levels_of_all_columns_share_a_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(learn, "MAX_BYTES", 2**22)
    columns = {f"k{i}": texts(9000 + i, seed=i) for i in range(4)} | {"few": texts(30), "y": numbers(9) * 1.0}
    dataset = ingest(save(columns, tmp_path / "t.feather"), tmp_path / "d", target="y")
    left_out = dataset.attributes["recipe"]["left_out"]
    assert 0 < len(left_out) < 4
    assert all(why.endswith("levels or more") for why in left_out.values())
    assert "few: mean" in dataset.feature_names


def test_rows_of_short_texts_are_read_in_pieces(tmp_path):
    """A block of 1 MiB has 400,000 rows, which 100 levels would make 320 MB."""
    lines = numbers(99, 400_000)
    (tmp_path / "t.csv").write_text("k,y\n" + "\n".join(f"{chr(48 + one)},1" for one in lines) + "\n")
    assert peak(lambda: ingest(tmp_path / "t.csv", tmp_path / "d", categories="one-hot", target="y")) < 250
