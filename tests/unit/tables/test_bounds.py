"""Memory that does not grow with what a table holds: many levels, long texts, many
classes.
"""

import tracemalloc
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rff_dist.errors import DataError
from rff_dist.recipes import learn
from rff_dist.recipes.recipes import levels_of
from tests import tables
from tests.refusals import refuses
from tests.tables import ingest

N = 20_000
# MiB: these tables take 4, and a column for each text would take 3,000
BOUND = 25


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
def test_a_column_of_texts_that_all_differ_is_left_out(target):
    columns = {"id": texts(N), "y": np.arange(N) % 7 * 1.0, "text": texts(50), "x": 1.0}
    source = save(columns, "t.feather")
    found = []
    job = partial(ingest, source, "d", target=target, drop=["x"])
    assert peak(lambda: found.append(job())) < BOUND
    assert "id" in found[0].attributes["recipe"]["left_out"]


@pytest.mark.parametrize("feature", [texts(10_000), np.arange(N)])
def test_a_target_of_too_many_texts_is_refused_by_name(feature):
    source = save({"k": feature, "price": texts(N, seed=1)}, "t.feather")

    def refuse():
        with refuses(DataError, "'price'", "10,000"):
            ingest(source, "d", target="price")

    assert peak(refuse) < BOUND
    assert not Path("d").exists()


def test_hardly_any_text_of_a_target_twice_is_refused():
    source = save({"x": np.arange(900.0), "y": texts(600, 900)}, "t.feather")
    with refuses(DataError, "'y'", "600", "900"):
        ingest(source, "d", target="y")


@pytest.mark.parametrize("suffix", ["feather", "csv"])
def test_many_levels_are_bounded_by_memory_only(suffix):
    source = save({"k": texts(N, 3 * N), "x": 1.0}, f"t.{suffix}")
    found = []
    assert peak(lambda: found.append(ingest(source, "d"))) < BOUND
    assert len(levels_of(found[0].attributes)[0]) == N


def test_levels_of_all_columns_share_a_memory(monkeypatch):
    monkeypatch.setattr(learn, "MAX_BYTES", 2**22)
    columns = {f"k{i}": texts(9000 + i, seed=i) for i in range(4)} | {
        "few": texts(30),
        "y": numbers(9) * 1.0,
    }
    dataset = ingest(save(columns, "t.feather"), "d", target="y")
    left_out = dataset.attributes["recipe"]["left_out"]
    assert 0 < len(left_out) < 4
    assert all("4 MiB" in why for why in left_out.values())
    assert "few" in dataset.feature_names
