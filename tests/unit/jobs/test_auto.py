"""What `auto` ingests, and what it says to a second run."""

import pytest

from rff_dist import open_dataset
from rff_dist.errors import DataError, InvalidParameterError, OutputExistsError
from rff_dist.fields import build
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


def test_data_of_an_earlier_run_are_refused_unless_they_are_to_be_replaced(table):
    first = prepared(table)
    rows = rows_of(first)
    with refuses(OutputExistsError, "exists already", "overwrite", "into"):
        prepared(table)
    with refuses(InvalidParameterError, "target", "'priec'"):
        prepared(table, target="priec")
    assert rows_of(first) == rows
    second = prepared(table, holdout=0.3, holdout_by="day", overwrite=True)
    assert (second.n_train, second.n_test) == (70, 30)
    assert second.held_out == "as the latest by day"
    assert rows_of(second) != rows


def test_a_target_that_cannot_be_learned_leaves_nothing_behind(table):
    with refuses(DataError, "nothing to predict"):
        prepared(table, "same")
    assert not table.with_name("made").exists()


def test_a_failed_fit_says_what_is_left_and_how_to_go_on(table):
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
    made = table.with_name("made")
    assert f"its rows are ingested in {made}: rff-dist fit" in failed.stderr
    assert "with --overwrite" in failed.stderr
    with refuses(OutputExistsError):
        prepared(table)
