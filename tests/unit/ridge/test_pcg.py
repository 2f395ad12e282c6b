"""Conjugate gradients against the direct solution of scikit-learn on explicit
features.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import LinAlgWarning, svd
from sklearn.linear_model import Ridge

from rff_dist import (
    Gaussian,
    GroupFolds,
    HashFolds,
    Linear,
    Matern,
    Nystrom,
    PredefinedFolds,
    RFFRidge,
    SerialEngine,
    TimeFolds,
)
from rff_dist.data.columns import MemoryColumn
from rff_dist.data.labelled import GroupedDataset
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import PlanError, SolveError, StatisticsError
from rff_dist.features.feature_options import KernelFeatures
from rff_dist.fitting import solver_plan
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.prepare import prepare
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.fitting.solver_plan import plan_chosen_solver
from rff_dist.living.new_rows import check_updatable
from rff_dist.numerics.conjugate_gradients import Stop, nystrom_preconditioner
from rff_dist.numerics.solution import SolveStatus
from rff_dist.ridge import pcg
from rff_dist.ridge.pcg import random_signs, solve_pcg, validate_alphas
from tests.covering import covering
from tests.refusals import refuses

ENGINE = SerialEngine(1)
ALPHAS = (1e-3, 1e-1, 1.0, 100.0)


def draw_rows(n_samples, n_features, n_targets=1, *, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_samples, n_features)) + 2.0
    Y = np.sin(2.0 * X[:, :1]) + X @ rng.normal(size=(n_features, n_targets)) + 5.0
    Y += 0.1 * rng.normal(size=Y.shape)
    return ArrayDataset(X, Y, 3.0 * rng.random(n_samples) if weighted else None)


PROBLEMS = {
    "smooth": (draw_rows(1500, 3), Gaussian(length_scale=2.0), 400, "fourier"),
    "slow decay": (
        draw_rows(1500, 8, seed=1),
        Matern(nu=1.5, length_scale=4.0),
        400,
        "fourier",
    ),
    "rough": (
        draw_rows(1000, 2, seed=2),
        Matern(nu=0.5, length_scale=1.0),
        600,
        "fourier",
    ),
    "weights and targets": (
        draw_rows(1200, 4, 3, weighted=True, seed=3),
        Gaussian(length_scale=3.0),
        400,
        "fourier",
    ),
    "nystrom": (
        draw_rows(1200, 4, seed=4),
        Matern(nu=1.5, length_scale=2.0),
        300,
        Nystrom(),
    ),
    "without a bound": (draw_rows(500, 6), Linear(), 6, "fourier"),
}


def prepared_map(dataset, kernel, n_components, features="fourier"):
    prepared = prepare(dataset, standardize=True, engine=ENGINE)
    described = KernelFeatures(
        kernel=kernel, n_components=n_components, features=features
    )
    return prepared, prepared.draw(described, seed=0)


def problem(name):
    dataset, *rest = PROBLEMS[name]
    return dataset, *prepared_map(dataset, *rest)


def direct(dataset, feature_map, alpha, *, fit_intercept=True):
    Z = feature_map.transform(dataset.X)
    model = Ridge(alpha, fit_intercept=fit_intercept, solver="svd")
    return Z, model.fit(Z, dataset.y, sample_weight=dataset.sample_weight)


def fitted_values(dataset, feature_map, alphas):
    """Return Z and the closed form's predictions less their mean, for each alpha, by
    one SVD.
    """
    Z = feature_map.transform(dataset.X)
    y = dataset.y
    roots = np.sqrt(
        np.ones(len(Z)) if dataset.sample_weight is None else dataset.sample_weight
    )[:, np.newaxis]
    centred = [
        values - np.average(values, axis=0, weights=roots[:, 0] ** 2)
        for values in (Z, y)
    ]
    left, singular, right = svd(roots * centred[0], full_matrices=False)
    along = left.T @ (roots * centred[1])
    shrunk = [
        (singular / (singular**2 + alpha))[:, np.newaxis] * along for alpha in alphas
    ]
    return Z, [centred[0] @ (right.T @ one) for one in shrunk]


@pytest.mark.parametrize("name", PROBLEMS)
def test_predictions_are_those_of_the_direct_solution_within_a_millionth_in_sixty_steps(
    name,
):
    dataset, prepared, feature_map = problem(name)
    weights = dataset.sample_weight
    Z, references = fitted_values(dataset, feature_map, ALPHAS)
    for alpha, expected in zip(ALPHAS, references, strict=True):
        found = solve_pcg(prepared, feature_map, alpha=alpha, fit_intercept=True)
        predicted = Z @ found.solution.coefficients + found.solution.intercept
        squares = np.average((dataset.y - predicted) ** 2, axis=0, weights=weights)
        sums = found.solution.residual_sum_of_squares / (
            len(Z) if weights is None else weights.sum()
        )
        # the solution's own error is within 1e-6 of the targets' deviations
        assert_allclose(sums, squares, rtol=1e-4)
        predicted -= np.average(dataset.y, axis=0, weights=weights)
        error = np.sqrt(np.mean((predicted - expected) ** 2, axis=0)) / expected.std(
            axis=0
        )
        assert error.max() < 1e-6, (alpha, error)
        assert found.iterated.n_products <= 60, alpha
        assert found.iterated.stop is Stop.TOLERANCE
        assert found.solution.status is SolveStatus.OK


def test_a_constant_target_is_its_mean():
    rows = draw_rows(500, 2, 2)
    Y = np.array(rows.y)
    Y[:, 1] = 7.0
    prepared, feature_map = prepared_map(ArrayDataset(rows.X, Y), Gaussian(), 64)
    found = solve_pcg(prepared, feature_map, alpha=1.0, fit_intercept=True)
    assert found.solution.status is SolveStatus.OK
    assert_allclose(found.solution.intercept[1], 7.0)
    assert_allclose(found.solution.coefficients[:, 1], 0.0, atol=1e-12)


def test_an_end_by_the_number_of_passes_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr(pcg, "MAX_PASSES", 3)
    dataset, prepared, feature_map = problem("slow decay")
    with pytest.warns(LinAlgWarning, match="stopped by limit"):
        found = solve_pcg(prepared, feature_map, alpha=1.0, fit_intercept=True)
    assert found.solution.status is SolveStatus.NOT_CONVERGED
    assert found.iterated.n_products == 3
    _, reference = direct(dataset, feature_map, 1.0)
    Z = feature_map.transform(dataset.X)
    error = Z @ (found.solution.coefficients[:, 0] - reference.coef_.ravel())
    measured = error.std() / dataset.y.std()
    # an estimate on the safe side
    assert measured < found.relative_error < 30 * measured


def test_an_alpha_below_rounding_ends_by_rounding_and_says_so():
    _, prepared, feature_map = problem("smooth")
    with pytest.warns(
        LinAlgWarning, match="deviations of y from those of the exact solution"
    ):
        found = solve_pcg(prepared, feature_map, alpha=1e-13, fit_intercept=True)
    assert found.solution.status is SolveStatus.ILL_CONDITIONED


FOLDS = {
    "by hash": HashFolds(4),
    "of groups": GroupFolds(4),
    "forward in time": TimeFolds(4),
}


@pytest.mark.parametrize(
    ("cut", "weighted"), covering(list(FOLDS), [False, True], meet=1)
)
def test_alphas_are_validated_on_held_out_rows_as_by_fits_without_them(cut, weighted):
    folds = FOLDS[cut]
    alphas = np.logspace(-2, 3, 6)
    rows = draw_rows(1200, 3, 2, weighted=weighted)
    groups = np.arange(1200) // 30
    dataset = GroupedDataset(rows, MemoryColumn(groups))
    prepared, feature_map = prepared_map(dataset, Gaussian(length_scale=2.0), 200)
    found = validate_alphas(
        prepared, feature_map, folds, alphas=alphas[::-1], fit_intercept=True
    )
    trained, held_out = folds.splits[-1]
    fold = folds.assign(0, 1200, n_samples=1200, groups=groups)
    train = np.isin(fold, trained)
    test = fold == held_out
    Z = feature_map.transform(rows.X)
    weights = np.ones(1200) if not weighted else rows.sample_weight
    for alpha, errors, solution in zip(
        alphas,
        found.table.errors[0, 0],
        found.solutions.transpose(1, 0, 2),
        strict=True,
    ):
        reference = Ridge(alpha).fit(
            Z[train], rows.y[train], sample_weight=weights[train]
        )
        squares = np.square(reference.predict(Z[test]) - rows.y[test])
        assert_allclose(
            errors, np.average(squares, axis=0, weights=weights[test]), rtol=1e-3
        )
        assert_allclose(Z @ solution, Z @ reference.coef_.T, atol=2e-3 * rows.y.std())


def test_an_alpha_that_is_chosen_is_solved_for_on_all_rows():
    rows = draw_rows(600, 3, 2)
    noise = np.random.default_rng(1).normal(size=(2, 600))
    y = np.column_stack([rows.y[:, 0] + noise[0], noise[1]])
    model = RFFRidge(solver="pcg", **FITTED).fit(rows.X, y)
    assert model.alpha_[1] > 10 * model.alpha_[0]  # the one of noise alone
    Z = model.feature_map_.transform(rows.X)
    direct = Ridge(model.alpha_).fit(Z, y)
    assert_allclose(model.predict(rows.X), direct.predict(Z), atol=1e-6 * y.std())
    assert len(model.model_.selection["cv_alphas"]) > 20
    estimate = model.model_.card["estimate"]
    assert estimate["by"] == "cv"
    assert estimate["rmse"][1] == pytest.approx(1.0, rel=0.2)
    given = RFFRidge(solver="pcg", alpha=[1e-9, 0.1, 1e4], **FITTED).fit(
        rows.X, y[:, 0]
    )
    assert given.alpha_ == 0.1


# rounding may end the steps at the small alpha that so smooth a function is given
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
@pytest.mark.parametrize("seed", range(2))
def test_a_sketch_of_as_many_columns_as_components_does_not_enlarge_rounding(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(1500, 5))
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=1500)
    options = {
        "kernel": "gaussian",
        "length_scale": "median",
        "n_components": 300,
        "features": "nystrom",
        "random_state": seed,
    }
    model = RFFRidge(solver="pcg", alpha="cv", **options).fit(X, y)
    direct = RFFRidge(solver="direct", alpha=model.alpha_, **options).fit(X, y)
    assert model.model_.card["solver"]["rank"] == 300
    difference = model.predict(X) - direct.predict(X)
    assert np.sqrt(np.mean(difference**2)) < 1e-6 * y.std()


@pytest.mark.parametrize("n_columns", [30, 60])
def test_a_sketch_of_an_indefinite_matrix_is_refused(n_columns):
    signs = random_signs(60, 0, n_columns)
    matrix = np.diag([-1.0] * 20 + [1.0] * 40)
    with refuses(SolveError, "1e-05"):  # ten times the rounding error
        nystrom_preconditioner(signs, matrix @ signs, rounding=1e-6)


def test_a_split_without_rows_to_validate_on_is_refused():
    rows = draw_rows(60, 2)
    prepared, feature_map = prepared_map(
        GroupedDataset(rows, MemoryColumn(np.zeros(60, int))), Gaussian(), 16
    )
    with refuses(StatisticsError, "no row with a weight is held out"):
        validate_alphas(
            prepared, feature_map, PredefinedFolds(2), alphas=[1.0], fit_intercept=True
        )


FITTED = {
    "kernel": Gaussian(length_scale=2.0),
    "n_components": 64,
    "features": "fourier",
    "random_state": 0,
}


@pytest.fixture(scope="module")
def fitted():
    rows = draw_rows(400, 3, 2)
    return rows, RFFRidge(alpha=0.1, solver="pcg", **FITTED).fit(rows.X, rows.y)


def test_what_needs_statistics_says_why_there_are_none(fitted):
    rows, model = fitted
    with refuses(StatisticsError, "'direct'"):
        model.predict(rows.X, return_std=True)
    with refuses(StatisticsError, "'direct'"):
        model.partial_fit(rows.X, rows.y)
    with refuses(AttributeError, "conjugate gradients"):
        _ = model.statistics_
    with refuses(StatisticsError, "solver", "'pcg'"):
        check_updatable(model.model_)


def plan_of(n_samples, n_components, *, memory=None, n_folds=1, **options):
    sizes = Sizes(n_samples=n_samples, n_features=8, n_targets=1, chunk_rows=16_384)
    options = RidgeOptions(**{"alpha": 1.0, "features": "fourier", **options})
    sums = SumOptions.of(options, n_folds)
    return plan_chosen_solver(
        PlannedFit(sizes, n_components, Machines(memory_limit=memory), sums), options
    )


def test_auto_iterates_where_the_sums_are_far_dearer_or_memory_does_not_hold_them():
    assert plan_of(100_000, 2048).solver == "direct"
    far_dearer = plan_of(100_000, 65_536)
    assert far_dearer.solver == "pcg"
    assert "times as long as Z'Z" in far_dearer.reason
    assert plan_of(100_000, 65_536, solver="direct").solver == "direct"
    assert plan_of(100_000, 65_536, alpha="gcv").solver == "direct"
    assert plan_of(100_000, 65_536, alpha="auto", n_folds=5).reason.startswith(
        "folds choose alpha"
    )
    short = plan_of(100_000, 16_384, memory=4 * 2**30)
    assert short.solver == "pcg"
    assert "memory does not hold" in short.reason
    with pytest.raises(PlanError):
        plan_of(100_000, 16_384, memory=2**29)


def test_auto_fits_by_what_the_plan_says(monkeypatch):
    rows = draw_rows(300, 2)
    monkeypatch.setattr(solver_plan, "WORTH_ITERATING", 1e9)
    model = RFFRidge(alpha=0.1, **FITTED).fit(rows.X, rows.y).model_
    assert model.statistics is None
    chosen = RFFRidge(alpha=[0.1, 1.0], **FITTED).fit(rows.X, rows.y).model_
    assert chosen.statistics is not None
