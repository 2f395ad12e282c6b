"""Tune a kernel's length scales on arrays or a dataset, before a model is fitted with them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from rff_dist import drawing, pipeline
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.evidence import TunedKernel
from rff_dist.feature_map import seed_from_random_state
from rff_dist.kernels import Kernel, find_kernel
from rff_dist.storage import ArrayDataset, open_dataset

__all__ = ["tune_length_scales"]


def tune_length_scales(
    kernel: str | Kernel,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    per_feature: bool = True,
    standardize: bool = True,
    n_samples: int = drawing.TUNING_ROWS,
    n_components: int = 256,
    n_starts: int = 4,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
) -> TunedKernel:
    """Choose a kernel's length scales by the evidence (marginal likelihood) of a seeded sample of rows.

    One width per column tells which inputs matter (automatic relevance determination) and is often worth
    more than any number of features; it takes seconds to a minute, O(n_samples · n_components²) for each of
    some hundred evaluations. Fit with the kernel and the alpha that it returns: the evidence's alpha
    can be far above GCV's, which is easily too small where few rows are far off.

    Parameters
    ----------
    kernel : name or Kernel
        Of one width, such as Gaussian or Matern; its own length scale is replaced.
    X : array-like of shape (n_samples, n_features), dataset, path or URL
        Inputs.
    y : array-like of shape (n_samples,) or (n_samples, n_targets), optional
        Left out for a dataset, which has its own. Several targets share the length scales.
    sample_weight : array-like of shape (n_samples,), optional
        How often a row counts in the likelihood; rows of weight 0 do not.
    per_feature : bool
        Whether each input column has a length scale of its own, or all have one.
    standardize : bool
        Whether the inputs' means and standard deviations are taken out first, by one pass, as `RFFRidge`
        does; the length scales are then in units of the standard deviations.
    n_samples : int
        Rows of the sample, at most.
    n_components : int
        Features of the searches, an even number; the ends of the searches are compared in four times as
        many others.
    n_starts : int
        Searches: from the median distance between rows, from √n_features times that, and from random
        places.
    random_state : int, Generator, RandomState or None
        The seed; None takes one from the operating system.

    Returns
    -------
    TunedKernel
        With `kernel`, `length_scale`, `alpha`, `noise_variance`, the evidence of each start, and whether
        the search that won has `converged`.

    Raises
    ------
    InvalidParameterError
        If the kernel has no width, or several, or a parameter is out of range.
    DataError
        If values are not finite, there are no targets, or the sample says nothing of a width.

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
    >>> model = RFFRidge(tuned.kernel, alpha=tuned.alpha, n_components=256, random_state=0).fit(X, y)
    """
    for name, value in (("per_feature", per_feature), ("standardize", standardize)):
        if not isinstance(value, bool | np.bool_):
            raise InvalidParameterError(f"`{name}` is {value!r}; expected True or False")
    found = find_kernel(kernel)
    if hasattr(X, "read") or isinstance(X, str | os.PathLike):
        if y is not None or sample_weight is not None:
            raise DataError("`y` and `sample_weight` belong to the dataset: leave them out, or pass arrays")
        dataset = X if hasattr(X, "read") else open_dataset(X)
    else:
        dataset = ArrayDataset(X, y, sample_weight)
    standardizer = None
    if standardize:
        standardizer = pipeline.standardizer_from(pipeline.inspect(dataset, engine=SerialEngine()))
    return drawing.tune(
        dataset,
        found,
        standardizer=standardizer,
        seed=seed_from_random_state(random_state),
        per_feature=per_feature,
        n_samples=n_samples,
        n_components=n_components,
        n_starts=n_starts,
    )
