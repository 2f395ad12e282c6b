"""`rff-dist ingest`: tables and queries."""

import numpy as np
import pandas as pd
import skops.io
from sklearn.preprocessing import QuantileTransformer

from rff_dist import load_model, open_dataset
from rff_dist.data.blocks import Block
from tests.command_line import PLAIN, document, refusal, run, shown


def test_what_was_done_to_each_column_is_told(tmp_path):
    lines = [
        "kunde;ort;preis",
        *(f"k{i};{'Köln' if i % 2 else 'Ulm'};{i},5" for i in range(30)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="latin-1")
    given = (
        "ingest",
        "t.csv",
        "d",
        "--targets",
        "preis",
        "--overwrite",
    )
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


def test_a_transformer_of_scikit_learn_goes_from_a_file_to_data_to_models_and_their_updates(
    folder, tmp_path
):
    frame = pd.read_csv(folder / "table.csv")
    inputs = frame[["a", "b", "c"]]
    step = QuantileTransformer(n_quantiles=50, output_distribution="normal").fit(inputs)
    skops.io.dump(step, "prepare.skops")
    frame[:200].to_csv("monday.csv", index=False)
    frame[200:].to_csv("tuesday.csv", index=False)
    data = tmp_path / "data"
    model = tmp_path / "models" / "m"
    made = ("--targets", "price", "--recipe", "prepare.skops")
    found = document("ingest", "monday.csv", data, *made)
    how = "by scikit-learn's QuantileTransformer"
    assert found["recipe"] == [
        {"column": "a, b, c", "becomes": ["a", "b", "c"], "how": how}
    ]
    document("fit", data, model, *PLAIN, "--n-components 16 --serial --register")
    document("ingest", "tuesday.csv", data, "--append")
    np.testing.assert_array_equal(
        open_dataset(data).read(Block(0, 0, 300)).X, step.transform(inputs)
    )
    assert document("update", model, data, "--serial")["version"] == 2
    document("predict", model, folder / "table.csv", "p.csv", "--serial")
    expected = load_model(model).predict(str(data))
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], expected, rtol=1e-12)
    again = document(
        "ingest",
        folder / "table.csv",
        "e",
        "--targets price --recipe",
        model,
    )
    assert again["recipe"] == found["recipe"]
    given = (
        "ingest",
        folder / "table.csv",
        "f",
        "--targets",
        "price",
        "--recipe",
    )
    assert "--impute" in refusal(2, *given, model, "--impute median")
    assert "nothing is there" in refusal(65, *given, "nothing")
