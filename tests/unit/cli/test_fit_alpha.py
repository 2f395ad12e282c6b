"""`rff-dist fit`: what alpha and the number of features are chosen by."""

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_allclose

from rff_dist.ridge.models import read_model
from tests.command_line import PLAIN, document, shown


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")  # these rows have hardly any noise
def test_fit_chooses_alpha_and_d_by_the_error_of_refits(folder, tmp_path):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--n-folds", "3")
    fit += ("--alphas", "1e-6:1e3:10", "--n-components", "16,32,64", "--plot", tmp_path / "new" / "cv.png")
    found = document(*fit)
    table, model = found["cross_validation"], read_model(tmp_path / "model")
    assert found["alpha_chosen_by"] == "cv"
    assert_allclose(found["alpha_path"], [1e-6, 1e3], rtol=1e-12)
    assert table["folds"] == {"kind": "HashFolds", "n_folds": 3, "seed": 0}
    assert [width["n_components"] for width in table["widths"]] == [16, 32, 64]
    limits = [width["score"] + width["standard_error"] for width in table["widths"]]
    scores = [width["score"] for width in table["widths"]]
    within = [D for D, score in zip([16, 32, 64], scores, strict=True) if score <= limits[np.argmin(scores)]]
    assert found["n_components"] == model.feature_map.n_components == within[0]
    estimate = found["estimate"]
    assert imread(tmp_path / "new" / "cv.png").shape[2] == 4
    assert document("info", tmp_path / "model")["cross_validation"] == table
    for words in (shown("info", tmp_path / "model"), shown(*fit, "--overwrite")):
        assert "chosen by cross-validation" in words
        assert f"RMSE {estimate['rmse'][0]:.2f} ± {estimate['rmse_standard_error'][0]:.2f}" in words
        assert f"{found['n_components']} ←" in words
        assert "3 folds by a hash of the row" in words


@pytest.mark.filterwarnings("default:alpha=10 was chosen")  # the least of those to choose from
@pytest.mark.parametrize("name", ["gcv", "evidence"])
def test_a_criterion_without_folds_is_told_drawn_and_described(folder, tmp_path, name):
    fit = ("fit", folder / "data.zarr", tmp_path / "model", *PLAIN, "--serial", "--n-components", "32")
    options = ("--alpha", name, "--alphas", "10:1e3:4", "--plot", tmp_path / "path.png")
    told = shown(*fit, *options)
    assert "cross-validation" not in told
    assert told.startswith("On 300 rows left out in turn, the typical error (RMSE) is ")
    assert "at the lower end of 10 to 1000" in told
    stored = document("info", tmp_path / "model")
    assert (stored["card"]["chosen_by"], stored["alpha"]) == (name, 10.0)
    assert stored["estimate"] is None
    assert imread(tmp_path / "path.png").shape[2] == 4
    words = {"gcv": "chosen by GCV", "evidence": "chosen by the evidence"}
    assert words[name] in told
