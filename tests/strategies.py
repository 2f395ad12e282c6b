"""Hypothesis strategies that several tests share."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rff_dist import Additive, Linear, Min, Polynomial
from rff_dist.data.blocks import Block, Rows
from rff_dist.kernels.base import Kernel
from rff_dist.kernels.names import KERNELS
from rff_dist.kernels.stationary import Stationary

# subnormals, ±0 and 1.8e308 included
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def float_arrays(size: int) -> st.SearchStrategy[np.ndarray]:
    """Return vectors of finite floats of any size and sign, many of them special."""
    return hnp.arrays(np.float64, size, elements=FINITE)


length_scales = st.floats(1e-3, 1e3)


# of an additive kernel
weights = st.tuples(*[st.just(0.0) | st.floats(0.01, 10)] * 3).filter(any)


STATIONARY = [kernel for kernel in KERNELS.values() if issubclass(kernel, Stationary)]


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    """Return any kernel, with one length scale or with one per column."""
    scale = draw(
        length_scales | st.lists(length_scales, min_size=1, max_size=5).map(tuple)
    )
    kernel = draw(st.sampled_from(STATIONARY))
    if kernel is Additive:
        one, two, dense = draw(weights)
        return Additive(scale, order_1=one, order_2=two, dense=dense)
    others = ("length_scale", "categories")
    shapes = [field.name for field in fields(kernel) if field.name not in others]
    return kernel(scale, **{name: draw(st.floats(0.05, 100.0)) for name in shapes})


def composite_kernels(
    n_features: int, *, shift_invariant: bool = False
) -> st.SearchStrategy[Kernel]:
    """Return sums, products, multiples and kernels on some of `n_features` non-negative
    columns.
    """
    scales = st.floats(0.5, 2.0)
    simple: st.SearchStrategy[Kernel] = st.sampled_from(STATIONARY).flatmap(
        lambda kernel: scales.map(kernel)
    )
    if not shift_invariant:
        simple |= st.sampled_from([Linear(), Polynomial(2, 0.5), Min(), Min(0.0, 3.0)])
    weights = st.floats(0.25, 4.0)
    columns = st.lists(
        st.integers(0, n_features - 1),
        min_size=n_features,
        max_size=n_features,
        unique=True,
    )

    def grow(inner: st.SearchStrategy[Kernel]) -> st.SearchStrategy[Kernel]:
        pairs = st.tuples(inner, inner)
        grown = pairs.map(lambda pair: pair[0] * pair[1]) | st.tuples(
            inner, columns
        ).map(lambda pair: pair[0].on(pair[1]))
        if shift_invariant:
            return grown
        return (
            grown
            | pairs.map(lambda pair: pair[0] + pair[1])
            | st.tuples(weights, inner).map(lambda pair: pair[0] * pair[1])
            | st.tuples(weights, inner).map(lambda pair: pair[0] + pair[1])
            | st.tuples(weights, inner).map(lambda pair: pair[1] + pair[0])
        )

    return st.recursive(simple, grow, max_leaves=5)


@st.composite
def row_sets(
    draw: st.DrawFn,
    *,
    n_features: int,
    n_targets: int,
    max_rows: int = 40,
    weighted: bool | None = None,
) -> Rows:
    """Return rows with ordinary values; weights, where there are any, are from 0 to
    1.
    """
    n = draw(st.integers(1, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    with_weights = draw(st.booleans()) if weighted is None else weighted
    return Rows(
        Block(0, 0, n),
        rng.standard_normal((n, n_features)),
        rng.standard_normal((n, n_targets)) * 10.0 ** draw(st.integers(-3, 3)),
        rng.random(n) if with_weights else None,
    )
