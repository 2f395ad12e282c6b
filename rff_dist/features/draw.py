"""Draw the feature map of a kernel, and the better one for a dataset; for a sum, maps
side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import field, replace

import numpy as np

from rff_dist.checks import check_count, check_name
from rff_dist.data import blocks, folding, samples
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features import (
    bounds,
    column_maps,
    composed,
    explicit,
    fourier,
    length_scales,
    maps,
    nystrom,
)
from rff_dist.features.feature_options import (
    PRECISIONS,
    KernelFeatures,
    check_n_components,
    find_features,
)
from rff_dist.features.levels import NO_LEVELS, Levels, check_levels
from rff_dist.frequencies import designs, uniforms
from rff_dist.kernels import base, names, stationary
from rff_dist.kernels.explicit import Linear, Min, Polynomial
from rff_dist.kernels.stationary import Gaussian
from rff_dist.typing import AnyArray, FloatArray, frozen

type _Weighted[T] = list[tuple[float, T]]  # terms of a sum, with their weights

logger = logging.getLogger(__name__)

# Pairs are the default. In 156 fits on 13 problems they err by 1.005 times as much as
# phases, and win 47 % of the comparisons; phases win by 5 % on sums of 40 sines.
# Interleaved pairs make a shorter draw a prefix of a longer one.
MAPS = ("pairs", "phases", "complex")
# A linear kernel has a component for each level of a column with so few; more levels
# share random features.
MOST_MARKS = 64
# length scale at which two levels, which are √2 apart, have k = exp(-25)
_SCALE_APART = 0.2


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
    as n_components². The features of a sum of kernels are those of its terms side by
    side. Linear terms and constants take a component per column and are exact; the
    others share the rest in proportion to their weights. A polynomial term takes one
    component for each of its monomials, and is exact.

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
    map : {"pairs", "phases", "complex"}
        Cosines and sines of D/2 frequencies, cosines of D frequencies with random
        phases, or D complex exponentials, for teaching. `better_map` says which of the
        real ones has the lower variance.
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
    resolved = names.find_kernel(kernel).with_default_length_scales(
        lambda part, columns: 1.0
    )
    levels = {column: tuple(texts) for column, texts in levels.items()}
    if levels:
        resolved = resolved.with_categories(sorted(levels))
    spec = maps.FeatureSpec(
        kernel=resolved,
        design=base.design_for(resolved, design),
        n_features=check_count(n_features, "n_features"),
        n_components=check_n_components(n_components, map),
        map=map,
        seed=seed_from_random_state(random_state),
        precision=precision,
    )
    resolved.check_columns(spec.n_features)
    check_levels(resolved, levels)
    return draw_from_spec(spec, standardizer, levels)


def draw_from_spec(
    spec: maps.FeatureSpec, standardizer: maps.Standardizer | None, levels: Levels
) -> maps.FeatureMap:
    """Draw the feature map of a spec; see `draw_feature_map`."""
    terms = spec.kernel.terms()
    for term in terms:
        nystrom.check_scale(term.weight, f"the weight of a term of {spec.kernel}")
    whole = base.as_shift_invariant(spec.kernel)
    if spec.map == "complex" or any(
        base.shift_invariant_term(term) is None for term in terms
    ):
        spec = replace(spec, precision="high")
    if spec.map == "complex":
        if whole is None or levels:
            raise InvalidParameterError(
                "map='complex' is for one shift-invariant kernel of numbers, not for"
                f" {spec.kernel}; take map='pairs'"
            )
        phases = fourier.draw_fourier(replace(spec, kernel=whole, map="phases"))
        return fourier.ComplexFeatureMap(phases.frequencies, standardizer, spec)
    if whole is not None:
        return fourier.draw_fourier(replace(spec, kernel=whole), standardizer, levels)
    weights, parts = zip(*_draw_parts(spec, terms, levels), strict=True)
    return composed.ConcatenatedFeatureMap(parts, weights, standardizer, spec)


def shortened(feature_map: maps.FeatureMap, n_components: int) -> maps.FeatureMap:
    """Return the feature map of the leading components, which is what a smaller draw
    would have given.

    `feature_map`: drawn from one shift-invariant kernel, or with Nyström's centres.
    `n_components`: at most as many as it has; even for pairs.

    Raises InvalidParameterError if there are fewer components, or the leading ones are
    not a smaller draw: sums of kernels share out components, and explicit or given
    features are not drawn one by one.
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
            f"{type(feature_map).__name__} has no smaller draw among its leading"
            " components; give one number of components for sums of kernels and for"
            " explicit or given features"
        )
    n_components = check_n_components(n_components, spec.map)
    return draw_from_spec(
        replace(spec, n_components=n_components),
        feature_map.standardizer,
        feature_map.levels,
    )


def is_nested(feature_map: maps.FeatureMap) -> bool:
    """Return whether its leading components are a smaller draw; see `shortened`."""
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        return True
    return (
        isinstance(feature_map, fourier.FourierFeatureMap)
        and feature_map.spec is not None
    )


def in_high_precision(feature_map: maps.FeatureMap) -> maps.FeatureMap:
    """Return the same features in float32, if they were drawn and are rounded to 15
    bits.
    """
    if feature_map.spec is None or not feature_map.fixed_point:
        return feature_map
    return draw_from_spec(
        replace(feature_map.spec, precision="high"),
        feature_map.standardizer,
        feature_map.levels,
    )


def _draw_parts(
    spec: maps.FeatureSpec, terms: list[base.Term], levels: Levels
) -> _Weighted[maps.FeatureMap]:
    """Draw the terms' feature maps; pairs come first, so that each starts at an even
    component.
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
    sizes = _shares(shared, spec.n_features, rest)
    for i, ((weight, kernel), size) in enumerate(zip(shared, sizes, strict=True)):
        seed = uniforms.derived_seed(spec.seed, i)
        if isinstance(kernel, base.ShiftInvariant):
            # An odd share is pairs and one cosine with a phase. The weight is divided
            # so that all components have the scale √(2/size).
            odd = size % 2 if spec.map == "pairs" else 0
            even = replace(spec, kernel=kernel, seed=seed, n_components=size - odd)
            pairs = fourier.draw_fourier(even, levels=levels)
            paired.append((weight * (size - odd) / size, pairs))
            if odd:
                # another seed than those of all terms: this cosine must be independent
                # of the pairs
                lone = replace(
                    even,
                    n_components=1,
                    map="phases",
                    seed=uniforms.derived_seed(seed, 2**20),
                )
                cosine = fourier.draw_fourier(lone, levels=levels)
                single.append((weight / size, cosine))
        else:
            single.append((weight, _draw_explicit(kernel, spec.n_features, size, seed)))
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
            if isinstance(kernel, Linear):
                # the kernel numbers the categories among its own columns
                categories = columns[list(kernel.categories)].tolist()
                marked = {j: levels[j] for j in categories if _has_marks(levels[j])}
                linear_map = explicit.linear_map(
                    [j for j in columns.tolist() if j not in categories or j in marked],
                    marked,
                    width=n_features,
                )
                fixed.append((term.weight, linear_map))
                # a kernel that is 1 for equal levels, and almost 0 for others
                for j in categories:
                    if j not in marked:
                        apart = Gaussian(_SCALE_APART, categories=(0,)).on([j])
                        shared.append((term.weight, apart))
            else:
                shared.append((term.weight, term.factors[0]))
    return fixed, shared


def linear_components(n_features: int, levels: Levels) -> int:
    """Return how many components a linear kernel takes: one for each column of numbers
    and for each level; a column of many levels has a fixed number of random ones.
    """
    widths = [
        len(texts) if _has_marks(texts) else 4 * MOST_MARKS for texts in levels.values()
    ]
    return n_features - len(levels) + sum(widths)


def _has_marks(texts: Sequence[str]) -> bool:
    return len(texts) <= MOST_MARKS


def _shares(shared: _Weighted[base.Kernel], n_features: int, total: int) -> list[int]:
    """Share out components in proportion to weight · typical k(x, x), so that each
    term's error falls alike.

    Terms get an even number, at least two. Polynomials get as many as they have
    monomials, and are exact.
    """
    exact = [_n_monomials(kernel, n_features) for _, kernel in shared]
    others = [
        part for part, number in zip(shared, exact, strict=True) if number is None
    ]
    taken = sum(filter(None, exact))
    if taken + 2 * len(others) > total:
        raise InvalidParameterError(
            f"polynomial terms have {taken:_} features, their monomials, and"
            f" {len(others)} other terms need two each, but `n_components` leaves"
            f" {total:_}; give more, or take features='nystrom', of which fewer will do"
        )
    proportional = iter(_proportional(others, n_features, total - taken))
    return [next(proportional) if number is None else number for number in exact]


def _n_monomials(kernel: base.Kernel, n_features: int) -> int | None:
    inner, columns = _columns_of(kernel, n_features)
    return (
        explicit.n_monomials(inner, len(columns))
        if isinstance(inner, Polynomial)
        else None
    )


def _proportional(
    terms: _Weighted[base.Kernel], n_features: int, total: int
) -> list[int]:
    if not terms:
        return []
    sizes = np.array(
        [weight * _typical_size(kernel, n_features) for weight, kernel in terms]
    )
    # in units of two components, with one unit per term set aside
    wanted = (total // 2 - len(terms)) * sizes / sizes.sum()
    shares = np.floor(wanted).astype(int)
    # the units that rounding down left over go to the largest remainders
    n_left = total // 2 - len(terms) - shares.sum()
    by_remainder = np.argsort(shares - wanted, kind="stable")
    shares[by_remainder[:n_left]] += 1
    shares = 2 * (shares + 1)
    shares[-1] += total % 2
    return [int(share) for share in shares]


def _typical_size(kernel: base.Kernel, n_features: int) -> float:
    inner, columns = _columns_of(kernel, n_features)
    if isinstance(inner, Min) and inner.is_bound:
        lower, upper = inner.interval(len(columns))
        # the mean of k(x, x) = Σ_d x_d − lower_d over the interval
        return float((upper - lower).sum() / 2)
    return 1.0


def _columns_of(kernel: base.Kernel, n_features: int) -> tuple[base.Kernel, np.ndarray]:
    if isinstance(kernel, base.OnColumns):
        return kernel.kernel, np.array(kernel.columns)
    return kernel, np.arange(n_features)


def _draw_explicit(
    kernel: base.Kernel, n_features: int, size: int, seed: int
) -> maps.FeatureMap:
    inner, columns = _columns_of(kernel, n_features)
    if isinstance(inner, Min):
        if not inner.is_bound:
            raise InvalidParameterError(
                "the features of the min kernel need its interval; give Min(lower,"
                " upper), or fit an estimator, which takes it from the data"
            )
        return explicit.draw_thresholds(inner, columns, size, seed, width=n_features)
    if isinstance(inner, Polynomial):
        return explicit.make_monomials(inner, columns, width=n_features)
    raise InvalidParameterError(
        f"{kernel} has no random features here; take features='nystrom', which needs"
        " k(x, y) alone"
    )


def seed_from_random_state(
    random_state: int | np.random.Generator | np.random.RandomState | None,
) -> int:
    """Return a seed: the integer itself, or one from the generator or, for None, the
    operating system.

    Raises InvalidParameterError if `random_state` is something else.
    """
    if random_state is None:
        return seed_of_the_system()
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(0, 2**63 - 1, dtype=np.int64))
    return uniforms.seed_of(random_state, name="random_state")


def seed_of_the_system() -> int:
    """Return a seed of the operating system's entropy, another at each call."""
    return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])


# -- which features are drawn for a dataset
# --------------------------------------------------------


@frozen
class Inputs:
    """The rows of a dataset as features see them."""

    dataset: blocks.Dataset
    #: applied to the rows first
    standardizer: maps.Standardizer | None = None
    #: of all samples of rows, and of the features
    seed: int = 0
    #: float64 arrays of shape (n_features,), from `input_range`, for kernels that need
    #: them
    ranges: tuple[FloatArray, FloatArray] | None = None
    #: whether weights repeat rows
    frequency_weights: bool = False
    #: of the columns of categories
    levels: Levels = field(default_factory=dict)

    def prepare(self, X: AnyArray) -> AnyArray:
        """Return rows standardised.

        Overflows are left to the passes, whose errors give the rows' numbers.
        """
        with np.errstate(over="ignore"):
            return X if self.standardizer is None else self.standardizer(X)


def tune(
    inputs: Inputs,
    kernel: base.Kernel,
    search: length_scales.EvidenceSearch = length_scales.EvidenceSearch(),
    *,
    folds: folding.TuningFolds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> length_scales.TunedKernel:
    """Choose a kernel's length scales by the evidence of a seeded sample of rows, in
    this process.

    Takes seconds to a minute: O(n_samples · n_components²) for each of a few hundred
    evaluations.

    `inputs`: with targets; rows without weight are left out.
    `kernel`: its own length scale is replaced.
    `folds`: only the rows that these folds hold in are sampled.
    `report`: called from several threads with the number of steps taken, and how many
      there may be.

    Raises InvalidParameterError if the kernel is not one with a length scale; DataError
    if the dataset has no targets, a sampled value is not finite, or the sample says
    nothing about length scales.
    """
    tunable = length_scales.check_tunable(kernel)
    tunable = tunable.with_categories(sorted(inputs.levels))
    X, y, weights = _tuning_rows(inputs, search, folds)
    rows = np.asarray(inputs.prepare(X), np.float64)
    return length_scales.maximize_evidence(
        tunable,
        rows,
        y,
        weights,
        search=search,
        seed=inputs.seed,
        report=report,
    )


def tune_maps(
    inputs: Inputs,
    kernel: stationary.Stationary,
    search: length_scales.EvidenceSearch,
    *,
    folds: folding.TuningFolds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> tuple[base.Kernel, maps.Standardizer]:
    """Choose maps of the columns with the length scales, as `tune` does; see
    `column_maps`.

    Returns the kernel, with its length scales for mapped columns, and what maps these.
    """
    assert inputs.standardizer is not None
    X, y, weights = _tuning_rows(inputs, search, folds)
    rows = np.asarray(X, np.float64)
    bases = column_maps.Bases(rows, inputs.standardizer, inputs.levels)
    search = replace(search, n_starts=search.starts(X.shape[1]))
    tuned = length_scales.maximize_evidence(
        bases.kernel(kernel),
        bases.values(),
        y,
        weights,
        search=search,
        seed=inputs.seed,
        report=report,
    )
    standardizer, scales = bases.summed(np.asarray(tuned.length_scale))
    assert isinstance(tuned.kernel, column_maps.SumsOfColumnsKernel)
    return bases.tuned(tuned.kernel).with_length_scale(scales), standardizer


def _tuning_rows(
    inputs: Inputs,
    search: length_scales.EvidenceSearch,
    folds: folding.TuningFolds | None,
) -> tuple[AnyArray, FloatArray, FloatArray | None]:
    """Return inputs, targets and weights in the likelihood of the rows that tune; see
    `tune`.
    """
    dataset = inputs.dataset
    if dataset.n_targets < 1:
        raise DataError(
            "the data have no y: the evidence of length scales needs targets"
        )
    if folds is None:
        X, y, weights = samples.sample_rows(
            dataset, inputs.seed, n_rows=search.n_samples
        )
    else:
        # half of the rows are held in at most, so twice as many are sampled
        sample = samples.sample_folds(dataset, folds, n_rows=2 * search.n_samples)
        X, y, weights = sample.tuning_rows(search.n_samples)
    assert y is not None  # there are targets
    if weights is not None:
        weights = length_scales.likelihood_weights(
            weights, repeated=inputs.frequency_weights
        )
    return X, y, weights


def choose_map(inputs: Inputs, kernel: base.Kernel, n_components: int) -> str:
    """Return "pairs" or "phases": the map with the lower closed-form variance on up to
    1,000 rows.

    If `n_components` is odd, only phases will do. The kernel must have its length
    scale. See `better_map`.
    """
    if n_components % 2:
        return "phases"
    # the closed forms are of differences, which categories have none of
    if inputs.levels:
        return "pairs"
    sample = samples.sample_inputs(inputs.dataset, inputs.seed)
    if len(sample) < 2:
        return "pairs"
    variances = bounds.better_map(kernel, inputs.prepare(sample))
    message = "map=%r: mean variance times D is %.4g for pairs and %.4g for phases"
    logger.debug(message, variances.better, variances.pairs, variances.phases)
    return variances.better


def resolve_kernel(
    inputs: Inputs, kernel: base.Kernel, length_scale: str | base.LengthScale | None
) -> base.Kernel:
    """Return a kernel with all that depends on the data filled in; see `KernelFeatures`
    for the length scale.

    Raises InvalidParameterError if the length scale is neither "auto", "median" nor
    numbers above 0, or no part of the kernel takes it.
    """
    kernel.check_columns(inputs.dataset.n_features)
    if inputs.levels:
        kernel = kernel.with_categories(sorted(inputs.levels))
    if length_scale == "median" and isinstance(kernel, stationary.Stationary):
        kernel = kernel.with_length_scale(None)
    if length_scale is None or (
        isinstance(length_scale, str) and length_scale in ("auto", "median")
    ):
        # a length scale of 1, used in silence, once gave an error of 0.876 where the
        # median gives 0.394
        medians = length_scales.MedianDistances(
            inputs.dataset, inputs.standardizer, seed=inputs.seed
        )
        kernel = kernel.with_default_length_scales(medians)
    elif isinstance(length_scale, str):
        raise InvalidParameterError(
            f"`length_scale` is {length_scale!r}; expected 'auto', 'median' or numbers"
            " above 0"
        )
    else:
        kernel = stationary.with_length_scale(kernel, length_scale)
    return kernel if inputs.ranges is None else kernel.bind(*inputs.ranges)


def draw(inputs: Inputs, described: KernelFeatures) -> maps.FeatureMap:
    """Draw the feature map of a kernel for a dataset.

    Raises InvalidParameterError if the kernel does not suit the columns or the design.
    """
    nystrom_options = find_features(described.features)
    D = described.n_components
    seed = inputs.seed
    kernel = resolve_kernel(inputs, described.kernel, described.length_scale)
    standardizer = inputs.standardizer
    if nystrom_options is not None:
        sample = samples.sample_inputs(
            inputs.dataset, seed, n_rows=nystrom_options.rows_to_sample(D)
        )
        prepared = np.asarray(inputs.prepare(sample), np.float32)
        return nystrom.draw_nystrom(
            kernel,
            prepared,
            n_components=D,
            nystrom=nystrom_options,
            seed=seed,
            standardizer=standardizer,
            levels=inputs.levels,
        )
    return draw_feature_map(
        kernel,
        n_features=inputs.dataset.n_features,
        n_components=D,
        design=described.design,
        map=choose_map(inputs, kernel, D) if described.map == "auto" else described.map,
        precision=described.precision,
        random_state=seed,
        standardizer=standardizer,
        levels=inputs.levels,
    )
