"""Sums, products, multiples and kernels on columns: NumPy's arithmetic on the Gram
matrices.
"""

from __future__ import annotations

import json
import operator
import pickle
from pydoc import locate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Linear, draw_feature_map
from rff_dist.kernels.base import Constant, Kernel, Product, Scaled, ShiftInvariant, Sum
from rff_dist.kernels.names import kernel_from_dict
from rff_dist.kernels.registry import KERNELS
from rff_dist.kernels.stationary import Cauchy, Gaussian, Matern, with_length_scale
from tests.strategies import composite_kernels, kernels

N_FEATURES = 3
X = np.random.default_rng(0).uniform(0, 3, (12, N_FEATURES))  # not negative, for Min
Y = np.random.default_rng(1).uniform(0, 3, (9, N_FEATURES))
ROUNDED = {"rtol": 1e-12, "atol": 1e-12}  # a few sums and products in another order
NAMES = {
    "Constant": Constant,
    **{path.rpartition(".")[2]: locate(path) for path in KERNELS.values()},
}

composites = composite_kernels(N_FEATURES)


class TestArithmetic:
    @pytest.mark.parametrize("operation", [operator.add, operator.mul])
    @given(composites, composites)
    def test_the_gram_of_a_sum_or_product_is_that_of_the_grams(self, operation, a, b):
        assert_allclose(operation(a, b)(X, Y), operation(a(X, Y), b(X, Y)), **ROUNDED)

    @given(composites, st.floats(1e-3, 1e3))
    def test_a_number_multiplies_and_adds(self, kernel, number):
        for scaled in (number * kernel, kernel * number, np.float64(number) * kernel):
            assert_allclose(scaled(X, Y), number * kernel(X, Y), **ROUNDED)
        for shifted in (number + kernel, kernel + number, np.float64(number) + kernel):
            assert_allclose(shifted(X, Y), number + kernel(X, Y), **ROUNDED)

    @given(composites, st.permutations([5, 0, 7]))
    def test_a_kernel_on_columns_is_the_kernel_of_these_columns(self, kernel, columns):
        left = np.full((12, 9), np.nan)
        right = np.full((9, 9), np.nan)
        left[:, columns] = X
        right[:, columns] = Y
        assert_array_equal(kernel.on(columns)(left, right), kernel(X, Y))

    @given(composites)
    def test_multiplied_out_terms_have_the_same_gram(self, kernel):
        total = np.zeros((len(X), len(Y)))
        for term in kernel.terms():
            product = np.full((len(X), len(Y)), term.weight)
            for factor in term.factors:
                assert not isinstance(factor, Sum | Product | Scaled | Constant)
                product *= factor(X, Y)
            total += product
        assert_allclose(total, kernel(X, Y), **ROUNDED)

    @given(composites)
    def test_the_diagonal_is_the_grams(self, kernel):
        assert_allclose(kernel.diagonal(X), np.diagonal(kernel(X)), **ROUNDED)

    def test_a_product_has_a_spectral_measure_where_each_factor_has(self):
        assert isinstance(Gaussian() * Matern().on([0]), ShiftInvariant)
        assert isinstance((Gaussian() * Matern()).on([1]), ShiftInvariant)
        assert not isinstance(Gaussian() * Linear(), ShiftInvariant)
        assert not isinstance(Linear().on([1]), ShiftInvariant)


class TestDescriptions:
    @given(composites)
    def test_a_kernel_reads_as_it_was_typed(self, kernel):
        assert eval(repr(kernel), NAMES) == kernel

    @given(composites | kernels())
    def test_a_kernel_survives_json_and_pickle(self, kernel):
        for copy in (
            kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))),
            pickle.loads(pickle.dumps(kernel)),
        ):
            assert copy == kernel
            assert hash(copy) == hash(kernel)
            assert type(copy) is type(kernel)


@pytest.mark.parametrize(
    "other", [True, "1", None, 1j, np.complex128(1), np.ones(2), [1.0]], ids=repr
)
def test_what_is_no_number_is_no_operand(other):
    for operation in (
        lambda: Gaussian() + other,
        lambda: other + Gaussian(),
        lambda: Gaussian() * other,
        lambda: other * Gaussian(),
    ):
        with pytest.raises(TypeError):
            operation()


def test_kernels_with_one_column_argument_take_it_as_a_list():
    assert isinstance(Linear().on(2), Kernel)
    assert Linear().on(2) == Linear().on([2])


class TestMissingLengthScales:
    """Parts that were made without a length scale get it from the data, others keep
    theirs.
    """

    @staticmethod
    def filled(kernel: Kernel) -> Kernel:
        return kernel.with_default_length_scales(
            lambda part, columns: 100.0 if columns is None else 1.0 + sum(columns)
        )

    @pytest.mark.parametrize(
        ("kernel", "expected"),
        [
            (
                Gaussian() + 0.5 * Matern(1.0) + Linear(),
                Gaussian(100) + 0.5 * Matern(1.0) + Linear(),
            ),
            (
                Gaussian().on([0, 1]) * Matern(nu=2.5).on([2]),
                Gaussian(2.0).on([0, 1]) * Matern(3.0, nu=2.5).on([2]),
            ),
            (
                (Gaussian().on([1]) + Cauchy() + Linear()).on([4, 7]),
                (Gaussian(8.0).on([1]) + Cauchy(12.0) + Linear()).on([4, 7]),
            ),
        ],
        ids=repr,
    )
    def test_each_part_is_filled_in_by_its_own_columns(self, kernel, expected):
        assert self.filled(kernel) == expected
        assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
        assert self.filled(expected) == expected

    def test_a_kernel_without_one_has_width_1_by_itself(self):
        kernel = Gaussian() * Matern(nu=2.5).on([1])
        unit = Gaussian(1.0) * Matern(1.0, nu=2.5).on([1])
        assert_array_equal(kernel(X, Y), unit(X, Y))
        drawn = draw_feature_map(kernel, n_features=N_FEATURES, n_components=8)
        assert drawn.spec is not None
        assert drawn.spec.kernel == unit
        assert repr(Matern(nu=1.5)) == "Matern(nu=1.5)"
        assert repr(Gaussian()) == "Gaussian()"

    def test_a_number_is_the_width_of_the_parts_without_one(self):
        assert with_length_scale(Gaussian() + Matern(1.0), 3.0) == Gaussian(
            3.0
        ) + Matern(1.0)
