"""`rff-dist approximate`: how far the features are from the kernel."""

import numpy as np
import pytest
from matplotlib.image import imread
from numpy.testing import assert_allclose

from rff_dist import Gaussian, open_dataset, write_dataset
from rff_dist.features.bounds import better_map, pairwise_components
from tests.command_line import document


def test_approximate_measures_the_errors_beside_theory_and_draws_them(folder, tmp_path):
    options = ["--n-components", "256", "--n-samples", "30", "--n-repeats", "5", "--error", "0.1"]
    options += ["--length-scale", "2"]
    found = document("approximate", folder / "data.zarr", *options, "--plot", tmp_path / "error.png")
    dataset = open_dataset(folder / "data.zarr")
    mean, largest = found["errors"]["mean"], found["errors"]["max"]
    assert mean["low"] <= mean["value"] <= mean["high"]
    assert (found["n_rows_read"], found["n_samples"], found["n_repeats"]) == (150, 30, 5)
    assert [point["n_components"] for point in found["curve"]] == [16, 32, 64, 128, 256]
    assert found["curve"][-1]["max"] == largest
    wanted = found["wanted"]["n_components"]["max"]
    assert wanted["theory"] == pairwise_components(0.1, n_points=30, delta=0.05)
    assert_allclose(wanted["measured"], 256 * (largest["value"] / 0.1) ** 2, atol=2)
    assert_allclose(wanted["factor"], wanted["theory"] / wanted["measured"])
    for name in ("mean", "max", "relative_operator_norm"):
        assert found["errors"][name]["value"] < found["bounds"][name]
    X = dataset.take(range(300)).X
    expected = better_map(Gaussian(2.0), (X - X.mean(axis=0)) / X.std(axis=0))
    assert_allclose(found["map_variances"]["pairs"], expected.pairs, rtol=0.1)
    assert found["map_variances"]["better"] == "pairs"
    assert imread(tmp_path / "error.png").shape[2] == 4


@pytest.mark.parametrize(
    ("options", "missing", "reason"),
    [
        (["--kernel", "laplacian"], ["compact_set"], "second moment of the kernel's frequencies is infinite"),
        (["--kernel", "linear"], ["compact_set", "max", "mean", "relative_operator_norm"], "Linear()"),
    ],
)
def test_approximate_says_why_there_is_no_bound(folder, options, missing, reason):
    found = document(
        "approximate", folder / "data.zarr", "--n-components", "64", "--n-samples", "30", *options
    )
    assert sorted(name for name, bound in found["bounds"].items() if bound is None) == missing
    assert sorted(found["no_bounds"]) == missing
    assert all(reason in text for text in found["no_bounds"].values())


def test_approximate_takes_the_better_map_where_it_is_to_choose(tmp_path):
    write_dataset(tmp_path / "far.zarr", np.arange(200.0)[:, np.newaxis])
    options = ["--kernel", "cauchy", "--length-scale", "0.01", "--n-components", "64", "--map", "auto"]
    found = document(
        "approximate", tmp_path / "far.zarr", *options, "--n-samples", "20", "--standardize", "no"
    )
    assert found["map"] == found["map_variances"]["better"] == "phases"
