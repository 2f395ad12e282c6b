import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import metrics

from rff_dist import Gaussian, draw_feature_map
from rff_dist.classify.predict import class_names, count_classes, judge_rows
from rff_dist.data.blocks import Block, Rows
from rff_dist.errors import DataError
from rff_dist.fitting.predicting import LinearModel
from tests.plain import plain_classifier
from tests.refusals import refuses


def rows(weighted, n_samples=200, n_classes=3):
    rng = np.random.default_rng(0)
    codes, predicted = rng.integers(0, n_classes, (2, n_samples))
    probabilities = rng.dirichlet(np.ones(n_classes), n_samples)
    weights = rng.uniform(0, 2, n_samples) if weighted else None
    return codes, predicted, probabilities, weights


@pytest.mark.parametrize("weighted", [False, True])
def test_measures_are_those_of_scikit_learn(weighted):
    codes, predicted, p, weights = rows(weighted)
    found = count_classes(
        codes, predicted, 3, sample_weight=weights, log_probabilities=np.log(p)
    )
    assert_array_equal(found.counts, metrics.confusion_matrix(codes, predicted))
    given = {"sample_weight": weights}
    # the sums are exact: what is left is scikit-learn's rounding
    assert_allclose(
        found.accuracy, metrics.accuracy_score(codes, predicted, **given), rtol=1e-13
    )
    balanced = metrics.balanced_accuracy_score(codes, predicted, **given)
    assert_allclose(found.balanced_accuracy, balanced, rtol=1e-13)
    assert_allclose(found.log_loss, metrics.log_loss(codes, p, **given), rtol=1e-13)
    for name in ("precision", "recall"):
        expected = getattr(metrics, f"{name}_score")(
            codes, predicted, average=None, **given
        )
        assert_allclose(getattr(found, name), expected, rtol=1e-13)


def test_the_standard_error_of_the_accuracy_is_binomial_and_that_of_the_bootstrap_with_weights():
    codes, predicted, _, weights = rows(weighted=True, n_samples=2_000)
    plain = count_classes(codes, predicted, 3)
    share = (codes == predicted).mean()
    assert_allclose(
        plain.accuracy_standard_error, np.sqrt(share * (1 - share) / 2_000), rtol=1e-13
    )
    rng = np.random.default_rng(1)
    choices = (rng.integers(0, 2_000, 2_000) for _ in range(1_000))
    repeats = [
        np.average((codes == predicted)[at], weights=weights[at]) for at in choices
    ]
    found = count_classes(codes, predicted, 3, sample_weight=weights)
    # four standard deviations of 1,000 repeats' own
    assert_allclose(found.accuracy_standard_error, np.std(repeats), rtol=0.09)


def test_sums_of_blocks_are_the_sums_of_all_rows_to_the_bit():
    codes, predicted, _, weights = rows(weighted=True)
    whole = count_classes(codes, predicted, 3, sample_weight=weights)
    parts = [
        count_classes(codes[part], predicted[part], 3, sample_weight=weights[part])
        for part in (slice(150, 200), slice(0, 7), slice(7, 150))
    ]
    total = parts[0] + parts[1] + parts[2]
    assert_array_equal(total.counts, whole.counts)
    assert total.weights == whole.weights
    assert total.n_samples == 200
    assert total.log_loss is None


def test_a_class_without_rows_has_no_recall_and_one_never_predicted_no_precision():
    found = count_classes(np.array([0, 0, 2]), np.array([0, 1, 0]), 3)
    assert_array_equal(found.recall, [0.5, np.nan, 0.0])
    assert_array_equal(found.precision, [0.5, 0.0, np.nan])
    assert found.balanced_accuracy == 0.25


@pytest.mark.parametrize("weights", [[1.0, -1.0], [1.0, np.nan]])
def test_weights_that_are_none_are_refused(weights):
    block = Rows(
        Block(0, 0, 2), np.eye(2), np.array([[1.0], [-1.0]]), np.array(weights)
    )
    features = draw_feature_map(
        Gaussian(1.0), n_features=2, n_components=4, random_state=0
    )
    with refuses(DataError, "sample_weight", "row 1"):
        judge_rows(
            block,
            LinearModel(features, np.zeros((4, 1)), np.zeros(1)),
            calibration=None,
        )


def test_rows_that_all_weigh_0_have_no_accuracy():
    found = count_classes(np.array([0]), np.array([0]), 2, sample_weight=np.zeros(1))
    with refuses(DataError, "at least one row must count"):
        found.accuracy  # noqa: B018


@pytest.mark.parametrize(
    ("labels", "names"),
    [([0.0, 1.0], ["0", "1"]), (["v1.0", "v2.0"], ["v1.0", "v2.0"])],
)
def test_whole_numbers_are_named_without_a_point_and_text_as_it_is(labels, names):
    X = np.random.default_rng(0).standard_normal((60, 2))
    y = np.array(labels)[(X[:, 0] > 0).astype(int)]
    model = plain_classifier(length_scale=1.0, n_components=16, alpha=1.0).fit(X, y)
    assert class_names(model.model_) == names
