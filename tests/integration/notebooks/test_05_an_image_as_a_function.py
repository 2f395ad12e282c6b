"""An image as a function: the notebook's numbers are right."""

import numpy as np
import pytest

from tests.notebooks import NotebookContract

pytestmark = pytest.mark.documents

PROBE = """{
    "known": int(known.sum()),
    "pixels": len(known),
    "squares": {
        name: float(((picture - colour)[~known] ** 2).mean()) for name, picture in pictures.items()
    },
    "curves": [coordinate_curve[-1], wave_curve[-1], float(decibels(by_ridge))],
    "to_scikit_learn": float(abs(by_ridge - __import__("sklearn.linear_model").linear_model.Ridge(
        ridge.alpha_
    ).fit(ridge.feature_map_.transform(where[known]), colour[known]).predict(
        ridge.feature_map_.transform(where)
    )).max()),
    "chosen": float(np.ravel(tuned.length_scale_)[0]),
    "learned": [float(down), float(across)],
    "by_width": by_width,
}"""


class TestNotebook(NotebookContract):
    pass


def test_half_of_the_pixels_teach_the_other_half(values):
    assert values["known"] == values["pixels"] // 2
    errors = values["squares"]
    assert errors["the photograph"] == 0
    decibels = [
        -10 * np.log10(error)
        for name, error in errors.items()
        if name != "the photograph"
    ]
    np.testing.assert_allclose(values["curves"], decibels, rtol=1e-6)
    on_coordinates, on_waves, by_ridge = decibels
    # tenfold is 10 dB; another draw of weights or waves moves each by less than 1
    assert on_waves > on_coordinates + 2
    assert by_ridge > on_coordinates + 3
    assert abs(on_waves - by_ridge) < 2


def test_ridge_is_scikit_learns_on_the_same_features(values):
    # colours from 0 to 1; both solve the normal equations, whose condition is that of
    # Z'Z over the penalty
    assert values["to_scikit_learn"] < 1e-4


def test_length_scales_are_between_a_blur_and_noise(values):
    assert 0.01 < values["chosen"] < 0.1
    assert all(0.01 < scale < 0.1 for scale in values["learned"])
    found = [values["by_width"][D] for D in sorted(values["by_width"], key=int)]
    assert found == sorted(found)
