"""`rff-dist approximate`: how far the features are from the kernel."""

from numpy.testing import assert_allclose

from rff_dist.features.bounds import pairwise_error
from tests.command_line import document


def test_approximate_measures_the_errors_next_to_theory(folder):
    options = ["--n-components 256 --n-samples 150 --error 0.1"]
    found = document("approximate", folder / "data.zarr", *options, "--length-scale 2")
    assert found["n_samples"] == 150
    assert_allclose(found["needed"]["max"], 256 * (found["max"] / 0.1) ** 2, atol=2)
    assert found["bounds"]["max"] == pairwise_error(256, n_points=150, delta=0.05)
    for name, bound in found["bounds"].items():
        assert found[name] < bound


def test_a_kernel_without_frequencies_has_no_bounds(folder):
    options = ["--n-components 64 --n-samples 30 --kernel linear"]
    found = document("approximate", folder / "data.zarr", *options)
    assert found["bounds"] == {}
    assert found["max"] < 1e-6
