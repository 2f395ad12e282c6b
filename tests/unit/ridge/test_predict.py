"""Predictions of rows, in memory and in Zarr, and their errors."""

import numpy as np
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

from rff_dist import Gaussian, SerialEngine, draw_feature_map
from rff_dist.data import columns, labelled
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, OutputExistsError
from rff_dist.fitting import evaluation
from rff_dist.fitting.predicting import transform_in_memory
from rff_dist.ridge import predict as prediction
from rff_dist.statistics import row_passes
from tests.plain import fit_ridge
from tests.refusals import refuses
from tests.ridge_problems import draw_dataset

ENGINE = SerialEngine(1)


# -- evaluate
# --------------------------------------------------------------------------------------


def judged(n_samples, *, weighted):
    """Return rows of two targets, what a model of other rows predicts, and its
    errors.
    """
    model, _ = fit_ridge(
        draw_dataset(300, n_targets=2),
        Gaussian(),
        engine=ENGINE,
        n_components=32,
        alpha=0.1,
    )
    test = draw_dataset(n_samples, n_targets=2, weighted=weighted, seed=1)
    predicted = prediction.predict_in_memory(test, model, engine=ENGINE)["predictions"]
    return test, predicted, prediction.evaluate(test, model, engine=ENGINE)


@pytest.mark.parametrize("weighted", [False, True])
def test_errors_are_those_of_scikit_learn(weighted):
    test, predicted, errors = judged(20_000, weighted=weighted)
    options = {"multioutput": "raw_values", "sample_weight": test.sample_weight}
    assert errors.n_samples == 20_000
    assert_allclose(
        errors.mean_squared_error,
        mean_squared_error(test.y, predicted, **options),
        rtol=1e-12,
    )
    assert_allclose(
        errors.mean_absolute_error,
        mean_absolute_error(test.y, predicted, **options),
        rtol=1e-12,
    )
    assert_allclose(errors.r2, r2_score(test.y, predicted, **options), rtol=1e-10)
    assert_allclose(errors.largest, np.abs(test.y - predicted).max(axis=0), rtol=1e-12)
    bias = np.average(test.y - predicted, axis=0, weights=test.sample_weight)
    assert_allclose(errors.bias, bias, rtol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_standard_error_of_the_rmse_is_that_of_the_bootstrap(weighted):
    test, predicted, errors = judged(2_000, weighted=weighted)
    squares = (test.y - predicted) ** 2
    weights = np.ones(2_000) if test.sample_weight is None else test.sample_weight
    rng = np.random.default_rng(0)
    repeats = []
    for _ in range(1_000):
        at = rng.integers(0, 2_000, 2_000)
        repeats.append(np.sqrt(np.average(squares[at], axis=0, weights=weights[at])))
    # 1,000 repeats know a standard deviation to 1 / √2000 = 2.2%; four of these
    assert_allclose(errors.rmse_standard_error, np.std(repeats, axis=0), rtol=0.09)
    if not weighted:
        rmse = np.sqrt(squares.mean(axis=0))
        expected = squares.std(axis=0, ddof=1) / np.sqrt(2_000) / (2 * rmse)
        assert_allclose(errors.rmse_standard_error, expected, rtol=1e-10)


def test_a_standard_error_of_one_row_or_of_errors_beyond_its_range_is_unknown():
    huge = evaluation.errors_of(
        np.array([[1e80], [0.0]]), np.ones(2), np.zeros((2, 1)), np.zeros(1)
    )
    one = evaluation.errors_of(
        np.ones((1, 1)), np.ones(1), np.zeros((1, 1)), np.zeros(1)
    )
    for errors in (huge, one, huge + one, one + huge):
        assert errors.mean_squared_error > 0
        assert errors.rmse_standard_error.shape == (1,)
        assert errors.to_dict()["rmse_standard_error"] == [None]
    assert (one + one).to_dict()["rmse_standard_error"] == [0.0]


def test_errors_of_groups_are_those_of_their_rows_unless_there_are_many():
    model, _ = fit_ridge(
        draw_dataset(300), Gaussian(), engine=ENGINE, n_components=32, alpha=0.1
    )
    test = draw_dataset(5_000, weighted=True, seed=1)
    n_rows = 5_000

    def judged(groups):
        grouped = labelled.GroupedDataset(test, columns.MemoryColumn(groups))
        return prediction.evaluate_by_group(grouped, model, engine=ENGINE)

    groups = np.random.default_rng(0).choice(["east", "north", "west"], n_rows)
    found = judged(groups)
    assert found.groups.keys() == {"east", "north", "west"}
    for name, errors in found.groups.items():
        at = groups == name
        own = ArrayDataset(test.X[at], test.y[at], test.sample_weight[at])
        alone = prediction.evaluate(own, model, engine=ENGINE)
        for key, value in alone.to_dict().items():
            assert_allclose(errors.to_dict()[key], value, rtol=1e-9, err_msg=key)
    assert judged(np.arange(n_rows) % evaluation.MOST_GROUPS).groups.keys() == {
        *map(str, range(50))
    }
    assert judged(np.arange(n_rows) * 51 // n_rows).groups is None
    assert prediction.evaluate_by_group(test, model, engine=ENGINE).groups == {}


def test_evaluation_needs_the_models_columns_and_targets(dataset, model):
    with refuses(DataError, "2 features", "3 features"):
        prediction.evaluate(
            ArrayDataset(dataset.X[:, :2], dataset.y), model, engine=ENGINE
        )
    with refuses(DataError, "0 targets", "1"):
        prediction.evaluate(ArrayDataset(dataset.X), model, engine=ENGINE)


# -- predict
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_targets", [None, 2], ids=["vector", "two columns"])
def test_predictions_in_zarr_are_those_in_memory_to_the_bit(tmp_path, n_targets):
    data = draw_dataset(40_000, n_targets=n_targets)
    model, _ = fit_ridge(data, Gaussian(), engine=ENGINE, n_components=16, alpha=0.1)
    url = tmp_path / "predictions.zarr"
    assert (
        prediction.predict(data, model, url, engine=SerialEngine(2), std=True) == 40_000
    )
    written = zarr.open_group(url, mode="r")
    found = prediction.predict_in_memory(data, model, std=True, engine=ENGINE)
    assert list(found) == ["predictions", "standard_deviations"]
    for name, values in found.items():
        assert_array_equal(written[name][:], values)
    with pytest.raises(OutputExistsError):
        prediction.predict(data, model, url, engine=ENGINE)
    assert prediction.predict(data, model, url, engine=ENGINE, overwrite=True) == 40_000
    written = zarr.open_group(url, mode="r")["predictions"][:]
    assert_array_equal(
        written, prediction.predict_in_memory(data, model, engine=ENGINE)["predictions"]
    )


def test_a_prediction_that_fails_leaves_nothing(tmp_path, model):
    X = np.ones((20_000, 3))
    X[19_999, 1] = np.nan
    with refuses(DataError, "row 19_999", "column 1"):
        prediction.predict(ArrayDataset(X), model, "out.zarr", engine=ENGINE)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_in_memory_are_those_of_the_map_block_by_block(dtype):
    data = draw_dataset(20_000)
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=8)
    Z = transform_in_memory(data, feature_map, dtype=dtype)
    assert Z.dtype == dtype
    assert_array_equal(Z, feature_map.transform(data.X, dtype=dtype))
    assert len(row_passes.blocks_of(data)) == 2
