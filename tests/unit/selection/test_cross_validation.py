"""Cross-validation, by sums and by rows, against scikit-learn on an explicit Z; its
errors and choices.
"""

import os
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from rff_dist import Gaussian, GroupFolds, HashFolds, TimeFolds
from rff_dist.data.blocks import Block, Rows
from rff_dist.data.samples import FoldSample
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.features.draw import draw_feature_map, shortened
from rff_dist.features.nystrom import Nystrom, draw_nystrom
from rff_dist.numerics.eigen import decompose
from rff_dist.selection.cross_validation import cross_validate
from rff_dist.selection.error_table import CrossValidation
from rff_dist.selection.grids import default_alphas
from rff_dist.selection.row_folds import cross_validate_rows
from rff_dist.selection.rule import HeldOutUnits
from rff_dist.statistics.accumulate import (
    Accumulations,
    accumulate_fold_rows,
    add_fold_rows,
)
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.statistics.specs import FINE_FRACTION_BITS
from tests.covering import covering
from tests.refits import held_out_errors
from tests.refusals import refuses
from tests.small_statistics import accumulation

ALPHAS = np.geomspace(1e-4, 1e3, 5)


@dataclass(frozen=True)
class SlidingFolds(HashFolds):
    """Each fold but the first is held out, after training on the one before it alone:
    sums start again.
    """

    @property
    def splits(self):
        return [((fold - 1,), fold) for fold in range(1, self.n_folds)]


def smooth(rng, n):
    X = rng.uniform(-2, 2, (n, 3))
    return (
        X,
        (np.sin(2 * X[:, 0]) * X[:, 1] + 0.2 * rng.standard_normal(n))[:, np.newaxis],
        None,
    )


def several_targets_with_precisions(rng, n):
    X = rng.standard_normal((n, 4))
    signal = np.column_stack(
        [X[:, 0] ** 2, 1e3 * np.cos(X[:, 1]) + 5e3, 1e-3 * X[:, 2]]
    )
    weights = rng.uniform(0.1, 3.0, n)
    return (
        X,
        signal
        + rng.standard_normal((n, 3))
        * [1.0, 200.0, 1e-4]
        / np.sqrt(weights)[:, np.newaxis],
        weights,
    )


def collinear_inputs_repeated(rng, n):
    base = rng.standard_normal((n, 1))
    X = base + 1e-3 * rng.standard_normal((n, 3))
    y = np.exp(-(base**2)) + 0.1 * rng.standard_normal((n, 1))
    return X, np.hstack([y, base]), rng.integers(0, 4, n).astype(float)


DATA = [smooth, several_targets_with_precisions, collinear_inputs_repeated]


def fold_statistics(
    X, y, feature_map, folds, *, weights=None, groups=None, whole=False, offset=None
):
    """Accumulate in two blocks, on the grid that a fit of so few rows takes."""
    member = accumulation(
        feature_map,
        y.shape[1],
        weight_exponent=0 if weights is None else 2,
        fraction_bits=FINE_FRACTION_BITS,
        target_offset=tuple(y[0].tolist()) if offset is None else offset,
        frequency_weights=whole,
    )
    state = Accumulations((member,), folds, len(X))
    middle = len(X) // 3

    def of(start, stop):
        part = slice(start, stop)
        given = [
            None if values is None else values[part] for values in (weights, groups)
        ]
        rows = Rows(Block(0, start, stop), X[part], y[part], given[0], groups=given[1])
        return accumulate_fold_rows(rows, state)

    (parts,) = add_fold_rows(of(0, middle), of(middle, len(X)))
    return FoldStatistics(folds, parts).with_whitener(feature_map.whitener)


def table_by_rows(Z, y, fold_of_row, folds, *, weights=None, alphas=ALPHAS, **options):
    counted = np.ones(len(Z), bool) if weights is None else weights > 0
    weights = None if weights is None else weights[counted]
    sample = FoldSample(
        folds,
        fold_of_row[counted],
        Z[counted],
        y[counted],
        weights,
        np.flatnonzero(counted),
    )
    return cross_validate_rows(Z[counted], sample, alphas=alphas, **options)


@pytest.mark.parametrize(
    ("fit_intercept", "folds", "data"),
    covering(
        [True, False],
        [HashFolds(4), GroupFolds(3, seed=1), TimeFolds(4), SlidingFolds(4)],
        DATA,
    ),
)
def test_every_cell_is_the_error_of_a_refit_by_scikit_learn(data, folds, fit_intercept):
    X, y, weights = data(np.random.default_rng(0), 330)
    groups = np.random.default_rng(1).integers(0, 25, len(X))
    wide = draw_feature_map(Gaussian(1.0), n_features=X.shape[1], n_components=110)
    maps = [shortened(wide, 36), wide]
    whole = data is collinear_inputs_repeated
    statistics = fold_statistics(
        X, y, wide, folds, weights=weights, groups=groups, whole=whole
    )
    table = cross_validate(
        statistics, alphas=ALPHAS, feature_maps=maps, fit_intercept=fit_intercept
    )
    fold_of_row = folds.assign(0, len(X), n_samples=len(X), groups=groups)
    for width, feature_map in enumerate(maps):
        Z = feature_map.transform(X)
        expected = held_out_errors(
            Z,
            y,
            fold_of_row,
            folds.splits,
            ALPHAS,
            weights=weights,
            fit_intercept=fit_intercept,
        )
        # scikit-learn's own solvers differ by some 1e-10 at the smallest alpha here
        assert_allclose(table.errors[:, width], expected, rtol=1e-8)
        by_rows = table_by_rows(
            Z,
            y,
            fold_of_row,
            folds,
            weights=weights,
            fit_intercept=fit_intercept,
            frequency_weights=whole,
        )
        assert_allclose(by_rows.errors[:, 0], expected, rtol=1e-8)
        assert_allclose(by_rows.leverages[:, 0], table.leverages[:, width], rtol=1e-8)
        assert_allclose(by_rows.weights, table.weights, rtol=1e-12)
        assert_allclose(by_rows.target_variance, table.target_variance, rtol=1e-9)
    held = np.ones(len(X)) if weights is None else weights
    assert_allclose(
        table.weights,
        [held[fold_of_row == fold].sum() for _, fold in folds.splits],
        rtol=1e-12,
    )
    if fit_intercept:
        centre = np.average(y, axis=0, weights=weights)
        assert_allclose(
            table.target_variance,
            np.average((y - centre) ** 2, axis=0, weights=weights),
        )


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("data", DATA)
def test_errors_of_fewer_rows_than_components_are_those_of_refits_too(
    data, fit_intercept
):
    X, y, weights = data(np.random.default_rng(0), 70)
    folds = HashFolds(4)
    wide = draw_feature_map(Gaussian(1.0), n_features=X.shape[1], n_components=110)
    Z = wide.transform(X)
    fold_of_row = folds.assign(0, len(X), n_samples=len(X), groups=None)
    options = {"weights": weights, "fit_intercept": fit_intercept}
    table = table_by_rows(Z, y, fold_of_row, folds, **options)
    assert_allclose(
        table.errors[:, 0],
        held_out_errors(Z, y, fold_of_row, folds.splits, ALPHAS, **options),
        rtol=1e-7,
    )
    # by default the alphas are those of the sums, up to the rounding of these
    statistics = fold_statistics(X, y, wide, folds, weights=weights)
    alphas = cross_validate(statistics, fit_intercept=fit_intercept).alphas
    found = table_by_rows(Z, y, fold_of_row, folds, alphas=None, **options).alphas
    assert_allclose(found[-20:], alphas[-20:], rtol=1e-9)


def assert_errors_of_refits(X, y, maps, folds, *, groups=None, alphas=ALPHAS):
    """Compare the errors of each width, the last the whole map's, with those of refits
    by scikit-learn.
    """
    statistics = fold_statistics(X, y, maps[-1], folds, groups=groups)
    table = cross_validate(statistics, alphas=alphas, feature_maps=maps)
    fold_of_row = folds.assign(0, len(X), n_samples=len(X), groups=groups)
    for width, feature_map in enumerate(maps):
        expected = held_out_errors(
            feature_map.transform(X), y, fold_of_row, folds.splits, alphas
        )
        assert_allclose(table.errors[:, width], expected, rtol=1e-8)


def test_no_rows_to_train_on_or_to_hold_out_make_no_table_by_rows():
    Z = np.eye(6)
    y = np.ones((6, 1))
    folds = HashFolds(2)
    assert table_by_rows(Z, y, np.zeros(6, int), folds) is None
    assert table_by_rows(Z, y, np.full(6, 7), folds) is None
    assert (
        table_by_rows(Z, y, np.array([0, 1, 1, 0, 1, 0]), folds).target_variance == 0.0
    )


@pytest.mark.parametrize("features", ["phases", "nystrom", "sum"])
def test_widths_of_several_output_tiles_and_other_maps_agree_too(features):
    X, y, _ = smooth(np.random.default_rng(0), 800)
    if features == "nystrom":
        wide = draw_nystrom(
            Gaussian(0.7),
            X[:600].astype(np.float32),
            n_components=530,
            nystrom=Nystrom(),
            seed=0,
        )
    elif features == "phases":
        wide = draw_feature_map(
            Gaussian(0.7), n_features=3, n_components=601, map="phases"
        )
    else:
        wide = draw_feature_map(
            Gaussian(0.7) + 2.0 * Gaussian(2.0), n_features=3, n_components=530
        )
    # the components of a sum's terms stand side by side, so that the leading ones are
    # no map of their own
    maps = [wide] if features == "sum" else [shortened(wide, 523), wide]
    assert_errors_of_refits(X, y, maps, HashFolds(2), alphas=[0.1, 10.0])


def test_directions_of_clipped_eigenvalues_count_at_every_alpha_above_the_floor():
    # fewer rows than components and a wide kernel: most eigenvalues are rounding, but
    # y's part in them is not
    rng = np.random.default_rng(0)
    X = rng.standard_normal((160, 3))
    y = 50.0 + X @ [[1.0], [2.0], [3.0]] + rng.standard_normal((160, 1))
    for n_components in (150, 400):
        feature_map = draw_feature_map(
            Gaussian(1.5), n_features=3, n_components=n_components
        )
        assert_errors_of_refits(X, y, [feature_map], HashFolds(3))


def problem(
    n=240, n_components=64, *, folds=None, seed=0, data=several_targets_with_precisions
):
    X, y, _ = data(np.random.default_rng(seed), n)
    feature_map = draw_feature_map(
        Gaussian(1.5), n_features=X.shape[1], n_components=n_components
    )
    return X, y, feature_map, HashFolds(4) if folds is None else folds


def test_threads_and_the_order_of_alphas_change_no_bit(monkeypatch):
    X, y, wide, folds = problem(n_components=300)
    statistics = fold_statistics(X, y, wide, folds)
    maps = [shortened(wide, 100), wide]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    one = cross_validate(statistics, alphas=ALPHAS, feature_maps=maps)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    two = cross_validate(
        statistics, alphas=[*ALPHAS[::-1], ALPHAS[0]], feature_maps=maps
    )
    assert_array_equal(one.alphas, two.alphas)
    assert_array_equal(one.errors, two.errors)


@pytest.mark.parametrize("n_components", [40, 200])
def test_default_alphas_are_those_of_the_spectrum_of_all_rows(n_components):
    X, y, wide, folds = problem(n_components=n_components)
    statistics = fold_statistics(X, y, wide, folds)
    expected = default_alphas(decompose(statistics.total().normal_equations()))
    got = cross_validate(statistics, feature_maps=[shortened(wide, 20), wide]).alphas
    assert_allclose(got, expected, rtol=1e-9)


def test_an_error_that_float64_cannot_tell_from_zero_is_its_bound_and_never_negative():
    X, _, feature_map, folds = problem()
    weights = np.random.default_rng(1).standard_normal((64, 2))
    y = feature_map.transform(X) @ weights
    table = cross_validate(
        fold_statistics(X, y, feature_map, folds),
        alphas=[1e-13, 1e-6],
        fit_intercept=False,
    )
    assert (table.errors > 0).all()
    assert (table.errors[:, 0, 0] < 1e-9 * table.target_variance).all()


def test_a_constant_target_has_no_say():
    X, y, feature_map, folds = problem()
    y = np.column_stack([y[:, :1], np.full(len(y), 0.1)])
    # without an offset its sum of squares is not 0, but the rounding of two sums
    both = cross_validate(
        fold_statistics(X, y, feature_map, folds, offset=(0.0, 0.0)), alphas=ALPHAS
    )
    alone = cross_validate(
        fold_statistics(X, y[:, :1], feature_map, folds), alphas=ALPHAS
    )
    assert both.target_variance[1] == 0.0
    assert_allclose(both.scores, alone.scores, rtol=1e-10)
    assert both.best.alpha == alone.best.alpha


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    order=st.permutations(range(3)),
    scale=st.floats(-1e6, 1e6).filter(lambda s: abs(s) > 1e-6),
    fit_intercept=st.booleans(),
)
def test_permuting_targets_permutes_the_table_and_scaling_them_scales_it_by_the_square(
    seed, order, scale, fit_intercept
):
    X, y, feature_map, folds = problem(60, 16, seed=seed)

    def table(targets):
        statistics = fold_statistics(X, targets, feature_map, folds)
        return cross_validate(statistics, alphas=ALPHAS, fit_intercept=fit_intercept)

    plain = table(y)
    changed = table(scale * y[:, order])
    assert_allclose(changed.errors, scale**2 * plain.errors[..., order], rtol=1e-8)
    assert_allclose(changed.scores, plain.scores, rtol=1e-8)


# -- standard errors and choices
# -------------------------------------------------------------------


def hand_made(scores, *, weights=None, n_components=(16, 32, 64), folds=None):
    """Return a table of one target of variance 1; `scores` of shape (n_splits,
    n_widths, n_alphas).
    """
    scores = np.asarray(scores, float)
    return CrossValidation(
        folds=HashFolds(len(scores)) if folds is None else folds,
        n_components=np.array(n_components[: scores.shape[1]]),
        alphas=10.0 ** np.arange(scores.shape[2]),
        errors=scores[..., np.newaxis],
        weights=np.ones(len(scores)) if weights is None else np.asarray(weights, float),
        target_variance=np.ones(1),
    )


def test_each_row_counts_once_and_scores_weigh_targets_by_their_variances():
    X, y, feature_map, folds = problem()
    table = cross_validate(fold_statistics(X, y, feature_map, folds), alphas=ALPHAS)
    table = replace(table, weights=np.array([3.0, 1.0, 5.5, 2.0]))
    per_split = (table.errors / y.var(axis=0)).mean(axis=-1)
    for values, mean, error in (
        (table.errors, table.mean, table.standard_error),
        (per_split, table.scores, table.score_standard_errors),
    ):
        expected = np.average(values, axis=0, weights=table.weights)
        spread = np.average((values - expected) ** 2, axis=0, weights=table.weights) / 3
        assert_allclose(mean, expected, rtol=1e-10)
        assert_allclose(error, np.sqrt(spread), rtol=1e-10)
    assert table.best.score == table.scores.min()


def test_one_standard_error_rule_takes_the_largest_alpha_and_the_fewest_components_within_it():
    means = np.array(
        [[5.0, 4.0, 3.5, 6.0], [2.4, 2.05, 2.3, 2.9], [2.2, 2.0, 2.45, 2.6]]
    )
    table = hand_made(
        means + np.array([-0.5, 0.5, -0.5, 0.5])[:, np.newaxis, np.newaxis]
    )
    error = 1 / np.sqrt(12)  # the standard deviation of the four, √(1/3), over √4
    assert_allclose(table.score_standard_errors, np.full((3, 4), error))
    assert (table.best.n_components, table.best.alpha, table.best.at_end) == (
        64,
        10.0,
        None,
    )
    assert table.best.standard_error == pytest.approx(error)
    assert table.choose(64, "one_standard_error").alpha == 10.0  # 2.45 is beyond 2.289
    assert table.choose(32, "one_standard_error").alpha == 100.0
    assert table.choose(32, "one_standard_error").score == pytest.approx(2.3)
    assert (
        table.fewest_components().n_components,
        table.fewest_components().alpha,
    ) == (32, 10.0)
    assert table.choose(16).alpha == 100.0


def test_where_rows_are_interpolated_an_alpha_a_tenth_of_a_standard_error_off_is_as_good():
    splits = np.array([-0.5, 0.5, -0.5, 0.5])[:, np.newaxis, np.newaxis]
    # a tenth of the standard error is 0.0289
    one = [2.5, 2.0, 2.028, 2.03]
    other = [1.5, 1.0, 1.5, 2.0]
    ordinary = hand_made(np.array([one]) + splits)
    assert ordinary.choose(16, "safest") == ordinary.best
    table = replace(ordinary, leverages=np.full((4, 1, 4), 0.95))
    assert (table.choose(16, "safest").alpha, table.choose(16, "safest").score) == (
        100.0,
        pytest.approx(2.028),
    )
    errors = np.stack(
        [np.array([values]) + splits for values in (one, other, [0.0] * 4)], axis=-1
    )
    several = replace(table, errors=errors, target_variance=np.array([1.0, 1.0, 0.0]))
    apart = several.with_own_alphas(
        replace(several.best, alpha=1.0), always=True, by="safest"
    )
    assert apart.own_alphas == (100.0, 10.0, 1.0)
    # only the constant target is at the lower end; nothing is better beyond
    assert apart.at_end is None
    assert several.with_own_alphas(apart, always=True).own_alphas[0] == 10.0


def test_ties_go_to_the_smaller_width_and_the_larger_alpha():
    table = hand_made(
        np.tile([[2.0, 1.0 + 1e-11, 3.0], [1.0, 1.0, 1.0 + 1e-11]], (3, 1, 1))
    )
    assert (table.best.n_components, table.best.alpha) == (16, 10.0)
    assert (table.choose(32).alpha, table.choose(32).at_end) == (100.0, "upper")
    assert table.fewest_components() == table.best
    assert table.choose(16, "one_standard_error").alpha == 10.0


def test_a_best_alpha_at_the_lower_end_is_said_to_be_there():
    assert hand_made(np.tile([[1.0, 2.0]], (2, 1, 1))).best.at_end == "lower"


# -- what is refused
# -------------------------------------------------------------------------------


def test_one_split_has_no_standard_error_and_no_rule_that_needs_it():
    X, y, feature_map, _ = problem()
    table = cross_validate(
        fold_statistics(X, y, feature_map, TimeFolds(2)), alphas=ALPHAS
    )
    assert np.isnan(table.standard_error).all()
    assert table.best.alpha in ALPHAS
    for rule in (
        table.fewest_components,
        lambda: table.choose(64, "one_standard_error"),
    ):
        with refuses(InvalidParameterError, "one split"):
            rule()


def test_maps_that_are_not_leading_and_ascending_are_refused():
    X, y, wide, folds = problem()
    narrow = shortened(wide, 20)
    wider = draw_feature_map(Gaussian(1.5), n_features=4, n_components=66)
    statistics = fold_statistics(X, y, wide, folds)
    for maps in ([], [wide, narrow], [narrow, narrow], [narrow, wider]):
        with refuses(InvalidParameterError, "64"):
            cross_validate(statistics, feature_maps=maps)
    parts = draw_feature_map(
        Gaussian(1.0) + 2.0 * Gaussian(2.0), n_features=4, n_components=64
    )
    with refuses(InvalidParameterError, "own up to one factor"):
        cross_validate(statistics, feature_maps=[parts])
    with refuses(InvalidParameterError, "no feature map of their own"):
        cross_validate(
            fold_statistics(X, y, parts, folds), feature_maps=[narrow, parts]
        )


@pytest.mark.parametrize("alphas", [[], [0.0, 1.0], [-1.0], [np.nan], ["a"]])
def test_alphas_that_are_not_positive_are_refused(alphas):
    X, y, feature_map, folds = problem(60, 8)
    with pytest.raises(InvalidParameterError, match="`alpha"):
        cross_validate(fold_statistics(X, y, feature_map, folds), alphas=alphas)


def test_folds_without_rows_are_named_where_they_are_needed():
    X, y, feature_map, _ = problem(60, 8)
    one_group = np.zeros(len(X), int)
    statistics = fold_statistics(X, y, feature_map, GroupFolds(3), groups=one_group)
    with refuses(StatisticsError, "has no rows"):
        cross_validate(statistics, alphas=ALPHAS)


@dataclass(frozen=True)
class LateFolds(TimeFolds):
    """Walk forward from fold 1 on, whatever fold 0 holds."""

    @property
    def splits(self):
        return [((0,), 2), ((0, 1), 2), ((0, 1), 3)]


def test_a_fold_without_rows_among_those_trained_on_is_left_out_unless_it_is_alone():
    X, y, feature_map, _ = problem(200, 8)
    statistics = fold_statistics(X, y, feature_map, LateFolds(4))
    emptied = replace(
        statistics, parts=(statistics.parts[0], None, *statistics.parts[2:])
    )
    errors = cross_validate(emptied, alphas=ALPHAS).errors
    assert_array_equal(errors[0], errors[1])
    with refuses(StatisticsError, "fold 0"):
        cross_validate(
            replace(statistics, parts=(None, *statistics.parts[1:])), alphas=ALPHAS
        )


@pytest.mark.parametrize("exponent", [-900, 900])
def test_standard_errors_have_the_scale_of_squared_errors(exponent):
    errors = np.random.default_rng(0).chisquare(1, (5, 3))
    units = HeldOutUnits.of_splits(np.arange(1.0, 6.0))
    scaled = units.standard_error(np.ldexp(errors, exponent))
    assert_array_equal(scaled, np.ldexp(units.standard_error(errors), exponent))
