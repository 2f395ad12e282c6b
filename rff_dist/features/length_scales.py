"""Length scales from a sample of rows: by the median distance, or by the evidence."""

from __future__ import annotations  # an evaluated annotation would load scipy.optimize

import itertools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from numpy.typing import NDArray

from rff_dist.checks import check_count
from rff_dist.data import blocks, samples
from rff_dist.errors import DataError, InvalidParameterError, SolveError
from rff_dist.features import maps
from rff_dist.frequencies import uniforms
from rff_dist.kernels import base, stationary
from rff_dist.numerics import machine
from rff_dist.text import short_repr
from rff_dist.typing import FloatArray

type Mask = NDArray[np.bool_]

logger = logging.getLogger(__name__)


class MedianDistances:
    """Length scales: the median distance between distinct rows of a seeded sample, in a kernel's metric.

    This is a first guess, right within a factor of a few for smooth targets. Cross-validation and the
    evidence are better but take longer. The sample is read once, when it is first needed.

    `seed`: of the sample of up to 1,000 rows.
    """

    def __init__(self, dataset: blocks.Dataset, standardizer: maps.Standardizer | None, *, seed: int) -> None:
        self._dataset, self._standardizer, self._seed = dataset, standardizer, seed
        self._medians: dict[tuple[str, tuple[int, ...] | None], float] = {}

    @cached_property
    def _points(self) -> FloatArray:
        sample = samples.sample_inputs(self._dataset, self._seed)
        return np.asarray(sample, np.float64) if self._standardizer is None else self._standardizer(sample)

    def __call__(self, kernel: stationary.Stationary, columns: tuple[int, ...] | None = None) -> float:
        """Return the length scale of a kernel that sees these input columns; all by default.

        It is in units of the (standardised) inputs, and 1 if all sampled rows are equal.
        """
        key = kernel.metric, columns
        if key not in self._medians:
            points = self._points if columns is None else self._points[:, list(columns)]
            median = median_distance(points, kernel)
            if median is None:
                logger.warning("all sampled rows are equal: the median heuristic gives a length scale of 1")
            self._medians[key] = 1.0 if median is None else median
        return self._medians[key]


def median_distance(points: FloatArray, kernel: stationary.Stationary) -> float | None:
    """Return `numpy.median(scipy.spatial.distance.pdist(numpy.unique(points, axis=0), metric))`.

    That is the median distance between distinct rows, in the kernel's metric; None if all are equal.

    Raises DataError if the distance is too small or large for float64.
    """
    # repeated rows say nothing about the scale, so they must not change it
    distances = scipy.spatial.distance.pdist(np.unique(points, axis=0), kernel.metric)
    if not len(distances):
        return None
    median = float(np.median(distances))
    if not 0 < median < np.inf:
        raise DataError(f"the median distance between rows is {median:g}; scale X to the order of 1")
    return median


# -- choose length scales by the evidence ----------------------------------------------------------
#
# The model is y = Zw + noise with w ~ N(0, signal variance). So y ~ N(0, σ²·(ZZ'/α + I)), where σ² is the
# noise variance, and α, its ratio to the signal variance, is ridge's penalty. Z depends on the length scales
# only through its angles, so the gradient costs two more matrix products than the evidence itself, for any
# number of columns.


TUNING_ROWS = 4000  # rows of the seeded sample whose evidence gives the length scales
LENGTH_SCALE_RANGE = 1e3  # the bounds are the median heuristic divided and multiplied by this
ALPHA_RANGE = (1e-8, 1e4)
FIRST_ALPHA = 0.1
PERTURBATION = 0.5  # standard deviation of a random start's log length scales
COMPARED_COMPONENTS = 2  # the comparison has this many times the components of the search
MAX_ITERATIONS = 200
_TOLERANCE = 1e-4  # in -2·log evidence per row and target: 0.1 nats for 2,000 rows


@dataclass(frozen=True, slots=True)
class TunedKernel:
    """A kernel with the length scales of the greatest evidence, and how they were found.

    `kernel`: with these length scales, in units of the (standardised) inputs.
    `alpha`: noise variance over signal variance: ridge's penalty, for any number of rows.
    `noise_variance`: of each target, in its units squared; NaN for a constant target.
    `log_evidence`: log density of the sample's targets, summed over targets, with the features of the
      comparison.
    `start_log_evidences`: the same at the end of each start's search.
    `converged`: whether the best search ended at a maximum, rather than at its limit of iterations.
    `n_evaluations`: how often all searches evaluated the evidence and its gradient.
    """

    kernel: stationary.Stationary
    alpha: float
    noise_variance: tuple[float, ...]
    log_evidence: float
    start_log_evidences: tuple[float, ...]
    converged: bool
    n_evaluations: int
    n_samples: int

    __repr__ = short_repr

    @property
    def length_scale(self) -> base.LengthScale:
        """The kernel's length scale: one number, or one per input column."""
        return self.kernel.length_scale  # type: ignore[return-value]  # made so by the kernel itself


def check_tunable(kernel: base.Kernel) -> stationary.Stationary:
    """Return the kernel if the evidence can tune it.

    Raises InvalidParameterError if it is a sum or product, or has no length scale.
    """
    if not isinstance(kernel, stationary.Stationary):
        raise InvalidParameterError(
            f"the evidence tunes kernels of one length scale, such as Gaussian or Matern, not {kernel}; "
            "give its length scales yourself"
        )
    return kernel


@dataclass(frozen=True, slots=True)
class Objective:
    """-2·log evidence per row and target without constants, as a function of log length scales and log α.

    `inputs`: float64 array of shape (n_samples, n_features).
    `targets`: float64 array of shape (n_samples, n_targets). Centred, and multiplied by `root_weights`.
    `root_weights`: float64 array of shape (n_samples,), or None. Square roots of the sample weights: a row of
      weight w counts w times in the likelihood.
    `frequencies`: float64 array of shape (n_features, n_frequencies). For a unit length scale.
    """

    inputs: FloatArray
    targets: FloatArray
    root_weights: FloatArray | None
    frequencies: FloatArray

    @property
    def n_observations(self) -> float:
        """The sum of the weights; without weights the number of rows."""
        return len(self.inputs) if self.root_weights is None else float((self.root_weights**2).sum())

    def features(self, length_scales: FloatArray) -> FloatArray:
        """Return Z of shape (n_samples, 2 · n_frequencies): all cosines, then all sines."""
        n_frequencies = self.frequencies.shape[1]
        angles = (self.inputs @ (self.frequencies / length_scales[:, np.newaxis])).astype(np.float32)
        Z = np.empty((len(angles), 2 * n_frequencies))
        np.cos(angles, out=Z[:, :n_frequencies], dtype=np.float32)
        np.sin(angles, out=Z[:, n_frequencies:], dtype=np.float32)
        Z *= n_frequencies**-0.5
        if self.root_weights is not None:
            Z *= self.root_weights[:, np.newaxis]
        return Z

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its gradient, O(n_samples · n_components² + n_components³).

        `parameters`: float64 array of shape (2,) or (n_features + 1,). Natural logarithms of one length scale
          for all columns, or one for each; then that of α.
        Source: Rasmussen & Williams (2006), eq. 5.8 and 5.9, in weight space, with σ² at its maximum.
        """
        n, n_targets = self.n_observations, self.targets.shape[1]
        scales = np.broadcast_to(np.exp(parameters[:-1]), len(self.frequencies))
        alpha = float(np.exp(parameters[-1]))
        Z = self.features(scales)
        n_components = Z.shape[1]
        gram = Z.T @ Z
        gram[np.diag_indices_from(gram)] += alpha
        factor, failed = scipy.linalg.lapack.dpotrf(gram, lower=1, overwrite_a=1)
        if failed:
            raise SolveError(f"Z'Z + alpha is not positive definite at alpha = {alpha:g}; scale X and y")
        weights, _ = scipy.linalg.lapack.dpotrs(factor, Z.T @ self.targets, lower=1)
        residuals = self.targets - Z @ weights
        squares = (weights**2).sum(axis=0)
        misfit = (residuals**2).sum(axis=0) + alpha * squares
        log_determinant = 2 * np.log(np.diag(factor)).sum() - n_components * np.log(alpha)
        value = n * np.log(misfit / n).sum() + n_targets * log_determinant

        lower, _ = scipy.linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)
        inverse = lower + lower.T  # above the diagonal, `lower` is 0
        inverse[np.diag_indices_from(inverse)] *= 0.5
        by_log_alpha = n * alpha * (squares / misfit).sum()
        by_log_alpha += n_targets * (alpha * np.trace(inverse) - n_components)
        by_Z = (2 * n_targets) * (Z @ inverse)
        by_Z -= residuals @ (2 * n / misfit * weights).T
        # The derivative of a cosine is minus the sine, the derivative of a sine is the cosine, and Z holds
        # both. It also holds the weights' roots, which the chain rule needs once.
        half = n_components // 2
        by_angle = by_Z[:, half:] * Z[:, :half] - by_Z[:, :half] * Z[:, half:]
        by_log_scale = -((self.inputs.T @ by_angle) * self.frequencies).sum(axis=1) / scales
        if len(parameters) == 2:
            by_log_scale = by_log_scale.sum(keepdims=True)
        count = n * n_targets
        return float(value) / count, np.append(by_log_scale, by_log_alpha) / count

    def log_evidence(self, length_scales: FloatArray) -> tuple[float, float, FloatArray]:
        """Return the log evidence at the best α for these length scales, this α, and the noise variances.

        One eigendecomposition serves all α. A row with a whole number as its weight counts as so many rows.
        """
        n, n_targets = self.n_observations, self.targets.shape[1]
        Z = self.features(length_scales)
        gram = Z.T @ Z
        values, vectors = scipy.linalg.eigh(gram, driver="evd", overwrite_a=True, check_finite=False)
        eigenvalues = np.maximum(values, 0.0)
        projected = vectors.T @ (Z.T @ self.targets)
        total = (self.targets**2).sum(axis=0)
        least = len(eigenvalues) * np.finfo(np.float64).eps * total  # a smaller misfit is rounding

        def misfit(alpha: float) -> FloatArray:
            explained = (projected**2 / (eigenvalues + alpha)[:, np.newaxis]).sum(axis=0)
            return np.asarray(np.maximum(total - explained, least))

        def value(log_alpha: float) -> float:
            log_determinant = np.log1p(eigenvalues * np.exp(-log_alpha)).sum()
            return float(n * np.log(misfit(np.exp(log_alpha)) / n).sum() + n_targets * log_determinant)

        grid = np.linspace(np.log(ALPHA_RANGE[0]), np.log(ALPHA_RANGE[1]), 49)
        best = int(np.argmin([value(x) for x in grid]))
        around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        end = scipy.optimize.minimize_scalar(value, bounds=around, method="bounded", options={"xatol": 1e-3})
        alpha = float(np.exp(end.x))
        constants = n * n_targets * (np.log(2 * np.pi) + 1)
        return float(-0.5 * (end.fun + constants)), alpha, misfit(alpha) / n


@dataclass(frozen=True, slots=True)
class EvidenceSearch:
    """How length scales are searched for.

    `per_feature`: whether each input column has its own length scale; columns that do not matter get large
      ones.
    `n_samples`: the most rows of a dataset that are used.
    `n_components`: number of features in the searches; even.
    `n_starts`: number of searches, one per CPU at the same time. The first starts at the median distance
      between rows, the second at √n_features times that, the others at random multiples of it.
    Raises InvalidParameterError if a number is out of range.
    """

    per_feature: bool = True
    n_samples: int = TUNING_ROWS
    n_components: int = 256
    n_starts: int = 4

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_components", "n_starts"):
            object.__setattr__(self, name, check_count(getattr(self, name), name))
        if self.n_components % 2:
            raise InvalidParameterError(f"`n_components` is {self.n_components}; expected an even number")


def likelihood_weights(sample_weight: FloatArray, *, repeated: bool) -> FloatArray:
    """Return how often each row counts in the likelihood, shape (n_samples,).

    Weights that do not repeat rows are scaled so that their sum is Kish's effective number of rows,
    (Σw)²/Σw². A factor on all weights then changes nothing.

    `sample_weight`: float64 array of shape (n_samples,). Above 0.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Raises DataError if weights that repeat rows are not whole.
    Source: Kish (1965), Survey Sampling.
    """
    if not repeated:
        relative = sample_weight / sample_weight.max()  # so that squares stay in float64's range
        return np.asarray(relative * (relative.sum() / (relative**2).sum()))
    if len(broken := sample_weight[sample_weight != np.rint(sample_weight)]):
        problem = f"a sample weight is {broken[0]:g}, but these weights say how many times a row is there"
        raise DataError(f"{problem}; give whole numbers")
    return sample_weight


def maximize_evidence(
    kernel: base.Kernel,
    X: FloatArray,
    y: FloatArray,
    weights: FloatArray | None = None,
    *,
    search: EvidenceSearch = EvidenceSearch(),
    seed: int = 0,
    told: Callable[[int, int], None] | None = None,
) -> TunedKernel:
    """Choose a kernel's length scales by the evidence of rows in memory.

    Each start has frequencies of its own, drawn once, and climbs by L-BFGS-B. The ends are compared in other
    features with twice as many frequencies, so that a search that fitted the length scales to its own draw
    does not win. O(n_samples · n_components²) for each of a few hundred evaluations. The result does not
    depend on the number of threads.

    `kernel`: its own length scale is replaced.
    `X`: float64 array of shape (n_samples, n_features). (Standardised) inputs; finite.
    `y`: float64 array of shape (n_samples, n_targets). Targets share the length scales and α. Their means are
      subtracted, and constant targets are left out.
    `weights`: float64 array of shape (n_samples,). How often a row counts; see `likelihood_weights`.
    `told`: called from several threads with the number of steps taken, and how many there may be.
    Raises InvalidParameterError if the kernel is not one with a length scale; DataError if all targets are
      constant, or all rows of X are equal.
    Source: Rasmussen & Williams (2006), Sec. 5.4.1; Lázaro-Gredilla et al. (2010), Sparse spectrum Gaussian
      process regression, JMLR 11, but with fixed frequencies.
    """
    tunable = check_tunable(kernel)
    n_starts, per_feature, (n_samples, n_features) = search.n_starts, search.per_feature, X.shape
    targets, largest, varying = _scaled_targets(y, weights)
    inputs, units = _scaled_inputs(X, per_feature)
    sampled = inputs[:: -(-n_samples // samples.HEURISTIC_ROWS)]
    median = median_distance(sampled, tunable)
    if median is None:
        problem = f"all of {len(sampled):_} sampled rows of X are equal, so no length scale beats another"
        raise DataError(f"{problem}; give a `length_scale`")
    roots = None if weights is None else np.sqrt(weights)
    if roots is not None:
        targets *= roots[:, np.newaxis]
    unit, design = tunable.with_length_scale(1.0), base.design_for(tunable)

    def objective(index: int, width: int) -> Objective:
        seed_of_start = uniforms.derived_seed(seed, 1 + index)
        frequencies = unit.draw(design, n_features, width // 2, seed_of_start, first=0)
        return Objective(inputs, targets, roots, frequencies)

    starts = _starts(n_starts, n_features if per_feature else 1, n_features, seed) + np.log(median)
    steps = itertools.count(1)

    def count(_: FloatArray) -> None:
        if told is not None:
            told(next(steps), n_starts * MAX_ITERATIONS)

    # one BLAS thread each: with more, products and so the result would depend on their number
    with machine.limit_blas(1), ThreadPoolExecutor(min(machine.available_cores(), n_starts)) as pool:
        objectives = [objective(i, search.n_components) for i in range(n_starts)]
        searches = list(pool.map(lambda i: _search(objectives[i], starts[i], median, count), range(n_starts)))
        referee = objective(n_starts, COMPARED_COMPONENTS * search.n_components)
        ends = [np.broadcast_to(np.exp(climbed.x[:-1]), n_features) for climbed in searches]
        evidences = [referee.log_evidence(end) for end in ends]
    best = max(range(n_starts), key=lambda i: evidences[i][0])
    _, alpha, noise = evidences[best]
    all_noise = np.full(y.shape[1], np.nan)
    with np.errstate(over="ignore"):  # beyond float64 a variance is infinite, while log evidences are not
        all_noise[varying] = noise * largest**2
    offset = referee.n_observations * np.log(largest).sum()
    log_evidences = [float(evidence[0] - offset) for evidence in evidences]
    scales = ends[best] * units
    tuned = TunedKernel(
        kernel=tunable.with_length_scale(scales if per_feature else float(scales[0])),
        alpha=alpha,
        noise_variance=tuple(all_noise.tolist()),
        log_evidence=log_evidences[best],
        start_log_evidences=tuple(log_evidences),
        converged=bool(searches[best].success),
        n_evaluations=sum(climbed.nfev for climbed in searches),
        n_samples=n_samples,
    )
    _report(tuned, searches[best])
    return tuned


def _scaled_targets(y: FloatArray, weights: FloatArray | None) -> tuple[FloatArray, FloatArray, Mask]:
    """Return the targets that vary, centred and divided by their largest entry; these; and which vary."""
    centred = y - np.average(y, axis=0, weights=weights)
    varying = np.abs(centred).max(axis=0) > 1e-12 * np.abs(y).max(axis=0)  # means of constants are rounded
    if not varying.any():
        raise DataError(
            f"all targets are constant in the sample of {len(y):_} rows, which says nothing about length "
            "scales; give a `length_scale`, or 'auto'"
        )
    largest = np.abs(centred[:, varying]).max(axis=0)  # so that no square overflows
    return centred[:, varying] / largest, largest, varying


def _scaled_inputs(X: FloatArray, per_feature: bool) -> tuple[FloatArray, FloatArray]:
    """Return the inputs centred and in units of their columns, and these units, shape (n_features,)."""
    inputs = X - X.mean(axis=0)  # this changes only the precision of the angles
    if not per_feature:
        return inputs, np.ones(X.shape[1])
    deviations = inputs.std(axis=0)
    units = np.where(deviations > 0, deviations, 1.0)  # all columns start alike
    return inputs / units, units


def _starts(n_starts: int, n_scales: int, n_features: int, seed: int) -> FloatArray:
    """Return log multiples of the median distance to start from, shape (n_starts, n_scales)."""
    starts = np.zeros((n_starts, n_scales))
    starts[1:2] = 0.5 * np.log(n_features)
    rng = np.random.Generator(np.random.Philox(seed))
    starts[2:] = PERTURBATION * rng.standard_normal(starts[2:].shape)
    return starts


def _search(
    objective: Objective, start: FloatArray, median: float, count: Callable[[FloatArray], None]
) -> scipy.optimize.OptimizeResult:
    reach = np.log(median) + np.array([-1, 1]) * np.log(LENGTH_SCALE_RANGE)
    bounds = [tuple(reach)] * len(start) + [tuple(np.log(ALPHA_RANGE))]
    return scipy.optimize.minimize(
        objective,
        np.append(start, np.log(FIRST_ALPHA)),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=count,
        options={"maxiter": MAX_ITERATIONS, "maxcor": 20, "ftol": _TOLERANCE, "gtol": 1e-5},
    )


def _report(tuned: TunedKernel, search: scipy.optimize.OptimizeResult) -> None:
    evidences = ", ".join(f"{value:.6g}" for value in tuned.start_log_evidences)
    message = "evidence of %d rows after %d evaluations, by start: %s; alpha %.3g"
    logger.debug(message, tuned.n_samples, tuned.n_evaluations, evidences, tuned.alpha)
    if not tuned.converged:
        message = (
            "length scales: the search stopped before it converged (%s); try more starts or another seed"
        )
        logger.warning(message, search.message)
