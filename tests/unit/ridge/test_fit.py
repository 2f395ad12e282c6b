import logging
import operator
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import pdist

from rff_dist import (
    Gaussian,
    Laplacian,
    Linear,
    Matern,
    RidgeStatistics,
    SerialEngine,
    draw_feature_map,
)
from rff_dist.data.blocks import Block
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.events import PassFinished
from rff_dist.errors import (
    ConflictError,
    DataError,
    InvalidParameterError,
    PlanError,
    SolveError,
    StatisticsError,
)
from rff_dist.features import for_dataset, median_distances
from rff_dist.features.kinds import kernel_of
from rff_dist.fitting.options import Penalty
from rff_dist.fitting.plan import plan_on_engine
from rff_dist.fitting.sizes import SumOptions
from rff_dist.numerics.exact_sums import ExactSum
from rff_dist.ridge.refit import refit
from rff_dist.ridge.solve import solve
from rff_dist.statistics import inspection, passes
from tests.plain import fit_ridge, plain_ridge
from tests.refusals import refuses
from tests.ridge_problems import draw_dataset

ENGINE = SerialEngine(1)


# -- inspect
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("largest", "exponent"),
    [
        (1.0, 0),
        (0.5, -1),
        (0.51, 0),
        (2.0, 1),
        (np.nextafter(2.0, 3.0), 2),
        (1e-6, -19),
        (1e6, 20),
    ],
)
def test_the_grid_of_weights_is_the_least_power_of_two_that_none_exceeds(
    largest, exponent
):
    weights = np.array([largest / 3, largest, 0.0])
    moments = inspection.inspect(
        ArrayDataset(np.eye(3), np.ones(3), weights), engine=ENGINE
    )
    assert passes.weight_grid(moments).exponent == exponent


def test_what_weights_mean_is_said_and_not_guessed():
    moments = inspection.inspect(
        ArrayDataset(np.eye(3), np.ones(3), np.array([0.0, 1.0, 7.0])), engine=ENGINE
    )
    assert not passes.weight_grid(moments).frequency_weights
    assert passes.weight_grid(moments, "frequency").frequency_weights
    with refuses(InvalidParameterError, "sample_weight_kind", "'counts'"):
        passes.weight_grid(moments, "counts")


# -- the median heuristic
# ------------------------------------------------------------------------------


def test_each_part_without_a_length_scale_gets_the_median_in_its_own_columns_and_metric(
    dataset,
):
    kernel = (
        Gaussian().on([0, 1]) * Laplacian().on([2])
        + 0.5 * Matern(2.0)
        + Linear()
        + Matern(nu=2.5)
    )
    found = for_dataset.resolve_kernel(for_dataset.RowSource(dataset), kernel, "auto")
    X = dataset.X
    near, far, whole = (
        np.median(pdist(*one)) for one in ((X[:, :2],), (X[:, 2:], "cityblock"), (X,))
    )
    expected = Gaussian(near).on([0, 1]) * Laplacian(far).on([2]) + 0.5 * Matern(2.0)
    expected = expected + Linear() + Matern(whole, nu=2.5)
    rows = dataset.X[:50]
    # the rows are sorted before they are compared
    assert_allclose(found(rows), expected(rows), rtol=1e-12)


def test_a_kernel_object_without_a_length_scale_fits_as_its_name_does(dataset):
    def fit(kernel, **length_scale):
        ridge = plain_ridge(kernel, n_components=16, **length_scale)
        return ridge.fit(dataset.X, dataset.y)

    named = fit("matern:nu=2.5")
    assert fit(Matern(nu=2.5)).length_scale_ == named.length_scale_ > 2
    assert fit(Matern(1.0, nu=2.5)).length_scale_ == 1.0
    assert fit(Matern(nu=2.5), length_scale=2.0).length_scale_ == 2.0
    text = fit("gaussian + 0.1 * linear")
    assert (
        kernel_of(text.feature_map_) == Gaussian(named.length_scale_) + 0.1 * Linear()
    )


def test_the_median_heuristic_samples_many_rows_by_the_seed():
    dataset = draw_dataset(5_000)
    exact = np.median(pdist(dataset.X[:3000]))
    first, again, other = (
        median_distances.MedianDistances(dataset, standardizer=None, seed=seed)(
            Gaussian()
        )
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert first == pytest.approx(exact, rel=0.1)


def test_repeated_rows_and_rows_of_no_weight_do_not_change_the_median(dataset):
    def found(X, weights=None):
        data = ArrayDataset(X, np.ones(len(X)), weights)
        return median_distances.MedianDistances(data, standardizer=None, seed=0)(
            Gaussian()
        )

    expected = found(dataset.X)
    assert found(np.repeat(dataset.X, 3, axis=0)) == expected
    # more rows than are sampled
    far = np.vstack([dataset.X, np.repeat(dataset.X + 1e6, 14, axis=0)])
    assert found(far, np.repeat([1.0] + 14 * [0.0], len(dataset.X))) == expected


def test_equal_rows_give_a_length_scale_of_1_and_say_so(caplog):
    data = ArrayDataset(np.full((20, 2), 3.0), np.ones(20))
    with caplog.at_level(logging.WARNING, logger="rff_dist"):
        assert (
            median_distances.MedianDistances(data, standardizer=None, seed=0)(
                Gaussian()
            )
            == 1.0
        )
    assert "all sampled rows are equal" in caplog.text


# -- accumulate
# --------------------------------------------------------------------------------------


class Forgetful(SerialEngine):
    """An engine that loses a row, or counts a block twice or not at all."""

    def __init__(self, change):
        super().__init__(n_threads=1)
        self.change = change

    def map_reduce(self, function, blocks, state, **options):
        return super().map_reduce(function, self.change(blocks), state, **options)


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        (lambda blocks: [Block(0, 1, blocks[0].stop), *blocks[1:]], "39_999"),
        (lambda blocks: blocks[:-1], "32_768"),
        (lambda blocks: [*blocks, blocks[0]], "56_384"),
    ],
    ids=["a row lost", "a block lost", "a block twice"],
)
def test_rows_that_are_lost_or_counted_twice_stop_the_job_before_the_solve(
    change, counted
):
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=8)
    with refuses(StatisticsError, f"{counted} rows", "40_000"):
        passes.accumulate(draw_dataset(40_000), feature_map, engine=Forgetful(change))


def change_after(label, array):
    """Return an engine that lets another program change one value a little after the
    pass with that label.
    """

    def change(event):
        if isinstance(event, PassFinished) and event.label == label:
            array[7] += 1e-6 * abs(array).max()

    return SerialEngine(1, observers=[change])


@pytest.mark.faults("F17")
@pytest.mark.parametrize("changed", ["targets", "weights"])
@pytest.mark.parametrize(
    "options", [{}, {"cv": 3}, {"solver": "pcg", "alpha": 1.0}], ids=str
)
def test_rows_that_change_between_two_passes_give_no_model(changed, options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2))
    y = rng.standard_normal(3000)
    weights = rng.uniform(1, 2, 3000)
    data = ArrayDataset(X, y, weights)
    engine = change_after(
        "inspect", data.y if changed == "targets" else data.sample_weight
    )
    options = {"length_scale": 1.0, "n_components": 32, **options}
    with refuses(ConflictError, changed, "3_000 rows"):
        fit_ridge(data, Gaussian(), engine=engine, **options)
    fit_ridge(data, Gaussian(), engine=ENGINE, **options)


@settings(max_examples=25, deadline=None)
@given(
    n_samples=st.integers(1, 3000),
    offset=st.sampled_from([0.0, 1.0, -1e9]),
    spread=st.sampled_from([0.0, 1e-3, 1.0, 1e12]),
    weighted=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_that_stay_add_up_alike_in_any_two_passes(
    n_samples, offset, spread, weighted, seed
):
    rng = np.random.default_rng(seed)
    y = offset + spread * rng.standard_cauchy((n_samples, 2))
    weights = 10.0 ** rng.uniform(-6, 6, n_samples) if weighted else None
    data = ArrayDataset(rng.standard_normal((n_samples, 1)), y, weights, chunk_rows=512)
    moments = inspection.inspect(data, engine=ENGINE)
    spec = replace(
        passes.statistics_spec(
            data, draw_feature_map(Gaussian(1.0), n_features=1, n_components=8)
        ),
        target_offset=moments.target_offset,
    )
    right = np.column_stack([y - spec.target_offset, np.ones(n_samples)])
    weighed = right if weights is None else weights[:, np.newaxis] * right
    tiles = [slice(start, start + 100) for start in range(0, n_samples, 100)]
    of_tiles = (
        np.stack([weighed[tile].sum(axis=0), (right[tile] * weighed[tile]).sum(axis=0)])
        for tile in tiles
    )
    sums = reduce(operator.add, map(ExactSum.of, of_tiles))
    inspection.check_same_rows(moments, sums, spec)


def test_without_targets_the_sums_are_those_of_the_features_alone(dataset):
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=8)
    alone = passes.accumulate(dataset.without_targets(), feature_map, engine=ENGINE)
    beside_y = passes.accumulate(dataset, feature_map, engine=ENGINE)
    assert alone.spec.n_targets == 0
    assert_array_equal(alone.ZtZ(), beside_y.ZtZ())
    assert_array_equal(alone.Zt1(), beside_y.Zt1())
    assert alone.Zty().shape == (8, 0)
    other = passes.accumulate(
        draw_dataset(50, seed=1).without_targets(), feature_map, engine=ENGINE
    )
    assert (alone + other) - other == alone
    assert RidgeStatistics.from_arrays(*alone.to_arrays()).digest() == alone.digest()
    with refuses(StatisticsError, "do not belong together"):
        _ = alone + beside_y
    # it is not looked at
    damaged = replace(dataset, y=np.full(dataset.n_samples, np.nan))
    assert (
        passes.accumulate(damaged, feature_map, engine=ENGINE, spec=alone.spec) == alone
    )


def test_training_without_targets_is_refused_wherever_it_begins(dataset):
    without = dataset.without_targets()
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=8)
    spec = passes.statistics_spec(dataset, feature_map)
    for begin in (
        lambda: fit_ridge(without, Gaussian(), engine=ENGINE, n_components=8),
        lambda: fit_ridge(without, Gaussian(), engine=ENGINE, n_components=8, cv=3),
        lambda: passes.statistics_spec(without, feature_map),
        lambda: passes.accumulate(without, feature_map, engine=ENGINE, spec=spec),
    ):
        with refuses(DataError, "have no y"):
            begin()
    alone = passes.accumulate(without, feature_map, engine=ENGINE)
    for alpha in (1.0, "gcv"):
        with refuses(SolveError, "nothing to solve"):
            solve(alone, Penalty(alpha=alpha))


def test_few_rows_are_summed_on_a_finer_grid_in_blocks_that_it_holds():
    assert passes.fraction_bits_for(2**13) > passes.fraction_bits_for(2**13 + 1)
    dataset = draw_dataset(20_000)
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=8)
    spec = passes.statistics_spec(
        dataset, feature_map, fraction_bits=passes.fraction_bits_for(100)
    )
    # rows beyond one limb
    statistics = passes.accumulate(dataset, feature_map, engine=ENGINE, spec=spec)
    Z = feature_map.transform(dataset.X)
    assert_allclose(statistics.ZtZ(), Z.T @ Z, rtol=0, atol=1e-12 * len(Z))


# -- the plan of a job
# ---------------------------------------------------------------------------------


def test_a_fit_that_memory_does_not_hold_is_refused_before_data_are_read(monkeypatch):
    class Unread(ArrayDataset):
        def read(self, block):
            pytest.fail("data were read")

    monkeypatch.setattr(
        "rff_dist.numerics.machine.available_memory", lambda: 600 * 2**20
    )
    dataset = Unread(np.zeros((1000, 2)), np.zeros(1000))
    with refuses(PlanError, "GiB", "600.0 MiB"):
        fit_ridge(dataset, Gaussian(), engine=ENGINE, n_components=16_384)


def test_a_cluster_without_workers_yet_can_be_planned_for(dataset):
    class Waiting(SerialEngine):
        n_workers = 0

    assert plan_on_engine(dataset, 32, SumOptions(), engine=Waiting()).n_workers == 1


# -- solve and refit
# -----------------------------------------------------------------------------------


def test_refitting_without_change_changes_no_bit(model):
    again = refit(model, model.statistics, alpha=0.1)
    assert again.digest() == model.digest()
    other = refit(model, model.statistics, alpha=0.2, fit_intercept=False)
    assert other.alpha == 0.2
    assert_array_equal(other.intercept, [0.0])


def test_a_given_alpha_has_no_errors_by_alpha_of_an_earlier_choice(dataset):
    chosen, _ = fit_ridge(
        dataset, Gaussian(), engine=ENGINE, n_components=32, alpha="gcv"
    )
    kept = refit(chosen, chosen.statistics, alpha=None)
    assert_array_equal(kept.selection["alphas"], chosen.selection["alphas"])
    assert refit(chosen, chosen.statistics, alpha=0.2).selection == {}
