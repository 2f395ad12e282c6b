"""`rff-dist info`: what lies at a place."""

import numpy as np
import zarr

from tests.command_line import PLAIN, document, run


def test_info_tells_a_dataset_predictions_and_a_model_apart(folder):
    run("predict", folder / "model", folder / "data.zarr", "predictions", "--serial")
    assert document("info", folder / "data.zarr")["kind"] == "dataset"
    assert document("info", "predictions")["kind"] == "predictions"
    model = document("info", folder / "model")
    assert model["kind"] == "ridge model"
    assert model["card"]["n_samples"] == 300
    assert model["arrays"]["coefficients"]["shape"] == [64, 1]


def test_info_tells_columns_recipe_lineage_and_estimates_on_one_screen(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [f"{'ab'[i % 2]},{i % 7 or ''},{i % 7 + i % 2}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["kind,size,price", *lines]))
    words = ["--targets price --impute median --on-nan drop"]
    assert run("ingest", "t.csv", "d.zarr", *words).exit_code == 0
    found = document("info", "d.zarr")
    assert found["feature_names"] == ["kind", "size", "size: missing"]
    assert found["recipe"]["recipe"][0]["becomes"] == ["kind"]
    shown = run("info", "d.zarr", "--details").stdout
    for word in (
        "kind, size",
        "price",
        "t.csv, 200 rows",
        "29 missing values become 3",
    ):
        assert word.replace(" ", "") in "".join(shown.split()), word
    assert "{" not in shown
    assert "dropped" not in shown  # none were
    fit = ["fit", "d.zarr", "m", *PLAIN, "--n-components 16 --n-folds 3"]
    assert run(*fit, "--serial --register").exit_code == 0
    found = document("info", "m")
    assert found["version"] == 1
    assert found["lineage"]["data"] == str(tmp_path / "d.zarr")
    shown = run("info", "m", "--details").stdout
    rmse = found["estimate"]["rmse"][0]
    for word in (
        "kind, size",
        str(tmp_path.name),
        f"RMSE {rmse:.2f}"[:-1],
        "R²",
        "29 missing values",
    ):
        assert word.replace(" ", "") in "".join(shown.split()), word
    assert len(shown.splitlines()) <= 40
    assert max(map(len, shown.splitlines())) <= 80


def test_info_says_whether_damage_would_be_noticed(folder):
    zarr.create_group("other").create_array("X", data=np.ones((4, 2)))
    [array] = document("info", "other")["arrays"]
    assert array["checksum"] is None
    assert " none" in run("info", "other").stdout
    assert " none" not in run("info", folder / "data.zarr").stdout
    assert {
        array["checksum"] for array in document("info", folder / "data.zarr")["arrays"]
    } == {"crc32c"}
