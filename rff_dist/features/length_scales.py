"""Length scales that maximise the evidence of a sample of rows.

A kernel and rows in memory go in; the kernel with tuned length scales comes out, and
with tuned weights if it is a sum of parts. One climb with a large sample would be slow
and end in a local maximum, so short climbs on few rows choose where a long one begins.

The last climb, the polish, takes Fourier features of all rows: a kernel of huge length
scales and a tiny penalty α can be best, but no Fourier features follow it. For Nyström
features the kernel itself polishes, on fewer rows. Classes have the log loss of rows
left out in turn in place of the evidence; `evidence` has the objectives of both.
"""

from __future__ import annotations  # an evaluated annotation would load scipy.optimize

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import scipy

from rff_dist.checks import check_count
from rff_dist.data import samples
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features import left_out
from rff_dist.features.evidence import (
    LOG_ALPHA_RANGE,
    BestAlpha,
    EvidenceRows,
    FeatureObjective,
    KernelObjective,
)
from rff_dist.features.median_distances import median_distance
from rff_dist.frequencies import designs, uniforms
from rff_dist.kernels import base, stationary
from rff_dist.numerics import machine
from rff_dist.text import short_repr
from rff_dist.typing import BoolArray, FloatArray, frozen

type _Objective = Callable[[FloatArray], tuple[float, FloatArray]]

logger = logging.getLogger(__name__)

# Length scales come from the evidence of a seeded sample of at most so many rows.
TUNING_ROWS = 4000
# A short climb takes at most START_STEPS steps, on START_ROWS rows. With many columns
# it has ROWS_PER_COLUMN for each, but never more than CLIMBED_ROWS.
START_ROWS = 250
START_STEPS = 8
ROWS_PER_COLUMN = 10
# After short climbs, a longer one of the kernel itself begins on so many rows. On 250
# rows additive kernels take 0.88 times as long, and err 1.2 times as much on concrete.
CLIMBED_ROWS = 400
# Rows with classes are cut into batches of so many, and the batches' left-out log
# losses are averaged. Fewer rows use the evidence, which overfits less: by the log loss
# titanic, 334 rows, would err by 0.413, not 0.405. Two batches of 1,000 in place of
# four took 3 times as long, for 0.96 times the loss on letter.
ROWS_OF_BATCH = 500
# The weights of an additive kernel take climbs on so many rows, from the median
# distance and from SHORT_START times it. The evidence of twice as many rows chooses
# between their ends.
ROWS_OF_WEIGHTS = 600
SHORT_START = 0.3
# There are FEW_STARTS short climbs, or MANY_STARTS from MANY_COLUMNS on.
FEW_STARTS = 2
MANY_STARTS = 12
MANY_COLUMNS = 16
# Length scales stay between the median distance divided and multiplied by this.
LENGTH_SCALE_RANGE = 1e3
# Logits of weights stay within this distance of the logit of equal weights.
LOGIT_RANGE = 8.0
# Climbs that do not go on from another one start with this α.
FIRST_ALPHA = 0.1
# Log length scales of random starts have this standard deviation.
PERTURBATION = 0.5
# The evidence that is returned has this many times the components of the polish.
COMPARED_COMPONENTS = 2
# Climbs that are not short end after so many steps.
MAX_ITERATIONS = 200
# A climb ends when a step improves -2·log evidence per row and target by less than
# this: 0.1 nats for 2,000 rows.
_TOLERANCE = 1e-4
# With classes it ends when a step lowers the log loss by less than this share of the
# log loss without inputs, which 2,000 rows tell to 1e-2 at best.
_TOLERANCE_OF_CLASSES = 3e-4


@frozen
class TunedKernel:
    """A kernel with the length scales of the largest evidence, and how it was found."""

    #: With these length scales, in units of the (standardised) inputs.
    kernel: stationary.Stationary
    #: Noise variance over signal variance: ridge's penalty, for any number of rows.
    alpha: float
    #: Of each target, in its units squared; NaN for a constant target.
    noise_variance: tuple[float, ...]
    #: Log density of `n_samples` targets, summed over targets, with many features or
    #: the kernel itself.
    log_evidence: float
    #: Whether the last climb ended at a maximum, rather than at its limit of
    #: iterations.
    converged: bool
    #: How many times all climbs evaluated the evidence and its gradient.
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
class EvidenceSearch:
    """How length scales are searched for.

    Raises InvalidParameterError if a number is out of range.
    """

    #: Whether each input column has its own length scale; columns that do not matter
    #: get large ones
    per_feature: bool = True
    #: The most rows of a dataset that are used
    n_samples: int = TUNING_ROWS
    #: Number of features that polish the length scales; even
    n_components: int = 256
    #: Number of short climbs, one per CPU at the same time; by default 2, or 12 from
    #: 16 columns on. The first starts at the median distance between rows, the second
    #: at √n_features times that, the others at random multiples of it. Weights of
    #: additive kernels always climb from two starts.
    n_starts: int | None = None
    #: 0: Fourier features of all rows polish the length scales. Above 0: the kernel
    #: itself does, on at most so many rows; for Nyström features, which follow it.
    exact_rows: int = 0
    #: On how many rows the weights of an additive kernel are climbed.
    weight_rows: int = ROWS_OF_WEIGHTS
    #: Whether targets stand for classes. From 500 rows on, the log loss of rows that
    #: are left out in turn then chooses length scales, in place of the evidence
    of_classes: bool = False
    #: When climbs end unfinished, by `time.monotonic`; by default when they converge
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_components", "n_starts"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, check_count(value, name))
        object.__setattr__(
            self, "exact_rows", check_count(self.exact_rows, "exact_rows", least=0)
        )
        if self.n_components % 2:
            raise InvalidParameterError(
                f"`n_components` is {self.n_components}; expected an even number"
            )

    def count_starts(self, n_features: int) -> int:
        """Return the number of short climbs."""
        if self.n_starts is not None:
            return self.n_starts
        return MANY_STARTS if n_features >= MANY_COLUMNS else FEW_STARTS

    def flops(self, n_samples: int, n_features: int) -> float:
        """Return about how many operations a search takes; to a factor of two."""
        short = START_ROWS**3 * START_STEPS * self.count_starts(n_features)
        climbed = 40 * CLIMBED_ROWS**3
        used = min(n_samples, self.n_samples)
        polished = 4 * used * self.n_components**2
        if self.exact_rows:
            polished = self.exact_rows**3 if used > self.exact_rows else 0
        return float(short + climbed + 30 * polished)


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
    """Choose length scales, and weights of parts, by the evidence of rows in memory.

    All climbs are by L-BFGS-B. The polish with features takes O(n_samples ·
    n_components²) for each of some dozens of evaluations. The result does not depend on
    the number of threads.

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
    n_samples = len(X)
    targets = _scale_targets(y, weights)
    inputs, units = _scale_inputs(X, search.per_feature, tunable.categories)
    sampled = inputs[:: -(-n_samples // samples.HEURISTIC_ROWS)]
    median = median_distance(sampled, tunable)
    if median is None:
        raise DataError(
            f"all of {len(sampled):_} sampled rows of X are equal, so no length scale"
            " beats another; give a `length_scale`"
        )

    labels = None
    if search.of_classes and tunable.differentiable and n_samples >= ROWS_OF_BATCH:
        labels = left_out.Labels.of(y[:, targets.varying], targets.units, weights)
    values = targets.values
    roots = None
    if weights is not None:
        roots = np.sqrt(weights)
        values = values * roots[:, np.newaxis]
    rows = EvidenceRows(inputs, values, roots, labels)

    climbs = _Climbs(tunable, rows, search, median, seed=seed, report=report)
    n_threads = min(machine.available_cores(), len(climbs.starts))
    # one BLAS thread each: with more, the bits of products, and so the result, would
    # depend on the number of threads
    with machine.single_threaded_blas(), ThreadPoolExecutor(n_threads) as pool:
        try:
            end = climbs.run(pool)
            best = climbs.best_alpha(end)
        except BaseException:
            # without it, Ctrl-C would wait minutes for the pool's threads
            climbs.is_stopped = True
            raise

    noise_variance = np.full(y.shape[1], np.nan)
    # beyond float64 a variance is infinite, while log evidences are not
    with np.errstate(over="ignore"):
        noise_variance[targets.varying] = best.noise_variance * targets.units**2
    # back to the units of the (standardised) inputs
    scales = climbs.scales_at(end) * units
    log_units = np.log(targets.units).sum()
    tuned = TunedKernel(
        kernel=climbs.unit_kernel_at(end).with_length_scale(
            scales if search.per_feature else float(scales[0])
        ),
        alpha=best.alpha,
        noise_variance=tuple(noise_variance.tolist()),
        log_evidence=float(
            best.log_evidence - climbs.final_rows.n_observations * log_units
        ),
        converged=bool(end.success),
        n_evaluations=climbs.n_evaluations,
        n_samples=len(climbs.final_rows.inputs),
    )
    logger.debug(
        "evidence of %d rows after %d evaluations: %.6g; alpha %.3g",
        tuned.n_samples,
        tuned.n_evaluations,
        best.log_evidence,
        tuned.alpha,
    )
    if not tuned.converged:
        reason = f"{end.message}; try more starts or another seed"
        if search.deadline is not None and time.monotonic() > search.deadline:
            reason = "out of time"
        logger.warning(
            "length scales: the search stopped before it converged (%s)", reason
        )
    return tuned


class _Climbs:
    """Climbs towards the largest evidence of some rows, each from the end of another.

    A point is an array: the logarithms of length scales, the logits of the kernel's
    parts, and the logarithm of α. The end of a climb is what SciPy returns, and `x` is
    its point.
    """

    def __init__(
        self,
        kernel: stationary.Stationary,
        rows: EvidenceRows,
        search: EvidenceSearch,
        median: float,
        *,
        seed: int,
        report: Callable[[int, int], None] | None,
    ) -> None:
        self._rows = rows
        self._search = search
        self._median = median
        self._seed = seed
        self._report = report
        self._n_features = rows.inputs.shape[1]
        self._n_scales = self._n_features if search.per_feature else 1
        #: With a length scale of 1.
        self._unit = kernel.with_length_scale(1.0)
        self._is_exact = kernel.differentiable
        #: Whether weights of the kernel's parts are tuned together with length scales.
        self._has_weights = self._is_exact and len(kernel.logits) > 0
        self._design = base.design_for(kernel)
        #: Climbs in other threads then end at their next step.
        self.is_stopped = False
        self._ends: list[Any] = []
        self._steps = itertools.count(1)
        #: Logarithms of length scales, shape (n_starts, n_scales).
        self.starts = np.log(median) + _starts(
            search.count_starts(self._n_features),
            self._n_scales,
            self._n_features,
            seed,
        )

    @property
    def n_evaluations(self) -> int:
        """How many times all climbs evaluated their objective."""
        return sum(end.nfev for end in self._ends)

    def run(self, pool: Executor) -> Any:
        """Return the end of the last climb, with the best point."""
        if not self._is_exact:
            return self._with_features(pool)
        if self._rows.labels is not None:
            return self._for_classes(pool)
        if self._has_weights:
            return self._with_weights(pool)
        return self._with_kernel(pool)

    # -- which climbs follow one another

    def _with_features(self, pool: Executor) -> Any:
        width = self._search.n_components
        # a climb that fitted the length scales to its own draw must not win
        judge = self._of_features(1, width)
        best = self._best_start(pool, self._of_features(0, width), judge)
        return self._climb(self._of_features(2, width), best.x)

    def _with_kernel(self, pool: Executor) -> Any:
        few_rows = self._of_few_rows()
        best = self._best_start(pool, few_rows, few_rows)
        best = self._climb(self._of_kernel(CLIMBED_ROWS), best.x)
        n_exact = self._search.exact_rows
        if n_exact == 0:
            polish = self._of_features(2, self._search.n_components)
            return self._climb(polish, best.x)
        if len(self._rows.inputs) > n_exact:
            return self._climb(self._of_kernel(n_exact), best.x)
        return best

    def _for_classes(self, pool: Executor) -> Any:
        """Climb on few rows, then on the mean loss of batches of all rows."""
        few_rows = self._of_few_rows()
        best = self._best_start(pool, few_rows, few_rows)
        batches = self._rows.batches(ROWS_OF_BATCH)
        objectives = [KernelObjective(batch, self._unit) for batch in batches]

        def mean_loss(point: FloatArray) -> tuple[float, FloatArray]:
            results = [objective(point) for objective in objectives]
            losses, gradients = zip(*results, strict=True)
            return float(np.mean(losses)), np.mean(gradients, axis=0)

        log_scales = best.x[: self._n_scales]
        # the short climbs' logits are those of the dense part, so start from equal ones
        point = _point(log_scales, self._unit.logits, best.x[-1])
        return self._climb(mean_loss, point)

    def _with_weights(self, pool: Executor) -> Any:
        """Climb with the kernel itself, since features do not determine its weights.

        The evidence of few rows has several maxima, so one climb starts at the median
        distance and one below it, and the evidence of more rows chooses between their
        ends. Each climbs on 400 rows first. For houses in California the evidence of
        600 rows has two maxima of equal height: new rows err by 0.53 at one, and by
        0.49 at the other, to which the climb on 400 rows leads.
        """
        median = self.starts[0]
        points = [
            _point(log_scales, self._unit.logits, np.log(FIRST_ALPHA))
            for log_scales in (median, median + np.log(SHORT_START))
        ]
        n_last = self._search.weight_rows
        for n_rows in sorted({CLIMBED_ROWS, ROWS_OF_WEIGHTS, n_last}):
            objective = self._of_kernel(n_rows)
            ends = list(pool.map(partial(self._climb, objective), points))
            points = [end.x for end in ends]
        judge = self._of_kernel(2 * n_last)
        return min(ends, key=lambda end: judge(end.x)[0])

    def _best_start(
        self, pool: Executor, objective: _Objective, judge: _Objective
    ) -> Any:
        """Climb a few steps from each start; return the end that the judge prefers.

        Sums of parts climb with their dense part alone, the one of all columns.
        """
        logits = self._unit.dense_part.logits if self._is_exact else np.empty(0)
        points = [
            _point(log_scales, logits, np.log(FIRST_ALPHA))
            for log_scales in self.starts
        ]
        climb = partial(self._climb, objective, n_steps=START_STEPS)
        ends = list(pool.map(climb, points))
        return min(ends, key=lambda end: judge(end.x)[0])

    def _climb(
        self, objective: _Objective, start: FloatArray, *, n_steps: int | None = None
    ) -> Any:
        n_logits = len(start) - self._n_scales - 1
        bounds = [_around(np.log(self._median), np.log(LENGTH_SCALE_RANGE))]
        bounds *= self._n_scales
        if n_logits:
            equal_weights = self._unit.logits.mean()
            bounds += [_around(equal_weights, LOGIT_RANGE)] * n_logits
        bounds.append(LOG_ALPHA_RANGE)
        of_classes = self._rows.labels is not None
        end = scipy.optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            callback=self._count_step,
            options={
                "maxiter": MAX_ITERATIONS if n_steps is None else n_steps,
                "maxcor": 20,
                "ftol": _TOLERANCE_OF_CLASSES if of_classes else _TOLERANCE,
                "gtol": 1e-5,
            },
        )
        self._ends.append(end)
        return end

    def _count_step(self, _: FloatArray) -> None:
        if self.is_stopped:
            raise CancelledError
        if self._report is not None:
            limit = len(self.starts) * START_STEPS + 2 * MAX_ITERATIONS
            self._report(next(self._steps), limit)
        deadline = self._search.deadline
        if deadline is not None and time.monotonic() > deadline:
            raise StopIteration  # SciPy ends the climb here, and keeps its point

    # -- objectives

    def _of_kernel(self, n_rows: int) -> KernelObjective:
        return KernelObjective(self._rows.some(n_rows), self._unit)

    def _of_few_rows(self) -> KernelObjective:
        n_rows = max(START_ROWS, ROWS_PER_COLUMN * self._n_features)
        rows = self._rows.some(min(n_rows, CLIMBED_ROWS))
        return KernelObjective(rows, self._unit.dense_part)

    def _of_features(self, index: int, n_components: int) -> FeatureObjective:
        """Return the objective of the draw of features with this index.

        A level of a category has random angles, which are drawn by a text. Here it is
        the number of the first row with that level: a level's code would not do, since
        the order in which the column's texts are listed must change nothing.
        """
        seed = uniforms.derived_seed(self._seed, 1 + index)
        draw = designs.Draw(self._design, self._n_features, n_components // 2, seed)
        levels = {}
        for column in self._unit.categories:
            codes = self._rows.inputs[:, column]
            _, firsts, places = np.unique(codes, return_index=True, return_inverse=True)
            parts = self._unit.level_angles(column, draw)
            angles = []
            for row in firsts:
                angles.append(sum(part.angles(str(row)) for part in parts))
            levels[column] = (np.array(angles), places)
        return FeatureObjective(self._rows, self._unit.draw(draw), levels)

    # -- the best point

    def scales_at(self, end: Any) -> FloatArray:
        """Return the length scale of each column, shape (n_features,)."""
        scales = np.exp(end.x[: self._n_scales])
        return np.broadcast_to(scales, self._n_features)

    def unit_kernel_at(self, end: Any) -> stationary.Stationary:
        """Return the kernel with the weights of a point, and a length scale of 1."""
        unit = self._unit
        if self._has_weights:
            unit = unit.with_logits(end.x[self._n_scales : -1])
        return unit

    @property
    def final_rows(self) -> EvidenceRows:
        """The rows that give the best point its evidence."""
        # the kernel itself takes O(n³), and features do not follow the weights of parts
        if self._has_weights:
            return self._rows.some(self._search.weight_rows)
        return self._rows

    def best_alpha(self, end: Any) -> BestAlpha:
        """Return the evidence of the best point, with more features than its climb."""
        rows = self.final_rows
        has_few_rows = self._is_exact and len(rows.inputs) <= self._search.exact_rows
        if self._has_weights or has_few_rows:
            objective = KernelObjective(rows, self._unit)
            return objective.best_alpha_at_point(end.x[:-1])  # without its own alpha
        n_components = COMPARED_COMPONENTS * self._search.n_components
        features = self._of_features(3, n_components)
        return features.best_alpha_at_scales(self.scales_at(end))


def _around(center: float, reach: float) -> tuple[float, float]:
    return center - reach, center + reach


def _point(log_scales: FloatArray, logits: FloatArray, log_alpha: float) -> FloatArray:
    return np.concatenate([log_scales, logits, [log_alpha]])


@frozen
class _ScaledTargets:
    """Targets that vary, centred and divided by their units, so that none overflows."""

    values: FloatArray
    #: The largest absolute entry of each.
    units: FloatArray
    #: Which of all targets vary.
    varying: BoolArray


def _scale_targets(y: FloatArray, weights: FloatArray | None) -> _ScaledTargets:
    centred = y - np.average(y, axis=0, weights=weights)
    # means of constants are rounded
    varying = np.ptp(y if weights is None else y[weights > 0], axis=0) > 0
    if not varying.any():
        raise DataError(
            f"all targets are constant in the sample of {len(y):_} rows, which says"
            " nothing about length scales; give a `length_scale`, or 'auto'"
        )
    units = np.abs(centred[:, varying]).max(axis=0)
    return _ScaledTargets(centred[:, varying] / units, units, varying)


def _scale_inputs(
    X: FloatArray, per_feature: bool, categories: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return the inputs centred and in units of their columns, and these units.

    Units have the shape (n_features,). Categories stay as they are.
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
    """Return log multiples of the median distance, shape (n_starts, n_scales)."""
    starts = np.zeros((n_starts, n_scales))
    starts[1:2] = 0.5 * np.log(n_features)
    rng = np.random.Generator(np.random.Philox(seed))
    starts[2:] = PERTURBATION * rng.standard_normal(starts[2:].shape)
    return starts
