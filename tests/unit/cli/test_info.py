"""`rff-dist info`: what lies at a place."""

import numpy as np
import zarr

from tests.command_line import PLAIN, document, refusal, run


def test_a_damaged_model_exits_65(folder, tmp_path):
    run("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--components", "8", "--serial")
    [chunk] = (tmp_path / "model").glob("arrays-*.zarr/coefficients/c/0/0")
    content = bytearray(chunk.read_bytes())
    content[3] ^= 1
    chunk.write_bytes(content)
    assert "coefficients" in refusal(65, "info", tmp_path / "model")


def test_info_tells_a_dataset_predictions_and_a_model_apart(folder, tmp_path):
    run("predict", folder / "model", folder / "data.zarr", tmp_path / "predictions", "--serial")
    assert document("info", folder / "data.zarr")["kind"] == "dataset"
    assert document("info", tmp_path / "predictions")["kind"] == "predictions"
    model = document("info", folder / "model")
    assert model["kind"] == "ridge model"
    assert model["card"]["n_samples"] == 300
    assert model["arrays"]["coefficients"]["shape"] == [64, 1]


def test_info_says_whether_damage_would_be_noticed(folder, tmp_path):
    zarr.create_group(tmp_path / "other").create_array("X", data=np.ones((4, 2)))
    [array] = document("info", tmp_path / "other")["arrays"]
    assert array["checksum"] is None
    assert "undetectable" in run("info", tmp_path / "other").stdout
    assert "undetectable" not in run("info", folder / "data.zarr").stdout
    assert {array["checksum"] for array in document("info", folder / "data.zarr")["arrays"]} == {"crc32c"}
