import logging
import os
import time

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from rff_dist import (
    Additive,
    Cauchy,
    Gaussian,
    Laplacian,
    Matern,
    RationalQuadratic,
    Sinc,
)
from rff_dist.features import length_scales as evidence
from rff_dist.features.evidence import (
    EvidenceRows,
    FeatureObjective,
    KernelObjective,
    likelihood_weights,
)
from rff_dist.features.length_scales import EvidenceSearch, maximize_evidence


def maximize(
    kernel, X, y, sample_weight=None, *, seed=0, frequency_weights=False, **search
):
    weights = None
    if sample_weight is not None:
        weights = likelihood_weights(sample_weight, repeated=frequency_weights)
    return maximize_evidence(
        kernel, X, y, weights, search=EvidenceSearch(**search), seed=seed
    )


ALL = [
    Gaussian(),
    Laplacian(),
    Cauchy(),
    Sinc(),
    Matern(nu=1.5),
    RationalQuadratic(shape=2.0),
]


def sample(n_samples=300, n_features=3, n_targets=1, seed=0, noise=0.1):
    """Rows whose targets depend on the first column only."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_samples, n_features))
    waves = np.stack([np.sin((2 + t) * X[:, 0]) for t in range(n_targets)], axis=1)
    return X, waves + noise * rng.standard_normal(waves.shape)


def rows_of(n_targets=1, weighted=False):
    X, y = sample(60, 3, n_targets)
    roots = (
        np.sqrt(np.random.default_rng(0).integers(1, 4, len(X))) if weighted else None
    )
    return EvidenceRows(X, y if roots is None else y * roots[:, np.newaxis], roots)


def objective(kernel=None, *, n_targets=1, weighted=False):
    """Return the objective of a kernel itself; without one, that of features of a
    Matérn kernel.
    """
    rows = rows_of(n_targets, weighted)
    if kernel is not None:
        return KernelObjective(rows, kernel)
    return FeatureObjective(rows, Matern(nu=1.5).sample_frequencies(3, 20, rng=0))


EXACT = [
    Gaussian(),
    Matern(nu=1.5),
    Matern(nu=1.2),
    RationalQuadratic(shape=0.7),
    Additive(),
]


def dense_log_density(function, scales, alpha):
    """Log density by SciPy, at the noise variance that maximises it; a row of weight w
    occurs w times.
    """
    rows = function.rows
    roots = (
        np.ones(len(rows.inputs)) if rows.root_weights is None else rows.root_weights
    )
    times = np.repeat(np.arange(len(roots)), np.rint(roots**2).astype(int))
    if isinstance(function, KernelObjective):
        gram = function.kernel.with_length_scale(scales)(rows.inputs)
    else:
        Z = function.features(scales) / roots[:, np.newaxis]
        gram = Z @ Z.T
    covariance = gram[times][:, times] / alpha + np.eye(len(times))
    total = 0.0
    for y in (rows.targets / roots[:, np.newaxis])[times].T:
        noise = y @ np.linalg.solve(covariance, y) / len(y)
        total += multivariate_normal(np.zeros(len(y)), noise * covariance).logpdf(y)
    return total


@pytest.mark.parametrize("kernel", [None, *EXACT], ids=str)
@pytest.mark.parametrize(("n_targets", "weighted"), [(1, False), (2, False), (2, True)])
class TestObjectives:
    def test_value_is_the_dense_gaussian_log_density(self, kernel, n_targets, weighted):
        function = objective(kernel, n_targets=n_targets, weighted=weighted)
        scales = np.array([0.5, 2.0, 7.0])
        logits = getattr(kernel, "logits", [])
        alpha = 0.03
        value, _ = function(np.concatenate([np.log(scales), logits, [np.log(alpha)]]))
        ours = (
            -0.5
            * function.rows.n_observations
            * n_targets
            * (value + np.log(2 * np.pi) + 1)
        )
        assert ours == pytest.approx(
            dense_log_density(function, scales, alpha), rel=1e-9
        )

    @pytest.mark.parametrize("n_scales", [1, 3])
    def test_gradient_is_that_of_finite_differences(
        self, kernel, n_targets, weighted, n_scales
    ):
        function = objective(kernel, n_targets=n_targets, weighted=weighted)
        logits = getattr(kernel, "logits", np.zeros(0))
        logits = logits + 0.3 * np.arange(len(logits))
        point = np.concatenate(
            [np.log(np.linspace(0.7, 1.5, n_scales)), logits, [np.log(0.05)]]
        )
        # float32 cosines are 6e-8 off, so the difference quotient of a step of 1e-3 is
        # 1e-5 off at best
        step = 1e-3
        tolerance = {"rel": 1e-3, "abs": 1e-4}
        if kernel is not None:
            step = 1e-5
            tolerance = {"rel": 1e-6, "abs": 1e-8}
        moves = step * np.eye(len(point))
        differences = [
            (function(point + m)[0] - function(point - m)[0]) / (2 * step)
            for m in moves
        ]
        assert function(point)[1] == pytest.approx(differences, **tolerance)


def test_log_evidence_is_the_best_over_alpha():
    function = objective(n_targets=2, weighted=True)
    scales = np.array([0.5, 2.0, 7.0])
    best = function.best_alpha_at_scales(scales)
    densities = [
        dense_log_density(function, scales, best.alpha * factor)
        for factor in (0.9, 1, 1.1)
    ]
    assert best.log_evidence == pytest.approx(densities[1], rel=1e-9)
    assert densities[1] > max(densities[0], densities[2])
    assert (best.noise_variance > 0).all()


def test_a_constant_column_has_no_gradient():
    function = objective()
    function.rows.inputs[:, 1] = 0.0
    assert function(np.log([0.8, 0.8, 0.8, 0.1]))[1][1] == 0.0


class TestMaximum:
    @pytest.mark.parametrize("kernel", [Matern(), Additive(order_2=0)], ids=str)
    def test_the_end_of_a_search_of_few_rows_is_a_stationary_point(self, kernel):
        X, y = sample(120, seed=3)
        tuned = maximize(kernel, X, y, exact_rows=120)
        end = tuned.kernel
        rows = EvidenceRows(X - X.mean(axis=0), y - y.mean(axis=0), None)
        function = KernelObjective(rows, kernel)
        scales = np.log(end.length_scale)
        _, gradient = function(
            np.concatenate([scales, end.logits, [np.log(tuned.alpha)]])
        )
        inside = np.abs(scales - np.median(scales)) < 5
        assert tuned.converged
        assert np.abs(gradient[:3][inside]).max() < 0.02
        assert np.abs(gradient[3:]).max() < 0.05

    def test_the_kernel_itself_climbs_on_as_many_rows_as_it_may(self):
        X, y = sample(800, 8, seed=3, noise=1.0)
        ends = [maximize(Matern(), X, y, exact_rows=n).kernel for n in (400, 750)]
        function = KernelObjective(
            EvidenceRows(X - X.mean(axis=0), y - y.mean(axis=0), None), Matern()
        )
        less, most = (
            function.best_alpha_at_point(np.log(end.length_scale)).log_evidence
            for end in ends
        )
        assert most > less

    def test_weights_are_climbed_on_as_many_rows_as_asked_for(self):
        X, y = sample(800, 3, noise=1.0)
        tuned = [
            maximize(Additive(order_2=0), X, y, weight_rows=n_rows)
            for n_rows in (600, 700)
        ]
        assert [each.n_samples for each in tuned] == [600, 700]
        assert tuned[0].length_scale != tuned[1].length_scale

    def test_weights_of_columns_say_which_act_alone(self):
        X, y = sample(300, 3)
        y += X[:, 1:2] ** 2
        dense = maximize(Matern(), X, y, exact_rows=300)
        kernel = Additive(order_1=(0.05, 0.05, 0.05), order_2=0)
        tuned = maximize(kernel, X, y, exact_rows=300)
        first, second, third = tuned.kernel.column_weights(3)
        assert tuned.kernel.dense < 0.1
        assert third < 0.05 < min(first, second)
        assert tuned.log_evidence > dense.log_evidence

    def test_an_additive_kernel_of_one_part_is_tuned_as_that_part(self):
        X, y = sample(300, 3)
        part = maximize(Matern(), X, y, n_components=64)
        whole = maximize(Additive(order_1=0, order_2=0), X, y, n_components=64)
        # up to the draw of features that polish them
        assert whole.kernel.length_scale == pytest.approx(
            part.kernel.length_scale, rel=0.3
        )

    @pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
    def test_columns_that_do_not_matter_get_large_length_scales(self, kernel):
        X, y = sample(400, 4)
        tuned = maximize(kernel, X, y, n_components=128, n_starts=2)
        relevant, *rest = tuned.length_scale
        assert len(rest) == 3
        assert min(rest) > 5 * relevant
        assert tuned.kernel == kernel.with_length_scale(tuned.length_scale)

    def test_noise_and_width_of_a_known_process_are_found(self):
        # A draw of the process itself: Gaussian kernel of width 0.7 and variance 1,
        # noise variance 0.04.
        rng = np.random.default_rng(5)
        X = rng.uniform(-3, 3, (600, 1))
        y = rng.multivariate_normal(
            np.zeros(600), Gaussian(0.7)(X) + 0.04 * np.eye(600)
        )[:, np.newaxis]
        tuned = maximize(Gaussian(), X, y, per_feature=False, exact_rows=600)
        assert tuned.length_scale == pytest.approx(0.7, rel=0.25)
        assert tuned.noise_variance[0] == pytest.approx(0.04, rel=0.2)
        assert tuned.converged

    def test_the_same_seed_gives_the_same_bits_on_any_number_of_threads(
        self, monkeypatch
    ):
        X, y = sample(200, 3)
        found = []
        for cores in ({0}, {0, 1}):
            monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: cores)
            found.append(maximize(Gaussian(), X, y, seed=4))
        one, two = found
        other = maximize(Gaussian(), X, y, seed=5)
        assert one == two
        assert other.length_scale != one.length_scale

    def test_equal_weights_change_nothing_and_small_ones_hide_rows(self):
        X, y = sample(300, 2)
        plain = maximize(Gaussian(), X, y)
        assert maximize(Gaussian(), X, y, 2 * np.ones(300)) == plain
        assert maximize(Gaussian(), X, y, np.full(300, 1e-200)) == plain
        broken = np.vstack([y, 30 * np.random.default_rng(1).standard_normal((100, 1))])
        more = np.vstack([X, X[:100]])
        weights = np.r_[np.ones(300), np.full(100, 1e-9)]
        hidden = maximize(Gaussian(), more, broken, weights)
        assert hidden.length_scale[0] == pytest.approx(plain.length_scale[0], rel=0.2)

    def test_whole_weights_repeat_rows_where_they_are_said_to(self):
        X, y = sample(120, 2)
        times = np.random.default_rng(2).integers(1, 4, 120)
        options = {"n_starts": 1, "per_feature": False}
        weighted = maximize(
            Gaussian(), X, y, times * 1.0, frequency_weights=True, **options
        )
        repeated = maximize(
            Gaussian(), X.repeat(times, axis=0), y.repeat(times, axis=0), **options
        )
        # the searches see float32 cosines of inputs about another mean, and stop within
        # 1e-6 of the evidence
        assert weighted.log_evidence == pytest.approx(repeated.log_evidence, rel=1e-4)
        assert weighted.length_scale == pytest.approx(repeated.length_scale, rel=0.01)

    def test_constant_targets_have_no_say(self):
        X, y = sample(200, 2)
        alone = maximize(Gaussian(), X, y, n_starts=1)
        beside = maximize(
            Gaussian(), X, np.hstack([np.full_like(y, 7.3), y]), n_starts=1
        )
        # the search stops at 1e-6, and products of arrays with other strides round
        # differently
        assert beside.length_scale == pytest.approx(alone.length_scale, rel=1e-3)
        assert np.isnan(beside.noise_variance[0])
        assert beside.noise_variance[1] == pytest.approx(
            alone.noise_variance[0], rel=1e-3
        )

    def test_outliers_and_columns_and_targets_that_are_mostly_constant_give_finite_length_scales(
        self,
    ):
        X, y = sample(300, 3)
        X[0, 1] = 1e12
        X[1, 0] = -1e9
        X[:, 2] = 5.0
        rare = np.zeros((1000, 1))
        # a short search sees every fourth row
        rare[1:80:4] = 1.0
        rare[3:80:4] = -1.0
        for tuned in (
            maximize(Matern(nu=1.5), X, y, n_starts=2),
            maximize(Gaussian(), sample(1000, 2)[0], rare),
        ):
            assert np.isfinite(tuned.length_scale).all()
            assert np.isfinite(tuned.log_evidence)

    def test_a_search_that_is_cut_short_says_so(self, monkeypatch, caplog):
        monkeypatch.setattr(evidence, "MAX_ITERATIONS", 2)
        monkeypatch.setattr(evidence, "START_STEPS", 2)
        X, y = sample(200, 2)
        with caplog.at_level(logging.WARNING):
            tuned = maximize(Gaussian(), X, y, n_starts=1)
        assert not tuned.converged
        assert "before it converged" in caplog.text

    @pytest.mark.parametrize(
        "kernel", [Gaussian(), Additive(order_1=(0.05, 0.05), order_2=0)], ids=str
    )
    def test_at_a_deadline_each_climb_ends_after_its_next_step(self, kernel, caplog):
        X, y = sample(200, 2)
        with caplog.at_level(logging.WARNING):
            late = maximize(kernel, X, y, deadline=time.monotonic())
        assert late.n_evaluations < 20 < maximize(kernel, X, y).n_evaluations
        assert np.isfinite(late.length_scale).all()
        assert "out of time" in caplog.text
