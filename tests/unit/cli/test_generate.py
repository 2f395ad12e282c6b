"""`rff-dist generate`: data of which the best error is known."""

import numpy as np
import pytest

from rff_dist import Gaussian, draw_feature_map, open_dataset
from rff_dist.data.blocks import Block
from rff_dist.workbench.cli.generate import draw_function
from tests.command_line import document


def test_generated_data_say_their_best_error_and_can_be_made_again():
    arguments = ["--rows 1e3 --n-features 2 --noise 0.25 --seed 3"]
    arguments += ["--n-components 64"]
    first = document("generate", "one", *arguments)
    second = document("generate", "two", *arguments)
    assert first["best_rmse"] == 0.25
    assert (first["n_samples"], first["n_features"]) == (1000, 2)
    one, two = (
        open_dataset(path).read(Block(0, 0, 1000))
        for path in (first["path"], second["path"])
    )
    assert np.array_equal(one.X, two.X)
    assert np.array_equal(one.y, two.y)


def test_a_drawn_function_is_of_the_kernels_prior():
    # Over many draws f(x) has mean 0, variance k(x, x) = 1 and covariance k(x, y).
    X = np.array([[0.0, 0.0], [1.0, -0.5]])
    kernel = Gaussian(2.0)
    values = np.array(
        [
            draw_function(kernel, n_features=2, n_components=256, seed=s)(X)
            for s in range(600)
        ]
    )
    assert values.mean(axis=0) == pytest.approx([0, 0], abs=0.2)  # five standard errors
    assert np.cov(values.T) == pytest.approx(kernel(X), abs=0.25)


def test_a_drawn_function_has_other_features_than_a_fit_with_the_same_seed():
    # Otherwise a fit would find the very features and its error would be none of the
    # kernel's.
    X = np.random.default_rng(0).standard_normal((200, 3))
    y = draw_function(Gaussian(), n_features=3, n_components=16, seed=0)(X)
    Z = draw_feature_map(
        Gaussian(), n_features=3, n_components=16, random_state=0
    ).transform(X)
    residual = y - Z @ np.linalg.lstsq(Z, y)[0]
    assert np.std(residual) > 0.1
