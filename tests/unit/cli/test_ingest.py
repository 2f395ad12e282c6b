"""`rff-dist ingest`: tables and queries."""

import re

from rff_dist.storage.columns import open_column
from tests.command_line import document, run, shown


def test_what_was_done_to_each_column_is_told(tmp_path):
    lines = [
        "kunde;ort;preis",
        *(f"k{i};{'Köln' if i % 2 else 'Ulm'};{i},5" for i in range(30)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="latin-1")
    given = ("ingest", "t.csv", "d", "--targets preis --overwrite")
    found = document(*given)
    assert found["feature_names"] == ["ort"]
    notes = [
        "delimiter ;",
        "encoding cp1252",
        "read as numbers with decimal commas: 'preis'",
    ]
    assert found["notes"] == {"t.csv": notes}
    assert "rarely come twice" in found["left_out"]["kunde"]
    told = shown(*given)
    assert "kunde left out: " in told
    assert "delimiter ;" in told
    found = document(*given, "--id kunde --holdout 20%")
    assert found["left_out"] == {}
    assert found["n_samples"] + found["test"]["n_samples"] == 30
    assert found["test"]["path"].endswith("d-test")
    assert re.search("other part +d-test", shown("info", "d"))


def test_groups_stay_together_if_one_row_of_a_file_has_none(tmp_path):
    for name, first in (("a", ""), ("b", "0")):
        lines = ["g,x,y", f"{first},0,0", *(f"{i % 50},{i},{i}" for i in range(1, 300))]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines))
    given = "--targets y --groups g --on-nan drop --holdout 30%"
    document("ingest", "a.csv", "b.csv", "d", given)
    train, test = (
        set(open_column(tmp_path / name, "groups").array[:].tolist())
        for name in ("d", "d-test")
    )
    assert not train & test
    assert len(train | test) == 50


def test_a_query_is_ingested_and_the_password_of_its_database_not_told(monkeypatch):
    monkeypatch.setenv("RFF_DIST_SQL", "sqlite://")
    made = document("ingest", "d", "--targets y --sql", "SELECT 1 AS x, 2 AS y")
    assert (made["n_samples"], made["feature_names"], made["target_names"]) == (
        1,
        ["x"],
        ["y"],
    )
    monkeypatch.setenv("RFF_DIST_SQL", "nothing://me:geheim@host/x")
    result = run("ingest", "e", "--sql", "SELECT 1 AS x", "--debug")
    assert result.exit_code == 2
    assert "geheim" not in result.output
