"""Exact effects of single columns on predictions.

A model goes in; for each column the function of this column alone comes out, at up to
41 values, or at each level of a category. Partial dependence would need averages over
rows; these effects need none.

A model is a sum, as its kernel is: f(x) = c + Σ_j e_j(x_j) + g(x). Here e_j comes from
the part of the kernel that takes column j alone (its features, or its values at the
centres, with the coefficients of the whole), and g from all other parts. This is no
approximation. Effects are differences from the column's mean: e_j(mean) = 0. A category
has no mean level, so its effects are differences from the average over the levels of
the training rows, or over all levels if the number of rows of each is not known.

If no part of the kernel takes several columns, g is constant. Otherwise the functions
describe this model, not y: g can take over what a column does alone (Lu,
Boukouvalas & Hensman 2022, "Additive Gaussian processes revisited"). With equal weights
of the three parts of `Additive`, eight columns and y = 3·x₀ + sin 2x₁, the slope of e_0
was 0.86 with Nyström features and 3.4 with Fourier features; both models predicted y
with an R² above 0.99. So effects stand next to their shares of the variance and g's.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks, samples
from rff_dist.errors import InvalidParameterError
from rff_dist.features import kinds, levels, nystrom
from rff_dist.fitting import predicting
from rff_dist.kernels import base, explicit
from rff_dist.recipes import model_rows, recipes
from rff_dist.ridge import models, uncertainty
from rff_dist.text import short_repr
from rff_dist.typing import AnyArray, FloatArray, IntArray, frozen

# Values at which effects are computed, in standard deviations from the mean.
_SCORES = np.linspace(-2.0, 2.0, 41)
#: Rows that shares of the variance are measured on.
SHARE_ROWS = 2_000


@frozen(eq=False)
class Effect:
    """What one column alone adds to predictions."""

    #: Which input column.
    column: int
    #: Values of the column in its own units, ascending, or the names of a category's
    #: levels; shape (n_values,).
    values: AnyArray
    #: How much the prediction changes, in the target's units, if the column has this
    #: value rather than its mean; for a category, rather than an average level. Shape
    #: (n_values,) or (n_values, n_targets).
    effect: FloatArray
    #: Training rows of each level, shape (n_values,); None for numbers, or if that is
    #: not known.
    n_rows: IntArray | None = None

    __repr__ = short_repr


@frozen(eq=False)
class EffectShares:
    """Shares of the variance of predictions over rows; they add up to 1."""

    #: Of each column's effect, shape (n_features,) or (n_features, n_targets).
    columns: FloatArray
    #: Of what several columns do together; a number, or shape (n_targets,).
    together: FloatArray
    #: Twice the sum of their covariances, of the same shape. Shares are correlated if
    #: columns are, and because `together` contains effects of single columns.
    overlap: FloatArray

    __repr__ = short_repr


def kernels_of_columns(
    kernel: base.Kernel, n_features: int
) -> tuple[dict[int, base.Kernel], bool]:
    """Return the parts of a kernel that take one column alone, by column, and whether
    other parts take several.
    """
    parts: dict[int, base.Kernel] = {}
    has_others = False
    for term in kernel.terms():
        term_parts: dict[int, base.Kernel] = {}
        columns = _columns_of(term, n_features)
        if len(columns) == 1:
            term_parts[columns[0]] = base.product_of(term.factors)
        elif len(term.factors) == 1:
            (factor,) = term.factors
            inner = factor.kernel if isinstance(factor, base.OnColumns) else factor
            inner_parts, takes_several = inner.of_columns(len(columns))
            for place, part in inner_parts.items():
                term_parts[columns[place]] = part.on(columns)
            has_others |= takes_several
        else:
            has_others |= len(columns) > 1
        for column, part in term_parts.items():
            parts[column] = parts.get(column, 0.0) + term.weight * part
    return parts, has_others


def _columns_of(term: base.Term, n_features: int) -> Sequence[int]:
    columns: dict[int, None] = {}
    for factor in term.factors:
        factor_columns: Sequence[int] = range(n_features)
        if isinstance(factor, base.OnColumns):
            factor_columns = factor.columns
        columns |= dict.fromkeys(factor_columns)
    return list(columns)


def is_sum_of_effects(model: models.RidgeModel) -> bool:
    """Return whether predictions are a constant plus effects of single columns."""
    kernel = kinds.kernel_of(model.feature_map)
    return kernel is not None and not kernels_of_columns(kernel, model.n_features)[1]


def has_slopes(model: models.RidgeModel) -> bool:
    """Return whether predictions are linear in the inputs."""
    kernel = kinds.kernel_of(model.feature_map)
    standardizer = model.feature_map.standardizer
    has_mapped_columns = standardizer is not None and bool(standardizer.maps)
    if kernel is None or has_mapped_columns:
        return False
    n_factors = 0
    for term in kernel.terms():
        if len(term.factors) > 1:
            return False
        for factor in term.factors:
            inner = factor.kernel if isinstance(factor, base.OnColumns) else factor
            if not isinstance(inner, explicit.Linear):
                return False
            n_factors += 1
    return n_factors > 0


def slopes(model: models.RidgeModel) -> tuple[FloatArray, FloatArray]:
    """Return slopes (n_targets, n_features) and intercepts (n_targets,)."""
    standardizer = model.feature_map.standardizer
    mean = np.zeros(model.n_features) if standardizer is None else standardizer.mean
    scale = np.ones(model.n_features) if standardizer is None else standardizer.scale
    # rows: the means, then a step of one standard deviation in each column
    Z = model.feature_map.transform(
        mean + np.vstack([np.zeros_like(mean), np.diag(scale)])
    )
    steps = (Z[1:] - Z[0]) @ model.coefficients
    coefficients = (steps / scale[:, np.newaxis]).T
    at_means = Z[0] @ model.coefficients + model.intercept
    return coefficients, at_means - coefficients @ mean


def why_no_effects(model: models.RidgeModel) -> str | None:
    """Return why there are no exact effects, and what to do; None if there are."""
    kernel = kinds.kernel_of(model.feature_map)
    if kernel is None or not kernels_of_columns(kernel, model.n_features)[0]:
        return (
            "no effects of single columns: with the kernel"
            f" {kernel or 'of given frequencies'} columns act together; fit with one"
            " that has functions of single columns, such as Additive()"
        )
    if model.columns is None and model.feature_map.standardizer is None:
        return (
            "no effects of single columns: the model keeps no means of its columns; fit"
            " in one call"
        )
    return None


def column_effect(
    model: models.RidgeModel, column: int, values: ArrayLike
) -> FloatArray:
    """Return what a column alone adds to predictions, at values in its units, or at
    levels of a category by their names: (n_values, n_targets).

    A level that the model has not seen has the expected effect of a level.

    Raises InvalidParameterError if the model has no effects, or no such column, counted
    from 0; DataError if a value is not finite.
    """
    rows, at_base = _rows_of_effect(model, column, values)
    heights = own_parts(model, rows, [column])[:, 0]
    n_base = len(at_base)
    base_height = np.average(heights[:n_base], axis=0, weights=at_base)
    return heights[n_base:] - base_height


def effect_deviations(
    model: models.RidgeModel, column: int, values: ArrayLike
) -> FloatArray:
    """Return standard deviations of `column_effect`, for a sum of such effects.

    In such a sum, rows that differ in one column differ by its effect. Raises as
    `column_effect`, and as `RidgeModel.predictive`.
    """
    rows, at_base = _rows_of_effect(model, column, values)
    n_values = len(rows) - len(at_base)
    base_weights = np.tile(-at_base, (n_values, 1))
    weights = np.hstack([base_weights, np.eye(n_values)])
    return uncertainty.deviations_of_sums(rows, weights, model.predictive)


def _rows_of_effect(
    model: models.RidgeModel, column: int, values: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return base rows, at which the effect is 0 on average, then rows with the values;
    and each base row's share in that average.
    """
    means, _ = _spread(model)
    if not 0 <= column < model.n_features:
        raise InvalidParameterError(
            f"`column` is {column}, counted from 0; the model has {model.n_features}"
            " columns"
        )
    texts = recipes.levels_of(model.card).get(column)
    if texts is None:
        base = means[[column]]
        values = np.asarray(values, np.float64)
    else:
        base = np.arange(len(texts), dtype=np.float64)
        (code_of,) = levels.code_changes(
            {0: tuple(np.asarray(values, str).tolist())}, {0: texts}
        ).values()
        values = code_of[:-1]
    rows = np.tile(means, (len(base) + len(values), 1))
    rows[:, column] = np.concatenate([base, values])
    n_rows = _rows_of_levels(model, column)
    shares = np.full(len(base), 1 / len(base))
    if n_rows is not None:
        shares = n_rows / n_rows.sum()
    return rows, shares


def own_parts(
    model: models.RidgeModel, X: AnyArray, columns: Sequence[int]
) -> FloatArray:
    """Return what each column alone adds to predictions of rows, up to a constant.

    The shape is (n_samples, n_columns, n_targets).
    """
    rows = blocks.Rows.in_memory(X)
    feature_map = model.feature_map
    if isinstance(feature_map, nystrom.NystromFeatureMap):
        parts = np.zeros((len(X), len(columns), model.n_targets))
        kernels, _ = kernels_of_columns(feature_map.kernel, model.n_features)
        for i, column in enumerate(columns):
            if column in kernels:
                of_column = feature_map.with_part(kernels[column])
                part = replace(model.linear, feature_map=of_column)
                parts[:, i] = predicting.predict_rows(rows, part)
        return parts
    # a target per column: the coefficients of its own components, and 0 for others
    is_own = feature_map.own_columns[:, np.newaxis] == np.array(columns)
    coefficients = is_own[:, :, np.newaxis] * model.coefficients[:, np.newaxis]
    parts_as_targets = predicting.LinearModel(
        feature_map,
        coefficients.reshape(len(coefficients), -1),
        np.zeros(len(columns) * model.n_targets),
    )
    heights = predicting.predict_rows(rows, parts_as_targets)
    return heights.reshape(len(X), len(columns), model.n_targets)


def variance_shares(
    model: models.RidgeModel, X: AnyArray, groups: Sequence[Sequence[int]]
) -> FloatArray:
    """Return shares of the variance of predictions of rows, which add up to 1:
    (n_groups + 2, n_targets).

    The first n_groups are the shares of what each group's columns add alone. Then
    follow what several columns do together, and twice the covariances. `groups` contain
    every column.
    """
    rows = blocks.Rows.in_memory(X)
    predicted = predicting.predict_rows(rows, model.linear)
    own = own_parts(model, X, range(model.n_features))
    parts = [own[:, list(group)].sum(axis=1) for group in groups]
    parts.append(predicted - own.sum(axis=1))
    with np.errstate(invalid="ignore"):  # constant predictions have no shares
        shares = np.var(parts, axis=1) / predicted.var(axis=0)
    return np.vstack([shares, 1.0 - shares.sum(axis=0)])


def effect_shares(dataset: blocks.Dataset, model: models.RidgeModel) -> EffectShares:
    """Return the shares of the variance of predictions over up to 2,000 rows of a
    dataset, always the same ones.

    Raises InvalidParameterError if the model has no effects.
    """
    if (why := why_no_effects(model)) is not None:
        raise InvalidParameterError(why)
    rows = model_rows.rows_for(dataset, model)
    X = samples.sample_inputs(rows, 0, n_rows=SHARE_ROWS)
    shares = variance_shares(model, X, [[j] for j in range(model.n_features)])
    if model.one_dimensional:
        shares = shares[:, 0]
    return EffectShares(shares[:-2], shares[-2], shares[-1])


def column_effects(model: models.RidgeModel) -> list[Effect]:
    """Return the effects of all columns, each at up to 41 values, or at all levels.

    Raises InvalidParameterError if the model has no effects.
    """
    mean, deviation = _spread(model)
    places = list(mean[:, np.newaxis] + deviation[:, np.newaxis] * _SCORES)
    standardizer = model.feature_map.standardizer
    if standardizer is not None:
        # mapped values have about mean 0 and standard deviation 1
        for part in standardizer.maps:
            places[part.column] = np.interp(
                _SCORES, standardizer.mapped(part, part.inputs), part.inputs
            )
    # unique, because all values of a constant column are the same
    places = list(map(np.unique, places))
    for column, texts in recipes.levels_of(model.card).items():
        places[column] = np.array(texts)
    effects = []
    for column, values in enumerate(places):
        effect = column_effect(model, column, values)
        effects.append(
            Effect(
                column,
                values,
                effect[:, 0] if model.one_dimensional else effect,
                _rows_of_levels(model, column),
            )
        )
    return effects


def _rows_of_levels(model: models.RidgeModel, column: int) -> IntArray | None:
    """Return how many training rows have each level, if that is known."""
    if model.columns is None or column not in model.columns.counts:
        return None
    known = model.columns.counts[column][:-1]
    return known if known.any() else None


def _spread(model: models.RidgeModel) -> tuple[FloatArray, FloatArray]:
    """Return the columns' means and deviations, of the training rows if they are known.

    A category's mean is its first level's code; another level would change no other
    effect.

    Raises InvalidParameterError if the model has no effects.
    """
    if (why := why_no_effects(model)) is not None:
        raise InvalidParameterError(why)
    if model.columns is not None:
        means = model.columns.mean.copy()
        deviations = np.sqrt(model.columns.variance)
    else:
        standardizer = model.feature_map.standardizer
        assert standardizer is not None  # `why_no_effects`
        means = standardizer.mean.copy()
        deviations = standardizer.scale
    means[list(recipes.levels_of(model.card))] = 0.0
    return means, deviations
