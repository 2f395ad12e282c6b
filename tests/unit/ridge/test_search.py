"""Candidates compared from one reading have the errors of a fit of each alone."""

import logging

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import KFold

from rff_dist import (
    Cauchy,
    Gaussian,
    GroupFolds,
    HashFolds,
    Linear,
    Nystrom,
    RFFRidge,
    SerialEngine,
    Sinc,
    tune_kernels,
    write_dataset,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.events import PassStarted
from rff_dist.errors import DataError, InvalidParameterError, PlanError
from rff_dist.features.kinds import kernel_of
from rff_dist.features.median_distances import MedianDistances
from rff_dist.fitting import plan as plan_module
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.prepare import prepare
from rff_dist.kernels.names import find_kernel
from rff_dist.ridge.candidates import (
    Candidate,
    Draws,
    TimesMedian,
    draw_candidates,
    make_candidates,
    read_length_scale,
)
from rff_dist.ridge.describe import compare_results
from tests.plain import fit_ridge, plain_ridge, search_plain
from tests.refusals import each, for_each_refusal, refuses

KERNELS = ["gaussian", "matern:nu=1.5"]
WIDTHS = [0.1, "1x", 3]
ENGINE = SerialEngine(1)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, (700, 3))
    y = np.column_stack(
        [np.sin(X[:, 0]) + X[:, 1], np.abs(X[:, 2])]
    ) + 0.1 * rng.standard_normal((700, 2))
    return X, y, rng.integers(0, 3, 700).astype(float)


@pytest.fixture(scope="module")
def dataset(data):
    return ArrayDataset(*data, chunk_rows=128)


def counting():
    passes = []
    engine = SerialEngine(
        1,
        observers=[
            lambda event: isinstance(event, PassStarted) and passes.append(event.label)
        ],
    )
    return engine, passes


# -- the comparison
# --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:alpha=.* was chosen by cv, but it is the smallest")
@pytest.mark.parametrize(
    "options",
    [
        {"n_components": 32},
        {
            "n_components": [16, 32],
            "cv": HashFolds(3, seed=4),
            "alphas": [1e-3, 1e-1, 10.0],
        },
        {
            "n_components": 32,
            "alpha": [0.1, 1.0],
            "fit_intercept": False,
            "standardize": False,
            "seed": 3,
        },
        {"n_components": 16, "alpha": "cv-1se", "features": Nystrom("k-means++")},
    ],
)
def test_each_candidate_scores_as_a_fit_of_it_alone_to_the_bit(dataset, options):
    found = search_plain(
        dataset, make_candidates(KERNELS, WIDTHS), engine=ENGINE, **options
    )
    alone = {"cv": 5, "alpha": "cv", **options}
    tables = []
    for row in found.rows:
        kernel = find_kernel(row["kernel"])
        length_scale = row["length_scale"]
        model, solved = fit_ridge(
            dataset, kernel, engine=ENGINE, length_scale=length_scale, **alone
        )
        table = solved.cross_validation
        choice = solved.choice
        tables.append((model, table))
        apart = choice.own_alphas is not None
        least = table.with_own_alphas(table.best, always=True) if apart else table.best
        assert row["score"] == least.score
        assert row["standard_error"] == least.standard_error
        assert row["n_components"] == choice.n_components
        assert (
            row["alpha"]
            == model.plain_alpha
            == (list(choice.own_alphas) if apart else choice.alpha)
        )
        (errors,) = table.mean[table.n_components == choice.n_components]
        places = np.searchsorted(table.alphas, solved.solution.alpha)
        assert row["rmse"] == np.sqrt(errors[places, [0, 1]]).tolist()
    best, table = tables[found.best_index]
    assert found.best["score"] == min(row["score"] for row in found.rows)
    assert found.model.digest() == best.digest()
    assert found.model.statistics == best.statistics
    for name, values in table.to_arrays().items():
        assert_array_equal(found.model.selection[name], values)


@pytest.mark.parametrize(("at_once", "n_readings"), [(6, 1), (5, 2), (1, 6)])
def test_all_candidates_take_one_reading_and_with_little_memory_more_that_give_the_same(
    dataset, monkeypatch, caplog, at_once, n_readings
):
    candidates = make_candidates(KERNELS, WIDTHS)
    whole = search_plain(dataset, candidates, engine=ENGINE, n_components=16)

    def plan_on_engine(dataset, n_components, sums, **options):
        if sums.n_maps > at_once:
            raise PlanError("too much")
        return whole_plan(dataset, n_components, sums, **options)

    whole_plan = plan_module.plan_on_engine
    monkeypatch.setattr(plan_module, "plan_on_engine", plan_on_engine)
    engine, passes = counting()
    with caplog.at_level(logging.WARNING, "rff_dist"):
        split = search_plain(dataset, candidates, engine=engine, n_components=16)
    accumulate = ["accumulate"] * n_readings
    assert passes == ["inspect", *accumulate, "residuals", "hold out"]
    assert split.n_readings == n_readings
    assert (f"read {n_readings} times" in caplog.text) == (n_readings > 1)
    assert split.rows == whole.rows
    assert split.model.digest() == whole.model.digest()


def test_kernels_without_a_single_width_compete_as_they_are(dataset):
    kernels = ["linear", "gaussian:length_scale=2 + 0.1 * linear", "gaussian"]
    candidates = make_candidates(kernels, [0.01])
    assert [one.length_scale for one in candidates] == [None, None, 0.01]
    found = search_plain(dataset, candidates, engine=ENGINE, n_components=32)
    assert [row["length_scale"] for row in found.rows] == [None, None, 0.01]
    assert found.best["kernel"] == "gaussian + 0.1 * linear"


def test_rows_say_what_is_as_good_and_what_may_lie_beyond():
    def row(score, length_scale, kernel="gaussian", error=0.1):
        facts = {"kernel": kernel, "length_scale": length_scale, "features": "fourier"}
        return facts | {"score": score, "standard_error": error}

    rows = [
        row(0.5, 1.0),
        row(0.35, 2.0),
        row(0.3, 4.0),
        row(0.31, None, "linear"),
        row(0.3, 4.0),
    ]
    compared = compare_results(rows)
    assert [one["within_one_standard_error"] for one in compared] == [
        False,
        True,
        True,
        True,
        True,
    ]
    assert [one["length_scale_at_end"] for one in compared] == [
        "lower",
        None,
        "upper",
        None,
        "upper",
    ]
    assert [
        one["within_one_standard_error"]
        for one in compare_results([row(0.5, 1.0, error=None)])
    ] == [True]


# -- what is refused
# -------------------------------------------------------------------------------


@for_each_refusal(
    *(
        each(read_length_scale, [f"{word}x"], "0.5x")
        for word in ("", "-1", "nan", "inf", "0")
    ),
    each(read_length_scale, ["wide"], "length_scales"),
    each(read_length_scale, [0, -1.0, [], [1.0, 0.0], True], "length_scale"),
    each(
        lambda scale: Candidate(Linear(), scale),
        [2.0, TimesMedian(1.0), "evidence"],
        "length scale",
    ),
)
def test_what_is_no_length_scale_is_refused(call, error, names):
    with refuses(error, *names):
        call()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.5x", TimesMedian(0.5)),
        ("median", TimesMedian(1.0)),
        (TimesMedian(2), TimesMedian(2.0)),
        (2, 2.0),
        (np.array([1.0, 2.0]), (1.0, 2.0)),
        ("evidence", "evidence"),
        (None, None),
    ],
)
def test_length_scales_are_read_as_one_types_them(value, expected):
    assert read_length_scale(value) == expected
    assert read_length_scale(read_length_scale(value)) == expected


def test_the_same_candidate_is_taken_once():
    assert (
        len(
            make_candidates(
                ["gaussian", Gaussian(), "gaussian"], ["1x", "median", 2, 2.0]
            )
        )
        == 2
    )


def test_columns_are_mapped_only_where_the_evidence_tunes_the_maps():
    with refuses(InvalidParameterError, "length_scale", "evidence"):
        Candidate(Gaussian(), TimesMedian(1.0), mapped=True)


@pytest.mark.parametrize(
    ("candidates", "options", "error", "said", "read"),
    [
        ([], {}, InvalidParameterError, "no candidate", []),
        (
            [Candidate(Gaussian())],
            {"alpha": "gcv"},
            InvalidParameterError,
            "cross-validation",
            [],
        ),
        (
            [Candidate(Gaussian(), (1.0, 2.0))],
            {},
            InvalidParameterError,
            "3 columns",
            [],
        ),
        (
            [Candidate(Sinc())],
            {"design": "orthogonal"},
            InvalidParameterError,
            "design='iid'",
            [],
        ),
        (
            [Candidate(Sinc())],
            {"design": "iid", "features": "nystrom"},
            InvalidParameterError,
            "Nyström",
            [],
        ),
        (make_candidates(KERNELS), {"cv": GroupFolds(3)}, DataError, "no groups", []),
        (
            make_candidates(["gaussian", "gaussian:length_scale=2 + linear"]),
            {"n_components": [16, 32]},
            *(InvalidParameterError, "no smaller", ["inspect"]),
        ),
    ],
)
def test_bad_choices_are_refused_before_the_sums_and_most_before_data_are_read(
    dataset, candidates, options, error, said, read
):
    engine, passes = counting()
    with refuses(error, said):
        search_plain(
            dataset, candidates, engine=engine, **{"n_components": 8, **options}
        )
    assert passes == read


def test_a_design_binds_only_the_candidates_of_fourier_features(dataset):
    candidates = [Candidate(Gaussian()), Candidate(Sinc(), features="nystrom")]
    found = search_plain(
        dataset, candidates, engine=ENGINE, n_components=8, design="orthogonal"
    )
    assert [row["features"] for row in found.rows] == ["fourier", "nystrom"]


# -- for users of scikit-learn
# ---------------------------------------------------------------------


# the second needs independent frequencies
@pytest.mark.parametrize("kernels", [KERNELS, [Cauchy()]])
def test_the_tuned_estimator_is_fitted_and_a_clone_of_it_fits_the_same(data, kernels):
    X, y, weight = data
    options = {"n_components": [16, 32], "random_state": 1, "precision": "high"}
    model, found = tune_kernels(
        X, y, weight, kernels=kernels, length_scales=WIDTHS, **options
    )
    assert isinstance(model, RFFRidge)
    best = found.best
    assert (model.alpha_, model.n_components_) == (best["alpha"], best["n_components"])
    assert model.length_scale_ == best["length_scale"]
    assert model.model_ is found.model
    assert set(model.selection_) >= {"cv_errors", "cv_alphas"}
    again = RFFRidge(**model.get_params()).fit(X, y, weight)
    # the same draw and alpha; the rows of folds are summed in other tiles
    assert_allclose(again.predict(X), model.predict(X), rtol=1e-9, atol=1e-9)


def test_tuning_takes_folds_of_scikit_learn_groups_and_stored_data(data, tmp_path):
    X, y, _ = data
    options = {
        "kernels": ["gaussian"],
        "length_scales": ["1x"],
        "n_components": 16,
        "random_state": 0,
    }
    _, found = tune_kernels(X, y, cv=KFold(3), **options)
    expected = plain_ridge(n_components=16, alpha="cv", cv=KFold(3)).fit(X, y)
    assert_array_equal(
        found.model.selection["cv_errors"], expected.selection_["cv_errors"]
    )
    groups = np.arange(700) % 31
    write_dataset("data.zarr", X, y, groups=groups)
    _, here = tune_kernels(X, y, groups=groups, cv=GroupFolds(3), **options)
    _, stored = tune_kernels(
        tmp_path / "data.zarr", groups="groups", cv=GroupFolds(3), **options
    )
    # stored as float32
    assert_allclose(stored.best["score"], here.best["score"], rtol=1e-6)


def test_a_parameter_that_candidates_do_not_share_is_refused(data):
    X, y, _ = data
    with refuses(TypeError, "alpha_per_target"):
        tune_kernels(X, y, alpha_per_target=True)


def test_sums_compete_with_multiples_of_the_median_for_their_parts_without_a_width():
    dataset = ArrayDataset(
        np.random.default_rng(0).standard_normal((200, 3)), np.ones(200)
    )
    kernels = ["gaussian + 0.1 * linear", Gaussian(2.0) + Linear()]
    candidates = make_candidates(kernels, ["0.5x", "2x", "evidence"])
    assert [one.length_scale for one in candidates] == [
        TimesMedian(0.5),
        TimesMedian(2.0),
        None,
    ]
    prepared = prepare(
        dataset, standardize=False, sample_weight_kind="precision", engine=ENGINE
    )
    maps = draw_candidates(
        Draws(prepared, RidgeOptions(features="fourier")), candidates, [16]
    )
    median = MedianDistances(dataset, standardizer=None, seed=0)(Gaussian())
    assert [kernel_of(one) for one in maps] == [
        Gaussian(0.5 * median) + 0.1 * Linear(),
        Gaussian(2.0 * median) + 0.1 * Linear(),
        Gaussian(2.0) + Linear(),
    ]
