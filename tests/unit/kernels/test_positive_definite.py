"""Functions that books call positive definite in some dimensions and not in others."""

from __future__ import annotations

import numpy as np
import pytest

from rff_dist import Matern, check_positive_definite

FUNCTIONS = {
    "box": lambda r: r <= 1,
    "gaussian": lambda r: np.exp(-0.5 * r**2),
    "triangle": lambda r: np.maximum(0, 1 - r),
    "triangle squared": lambda r: np.maximum(0, 1 - r) ** 2,
    "parabola": lambda r: np.maximum(0, 1 - r**2),
    "sinc": np.sinc,
    "sinc squared": lambda r: np.sinc(r) ** 2,
    "matern": Matern(nu=2.2).of_distance,
    "power 1.9": lambda r: np.exp(-(r**1.9)),
    "power 2.1": lambda r: np.exp(-(r**2.1)),
    "cosine": np.cos,
    "three times": lambda r: 3 * np.exp(-r),
}
# functions that are kernels in any dimension are checked in one dimension and in this
# one
EVERYWHERE = 8
# The largest dimension in which it is positive definite (0: in none). Askey 1973: (1 -
# r)^δ for d ≤ 2δ - 1; Schoenberg 1938: exp(-r^p) for p ≤ 2 in all; sin(πr)/πr is the
# sphere's in 3, and its square, of the density 1/w³ and a ring at the edge in 5, is one
# in 5 but not in 7; cos r is one on a line alone.
LARGEST = {
    "box": 0,
    "triangle": 1,
    "triangle squared": 3,
    "parabola": 0,
    "sinc": 3,
    "sinc squared": 5,
    "power 2.1": 0,
    "cosine": 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_pass_up_to_the_dimension_that_books_say_and_fail_in_the_next(name):
    largest = LARGEST.get(name, EVERYWHERE)
    for n_features in {1, largest, largest + 1} - {0, EVERYWHERE + 1}:
        found = check_positive_definite(FUNCTIONS[name], n_features=n_features)
        assert found.positive_definite == (n_features <= largest), n_features


def test_the_width_of_the_function_does_not_matter():
    plain = check_positive_definite(FUNCTIONS["parabola"])
    for scale in (1e-6, 1e5):
        narrow = check_positive_definite(
            lambda r, scale=scale: FUNCTIONS["parabola"](r / scale)
        )
        assert narrow.positive_definite == plain.positive_definite
        assert narrow.worst_frequency * scale == pytest.approx(
            plain.worst_frequency, rel=0.02
        )


def test_the_box_fails_at_the_least_value_of_sin_w_over_w_by_bochners_theorem():
    """Its density is sin(εω)/(πω), least at εω = 4.4934, where tan(εω) = εω."""
    found = check_positive_definite(lambda r: r <= 0.5)
    assert found.worst_frequency == pytest.approx(4.4934 / 0.5, rel=0.01)
    # smoothed a little
    assert found.worst_density == pytest.approx(-0.2172 * 0.5 / np.pi, rel=0.05)


def test_the_density_is_in_the_units_that_integrate_to_k_at_zero():
    """N(0, 1) in each coordinate: the least value that is checked is at the highest
    frequency, smoothed.
    """
    for n_features in (2, 3):
        found = check_positive_definite(
            lambda r: -np.exp(-0.5 * r**2) + 2 * (r == 0),
            n_features=n_features,
            extent=600,
        )
        assert found.worst_frequency == pytest.approx(0, abs=0.05)
        assert found.worst_density == pytest.approx(
            -((2 * np.pi) ** (-n_features / 2)), rel=0.01
        )


def test_a_function_that_does_not_fall_passes_with_an_extent():
    assert check_positive_definite(np.ones_like, extent=1.0).positive_definite
