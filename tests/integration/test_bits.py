"""The same data and the same spec have the same bits, whatever runs them and in whatever order."""

import operator
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from rff_dist import (
    Matern,
    RFFClassifier,
    RFFKMeans,
    RFFRidge,
    SerialEngine,
    open_dataset,
    write_dataset,
)
from rff_dist.data.blocks import Block, BlockTask, Rows, cut_blocks
from rff_dist.data.folds import HashFolds
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.dask import DaskEngine
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.options import ClusterSpace, LloydOptions
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.fit import refit
from rff_dist.ridge.held_out import hold_out_scores, leave_one_out
from rff_dist.ridge.update import update_model
from rff_dist.statistics import inspection, passes
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.columns import open_column
from rff_dist.storage.datasets import ZarrDataset
from tests.plain import fit_ridge, plain_classifier, plain_ridge

N_ROWS, N_COMPONENTS = 70_000, 600  # five blocks of 16,384 rows; three output tiles, one of them narrow


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ZarrDataset:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 5)).astype(np.float32) * [1, 10, 0.1, 3, 1] + 100
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N_ROWS, 2))
    url = tmp_path_factory.mktemp("bits") / "data.zarr"
    return write_dataset(url, X.astype(np.float32), Y, chunk_rows=4096, sample_weight=rng.random(N_ROWS))


def fit(dataset: ZarrDataset, engine: Any) -> RFFRidge:
    return plain_ridge(n_components=N_COMPONENTS, alpha=0.01, random_state=0, engine=engine).fit(dataset)


@pytest.fixture(scope="module")
def expected(dataset: ZarrDataset) -> RFFRidge:
    """Return the fit of the serial engine with one thread: the specification."""
    assert len(inspection.blocks_of(dataset)) == 5
    return fit(dataset, SerialEngine(n_threads=1))


def assert_same_bits(model: RFFRidge | RFFClassifier, expected: RFFRidge | RFFClassifier) -> None:
    assert model.statistics_.digest() == expected.statistics_.digest()
    assert model.statistics_ == expected.statistics_
    assert_array_equal(model.coef_, expected.coef_)
    assert_array_equal(model.intercept_, expected.intercept_)
    assert model.model_.digest() == expected.model_.digest()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_serial_fits_have_the_same_bits_with_any_number_of_threads(dataset, expected, n_threads):
    assert_same_bits(fit(dataset, SerialEngine(n_threads=n_threads)), expected)


# -- Dask ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[DaskEngine]:
    with DaskEngine(n_workers=1, threads_per_worker=1) as engine:
        yield engine


@pytest.mark.distributed
def test_nystrom_fits_have_the_same_bits_on_dask(dataset, cluster):
    """The centres' factor stays with the client: workers sum kernel values alone."""
    models = [
        plain_ridge(
            Matern(1.5), features="nystrom", n_components=300, alpha=0.01, random_state=0, engine=engine
        ).fit(dataset)
        for engine in (SerialEngine(n_threads=1), SerialEngine(n_threads=2), cluster)
    ]
    for model in models[1:]:
        assert_same_bits(model, models[0])
        assert_array_equal(model.predict(dataset), models[0].predict(dataset))


def scaled(engine: DaskEngine, n_workers: int) -> DaskEngine:
    engine.client.cluster.scale(n_workers)
    deadline = time.monotonic() + 60
    while engine.n_workers != n_workers:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return engine


@pytest.mark.distributed
@pytest.mark.parametrize("n_workers", [1, 2, 3])
def test_dask_fits_have_the_bits_of_the_serial_engine_with_any_number_of_workers(
    dataset, expected, cluster, n_workers
):
    model = fit(dataset, scaled(cluster, n_workers))
    assert_same_bits(model, expected)
    rows = open_dataset(dataset.url).read(Block(0, 0, 1_000)).X
    assert_array_equal(model.predict(rows), expected.predict(rows))


@pytest.mark.distributed
def test_an_update_on_dask_has_the_bits_of_a_serial_pass_over_all_rows(dataset, cluster, tmp_path):
    """Blocks of 16,384 rows: two whole ones of the first rows stay, a begun one is read again."""
    serial, rows = SerialEngine(n_threads=2), dataset.read(Block(0, 0, 60_000))
    first, last = slice(0, 40_000), slice(40_000, 60_000)
    url = tmp_path / "data.zarr"
    given = write_dataset(url, rows.X[first], rows.y[first], chunk_rows=4096, versioned=True)
    model, _ = fit_ridge(given, Matern(1.5), engine=serial, n_components=64, alpha="gcv")
    append_dataset(url, rows.X[last], rows.y[last])
    whole = open_dataset(url)
    found = update_model(model, whole, engine=scaled(cluster, 2))
    expected = passes.accumulate(whole, model.feature_map, engine=serial, spec=model.statistics.spec)
    assert found.statistics == expected
    assert found.digest() == refit(model, expected, alpha="gcv").digest()


@pytest.mark.distributed
@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_classifiers_have_the_same_bits_on_dask(dataset, cluster, loss):
    """Every pass of a minimisation starts from the bits of the one before: one that differs shows in all."""
    rows = open_dataset(dataset.url, y=None)
    labels = np.array(["no", "perhaps", "yes"])[np.random.default_rng(1).integers(0, 3, N_ROWS)]
    models = [
        plain_classifier(
            n_components=64,
            alpha=0.1,
            loss=loss,
            tol=1e-3,
            class_weight="balanced",
            random_state=0,
            engine=engine,
        ).fit(rows, labels)
        for engine in (SerialEngine(n_threads=1), SerialEngine(n_threads=2), scaled(cluster, 2))
    ]
    for model in models[1:]:
        assert_same_bits(model, models[0])
        assert model.model_.card["classifier"] == models[0].model_.card["classifier"]


def find_clusters(dataset: ZarrDataset, engine: Any, features: str) -> kmeans_starts.Clusters:
    model = RFFKMeans(
        3, n_components=32, features=features, n_init=2, max_iter=2, random_state=0, engine=engine
    )
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        return model.fit(dataset).clusters_


@pytest.fixture(scope="module")
def expected_clusters(dataset: ZarrDataset) -> dict[str, kmeans_starts.Clusters]:
    engine = SerialEngine(n_threads=1)
    return {features: find_clusters(dataset, engine, features) for features in ("fourier", "nystrom")}


@pytest.mark.distributed
@pytest.mark.parametrize(("features", "n_workers"), [("nystrom", 2), ("fourier", 3)])
def test_clusters_and_labels_have_the_same_bits_on_dask(
    dataset, cluster, expected_clusters, features, n_workers, tmp_path
):
    """Each pass starts from the bits of the one before; candidates are drawn from all rows."""
    expected = expected_clusters[features]
    found = find_clusters(dataset, scaled(cluster, n_workers), features)
    assert_array_equal(found.centres, expected.centres)
    assert_array_equal(found.weights, expected.weights)
    assert (found.inertias, found.start_inertias) == (expected.inertias, expected.start_inertias)
    kmeans_labels.write_labels(dataset, found, tmp_path / "labels.zarr", engine=cluster)
    labels = open_column(tmp_path / "labels.zarr", "labels").read(Block(0, 0, N_ROWS))
    assert_array_equal(
        labels, kmeans_labels.label_in_memory(dataset, expected, engine=SerialEngine(n_threads=2))
    )


@pytest.mark.distributed
def test_batches_several_numbers_and_principal_components_have_the_same_bits_on_dask(dataset, cluster):
    def cluster_with(engine: Any) -> tuple[kmeans_starts.Clusters, ...]:
        moments = inspection.inspect(dataset, engine=engine)
        space = ClusterSpace(
            Matern(),
            length_scale="median",
            n_components=32,
            standardize=True,
            seed=1,
            features="nystrom",
            n_principal=5,
            normalize="degree",
        )
        feature_map = kmeans.draw_features(dataset, space, moments, engine=engine)
        job = kmeans_starts.measure(dataset, feature_map, moments, engine=engine)
        lloyd = LloydOptions(4, n_init=2, max_iter=2, tol=0.0, algorithm="minibatch", seed=1)
        return kmeans.finish(kmeans.iterate(job, kmeans.start(job, lloyd, (2, 4)), lloyd))

    found, expected = map(cluster_with, [scaled(cluster, 3), SerialEngine(n_threads=1)])
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one.centres, other.centres)
        assert one.start_inertias == other.start_inertias
        assert one.feature_map.digest() == other.feature_map.digest()


class SleepyDataset(ZarrDataset):
    """Rows of a dataset that take a while to read, some blocks longer than others."""

    def read(self, block: Block) -> Rows:
        time.sleep(random.Random(block.start).random() * 0.1)
        return super().read(block)

    def __reduce__(self) -> Any:
        return reopen_sleepy, super().__reduce__()


def sleepy(dataset: ZarrDataset) -> SleepyDataset:
    return SleepyDataset(**{one.name: getattr(dataset, one.name) for one in fields(dataset)})


def reopen_sleepy(reopen: Callable[..., ZarrDataset], arguments: tuple[Any, ...]) -> SleepyDataset:
    return sleepy(reopen(*arguments))


@pytest.mark.distributed
def test_dask_blocks_that_finish_in_another_order_change_no_bit(dataset, expected, cluster):
    assert_same_bits(fit(sleepy(dataset), scaled(cluster, 3)), expected)


@pytest.mark.distributed
def test_dask_predictions_written_to_zarr_have_the_bits_of_the_serial_engine(
    dataset, expected, cluster, tmp_path
):
    import zarr

    urls = [tmp_path / "serial.zarr", tmp_path / "dask.zarr"]
    for url, engine in zip(urls, [SerialEngine(n_threads=1), scaled(cluster, 2)], strict=True):
        assert prediction.predict(dataset, expected.model_, url, engine=engine) == N_ROWS
    serial, dask = (np.asarray(zarr.open_group(url, mode="r")["predictions"]) for url in urls)
    assert_array_equal(dask, serial)
    assert np.isfinite(serial).all()


@pytest.mark.distributed
def test_tables_of_folds_have_the_bits_of_the_serial_engine(dataset, cluster):
    parameters = {"n_components": [32, 64], "alpha": "cv", "cv": 3, "random_state": 0}
    serial, threads, dask = (
        plain_ridge(engine=engine, **parameters).fit(dataset)
        for engine in (SerialEngine(n_threads=1), SerialEngine(n_threads=2), scaled(cluster, 2))
    )
    for other in (threads, dask):
        assert_same_bits(other, serial)
        for name, values in serial.selection_.items():
            assert_array_equal(other.selection_[name], values)


@pytest.mark.distributed
def test_passes_that_judge_a_model_have_the_same_bits_on_dask(cluster):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40_000, 3))
    Y = np.column_stack([np.sin(X[:, 0]), X[:, 1]]) + 0.1 * rng.normal(size=(40_000, 2))
    data = ArrayDataset(X, Y, rng.random(40_000))
    assert len(inspection.blocks_of(data)) > 1
    model = plain_ridge(n_components=64, alpha=0.01, random_state=0).fit(data).model_
    accumulation = Accumulation(model.feature_map, model.statistics.spec)
    found = []
    for engine in (SerialEngine(n_threads=1), SerialEngine(n_threads=2), cluster):
        [folds] = passes.accumulate_folds(data, [accumulation], folds=HashFolds(3), engine=engine)
        found.append(
            (
                prediction.evaluate(data, model, engine=engine, std=True),
                leave_one_out(data, model.statistics, model.feature_map, alphas=[0.01, 1.0], engine=engine),
                hold_out_scores(data, folds, model.feature_map, alpha=0.01, engine=engine),
            )
        )
    judged, left_out, scores = found[0]
    for other_judged, other_left_out, other_scores in found[1:]:
        for name in ("log_losses", "squared_scores", "covered", "deviations"):
            assert getattr(other_judged, name) == getattr(judged, name)
        assert other_judged.errors.squared == judged.errors.squared
        assert other_left_out.squared == left_out.squared
        assert other_scores == scores


# -- any order, without a cluster ----------------------------------------------------------------------


class ShuffledEngine(SerialEngine):
    """Runs blocks in a random order, some of them twice, and merges by a random tree."""

    def __init__(self, seed: int) -> None:
        super().__init__(n_threads=1)
        self._random = random.Random(seed)

    def map_reduce(  # type: ignore[override]
        self,
        function: Callable[[Block, Any], Any],
        blocks: list[Block],
        state: Any,
        *,
        combine: Callable[[Any, Any], Any],
        label: str = "pass",
    ) -> Any:
        def run(block: Block) -> Any:
            return super(ShuffledEngine, self).map_reduce(function, [block], state, combine=combine)

        order = self._random.sample(blocks, len(blocks))
        partials = {block.index: run(block) for block in order + order[:2]}  # a retry gives the same partial
        left = list(partials.values())
        while len(left) > 1:
            a, b = (left.pop(self._random.randrange(len(left))) for _ in range(2))
            left.append(combine(a, b))
        return left[0]


def test_blocks_in_any_order_have_the_same_bits(dataset, expected):
    assert_same_bits(fit(dataset, ShuffledEngine(1)), expected)


def test_statistics_of_any_half_are_forgotten_to_the_bit(dataset, expected):
    statistics, spec = expected.statistics_, expected.statistics_.spec
    state = Accumulation(expected.feature_map_, spec)
    blocks = inspection.blocks_of(dataset)
    half = SerialEngine(n_threads=1).map_reduce(
        BlockTask(dataset, accumulate_rows), blocks[::2], state, combine=operator.add
    )
    rest = statistics - half
    assert rest.n_samples == N_ROWS - half.n_samples
    assert rest + half == statistics
    assert (statistics + half) - half == statistics
    assert ((statistics + half) - half).digest() == statistics.digest()


# -- chunks: what the promise rests on, and where it ends ----------------------------------------------


def with_chunks(dataset: ZarrDataset, chunk_rows: int) -> ZarrDataset:
    X, y, weights = dataset.take(np.arange(N_ROWS))
    return write_dataset(
        f"memory://bits-{chunk_rows}", X, y, sample_weight=weights, chunk_rows=chunk_rows, overwrite=True
    )


@pytest.mark.parametrize("chunk_rows", [2048, 16_384])
def test_other_chunks_that_make_the_same_blocks_have_the_same_bits(dataset, expected, chunk_rows):
    other = with_chunks(dataset, chunk_rows)
    assert inspection.blocks_of(other) == inspection.blocks_of(dataset)
    assert_same_bits(fit(other, SerialEngine(n_threads=2)), expected)


def test_blocks_of_whole_tiles_have_the_same_bits_however_they_are_cut(dataset, expected):
    state = Accumulation(expected.feature_map_, expected.statistics_.spec)
    for tiles in (1, 3):
        statistics = SerialEngine(n_threads=2).map_reduce(
            BlockTask(dataset, accumulate_rows),
            cut_blocks(N_ROWS, 4096, rows_per_block=tiles * 4096),
            state,
            combine=operator.add,
        )
        assert statistics == expected.statistics_


def test_blocks_that_cut_tiles_elsewhere_agree_to_rounding_but_not_to_the_bit(dataset, expected):
    state = Accumulation(expected.feature_map_, expected.statistics_.spec)
    statistics = SerialEngine(n_threads=2).map_reduce(
        BlockTask(dataset, accumulate_rows),
        cut_blocks(N_ROWS, 1000, rows_per_block=15_000),
        state,
        combine=operator.add,
    )
    assert statistics != expected.statistics_
    np.testing.assert_allclose(statistics.ZtZ(), expected.statistics_.ZtZ(), rtol=0, atol=1e-12 * N_ROWS)
    np.testing.assert_allclose(statistics.Zty(), expected.statistics_.Zty(), rtol=0, atol=1e-9 * N_ROWS)
