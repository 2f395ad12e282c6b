"""Draws the features of a sum of kernels: its terms' features, side by side.

Terms and a number of components go in; a feature map per term comes out, with its
weight. Terms with exact features take the components that they need, and the others
share the rest. Equal shares would spend as much on a term that adds little as on one
that adds most of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.errors import InvalidParameterError
from rff_dist.features import explicit, fourier, maps
from rff_dist.features.levels import Levels
from rff_dist.frequencies import uniforms
from rff_dist.kernels import base
from rff_dist.kernels.explicit import Linear, Min, Polynomial
from rff_dist.kernels.stationary import Gaussian
from rff_dist.typing import FloatArray, IntArray

type _Weighted[T] = list[tuple[float, T]]  # terms of a sum, with their weights

# In columns with at most so many levels, a linear kernel marks each level by a
# component of its own; more levels share random features.
MOST_MARKED = 64
# length scale at which two levels, which are √2 apart, have k = exp(-25)
_SCALE_APART = 0.2


def draw_parts(
    spec: maps.FeatureSpec, terms: list[base.Term], levels: Levels
) -> _Weighted[maps.FeatureMap]:
    """Draw the terms' maps, maps of pairs first.

    Each then starts at an even component, so that no tile of components cuts a pair.
    """
    fixed, shared = _split_terms(terms, spec.n_features, levels)
    rest = spec.n_components - sum(part.n_components for _, part in fixed)
    if rest < 2 * len(shared):
        raise InvalidParameterError(
            f"`n_components` is {spec.n_components}; {spec.kernel} needs at least"
            f" {spec.n_components - rest + 2 * len(shared)}: a component per linear"
            " column and constant, and two for each other term"
        )
    paired: _Weighted[maps.FeatureMap] = []
    single: _Weighted[maps.FeatureMap] = []
    counts = _divide(shared, spec.n_features, rest)
    for i, ((weight, kernel), count) in enumerate(zip(shared, counts, strict=True)):
        seed = uniforms.derived_seed(spec.seed, i)
        if not isinstance(kernel, base.ShiftInvariant):
            explicit_map = _draw_explicit(kernel, spec.n_features, count, seed)
            single.append((weight, explicit_map))
            continue
        # An odd count is divided into pairs and one cosine with a phase. The weight is
        # divided so that all components have the scale √(2/count).
        n_alone = count % 2 if spec.map_form == "pairs" else 0
        n_paired = count - n_alone
        even = replace(spec, kernel=kernel, seed=seed, n_components=n_paired)
        pairs = fourier.draw_fourier(even, levels=levels)
        paired.append((weight * n_paired / count, pairs))
        if n_alone:
            # a seed that no term has: this cosine must be independent of the pairs
            own_seed = uniforms.derived_seed(seed, 2**20)
            alone = replace(even, n_components=1, map_form="phases", seed=own_seed)
            cosine = fourier.draw_fourier(alone, levels=levels)
            single.append((weight / count, cosine))
    return paired + single + fixed


def _split_terms(
    terms: list[base.Term], n_features: int, levels: Levels
) -> tuple[_Weighted[maps.FeatureMap], _Weighted[base.Kernel]]:
    """Return terms with a fixed number of components, and those that share the rest.

    The first are maps of linear terms and constants, the others kernels.
    """
    fixed: _Weighted[maps.FeatureMap] = []
    shared: _Weighted[base.Kernel] = []
    for term in terms:
        whole = base.shift_invariant_term(term)
        if whole is not None:
            shared.append((term.weight, whole))
        elif not term.factors:
            constant = explicit.LinearFeatureMap(np.array([-1]), width=n_features)
            fixed.append((term.weight, constant))
        elif len(term.factors) > 1:
            raise InvalidParameterError(
                f"the product of {' and '.join(map(str, term.factors))} has no random"
                " features here: only shift-invariant kernels multiply; take"
                " features='nystrom', which needs k(x, y) alone"
            )
        else:
            kernel, columns = _columns_of(term.factors[0], n_features)
            if not isinstance(kernel, Linear):
                shared.append((term.weight, term.factors[0]))
                continue
            # the kernel numbers the categories among its own columns
            categories = columns[list(kernel.categories)].tolist()
            marked = {j: levels[j] for j in categories if _is_marked(levels[j])}
            unmarked = [j for j in categories if j not in marked]
            linear_map = explicit.linear_map(
                [j for j in columns.tolist() if j not in unmarked],
                marked,
                width=n_features,
            )
            fixed.append((term.weight, linear_map))
            # linear in one-hot columns is 1 for equal levels and 0 for others; this
            # Gaussian is 1 and almost 0
            for j in unmarked:
                apart = Gaussian(_SCALE_APART, categories=(0,)).on([j])
                shared.append((term.weight, apart))
    return fixed, shared


def linear_components(n_features: int, levels: Levels) -> int:
    """Return how many components a linear kernel takes.

    They are one for each column of numbers and for each level. A column of many levels
    counts as 256: its random components have no number of their own, and share the
    others' by weight, so this is what a caller leaves room for.
    """
    n_components = n_features - len(levels)
    for texts in levels.values():
        n_components += len(texts) if _is_marked(texts) else 4 * MOST_MARKED
    return n_components


def _is_marked(texts: Sequence[str]) -> bool:
    """Return whether each of a column's levels has a component in linear kernels."""
    return len(texts) <= MOST_MARKED


def _divide(shared: _Weighted[base.Kernel], n_features: int, total: int) -> list[int]:
    """Return how many components each term gets, so that the errors of all fall alike.

    Polynomials get as many as they have monomials, and are exact. The others share the
    rest in proportion to weight · typical k(x, x), see `_proportional`. Without others
    the rest is not used.
    """
    counts: dict[int, int] = {}
    others = []
    for i, (_, kernel) in enumerate(shared):
        inner, columns = _columns_of(kernel, n_features)
        if isinstance(inner, Polynomial):
            counts[i] = explicit.n_monomials(inner, len(columns))
        else:
            others.append(i)
    taken = sum(counts.values())
    if taken + 2 * len(others) > total:
        raise InvalidParameterError(
            f"polynomial terms have {taken:_} features, their monomials, and"
            f" {len(others)} other terms need two each, but `n_components` leaves"
            f" {total:_}; give more, or take features='nystrom', of which fewer suffice"
        )
    if others:
        sizes = np.array(
            [
                weight * _typical_size(kernel, n_features)
                for weight, kernel in (shared[i] for i in others)
            ]
        )
        counts |= zip(others, _proportional(sizes, total - taken), strict=True)
    return [counts[i] for i in range(len(shared))]


def _proportional(sizes: FloatArray, total: int) -> list[int]:
    """Divide `total` components in proportion to sizes.

    Each count is even and at least two, but the last is odd if the total is.
    """
    # in units of two components, with one unit per term set aside
    n_units = total // 2 - len(sizes)
    wanted = n_units * sizes / sizes.sum()
    units = np.floor(wanted).astype(int)
    # the units that rounding down left over go to the largest remainders
    by_remainder = np.argsort(units - wanted, kind="stable")
    units[by_remainder[: n_units - units.sum()]] += 1
    counts = 2 * (units + 1)
    counts[-1] += total % 2
    return [int(count) for count in counts]


def _typical_size(kernel: base.Kernel, n_features: int) -> float:
    inner, columns = _columns_of(kernel, n_features)
    if isinstance(inner, Min) and inner.is_bound:
        lower, upper = inner.interval(len(columns))
        # the mean of k(x, x) = Σ_d x_d − lower_d over the interval
        return float((upper - lower).sum() / 2)
    return 1.0


def _columns_of(kernel: base.Kernel, n_features: int) -> tuple[base.Kernel, IntArray]:
    """Return the kernel and the input columns that it sees."""
    if isinstance(kernel, base.OnColumns):
        return kernel.kernel, np.array(kernel.columns)
    return kernel, np.arange(n_features)


def _draw_explicit(
    kernel: base.Kernel, n_features: int, n_components: int, seed: int
) -> maps.FeatureMap:
    inner, columns = _columns_of(kernel, n_features)
    if isinstance(inner, Min):
        if not inner.is_bound:
            raise InvalidParameterError(
                "the features of the min kernel need its interval; give Min(lower,"
                " upper), or fit an estimator, which takes it from the data"
            )
        return explicit.draw_thresholds(
            inner, columns, n_components, seed, width=n_features
        )
    if isinstance(inner, Polynomial):
        return explicit.make_monomials(inner, columns, width=n_features)
    raise InvalidParameterError(
        f"{kernel} has no random features here; take features='nystrom', which needs"
        " k(x, y) alone"
    )
