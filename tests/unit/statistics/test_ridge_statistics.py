"""Sufficient statistics: equal to float64 products, exact under + and -, refused when
they do not add up.
"""

import functools
import math
from dataclasses import replace
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import RidgeStatistics
from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import StatisticsError
from rff_dist.features.fourier import FourierFeatureMap
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.reading import trace_of
from rff_dist.statistics.specs import FINE_FRACTION_BITS, FRACTION_BITS, StatisticsSpec
from tests.covering import covering
from tests.refusals import refuses
from tests.small_statistics import (
    LIMB_ROWS,
    N_FEATURES,
    accumulation,
    by_hand,
    feature_map,
    part,
    random_rows,
)
from tests.strategies import row_sets

# the statistics round features' products once; NumPy's Z'Z rounds about as much
EXACT = 1e-12
SEVERAL_TILES = 1_030  # three strips of output tiles, the last one 6 wide


def assert_close(got, expected, tolerance=EXACT):
    """Compare within `tolerance` of the largest expected number."""
    expected = np.asarray(expected)
    assert np.shape(got) == expected.shape
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


class TestAgainstFloat64:
    @pytest.mark.parametrize(
        ("map_name", "weights", "n_components"),
        covering(["pairs", "phases"], [0, 4], [2, 12, 40, 512, 514, SEVERAL_TILES]),
        ids=str,
    )
    def test_all_sums_are_those_of_the_explicit_features(
        self, n_components, weights, map_name
    ):
        features = feature_map(n_components, map_name)
        rows = random_rows(200, weights=weights)
        offset = (100.0, -3.0)
        rows = replace(rows, y=rows.y + offset)
        state = accumulation(features, weight_exponent=2, target_offset=offset)
        statistics = accumulate_rows(rows, state)
        Z = features.transform(rows.X)
        w = rows.sample_weight
        w = np.ones(200) if w is None else w
        assert statistics.n_samples == 200
        assert_close(statistics.ZtZ(), Z.T @ (Z * w[:, None]))
        assert_close(statistics.Zty(), Z.T @ (rows.y * w[:, None]))
        assert_close(statistics.yty(), np.diagonal(rows.y.T @ (rows.y * w[:, None])))
        assert_close(statistics.Zt1(), Z.T @ w)
        assert_close(statistics.target_means(), np.average(rows.y, axis=0, weights=w))
        assert statistics.sum_of_weights == pytest.approx(w.sum(), rel=1e-15)
        assert_array_equal(statistics.ZtZ(), statistics.ZtZ().T)

    def test_a_vector_of_targets_gives_a_vector_and_a_number(self):
        features = feature_map()
        rows = random_rows(50, 1)
        statistics = accumulate_rows(
            rows, accumulation(features, 1, one_dimensional=True, target_offset=(0.5,))
        )
        assert statistics.Zty().shape == (12,)
        assert_close(statistics.Zty(), features.transform(rows.X).T @ rows.y[:, 0])
        assert isinstance(statistics.yty(), float)
        assert statistics.yty() == pytest.approx(
            float(rows.y[:, 0] @ rows.y[:, 0]), rel=EXACT
        )
        assert statistics.normal_equations().moments.shape == (12, 1)


class TestLaws:
    @given(
        row_sets(n_features=N_FEATURES, n_targets=2, weighted=True),
        row_sets(n_features=N_FEATURES, n_targets=2, weighted=True),
    )
    def test_forgetting_rows_leaves_no_trace(self, some, others):
        state = accumulation(feature_map())
        s = accumulate_rows(some, state)
        t = accumulate_rows(others, state)
        assert (s + t) - t == s
        assert ((s + t) - t).digest() == s.digest()
        assert s - s == RidgeStatistics.empty(state.spec)
        assert s + RidgeStatistics.empty(state.spec) == s

    def test_operands_are_left_as_they_were(self):
        state = accumulation(feature_map())
        s, t = (accumulate_rows(random_rows(20, seed=seed), state) for seed in range(2))
        before = s.digest(), t.digest()
        _ = s + t, s - t
        assert (s.digest(), t.digest()) == before


def integers(statistics):
    """Read the Gram as Python's integers, as the class's docstring defines them."""
    high = (
        [0] * len(statistics.low)
        if statistics.high is None
        else statistics.high.tolist()
    )
    return [
        low + h * 2**62 for low, h in zip(statistics.low.tolist(), high, strict=True)
    ]


@st.composite
def grams(draw, sizes=(LIMB_ROWS,)):
    """Return a Gram and the number of its rows: a row adds at most 1, which is 2**39 on
    the grid.
    """
    n_samples = draw(st.sampled_from(sizes))
    most = n_samples * 2**39
    return draw(st.lists(st.integers(-most, most), min_size=4, max_size=4)), n_samples


class TestTwoLimbs:
    @given(
        # one limb holds LIMB_ROWS rows, and no more
        st.lists(grams((1, LIMB_ROWS - 1, LIMB_ROWS)), min_size=1, max_size=9),
        st.randoms(use_true_random=False),
    )
    def test_sums_beyond_one_limb_are_those_of_big_integers(
        self, sizes_and_grams, random
    ):
        terms = [by_hand(*one) for one in sizes_and_grams]
        random.shuffle(terms)
        total = functools.reduce(add, terms)
        assert integers(total) == [
            sum(column) for column in zip(*map(integers, terms), strict=True)
        ]
        assert (total.high is None) == (total.n_samples <= LIMB_ROWS)
        if total.high is not None:
            assert ((total.low >= 0) & (total.low < 2**62)).all()
        for term in terms[1:]:
            total -= term
        assert (total, total.high, total.digest()) == (
            terms[0],
            None,
            terms[0].digest(),
        )

    @pytest.mark.parametrize("n_blocks", [1, 2, 3, 5])
    def test_rows_added_in_place_give_the_bits_of_sums(self, n_blocks):
        # 2**13 rows fill one limb of the fine grid; a column of ones fills it to the
        # last bit
        state = accumulation(feature_map(), fraction_bits=FINE_FRACTION_BITS)
        blocks = [
            random_rows(state.spec.int64_rows // 2 * (1 + i % 2), seed=i)
            for i in range(n_blocks)
        ]
        total = None
        for rows in blocks:
            total = accumulate_rows(rows, state, total)
        expected = functools.reduce(
            add, [accumulate_rows(rows, state) for rows in blocks]
        )
        assert total == expected
        assert total.digest() == expected.digest()
        assert (total.n_tiles, total.high is None) == (
            expected.n_tiles,
            expected.high is None,
        )

    def test_two_limbs_are_read_in_the_right_place(self):
        total = by_hand([2**62, -(2**62), -(2**62), 2**61], LIMB_ROWS)
        for _ in range(3):
            total += total
        expected = (
            np.array([[2.0**62, -(2.0**62)], [-(2.0**62), 2.0**61]]) * 8 / 2.0**39
        )
        assert_array_equal(total.ZtZ(), expected)
        assert trace_of(total) == expected[0, 0] + expected[1, 1]


class TestRefusals:
    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"n_components": 14}, ["n_components", 12, 14]),
            ({"n_targets": 3}, ["n_targets", 2, 3]),
            ({"feature_digest": "other"}, ["feature_digest"]),
            ({"scales": ((12, 0.5),)}, ["scales"]),
            ({"weight_exponent": 3}, ["weight_exponent", 0, 3]),
            ({"fraction_bits": 49}, ["fraction_bits", 39, 49]),
            ({"frequency_weights": True}, ["frequency_weights", False, True]),
            ({"target_offset": (1.0, 2.0)}, ["target_offset", "(1.0, 2.0"]),
            ({"one_dimensional": True}, ["one_dimensional", False, True]),
        ],
    )
    def test_statistics_of_different_things_are_refused_by_field(self, change, field):
        spec = accumulation(feature_map()).spec
        left = RidgeStatistics.empty(spec)
        right = RidgeStatistics.empty(replace(spec, **change))
        for combine in (RidgeStatistics.__add__, RidgeStatistics.__sub__):
            with refuses(StatisticsError, *field) as refusal:
                combine(left, right)
            # no field that is equal, and the advice
            assert str(refusal.value).count(" and ") <= 1 + 1
        assert left != right

    def test_forgetting_more_rows_than_held_is_refused(self):
        state = accumulation(feature_map())
        few = accumulate_rows(random_rows(5), state)
        many = accumulate_rows(random_rows(6), state)
        with refuses(StatisticsError, "6 rows", "5"):
            few - many

    def test_nothing_is_solved_without_rows_or_weight(self):
        state = accumulation(feature_map())
        with refuses(StatisticsError, "0 rows"):
            RidgeStatistics.empty(state.spec).normal_equations()
        weightless = replace(random_rows(7), sample_weight=np.zeros(7))
        with refuses(StatisticsError, "7 rows", "0"):
            accumulate_rows(weightless, state).normal_equations(fit_intercept=False)


class TestCompleteness:
    @pytest.fixture
    def state(self):
        return accumulation(feature_map(514))

    def test_a_gram_that_lacks_a_row_which_was_counted_is_found(self, state):
        whole = accumulate_rows(random_rows(300), state)
        damaged = replace(whole, low=accumulate_rows(random_rows(299), state).low)
        with refuses(StatisticsError, "trace of U'U"):
            damaged.check_complete(300, state.feature_map)

    @pytest.mark.parametrize("place", [0, 513 + 1], ids=["first tile", "last tile"])
    def test_a_damaged_diagonal_is_found_in_any_tile(self, state, place):
        whole = accumulate_rows(random_rows(300), state)
        low = whole.low.copy()
        low[0 if place == 0 else -1] += int(0.01 * 300 * 257 * 2**39)
        with refuses(StatisticsError, "trace of U'U"):
            replace(whole, low=low).check_complete(300, state.feature_map)


class TestNormalEquations:
    @pytest.mark.parametrize(
        ("fit_intercept", "offset", "weights", "n_components"),
        covering([True, False], [(), (3.0, -4.0)], [0, 4], [12, SEVERAL_TILES]),
        ids=str,
    )
    def test_they_are_numpys_centred_or_plain_products(
        self, n_components, weights, offset, fit_intercept
    ):
        features = feature_map(n_components)
        rows = random_rows(400, weights=weights)
        statistics = accumulate_rows(
            rows, accumulation(features, weight_exponent=2, target_offset=offset)
        )
        equations = statistics.normal_equations(fit_intercept=fit_intercept)
        Z = features.transform(rows.X)
        y = rows.y
        w = np.ones(400) if rows.sample_weight is None else rows.sample_weight
        z_mean, y_mean = (
            fit_intercept * np.average(one, axis=0, weights=w) for one in (Z, y)
        )
        Z = Z - z_mean
        y = y - y_mean
        assert_close(equations.gram, Z.T @ (Z * w[:, None]))
        assert_close(equations.moments, Z.T @ (y * w[:, None]))
        assert_close(equations.total_sum_of_squares, (y**2 * w[:, None]).sum(axis=0))
        assert_close(equations.feature_means, z_mean)
        assert_close(equations.target_means, y_mean)
        assert (equations.n_samples, equations.fit_intercept) == (400, fit_intercept)

    @pytest.mark.parametrize("fit_intercept", [True, False])
    @pytest.mark.parametrize("n_components", [12, SEVERAL_TILES])
    def test_without_those_of_some_rows_they_are_those_of_the_others(
        self, n_components, fit_intercept
    ):
        features = feature_map(n_components)
        rows = random_rows(400, weights=4)
        rows.y[:150] += 2.0  # groups whose means differ
        state = accumulation(features, weight_exponent=2, target_offset=(1.0, -1.0))
        some, others = (
            accumulate_rows(part(rows, index), state).normal_equations(
                fit_intercept=fit_intercept
            )
            for index in (slice(0, 150), slice(150, 400))
        )
        whole = accumulate_rows(rows, state).normal_equations(
            fit_intercept=fit_intercept
        )
        left = whole.without(some)
        for name in (
            "gram",
            "moments",
            "total_sum_of_squares",
            "feature_means",
            "target_means",
        ):
            assert_close(getattr(left, name), getattr(others, name))
        assert (left.n_samples, left.fit_intercept) == (250, fit_intercept)
        assert left.sum_of_weights == pytest.approx(others.sum_of_weights)

    def test_targets_with_a_mean_of_1e9_keep_their_residual(self):
        rows = random_rows(500)
        noise = rows.y
        far = replace(rows, y=np.round(noise, 3) + 1e9)
        offset = tuple(far.y.mean(axis=0))
        equations = accumulate_rows(
            far, accumulation(feature_map(), target_offset=offset)
        ).normal_equations()
        centred = far.y - far.y.mean(axis=0)  # exact to 1e-7, half a last place of 1e9
        Z = feature_map().transform(rows.X)
        assert_allclose(
            equations.total_sum_of_squares, (centred**2).sum(axis=0), rtol=1e-9
        )
        assert_allclose(equations.moments, (Z - Z.mean(axis=0)).T @ centred, atol=1e-6)
        true_means = [math.fsum(column) / 500 for column in far.y.T]
        assert_allclose(equations.target_means, true_means, rtol=1e-15)

    def test_a_constant_target_has_no_sum_of_squares(self):
        rows = replace(random_rows(300), y=np.full((300, 2), 7.3))
        state = accumulation(feature_map(), target_offset=(7.3, 7.3))
        equations = accumulate_rows(rows, state).normal_equations()
        assert_array_equal(equations.total_sum_of_squares, 0.0)
        assert_array_equal(equations.moments, 0.0)


class TestObservations:
    def test_weights_that_repeat_rows_count_as_observations(self):
        rows = replace(random_rows(10), sample_weight=np.arange(10.0))
        # the first row's weight is 0
        for frequency_weights, expected in ((True, 45), (False, 9)):
            state = accumulation(
                feature_map(), weight_exponent=4, frequency_weights=frequency_weights
            )
            for fit_intercept in (True, False):
                equations = accumulate_rows(rows, state).normal_equations(
                    fit_intercept=fit_intercept
                )
                assert equations.n_samples == expected
                assert equations.sum_of_weights == 45

    @pytest.mark.parametrize("frequency_weights", [True, False])
    def test_rows_without_weight_leave_all_but_the_count_of_rows_as_it_is(
        self, frequency_weights
    ):
        state = accumulation(
            feature_map(), weight_exponent=2, frequency_weights=frequency_weights
        )
        weighted = replace(random_rows(40), sample_weight=np.arange(40.0) % 4)
        counts = weighted.sample_weight > 0
        whole = accumulate_rows(weighted, state)
        alone = accumulate_rows(part(weighted, counts), state)
        assert (whole.n_samples, alone.n_samples) == (40, 30)
        assert (
            whole.n_observations
            == alone.n_observations
            == (60 if frequency_weights else 30)
        )

    def test_observations_add_up_and_are_forgotten_exactly(self):
        state = accumulation(feature_map(), weight_exponent=2)
        parts = [
            accumulate_rows(
                replace(random_rows(20, seed=seed), sample_weight=np.arange(20.0) % 3),
                state,
            )
            for seed in range(2)
        ]
        together = parts[0] + parts[1]
        assert (
            together.n_observations == sum(part.n_observations for part in parts) == 26
        )
        assert together - parts[1] == parts[0]
        assert replace(together, n_observations=25) != together
        assert replace(together, n_observations=25).digest() != together.digest()

    def test_weights_of_classes_repeat_no_row(self):
        own = np.array([2.0, 0.0, 1.0, 3.0])
        rows = replace(
            random_rows(4), sample_weight=own * [0.5, 2.0, 0.5, 0.0], own_weight=own
        )
        state = accumulation(feature_map(), frequency_weights=True)
        assert accumulate_rows(rows, state).n_observations == 3


class TestGrid:
    @pytest.mark.parametrize("fraction_bits", [20, FRACTION_BITS, FINE_FRACTION_BITS])
    def test_the_gram_is_off_by_no_more_than_it_says(self, fraction_bits):
        features = feature_map(200)
        rows = random_rows(1_000)
        statistics = accumulate_rows(
            rows, accumulation(features, fraction_bits=fraction_bits)
        )
        equations = statistics.normal_equations(fit_intercept=False)
        Z = features.transform(rows.X)
        error = np.linalg.norm(equations.gram - Z.T @ Z, 2)
        float64 = 1e-14 * np.linalg.norm(Z.T @ Z, 2)
        assert error <= equations.gram_error + float64
        # the grid is coarse, so the bound must not be much larger than the error
        if fraction_bits == 20:
            assert error > equations.gram_error / 10

    def test_a_block_may_fill_one_limb(self):
        """With phases, x = 0 and b = 0 all entries are 1: the largest possible sums."""
        ones = FourierFeatureMap(np.zeros((1, 2), np.float32), np.zeros(2, np.float32))
        n = 2**13
        spec = StatisticsSpec(
            2, 1, ones.digest(), ((2, 1.0),), fraction_bits=FINE_FRACTION_BITS
        )
        rows = Rows(Block(0, 0, n), np.zeros((n, 1)), np.ones((n, 1)))
        statistics = accumulate_rows(rows, Accumulation(ones, spec))
        assert integers(statistics) == [2**62] * 4
        assert integers(statistics + statistics) == [2**63] * 4
        assert_array_equal((statistics + statistics).ZtZ(), 2.0 * n)
