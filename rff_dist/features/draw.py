"""Draws the feature map of a kernel.

A kernel, the number of components D and a seed go in; a feature map comes out. A
shift-invariant kernel, a function of x - y, has Fourier features. A sum of kernels
needs the maps of its terms side by side, see `sums.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rff_dist.checks import check_count, check_name
from rff_dist.errors import InvalidParameterError
from rff_dist.features import composed, fourier, maps, nystrom, sums
from rff_dist.features.feature_options import MAPS, PRECISIONS, check_n_components
from rff_dist.features.levels import NO_LEVELS, Levels, check_levels
from rff_dist.frequencies import designs, uniforms
from rff_dist.kernels import base, names


def draw_feature_map(
    kernel: str | base.Kernel,
    *,
    n_features: int,
    n_components: int,
    design: str | designs.Design = "auto",
    map: str = "pairs",
    precision: str = "standard",
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    standardizer: maps.Standardizer | None = None,
    levels: Levels = NO_LEVELS,
) -> maps.FeatureMap:
    """Draw the random features of a kernel.

    The approximation's error falls as 1/√n_components; time and memory of training grow
    as n_components². A sum of kernels has the features of its terms side by side.
    Linear terms and constants take a component per column and are exact; the others
    share the rest in proportion to their weights. A polynomial term takes one component
    for each of its monomials, and is exact.

    Parameters
    ----------
    kernel : name or Kernel
        The kernel that Z @ Z.T approximates; see `rff_dist.kernels`. Parts without a
        length scale have 1.
    n_features : int
        Columns of the inputs.
    n_components : int
        D, the number of components of Z; even for pairs. A kernel whose terms are all
        exact may get fewer.
    design : name or Design
        How the frequencies are arranged, see `rff_dist.frequencies`. "orthogonal" has
        less variance than "iid" and needs an isotropic kernel; "auto" is the first of
        these two that the kernel allows, and "quasi-monte-carlo" for additive kernels.
        "quasi-monte-carlo" is for any kernel and best in few columns.
    map : {"pairs", "phases"}
        Cosines and sines of D/2 frequencies, or cosines of D frequencies with random
        phases.
    precision : {"standard", "high"}
        "standard" rounds cosines and sines to 15 bits, with the sign. Their products
        are then summed without rounding, and by the processor's instructions for bytes.
        "high" keeps them in float32, which matters only for penalties below about 1e-9
        · n_samples / n_components. Kernels with other features (linear, polynomial,
        min) always have high precision.
    random_state : int, Generator, RandomState or None
        The seed; None takes one from the operating system.
    standardizer : Standardizer, optional
        Applied to the inputs first.
    levels : dict of int to sequence of str
        The levels of each column of categories, by the column's number: the column
        holds codes, which are places in this list. Any other code is a level that was
        never seen. Features of a level depend on its text, not on its place.

    Returns
    -------
    feature_map : FeatureMap
        A `FourierFeatureMap` for a shift-invariant kernel.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range, or the design does not suit the kernel.

    References
    ----------
    Rahimi & Recht (2007), Alg. 1; Sutherland & Schneider (2015) on pairs against
    phases.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import Gaussian, Linear, draw_feature_map
    >>> X = np.random.default_rng(0).standard_normal((5, 3))
    >>> kernel = Gaussian(2.0) + 0.1 * Linear()
    >>> Z = draw_feature_map(kernel, n_features=3, n_components=4096).transform(X)
    >>> float(abs(Z @ Z.T - kernel(X)).max()) < 0.05
    True
    """
    check_name(map, MAPS, "map")
    check_name(precision, PRECISIONS, "precision")
    found = names.find_kernel(kernel)
    whole = found.with_default_length_scales(lambda part, columns: 1.0)
    levels = {column: tuple(texts) for column, texts in levels.items()}
    if levels:
        whole = whole.with_categories(sorted(levels))
    spec = maps.FeatureSpec(
        kernel=whole,
        design=base.design_for(whole, design),
        n_features=check_count(n_features, "n_features"),
        n_components=check_n_components(n_components, map),
        map_form=map,
        seed=seed_from_random_state(random_state),
        precision=precision,
    )
    whole.check_columns(spec.n_features)
    check_levels(whole, levels)
    return draw_from_spec(spec, standardizer, levels)


def draw_from_spec(
    spec: maps.FeatureSpec, standardizer: maps.Standardizer | None, levels: Levels
) -> maps.FeatureMap:
    """Draw the feature map of a spec; see `draw_feature_map`."""
    terms = spec.kernel.terms()
    for term in terms:
        nystrom.check_scale(term.weight, f"the weight of a term of {spec.kernel}")
    whole = base.as_shift_invariant(spec.kernel)
    if whole is not None:
        return fourier.draw_fourier(replace(spec, kernel=whole), standardizer, levels)
    if any(base.shift_invariant_term(term) is None for term in terms):
        spec = replace(spec, precision="high")  # explicit features have no fixed point
    weights, parts = zip(*sums.draw_parts(spec, terms, levels), strict=True)
    return composed.ConcatenatedFeatureMap(parts, weights, standardizer, spec)


def shortened(feature_map: maps.FeatureMap, n_components: int) -> maps.FeatureMap:
    """Return the map of the leading components, as a smaller draw would have made it.

    The map must be drawn from one shift-invariant kernel, or have Nyström's centres;
    pairs need an even number of components.

    Raises InvalidParameterError if there are fewer components, or the leading ones are
    not a smaller draw: sums of kernels divide components among terms, and explicit or
    given features are not drawn one by one.
    """
    if not 1 <= n_components <= feature_map.n_components:
        raise InvalidParameterError(
            f"the leading {n_components} components of {feature_map.n_components} were"
            " asked for; expected at least 1 and at most all"
        )
    if n_components == feature_map.n_components:
        return feature_map
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        return replace(feature_map, centres=feature_map.centres[:n_components])
    spec = feature_map.spec
    if spec is None or not is_nested(feature_map):
        raise InvalidParameterError(
            f"the first components of {type(feature_map).__name__} are no smaller"
            " feature map; give one number of components for sums of kernels, for a"
            " feature map of your own and for kernels with explicit features"
        )
    n_components = check_n_components(n_components, spec.map_form)
    return draw_from_spec(
        replace(spec, n_components=n_components),
        feature_map.standardizer,
        feature_map.levels,
    )


def is_nested(feature_map: maps.FeatureMap) -> bool:
    """Return whether its leading components are a smaller draw; see `shortened`."""
    if isinstance(feature_map, fourier.FourierFeatureMap):
        return feature_map.spec is not None
    return isinstance(feature_map, nystrom.NystromFeatureMap)


def in_high_precision(feature_map: maps.FeatureMap) -> maps.FeatureMap:
    """Return the same features in float32, if they are drawn and have 15 bits."""
    if feature_map.spec is None or not feature_map.fixed_point:
        return feature_map
    return draw_from_spec(
        replace(feature_map.spec, precision="high"),
        feature_map.standardizer,
        feature_map.levels,
    )


def seed_from_random_state(
    random_state: int | np.random.Generator | np.random.RandomState | None,
) -> int:
    """Return an integer seed; None takes one from the operating system.

    Raises InvalidParameterError if `random_state` is neither a seed nor a generator.
    """
    if random_state is None:
        return seed_of_the_system()
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    return uniforms.seed_of(random_state, name="random_state")


def seed_of_the_system() -> int:
    """Return a new seed from the operating system's entropy at each call."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
