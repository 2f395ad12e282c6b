"""Tune a kernel before a fit: length scales by the evidence, or candidates by folds.

Rows go in as for an estimator; a kernel with its length scales, or a fitted `RFFRidge`
with the errors of all candidates, comes out. `RFFRidge()` does both automatically;
these functions are for those who want to see or change what is compared.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict, Unpack

import numpy as np

from rff_dist.engines import clock, protocol, serial
from rff_dist.estimators import inputs, parameter_checks, ridge, splits
from rff_dist.features import draw, for_dataset, kinds, nystrom
from rff_dist.features.length_scales import TUNING_ROWS, EvidenceSearch, TunedKernel
from rff_dist.fitting.prepare import prepare
from rff_dist.frequencies import designs
from rff_dist.kernels import base, names
from rff_dist.recipes import recipes
from rff_dist.ridge import choices, fit, fit_result
from rff_dist.ridge.candidates import DEFAULT_KERNELS, make_candidates
from rff_dist.statistics import passes, standardizing


def tune_length_scales(
    kernel: str | base.Kernel,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    per_feature: bool = True,
    standardize: bool | str = "auto",
    n_samples: int = TUNING_ROWS,
    n_components: int = 256,
    n_starts: int | None = None,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
    sample_weight_kind: str = "precision",
) -> TunedKernel:
    """Choose a kernel's length scales by the evidence (marginal likelihood) of a seeded
    sample of rows.

    One length scale per column shows which inputs matter (automatic relevance
    determination), and is often worth more than any number of features. It takes
    seconds to a minute: O(n_samples · n_components²) for each of about a hundred
    evaluations. Fit with the returned kernel and alpha: the evidence's alpha can be far
    above GCV's, which is easily too small if a few rows are far off.

    Parameters
    ----------
    kernel : name or Kernel
        Set it to a kernel with one length scale, such as Gaussian or Matern. That
        length scale is replaced.
    X : array-like of shape (n_samples, n_features), dataset, path or URL
        Inputs.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Left out for a dataset, which has its own. Several targets share the length
        scales.
    sample_weight : array-like of shape (n_samples,), optional
        How much each row counts in the likelihood; rows of weight 0 do not count.
    per_feature : bool
        Usually leave it. It says whether each input column gets its own length scale,
        or all share one.
    standardize : {"auto", "rank"} or bool
        Usually leave it. It says how the inputs are prepared, as in `RFFRidge`, by a
        pass or two over all rows. The length scales are in units of the prepared
        columns.
    n_samples : int
        Usually leave it: the largest number of rows of the sample.
    n_components : int
        Usually leave it: features that refine the length scales, an even number.
    n_starts : int, optional
        Raise it if the search may miss the best: the number of short searches, on up to
        400 rows: from the median distance between rows, from √n_features times that,
        and from random length scales. By default 2, or 12 from 16 columns on.
    random_state : int, Generator, RandomState or None
        Usually leave it: the seed; None takes one from the operating system.
    sample_weight_kind : {"precision", "frequency"}, default="precision"
        As in `RFFRidge`.

    Returns
    -------
    TunedKernel
        Has `kernel`, `length_scale`, `alpha`, `noise_variance`, `log_evidence`, and
        `converged`: whether the best search did.

    Raises
    ------
    InvalidParameterError
        If the kernel has no length scale, or several, or a parameter is out of range.
    DataError
        If values are not finite, there are no targets, or the sample does not determine
        a length scale.

    References
    ----------
    Rasmussen & Williams (2006), Sec. 5.1 and 5.4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import Matern, RFFRidge, tune_length_scales
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (1000, 3))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(1000)
    >>> tuned = tune_length_scales(Matern(nu=1.5), X, y, n_components=128, n_starts=2)
    >>> relevant, *others = tuned.length_scale
    >>> min(others) > 5 * relevant
    True
    >>> model = RFFRidge(
    ...     tuned.kernel, alpha=tuned.alpha, n_components=256, random_state=0
    ... ).fit(X, y)
    """
    per_feature = parameter_checks.check_flag(per_feature, "per_feature")
    standardizing.check_standardize(standardize)
    passes.check_weight_kind(sample_weight_kind)
    kernel_object = names.find_kernel(kernel)
    # `as_dataset` records the columns on an estimator; this one has no other use
    dataset = inputs.as_dataset(ridge.RFFRidge(), X, y, sample_weight, reset=True)
    standardizer = None
    if standardize:
        standardizer = prepare(
            dataset, standardize=standardize, engine=serial.SerialEngine()
        ).standardizer
    seed = draw.seed_from_random_state(random_state)
    has_frequencies = sample_weight_kind == "frequency"
    levels = recipes.levels_of(dataset.attributes)
    source = for_dataset.RowSource(
        dataset, standardizer, seed, frequency_weights=has_frequencies, levels=levels
    )
    search = EvidenceSearch(per_feature, n_samples, n_components, n_starts)
    return for_dataset.tune(source, kernel_object, search)


class RidgeParameters(TypedDict, total=False):
    """Parameters of `RFFRidge` that all candidates of `tune_kernels` share."""

    n_components: Any
    alpha: Any
    features: str | nystrom.Nystrom
    design: str | designs.Design
    precision: str
    standardize: bool | str
    fit_intercept: bool
    random_state: Any
    sample_weight_kind: str
    engine: protocol.Engine | None
    verbose: int


#: Those that differ from the defaults of `RFFRidge`.
_SHARED = RidgeParameters(
    n_components=choices.DEFAULT_COMPONENTS,
    alpha="cv",
    features="fourier",
    precision="standard",
)


def tune_kernels(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    groups: Any = None,
    *,
    kernels: Sequence[str | base.Kernel] = DEFAULT_KERNELS,
    length_scales: Sequence[Any] | None = None,
    cv: Any = 5,
    **shared: Unpack[RidgeParameters],
) -> tuple[ridge.RFFRidge, fit_result.FitResult]:
    """Choose kernel, length scale, alpha and number of components by exact
    cross-validation; fit the best.

    After a cheap pass for means, the data are read once for all candidates, or several
    times if memory does not hold all their sums. Each candidate takes O(n_samples ·
    n_components²) for its sums, O(n_splits · n_components³) for its table, and memory
    for the sums of every fold. The model comes from the same sums.

    Parameters
    ----------
    X, y, sample_weight, groups
        As in `RFFRidge.fit`.
    kernels : sequence of str or Kernel
        Set them to compare other kernels: names, or texts such as "matern:nu=2.5". A
        kernel with one length scale is tried with each of `length_scales`, which
        replace its own; sums, products and linear kernels are tried as they are.
    length_scales : sequence, optional
        Usually leave them. Numbers, arrays of shape (n_features,), multiples of the
        median distance between rows such as "0.5x", "median" for "1x", or "evidence";
        by default ¼, ½, 1, 2 and 4 times the median, see
        `rff_dist.ridge.candidates.make_candidates`.
    cv : int, HashFolds, GroupFolds, TimeFolds, splitter or iterable of splits
        As in `RFFRidge`.
    design : str or Design
        As in `RFFRidge`.
    n_components : int or sequence of int, default=1024
        Usually leave it: D. Given several, each candidate takes its smallest within one
        standard error of its best, at little cost.
    alpha : "cv", "cv-1se", float or sequence of float, default="cv"
        As in `RFFRidge`.
    random_state : int, RandomState, Generator or None, default=None
        The seed, the same for all candidates.
    features, precision, standardize, fit_intercept, sample_weight_kind, engine, verbose
        As in `RFFRidge`, but `features` are "fourier" and `precision` is "standard" by
        default.

    Returns
    -------
    model : RFFRidge
        Fitted on all rows, with the parameters of the best candidate; its `selection_`
        is that candidate's table. A clone of it fits the same model again, unless one
        of several numbers of components was odd, which makes all features cosines with
        phases.
    search : FitResult
        `rows` has a dict for each candidate (`pandas.DataFrame(search.rows)` shows
        them), `best` is the best of them, and `n_readings` is the number of times that
        the data were read.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If values are not finite or shapes do not fit.
    PlanError
        If a single candidate needs more memory than there is.
    TypeError
        If a keyword is none of `RidgeParameters`.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import tune_kernels
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (1000, 2))
    >>> y = np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(1000)
    >>> model, search = tune_kernels(X, y, n_components=128, random_state=0)
    >>> len(search.rows), search.n_readings
    (10, 1)
    >>> model.score(X, y) > 0.9
    True
    """
    unknown = shared.keys() - RidgeParameters.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"tune_kernels() got an unexpected keyword argument {min(unknown)!r}"
        )
    candidates = make_candidates(kernels, length_scales)
    splits.check_cv(cv)
    shared = {**_SHARED, **shared}
    # one seed for all candidates, and clones of the model
    shared["random_state"] = draw.seed_from_random_state(shared.get("random_state"))
    estimator = ridge.RFFRidge(**shared)
    options = estimator._options()
    dataset = inputs.as_dataset(estimator, X, y, sample_weight, reset=True)
    folds, dataset = splits.as_folds(options, cv, dataset, y, groups)
    with estimator._engine_of_fit(dataset, clock.Clock()) as engine:
        search = fit.fit(
            dataset, replace(options, cv=folds), candidates=candidates, engine=engine
        )
    search = replace(search, model=estimator._with_names(search.model))
    kernel = kinds.kernel_of(search.model.feature_map)
    assert kernel is not None  # the map was drawn just now
    estimator.set_params(kernel=kernel, n_components=search.best["n_components"])
    if isinstance(search.best["alpha"], list):
        # `alpha` cannot hold one value per target: a list means values to choose from.
        # So the estimator keeps the search and the folds, and a clone chooses again.
        estimator.set_params(alpha=shared["alpha"], cv=cv)
    else:
        estimator.set_params(alpha=search.best["alpha"])
    estimator._keep(search.model)
    return estimator, search
