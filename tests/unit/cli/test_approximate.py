"""`rff-dist approximate`: how far the features are from the kernel."""

import numpy as np
from numpy.testing import assert_allclose

from rff_dist import write_dataset
from rff_dist.features.bounds import pairwise_error
from rff_dist.recipes.encoders import Category, Number
from rff_dist.recipes.recipes import RECIPE, Recipe
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


def test_approximate_takes_the_better_map_where_it_is_to_choose():
    write_dataset("far.zarr", np.arange(200.0)[:, np.newaxis])
    options = [
        "--kernel cauchy --length-scale 0.01 --n-components 64 --map auto",
    ]
    found = document("approximate", "far.zarr", *options, "--standardize no")
    assert found["map"] == "phases"


def test_the_order_of_a_categorys_levels_changes_nothing():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(100), rng.integers(0, 5, 100)])
    found = []
    for names in ("abcde", "dbeca"):
        Y = X.copy()
        Y[:, 1] = [names.index("abcde"[int(code)]) for code in X[:, 1]]
        recipe = Recipe([Number("x"), Category("town", list(names))])
        write_dataset(
            "towns.zarr",
            Y,
            feature_names=recipe.names,
            attributes={RECIPE: recipe.to_dict()},
            overwrite=True,
        )
        options = ["--n-components 64 --kernel gaussian --length-scale 1"]
        found.append(document("approximate", "towns.zarr", *options))
    assert found[0]["kernel"]["categories"] == [1]
    for name in ("gram_norm", "mean", "max"):
        assert_allclose(found[0][name], found[1][name])
