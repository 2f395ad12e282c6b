"""Loads and windows: which rows came together, and which are the newest."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rff_dist.data import loads as loads_module
from rff_dist.data.loads import (
    Load,
    describe_loads,
    read_loads,
    with_load,
    without_deleted,
)
from rff_dist.errors import InvalidParameterError
from rff_dist.living.windows import Window
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.writing import write_dataset

MONDAY = datetime(2026, 11, 23, 2, tzinfo=UTC)


def nightly(n_nights, *, rows=10):
    """Loads of so many nights, the last one on Monday."""
    return [
        Load((i + 1) * rows, MONDAY - timedelta(days=n_nights - 1 - i))
        for i in range(n_nights)
    ]


OF_LOADS = {"1": 90, "3": 70, "10": 0, "99": 0, "all": 0}
OF_DAYS = {"1d": 80, "0.5d": 90, "30d": 0, "7d": 20}


@pytest.mark.parametrize(("window", "first_row"), {**OF_LOADS, **OF_DAYS}.items())
def test_a_window_begins_with_a_load(window, first_row):
    assert Window.parse(window).first_row(nightly(10)) == first_row


@pytest.mark.parametrize(
    "bad",
    ["", "0", "0d", "-3", "3w", "nand", "d", "3 d", "1e9d", "ALL", "999999999", "٣"],
)
def test_what_is_no_window_is_refused(bad):
    with pytest.raises(
        InvalidParameterError, match="expected a number of loads, such as 12, of days"
    ):
        Window.parse(bad)


def test_a_clock_that_was_set_back_leaves_a_window_of_whole_loads():
    loads = nightly(5)
    loads[3] = Load(40, MONDAY - timedelta(days=300))
    assert Window.parse("3d").first_row(loads) == 40


def test_rows_whose_time_was_not_recorded_are_old():
    loads = [Load(500, None), Load(600, MONDAY)]
    assert Window.parse("1000d").first_row(loads) == 500
    assert Window.parse("2").first_row(loads) == 0
    assert Window.parse("30d").first_row(read_loads({}, 500)) == 0


def test_a_window_beyond_what_is_remembered_is_refused(monkeypatch):
    monkeypatch.setattr(loads_module, "MOST_LOADS", 4)
    told = {"loads": describe_loads(nightly(6))}
    loads = read_loads(told, 60)
    assert [one.stop for one in loads] == [30, 40, 50, 60]
    assert Window.parse("3").first_row(loads) == 30
    for beyond in ("4", "30d"):
        with pytest.raises(InvalidParameterError, match="beyond the last 4 loads"):
            Window.parse(beyond).first_row(loads)


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    data=st.data(),
    keep_order=st.booleans(),
)
def test_deleted_rows_leave_the_others_in_their_loads(sizes, data, keep_order):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    gone = data.draw(
        st.sets(st.integers(0, len(labels) - 1), min_size=1).filter(
            lambda x: len(x) < len(labels)
        )
    )
    loads = [Load(int(stop), None) for stop in np.cumsum(sizes)]
    found = without_deleted(loads, np.array(sorted(gone)), keep_order=keep_order)
    left = (
        np.delete(labels, sorted(gone))
        if keep_order
        else labels[: len(labels) - len(gone)]
    )
    assert [one.stop for one in found] == np.cumsum(
        np.unique(left, return_counts=True)[1]
    ).tolist()


def test_each_append_is_a_load_and_an_empty_one_is_none():
    rng = np.random.default_rng(0)
    write_dataset("d", rng.random((100, 2)), versioned=True)
    before = datetime.now(UTC)
    append_dataset("d", rng.random((20, 2)))
    append_dataset("d", rng.random((0, 2)))
    loads = read_loads(open_dataset("d").attributes["rff_dist"], 120)
    assert [one.stop for one in loads] == [100, 120]
    assert abs(loads[-1].written - before) < timedelta(minutes=10)
    assert with_load(loads, 120) == loads
    plain = write_dataset("plain", rng.random((30, 2)))
    assert read_loads(plain.attributes["rff_dist"], 30) == [Load(30, None)]
