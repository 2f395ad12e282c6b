"""Length scales from a sample of rows: by the median distance, or by the evidence, or
for classes by the log loss of rows left out in turn.
"""

from __future__ import annotations  # an evaluated annotation would load scipy.optimize

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from rff_dist.checks import check_count
from rff_dist.data import blocks, samples
from rff_dist.errors import DataError, InvalidParameterError, SolveError
from rff_dist.features import left_out, maps
from rff_dist.frequencies import designs, uniforms
from rff_dist.kernels import base, stationary
from rff_dist.numerics import lapack, machine
from rff_dist.text import short_repr
from rff_dist.typing import EPS, BoolArray, FloatArray, IndexArray, frozen

type _Function = Callable[[FloatArray], tuple[float, FloatArray]]

logger = logging.getLogger(__name__)


class MedianDistances:
    """Length scales: the median distance between distinct rows of a seeded sample, in a
    kernel's metric.

    This is a first guess, right within a factor of a few for smooth targets.
    Cross-validation and the evidence are better but take longer. The sample is read
    once, when it is first needed.

    `seed`: of the sample of up to 1,000 rows.
    """

    def __init__(
        self,
        dataset: blocks.Dataset,
        standardizer: maps.Standardizer | None,
        *,
        seed: int,
    ) -> None:
        self._dataset = dataset
        self._standardizer = standardizer
        self._seed = seed
        self._medians: dict[tuple[Any, ...], float] = {}

    @cached_property
    def _points(self) -> FloatArray:
        sample = samples.sample_inputs(self._dataset, self._seed)
        return (
            np.asarray(sample, np.float64)
            if self._standardizer is None
            else self._standardizer(sample)
        )

    def __call__(
        self, kernel: stationary.Stationary, columns: tuple[int, ...] | None = None
    ) -> float:
        """Return the length scale of a kernel that sees these input columns; all by
        default.

        It is in units of the (standardised) inputs, and 1 if all sampled rows are
        equal.
        """
        key = kernel.metric, columns, kernel.categories
        if key not in self._medians:
            points = self._points if columns is None else self._points[:, list(columns)]
            median = median_distance(points, kernel)
            if median is None:
                logger.warning(
                    "all sampled rows are equal: the median heuristic gives a length"
                    " scale of 1"
                )
            self._medians[key] = 1.0 if median is None else median
        return self._medians[key]


def median_distance(points: FloatArray, kernel: stationary.Stationary) -> float | None:
    """Return `numpy.median(scipy.spatial.distance.pdist(numpy.unique(points, axis=0),
    metric))`.

    That is the median distance between distinct rows, in the kernel's metric; None if
    all are equal.

    Raises DataError if the distance is too small or large for float64.
    """
    # repeated rows say nothing about the scale, so they must not change it
    distinct = np.unique(points, axis=0)
    as_points = stationary.as_points(
        distinct, np.ones(points.shape[1]), kernel.categories
    )
    distances = as_points.distances_between(kernel.metric)
    if not len(distances):
        return None
    median = float(np.median(distances))
    if not 0 < median < np.inf:
        raise DataError(
            f"the median distance between rows is {median:g}; scale X to the order of 1"
        )
    return median


# -- choose length scales by the evidence
# ----------------------------------------------------------
#
# The model is y = f(x) + noise, where f is a Gaussian process with covariance signal
# variance · k. So y ~ N(0, σ²·(K/α + I)), where σ² is the noise variance, and α, its
# ratio to the signal variance, is ridge's penalty. With features K is ZZ', and Z
# depends on the length scales only through its angles, so the gradient costs two more
# matrix products than the evidence itself, for any number of columns.
#
# Searches end in local maxima, so that short ones, with the kernel itself on few rows,
# choose where to climb. The end is polished with features of all rows: a kernel of huge
# length scales and a tiny α can be best, but no Fourier features follow it. For Nyström
# features the kernel itself polishes it, on fewer rows.


TUNING_ROWS = 4000  # rows of the seeded sample whose evidence gives the length scales
# of each short search, of at most `CLIMBED_ROWS`
START_ROWS = 250
START_STEPS = 8
ROWS_PER_COLUMN = 10  # that a short search has at least
# On 250 rows additive kernels take 0.88 of the time, and err 1.2 times as much on
# concrete.
CLIMBED_ROWS = 400
# Rows of classes in each part whose left-out log loss is averaged. With fewer rows the
# evidence overfits less: titanic, with 334, would err by 0.413 for 0.405. Two parts of
# 1,000 in place of four took 3 times as long, for 0.96 times the loss on letter.
ROWS_OF_PART = 500
# of the search for the weights of an additive kernel
ROWS_OF_WEIGHTS = 600
# whose evidence tells which start of that search ended best
ROWS_OF_JUDGE = 1200
# of the median distance, where one of its starts is
SHORT_START = 0.3
FEW_STARTS = 2
MANY_STARTS = 12
MANY_COLUMNS = 16
# the bounds are the median heuristic divided and multiplied by this
LENGTH_SCALE_RANGE = 1e3
LOGIT_RANGE = 8.0  # about the logit of equal weights
ALPHA_RANGE = (1e-8, 1e4)
FIRST_ALPHA = 0.1
PERTURBATION = 0.5  # standard deviation of a random start's log length scales
# the evidence that is returned has this many times the components of the polish
COMPARED_COMPONENTS = 2
MAX_ITERATIONS = 200
_TOLERANCE = 1e-4  # in -2·log evidence per row and target: 0.1 nats for 2,000 rows
# in shares of the log loss without inputs, which 2,000 rows tell to 1e-2 at best
_TOLERANCE_OF_CLASSES = 3e-4


@frozen
class TunedKernel:
    """A kernel with the length scales of the largest evidence, and facts about the
    search.
    """

    #: with these length scales, in units of the (standardised) inputs
    kernel: stationary.Stationary
    #: noise variance over signal variance: ridge's penalty, for any number of rows
    alpha: float
    #: of each target, in its units squared; NaN for a constant target
    noise_variance: tuple[float, ...]
    #: log density of `n_samples` targets, summed over targets, with many features or
    #: the kernel itself
    log_evidence: float
    #: whether the last search ended at a maximum, rather than at its limit of
    #: iterations
    converged: bool
    #: how many times all searches evaluated the evidence and its gradient
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
            "the evidence tunes kernels of one length scale, such as Gaussian or"
            f" Matern, not {kernel}; give its length scales yourself"
        )
    return kernel


@frozen
class EvidenceRows:
    """Rows whose evidence is sought."""

    #: float64 array of shape (n_samples, n_features)
    inputs: FloatArray
    #: float64 array of shape (n_samples, n_targets). Centred, and multiplied by
    #: `root_weights`.
    targets: FloatArray
    #: float64 array of shape (n_samples,), or None. Square roots of the sample weights:
    #: a row of weight w counts w times in the likelihood.
    root_weights: FloatArray | None
    #: of classes, whose left-out log loss is sought in place of the evidence
    labels: left_out.Labels | None = None

    @property
    def n_observations(self) -> float:
        """The sum of the weights; without weights the number of rows."""
        return (
            len(self.inputs)
            if self.root_weights is None
            else float((self.root_weights**2).sum())
        )

    def some(self, n_samples: int) -> EvidenceRows:
        """Return up to so many of them, evenly spaced."""
        total = len(self.inputs)
        kept = np.arange(min(n_samples, total)) * total // min(n_samples, total)
        return self._at(kept)

    def parts(self, n_samples: int) -> list[EvidenceRows]:
        """Return all of them, in parts of at most so many rows, evenly spaced."""
        n_parts = -(-len(self.inputs) // n_samples)
        return [self._at(slice(first, None, n_parts)) for first in range(n_parts)]

    def _at(self, rows: IndexArray | slice) -> EvidenceRows:
        roots = None if self.root_weights is None else self.root_weights[rows]
        labels = None if self.labels is None else self.labels.some(rows)
        return EvidenceRows(self.inputs[rows], self.targets[rows], roots, labels)

    def weigh(self, gram: FloatArray) -> FloatArray:
        """Return a matrix of these rows, times the roots of the weights on both
        sides.
        """
        roots = self.root_weights
        return gram if roots is None else gram * np.multiply.outer(roots, roots)

    def log_evidence(
        self, eigenvalues: FloatArray, projected: FloatArray
    ) -> tuple[float, float, FloatArray]:
        """Return the log evidence at the best α, this α, and the noise variances.

        One eigendecomposition serves all α. A row with a whole number as its weight
        counts as so many rows.

        `eigenvalues`: float64 array of shape (k,). Of the Gram matrix ZZ' or of Z'Z.
        `projected`: float64 array of shape (k, n_targets). Z'y in the eigenvectors of
        Z'Z.
        """
        n = self.n_observations
        n_targets = self.targets.shape[1]
        total = (self.targets**2).sum(axis=0)
        # log evidence: −½·[n·log(2πσ²) + n + log det(I + K/α)], where σ² = misfit/n is
        # the maximising noise
        least = len(eigenvalues) * EPS * total  # a smaller misfit is rounding

        def misfit(alpha: float) -> FloatArray:
            explained = (projected**2 / (eigenvalues + alpha)[:, np.newaxis]).sum(
                axis=0
            )
            return np.asarray(np.maximum(total - explained, least))

        def value(log_alpha: float) -> float:
            log_determinant = np.log1p(eigenvalues * np.exp(-log_alpha)).sum()
            return float(
                n * np.log(misfit(np.exp(log_alpha)) / n).sum()
                + n_targets * log_determinant
            )

        # the evidence may have several maxima in α: a grid, a factor of 1.8 apart,
        # finds the bracket of the best
        grid = np.linspace(np.log(ALPHA_RANGE[0]), np.log(ALPHA_RANGE[1]), 49)
        best = int(np.argmin([value(x) for x in grid]))
        around = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
        end = scipy.optimize.minimize_scalar(
            value, bounds=around, method="bounded", options={"xatol": 1e-3}
        )
        alpha = float(np.exp(end.x))
        constants = n * n_targets * (np.log(2 * np.pi) + 1)
        return float(-0.5 * (end.fun + constants)), alpha, misfit(alpha) / n


@frozen
class ExactObjective:
    """-2·log evidence per row and target without constants, with the kernel itself: for
    few rows. Of classes it is the log loss of rows left out one by one, a share of that
    without inputs.

    A function of log length scales, the logits of the kernel's parts, and log α.
    """

    rows: EvidenceRows
    #: a `differentiable` one
    kernel: stationary.Stationary

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its gradient, O(n_samples³).

        `parameters`: float64 array of shape (n_scales + n_logits + 1,). Natural
          logarithms of one length scale for all columns, or one for each; logits; then
          the logarithm of α.

        Source: Rasmussen & Williams (2006), eq. 5.8 and 5.9, with σ² at its maximum.
        """
        rows = self.rows
        n = rows.n_observations
        n_targets = rows.targets.shape[1]
        kernel = kernel_at(self.kernel, parameters[:-1], rows.inputs.shape[1])
        alpha = float(np.exp(parameters[-1]))
        gram, derivatives = kernel.differentiate(rows.inputs)
        covariance = rows.weigh(gram)
        covariance[np.diag_indices_from(covariance)] += alpha
        factor, solved = _factor_and_solve(covariance, rows.targets, alpha)
        if rows.labels is not None:
            loss, by_covariance = rows.labels.left_out_loss(solved, _inverse(factor))
            by_log_alpha = alpha * np.trace(by_covariance)
            return loss, self._gradient(
                parameters, derivatives(rows.weigh(by_covariance)), by_log_alpha
            )
        # targets are up to 1, but those of a few rows may all be at the mean
        # y'(I + K/α)⁻¹y = α·y'(K + α)⁻¹y
        misfit = np.maximum(alpha * (rows.targets * solved).sum(axis=0), 1e-30)
        log_determinant = 2 * np.log(np.diag(factor)).sum() - len(factor) * np.log(
            alpha
        )
        value = n * np.log(misfit / n).sum() + n_targets * log_determinant

        inverse = _inverse(factor)
        # α·∂misfit/∂α = misfit − α²·‖(K + α)⁻¹y‖²
        by_log_alpha = n * (1 - alpha**2 * (solved**2).sum(axis=0) / misfit).sum()
        by_log_alpha += n_targets * (alpha * np.trace(inverse) - len(factor))
        # ∂log det = tr((K + α)⁻¹·∂K), ∂misfit = −α·y'(K + α)⁻¹·∂K·(K + α)⁻¹y; shape
        # (n_samples, n_samples)
        by_covariance = n_targets * inverse - (n * alpha / misfit * solved) @ solved.T
        by_parameters = derivatives(rows.weigh(by_covariance))
        count = n * n_targets
        gradient = self._gradient(parameters, by_parameters, by_log_alpha)
        return float(value) / count, gradient / count

    def _gradient(
        self, parameters: FloatArray, by_parameters: FloatArray, by_log_alpha: float
    ) -> FloatArray:
        # one length scale moves all columns' scales alike, so their derivatives add up
        if len(parameters) - 1 - len(self.kernel.logits) == 1:
            n_features = self.rows.inputs.shape[1]
            by_parameters = np.append(
                by_parameters[:n_features].sum(), by_parameters[n_features:]
            )
        return np.append(by_parameters, by_log_alpha)

    def log_evidence(self, parameters: FloatArray) -> tuple[float, float, FloatArray]:
        """Return what `EvidenceRows.log_evidence` does, O(n_samples³), at these
        logarithms of scales, and logits.
        """
        inputs = self.rows.inputs
        kernel = kernel_at(self.kernel, parameters, inputs.shape[1])
        eigenvalues, vectors = _decompose(self.rows.weigh(kernel.gram(inputs, inputs)))
        projected = np.sqrt(eigenvalues)[:, np.newaxis] * (
            vectors.T @ self.rows.targets
        )
        return self.rows.log_evidence(eigenvalues, projected)


def kernel_at(
    kernel: stationary.Stationary, parameters: FloatArray, n_features: int
) -> stationary.Stationary:
    """Return the kernel with these logarithms of length scales, one for each column,
    and logits.
    """
    n_scales = len(parameters) - len(kernel.logits)
    scales = np.broadcast_to(np.exp(parameters[:n_scales]), n_features)
    return kernel.with_logits(parameters[n_scales:]).with_length_scale(scales)


def _factor_and_solve(
    matrix: FloatArray, right: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """Return the Cholesky factor of a symmetric matrix, which is overwritten, and the
    solution.

    LAPACK's lower triangle is the upper one in C's order; below it, the factor keeps
    what was there.
    """
    factor = np.ascontiguousarray(matrix)
    solved = np.array(right, order="F")
    n = len(matrix)
    try:
        lapack.call("dpotrf", b"L", n, factor, n)
    except SolveError as error:
        raise SolveError(
            f"Z'Z + alpha is not positive definite at alpha = {alpha:g}; scale X and y"
        ) from error
    lapack.call("dpotrs", b"L", n, solved.shape[1], factor, n, solved, n)
    return factor, solved


def _inverse(factor: FloatArray) -> FloatArray:
    """Return the inverse of the matrix with this Cholesky factor, which is
    overwritten.
    """
    lapack.call("dpotri", b"L", len(factor), factor, len(factor))
    upper = np.triu(factor)
    inverse = upper + upper.T
    inverse[np.diag_indices_from(inverse)] *= 0.5
    return np.asarray(inverse)


@frozen
class Objective:
    """`ExactObjective` with features in place of the kernel, and without logits: for
    any number of rows.
    """

    rows: EvidenceRows
    #: float64 array of shape (n_features, n_frequencies). For a unit length scale.
    frequencies: FloatArray
    #: of each column of categories: the angles of its levels for a unit length scale,
    #: shape (n_levels, n_frequencies), and the level of each row
    levels: Mapping[int, tuple[FloatArray, IndexArray]] = field(default_factory=dict)

    def features(self, length_scales: FloatArray) -> FloatArray:
        """Return Z of shape (n_samples, 2 · n_frequencies): all cosines, then all
        sines.
        """
        n_frequencies = self.frequencies.shape[1]
        projected = self.rows.inputs @ (self.frequencies / length_scales[:, np.newaxis])
        for column, (unit_angles, places) in self.levels.items():
            projected += (unit_angles / length_scales[column])[places]
        angles = projected.astype(np.float32)
        Z = np.empty((len(angles), 2 * n_frequencies))
        np.cos(angles, out=Z[:, :n_frequencies], dtype=np.float32)
        np.sin(angles, out=Z[:, n_frequencies:], dtype=np.float32)
        Z *= n_frequencies**-0.5
        if self.rows.root_weights is not None:
            Z *= self.rows.root_weights[:, np.newaxis]
        return Z

    def __call__(self, parameters: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its gradient, O(n_samples · n_components² +
        n_components³).

        `parameters`: float64 array of shape (2,) or (n_features + 1,). Natural
          logarithms of one length scale for all columns, or one for each; then that of
          α.

        Source: Rasmussen & Williams (2006), eq. 5.8 and 5.9, in weight space, with σ²
        at its maximum.
        """
        n = self.rows.n_observations
        n_targets = self.rows.targets.shape[1]
        scales = np.broadcast_to(np.exp(parameters[:-1]), len(self.frequencies))
        alpha = float(np.exp(parameters[-1]))
        Z = self.features(scales)
        n_components = Z.shape[1]
        gram = Z.T @ Z
        gram[np.diag_indices_from(gram)] += alpha
        factor, weights = _factor_and_solve(gram, Z.T @ self.rows.targets, alpha)
        residuals = self.rows.targets - Z @ weights
        squares = (weights**2).sum(axis=0)
        # equal to y'y − y'Z(Z'Z + α)⁻¹Z'y, but a sum of squares, which cannot cancel
        misfit = (residuals**2).sum(axis=0) + alpha * squares
        log_determinant = 2 * np.log(np.diag(factor)).sum() - n_components * np.log(
            alpha
        )
        value = n * np.log(misfit / n).sum() + n_targets * log_determinant

        inverse = _inverse(factor)
        # weights minimise the misfit, so it changes with α and with Z as if they were
        # held fixed
        by_log_alpha = n * alpha * (squares / misfit).sum()
        by_log_alpha += n_targets * (alpha * np.trace(inverse) - n_components)
        by_Z = (2 * n_targets) * (Z @ inverse)
        by_Z -= residuals @ (2 * n / misfit * weights).T
        # The derivative of a cosine is minus the sine, the derivative of a sine is the
        # cosine, and Z holds both. It also holds the weights' roots, which the chain
        # rule needs once.
        half = n_components // 2
        by_angle = by_Z[:, half:] * Z[:, :half] - by_Z[:, :half] * Z[:, half:]
        # angles are Σ_j x_j·ω_j/ℓ_j, so that ∂angle/∂log ℓ_j = −x_j·ω_j/ℓ_j
        by_scaled = ((self.rows.inputs.T @ by_angle) * self.frequencies).sum(axis=1)
        for column, (unit_angles, places) in self.levels.items():
            by_scaled[column] = np.vdot(by_angle, unit_angles[places])
        by_log_scale = -by_scaled / scales
        if len(parameters) == 2:
            by_log_scale = by_log_scale.sum(keepdims=True)
        count = n * n_targets
        return float(value) / count, np.append(by_log_scale, by_log_alpha) / count

    def log_evidence(
        self, length_scales: FloatArray
    ) -> tuple[float, float, FloatArray]:
        """Return what `EvidenceRows.log_evidence` does, with features of these length
        scales.
        """
        Z = self.features(length_scales)
        eigenvalues, vectors = _decompose(Z.T @ Z)
        return self.rows.log_evidence(
            eigenvalues, vectors.T @ (Z.T @ self.rows.targets)
        )


def _decompose(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return eigenvalues, at least 0, and eigenvectors of a positive semidefinite
    matrix; it is lost.
    """
    values, vectors = scipy.linalg.eigh(
        matrix, driver="evd", overwrite_a=True, check_finite=False
    )
    return np.maximum(values, 0.0), vectors


@frozen
class EvidenceSearch:
    """How length scales are searched for."""

    #: whether each input column has its own length scale; columns that do not matter
    #: get large ones
    per_feature: bool = True
    #: the most rows of a dataset that are used
    n_samples: int = TUNING_ROWS
    #: number of features that polish the length scales; even
    n_components: int = 256
    #: number of short searches, one per CPU at the same time; by default 2, or 12 from
    #: 16 columns on. The first starts at the median distance between rows, the second
    #: at √n_features times that, the others at random multiples of it. Weights of
    #: additive kernels are always searched for from two starts. Raises
    #: InvalidParameterError if a number is out of range.
    n_starts: int | None = None
    #: if above 0, the kernel itself polishes the length scales, on so many rows if
    #: there are more: for Nyström features, which follow it. 0: Fourier features of all
    #: rows do.
    exact_rows: int = 0
    #: whether targets are of classes: 500 or more of their rows give length scales by
    #: the log loss of rows left out in turn, in place of the evidence
    of_classes: bool = False

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_components", "n_starts"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_count(value, name))
        object.__setattr__(
            self, "exact_rows", check_count(self.exact_rows, "exact_rows", least=0)
        )
        if self.n_components % 2:
            raise InvalidParameterError(
                f"`n_components` is {self.n_components}; expected an even number"
            )

    def starts(self, n_features: int) -> int:
        """Return the number of short searches."""
        return self.n_starts or (
            MANY_STARTS if n_features >= MANY_COLUMNS else FEW_STARTS
        )

    def flops(self, n_samples: int, n_features: int) -> float:
        """Return about how many operations a search takes; to a factor of two."""
        short = START_ROWS**3 * START_STEPS * self.starts(n_features)
        climbed = 40 * CLIMBED_ROWS**3
        used = min(n_samples, self.n_samples)
        polished = 4 * used * self.n_components**2
        if self.exact_rows:
            polished = self.exact_rows**3 if used > self.exact_rows else 0
        return float(short + climbed + 30 * polished)


def likelihood_weights(sample_weight: FloatArray, *, repeated: bool) -> FloatArray:
    """Return how many times each row counts in the likelihood, shape (n_samples,).

    Weights that do not repeat rows are scaled so that their sum is Kish's effective
    number of rows, (Σw)²/Σw². A factor on all weights then changes nothing.

    `sample_weight`: float64 array of shape (n_samples,). Above 0.
    `repeated`: whether weights are whole numbers that repeat their rows.
    Raises DataError if weights that repeat rows are not whole.
    Source: Kish (1965), Survey Sampling.
    """
    if not repeated:
        # so that squares stay in float64's range
        relative = sample_weight / sample_weight.max()
        return np.asarray(relative * (relative.sum() / (relative**2).sum()))
    if len(broken := sample_weight[sample_weight != np.rint(sample_weight)]):
        raise DataError(
            f"a sample weight is {broken[0]:g}, but these weights say how many times a"
            " row is there; give whole numbers"
        )
    return sample_weight


def maximize_evidence(
    kernel: base.Kernel,
    X: FloatArray,
    y: FloatArray,
    weights: FloatArray | None = None,
    *,
    search: EvidenceSearch = EvidenceSearch(),
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> TunedKernel:
    """Choose a kernel's length scales, and the weights of its parts, by the evidence of
    rows in memory.

    All searches climb by L-BFGS-B. Short ones use the kernel itself on 250 to 400 rows,
    and the best goes on with 400. Features of all rows polish its end, O(n_samples ·
    n_components²) for each of some dozens of evaluations, or the kernel itself on
    `search.exact_rows`. Classes are polished by the kernel itself on all rows, in parts
    of 500. Features do not determine the weights of additive kernels: these are
    searched for with the kernel itself, on 400 and then 600 rows from each of two
    starts, and the evidence of 1,200 rows tells which end is better. For a kernel
    that is not `differentiable`, all searches use features. The result does not depend
    on the number of threads.

    `kernel`: its own length scale is replaced, and the weights of an additive one that
      are not 0.
    `X`: float64 array of shape (n_samples, n_features). (Standardised) inputs; finite.
    `y`: float64 array of shape (n_samples, n_targets). Targets share the length scales
      and α. Their means are subtracted, and constant targets are left out.
    `weights`: float64 array of shape (n_samples,). How many times a row counts; see
      `likelihood_weights`.
    `report`: called from several threads with the number of steps taken, and how many
      there may be.

    Raises InvalidParameterError if the kernel is not one with a length scale; DataError
    if all targets are constant, or all rows of X are equal.

    Source: Rasmussen & Williams (2006), Sec. 5.4.1; Lázaro-Gredilla et al.
      (2010), Sparse spectrum Gaussian process regression, JMLR 11, but with fixed
      frequencies.
    """
    tunable = check_tunable(kernel)
    per_feature = search.per_feature
    (n_samples, n_features) = X.shape
    targets, largest, varying = _scaled_targets(y, weights)
    inputs, units = _scaled_inputs(X, per_feature, tunable.categories)
    sampled = inputs[:: -(-n_samples // samples.HEURISTIC_ROWS)]
    median = median_distance(sampled, tunable)
    if median is None:
        raise DataError(
            f"all of {len(sampled):_} sampled rows of X are equal, so no length scale"
            " beats another; give a `length_scale`"
        )
    roots = None if weights is None else np.sqrt(weights)
    is_enough = n_samples >= ROWS_OF_PART
    of_classes = search.of_classes and tunable.differentiable and is_enough
    rows = EvidenceRows(
        inputs,
        targets if roots is None else targets * roots[:, np.newaxis],
        roots,
        left_out.Labels.of(y[:, varying], largest, weights) if of_classes else None,
    )
    unit = tunable.with_length_scale(1.0)
    design = base.design_for(tunable)

    def with_features(
        index: int, width: int, kernel: stationary.Stationary = unit
    ) -> Objective:
        own_seed = uniforms.derived_seed(seed, 1 + index)
        draw = designs.Draw(design, n_features, width // 2, own_seed)
        levels = {}
        for column in kernel.categories:
            # levels by their first row: the order of a list of texts changes nothing
            _, firsts, places = np.unique(
                X[:, column], return_index=True, return_inverse=True
            )
            parts = kernel.level_angles(column, draw)
            lines = [sum(part.angles(str(row)) for part in parts) for row in firsts]
            levels[column] = (np.array(lines), places)
        return Objective(rows, kernel.draw(draw), levels)

    n_starts = search.starts(n_features)
    n_scales = n_features if per_feature else 1
    starts = _starts(n_starts, n_scales, n_features, seed) + np.log(median)
    exact = tunable.differentiable
    steps = itertools.count(1)
    reach = np.log(median) + np.array([-1, 1]) * np.log(LENGTH_SCALE_RANGE)
    logits = tunable.logits
    around = logits.mean() + np.array([-1, 1]) * LOGIT_RANGE if len(logits) else reach
    has_parts = exact and len(logits) > 1
    dense = unit.dense_part

    def count(_: FloatArray) -> None:
        if report is not None:
            report(
                next(steps),
                len(starts) * START_STEPS + 2 * MAX_ITERATIONS,
            )

    def climb(objective: _Function, x: FloatArray, most: int = MAX_ITERATIONS) -> Any:
        tolerance = _TOLERANCE_OF_CLASSES if of_classes else _TOLERANCE
        options = {"maxiter": most, "maxcor": 20, "ftol": tolerance, "gtol": 1e-5}
        return scipy.optimize.minimize(
            objective,
            x,
            jac=True,
            method="L-BFGS-B",
            bounds=[
                *[reach] * n_scales,
                *[around] * (len(x) - n_scales - 1),
                np.log(ALPHA_RANGE),
            ],
            callback=count,
            options=options,
        )

    def exactly(n_rows: int, kernel: stationary.Stationary = unit) -> ExactObjective:
        return ExactObjective(rows.some(n_rows), kernel)

    def with_logits(x: FloatArray) -> FloatArray:
        return np.concatenate([x[:n_scales], logits, x[-1:]])

    def loss_of_classes(parameters: FloatArray) -> tuple[float, FloatArray]:
        results = [objective(parameters) for objective in parts]
        losses, gradients = zip(*results, strict=True)
        return float(np.mean(losses)), np.mean(gradients, axis=0)

    parts = [ExactObjective(part, unit) for part in rows.parts(ROWS_OF_PART)]

    # one BLAS thread each: with more, products and so the result would depend on their
    # number
    with (
        machine.single_threaded_blas(),
        ThreadPoolExecutor(min(machine.available_cores(), len(starts))) as pool,
    ):
        few = max(START_ROWS, ROWS_PER_COLUMN * n_features)
        searched: _Function
        searched = judge = (
            exactly(min(few, CLIMBED_ROWS), dense)
            if exact
            else with_features(0, search.n_components)
        )
        # a search that fitted the length scales to its own draw must not win
        if not exact:
            judge = with_features(1, search.n_components)
        firsts = [
            np.concatenate([x, dense.logits if exact else [], [np.log(FIRST_ALPHA)]])
            for x in starts
        ]
        if has_parts and not of_classes:
            # From the median distance, and from less: the evidence of few rows has
            # several maxima, and that of more rows tells which is best. For houses in
            # California that of 600 rows is as good where new rows err by 0.53 as where
            # they err by 0.49, which a climb on 400 rows comes near first.
            below = firsts[0].copy()
            below[:n_scales] += np.log(SHORT_START)
            begins = [with_logits(x) for x in (firsts[0], below)]
            few_rows = exactly(CLIMBED_ROWS)
            ends = list(pool.map(lambda x: climb(few_rows, x), begins))
            more_rows = exactly(ROWS_OF_WEIGHTS)
            last_ends = list(pool.map(lambda end: climb(more_rows, end.x), ends))
            ends += last_ends
            most_rows = exactly(ROWS_OF_JUDGE)
            best = min(last_ends, key=lambda end: most_rows(end.x)[0])
        else:
            ends = list(pool.map(lambda x: climb(searched, x, START_STEPS), firsts))
            best = ends[min(range(len(ends)), key=lambda i: judge(ends[i].x)[0])]
            if of_classes:
                ends.append(best := climb(loss_of_classes, with_logits(best.x)))
            elif exact:
                ends.append(best := climb(exactly(CLIMBED_ROWS, dense), best.x))
            if exact and not of_classes and n_samples > search.exact_rows > 0:
                ends.append(best := climb(exactly(search.exact_rows), best.x))
            elif not exact or not (of_classes or search.exact_rows):
                ends.append(
                    best := climb(with_features(2, search.n_components), best.x)
                )
        tuned_unit = kernel_at(unit, best.x[:-1], n_features) if exact else unit
        scales = np.broadcast_to(np.exp(best.x[:n_scales]), n_features)
        if has_parts:
            # features do not follow the weights of single columns
            rows = rows.some(ROWS_OF_WEIGHTS)
            n_samples = len(rows.inputs)
        if has_parts or (exact and n_samples <= search.exact_rows):
            log_evidence, alpha, noise = exactly(n_samples).log_evidence(best.x[:-1])
        else:
            compared = COMPARED_COMPONENTS * search.n_components
            referee = with_features(3, compared, tuned_unit.with_length_scale(1.0))
            log_evidence, alpha, noise = referee.log_evidence(scales)
    all_noise = np.full(y.shape[1], np.nan)
    # beyond float64 a variance is infinite, while log evidences are not
    with np.errstate(over="ignore"):
        all_noise[varying] = noise * largest**2
    # back to the units of the (standardised) inputs
    scales = scales * units
    tuned = TunedKernel(
        kernel=tuned_unit.with_length_scale(
            scales if per_feature else float(scales[0])
        ),
        alpha=alpha,
        noise_variance=tuple(all_noise.tolist()),
        log_evidence=float(log_evidence - rows.n_observations * np.log(largest).sum()),
        converged=bool(best.success),
        n_evaluations=sum(end.nfev for end in ends),
        n_samples=n_samples,
    )
    message = "evidence of %d rows after %d evaluations: %.6g; alpha %.3g"
    logger.debug(message, n_samples, tuned.n_evaluations, tuned.log_evidence, alpha)
    if not tuned.converged:
        message = (
            "length scales: the search stopped before it converged (%s); try more"
            " starts or another seed"
        )
        logger.warning(message, best.message)
    return tuned


def _scaled_targets(
    y: FloatArray, weights: FloatArray | None
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return the targets that vary, centred and divided by their largest entry; these;
    and which vary.
    """
    centred = y - np.average(y, axis=0, weights=weights)
    # means of constants are rounded
    varying = np.ptp(y if weights is None else y[weights > 0], axis=0) > 0
    if not varying.any():
        raise DataError(
            f"all targets are constant in the sample of {len(y):_} rows, which says"
            " nothing about length scales; give a `length_scale`, or 'auto'"
        )
    largest = np.abs(centred[:, varying]).max(axis=0)  # so that no square overflows
    return centred[:, varying] / largest, largest, varying


def _scaled_inputs(
    X: FloatArray, per_feature: bool, categories: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return the inputs centred and in units of their columns, and these units, shape
    (n_features,); categories as they are.
    """
    inputs = X - X.mean(axis=0)  # this changes only the precision of the angles
    units = np.ones(X.shape[1])
    if per_feature:
        deviations = inputs.std(axis=0)
        units = np.where(deviations > 0, deviations, 1.0)  # all columns start alike
        units[list(categories)] = 1.0
        inputs /= units
    inputs[:, list(categories)] = X[:, list(categories)]
    return inputs, units


def _starts(n_starts: int, n_scales: int, n_features: int, seed: int) -> FloatArray:
    """Return log multiples of the median distance to start from, shape (n_starts,
    n_scales).
    """
    starts = np.zeros((n_starts, n_scales))
    starts[1:2] = 0.5 * np.log(n_features)
    rng = np.random.Generator(np.random.Philox(seed))
    starts[2:] = PERTURBATION * rng.standard_normal(starts[2:].shape)
    return starts
