"""One block of rows: the same bits however it is worked on, and errors that name the
row.
"""

import functools
import itertools
import threading
from dataclasses import replace
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import metrics

from rff_dist.data.blocks import Block, Rows, check_finite, cut_blocks
from rff_dist.errors import DataError, PlanError, StatisticsError
from rff_dist.fitting.evaluation import evaluate_rows
from rff_dist.fitting.predicting import LinearModel, predict_rows
from rff_dist.numerics.machine import falling_tiles, share_out, using_threads
from rff_dist.products.bytes import ByteProducts
from rff_dist.products.protocol import Float64Products
from rff_dist.statistics.accumulate import accumulate_rows
from rff_dist.statistics.moments import measure_moments
from rff_dist.statistics.specs import FIXED_FRACTION_BITS
from tests import small_statistics
from tests.refusals import refuses
from tests.small_statistics import feature_map, part, random_rows

TILE = 64  # rows of a tile, where a test needs many tiles


def accumulation(n_components=12, *, n_targets=2, map_name="pairs", **spec):
    return small_statistics.accumulation(
        feature_map(n_components, map_name), n_targets, **spec
    )


def fixed_point_accumulation(n_components, map_name="pairs"):
    bits = {"fixed_point": True, "fraction_bits": FIXED_FRACTION_BITS}
    return accumulation(n_components, map_name=map_name, **bits)


def model(n_components=12, *, n_targets=2):
    rng = np.random.default_rng(5)
    coefficients = rng.standard_normal((n_components, n_targets))
    intercept = rng.standard_normal(n_targets)
    return LinearModel(feature_map(n_components), coefficients, intercept)


@pytest.fixture(scope="module", autouse=True)
def _one_blas_thread():
    with using_threads(1):
        yield


@pytest.fixture
def small_tiles(monkeypatch):
    monkeypatch.setattr("rff_dist.statistics.specs.tile_rows", lambda _: TILE)


@given(st.integers(0, 10_000), st.integers(1, 500), st.integers(1, 2_000))
def test_blocks_are_whole_chunks_and_cover_every_row_once(
    n_samples, chunk_rows, rows_per_block
):
    blocks = cut_blocks(n_samples, chunk_rows, rows_per_block=rows_per_block)
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(
        range(n_samples)
    )
    assert [block.index for block in blocks] == list(range(len(blocks)))
    assert all(block.start % chunk_rows == 0 for block in blocks)
    assert all(block.n_samples > 0 for block in blocks)
    assert all(
        block.n_samples <= max(chunk_rows, 1.5 * rows_per_block) for block in blocks
    )


class TestSameBits:
    @pytest.mark.parametrize("weights", [0, 1], ids=["plain", "weighted"])
    @pytest.mark.parametrize(
        ("n_components", "map_name"), [(12, "pairs"), (1_030, "pairs"), (701, "phases")]
    )
    def test_statistics_do_not_depend_on_threads(
        self, n_components, map_name, weights, small_tiles
    ):
        state = accumulation(n_components, map_name=map_name)
        rows = random_rows(7 * TILE + 7, weights=weights)
        results = []
        for n_threads in (1, 2, 3, 3):
            with using_threads(n_threads):
                results.append(accumulate_rows(rows, state))
        assert all(found == results[0] for found in results)
        assert len({found.digest() for found in results}) == 1

    def test_sums_on_a_grid_are_rounded_to_the_nearest_multiple(self):
        rows = random_rows(100)
        state = accumulation(fraction_bits=10)
        U = state.feature_map.transform(rows.X) / state.feature_map.scales[0][1]
        assert_array_equal(
            accumulate_rows(rows, state).low.reshape(12, 12), np.rint(2**10 * U.T @ U)
        )

    @pytest.mark.usefixtures("exact_bytes")
    @pytest.mark.parametrize(
        ("n_components", "map_name"), [(12, "pairs"), (1_030, "pairs"), (701, "phases")]
    )
    def test_fixed_point_statistics_do_not_depend_on_the_way_of_multiplying(
        self, n_components, map_name, monkeypatch, small_tiles
    ):
        state = fixed_point_accumulation(n_components, map_name)
        rows = random_rows(5 * TILE + 7)
        found = []
        for products in (
            Float64Products(),
            Float64Products(region=512),
            ByteProducts(),
        ):
            monkeypatch.setattr(
                "rff_dist.products.choice.products_for", lambda *_, way=products: way
            )
            for n_threads in (1, 3):
                with using_threads(n_threads):
                    found.append(accumulate_rows(rows, state))
        assert len({statistics.digest() for statistics in found}) == 1
        assert found[0].n_tiles == 0  # of which products were rounded
        U = np.empty((n_components, len(rows.X)))
        state.feature_map.fill(state.feature_map.prepare(rows.X), U, 0, n_components)
        whole = np.rint(U * 2**14)  # sums of whole numbers below 2**53
        scales = state.feature_map.scales[0][1] * 2.0**-14
        # float64 rounds when it scales
        assert_allclose(found[0].ZtZ(), scales**2 * (whole @ whole.T), rtol=1e-14)

    @given(
        n_samples=st.integers(1, 6 * TILE),
        n_components=st.sampled_from([2, 12, 40, 514]),
        weights=st.sampled_from([0, 1]),
        cuts=st.sets(st.integers(1, 5)),
    )
    def test_blocks_cut_at_tiles_sum_to_the_same_bits(
        self, n_samples, n_components, weights, cuts
    ):
        state = accumulation(n_components)
        rows = random_rows(n_samples, weights=weights)
        edges = sorted(
            {0, n_samples, *(cut * TILE for cut in cuts if cut * TILE < n_samples)}
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rff_dist.statistics.specs.tile_rows", lambda _: TILE)
            whole = accumulate_rows(rows, state)
            pieces = [
                accumulate_rows(part(rows, slice(*edge)), state)
                for edge in itertools.pairwise(edges)
            ]
        total = functools.reduce(add, reversed(pieces))
        assert total == whole
        assert total.digest() == whole.digest()

    def test_inputs_are_left_as_they_were(self):
        rows = random_rows(50, weights=1)
        copies = [array.copy() for array in (rows.X, rows.y, rows.sample_weight)]
        accumulate_rows(rows, accumulation(target_offset=(1.0, 2.0)))
        evaluate_rows(rows, model())
        measure_moments(rows, np.ones(5))
        for array, copy in zip(
            (rows.X, rows.y, rows.sample_weight), copies, strict=True
        ):
            assert_array_equal(array, copy)

    def test_no_rows_give_the_empty_result(self):
        rows = random_rows(0)
        state = accumulation()
        assert accumulate_rows(rows, state).n_samples == 0
        assert not accumulate_rows(rows, state).ZtZ().any()
        assert predict_rows(rows, model()).shape == (0, 2)
        assert evaluate_rows(rows, model()).whole.n_samples == 0
        assert measure_moments(rows, np.zeros(5)).n_samples == 0


def accumulate(rows):
    return accumulate_rows(rows, accumulation(weight_exponent=1))


def predict(rows):
    return predict_rows(rows, model())


def evaluate(rows):
    return evaluate_rows(rows, model()).whole


def moments(rows):
    return measure_moments(rows, np.zeros(5))


FEATURES = [accumulate, predict, evaluate]
TARGETS = [accumulate, evaluate]
MOMENTS = [moments]
NOT_FINITE = [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")]


class TestBadData:
    """Errors name row and column as the dataset counts them, not as the block does."""

    ROWS = replace(random_rows(10, weights=1), block=Block(4, 1_000, 1_010))

    def damaged(self, name, place, value):
        array = getattr(self.ROWS, name).copy()
        array[place] = value
        return replace(self.ROWS, **{name: array})

    @pytest.mark.parametrize(
        ("works", "name", "place", "value", "message"),
        [
            *(
                (
                    FEATURES + MOMENTS,
                    "X",
                    (7, 2),
                    value,
                    [name, "row 1_007", "column 2"],
                )
                for value, name in NOT_FINITE
            ),
            *(
                (TARGETS + MOMENTS, "y", (3, 1), value, [name, "row 1_003", "column 1"])
                for value, name in NOT_FINITE[:2]
            ),
            (FEATURES, "X", (2, 0), 1e39, ["row 1_002", "column 0", "1e+39"]),
            (
                [accumulate],
                "X",
                ([8, 2, 2], [0, 2, 1]),
                np.nan,
                ["row 1_002", "column 1"],
            ),
            (
                TARGETS + MOMENTS,
                "sample_weight",
                5,
                np.nan,
                ["sample_weight", "NaN", "row 1_005"],
            ),
            (TARGETS + MOMENTS, "sample_weight", 6, -0.5, ["-0.5", "row 1_006"]),
        ],
    )
    def test_bad_values_are_named(self, works, name, place, value, message):
        for work in works:
            with refuses(DataError, *message):
                work(self.damaged(name, place, value))

    @pytest.mark.parametrize(
        ("works", "change", "names"),
        [
            (FEATURES, {"X": ROWS.X[:, :2]}, ["3 columns"]),
            (TARGETS, {"y": None}, ["no y"]),
            (
                [accumulate],
                {"y": np.zeros((10, 1))},
                ["y", "10, 1", "rows 1_000:1_010", "10, 2"],
            ),
            ([accumulate], {"y": np.zeros((10, 3))}, ["y", "10, 3"]),
        ],
    )
    def test_other_columns_and_targets_are_refused(self, works, change, names):
        for work in works:
            with refuses(DataError, *names):
                work(replace(self.ROWS, **change))

    def test_a_weight_above_the_grid_is_named(self):
        accumulate(self.damaged("sample_weight", 5, 2.0))
        with refuses(DataError, "sample_weight", "2.01", "row 1_005", "2"):
            accumulate(self.damaged("sample_weight", 5, 2.01))

    def test_rows_without_weights_are_refused_on_a_finer_grid(self):
        state = accumulation(weight_exponent=-1)
        accumulate_rows(self.damaged("sample_weight", slice(None), 0.5), state)
        with refuses(DataError, "1", "0.5"):
            accumulate_rows(replace(self.ROWS, sample_weight=None), state)

    def test_a_spec_of_another_width_is_refused(self):
        state = accumulation()
        with refuses(StatisticsError, "14 components", "12"):
            accumulate_rows(
                self.ROWS, replace(state, spec=replace(state.spec, n_components=14))
            )

    def test_a_block_that_would_overflow_an_integer_is_refused(self):
        state = accumulation(fraction_bits=49)
        rows = Rows(
            Block(0, 0, 2**13 + 1), np.zeros((2**13 + 1, 3)), np.zeros((2**13 + 1, 2))
        )
        with refuses(PlanError, "8_193 rows", "8_192"):
            accumulate_rows(rows, state)

    @pytest.mark.parametrize(
        ("work", "name"),
        [
            *((accumulate, name) for name in "Xy"),
            (predict, "X"),
            (evaluate, "y"),
            *((moments, name) for name in "Xy"),
        ],
    )
    # which are then refused
    @pytest.mark.filterwarnings("ignore:angles of Fourier features:UserWarning")
    def test_overflow_on_the_way_is_an_error_and_not_a_warning(self, work, name):
        # fits float32 | its square fits nothing
        huge = 3e38 if name == "X" and work is not moments else 1e200
        with pytest.raises(DataError, match=r"not finite|overflows float64"):
            work(self.damaged(name, (slice(None), 0), huge))


@pytest.mark.parametrize("n_targets", [1, 2, 5])
@pytest.mark.parametrize("n_components", [2, 12, 1_030])
def test_predictions_are_features_times_coefficients_plus_intercept(
    n_components, n_targets
):
    fitted = model(n_components, n_targets=n_targets)
    rows = random_rows(200)
    expected = (
        fitted.feature_map.transform(rows.X) @ fitted.coefficients + fitted.intercept
    )
    assert_allclose(predict_rows(rows, fitted), expected, atol=1e-9)


class TestEvaluation:
    @pytest.mark.parametrize("constant", [0.0, 0.1, -7.3e5])
    def test_r2_of_a_constant_target_is_not_a_number(self, constant):
        rows = replace(random_rows(5_000, weights=1), y=np.full((5_000, 2), constant))
        errors = evaluate_rows(rows, model()).whole
        assert_array_equal(errors.target_variance, 0.0)
        assert np.isnan(errors.r2).all()

    def test_r2_keeps_its_digits_far_from_zero(self):
        rows = random_rows(300)
        fitted = model()
        far = replace(fitted, intercept=np.full(2, 1e9))
        shifted = replace(rows, y=np.round(rows.y, 3) + 1e9)
        expected = metrics.r2_score(
            np.round(rows.y, 3),
            fitted.feature_map.transform(rows.X) @ fitted.coefficients,
            multioutput="raw_values",
        )
        assert_allclose(
            evaluate_rows(shifted, far).whole.r2, expected, rtol=1e-6
        )  # 1e9 has steps of 1e-7


class TestMoments:
    def columns(self, n_samples=500):
        rng = np.random.default_rng(3)
        return np.column_stack(
            [
                rng.standard_normal(n_samples),
                np.round(rng.standard_normal(n_samples), 3) + 1e9,
                np.full(n_samples, 0.1),
                rng.integers(0, 5, n_samples),
                np.full(n_samples, 1e9),
                1e-9 * rng.standard_normal(n_samples),
            ]
        )

    def measured(self, X, *, weights=None, pivot=None, y=None):
        rows = Rows(Block(0, 0, len(X)), X, y, weights)
        first = X[0] if y is None else np.concatenate([X[0], y[0]])
        return measure_moments(rows, first.astype(float) if pivot is None else pivot)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_means_and_deviations_are_those_of_numpy(self, weighted):
        X = self.columns()
        weights = np.random.default_rng(1).random(500) if weighted else None
        moments = self.measured(X, weights=weights)
        shifted = X - X[0]  # exact; NumPy itself loses digits at a mean of 1e9
        mean = np.average(shifted, axis=0, weights=weights)
        deviation = np.sqrt(np.average((shifted - mean) ** 2, axis=0, weights=weights))
        assert_allclose(moments.means, X[0] + mean, rtol=1e-14, atol=1e-14)
        assert_allclose(moments.standard_deviations, deviation, rtol=1e-12)
        assert moments.n_samples == 500
        assert moments.largest_weight == (weights.max() if weighted else 1.0)

    @given(st.floats(-1e12, 1e12), st.integers(1, 300), st.booleans())
    def test_a_constant_far_from_the_pivot_has_no_deviation_either(
        self, constant, n_samples, weighted
    ):
        weights = np.random.default_rng(0).random(n_samples) + 0.1 if weighted else None
        moments = self.measured(
            np.full((n_samples, 1), constant), weights=weights, pivot=np.array([1.0])
        )
        assert moments.standard_deviations[0] == 0.0
        assert moments.means[0] == pytest.approx(constant, rel=1e-14, abs=1e-14)

    def test_moments_about_different_pivots_are_refused(self):
        X = self.columns()
        with refuses(StatisticsError, "same pivot"):
            self.measured(X) + self.measured(X, pivot=X[1])
        with refuses(StatisticsError, "0", "1 targets"):
            self.measured(X) + self.measured(X[:, :5], y=X[:, 5:])


# -- threads
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_each_item_is_worked_on_once_whichever_thread_takes_it(n_threads):
    seen = []
    with using_threads(n_threads):
        share_out(seen.append, range(500))
        share_out(seen.append, [])
    assert sorted(seen) == list(range(500))


def test_items_are_worked_on_at_once_by_as_many_threads_as_there_are():
    together = threading.Barrier(3, timeout=30)
    with using_threads(3):
        share_out(lambda _: together.wait(), range(6))
    assert together.n_waiting == 0


@pytest.mark.parametrize("failing", ["caller", "other"])
def test_an_item_that_fails_fails_them_all(failing):
    caller = threading.current_thread()
    other_waits = threading.Event()

    def work(item):
        here = "caller" if threading.current_thread() is caller else "other"
        if here == failing:
            other_waits.set()
            raise KeyError(item)
        assert other_waits.wait(30)

    with using_threads(2), pytest.raises(KeyError):
        share_out(work, range(10))


def test_finite_numbers_whose_sum_is_not_are_let_through():
    X = np.full((3, 2), 3e38, np.float32)
    check_finite(Rows(Block(0, 0, 3), X), X)
    X[2, 1] = np.inf
    with refuses(DataError, "row 2", "column 1"):
        check_finite(Rows(Block(0, 0, 3), X), X)


@given(
    n_rows=st.integers(0, 9_000),
    n_threads=st.integers(1, 9),
    least=st.integers(1, 4),
    most=st.integers(4, 40),
)
def test_tiles_fall_cover_all_rows_once_and_the_last_are_small(
    n_rows, n_threads, least, most
):
    with using_threads(n_threads):
        tiles = falling_tiles(n_rows, 64 * most, multiple=64, least=64 * least)
    sizes = [tile.stop - tile.start for tile in tiles]
    assert [tile.start for tile in tiles] == [0, *itertools.accumulate(sizes)][
        : len(tiles)
    ]
    assert sum(sizes) == n_rows
    assert all(
        size % 64 == 0 and 64 * least <= size <= 64 * most for size in sizes[:-1]
    )
    assert sizes == sorted(sizes, reverse=True)
    if n_threads > 1 and n_rows > 64 * least:
        assert sizes[-1] <= 64 * least
