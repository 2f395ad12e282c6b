"""The min kernel by its definition, and the interval that it takes from the data."""

from __future__ import annotations

import numpy as np
import pytest

from rff_dist import Min

EXACT = 1e-12
X = np.random.default_rng(0).standard_normal((30, 4))
Y = np.random.default_rng(1).standard_normal((20, 4))


class TestMin:
    def test_it_sums_the_smaller_values_of_the_columns(self):
        left = abs(X)
        right = abs(Y)
        expected = np.minimum(left[:, np.newaxis], right).sum(axis=2)
        np.testing.assert_allclose(Min()(left, right), expected, rtol=EXACT)

    def test_it_counts_from_the_lower_end_and_inputs_beyond_the_interval_count_as_its_ends(
        self,
    ):
        kernel = Min(lower=[-1.0, 0.0], upper=2.0)
        points = np.array([[-5.0, -5.0], [0.5, 1.0], [9.0, 9.0]])
        assert kernel(points).tolist() == [[0, 0, 0], [0, 2.5, 2.5], [0, 2.5, 5]]
        assert kernel.diagonal(points).tolist() == [0, 2.5, 5]

    @pytest.mark.parametrize(
        ("kernel", "bound"),
        [
            (Min(), Min([-2, 6], [1, 7])),
            (Min(upper=5), Min([-2, 0], 5)),
            (Min(lower=3), Min(3, [6, 7])),
            (Min(0, 1), Min(0, 1)),
            (Min(lower=[0, 6.5]), Min([0, 6.5], [1, 7])),
        ],
        ids=str,
    )
    def test_the_datas_range_fills_in_the_ends_that_were_not_given(self, kernel, bound):
        assert kernel.bind(np.array([-2.0, 6.0]), np.array([1.0, 7.0])) == bound
        assert kernel.is_bound == (kernel == bound)

    def test_a_constant_column_gets_some_interval(self):
        for value in (0.0, -3.0, 1e300):
            bound = Min().bind(np.array([value]), np.array([value]))
            assert bound.is_bound
            assert bound([[value]]).tolist() == [[0.0]]
