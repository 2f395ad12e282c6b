"""`rff-dist info`: what lies at a place."""

import numpy as np
import pytest
import zarr

from tests.command_line import PLAIN, document, run


def test_info_tells_a_dataset_predictions_and_a_model_apart(folder, tmp_path):
    run("predict", folder / "model", folder / "data.zarr", tmp_path / "predictions", "--serial")
    assert document("info", folder / "data.zarr")["kind"] == "dataset"
    assert document("info", tmp_path / "predictions")["kind"] == "predictions"
    model = document("info", folder / "model")
    assert model["kind"] == "ridge model"
    assert model["card"]["n_samples"] == 300
    assert model["arrays"]["coefficients"]["shape"] == [64, 1]


@pytest.mark.usefixtures("exact_bytes")
def test_info_says_how_features_of_a_fixed_point_are_multiplied_here(folder, tmp_path, monkeypatch):
    fit = ["fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--n-components", "8", "--alpha", "1"]
    assert run(*fit, "--serial", "--precision", "standard").exit_code == 0
    assert document("info", tmp_path / "model")["products"]["by"] == "float64"  # it is small
    monkeypatch.setenv("RFF_DIST_PRODUCTS", "bytes")
    assert "by bytes here" in run("info", tmp_path / "model").stdout
    assert run(*fit, "--serial", "--precision", "high", "--overwrite").exit_code == 0
    assert "products" not in document("info", tmp_path / "model")


def test_info_tells_columns_recipe_lineage_and_estimates_on_one_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = [f"{'ab'[i % 2]},{i % 7 or ''},{i % 7 + i % 2}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["kind,size,price", *lines]))
    words = ["--targets", "price", "--impute", "median", "--on-nan", "drop"]
    assert run("ingest", tmp_path / "t.csv", tmp_path / "d.zarr", *words).exit_code == 0
    found = document("info", tmp_path / "d.zarr")
    assert found["feature_names"] == ["kind=b", "size", "size: missing"]
    assert found["recipe"]["recipe"][0]["becomes"] == ["kind=b"]
    shown = run("info", tmp_path / "d.zarr").stdout
    for word in ("kind=b, size", "price", "t.csv, 200 rows", "29 missing values become 3"):
        assert word.replace(" ", "") in "".join(shown.split()), word
    assert "{" not in shown
    assert "dropped" not in shown  # none were
    fit = ["fit", tmp_path / "d.zarr", tmp_path / "m", *PLAIN, "--n-components", "16", "--n-folds", "3"]
    assert run(*fit, "--serial", "--register").exit_code == 0
    found = document("info", tmp_path / "m")
    assert found["version"] == 1
    assert found["lineage"]["data"] == str(tmp_path / "d.zarr")
    shown = run("info", tmp_path / "m").stdout
    rmse = found["estimate"]["rmse"][0]
    for word in ("kind=b, size", str(tmp_path.name), f"RMSE {rmse:.2f}"[:-1], "R²", "29 missing values"):
        assert word.replace(" ", "") in "".join(shown.split()), word
    assert len(shown.splitlines()) <= 40
    assert max(map(len, shown.splitlines())) <= 80


def test_info_says_whether_damage_would_be_noticed(folder, tmp_path):
    zarr.create_group(tmp_path / "other").create_array("X", data=np.ones((4, 2)))
    [array] = document("info", tmp_path / "other")["arrays"]
    assert array["checksum"] is None
    assert " none" in run("info", tmp_path / "other").stdout
    assert " none" not in run("info", folder / "data.zarr").stdout
    assert {array["checksum"] for array in document("info", folder / "data.zarr")["arrays"]} == {"crc32c"}


def test_info_says_how_rows_were_split_and_leaves_parts_of_others_as_they_are(tmp_path):
    np.savetxt(
        tmp_path / "t.csv", np.arange(120.0).reshape(40, 3), delimiter=",", header="a,b,y", comments=""
    )
    document("ingest", tmp_path / "t.csv", tmp_path / "d.zarr", "--targets", "y", "--holdout", "25%")
    assert "about 25 % of the rows for a test, at random, seed 0" in run("info", tmp_path / "d.zarr").stdout
    other = zarr.open_group(tmp_path / "other.zarr", mode="w")
    other.create_array("X", data=np.ones((4, 2)))
    other.attrs["parts"] = 7
    assert "parts" in run("info", tmp_path / "other.zarr").stdout
