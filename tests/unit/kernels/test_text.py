"""Kernels as text: what each form means, and what is refused in words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rff_dist import (
    Additive,
    Cauchy,
    Gaussian,
    Linear,
    Matern,
    Min,
    Polynomial,
    RationalQuadratic,
)
from rff_dist.kernels.base import Constant
from rff_dist.kernels.names import KERNELS, find_kernel, kernel_text

FORMS = {
    "matern:nu=2.5": Matern(nu=2.5),
    " matern : nu = 2.5 ": Matern(nu=2.5),
    "rational_quadratic:shape=2e+0": RationalQuadratic(shape=2.0),
    "polynomial:degree=3,offset=0": Polynomial(degree=3, offset=0.0),
    "min:lower=-1,upper=+2": Min(-1.0, 2.0),
    "gaussian + linear": Gaussian() + Linear(),
    "gaussian:length_scale=2+0.1*linear": Gaussian(2.0) + 0.1 * Linear(),
    "1 + min": 1 + Min(),
    "matern:nu=1.23456789 + 0.123456789 * gaussian * linear": (
        Matern(nu=1.23456789) + 0.123456789 * (Gaussian() * Linear())
    ),
    "1e+1*gaussian": 10 * Gaussian(),
    "2 * gaussian * 3 * cauchy": 6 * (Gaussian() * Cauchy()),
    "gaussian:length_scale=2 * cauchy:length_scale=3": Gaussian(2.0) * Cauchy(3.0),
    "0.5": Constant(0.5),
    "additive:kernel=gaussian,order_2=0": Additive(kernel=Gaussian(), order_2=0.0),
    "additive:order_1=0.5/2/0,order_2=0": Additive(order_1=(0.5, 2, 0), order_2=0),
    "2 * additive:dense=0.5,kernel = matern: nu=2.5 ": (
        2 * Additive(kernel=Matern(nu=2.5), dense=0.5)
    ),
}


@pytest.mark.parametrize("text", FORMS)
def test_a_text_is_the_kernel_that_python_would_write(text):
    assert find_kernel(text) == FORMS[text]


@pytest.mark.parametrize("name", KERNELS)
def test_a_name_alone_is_the_kernel_with_its_defaults(name):
    assert find_kernel(name) == KERNELS[name]()


@given(st.floats(1e-6, 1e6).filter(lambda weight: weight != 1), st.floats(1e-6, 1e6))
def test_numbers_are_read_to_the_last_digit(weight, scale):
    found = find_kernel(f"{weight!r}*gaussian:length_scale={scale!r} + linear")
    assert found == weight * Gaussian(scale) + Linear()


@pytest.mark.parametrize("text", [text for text in FORMS if "length_scale" not in text])
def test_the_text_of_a_kernel_is_read_as_the_same_kernel(text):
    assert find_kernel(kernel_text(FORMS[text])) == FORMS[text]
