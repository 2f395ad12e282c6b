"""Rows that are appended night after night: what is unlike those before is said, and no
id counts twice.
"""

from pathlib import Path

import numpy as np
import pytest

from rff_dist import append_dataset, open_dataset
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.fields import build
from rff_dist.storage.columns import open_column
from rff_dist.workbench.jobs import ingest as ingest_job
from rff_dist.workbench.jobs import steps
from rff_dist.workbench.jobs.specs import Ingest
from rff_dist.workbench.results.rows import appended_document, appended_words
from rff_dist.workbench.results.terminal import to_rich
from rff_dist.workbench.tables import corrections
from tests.refusals import refuses
from tests.tables import all_rows, ingest, ingest_more, ingest_parts, save

pandas = pytest.importorskip("pandas")


def night(n_rows=60, start=0, **columns):
    x, area = np.random.default_rng(0).uniform(size=(2, 1000))[
        :, start : start + n_rows
    ]
    frame = pandas.DataFrame(
        {
            "order": np.arange(start, start + n_rows) + 100,
            "x": x,
            "area": 10 + 10 * area,
        }
    )
    frame["city"] = np.resize(["Ulm", "Rom", "Bonn"], n_rows)
    frame["day"] = "2024-01-01"
    frame["site"] = "A"
    frame["y"] = 2 * frame["x"]
    return frame.assign(**columns)


@pytest.fixture(params=["csv", "parquet"])
def first(request, tmp_path):
    path = save(night(), f"first.{request.param}")
    ingest(path, "d", target="y", id="order")
    return tmp_path, request.param


UNLIKE = {
    "a level": (
        {"city": ["Paris"] * 4 + ["Ulm"] * 6},
        ("city", "unseen level", 4, "Paris"),
    ),
    "a date": (
        {"day": "2024-01-02"},
        ("day", "varies now, and is left out", 10, "2024-01-02"),
    ),
    "a text": (
        {"site": ["B"] * 3 + ["A"] * 7},
        ("site", "varies now, and is left out", 3, "B"),
    ),
    "a unit": ({"area": 1500.0}, ("area", "out of range", 10, "1500")),
    "a target": ({"y": [-9.0] + [1.0] * 9}, ("y", "out of range", 1, "-9")),
    "a column": ({"more": 1}, ("more", "new column, left out", 0, None)),
    "nothing": ({}, None),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_what_is_unlike_the_rows_before_is_in_every_result(first, name):
    folder, suffix = first
    columns, expected = UNLIKE[name]
    save(night(10, 500, **columns), folder / f"next.{suffix}")
    job = build(
        Ingest,
        {
            "sources": [str(folder / f"next.{suffix}")],
            "data": str(folder / "d"),
            "append": True,
        },
    )
    record = ingest_job.append(job, steps.in_this_process())
    found = [
        (one["column"], one["what"], one["n_rows"], *one["examples"][:1])
        for one in record["unlike"]
    ]
    assert found == ([] if expected is None else [expected[: 4 if expected[3] else 3]])
    unlike = ("unlike those before in " + expected[0]) if expected else ""
    assert appended_words(record).partition(", ")[2] == unlike
    document = appended_document(record)
    assert (expected is not None) == any(
        "unlike" in str(getattr(part, "caption", "")) for part in document.parts
    )
    assert to_rich(document)


def test_a_column_that_never_missed_values_and_the_next_night():
    ingest(save(night(), "1.csv"), "d", target="y", impute="median", drop=["order"])
    later = night(10, 500, x=[np.nan] * 5 + [0.5] * 5, city="Paris")
    found = ingest_more(save(later, "2.csv"), "d", impute="median")
    assert [(one["column"], one["what"], one["n_rows"]) for one in found.unlike] == [
        ("x", "missing", 5),
        ("city", "unseen level", 10),
    ]
    # a range grows with the rows, so that a night is compared with all nights before
    save(night(10, 600, area=30.0), "3.csv")
    save(night(10, 700, area=30.0), "4.csv")
    found = [ingest_more(f"{i}.csv", "d").unlike for i in (3, 4)]
    assert [[one["column"] for one in unlike] for unlike in found] == [["area"], []]


class TestIds:
    def test_of_rows_with_the_same_values_are_skipped_and_counted(self, first):
        folder, suffix = first
        overlapping = pandas.concat([night()[40:], night(5, 500)])
        save(overlapping, folder / f"week.{suffix}")
        found = ingest_more(folder / f"week.{suffix}", folder / "d")
        assert (found.n_known, found.n_after, found.unlike) == (20, 65, ())
        # the same file, corrected by further rows
        save(pandas.concat([overlapping, night(2, 700)]), folder / f"week.{suffix}")
        assert ingest_more(folder / f"week.{suffix}", folder / "d").n_after == 67

    def test_of_rows_with_other_values_are_refused_or_replaced(self, first):
        folder, suffix = first
        corrected = pandas.concat(
            [night()[55:].assign(y=9.0), night(3, 500), night()[:2].assign(y=8.0)]
        )
        path = save(corrected, folder / f"first.{suffix}")
        before = open_dataset(folder / "d").version
        with refuses(DataError, 100, "'y'", "8.0", "replace_ids", "--by order"):
            ingest_more(path, folder / "d")
        assert open_dataset(folder / "d").version == before
        found = ingest_more(path, folder / "d", replace_ids=True)
        assert (found.n_replaced, found.n_after, found.n_known) == (7, 63, 0)
        y = all_rows(open_dataset(folder / "d")).y[:, 0]
        ids = open_column(folder / "d", "id")
        assert sorted(ids.take(np.flatnonzero(y == 9)).tolist()) == [
            155,
            156,
            157,
            158,
            159,
        ]
        assert ids.take(np.flatnonzero(y == 8)).tolist() == [100, 101]
        assert len(set(ids.take(np.arange(63)).tolist())) == 63

    def test_that_come_twice_in_one_load_count_once_or_are_refused(self, first):
        folder, suffix = first
        save(
            pandas.concat([night(4, 500), night(2, 500)]).sort_values("order"),
            folder / f"2.{suffix}",
        )
        assert ingest_more(folder / f"2.{suffix}", folder / "d").n_after == 64
        save(
            pandas.concat([night(2, 600), night(1, 600, y=5.0)]), folder / f"3.{suffix}"
        )
        with refuses(DataError, 700):
            ingest_more(folder / f"3.{suffix}", folder / "d")
        with refuses(DataError, "'order'", 700):
            ingest(folder / f"3.{suffix}", folder / "e", target="y", id="order")

    def test_are_found_in_python_too(self, first):
        folder, _ = first
        X = all_rows(open_dataset(folder / "d")).X[:2]
        y = all_rows(open_dataset(folder / "d")).y[:2, 0]
        assert append_dataset(folder / "d", X, y, ids=[100, 101]).n_rows == 0
        with refuses(DataError, 100, "'y'", "replace_ids"):
            append_dataset(folder / "d", X, y + 1, ids=[100, 999])
        changed = append_dataset(
            folder / "d", X, y + 1, ids=[100, 999], replace_ids=True
        )
        assert (changed.n_rows, changed.n_after) == (1, 61)


def test_a_file_of_a_known_name_with_other_contents_is_refused_without_ids():
    ingest(save(night(), "1.csv"), "d", target="y", drop=["order"])
    save(night(40), "1.csv")
    with refuses(DataError, "1.csv", 60, "data correct"):
        ingest_more("1.csv", "d")
    # as advised
    Path("1.csv").rename("2.csv")
    assert ingest_more("2.csv", "d").n_after == 100


@pytest.mark.parametrize(
    "options",
    [
        {"impute": "mean"},
        {"categories": ["x"]},
        {"dates": ["year"]},
        {"keep_index": True},
        {"drop": ["area"]},
        {"weight": "area"},
        {"groups": "city"},
        {"id": "order"},
        {"date_order": "dmy"},
        {"missing": ["-9"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_option_that_the_rows_were_made_without_is_refused_by_name(options):
    made = {"target": "y", "drop": ["order"], "impute": "median"}
    ingest(save(night(), "1.csv"), "d", **made)
    save(night(10, 500), "2.csv")
    (name,) = options
    with refuses(InvalidParameterError, name, "overwrite"):
        ingest_more("2.csv", "d", **options)
    # the options of the first night may be given each night
    assert ingest_more("2.csv", "d", **made).n_after == 70


class TestSplitTables:
    """A row of the test data never becomes one to train on, or the reverse."""

    @pytest.fixture
    def parts(self, tmp_path):
        path = save(night(), "all.csv")
        ingest_parts(path, ("train", "test"), 0.3, target="y", id="order")
        return [open_column(url, "id").array[:].tolist() for url in ("train", "test")]

    @pytest.mark.parametrize("url", ["train", "test"])
    def test_rows_of_the_other_part_are_left_out_of_an_append(self, parts, url, caplog):
        here, elsewhere = parts if url == "train" else parts[::-1]
        rows = pandas.concat([night().assign(y=9.0), night(3, 500)])
        path = save(rows, "grown.csv")
        found = ingest_more(path, url, replace_ids=True)
        assert f"{len(elsewhere)} rows belong to" in caplog.text
        assert str(min(elsewhere)) in caplog.text
        assert (found.n_replaced, found.n_of_other_part) == (len(here), len(elsewhere))
        ids = open_column(url, "id").array[:].tolist()
        assert sorted(ids) == sorted([*here, 600, 601, 602])

    def test_they_are_found_after_the_folder_was_moved(self, parts):
        Path("moved").mkdir()
        for name in ("train", "test"):
            Path(name).rename(f"moved/{name}")
        path = save(night().assign(x=0.5), "again.csv")
        found = ingest_more(path, "moved/train", replace_ids=True)
        assert found.n_of_other_part == len(parts[1])

    def test_a_correction_of_them_names_where_they_are(self, parts):
        path = save(night()[night().order.isin(parts[1][:2])], "c.csv")
        with refuses(DataError, *parts[1][:2], "test", "order"):
            corrections.correct(path, "train", by="order")
        corrections.correct(path, "test", by="order")
