"""`rff-dist fit` with lists of kernels and length scales: what it compares."""

import numpy as np
import pytest

from rff_dist import Gaussian, Matern, RationalQuadratic, write_dataset
from rff_dist.fields import options_of
from rff_dist.ridge.candidates import TimesMedian, make_candidates
from rff_dist.workbench.jobs.training import ComparisonOptions
from tests.command_line import document

SMALL = ["--kernels gaussian,matern:nu=1.5 --length-scales 0.5x,2 --serial"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return the path of a dataset of 3 columns with groups."""
    path = tmp_path_factory.mktemp("tune") / "data.zarr"
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(300)
    write_dataset(path, X, y, groups=np.arange(300) % 17)
    return path


def test_each_pair_of_a_list_is_a_candidate_and_the_plan_counts_them(data):
    lists = [*SMALL, "--n-folds 3 --features fourier"]
    fitted = document("fit", data, "fitted", *lists, "--n-components 16,32")
    errors = [row["score"] for row in fitted["candidates"]]
    assert len(errors) == 4
    assert fitted["best"]["score"] == min(errors)
    planned = document("plan", data, *lists, "--n-components 16")["choosing"]
    assert (planned["n_candidates"], planned["n_trained"]) == (4, 4)


def test_candidates_of_classes_are_compared_too():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    write_dataset("data", X, np.where(X[:, 0] * X[:, 1] > 0, "same", "other"))
    lists = [
        "--kernels linear,gaussian --length-scales 1 --n-components 64",
        "--serial",
    ]
    found = document("fit", "data", "model", "--classify", *lists)
    tried = [(row["kernel"], row["features"]) for row in found["candidates"]]
    assert tried == [
        ("linear", "fourier"),
        ("gaussian", "fourier"),
        ("gaussian", "nystrom"),
    ]
    assert found["best"]["kernel"] == "gaussian"
    assert found["estimate"]["accuracy"] > 0.9


def test_kernels_are_separated_by_commas_that_are_not_of_their_parameters():
    total = "gaussian:length_scale=2 + matern:nu=0.5, length_scale=3"
    texts = {
        "kernels": f"gaussian, matern:nu=2.5,rational_quadratic:shape=2,{total}",
        "length_scales": "0.5x, 3",
    }
    options = {one.name: one for one in options_of(ComparisonOptions)}
    found = make_candidates(*(options[name].read(text) for name, text in texts.items()))
    assert [one.kernel for one in found[:6:2]] == [
        Gaussian(),
        Matern(nu=2.5),
        RationalQuadratic(shape=2),
    ]
    assert [one.length_scale for one in found[:2]] == [TimesMedian(0.5), 3.0]
    assert (found[6].kernel, found[6].length_scale) == (
        Gaussian(2.0) + Matern(3.0, nu=0.5),
        None,
    )
