"""Learning curves from sums of folds: scikit-learn fitted to the rows themselves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import Ridge

from rff_dist import SerialEngine
from rff_dist.data.folding import HashFolds, TimeFolds, with_tuning_rows
from rff_dist.data.memory import ArrayDataset
from rff_dist.features.draw import shortened
from rff_dist.fitting.options import RidgeOptions
from rff_dist.ridge import fit as ridge
from rff_dist.selection.learning_curves import component_curve, learning_curve

# of 32 features the smallest penalty is the best, which is nothing to these tests
pytestmark = pytest.mark.filterwarnings("ignore:alpha=")

N_ROWS = 240
ALPHAS = (0.01, 0.1, 1.0, 10.0)


def fitted(folds, features="fourier"):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, 2))
    y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1]])
    y += 0.3 * rng.standard_normal(y.shape)
    options = RidgeOptions(
        kernel="gaussian",
        features=features,
        length_scale=1.0,
        n_components=32,
        alpha=ALPHAS,
        cv=folds,
    )
    result = ridge.fit(ArrayDataset(X, y), options, engine=SerialEngine())
    fold_of_row = folds.assign(0, N_ROWS, n_samples=N_ROWS, groups=None)
    return X, y, result, fold_of_row


def errors_of(Z, y, alpha, trained, tested):
    errors = []
    for target in range(2):
        model = Ridge(alpha[target]).fit(Z[trained], y[trained, target])
        errors.append(np.square(model.predict(Z[tested]) - y[tested, target]).mean())
    return errors


@pytest.mark.parametrize(
    ("folds", "n_folds", "sizes"),
    [
        (HashFolds(5), 5, (1, 2, 3, 4)),
        # of 210 rows the last 120 are for tuning: of 1, 2, 3 folds and all, 2 and 3 are
        # nearest to a quarter and a half, all to three quarters
        (with_tuning_rows(HashFolds(4), N_ROWS, 120), 4, (2, 3, 4)),
    ],
)
def test_errors_are_those_of_fits_to_the_rows_of_some_folds(folds, n_folds, sizes):
    X, y, result, fold_of_row = fitted(folds)
    alpha = result.solved.solution.alpha
    curve = learning_curve(result.parts, alpha=alpha)
    Z = result.model.feature_map.transform(X, dtype=np.float64)
    expected = np.empty((len(sizes), n_folds, 2))
    n_trained = np.empty((len(sizes), n_folds))
    for split in range(n_folds):
        order = [(split - i) % n_folds for i in range(1, n_folds)]
        order.append(4)  # the tuning rows, if there are any
        for point, size in enumerate(sizes):
            trained = np.isin(fold_of_row, order[:size])
            n_trained[point, split] = trained.sum()
            tested = fold_of_row == split
            expected[point, split] = errors_of(Z, y, alpha, trained, tested)
    # what is left is float64's rounding: the Gram is that of rounded features, exact
    assert_allclose(curve.errors, expected, rtol=1e-7)
    assert_allclose(curve.numbers, n_trained.mean(axis=1))
    table = result.solved.cross_validation
    of_all, _ = table.at_alphas(32, alpha)
    assert_allclose(curve.units.mean(curve.errors[-1]), of_all, rtol=1e-10)


def test_models_of_the_past_take_the_newest_rows_first():
    X, y, result, fold_of_row = fitted(TimeFolds(4))
    alpha = result.solved.solution.alpha
    curve = learning_curve(result.parts, alpha=alpha)
    Z = result.model.feature_map.transform(X, dtype=np.float64)
    # the first split trains on one fold only, and has no smaller model
    for split, held_out in enumerate((2, 3)):
        tested = fold_of_row == held_out
        expected = errors_of(Z, y, alpha, fold_of_row == held_out - 1, tested)
        assert_allclose(curve.errors[0, split], expected, rtol=1e-7)


@pytest.mark.parametrize("features", ["fourier", "nystrom"])
def test_fewer_components_err_as_a_smaller_draw_does(features):
    X, y, result, fold_of_row = fitted(HashFolds(3), features)
    alpha = result.solved.solution.alpha
    whole = result.model.feature_map
    maps = [shortened(whole, 8), whole]
    curve = component_curve(result.parts, maps, alpha=alpha)
    assert curve.numbers.tolist() == [8, 32]
    for point, feature_map in enumerate(maps):
        Z = feature_map.transform(X, dtype=np.float64)
        for split in range(3):
            tested = fold_of_row == split
            expected = errors_of(Z, y, alpha, ~tested, tested)
            # features of 15 bits: sums have them rounded, and the oracle not
            assert_allclose(curve.errors[point, split], expected, rtol=1e-3)


def test_two_splits_that_train_on_several_folds_are_needed():
    for folds in (HashFolds(2), TimeFolds(3)):
        _, _, result, _ = fitted(folds)
        assert learning_curve(result.parts, alpha=1.0) is None
