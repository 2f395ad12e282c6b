"""Verdicts: intervals against SciPy's, their coverage, and what is never claimed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import r2_score, root_mean_squared_error

from rff_dist.text import score_words
from rff_dist.workbench.jobs.comparison import (
    LINEAR,
    MEAN,
    OURS,
    TREES,
    ComparisonRows,
    ModelComparison,
    Predictions,
    naive_predictions,
)
from rff_dist.workbench.jobs.intervals import LEVEL, exact_interval, paired_interval
from rff_dist.workbench.jobs.verdict import rows_words, table_of, verdict_of

NAMES = ["a", "b", "c"]


def comparison(y, models, n_classes=0, weights=None, **options):
    targets = y
    if n_classes:
        targets = np.where(y[:, np.newaxis] == np.arange(n_classes), 1.0, -1.0)
    means = np.average(targets, axis=0, weights=weights)
    models |= naive_predictions(np.broadcast_to(means, targets.shape), n_classes)
    rows = ComparisonRows(
        "test", len(y), np.arange(len(y)), np.zeros((len(y), 1)), y, weights
    )
    return ModelComparison(rows, y, models, **options)


def regression(y, ours, other, **options):
    models = {
        name: Predictions(np.asarray(one)[:, np.newaxis])
        for name, one in ((OURS, ours), (LINEAR, other))
    }
    return comparison(np.asarray(y, float)[:, np.newaxis], models, **options)


def classes(y, models):
    models = {
        name: Predictions(logs.argmax(axis=1), logs) for name, logs in models.items()
    }
    return comparison(y, models, 3, classes=NAMES)


def sure(said, chance):
    """Return log probabilities that give these classes this chance."""
    logs = np.full((len(said), 3), np.log((1 - chance) / 2))
    logs[np.arange(len(said)), said] = np.log(chance)
    return logs


def test_scores_are_those_of_scikit_learn():
    y, ours, other = np.random.default_rng(2).standard_normal((3, 30))
    weights = np.arange(1.0, 31.0)
    scores = regression(y, ours, other, weights=weights).scores
    for name, said in ((OURS, ours), (LINEAR, other)):
        expected = [
            measure(y, said, sample_weight=weights)
            for measure in (root_mean_squared_error, r2_score)
        ]
        assert_allclose(
            [*scores[name]["rmse"], *scores[name]["r2"]], expected, rtol=1e-12
        )


# -- intervals
# -------------------------------------------------------------------------------------


def test_the_interval_is_students():
    differences = np.random.default_rng(0).standard_normal(17)
    expected = scipy.stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    mean, lower, upper = paired_interval(differences)
    assert_allclose([mean, lower, upper], [differences.mean(), *expected], rtol=1e-12)


@pytest.mark.parametrize("exponent", [-900, 900])
def test_the_interval_of_squared_errors_has_their_scale(exponent):
    errors = np.random.default_rng(0).chisquare(1, 17)
    scaled = paired_interval(np.ldexp(errors, exponent))
    assert_array_equal(scaled, np.ldexp(paired_interval(errors), exponent))


def test_the_interval_of_groups_is_students_of_their_means():
    differences = np.random.default_rng(1).standard_normal(24)
    groups = np.repeat(list("abcdef"), 4)
    expected = scipy.stats.ttest_1samp(
        differences.reshape(6, 4).mean(axis=1), 0
    ).confidence_interval(0.95)
    assert_allclose(
        paired_interval(differences, groups=groups)[1:], expected, rtol=1e-12
    )


def test_weights_that_repeat_rows_in_groups_are_repeated_rows():
    rng = np.random.default_rng(2)
    differences = rng.standard_normal(12)
    weights = rng.integers(1, 4, 12)
    repeated = np.repeat(differences, weights)
    groups = np.repeat(np.arange(12), weights)
    expected = paired_interval(repeated, groups=groups)
    assert_allclose(
        paired_interval(differences, weights.astype(float)), expected, rtol=1e-12
    )


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_the_exact_interval_is_clopper_and_pearsons_and_holds_0_if_mcnemars_test_finds_nothing(
    more, less, equal
):
    differences = np.repeat([1.0, -1.0, 0.0], [more, less, equal + 1])
    low, high = exact_interval(differences)
    if not (n := more + less):
        assert (low, high) == (0.0, 0.0)
        return
    expected = scipy.stats.binomtest(more, n)
    ends = (2 * np.array(expected.proportion_ci(LEVEL)) - 1) * n / len(differences)
    assert_allclose([low, high], ends, atol=1e-9)
    assert (low <= 0 <= high) == (expected.pvalue > 1 - LEVEL)


def test_the_standard_error_of_the_rmse_is_that_of_repeated_samples():
    rng = np.random.default_rng(3)
    y, *models = rng.standard_normal((3, 4_000, 40))
    found = [regression(*of_one) for of_one in zip(y, *models, strict=True)]
    rmses = [one.scores[OURS]["rmse"][0] for one in found]
    errors = [one.standard_error(one.ours, "rmse") for one in found]
    # over 4,000 samples the spread is known to 1 %; the first order misses 5 % of it
    assert_allclose(np.mean(errors), np.std(rmses), rtol=0.08)


# -- what is claimed
# -------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(2, 60), st.booleans())
def test_equal_models_differ_in_nothing_and_swapped_models_swap_the_claim(
    seed, n_rows, classify
):
    rng = np.random.default_rng(seed)
    if classify:
        y = rng.integers(0, 3, n_rows)
        one, other = (
            scipy.special.log_softmax(3 * rng.standard_normal((n_rows, 3)), 1)
            for _ in range(2)
        )

        def judge(ours, others):
            return classes(y, {OURS: ours, LINEAR: others})

    else:
        y = rng.standard_normal(n_rows)
        one = y + 0.1 * rng.standard_normal(n_rows)
        other = y + rng.standard_normal(n_rows)

        def judge(ours, others):
            return regression(y, ours, others)

    equal = judge(one, one)
    assert equal.differences[LINEAR].relation == "same"
    assert "no clear difference" in verdict_of(equal)
    swapped = {"better": "worse", "worse": "better", "same": "same"}
    there = judge(one, other).differences[LINEAR]
    back = judge(other, one).differences[LINEAR]
    assert back.relation == swapped[there.relation]
    assert_allclose([back.lower, back.upper], [-there.upper, -there.lower], atol=1e-12)


def test_36_35_and_34_of_36_right_are_no_difference():
    y = np.arange(36) % 3
    linear = y.copy()
    trees = y.copy()
    linear[0] = 2
    trees[:2] = 2
    # our model is surer of each row, which says nothing before its first mistake
    found = classes(
        y, {OURS: sure(y, 0.99), LINEAR: sure(linear, 0.9), TREES: sure(trees, 0.9)}
    )
    assert (
        verdict_of(found)
        == "On 36 test rows, 36 (100.0%) are classified correctly: no clear difference from a"
        " tuned linear model (35) and untuned boosted trees (34)."
    )


def test_with_enough_mistakes_models_are_compared_by_log_loss():
    rng = np.random.default_rng(5)
    y = rng.integers(0, 3, 600)
    said = np.where(rng.random(600) < 0.9, y, (y + 1) % 3)
    found = classes(y, {OURS: sure(said, 0.9), LINEAR: sure(said, 0.999)})
    assert found.measure == "log_loss"
    assert found.scores[OURS]["accuracy"] == found.scores[LINEAR]["accuracy"]
    assert "better than a tuned linear model" in verdict_of(found)
    # standard errors as SciPy has them
    losses = -np.log(np.where(said == y, 0.9, 0.05))
    errors = map(scipy.stats.sem, (said == y, losses))
    right, loss = (f"{share:.3f}" for share in errors)
    accuracy = f"{np.mean(said == y):.1%} ± {float(right):.1%}"
    words = f"{accuracy} are classified correctly and the log loss is"
    assert f"{words} {losses.mean():.3f} ± {loss}:" in verdict_of(found)
    assert table_of(found)[1][0][1:3] == [accuracy, f"{losses.mean():.3f} ± {loss}"]


def test_a_large_difference_on_many_rows_is_claimed_and_one_with_a_handicap_is_not():
    rng = np.random.default_rng(6)
    y = rng.standard_normal(500)
    ours = y + 0.1 * rng.standard_normal(500)
    linear = y + rng.standard_normal(500)
    found = regression(y, ours, linear)
    assert ": better than a tuned linear model (" in verdict_of(found)
    assert table_of(found)[1][1][0] == "a tuned linear model"
    late = Predictions(
        linear[:, np.newaxis], handicap="memory holds 50 of 500 rows to train them on"
    )
    found = found.with_model(TREES, late)
    assert list(found.predictions) == [OURS, LINEAR, TREES, MEAN]
    assert TREES not in found.differences
    assert "than untuned boosted trees" not in verdict_of(found)
    assert "No conclusion on untuned boosted trees" in verdict_of(found)


def test_no_table_says_that_more_than_all_of_the_error_is_saved_or_less_than_nothing():
    y = np.random.default_rng(0).standard_normal(9)
    _, rows = table_of(regression(y, y, 0 * y))
    assert rows[1][-1].startswith("100.0% (")
    assert rows[1][-1].endswith("% or more)")
    models = {OURS: sure(np.arange(30) % 3, 0.9), LINEAR: sure(np.arange(30) % 3, 0.9)}
    models[LINEAR][0] += 1e-5  # log loss less by 3e-7
    _, rows = table_of(classes((np.arange(30) + (np.arange(30) < 12)) % 3, models))
    assert rows[1][-1].startswith("0.000 (0.000 to ")


def test_a_model_no_better_than_the_mean_is_said_to_find_no_signal():
    rng = np.random.default_rng(7)
    y = rng.standard_normal(100)
    noise = 0.1 * rng.standard_normal((2, 100))
    assert verdict_of(regression(y, *noise)).startswith(
        "No signal was found: the model is not clearly better than the mean"
    )
    assert "is worse than the mean" in verdict_of(regression(y, y[::-1] * 3, y))


@pytest.mark.parametrize(
    ("shift", "claim"), [(0.05, None), (0.5, "too high"), (-0.5, "too low")]
)
def test_a_bias_of_more_than_two_standard_errors_is_said_with_its_side_and_size(
    shift, claim
):
    rng = np.random.default_rng(9)
    y = 10 * rng.standard_normal(400)
    noise = rng.standard_normal(400)
    noise -= noise.mean()
    verdict = verdict_of(regression(y, y + shift + noise, 0 * y))
    error = noise.std(ddof=1) / 20
    rmse = root_mean_squared_error(y, y + shift + noise)
    size = score_words("rmse", abs(shift), error, like=rmse)
    assert (claim is None) == ("On average" not in verdict)
    assert claim is None or f"they are {claim}, by {size}." in verdict
    median = np.median(np.abs(noise + shift))
    assert f"off by at most {score_words('rmse', median, like=rmse)}." in verdict


@pytest.mark.parametrize("side", ["high", "low"])
@pytest.mark.parametrize(("n_beyond", "is_said"), [(80, True), (70, False)])
def test_predictions_of_which_most_are_too_high_or_too_low_are_said_to_be(
    side, n_beyond, is_said
):
    y = np.zeros(100)
    off = np.r_[np.full(n_beyond, 2.0), np.full(100 - n_beyond, -9.0)]
    verdict = verdict_of(regression(y, off if side == "high" else -off, y))
    for words in (
        f"80.0% are too {side}, by a median of 2.000",
        "by a median of 9.000",
    ):
        assert (words in verdict) == is_said
    assert ("by a median of" in verdict) == is_said


@pytest.mark.parametrize(
    ("n_closer", "swapped", "claim"),
    [(150, False, "better"), (150, True, "worse"), (107, False, None)],
)
def test_rows_that_are_closer_are_counted_if_few_rows_decide_the_rmse(
    n_closer, swapped, claim
):
    y = np.arange(200.0)
    ours = np.where(np.arange(200) < n_closer, 0.5, 1.5)
    ours[[0, 1]] = 30.0, 31.0  # farther, and more than half of the squared error
    linear = np.ones(200)
    linear[199] = 40.0  # so that the RMSE shows nothing
    models = [y + linear, y + ours] if swapped else [y + ours, y + linear]
    found = regression(y, *models)
    assert found.differences[LINEAR].relation == "same"
    n_rows = n_closer - 2 + (n_closer < 200)  # row 199 too
    test = scipy.stats.binomtest(n_rows, 200)
    assert (test.pvalue < 1 - LEVEL) == (claim is not None)
    share = f"{(200 - n_rows if swapped else n_rows) / 200:.1%}"
    header, rows = table_of(found)
    row = dict(zip(header, rows[1], strict=True))
    assert row["closer in"] == share
    assert row["median error"] == f"{np.median(np.abs(models[1] - y)):.3f}"
    verdict = verdict_of(found)
    assert ("By typical error" in verdict) == (claim is not None)
    if claim:
        n_half = (
            "1 of 200 rows (0.5%) makes" if swapped else "2 of 200 rows (1.0%) make"
        )
        errors = np.square(models[0] - y)
        alone = f", the largest {errors.max() / errors.sum():.1%}."
        words = f"clearly {claim}: closer than a tuned linear model in {share} of the"
        assert f"{words} rows; {n_half} half of the squared error{alone}" in verdict


def test_cross_validated_rows_give_wider_intervals_than_test_rows():
    rng = np.random.default_rng(8)
    y = rng.standard_normal(90)
    test = regression(y, y + 0.5 * rng.standard_normal(90), y + rng.standard_normal(90))
    fold_models = SimpleNamespace(held_out_folds=range(5))
    rows = replace(test.rows, origin="cross-validation", fold_models=fold_models)
    folds = replace(test, rows=rows)
    one = test.differences[LINEAR]
    other = folds.differences[LINEAR]
    # √2.25
    assert_allclose(other.upper - other.lower, 1.5 * (one.upper - one.lower), rtol=1e-9)
    assert rows_words(folds) == "90 rows by cross-validation"
