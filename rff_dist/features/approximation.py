"""Is D large enough? The error of Z Z' against the exact kernel, measured on a sample of rows."""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import math
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike

from rff_dist.checks import as_array, check_count, check_name, check_positive, check_share
from rff_dist.data import blocks, memory
from rff_dist.data.samples import sample_inputs
from rff_dist.errors import DataError
from rff_dist.features import draw, maps
from rff_dist.frequencies import uniforms
from rff_dist.kernels import base, names
from rff_dist.typing import AnyArray, frozen

MEASURES = ("mean", "max", "operator_norm", "relative_operator_norm")


@frozen
class Estimate:
    """A mean over samples of rows, and its confidence interval.

    `low`, `high`: Student's interval for the mean; `low` is at least 0, since errors are.
    """

    value: float
    low: float
    high: float


@frozen
class ApproximationError:
    """How far Z Z' is from the kernel's Gram matrix K, on samples of rows.

    `mean`: the mean absolute entry of Z Z' - K.
    `max`: its largest absolute entry, which grows slowly with the rows of a sample.
    `operator_norm`: ‖Z Z' - K‖, its largest absolute eigenvalue, which grows with the rows, as ‖K‖ does.
    `relative_operator_norm`: ‖Z Z' - K‖ / ‖K‖.
    `gram_norm`: ‖K‖, the mean over the samples.
    `n_samples`, `n_repeats`: rows of a sample, and the number of samples; no row is in two of them.
    """

    mean: Estimate
    max: Estimate
    operator_norm: Estimate
    relative_operator_norm: Estimate
    gram_norm: float
    n_components: int
    n_samples: int
    n_repeats: int
    confidence: float

    def components_for(self, error: float, *, measure: str = "max") -> int:
        """Return the even D at which a measure would fall to `error`, by the 1/√D rate.

        Raises InvalidParameterError if the error is not above 0, or the measure is unknown.
        """
        wanted = check_positive(error, "error")
        check_name(measure, MEASURES, "measure")
        estimate: Estimate = getattr(self, measure)
        return 2 * max(1, math.ceil(self.n_components * (estimate.value / wanted) ** 2 / 2))


def approximation_error(
    kernel: str | base.Kernel,
    feature_map: maps.FeatureMap,
    X: ArrayLike | blocks.Dataset,
    *,
    n_samples: int = 500,
    n_repeats: int = 8,
    confidence: float = 0.95,
    random_state: int | np.random.Generator | np.random.RandomState | None = 0,
) -> ApproximationError:
    """Measure how far Z Z' is from the kernel, on several disjoint samples of rows.

    If the map standardises its inputs, the kernel sees standardised rows too. Only sampled rows of a dataset
    are read. O(n_repeats · (n_samples² · n_components + n_samples³)).

    The intervals say how much the errors vary with the rows: each is Student's, for the mean over the
    `n_repeats` samples. The feature map is one draw; the errors of draws with other seeds differ by more.

    Parameters
    ----------
    kernel : name or Kernel
        The kernel that is approximated, with its length scale in units of the (standardised) inputs. For a
        map that was drawn: `feature_map.spec.kernel`.
    X : array-like of shape (n_rows, n_features), or Dataset
        Rows of weight 0 are left out.
    n_samples : int
        Rows of one sample, at least 2; fewer if X has not enough for all samples.
    n_repeats : int
        Number of disjoint samples, at least 2.
    confidence : float
        Level of the intervals, between 0 and 1.
    random_state : int, Generator, RandomState or None
        Seed of the choice of rows.

    Raises
    ------
    InvalidParameterError
        If a parameter is out of range.
    DataError
        If X has another number of columns than the map expects, fewer than 2 rows for each sample, or values
        that are not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import Gaussian, approximation_error, draw_feature_map
    >>> X = np.random.default_rng(0).standard_normal((4000, 3))
    >>> feature_map = draw_feature_map(Gaussian(2.0), n_features=3, n_components=1024)
    >>> error = approximation_error(Gaussian(2.0), feature_map, X)
    >>> error.mean.value < 0.02, error.max.value < 0.15, error.relative_operator_norm.value < 0.05
    (True, True, True)
    """
    exact = names.find_kernel(kernel)
    exact.check_columns(feature_map.n_features)
    check_count(n_samples, "n_samples", least=2)
    check_count(n_repeats, "n_repeats", least=2)
    check_share(confidence, "confidence")
    seed = draw.seed_from_random_state(random_state)
    samples = _samples(X, n_samples, n_repeats, seed)
    measured = np.array([_measure(exact, feature_map, rows) for rows in samples])
    # Student's t: samples share no row, so their errors count as independent
    spread = scipy.special.stdtrit(n_repeats - 1, (1 + confidence) / 2) / math.sqrt(n_repeats)
    half_width = spread * measured.std(axis=0, ddof=1)
    *values, gram_norm = measured.mean(axis=0).tolist()
    found = zip(MEASURES, values, half_width.tolist(), strict=False)
    estimates: Any = {name: Estimate(value, max(0.0, value - h), value + h) for name, value, h in found}
    return ApproximationError(
        **estimates,
        gram_norm=gram_norm,
        n_components=feature_map.n_components,
        n_samples=len(samples[0]),
        n_repeats=n_repeats,
        confidence=float(confidence),
    )


def _samples(X: ArrayLike | blocks.Dataset, n_samples: int, n_repeats: int, seed: int) -> AnyArray:
    """Return disjoint samples of rows, of shape (n_repeats, n_samples, n_features)."""
    dataset = X if isinstance(X, blocks.Dataset) else memory.ArrayDataset(as_array(X, "X"))
    rows = sample_inputs(dataset, seed, n_rows=n_samples * n_repeats)
    size = min(n_samples, len(rows) // n_repeats)
    if size < 2:
        raise DataError(
            f"the data have {len(rows)} rows for {n_repeats} disjoint samples; "
            "expected at least 2 rows for each. Lower `n_repeats` or give more rows"
        )
    # rows come in the data's order
    order = np.random.Generator(uniforms.philox(seed, 1)).permutation(len(rows))
    return rows[order[: size * n_repeats]].reshape(n_repeats, size, -1)


def _measure(kernel: base.Kernel, feature_map: maps.FeatureMap, rows: AnyArray) -> list[float]:
    """Return mean, max, operator norm, relative operator norm and ‖K‖ of one sample."""
    gram, Z = kernel(feature_map.prepare(rows)), feature_map.transform(rows)
    # K is positive semi-definite, so its largest eigenvalue alone is its norm
    norm = float(scipy.linalg.eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0])
    if not norm > 0:
        raise DataError("the kernel is 0 on all sampled rows, so that no error is relative to it")
    error = Z @ Z.conj().T - gram
    size = np.abs(error)
    # a difference of two such matrices may have its largest eigenvalue at either end
    largest = float(np.abs(scipy.linalg.eigvalsh(error)[[0, -1]]).max())
    return [float(size.mean()), float(size.max()), largest, largest / norm, norm]
