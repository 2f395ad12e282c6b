"""Exact effects of single columns, for models whose function is a sum of functions of one column each.

Then f(x) = f(m) + Σ_j e_j(x_j) for all rows x, with e_j(v) = f(m with v in column j) − f(m). Here m holds the
columns' means. This is no average over rows, and no approximation: a row's effects and f(m) add up to its
prediction.

Kernels that have functions of several columns too are left out, since their parts are not unique: functions
of pairs and of all columns can take over what a column does alone (Lu, Boukouvalas & Hensman 2022,
"Additive Gaussian processes revisited"). With equal weights of the three parts of `Additive`, eight
columns and y = 3·x₀ + sin 2x₁, the slope of the functions of x₀ alone was 0.86 with Nyström features and 3.4
with Fourier features; both models predicted y with an R² above 0.99.
"""

import numpy as np
from numpy.typing import ArrayLike

from rff_dist.data import blocks
from rff_dist.errors import InvalidParameterError
from rff_dist.features import kinds
from rff_dist.fitting import predicting
from rff_dist.kernels import additive, base, explicit
from rff_dist.ridge import models
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray, frozen

_SCORES = np.linspace(-2.0, 2.0, 41)


@frozen(eq=False)
class Effect:
    """What one column adds to predictions.

    `column`: which input column.
    `values`: float64 array of shape (n_values,). Values of the column, in its own units, ascending.
    `effect`: float64 array of shape (n_values,) or (n_values, n_targets). How much the prediction changes,
      in the target's units, if the column has this value rather than its mean.
    """

    column: int
    values: FloatArray
    effect: FloatArray

    __repr__ = short_repr


def is_additive(kernel: base.Kernel, n_features: int) -> bool:
    """Return whether a kernel's functions are sums of functions of one column each."""
    return all(_is_additive(term, n_features) for term in kernel.terms())


def _is_additive(term: base.Term, n_features: int) -> bool:
    every = range(n_features)
    factors = [k if isinstance(k, base.OnColumns) else base.OnColumns(k, every) for k in term.factors]
    if len({column for factor in factors for column in factor.columns}) <= 1:
        return True
    if len(factors) > 1:
        return False
    match factors[0].kernel:
        case explicit.Linear() | explicit.Min():
            return True
        case additive.Additive() as kernel:
            return not kernel.weights(len(factors[0].columns))[1:].any()
    return False


def has_slopes(model: models.RidgeModel) -> bool:
    """Return whether predictions are linear in the inputs: their kernel is, and no column is mapped."""
    kernel, standardizer = kinds.kernel_of(model.feature_map), model.feature_map.standardizer
    if kernel is None or (standardizer is not None and standardizer.maps):
        return False
    factors = [term.factors for term in kernel.terms()]
    return any(factors) and all(len(of_term) < 2 and all(map(_is_linear, of_term)) for of_term in factors)


def _is_linear(kernel: base.Kernel) -> bool:
    inner = kernel.kernel if isinstance(kernel, base.OnColumns) else kernel
    return isinstance(inner, explicit.Linear)


def slopes(model: models.RidgeModel) -> tuple[FloatArray, FloatArray]:
    """Return slopes (n_targets, n_features) and intercepts (n_targets,) of a model that has them."""
    standardizer = model.feature_map.standardizer
    mean = np.zeros(model.n_features) if standardizer is None else standardizer.mean
    scale = np.ones(model.n_features) if standardizer is None else standardizer.scale
    # features of the row of means, and of a step of one standard deviation in each column
    Z = model.feature_map.transform(mean + np.vstack([np.zeros_like(mean), np.diag(scale)]))
    steps = (Z[1:] - Z[0]) @ model.coefficients
    coefficients = (steps / scale[:, np.newaxis]).T
    at_means = Z[0] @ model.coefficients + model.intercept
    return coefficients, at_means - coefficients @ mean


def why_no_effects(model: models.RidgeModel) -> str | None:
    """Return why a model has no exact effects of single columns, and what to do; None if it has them."""
    kernel = kinds.kernel_of(model.feature_map)
    if kernel is None or not is_additive(kernel, model.n_features):
        return (
            f"no effects of single columns: with the kernel {kernel or 'of given frequencies'} columns act "
            "together; fit with one of functions of single columns, such as Additive(order_2=0, dense=0)"
        )
    if model.columns is None and model.feature_map.standardizer is None:
        return "no effects of single columns: the model keeps no means of its columns; fit in one call"
    return None


def column_effect(model: models.RidgeModel, column: int, values: ArrayLike) -> FloatArray:
    """Return the effect of a column at some values, O(n_values · n_components · n_features).

    `column`: which input column, counted from 0.
    `values`: array-like of shape (n_values,). In the column's units.
    Returns `effect`: float64 array of shape (n_values, n_targets), see `Effect`.
    Raises InvalidParameterError if the model has no effects, or no such column; DataError if a value is not
      finite.
    """
    means, _ = _spread(model)
    if not 0 <= column < model.n_features:
        raise InvalidParameterError(
            f"`column` is {column}, counted from 0; the model has {model.n_features} columns"
        )
    values = np.asarray(values, np.float64)
    rows = np.tile(means, (1 + len(values), 1))
    # row 0 is m itself; each other row is m with one value in the column
    rows[1:, column] = values
    predicted = predicting.predict_rows(blocks.Rows(blocks.Block(0, 0, len(rows)), rows), model.linear)
    return np.asarray(predicted[1:] - predicted[0])


def column_effects(model: models.RidgeModel) -> list[Effect]:
    """Return the effects of all columns, each at up to 41 values; see `RFFRidge.effects_`.

    Raises InvalidParameterError if the model has no effects.
    """
    mean, deviation = _spread(model)
    places = list(mean[:, np.newaxis] + deviation[:, np.newaxis] * _SCORES)
    standardizer = model.feature_map.standardizer
    if standardizer is not None:
        for part in standardizer.maps:  # they have about mean 0 and standard deviation 1
            places[part.column] = np.interp(_SCORES, standardizer.mapped(part, part.inputs), part.inputs)
    effects = []
    # unique, because all values of a constant column are the same
    for column, values in enumerate(map(np.unique, places)):
        effect = column_effect(model, column, values)
        effects.append(Effect(column, values, effect[:, 0] if model.one_dimensional else effect))
    return effects


def _spread(model: models.RidgeModel) -> tuple[FloatArray, FloatArray]:
    """Return the columns' means and standard deviations: of the training rows, or of those first fitted.

    Raises InvalidParameterError if the model has no effects.
    """
    if (why := why_no_effects(model)) is not None:
        raise InvalidParameterError(why)
    if model.columns is not None:
        return model.columns.mean, np.sqrt(model.columns.second)
    standardizer = model.feature_map.standardizer
    assert standardizer is not None  # `why_no_effects`
    return standardizer.mean, standardizer.scale
