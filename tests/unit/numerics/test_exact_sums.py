"""ExactSum against Python's rational numbers: nothing is rounded, and equal sums have
equal digits.
"""

import functools
import hashlib
import math
from fractions import Fraction
from operator import add

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from rff_dist.errors import DataError, StatisticsError
from rff_dist.numerics.exact_sums import (
    ExactSum,
    exact_sum_arrays,
    exact_sum_from_arrays,
)
from tests.refusals import refuses
from tests.strategies import float_arrays

LARGEST = np.finfo(np.float64).max
SMALLEST = 5e-324
TERMS = st.lists(float_arrays(3), min_size=1, max_size=6)


def exact(total, index):
    """Read one sum from its digits, as the class's docstring defines them."""
    return sum(
        (Fraction(int(digit)) * Fraction(2) ** (32 * (total.lowest + k)))
        for k, digit in enumerate(total.digits[(slice(None), *index)])
    )


def summed(terms):
    return functools.reduce(add, map(ExactSum.of, terms))


def digest(total):
    hasher = hashlib.sha256()
    total.update_digest(hasher)
    return hasher.hexdigest()


class TestExactness:
    @given(TERMS)
    @example(
        [
            np.array([LARGEST, -LARGEST, SMALLEST]),
            np.array([-SMALLEST, -SMALLEST, -LARGEST]),
        ]
    )
    @example([np.array([1.0, -1.0, 0.0]), np.array([-1.0, 1.0, -0.0])])
    @example(
        [np.array([2.0**32, 2.0**-32, 2.0**63]), np.array([-1.0, -1.0, -(2.0**63)])]
    )
    def test_sums_are_those_of_rational_numbers(self, terms):
        total = summed(terms)
        for i in range(3):
            assert exact(total, (i,)) == sum(Fraction(float(term[i])) for term in terms)

    @given(float_arrays(4))
    def test_a_single_value_comes_back_unchanged(self, values):
        assert_array_equal(ExactSum.of(values).value(), values)

    @given(TERMS)
    def test_value_is_within_one_unit_in_the_last_place(self, terms):
        # six terms of the largest size would leave float64
        halved = [term / 8 for term in terms]
        got = summed(halved).value()
        for i in range(3):
            true = math.fsum(float(term[i]) for term in halved)  # correctly rounded
            assert abs(Fraction(float(got[i])) - Fraction(true)) <= Fraction(
                math.ulp(true)
            )

    @pytest.mark.parametrize("shape", [(), (0,), (2, 0), (2, 3, 4)])
    def test_any_shape_can_be_summed(self, shape):
        values = np.random.default_rng(0).standard_normal(shape)
        total = ExactSum.of(values) + ExactSum.zeros(shape)
        assert total.shape == shape
        assert_array_equal(total.value(), values)


class TestLaws:
    @given(TERMS, st.randoms(use_true_random=False), float_arrays(3))
    def test_equal_sums_have_equal_digits_by_any_route(self, terms, random, detour):
        shuffled = list(terms)
        random.shuffle(shuffled)
        by_detour = (summed(shuffled) + ExactSum.of(detour)) - ExactSum.of(detour)
        direct = summed(terms)
        assert direct - by_detour == ExactSum.zeros((3,))
        assert by_detour.lowest == direct.lowest
        assert_array_equal(by_detour.digits, direct.digits)
        assert digest(by_detour) == digest(direct)

    @given(TERMS, st.integers(1, 4))
    def test_sums_by_group_are_the_groups_sums_to_the_bit(self, terms, n_groups):
        values = np.concatenate(terms)
        groups = np.arange(len(values)) ** 2 % n_groups
        found = ExactSum.by_group(values, groups, n_groups)
        one_by_one = ExactSum.zeros((n_groups,))
        for value, group in zip(values, groups, strict=True):
            one_by_one += ExactSum.of(
                np.where(np.arange(n_groups) == group, value, 0.0)
            )
        assert found == one_by_one

    @given(TERMS)
    def test_the_form_is_canonical(self, terms):
        digits = summed(terms).digits
        assert ((digits[:-1] >= 0) & (digits[:-1] < 2**32)).all()
        assert np.isin(digits[-1], (0, -1)).all()
        if len(digits) > 1:
            assert digits[0].any()  # the lowest digit is needed
            # and the highest one
            assert (digits[-2] != (digits[-1] & (2**32 - 1))).any()

    @given(float_arrays(3), float_arrays(3))
    def test_sums_differ_wherever_a_rational_number_does(self, a, b):
        # -0.0 equals 0.0
        assert (ExactSum.of(a) == ExactSum.of(b)) == bool((a == b).all())

    def test_sums_grow_far_beyond_float64_and_come_back(self):
        doubled = [ExactSum.of(np.array([LARGEST, -LARGEST]))]
        for _ in range(70):
            doubled.append(doubled[-1] + doubled[-1])
        assert exact(doubled[-1], (0,)) == Fraction(LARGEST) * 2**70
        back = doubled.pop()
        for term in doubled:  # 2**70 - (1 + 2 + … + 2**69) = 1
            back -= term
        assert_array_equal(back.value(), [LARGEST, -LARGEST])


class TestRefusals:
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_values_that_are_not_finite_are_refused(self, bad):
        with refuses(DataError, "not finite"):
            ExactSum.of(np.array([1.0, bad]))

    def test_a_sum_that_float64_cannot_hold_is_not_read(self):
        largest = ExactSum.of(np.array([0.0, -LARGEST]))
        with refuses(DataError, "larger than float64"):
            (largest + largest).value()

    def test_sums_of_different_shapes_are_refused(self):
        with refuses(StatisticsError, "2", "3"):
            ExactSum.zeros((2,)) + ExactSum.zeros((3,))


@given(TERMS)
def test_stored_sums_come_back_equal(terms):
    total = summed(terms)
    arrays = exact_sum_arrays("cross", total)
    assert set(arrays) == {"cross_lowest", "cross_digits"}
    assert exact_sum_from_arrays("cross", arrays) == total
