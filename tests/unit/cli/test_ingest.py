"""`rff-dist ingest`: tables and queries."""

import numpy as np
import pytest

from rff_dist.data.blocks import Block
from rff_dist.storage.datasets import open_dataset
from tests.command_line import document, refusal, run


def test_only_the_wrong_option_of_ingest_is_named(folder, tmp_path):
    message = refusal(2, "ingest", folder / "table.csv", tmp_path / "a", "--on-nan", "foo")
    assert "--on-nan" in message
    assert "dtype" not in message


def test_a_missing_column_is_a_usage_error_with_the_nearest_name(folder, tmp_path):
    message = refusal(2, "ingest", folder / "table.csv", tmp_path / "data", "--target", "prize")
    assert "--target" in message
    assert "'price'" in message


def test_a_column_of_words_exits_65_and_says_which_columns_to_take(tmp_path):
    (tmp_path / "table.csv").write_text("a,b,name\n1,2,x\n3,4,y\n")
    message = refusal(65, "ingest", tmp_path / "table.csv", tmp_path / "data", "--target", "a")
    assert "'name'" in message
    assert "--columns b," in message


def test_a_table_becomes_a_dataset(folder, tmp_path):
    found = document(
        "ingest",
        folder / "table.csv",
        tmp_path / "data",
        "--target",
        "price",
        "--columns",
        "c, a",
        "--chunk-rows",
        "1e2",
    )
    assert (found["n_samples"], found["n_features"], found["n_targets"]) == (300, 2, 1)
    assert found["feature_names"] == ["c", "a"]
    assert found["chunk_rows"] == 100
    whole = open_dataset(folder / "data.zarr").read(Block(0, 0, 300))
    part = open_dataset(tmp_path / "data").read(Block(0, 0, 300))
    assert np.array_equal(part.X, whole.X[:, [2, 0]])
    assert np.array_equal(part.y, whole.y)


def test_rows_are_ingested_once_and_both_counts_are_shown(folder, tmp_path):
    ingest_it = ("ingest", folder / "table.csv", tmp_path / "d.zarr", "--append", "--target", "price")
    first, again = document(*ingest_it), document(*ingest_it)
    assert (first["n_before"], again["n_before"], again["n_after"]) == (0, first["n_after"], first["n_after"])
    assert (first["ingested"], again["skipped"]) == (2 * ([str(folder / "table.csv")],))
    shown = " ".join(run(*ingest_it).stdout.split())  # lines end where the path is long
    assert "nothing new" in shown
    assert "there already" in shown


def test_a_query_is_ingested_and_the_password_of_its_database_not_told(tmp_path, monkeypatch):
    monkeypatch.setenv("RFF_DIST_SQL", "sqlite://")
    made = document("ingest", tmp_path / "d", "--target", "y", "--sql", "SELECT 1 AS x, 2 AS y")
    assert (made["n_samples"], made["feature_names"], made["target_names"]) == (1, ["x"], ["y"])
    monkeypatch.setenv("RFF_DIST_SQL", "nothing://me:geheim@host/x")
    result = run("ingest", tmp_path / "e", "--sql", "SELECT 1 AS x", "--debug")
    assert result.exit_code == 2
    assert "geheim" not in result.output


def test_a_password_among_the_options_is_warned_of_and_one_from_elsewhere_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP", "nothing://me:geheim@host/x")
    (tmp_path / "q.sql").write_text("SELECT 1 AS x")
    arguments = ("ingest", tmp_path / "d", "--sql", f"file:{tmp_path / 'q.sql'}", "--connection")
    seen = run(*arguments, "nothing://me:geheim@host/x")
    unseen = run(*arguments, "env:SHOP")
    assert "--connection holds a password" in seen.output
    assert "holds a password" not in unseen.output
    for result in (seen, unseen):
        assert result.exit_code == 2
        assert "no database that SQLAlchemy knows" in " ".join(result.output.split())
        assert "geheim" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.csv", "d", "--append", "--overwrite"], "leave it out"),
        (["a.csv", "d", "--sql", "SELECT 1"], "a.csv: expected files or a query"),
        (["d"], "expected files and, last, the dataset"),
    ],
)
def test_sources_that_do_not_go_together_exit_2(arguments, message):
    assert message in refusal(2, "ingest", *arguments)
