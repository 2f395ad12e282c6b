"""Updates of a model: the bits of one pass over all rows, whatever was appended,
refused or taken back.
"""

import functools
import itertools
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

from rff_dist import Gaussian, HashFolds, Linear, SerialEngine, TimeFolds
from rff_dist.classify import fit as classification
from rff_dist.data import blocks
from rff_dist.data.blocks import Block
from rff_dist.data.columns import MemoryColumn
from rff_dist.data.folding import folds_from_dict, with_tuning_rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, FingerprintMismatchError, StatisticsError
from rff_dist.fitting.options import Penalty, RidgeOptions
from rff_dist.living import update
from rff_dist.living.gate import hold_out, judge
from rff_dist.living.new_rows import NewRows, Refusal, find_new_rows, refuse
from rff_dist.numerics.machine import using_threads
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.refit import refit
from rff_dist.ridge.solve import solve
from rff_dist.statistics import passes, row_passes
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from tests.living_data import fit
from tests.plain import fit_labels, update_model
from tests.refusals import refuses

ENGINE = SerialEngine(1)
N_ROWS = 26_000


@functools.cache
def arrays():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 3))
    y = np.column_stack([np.sin(X[:, 0]), X.sum(axis=1)]) + 0.1 * rng.standard_normal(
        (N_ROWS, 2)
    )
    frequencies = rng.integers(1, 4, N_ROWS).astype(float)
    precisions = rng.random(N_ROWS)
    # the first rows fix the weights' grid
    frequencies[0] = 3.0
    precisions[0] = 1.0
    return X, y, frequencies, precisions


def first_rows(n_samples, *, chunk_rows=1000, weights=None, y=None):
    X, targets, *weighted = arrays()
    targets = targets if y is None else y
    sample_weight = (
        None if weights is None else weighted[weights == "precision"][:n_samples]
    )
    return ArrayDataset(
        X[:n_samples], targets[:n_samples], sample_weight, chunk_rows=chunk_rows
    )


def at_once(model, dataset):
    """Return the statistics of one pass over all rows, with a model's features and
    grids.
    """
    return passes.accumulate(
        dataset, model.feature_map, engine=ENGINE, spec=model.statistics.spec
    )


def with_rows(model, dataset, rows):
    """Take the steps of `update_model` for given rows."""
    new = update.score_new_rows(model, dataset, rows, engine=ENGINE)
    statistics = update.accumulate_new_rows(model, dataset, rows, engine=ENGINE)
    return update.solve_update(
        model, dataset, rows, statistics=statistics, new=new, gone=None
    )


def assert_same(found, model, dataset):
    expected = at_once(model, dataset)
    assert found.statistics == expected
    assert (
        found.statistics.digest()
        == found.card["statistics_digest"]
        == expected.digest()
    )
    assert found.statistics.n_tiles == expected.n_tiles


# -- update == all at once
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("folds", [None, HashFolds(3, seed=1), "held in"])
@settings(max_examples=8)
@given(
    first=st.integers(1, 12_000),
    appended=st.lists(
        st.sampled_from([1, 999, 1000, 5000]) | st.integers(1, 6000),
        min_size=1,
        max_size=3,
    ),
    chunk_rows=st.sampled_from([1, 7, 100, 1000, 8192, 50_000]),
    small_blocks=st.booleans(),
    weights=st.sampled_from([None, "frequency", "precision"]),
)
def test_updates_one_after_another_have_the_bits_of_one_pass(
    folds, first, appended, chunk_rows, small_blocks, weights
):
    """Blocks keep their edges when rows are appended."""
    given = {"chunk_rows": chunk_rows, "weights": weights}
    n_samples = first if folds is None else max(first, 200)
    cv = (
        with_tuning_rows(HashFolds(3, seed=1), n_samples, 50)
        if folds == "held in"
        else folds
    )
    with pytest.MonkeyPatch.context() as patched:
        if small_blocks:
            patched.setattr(blocks, "MIN_BLOCK_ROWS", 512)
        model = begun = fit(first_rows(n_samples, **given), cv=cv)
        for n_new in appended:
            n_samples += n_new
            dataset = first_rows(n_samples, **given)
            model = update_model(model, dataset, engine=ENGINE)
        if folds is None:
            assert_same(model, begun, dataset)
        else:
            assert begun.card["summed_by_folds"]
            assert model.statistics == by_folds_at_once(begun, dataset)
        assert model.card["n_seen"] == model.statistics.n_samples == n_samples


@settings(max_examples=10)
@given(
    ends=st.lists(st.integers(1, 20_000), min_size=2, max_size=5, unique=True).map(
        sorted
    ),
    refused=st.sets(st.integers(1, 4)),
    backfilled=st.booleans(),
)
def test_batches_that_are_left_out_and_taken_back_leave_the_bits_of_their_pieces(
    ends, refused, backfilled
):
    model = begun = fit(first_rows(ends[0]))
    refusals = []
    for i, (_, stop) in enumerate(itertools.pairwise(ends), start=1):
        dataset = first_rows(stop)
        rows = find_new_rows(model, dataset, refusals=refusals)
        assert rows.n_new > 0
        if i in refused:
            refusals += refuse(dataset, rows, "bad")
        else:
            model = with_rows(model, dataset, rows)
    if backfilled:
        dataset = first_rows(ends[-1])
        rows = find_new_rows(model, dataset, refusals=refusals, backfill=0)
        if rows.n_new:
            model = with_rows(model, dataset, rows)
        assert_same(model, begun, dataset)
    # an independent oracle: each block of rows that the model saw, without those left
    # out, is summed alone
    dataset = first_rows(model.card.get("n_seen", ends[0]))
    out = model.card.get("left_out", [])
    state = Accumulation(begun.feature_map, begun.statistics.spec)
    kept = np.ones(dataset.n_samples, bool)
    for start, stop in out:
        kept[start:stop] = False
    parts = []
    for block in row_passes.blocks_of(dataset, max_rows=state.spec.int64_rows):
        edges = (
            np.flatnonzero(np.diff(np.r_[False, kept[block.start : block.stop], False]))
            + block.start
        )
        with using_threads(1):
            parts += [
                accumulate_rows(dataset.read(Block(0, int(a), int(b))), state)
                for a, b in zip(edges[::2], edges[1::2], strict=True)
            ]
    assert functools.reduce(add, parts) == model.statistics


def test_a_copy_in_other_chunks_is_cut_as_the_copy_is_and_the_old_rows_as_they_were():
    model = fit(first_rows(20_500, chunk_rows=1000))
    again = first_rows(21_000, chunk_rows=300)
    assert_same(update_model(model, again, engine=ENGINE), model, again)


@pytest.mark.parametrize(
    "folds", [None, HashFolds(3), with_tuning_rows(HashFolds(3), 20_000, 100)]
)
def test_only_the_last_block_and_the_new_rows_are_read_again(folds):
    read = []

    class Watched(ArrayDataset):
        def read(self, block):
            read.append((block.start, block.stop))
            return super().read(block)

    X, y, *_ = arrays()
    model = fit(first_rows(20_000), cv=folds)
    dataset = Watched(X[:21_000], y[:21_000], chunk_rows=1000)
    rows = find_new_rows(model, dataset)
    read.clear()
    update.accumulate_new_rows(model, dataset, rows, engine=ENGINE)
    # the block as it was and as it is
    assert sorted(read) == [(16_000, 20_000), (16_000, 21_000)]


def test_features_with_centres_and_without_bounds_are_updated_too():
    y = arrays()[1][:, 0]
    for options in (
        {"features": "nystrom"},
        {"kernel": Gaussian(2.0) + Linear(), "length_scale": None},
        {"alpha": "evidence", "fit_intercept": False},
    ):
        model = fit(first_rows(2000, y=y), **options)
        dataset = first_rows(2500, y=y)
        found = update_model(model, dataset, engine=ENGINE)
        assert_same(found, model, dataset)
        assert found.one_dimensional
        how = {
            name: options.get(name, usual)
            for name, usual in (("alpha", 0.1), ("fit_intercept", True))
        }
        assert found.digest() == refit(model, at_once(model, dataset), **how).digest()


def test_a_cross_validated_model_keeps_its_alpha():
    model = fit(first_rows(2000), alpha="cv", cv=3)
    found = update_model(model, first_rows(2600), engine=ENGINE)
    assert found.statistics == by_folds_at_once(model, first_rows(2600))
    assert found.alpha == model.alpha
    assert (found.card["alpha_given"], found.card["chosen_by"]) == ("cv", "cv")
    again = update_model(found, first_rows(2700), engine=ENGINE)
    assert again.alpha == model.alpha


def by_folds_at_once(model, dataset):
    """Return the sum of each fold's statistics, from one pass over all rows."""
    member = Accumulation(model.feature_map, model.statistics.spec)
    folds = folds_from_dict(model.card["folds"])
    (parts,) = passes.accumulate_folds(dataset, [member], folds=folds, engine=ENGINE)
    return parts.total()


@pytest.mark.parametrize(
    "folds", [TimeFolds(3), with_tuning_rows(TimeFolds(3), 2000, 10)]
)
def test_what_was_summed_by_folds_that_move_is_summed_anew(folds):
    model = begun = fit(first_rows(2000), cv=folds)
    for n_samples in (2600, 2700):
        model = update_model(model, first_rows(n_samples), engine=ENGINE)
        assert_same(model, begun, first_rows(n_samples))


def test_alpha_is_chosen_again_from_the_values_that_were_given():
    alphas = [1e-4, 1e-2, 1.0]
    model = fit(first_rows(300), alpha="gcv", alphas=alphas)
    found = update_model(
        update_model(model, first_rows(400), engine=ENGINE),
        first_rows(3000),
        engine=ENGINE,
    )
    expected = solve(
        at_once(model, first_rows(3000)), Penalty(alpha="gcv", alphas=alphas)
    )
    assert found.alpha == expected.solution.alpha[0]
    assert found.card["alphas"] == alphas


# -- which rows are new
# --------------------------------------------------------------------------------


def test_nothing_new_is_an_answer():
    model = fit(first_rows(500))
    assert find_new_rows(model, first_rows(500)) == NewRows(500, 500, (), ())
    assert update_model(model, first_rows(500), engine=ENGINE) is model


def test_other_rows_at_the_beginning_are_refused():
    X, y, weights, _ = arrays()
    model = fit(first_rows(500))
    changed = X[:600].copy()
    changed[3, 1] += 1e-9
    with refuses(FingerprintMismatchError, "500 rows", "fit again"):
        find_new_rows(model, ArrayDataset(changed, y[:600]))
    with refuses(FingerprintMismatchError, "400"):
        find_new_rows(model, first_rows(400))
    with refuses(FingerprintMismatchError, "same arrays of X, y and weights"):
        find_new_rows(model, ArrayDataset(X[:600], y[:600], weights[:600]))


def test_refused_rows_are_passed_over_unless_they_are_others_now():
    model = fit(first_rows(500))
    refusals = refuse(first_rows(600), find_new_rows(model, first_rows(600)), "bad")
    assert find_new_rows(model, first_rows(600), refusals=refusals) == NewRows(
        500, 600, (), ((500, 600),)
    )
    later = find_new_rows(model, first_rows(700), refusals=refusals)
    assert (later.added, later.left_out) == (((600, 700),), ((500, 600),))
    X, y, *_ = arrays()
    corrected = y[:600].copy()
    corrected[550] += 1.0
    rows = find_new_rows(model, ArrayDataset(X[:600], corrected), refusals=refusals)
    assert rows.added == ((500, 600),)


def test_a_backfill_takes_what_was_left_out_from_a_row_on():
    model = with_rows(
        fit(first_rows(500)),
        first_rows(800),
        NewRows(500, 800, ((600, 700),), ((500, 600), (700, 800))),
    )
    refusal = Refusal(800, 900, 900, first_rows(900).prefix_fingerprint(900), "bad", "")
    for backfill, expected in (
        (None, ((900, 950),)),
        (0, ((500, 600), (700, 950))),
        (550, ((550, 600), (700, 950))),
        (850, ((850, 950),)),
    ):
        rows = find_new_rows(
            model, first_rows(950), refusals=[refusal], backfill=backfill
        )
        assert rows.added == expected
        assert rows.n_new + sum(b - a for a, b in rows.left_out) == 350


@pytest.mark.parametrize("what", ["statistics", "which rows", "classifier"])
def test_what_cannot_be_updated_is_refused_by_name(what):
    model = fit(first_rows(300))
    if what == "statistics":
        model = model.without_statistics()
    elif what == "classifier":
        X = arrays()[0][:300]
        model = fit_labels(
            ArrayDataset(X),
            MemoryColumn(X[:, 0] > 0),
            RidgeOptions(
                kernel=Gaussian(),
                length_scale=None,
                features="fourier",
                n_components=8,
                alpha=0.1,
            ),
            classification.LossOptions(),
            engine=ENGINE,
        )
    else:
        card = {
            name: value
            for name, value in model.card.items()
            if name != "prefix_fingerprint"
        }
        model = update.replace(model, card=card)
    with refuses(StatisticsError, "cannot be updated", what):
        find_new_rows(model, first_rows(400))


def test_data_of_other_columns_or_targets_are_refused():
    X, y, *_ = arrays()
    model = fit(first_rows(300))
    with refuses(DataError, "2 features"):
        find_new_rows(model, ArrayDataset(X[:400, :2], y[:400]))
    with refuses(DataError, "1 targets", "2"):
        find_new_rows(model, ArrayDataset(X[:400], y[:400, 0]))


# -- progressive validation and the gate
# ---------------------------------------------------------------


def nothing_new(model):
    n_samples = (
        model.card["n_seen"] if "n_seen" in model.card else model.card["n_samples"]
    )
    return NewRows(
        n_samples,
        n_samples,
        (),
        tuple(tuple(one) for one in model.card.get("left_out", ())),
    )


def test_new_rows_are_scored_before_they_are_added():
    model = fit(first_rows(3000))
    dataset = first_rows(3700)
    batch = update.score_new_rows(
        model, dataset, find_new_rows(model, dataset), engine=ENGINE
    )
    X, y, *_ = arrays()
    expected = prediction.evaluate(
        ArrayDataset(X[3000:3700], y[3000:3700]), model, engine=ENGINE
    )
    errors = batch.errors
    assert errors.n_samples == 700
    assert_allclose(errors.mean_squared_error, expected.mean_squared_error, rtol=1e-12)
    assert_allclose(
        errors.mean_absolute_error, expected.mean_absolute_error, rtol=1e-12
    )


def test_new_rows_that_all_have_weight_0_are_refused_before_they_are_compared():
    X, y, frequencies, _ = arrays()
    weights = np.where(np.arange(3200) < 3000, frequencies[:3200], 0.0)
    model = fit(ArrayDataset(X[:3000], y[:3000], weights[:3000]))
    dataset = ArrayDataset(X[:3200], y[:3200], weights)
    rows = find_new_rows(model, dataset)
    with refuses(DataError, "200"):
        update.score_new_rows(model, dataset, rows, engine=ENGINE)


def test_the_gate_compares_models_that_have_not_seen_the_held_out_rows():
    model = fit(first_rows(1000))
    dataset = first_rows(1400)
    challenger = update_model(model, dataset, engine=ENGINE)
    gate = judged(model, challenger, dataset)
    X, y, *_ = arrays()
    expected = []
    for kept in (np.arange(800), np.r_[:800, 1000:1400]):
        Z = np.column_stack([model.feature_map.transform(X), np.ones(len(X))])
        penalty = np.diag([0.1] * 8 + [0.0])
        weights = np.linalg.solve(Z[kept].T @ Z[kept] + penalty, Z[kept].T @ y[kept])
        expected.append(
            np.sqrt(((Z[800:1000] @ weights - y[800:1000]) ** 2).mean(axis=0))
        )
    # coefficients of an ill-conditioned system: float64 leaves nine digits of the
    # errors
    assert_allclose([gate.champion, gate.challenger], expected, rtol=1e-7)
    assert gate.ratio == pytest.approx(
        (expected[1] ** 2 / expected[0] ** 2).max(), rel=1e-6
    )
    assert "newest 200 rows" in gate.reason


def judged(model, challenger, dataset, **options):
    test = {"test": options.pop("test")} if "test" in options else {}
    held_out = hold_out(model, dataset, nothing_new(model), engine=ENGINE, **test)
    return judge(challenger, held_out, engine=ENGINE, **options)


def test_the_gate_allows_for_what_chance_may_add():
    """The standard error of the paired differences, against NumPy's."""
    model = fit(first_rows(1000))
    dataset = first_rows(1400)
    worse = refit(model, model.statistics, alpha=30.0)
    gate = judged(model, worse, dataset, test=first_rows(300))
    X, y, *_ = arrays()
    old, new = (
        (
            y[:300]
            - prediction.predict_in_memory(ArrayDataset(X[:300]), one, engine=ENGINE)[
                "predictions"
            ]
        )
        ** 2
        for one in (model, worse)
    )
    rise = (new - old).mean(axis=0) - stats.norm.ppf(0.995) * (new - old).std(
        axis=0
    ) / np.sqrt(300)
    expected = 1 + (rise / old.mean(axis=0)).max()
    assert gate.at_least == pytest.approx(expected, rel=1e-3)  # 1e-6 of the variance
    assert gate.at_least < gate.ratio
    assert ("no clear difference" in gate.change) == (gate.at_least <= 1)
    # one row more or less in 300 is within chance
    slight = refit(model, model.statistics, alpha=0.1001)
    gate = judged(model, slight, dataset, test=first_rows(20))
    assert ", no clear difference; before" in gate.reason


def test_test_data_are_held_out_where_there_are_some():
    X, y, *_ = arrays()
    test = ArrayDataset(X[5000:5500], y[5000:5500])
    model = fit(first_rows(1000))
    dataset = first_rows(1400)
    challenger = update_model(model, dataset, engine=ENGINE)
    gate = judged(model, challenger, dataset, test=test)
    for one, rmse in ((model, gate.champion), (challenger, gate.challenger)):
        errors = prediction.evaluate(test, one, engine=ENGINE)
        assert_allclose(rmse, np.sqrt(errors.mean_squared_error), rtol=1e-12)
    assert "500 rows of test data" in gate.reason
    with refuses(DataError, "2"):
        hold_out(
            model,
            dataset,
            nothing_new(model),
            engine=ENGINE,
            test=ArrayDataset(X[:10], y[:10, 0]),
        )


def test_held_out_rows_are_the_newest_that_the_model_holds():
    model = with_rows(
        fit(first_rows(500)),
        first_rows(800),
        NewRows(500, 800, ((600, 700),), ((500, 600), (700, 800))),
    )
    held_out = hold_out(model, first_rows(900), nothing_new(model), engine=ENGINE)
    newest = first_rows(900).take([*range(480, 500), *range(600, 700)])
    assert np.array_equal(held_out.dataset.X, newest.X)
    assert sum(block.n_samples for block in held_out.blocks) == 120


def test_one_corrupted_target_of_two_is_enough_to_fail():
    X, y, *_ = arrays()
    bad = y[:1400].copy()
    bad[1000:, 1] = np.random.default_rng(0).permutation(bad[1000:, 1])
    dataset = ArrayDataset(X[:1400], bad)
    model = fit(ArrayDataset(X[:1000], bad[:1000]), n_components=64)
    challenger = update_model(model, dataset, engine=ENGINE)
    gate = judged(model, challenger, dataset)
    assert not gate.passed
    assert "of target 1" in gate.reason
    named = challenger.with_card(target_names=["price", "days"])
    assert "of days" in judged(model, named, dataset).reason
    assert judged(model, challenger, dataset, tolerance=1e3).passed


def test_errors_below_a_thousandth_of_the_targets_spread_are_not_told_apart():
    X = arrays()[0]
    dataset = ArrayDataset(X[:1400], X[:1400, 0])
    model = fit(
        ArrayDataset(X[:1000], X[:1000, 0]),
        kernel=Linear(),
        length_scale=None,
        n_components=4,
        alpha=1e-8,
    )
    worse = refit(model, model.statistics, alpha=1e-3)
    gate = judged(model, worse, dataset)
    assert gate.challenger[0] > 10 * gate.champion[0]
    assert gate.passed


@pytest.mark.parametrize("exponent", [-400, 200, 400])
def test_the_gate_sees_a_rise_at_any_scale_of_the_targets(exponent):
    gates = []
    for power in (0, exponent):
        dataset = first_rows(1000, y=np.ldexp(arrays()[1], power))
        model = fit(dataset)
        worse = refit(model, model.statistics, alpha=1e4)
        gates.append(judged(model, worse, dataset, test=dataset))
    plain, scaled = gates
    assert not plain.passed
    assert not scaled.passed
    assert_allclose(
        [scaled.ratio, scaled.at_least], [plain.ratio, plain.at_least], rtol=1e-9
    )
    assert_allclose(scaled.challenger, np.ldexp(plain.challenger, exponent), rtol=1e-9)


def test_rows_between_one_row_updates_are_held_out():
    n_samples = 30
    # in fixed point nothing is rounded
    model = fit(first_rows(n_samples), precision="high")
    odd, even = (tuple((i, i + 1) for i in range(first, 60, 2)) for first in (31, 30))
    model = with_rows(model, first_rows(60), NewRows(n_samples, 60, odd, even))
    whole = update.replace(
        model, statistics=update.replace(model.statistics, n_tiles=1)
    )
    held_out = hold_out(whole, first_rows(60), nothing_new(whole), engine=ENGINE)
    assert judge(whole, held_out, engine=ENGINE).ratio == 1.0
