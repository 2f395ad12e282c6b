"""The gate: compare two models on rows that neither was trained on.

The current model (the champion) and the model with the new rows (the challenger) go in;
a verdict comes out: whether the challenger may replace the champion. They are compared
on test data if there are any, else on the newest fifth of the rows that both have, at
most 10,000. These rows were accepted before: compared on its own rows, a batch with
wrong targets would pass. Both models are solved without them, from exact differences of
sums; the published model contains them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import numpy as np
import scipy

from rff_dist.data.blocks import Block, Dataset, Rows
from rff_dist.engines.protocol import Engine
from rff_dist.errors import StatisticsError
from rff_dist.fitting import evaluation, predicting
from rff_dist.living import new_rows, update
from rff_dist.living.differences import take_rows
from rff_dist.living.ranges import (
    as_blocks,
    count_rows,
    cut_ranges,
    newest_rows,
    row_numbers,
)
from rff_dist.numerics import cholesky, eigen, exact_sums
from rff_dist.recipes import model_rows
from rff_dist.ridge.models import RidgeModel
from rff_dist.statistics import accumulate, ridge_statistics, row_passes
from rff_dist.text import number, score_words
from rff_dist.typing import FloatArray, frozen

TOLERANCE = 0.05
HELD_OUT_SHARE = 5  # one in five shared rows is held out
HELD_OUT_ROWS = 10_000
# Probability that the gate refuses a good challenger by chance. At this level paired
# differences refused none of 80 good batches; the plain ratio of errors up to 1 in 4.
_DOUBT = 0.01
# The floor is the rounding error of Z'Z's eigenvalues. If alpha is more than this
# multiple of it, directions below the floor change a solution by 1/10,000 at most.
_FAR = 1e4
# Squared errors are cut here, so that d² does not overflow. They are in units of the
# champion's: for targets of 1e40 all would be cut.
_LARGEST_SQUARE = 1e70
_NEGLIGIBLE = 1e-6  # errors below this share of a target's variance count as equal


@frozen(eq=False)
class GateRows:
    """Rows on which two models are compared, and the champion solved without them."""

    dataset: Dataset
    blocks: list[Block]
    #: Sums of these rows, to be subtracted from each model's; None for test data.
    sums: ridge_statistics.RidgeStatistics | None
    champion: predicting.LinearModel
    #: The champion's errors on these rows.
    errors: evaluation.Errors

    @property
    def words(self) -> str:
        """A description of the rows, for messages."""
        n_samples = self.errors.n_samples
        if self.sums is None:
            return f"{n_samples:,} rows of test data"
        share = "" if n_samples == HELD_OUT_ROWS else " (a fifth)"
        return (
            f"the newest {n_samples:,} rows that both models hold{share}, left out of"
            " both"
        )


def hold_out(
    champion: RidgeModel,
    dataset: Dataset,
    rows: new_rows.NewRows,
    *,
    engine: Engine,
    test: Dataset | None = None,
) -> GateRows:
    """Choose rows to compare models on, and measure the champion's errors there.

    These are the rows of `test`, or else the newest rows that the champion has and the
    challenger, the model with `rows`, keeps; the champion is then solved without them.
    Raises DataError if test data do not fit the model, or lack targets; StatisticsError
    if the models share no row.
    """
    sums = None
    if test is not None:
        new_rows.check_columns(champion, test)
        held_out = test
        blocks = row_passes.blocks_of(test)
    else:
        spec = champion.summed.spec
        shared = rows.shared(champion)
        n_wanted = max(1, min(count_rows(shared) // HELD_OUT_SHARE, HELD_OUT_ROWS))
        newest = newest_rows(shared, n_wanted)
        # Read into memory: after corrections there may be thousands of short ranges,
        # and each would be a block to read.
        in_memory = take_rows(dataset, row_numbers(newest))
        if in_memory is None:
            raise StatisticsError(
                "the champion and the challenger share no row, so that none can be held"
                " out to compare them; give test data (`test`), or fit again"
            )
        held_out = in_memory
        height = update.rows_at_once(dataset, spec.int64_rows)
        pieces = cut_ranges([(0, held_out.n_samples)], height)
        blocks = as_blocks(pieces)
        feature_map = model_rows.features_for(champion.feature_map, dataset)
        state = engine.broadcast(accumulate.Accumulation(feature_map, spec))
        sums = update.sum_ranges(held_out, pieces, state, engine=engine)
        sums = sums.with_whitener(champion.feature_map.whitener)
    without = _solve_without(champion, sums)
    errors = row_passes.sum_rows(
        model_rows.with_codes_of(champion.feature_map.levels, held_out),
        evaluation.evaluate_rows,
        without,
        blocks=blocks,
        engine=engine,
        label="evaluate",
    )
    return GateRows(held_out, blocks, sums, without, errors.whole)


def _solve_without(
    model: RidgeModel, part: ridge_statistics.RidgeStatistics | None
) -> predicting.LinearModel:
    """Solve a model without the rows of `part`, with the same alpha."""
    if part is None:
        return model.linear
    whole = model.summed
    # The part was cut into other tiles than the whole. So the rounding errors of both
    # remain in the difference, and the tiles of both count.
    rest = replace(whole - part, n_tiles=whole.n_tiles + part.n_tiles)
    equations = rest.normal_equations(fit_intercept=model.fit_intercept)
    # The method by which `ridge.solve` solved the model: Cholesky uses directions below
    # the floor and eigenvalues do not. If alpha is near the floor, their errors differ
    # much (0.244 and 0.273 for D = 512 features of 3 columns). Far above it they agree,
    # and eigenvalues take twenty times as long.
    alpha = np.asarray(model.alpha)
    takes_eigenvalues = model.card["chosen_by"] in ("gcv", "evidence")
    if takes_eigenvalues and alpha.min() < _FAR * equations.floor():
        solution = eigen.decompose(equations).solve(model.alpha)
    else:
        solution = cholesky.solve_cholesky(equations, alpha, overwrite_gram=True)
    return predicting.LinearModel(
        model.feature_map, solution.coefficients, solution.intercept
    )


@frozen
class Gate:
    """Whether the challenger is good enough to replace the champion."""

    passed: bool
    #: A sentence that says why.
    reason: str
    #: The rows that the two were compared on, in words, and their digest.
    held_out: str
    fingerprint: str
    #: The challenger's mean squared error over the champion's, for the worst target.
    ratio: float
    #: The lower confidence bound of this ratio: a few rows with large errors can decide
    #: a mean by chance.
    at_least: float
    #: How that target's error changed, in words, and whether chance may explain it.
    change: str
    #: How far `at_least` may be above 1.
    tolerance: float
    #: Root mean squared errors per target, in the target's units.
    champion: tuple[float, ...]
    challenger: tuple[float, ...]


@frozen(eq=False)
class PairedErrors:
    """Sums of both models' squared errors on the same rows; `+` joins sets of rows.

    w is a row's weight, e² a squared error over the square of `Pair.scales`, at most
    1e70, and d is the challenger's e² less the champion's. Sums over targets have shape
    (n_targets,).
    """

    #: Σw and Σw².
    weight: exact_sums.ExactSum
    weight_squares: exact_sums.ExactSum
    #: Σw·e² of each model.
    champion: exact_sums.ExactSum
    challenger: exact_sums.ExactSum
    #: Σw²·d and Σw²·d².
    differences: exact_sums.ExactSum
    squares: exact_sums.ExactSum

    __add__ = exact_sums.add_fields

    @property
    def mean(self) -> tuple[FloatArray, FloatArray]:
        """Mean squared errors of the champion and of the challenger, per target."""
        total = self.weight.value()
        return self.champion.value() / total, self.challenger.value() / total

    @property
    def standard_error(self) -> FloatArray:
        """Standard error of the difference of the means, per target."""
        champion, challenger = self.mean
        mean = challenger - champion
        spread = self.squares.value() - 2 * mean * self.differences.value()
        spread = spread + mean**2 * self.weight_squares.value()
        return np.sqrt(np.maximum(spread, 0.0)) / self.weight.value()


@frozen(eq=False)
class Pair:
    """The champion and the challenger, for rows with the challenger's codes."""

    #: One model with the coefficients of both, or two if they have other levels.
    models: tuple[predicting.LinearModel, ...]
    #: How the rows' codes become each model's, see `model_rows.codes_between`.
    codes: tuple[Mapping[int, FloatArray], ...]
    #: Powers of two near the champion's errors, shape (n_targets,).
    scales: FloatArray

    @classmethod
    def of(
        cls,
        champion: predicting.LinearModel,
        challenger: predicting.LinearModel,
        scales: FloatArray,
    ) -> Self:
        levels = challenger.feature_map.levels
        if champion.feature_map.levels != levels:
            # levels that the champion has never seen have other features in its map
            codes = model_rows.codes_between(levels, champion.feature_map.levels)
            return cls((champion, challenger), (codes, {}), scales)
        # side by side, so that features of each row are made once for both models
        both = predicting.LinearModel(
            challenger.feature_map,
            np.hstack([champion.coefficients, challenger.coefficients]),
            np.concatenate([champion.intercept, challenger.intercept]),
        )
        return cls((both,), ({},), scales)

    def predict(self, rows: Rows) -> FloatArray:
        """Return predictions of shape (n_samples, 2 · n_targets), the champion's
        first.
        """
        parts = [
            predicting.predict_rows(model_rows.recode(codes, rows), model)
            for model, codes in zip(self.models, self.codes, strict=True)
        ]
        return np.hstack(parts)


def measure_pair(rows: Rows, models: Pair) -> PairedErrors:
    """Return the errors of two models on a block.

    Raises DataError if the block has no targets, or values that are not finite.
    """
    y, weights = evaluation.evaluated_targets(rows)
    with np.errstate(over="ignore"):
        residuals = np.tile(y, 2) - models.predict(rows)
        errors = (residuals / np.tile(models.scales, 2)) ** 2
    champion, challenger = np.split(np.minimum(errors, _LARGEST_SQUARE), 2, axis=1)
    difference = challenger - champion
    squared = weights**2
    sums = (
        np.asarray(weights.sum()),
        np.asarray(squared.sum()),
        weights @ champion,
        weights @ challenger,
        squared @ difference,
        squared @ difference**2,
    )
    return PairedErrors(*map(exact_sums.ExactSum.of, sums))


def judge(
    challenger: RidgeModel,
    held_out: GateRows,
    *,
    tolerance: float = TOLERANCE,
    engine: Engine,
) -> Gate:
    """Compare the challenger, solved without the held-out rows, with the champion.

    The challenger is refused if its mean squared error for a target is higher by more
    than the share `tolerance`, with 99 % confidence by the differences of each row.
    With few rows, or if a few rows decide, no rise is certain.
    """
    champion = held_out.champion
    without = _solve_without(challenger, held_out.sums)
    levels = challenger.feature_map.levels
    scales = exact_sums.scales_near(np.sqrt(held_out.errors.mean_squared_error))
    pair = row_passes.sum_rows(
        model_rows.with_codes_of(levels, held_out.dataset),
        measure_pair,
        Pair.of(champion, without, scales),
        blocks=held_out.blocks,
        engine=engine,
        label="compare",
    )
    before, now = pair.mean
    rise = now - before
    n_targets = len(before)
    chance = float(scipy.special.ndtri(1 - _DOUBT / n_targets)) * pair.standard_error
    # Rises are shares of the champion's error. The second term is for errors that are
    # both rounding, whose ratio would look like a rise.
    variance = held_out.errors.target_variance / scales / scales
    unit = before + _NEGLIGIBLE * variance
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = np.where(rise == 0, 0.0, rise / unit)
        certain_rises = np.where(rise == 0, 0.0, (rise - chance) / unit)
    worst = int(np.argmax(certain_rises))
    ratio = 1 + float(rises[worst])
    at_least = max(0.0, 1 + float(certain_rises[worst]))
    passed = at_least <= 1 + tolerance

    old_rmse = scales * np.sqrt(before)
    new_rmse = scales * np.sqrt(now)
    target = ""
    if n_targets > 1:
        numbers = [f"target {i}" for i in range(n_targets)]
        names = challenger.card.get("target_names") or numbers
        target = f" of {names[worst]}"
    change = change_words(old_rmse[worst], new_rmse[worst])
    if 0 < abs(rise[worst]) <= chance[worst]:
        change += ", no clear difference"
    now_words = score_words("rmse", new_rmse[worst])
    before_words = score_words("rmse", old_rmse[worst], like=new_rmse[worst])
    verdict = "a model is refused only if its" if passed else "the"
    return Gate(
        passed=passed,
        reason=(
            f"RMSE{target} is {now_words} ({change}; before {before_words}) on"
            f" {held_out.words}; {verdict} mean squared error is with"
            f" {1 - _DOUBT:.0%} confidence over {number(100 * tolerance)}% higher"
        ),
        held_out=held_out.words,
        fingerprint=held_out.dataset.fingerprint(),
        ratio=ratio,
        at_least=at_least,
        change=change,
        tolerance=tolerance,
        champion=tuple(old_rmse.tolist()),
        challenger=tuple(new_rmse.tolist()),
    )


def change_words(before: float, now: float) -> str:
    """Say how much higher or lower an error is than the one before.

    >>> change_words(62.0, 59.52), change_words(62.0, 62.02), change_words(1.0, 713.2)
    ('4% lower', 'the same', '713 times as high')
    """
    # no table of errors shows differences within 0.05 %
    if abs(now - before) <= 5e-4 * before:
        return "the same"
    direction = "lower" if now < before else "higher"
    if before == 0:
        return direction
    percent = 100 * abs(now / before - 1)
    if percent > 1000:
        return f"{now / before:,.0f} times as high"
    digits = ".0f" if percent > 10 else ".2g"
    return f"{percent:{digits}}% {direction}"
