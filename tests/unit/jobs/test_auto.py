"""What `auto` ingests, and what a second run of it finds."""

import pytest

from rff_dist import open_dataset, write_dataset
from rff_dist.errors import OutputExistsError
from rff_dist.fields import build
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import discard
from rff_dist.workbench.jobs.auto import prepare_table
from rff_dist.workbench.jobs.specs import Auto
from tests.command_line import run
from tests.refusals import refuses


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "day,x,y,same\n" + "".join(f"{i},{i % 7},{i / 2},1\n" for i in range(100))
    )
    return path


def prepared(table, target="y", **options):
    given = {
        "sources": [str(table)],
        "target": target,
        "into": str(table.with_name("made")),
        **options,
    }
    return prepare_table(build(Auto, given))


def rows_of(one):
    return {
        part: open_dataset(getattr(one, part)).fingerprint()
        for part in ("train", "test")
    }


def test_a_second_run_takes_what_the_first_one_ingested(table):
    first = prepared(table)
    rows = rows_of(first)
    version = open_dataset(first.train).version
    table.touch()  # another time of the same bytes
    second = prepared(table)
    assert (first.ingested, second.ingested) == ("now", "by an earlier run")
    assert rows_of(second) == rows
    assert open_dataset(second.train).version == version
    assert (second.n_train, second.n_test, second.classify) == (
        first.n_train,
        first.n_test,
        first.classify,
    )


def test_other_options_ingest_the_same_table_again(table):
    prepared(table)
    second = prepared(table, holdout=0.3, holdout_by="day")
    assert second.ingested == "again, since options are others (share, by)"
    assert (second.n_train, second.n_test) == (70, 30)
    assert second.held_out == "as the latest by day"


@pytest.mark.parametrize("n_new", [0, 3], ids=["changed", "grown"])
def test_other_rows_and_another_target_are_refused_unless_they_are_to_replace_them(
    table, n_new
):
    rows = rows_of(prepared(table))
    with refuses(OutputExistsError, "into"):
        prepared(table, "x")
    text = table.read_text()
    table.write_text(
        text + "100,1,50,1\n" * n_new if n_new else text.replace("99,", "98,")
    )
    with refuses(
        OutputExistsError, "from other files, or from these before they changed"
    ):
        prepared(table)
    assert rows_of(prepared(table, overwrite=True)) != rows


def test_a_part_that_a_killed_run_left_is_replaced(table):
    first = prepared(table)
    rows = rows_of(first)
    discard(parse_location(first.train))  # it is written last
    assert rows_of(prepared(table)) == rows


def test_a_target_that_cannot_be_learned_leaves_what_was_ingested(table):
    rows = rows_of(prepared(table))
    with pytest.raises(OutputExistsError):
        prepared(table, "same")
    assert rows_of(prepared(table)) == rows


def test_data_of_others_are_not_replaced(table):
    first = prepared(table)
    discard(parse_location(first.train))
    discard(parse_location(first.test))
    write_dataset(first.train, [[1.0], [2.0]], [1.0, 2.0])
    with refuses(OutputExistsError, "exists already"):
        prepared(table)


def test_a_failed_fit_says_what_is_left_and_that_repeating_goes_on(table):
    given = [
        "auto",
        table,
        "--target",
        "y",
        "--into",
        table.with_name("made"),
        "--serial",
    ]
    failed = run(*given, "--n-components", 10**8)  # more than any memory holds
    assert failed.exit_code == 1
    left = (
        f"its rows are ingested in {table.with_name('made')}, and the same command goes"
        " on from there"
    )
    assert left in failed.stderr
    assert prepared(table).ingested == "by an earlier run"
