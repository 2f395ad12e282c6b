"""`rff-dist approximate`: how far the features are from the kernel."""

import numpy as np
from numpy.testing import assert_allclose

from rff_dist import Gaussian, open_dataset, write_dataset
from rff_dist.features.bounds import better_map, pairwise_error
from tests.command_line import document


def test_approximate_measures_the_errors_next_to_theory(folder):
    options = ["--n-components", "256", "--n-samples", "30", "--n-repeats", "5", "--error", "0.1"]
    found = document("approximate", folder / "data.zarr", *options, "--length-scale", "2")
    mean, largest = found["mean"], found["max"]
    assert mean["low"] <= mean["value"] <= mean["high"]
    assert (found["n_rows_read"], found["n_samples"], found["n_repeats"]) == (150, 30, 5)
    assert_allclose(found["needed"]["max"], 256 * (largest["value"] / 0.1) ** 2, atol=2)
    assert found["bounds"]["max"] == pairwise_error(256, n_points=30, delta=0.05)
    for name in ("mean", "max", "relative_operator_norm"):
        assert found[name]["value"] < found["bounds"][name]
    X = open_dataset(folder / "data.zarr").take(range(300)).X
    expected = better_map(Gaussian(2.0), (X - X.mean(axis=0)) / X.std(axis=0))
    assert_allclose(found["map_variances"]["pairs"], expected.pairs, rtol=0.1)
    assert found["map_variances"]["better"] == "pairs"


def test_a_kernel_without_frequencies_has_no_bounds(folder):
    options = ["--n-components", "64", "--n-samples", "30", "--kernel", "linear"]
    found = document("approximate", folder / "data.zarr", *options)
    assert found["bounds"] == {}
    assert found["max"]["value"] < 1e-6


def test_approximate_takes_the_better_map_where_it_is_to_choose(tmp_path):
    write_dataset(tmp_path / "far.zarr", np.arange(200.0)[:, np.newaxis])
    options = ["--kernel", "cauchy", "--length-scale", "0.01", "--n-components", "64", "--map", "auto"]
    found = document(
        "approximate", tmp_path / "far.zarr", *options, "--n-samples", "20", "--standardize", "no"
    )
    assert found["map"] == found["map_variances"]["better"] == "phases"
