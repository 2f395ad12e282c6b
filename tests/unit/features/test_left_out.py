"""Length scales of classes: left-out losses against fits without each row."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from rff_dist import Additive, Gaussian, Matern
from rff_dist.features.evidence import EvidenceRows, KernelObjective
from rff_dist.features.left_out import Labels
from rff_dist.features.length_scales import EvidenceSearch, maximize_evidence


def labels_of(codes, n_classes):
    signs = np.where(codes[:, np.newaxis] == np.arange(n_classes), 1.0, -1.0)
    return signs[:, 1:] if n_classes == 2 else signs


def rows_of(n_classes, *, weighted):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    # that tell something of the classes, so that the best slope is inside its bounds
    codes = np.digitize(X[:, 0] + 0.5 * rng.standard_normal(40), [0.0, 0.8])
    signs = labels_of(np.minimum(codes, n_classes - 1), n_classes)
    weights = rng.integers(1, 4, 40).astype(float) if weighted else None
    means = np.average(signs, axis=0, weights=weights)
    units = np.abs(signs - means).max(axis=0)
    roots = np.ones(40) if weights is None else np.sqrt(weights)
    return signs, EvidenceRows(
        X,
        (signs - means) / units * roots[:, np.newaxis],
        None if weights is None else roots,
        Labels.of(signs, units, weights),
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
class TestLeftOutLoss:
    def test_it_is_the_log_loss_of_fits_without_each_row(self, n_classes, weighted):
        signs, rows = rows_of(n_classes, weighted=weighted)
        weights = rows.labels.weights
        kernel = Matern(nu=1.5, length_scale=(1.1, 0.9, 2.0))
        K = kernel.gram(rows.inputs, rows.inputs)
        means = np.average(signs, axis=0, weights=weights)
        scores = np.empty_like(signs)
        for row in range(40):
            kept = np.arange(40) != row
            noise = np.diag(0.3 / weights[kept])
            solved = np.linalg.solve(K[np.ix_(kept, kept)] + noise, signs[kept] - means)
            scores[row] = means + K[row, kept] @ solved
        if n_classes == 2:
            scores = np.hstack([-scores / 2, scores / 2])
            signs = np.hstack([-signs, signs])

        def loss(slope):
            logs = log_softmax(slope * scores, axis=1)[signs > 0]
            return -np.average(logs, weights=weights)

        shares = np.average(signs > 0, axis=0, weights=weights)
        expected = minimize_scalar(loss, bounds=(0, 150), method="bounded").fun
        expected /= -(shares * np.log(shares)).sum()
        got, _ = KernelObjective(rows, kernel.with_length_scale(1.0))(
            np.log([1.1, 0.9, 2.0, 0.3])
        )
        # two searches for the slope, of which each is within 1e-4
        assert got == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize(
        "kernel", [Gaussian(1.0), Additive(kernel=Matern(nu=1.5)).with_length_scale(1)]
    )
    def test_gradients_are_those_of_differences(self, n_classes, weighted, kernel):
        _, rows = rows_of(n_classes, weighted=weighted)
        objective = KernelObjective(rows, kernel)
        x = np.r_[0.1, 0.2, -0.3, kernel.logits, -1.0]
        _, gradient = objective(x)
        for i, step in enumerate(1e-4 * np.eye(len(x))):
            expected = (objective(x + step)[0] - objective(x - step)[0]) / 2e-4
            # each of the two values errs by the search for the slope, squared
            assert gradient[i] == pytest.approx(expected, rel=1e-4, abs=3e-6)


class TestTuningForClasses:
    def test_columns_that_tell_classes_apart_get_the_short_scales(self):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((900, 6))
        codes = (np.sin(2 * X[:, 0]) + X[:, 1] > 1.8).astype(int)
        tuned = maximize_evidence(
            Gaussian(), X, labels_of(codes, 2), search=EvidenceSearch(of_classes=True)
        )
        scales = np.asarray(tuned.length_scale)
        assert scales[:2].max() < 0.5 * scales[2:].min()
