"""`rff-dist fit`: what alpha and the number of features are chosen by."""

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_allclose

from rff_dist.ridge.models import read_model
from tests.command_line import PLAIN, document, shown


# these rows have hardly any noise
@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by")
def test_fit_chooses_alpha_and_d_by_the_error_of_refits(folder, tmp_path):
    fit = ("fit", folder / "data.zarr", "model", *PLAIN, "--serial --n-folds 3")
    fit += ("--alphas 1e-6:1e3:10 --n-components 16,32,64 --plot", "new/cv.png")
    found = document(*fit)
    table = found["cross_validation"]
    model = read_model("model")
    assert found["alpha_chosen_by"] == "cv"
    assert_allclose(found["alpha_path"], [1e-6, 1e3], rtol=1e-12)
    assert table["folds"] == {"kind": "HashFolds", "n_folds": 3, "seed": 0}
    assert [width["n_components"] for width in table["widths"]] == [16, 32, 64]
    limits = [width["score"] + width["standard_error"] for width in table["widths"]]
    scores = [width["score"] for width in table["widths"]]
    within = [
        D
        for D, score in zip([16, 32, 64], scores, strict=True)
        if score <= limits[np.argmin(scores)]
    ]
    assert found["n_components"] == model.feature_map.n_components == within[0]
    assert imread(tmp_path / "new" / "cv.png").shape[2] == 4
    assert document("info", "model")["cross_validation"] == table


# the least of those to choose from
@pytest.mark.filterwarnings("default:alpha=10 was chosen")
@pytest.mark.parametrize("name", ["gcv", "evidence"])
def test_a_criterion_without_folds_is_told_drawn_and_described(folder, tmp_path, name):
    fit = ("fit", folder / "data.zarr", "model", *PLAIN, "--serial --n-components 32")
    options = ("--alpha", name, "--alphas 10:1e3:4 --plot", "path.png")
    shown(*fit, *options)
    stored = document("info", "model")
    assert (stored["card"]["chosen_by"], stored["alpha"]) == (name, 10.0)
    assert stored["estimate"] is None
    assert imread(tmp_path / "path.png").shape[2] == 4
