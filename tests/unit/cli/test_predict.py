"""`rff-dist predict`: what is written beside the predictions."""

import re

import numpy as np
import pytest
import zarr

from rff_dist import open_dataset, write_dataset
from rff_dist.data.blocks import Block
from tests.command_line import PLAIN, document, refusal


def test_data_of_another_width_than_the_model_exit_65(folder):
    write_dataset("data", np.ones((4, 2)), np.ones(4))
    for name in ("evaluate", "predict"):
        more = ["out"] if name == "predict" else []
        message = refusal(65, name, folder / "model", "data", *more, "--serial")
        assert "X has 2 features" in message
        assert "expecting 3" in message
        assert f"data does not fit {folder / 'model'}" in message
        assert "columns that the model was trained on" in message


def test_the_folder_of_auto_leads_to_its_model(folder, tmp_path):
    (tmp_path / "t-auto" / "model").mkdir(parents=True)
    message = refusal(65, "predict", tmp_path / "t-auto", folder / "data.zarr", "out")
    assert re.search("did you mean .*t-auto/model", message)


def test_a_job_from_table_to_predictions(folder):
    errors_found = document(
        "evaluate", folder / "model", folder / "data.zarr", "--serial"
    )
    written = document(
        "predict", folder / "model", folder / "data.zarr", "predictions", "--serial"
    )
    predictions = zarr.open_group("predictions", mode="r")["predictions"][:].ravel()
    y = open_dataset(folder / "data.zarr").read(Block(0, 0, 300)).y[:, 0]
    [target] = errors_found["targets"]
    assert written["n_samples"] == errors_found["n_samples"] == 300
    assert target["name"] == "price"
    assert target["rmse"] == pytest.approx(
        np.sqrt(np.mean((y - predictions) ** 2)), rel=1e-9
    )
    assert target["z_rmse"] == pytest.approx(target["rmse"] / y.std(), rel=1e-9)
    assert target["mae"] == pytest.approx(np.abs(y - predictions).mean(), rel=1e-9)
    assert target["r2"] == pytest.approx(1 - target["mse"] / y.var(), rel=1e-9)
    assert target["z_rmse"] < 0.3
    assert written["model_digest"] == document("info", folder / "model")["digest"]


def test_predict_interval_writes_ends_by_held_out_rows_or_by_the_normal_law(folder):
    data = folder / "data.zarr"
    small = ["--serial --n-components 16 --n-folds 3"]
    document("fit", data, "model", *PLAIN, *small)
    held_out = document("predict", "model", data, "a", "--serial --coverage 0.8")
    normal = document("predict", folder / "model", data, "b", "--serial --coverage 0.8")
    assert held_out["interval"]["coverage"] == 0.8
    assert "rows of the fit" in held_out["interval"]["by"]
    assert held_out["arrays"] == ["predictions", "lower", "upper"]
    assert normal["interval"]["by"] == "the normal distribution"
    y = open_dataset(data).read(Block(0, 0, 300)).y[:, 0]
    for model, output in (("model", "a"), (folder / "model", "b")):
        written = zarr.open_group(output)
        is_inside = (written["lower"][:] <= y) & (y <= written["upper"][:])
        judged = document("evaluate", model, data, "--serial --coverage 0.8 --std")
        assert judged["interval"]["inside"] == [pytest.approx(is_inside.mean())]
        assert judged["targets"][0]["nlpd"]
