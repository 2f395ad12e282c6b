"""Is D large enough? The error of Z Z' against the exact kernel, measured on a sample of rows."""

from __future__ import annotations  # an evaluated annotation would load numpy.random

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from rff_dist.checks import as_array, check_count, check_name, check_positive, check_share
from rff_dist.data import blocks, memory
from rff_dist.data.samples import sample_inputs
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features import draw, feature_options, fourier, maps
from rff_dist.frequencies import uniforms
from rff_dist.kernels import base, names

type Measure = Literal["mean", "max", "operator_norm", "relative_operator_norm"]

MEASURES = get_args(Measure.__value__)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over samples of rows, and its confidence interval.

    `low`, `high`: Student's interval for the mean; `low` is at least 0, since errors are.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
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

    def components_for(self, error: float, *, measure: Measure = "max") -> int:
        """Return the even D at which a measure would fall to `error`, by the 1/√D rate.

        Raises InvalidParameterError if the error is not above 0, or the measure is unknown.
        """
        wanted = check_positive(error, "error")
        check_name(measure, MEASURES, "measure")
        estimate: Estimate = getattr(self, measure)
        return 2 * max(1, math.ceil(self.n_components * (estimate.value / wanted) ** 2 / 2))


@dataclass(frozen=True, slots=True)
class Sampling:
    """The samples of rows that an error is measured on.

    `n_samples`, `n_repeats`: rows of a sample, and the number of disjoint samples: at least 2 of each.
    `confidence`: of the intervals, between 0 and 1.
    `seed`: of the choice of rows.
    Raises InvalidParameterError if one is out of range.
    """

    n_samples: int = 500
    n_repeats: int = 8
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        check_count(self.n_samples, "n_samples", least=2)
        check_count(self.n_repeats, "n_repeats", least=2)
        check_share(self.confidence, "confidence")


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
    sampling = Sampling(n_samples, n_repeats, confidence, draw.seed_from_random_state(random_state))
    (error,) = error_curve(kernel, feature_map, X, [feature_map.n_components], sampling)
    return error


def error_curve(
    kernel: str | base.Kernel,
    feature_map: maps.FeatureMap,
    X: ArrayLike | blocks.Dataset,
    n_components: Sequence[int],
    sampling: Sampling = Sampling(),
) -> list[ApproximationError]:
    """Measure the error for several numbers of components, on the same samples; see `approximation_error`.

    The first components of Fourier features are the features of a smaller draw, so the whole curve costs as
    much as its last point. Other maps are drawn again for each point.

    `n_components`: the numbers of components, each at most that of the map.
    Returns `errors`: one for each number of components, in ascending order.
    Raises InvalidParameterError if a parameter is out of range, or the map can neither be cut nor drawn
      again.
    """
    exact = names.find_kernel(kernel)
    exact.check_columns(feature_map.n_features)
    widths, n_repeats = _check_widths(feature_map, n_components), sampling.n_repeats
    samples = _samples(X, sampling)
    # axes: sample, number of components, measure
    measured = np.array([_measure(exact, feature_map, rows, widths) for rows in samples])
    centre = measured.mean(axis=0)
    # Student's t: samples share no row, so their errors count as independent
    spread = scipy.special.stdtrit(n_repeats - 1, (1 + sampling.confidence) / 2) / math.sqrt(n_repeats)
    half_width = spread * measured.std(axis=0, ddof=1)
    counts: Any = {"n_samples": len(samples[0]), "n_repeats": n_repeats}
    errors = []
    for D, values, half in zip(widths, centre.tolist(), half_width.tolist(), strict=True):
        found = zip(MEASURES, values[:-1], half[:-1], strict=True)
        estimates: Any = {name: Estimate(value, max(0.0, value - h), value + h) for name, value, h in found}
        facts = {"gram_norm": values[-1], "n_components": D, "confidence": float(sampling.confidence)}
        errors.append(ApproximationError(**estimates, **facts, **counts))
    return errors


def _check_widths(feature_map: maps.FeatureMap, n_components: Sequence[int]) -> list[int]:
    map_name = getattr(feature_map, "map", "") if _nested(feature_map) else ""
    widths = sorted({feature_options.check_n_components(D, map_name) for D in n_components})
    if not widths or widths[-1] > feature_map.n_components:
        raise InvalidParameterError(
            f"`n_components` is {list(n_components)}; expected numbers up to {feature_map.n_components}, "
            "the components of the feature map"
        )
    if widths != [feature_map.n_components] and not _nested(feature_map) and feature_map.spec is None:
        problem = "this feature map has no spec from which fewer components could be drawn"
        raise InvalidParameterError(f"{problem}; measure it only at its own {feature_map.n_components}")
    return widths


def _nested(feature_map: maps.FeatureMap) -> bool:
    return isinstance(feature_map, fourier.FourierFeatureMap | fourier.ComplexFeatureMap)


def _samples(X: ArrayLike | blocks.Dataset, sampling: Sampling) -> NDArray[Any]:
    """Return disjoint samples of rows, of shape (n_repeats, n_samples, n_features)."""
    n_repeats, seed = sampling.n_repeats, sampling.seed
    dataset = X if isinstance(X, blocks.Dataset) else memory.ArrayDataset(as_array(X, "X"))
    rows = sample_inputs(dataset, seed, n_rows=sampling.n_samples * n_repeats)
    size = min(sampling.n_samples, len(rows) // n_repeats)
    if size < 2:
        problem = f"the data have {len(rows)} rows for {n_repeats} disjoint samples"
        raise DataError(f"{problem}; expected at least 2 rows for each. Lower `n_repeats` or give more rows")
    # rows come in the data's order
    order = np.random.Generator(uniforms.philox(seed, 1)).permutation(len(rows))
    return rows[order[: size * n_repeats]].reshape(n_repeats, size, -1)


def _measure(
    kernel: base.Kernel, feature_map: maps.FeatureMap, rows: NDArray[Any], widths: Sequence[int]
) -> list[tuple[float, float, float, float, float]]:
    """Return mean, max, operator norm, relative operator norm and ‖K‖, for each number of components."""
    gram = kernel(feature_map.prepare(rows))
    # K is positive semi-definite, so its largest eigenvalue alone is its norm
    norm = float(scipy.linalg.eigvalsh(gram, subset_by_index=[len(gram) - 1] * 2)[0])
    if not norm > 0:
        raise DataError("the kernel is 0 on all sampled rows, so that no error is relative to it")
    measured = []
    for estimate in _estimates(feature_map, rows, widths):
        error = estimate - gram
        size = np.abs(error)
        # a difference of two such matrices may have its largest eigenvalue at either end
        largest = float(np.abs(scipy.linalg.eigvalsh(error)[[0, -1]]).max())
        measured.append((float(size.mean()), float(size.max()), largest, largest / norm, norm))
    return measured


def _estimates(feature_map: maps.FeatureMap, rows: NDArray[Any], widths: Sequence[int]) -> Iterator[Any]:
    """Yield Z Z' for each number of components."""
    if not _nested(feature_map):
        for D in widths:
            Z = _with_components(feature_map, D).transform(rows)
            yield Z @ Z.conj().T
        return
    Z = feature_map.transform(rows)
    start, total = 0, np.zeros((len(rows), len(rows)), Z.dtype)
    for D in widths:
        # Z Z' is a sum over components, so each width adds only those since the width before
        total += Z[:, start:D] @ Z[:, start:D].conj().T
        yield total * (feature_map.n_components / D)  # Z is scaled for the mean over all components
        start = D


def _with_components(feature_map: maps.FeatureMap, n_components: int) -> maps.FeatureMap:
    if n_components == feature_map.n_components:
        return feature_map
    assert feature_map.spec is not None  # checked beforehand
    return draw.draw_from_spec(replace(feature_map.spec, n_components=n_components), feature_map.standardizer)
