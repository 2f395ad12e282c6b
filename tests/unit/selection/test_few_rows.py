"""The choice of alpha by single rows' errors, against plain loops over rows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist.selection.row_folds import choose_by_rows

ROWS = 40


def errors(n_targets=2, *, seed=0):
    """Return squared errors in which alphas hardly differ, except the first, but rows
    do.
    """
    rng = np.random.default_rng(seed)
    of_row = rng.exponential(1.0, (n_targets, ROWS))
    noise = 0.3 * rng.standard_normal((7, n_targets, ROWS))
    bend = np.array([2.0, 0.05, 0.0, 0.02, 0.05, 0.3, 1.0])[:, np.newaxis, np.newaxis]
    return np.square(of_row + noise) + bend, rng.uniform(0.2, 3.0, ROWS)


def by_hand(losses, weights):
    """Return the last alpha within a standard error of the least, by the limit of the
    bootstrap.
    """
    total = weights.sum()
    means = [
        sum(w * loss for w, loss in zip(weights, row, strict=True)) / total
        for row in losses
    ]
    best = int(np.argmin(means))
    found = []
    for place, row in enumerate(losses):
        above = row - losses[best]
        mean = (weights * above).sum() / total
        variance = (
            sum((w * (one - mean)) ** 2 for w, one in zip(weights, above, strict=True))
            / total**2
        )
        if mean <= np.sqrt(variance):
            found.append(place)
    return max(found)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_alpha_within_a_standard_error_of_the_difference_is_taken(seed):
    squares, weights = errors(seed=seed)
    variance = np.array([1.0, 4.0])
    places, _ = choose_by_rows(squares, weights, variance, per_target=False)
    shared = by_hand((squares / variance[:, np.newaxis]).mean(axis=1), weights)
    assert_array_equal(places, [shared, shared])
    assert np.argmin(squares.mean(axis=(1, 2))) <= shared < 6
    own, _ = choose_by_rows(squares, weights, variance, per_target=True)
    assert_array_equal(
        own, [by_hand(squares[:, target], weights) for target in range(2)]
    )


def test_a_target_has_an_alpha_of_its_own_where_that_saves_more_than_chance():
    squares, weights = errors()
    # the least alpha is best
    squares[:, 1] = squares[2, 1] * np.linspace(1.0, 9.0, 7)[:, np.newaxis]
    squares[:, 0] = squares[2, 0] * np.linspace(9.0, 1.0, 7)[:, np.newaxis]
    variance = np.ones(2)
    places, _ = choose_by_rows(squares, weights, variance, per_target="auto")
    assert_array_equal(places, [6, 0])
    alike = np.repeat(squares[:, :1], 2, axis=1)
    places, _ = choose_by_rows(alike, weights, variance, per_target="auto")
    assert_array_equal(places, [6, 6])


def test_what_all_rows_gain_alike_is_nothing_where_it_is_immaterial():
    of_row = np.random.default_rng(0).exponential(1.0, ROWS)
    excess = np.array([0.0, 1e-4, 1e-3, 2.9e-3, 3.1e-3, 0.1])
    squares = of_row * (1.0 + excess[:, np.newaxis, np.newaxis])
    # differences of rows are in proportion to their errors, so that a standard error
    # tells alphas apart
    assert excess[1] > (excess[1] * of_row).std() / of_row.mean() / np.sqrt(ROWS)
    places, _ = choose_by_rows(squares, np.ones(ROWS), np.ones(1), per_target=False)
    assert_array_equal(places, [3])


def test_weights_that_repeat_rows_are_rows_repeated():
    squares, _ = errors()
    times = np.random.default_rng(1).integers(0, 4, ROWS)
    repeated = np.repeat(squares, times, axis=2)
    variance = np.ones(2)
    expected, _ = choose_by_rows(
        repeated, np.ones(repeated.shape[2]), variance, per_target="auto"
    )
    found, _ = choose_by_rows(
        squares,
        times.astype(float),
        variance,
        per_target="auto",
        frequency_weights=True,
    )
    assert_array_equal(found, expected)


def test_the_row_that_errs_most_is_told_with_its_share():
    squares, weights = errors()
    squares[:, :, 17] += 1e3
    places, doubts = choose_by_rows(squares, weights, np.ones(2), per_target=False)
    assert doubts.heaviest_row == 17
    own = weights * squares[places[0]].mean(axis=0)
    assert_allclose(doubts.share, own[17] / own.sum(), rtol=1e-12)
    alike = np.full_like(squares, 2.0)
    _, doubts = choose_by_rows(alike, np.ones(ROWS), np.ones(2), per_target=False)
    assert doubts.share == pytest.approx(1 / ROWS)
    assert doubts.saved_at_most == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_alpha_that_may_save_most_is_told_with_what_it_saves(seed):
    squares, weights = errors(1, seed=seed)
    # so that they tell little
    squares *= np.random.default_rng(seed).exponential(1.0, squares.shape)
    places, doubts = choose_by_rows(squares, weights, np.ones(1), per_target=False)
    losses = squares[:, 0]
    shares = weights / weights.sum()
    chosen = losses[places[0]]
    bounds = []
    for other in losses:
        saved = shares @ (chosen - other)
        bounds.append(saved + np.sqrt(np.sum((shares * (chosen - other - saved)) ** 2)))
    assert doubts.other == np.argmax(bounds)
    assert_allclose(doubts.saved_at_most, max(bounds) / (shares @ chosen), rtol=1e-12)
    assert 0.0 <= doubts.saved_at_most < 1.0
    assert_allclose(
        doubts.saved,
        shares @ (chosen - losses[doubts.other]) / (shares @ chosen),
        rtol=1e-9,
    )


def test_alphas_that_leave_a_row_undetermined_and_constant_targets_have_no_say():
    squares, weights = errors()
    undetermined = squares.copy()
    undetermined[:3, :, 5] = np.inf
    places, _ = choose_by_rows(undetermined, weights, np.ones(2), per_target=False)
    expected, _ = choose_by_rows(squares[3:], weights, np.ones(2), per_target=False)
    assert_array_equal(places, expected + 3)
    constant, _ = choose_by_rows(
        squares, weights, np.array([1.0, 0.0]), per_target=True
    )
    alone, _ = choose_by_rows(squares[:, :1], weights, np.ones(1), per_target=False)
    assert_array_equal(constant, [alone[0]] * 2)
    undetermined[:, :, 5] = np.inf
    assert choose_by_rows(undetermined, weights, np.ones(2), per_target=False) is None
    assert choose_by_rows(squares, weights, np.zeros(2), per_target=False) is None
    assert choose_by_rows(0.0 * squares, weights, np.ones(2), per_target=False) is None
