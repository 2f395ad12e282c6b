"""Additive kernels: a plain sum over columns and pairs, the laws of the weights, and
derivatives.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Additive, Cauchy, Gaussian, Matern, RationalQuadratic
from rff_dist.kernels.base import design_for
from rff_dist.kernels.names import find_kernel, kernel_from_dict, kernel_text
from tests.strategies import length_scales, weights

X = np.random.default_rng(0).standard_normal((11, 4))
Y = np.random.default_rng(1).standard_normal((7, 4))
# sums and products of numbers up to 1 in another order
ROUNDED = {"rtol": 1e-12, "atol": 1e-14}
BASES = [
    Gaussian(),
    Matern(nu=0.5),
    Matern(nu=1.5),
    Matern(nu=3.1),
    RationalQuadratic(shape=0.7),
]
scales = st.lists(length_scales, min_size=4, max_size=4)
of_columns = st.lists(st.just(0.0) | st.floats(0.01, 10), min_size=4, max_size=4)


def by_pairs(kernel: Additive, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return the Gram matrix as the definition says, with a loop over pairs of
    columns.
    """
    n = X.shape[1]
    of_columns = np.array(kernel.order_1)
    if of_columns.ndim == 0:
        of_columns = np.full(n, of_columns / n)
    w = np.array([*of_columns, kernel.order_2, kernel.dense])
    own = [
        kernel.kernel.with_length_scale(scale / np.sqrt(n)).on([j])(X, Y)
        for j, scale in enumerate(kernel.length_scales(n))
    ]
    pairs = [own[i] * own[j] for i, j in combinations(range(n), 2)]
    parts = [
        *own,
        np.mean(pairs, axis=0),
        kernel.kernel.with_length_scale(kernel.length_scale)(X, Y),
    ]
    return np.tensordot(w / w.sum(), parts, axes=1)


class TestValues:
    @pytest.mark.parametrize("base", BASES, ids=str)
    @given(scale=scales, w=weights)
    def test_it_is_the_weighted_sum_over_columns_pairs_and_all(self, base, scale, w):
        kernel = Additive(scale, kernel=base, order_1=w[0], order_2=w[1], dense=w[2])
        assert_allclose(kernel(X, Y), by_pairs(kernel, X, Y), **ROUNDED)

    @given(scale=scales, of_columns=of_columns, w=weights)
    def test_each_column_may_have_a_weight(self, scale, of_columns, w):
        kernel = Additive(scale, order_1=of_columns, order_2=w[1], dense=w[2] + 0.1)
        assert_allclose(kernel(X, Y), by_pairs(kernel, X, Y), **ROUNDED)
        assert_array_equal(np.diag(kernel(X)), 1.0)

    def test_a_weight_of_a_category_is_that_of_its_column(self):
        codes = X.copy()
        codes[:, 1] = np.arange(len(X)) % 3
        marked = np.column_stack(
            [np.delete(codes, 1, axis=1), np.eye(3)[np.arange(11) % 3]]
        )
        kernel = Additive(0.8, order_1=(1, 5, 2, 0), order_2=0, categories=(1,))
        one_hot = 5 * Matern(0.4).on([3, 4, 5])
        parts = Matern(0.4).on([0]) + 2 * Matern(0.4).on([1]) + one_hot + Matern(0.8)
        expected = parts(marked) / 9
        assert_allclose(kernel(codes), expected, **ROUNDED)

    @given(scale=scales)
    def test_only_dense_is_the_kernel_of_all_columns_to_the_last_bit(self, scale):
        dense = Additive(scale, kernel=Gaussian(), order_1=0, order_2=0, dense=2)
        assert_array_equal(dense(X, Y), Gaussian(scale)(X, Y))

    @given(w=weights)
    def test_of_one_column_it_is_the_base_kernel(self, w):
        kernel = Additive(0.7, order_1=w[0], order_2=w[1], dense=w[2])
        assert_array_equal(kernel(X[:, :1]), Matern(0.7)(X[:, :1]))

    def test_many_columns_with_huge_differences_give_zero_or_the_other_columns_share(
        self,
    ):
        far = np.zeros((1, 600))
        far[0, 0] = 1e200
        assert Additive(order_2=0, dense=0)(np.zeros((1, 600)), far) == pytest.approx(
            599 / 600
        )
        assert Additive(order_1=0, order_2=0)(np.zeros((1, 600)), far) == 0


class TestFrequencies:
    @pytest.mark.parametrize("base", BASES, ids=str)
    @pytest.mark.parametrize("design", ["iid", "quasi-monte-carlo"])
    def test_they_touch_one_column_two_or_all_as_the_weights_say(self, base, design):
        kernel = Additive(kernel=base, order_1=5, order_2=3, dense=2)
        touched = kernel.sample_frequencies(4, 4096, design=design, rng=1) != 0
        counts = touched.sum(axis=0)
        shares = [np.mean(counts == number) for number in (1, 2, 4)]
        assert shares == pytest.approx([0.5, 0.3, 0.2], abs=4 * np.sqrt(0.25 / 4096))
        for number, n_choices in ((1, 4), (2, 6)):
            sets, drawn = np.unique(
                touched[:, counts == number], axis=1, return_counts=True
            )
            assert sets.shape[1] == n_choices
            assert drawn / drawn.sum() == pytest.approx(
                np.full(n_choices, 1 / n_choices), abs=0.06
            )

    @pytest.mark.parametrize("design", ["iid", "quasi-monte-carlo"])
    def test_they_touch_each_column_as_often_as_its_weight_says(self, design):
        kernel = Additive(order_1=(3, 0, 1, 2), order_2=0, dense=4)
        touched = kernel.sample_frequencies(4, 4096, design=design, rng=1) != 0
        alone = touched[:, touched.sum(axis=0) == 1]
        assert alone.sum(axis=1) / 4096 == pytest.approx(
            [0.3, 0, 0.1, 0.2], abs=4 * np.sqrt(0.25 / 4096)
        )

    def test_the_automatic_design_spreads_the_columns_evenly(self):
        assert (
            design_for(Additive()).name
            == design_for(Additive().on([3, 1]) + Cauchy()).name
        )
        assert design_for(Additive()).name == "quasi-monte-carlo"
        assert (
            design_for(Gaussian() + Cauchy()).name == design_for(Cauchy()).name == "iid"
        )
        assert design_for(Gaussian()).name == "orthogonal"


class TestGradient:
    @pytest.mark.parametrize("order_2", [0, 0.7])
    def test_weights_of_columns_have_one_each(self, order_2):
        points = X.copy()
        points[:, 2] = np.arange(len(X)) % 3
        G = np.random.default_rng(2).standard_normal((len(X), len(X)))
        start = Additive(
            [0.7, 2.0, 0.9, 1.3],
            order_1=(0.3, 0, 1, 2),
            order_2=order_2,
            categories=(2,),
        )

        def kernel(parameters):
            moved = start.with_logits(parameters[4:])
            return moved.with_length_scale(np.exp(parameters[:4]))

        at = np.concatenate([np.log(start.length_scale), start.logits])
        step = 1e-5
        expected = [
            np.vdot(G, kernel(at + e)(points) - kernel(at - e)(points)) / (2 * step)
            for e in step * np.eye(len(at))
        ]
        assert_allclose(
            kernel(at).differentiate(points)[1](G), expected, rtol=1e-7, atol=1e-7
        )

    def test_a_weight_of_zero_has_no_logit_and_stays_zero(self):
        kernel = Additive(order_2=0)
        by_logits = kernel.differentiate(X)[1](
            np.random.default_rng(0).standard_normal((11, 11))
        )[X.shape[1] :]
        assert len(by_logits) == len(kernel.logits) == 2
        assert abs(by_logits.sum()) < 1e-14
        moved = kernel.with_logits(np.array([0.0, np.log(3.0)]))
        assert (moved.order_1, moved.order_2, moved.dense) == pytest.approx(
            (0.25, 0.0, 0.75)
        )

    def test_a_rough_kernel_has_none(self):
        assert not Additive(kernel=Matern(nu=0.5)).differentiable


@pytest.mark.parametrize("base", BASES, ids=str)
def test_an_additive_kernels_text_is_read_again(base):
    kernel = Additive(kernel=base, order_1=0.25, dense=0)
    assert find_kernel(kernel_text(kernel)) == kernel
    assert kernel_text(Additive()) == "additive"
    of_columns = Additive(kernel=base, order_1=(0.1, 0, 1 / 3), order_2=0)
    assert find_kernel(kernel_text(of_columns)) == of_columns
    assert kernel_from_dict(of_columns.to_dict()) == of_columns
