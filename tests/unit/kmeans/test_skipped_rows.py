"""Passes that skip rows: the bits of whole passes, whatever is remembered."""

import functools
import operator
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import make_blobs

from rff_dist import Gaussian, Linear, Nystrom, SerialEngine, draw_feature_map
from rff_dist.data.blocks import Block, Rows, cut_blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines import block_memory
from rff_dist.engines.dask_pass import SLOTS, Pass
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.features.nystrom import draw_nystrom
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import lloyd_pass, skipped_rows
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.kmeans.cluster_sums import Centres, ClusterGrid
from rff_dist.kmeans.lloyd_pass import sum_clusters
from rff_dist.kmeans.options import LloydOptions
from rff_dist.kmeans.skipped_rows import Course, margin_losses, sum_remembered
from rff_dist.numerics.threads import using_threads
from rff_dist.statistics import inspection

N_ROWS, BLOCK_ROWS, N_CLUSTERS = 4_000, 450, 6
RNG = np.random.default_rng(0)
X = (RNG.standard_normal((N_ROWS, 3)) + 2 * RNG.integers(0, 2, (N_ROWS, 3))).astype(np.float32)
WEIGHTS = np.random.default_rng(1).exponential(size=N_ROWS)
draw = functools.partial(draw_feature_map, n_features=3, random_state=0)
MAPS = {
    "pairs": draw(Gaussian(1.5), n_components=64),
    "phases": draw(Gaussian(1.5), n_components=65, map="phases"),
    "structured": draw(Gaussian(1.5), n_components=64, design="structured"),
    "with linear terms": draw(Gaussian(1.5) + 9.0 * Linear(), n_components=67, map="phases"),
    "Nyström": draw_nystrom(Gaussian(1.5), X[:150], n_components=40, nystrom=Nystrom(), seed=0),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(
        inspection, "blocks_of", lambda data: cut_blocks(data.n_samples, 100, rows_per_block=BLOCK_ROWS)
    )


class CountingDataset(ArrayDataset):
    """Rows in memory that know how many blocks were read of them."""

    n_read = 0

    def read(self, block):
        self.n_read += 1
        return super().read(block)


def job_of(feature_map, *, weighted=False, n_threads=1, dataset=ArrayDataset, inputs=X):
    data = dataset(inputs, sample_weight=WEIGHTS[: len(inputs)] if weighted else None)
    engine = SerialEngine(n_threads=n_threads)
    moments = inspection.inspect(data, engine=engine) if weighted else None
    return kmeans_starts.measure(data, feature_map, moments, engine=engine)


def starts_of(feature_map, n_init, inputs=X):
    chosen = np.random.default_rng(3).choice(len(inputs), n_init * N_CLUSTERS, replace=False)
    return feature_map.transform(inputs[chosen]).reshape(n_init, N_CLUSTERS, -1)


def lloyd(**options):
    return LloydOptions(N_CLUSTERS, **{"tol": 0.0, **options})


def run(job, starts, **options):
    """What each pass found, and the clusters in the end."""
    passes = list(kmeans.iterate(job, starts, lloyd(**{"max_iter": 14, **options})))
    return passes, passes[-1].clusters[0]


def assert_same_bits(found, expected):
    passes, clusters = found
    assert [(p.number, p.inertia, p.n_starts, p.shift) for p in passes] == [
        (p.number, p.inertia, p.n_starts, p.shift) for p in expected[0]
    ]
    assert_array_equal(clusters.centres, expected[1].centres)
    assert_array_equal(clusters.weights, expected[1].weights)
    assert clusters.inertias == expected[1].inertias
    assert clusters.start_inertias == expected[1].start_inertias
    assert (clusters.n_iter, clusters.converged) == (expected[1].n_iter, expected[1].converged)


# -- bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", MAPS)
def test_passes_that_remember_have_the_bits_of_whole_ones(name, weighted):
    job, starts = job_of(MAPS[name], weighted=weighted), starts_of(MAPS[name], 1)
    expected = run(job, starts, cache="none")
    assert len(expected[0]) > 10
    assert_same_bits(run(job, starts), expected)
    assert_same_bits(run(job, starts, cache="features"), expected)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_starts_that_leave_passes_and_come_back_for_the_last_have_the_same_bits(n_threads):
    feature_map = MAPS["pairs"]
    job, starts = job_of(feature_map, n_threads=n_threads), starts_of(feature_map, 3)
    expected = run(job, starts, cache="none", tol=3e-2, max_iter=40)
    n_starts = [p.n_starts for p in expected[0]]
    assert min(n_starts[:-1]) < 3 == n_starts[-1]
    assert_same_bits(run(job, starts, tol=3e-2, max_iter=40), expected)


def test_half_the_blocks_are_remembered_where_the_budget_is_for_half_of_them(monkeypatch):
    feature_map = MAPS["pairs"]
    job, starts = job_of(feature_map), starts_of(feature_map, 1)
    expected = run(job, starts, cache="none")
    n_blocks = len(inspection.blocks_of(job.dataset))
    budget = n_blocks * skipped_rows.block_bytes(BLOCK_ROWS, 1, N_CLUSTERS, 64, n_groups=N_CLUSTERS) // 2
    held = []
    passes = []
    for done in kmeans.iterate(job, starts, lloyd(max_iter=14, cache_bytes=budget)):
        passes.append(done)
        held.append(block_memory.remembered_bytes())
    assert_same_bits((passes, passes[-1].clusters[0]), expected)
    assert 0.7 * budget < max(held[:-1]) <= budget
    assert block_memory.remembered_bytes() == 0


@settings(max_examples=8)
@given(lost=st.lists(st.integers(0, 8), max_size=6), seed=st.integers(0, 99))
def test_entries_that_are_lost_between_passes_change_nothing(lost, seed):
    feature_map = MAPS["pairs"]
    job = job_of(feature_map, inputs=X[:2_000])
    starts = starts_of(feature_map, 2)
    expected = run(job, starts, cache="none", max_iter=6)
    rng = np.random.default_rng(seed)
    passes = []
    for done in kmeans.iterate(job, starts, lloyd(max_iter=6)):
        passes.append(done)
        for place in list(block_memory._entries):
            if rng.integers(0, 9) in lost:
                del block_memory._entries[place]
    assert_same_bits((passes, passes[-1].clusters[0]), expected)


def test_centres_that_jump_have_the_same_bits():
    """Empty clusters are refilled with the farthest rows, in the middle of a run."""
    feature_map = MAPS["pairs"]
    job = job_of(feature_map)
    starts = starts_of(feature_map, 1)
    starts[0, [1, 4]] = 100.0
    starts[0, 3] = starts[0, 2]
    expected = run(job, starts, cache="none")
    assert_same_bits(run(job, starts), expected)


def test_a_block_that_runs_twice_in_a_pass_gives_the_same_sums_twice():
    feature_map = MAPS["pairs"]
    rows = Rows(cut_blocks(N_ROWS, N_ROWS, rows_per_block=N_ROWS)[0], X)
    values = starts_of(feature_map, 1)
    course = Course([rows.block], 1, N_CLUSTERS, spread=1.0, mean_norm=1.0, n_components=64, budget=2**30)
    for _ in range(4):
        state = course.state(Centres(feature_map, values, ClusterGrid(39)), [0])
        found = [sum_remembered(rows, state) for _ in range(3)]
        assert found[0] == found[1] == found[2] == sum_clusters(rows, state.centres)
        course.note(state, found[0])
        values = found[0].means(state.centres)
    block_memory.forget(course.run)


# -- what is skipped -----------------------------------------------------------------------------------


def test_passes_that_cannot_change_a_label_read_no_block():
    inputs, blobs = make_blobs(N_ROWS, 3, centers=N_CLUSTERS, cluster_std=0.3, random_state=1)
    inputs = inputs.astype(np.float32)
    feature_map = draw_feature_map(Gaussian(3.0), n_features=3, n_components=64, random_state=0)
    job = job_of(feature_map, dataset=CountingDataset, inputs=inputs)
    Z = feature_map.transform(inputs)
    starts = np.stack([[1.01 * Z[blobs == i].mean(axis=0) for i in range(N_CLUSTERS)]])
    n_read = []
    for _ in kmeans.iterate(job, starts, lloyd(max_iter=30)):
        n_read.append(job.dataset.n_read)
        job.dataset.n_read = 0
    assert n_read[0] >= len(inspection.blocks_of(job.dataset))
    assert n_read[-1] == 0


def test_features_are_kept_of_as_many_blocks_as_fit():
    feature_map = MAPS["pairs"]
    job, starts = job_of(feature_map, dataset=CountingDataset), starts_of(feature_map, 1)
    expected = run(job, starts, cache="none")
    n_blocks = len(inspection.blocks_of(job.dataset))
    labels = n_blocks * skipped_rows.block_bytes(BLOCK_ROWS, 1, N_CLUSTERS, 64, n_groups=N_CLUSTERS)
    each = BLOCK_ROWS * (64 * 4 + 8)
    n_read = {}
    for n_kept in (n_blocks, n_blocks // 2, 0):
        job.dataset.n_read = 0
        found = run(job, starts, cache="features", cache_bytes=2 * labels + n_kept * each)
        n_read[n_kept] = job.dataset.n_read
        assert_same_bits(found, expected)
    assert n_read[n_blocks] == n_blocks < n_read[n_blocks // 2] < n_read[0]


@pytest.fixture
def looked(monkeypatch):
    """Return the rows that scorers look at from now on, by whether their margins are noted."""
    rows = Counter()

    def counting(name, find):
        def count(self, features, *arguments):
            rows[name] += len(features)
            return find(self, features, *arguments)

        return count

    for name in ("nearest", "labels"):
        monkeypatch.setattr(lloyd_pass.Scorer, name, counting(name, getattr(lloyd_pass.Scorer, name)))
    return rows


def test_later_passes_look_at_few_rows(looked):
    job = job_of(MAPS["pairs"])
    looked.clear()
    n_looked = []
    for _ in kmeans.iterate(job, starts_of(MAPS["pairs"], 1), lloyd(max_iter=25)):
        n_looked.append(looked.total())
        looked.clear()
    assert len(n_looked) > 20
    assert n_looked[0] == N_ROWS
    assert np.median(n_looked) < 0.5 * N_ROWS


def test_margins_that_are_of_no_use_are_noted_ever_more_rarely(looked):
    """Of centres that jump in each pass, and then stay: hardly a row is looked at any more."""
    feature_map = MAPS["pairs"]
    rows = Rows(cut_blocks(N_ROWS, N_ROWS, rows_per_block=N_ROWS)[0], X)
    course = Course([rows.block], 2, N_CLUSTERS, spread=1.0, mean_norm=1.0, n_components=64, budget=2**30)
    noted = []
    for number in range(14):
        seed = min(number, 11)
        values = feature_map.transform(X[np.random.default_rng(seed).choice(N_ROWS, 2 * N_CLUSTERS)])
        centres = Centres(feature_map, values.reshape(2, N_CLUSTERS, -1), ClusterGrid(39))
        state = course.state(centres, [0, 1])
        looked.clear()
        found = sum_remembered(rows, state)
        assert looked.total() == N_ROWS if number < 12 else looked.total() < 0.01 * N_ROWS
        noted += [number] * (looked["nearest"] == N_ROWS)
        assert found == sum_clusters(rows, centres)
        course.note(state, found)
    assert noted == [0, 1, 3, 6, 11]
    block_memory.forget(course.run)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-6, 1e-2, 1.0]), n_components=st.integers(1, 9)
)
def test_no_margin_loses_more_than_its_bound(seed, scale, n_components):
    rng = np.random.default_rng(seed)
    former = rng.standard_normal((5, n_components))
    centres = former + scale * rng.standard_normal((5, n_components))
    rows = 2 * rng.standard_normal((200, n_components))
    before, after = (np.square(rows[:, np.newaxis] - c).sum(axis=2) for c in (former, centres))
    at_centre, per_distance = margin_losses(former, centres)
    for own in range(5):
        lost = (before - before[:, [own]]) - (after - after[:, [own]])
        bound = at_centre[own] + per_distance[own] * np.sqrt(before[:, [own]])
        others = np.arange(5) != own
        assert (lost <= bound + 1e-12 * before.max())[:, others].all()
    # and a row straight in the direction of the two moves loses all of it
    direction = (centres - former)[1] - (centres - former)[0]
    row = former[0] + 3.0 * direction / np.linalg.norm(direction)
    lost = (np.square(row - former[1]).sum() - np.square(row - former[0]).sum()) - (
        np.square(row - centres[1]).sum() - np.square(row - centres[0]).sum()
    )
    assert lost == pytest.approx(at_centre[0, 1] + 3.0 * per_distance[0, 1], rel=1e-4, abs=1e-9)


# -- memory --------------------------------------------------------------------------------------------


def test_nothing_is_remembered_after_a_run_that_fails():
    inputs = X.copy()
    job = job_of(MAPS["pairs"], inputs=inputs)
    passes = kmeans.iterate(job, starts_of(MAPS["pairs"], 1), lloyd(max_iter=9))
    next(passes)
    assert block_memory.remembered_bytes() > 0
    job.dataset.X[3_000] = np.nan
    with pytest.raises(DataError, match="row 3_000"):
        list(passes)
    assert block_memory.remembered_bytes() == 0


def test_a_run_that_is_left_unfinished_is_forgotten():
    passes = kmeans.iterate(job_of(MAPS["pairs"]), starts_of(MAPS["pairs"], 1), lloyd(max_iter=9))
    next(passes)
    assert block_memory.remembered_bytes() > 0
    passes.close()
    assert block_memory.remembered_bytes() == 0


def test_entries_of_other_runs_and_old_ones_make_room():
    keep = functools.partial(block_memory.keep, n_bytes=40, budget=100)
    assert keep("old", 0, "a", number=0)
    assert keep("old", 1, "b", number=5)
    assert keep("old", 2, "c", number=5)  # the one of pass 0 has left
    assert not keep("old", 3, "d", number=5)
    assert block_memory.take("old", 0) is None
    assert keep("new", 0, "e", number=0)
    assert [block_memory.take("old", key) for key in (1, 2)] == [None, "c"]
    block_memory.forget("new")
    assert block_memory.remembered_bytes() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": "rows"}, r"unknown `cache` 'rows'; expected one of \['features', 'labels', 'none'\]"),
        ({"cache_bytes": -1}, "`cache_bytes` is -1; expected None or a number of bytes"),
        ({"cache_bytes": 1.5}, "`cache_bytes` is 1.5"),
    ],
)
def test_bad_parameters_are_refused(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        kmeans.find_clusters(
            ArrayDataset(X), MAPS["pairs"], LloydOptions(2, **options), engine=SerialEngine(n_threads=1)
        )


def test_a_block_goes_to_the_worker_that_remembers_it_unless_that_is_busy_or_gone():
    running = object.__new__(Pass)
    running._blocks, running._homes, running._load = [Block(7, 0, 1)], {7: "b"}, Counter()
    running._workers = SimpleNamespace(current=lambda: {"a": 1, "b": 1})
    assert running._free_worker(0) == "b"
    running._load["b"] = SLOTS
    assert running._free_worker(0) == "a"
    running._load["a"] = SLOTS
    assert running._free_worker(0) is None
    running._workers, running._load = SimpleNamespace(current=lambda: {"a": 1, "c": 1}), Counter(a=1)
    assert running._free_worker(0) == "c"


def test_sums_add_up_over_threads():
    rows = Rows(cut_blocks(N_ROWS, N_ROWS, rows_per_block=N_ROWS)[0], X, None, WEIGHTS)
    centres = Centres(MAPS["pairs"], starts_of(MAPS["pairs"], 2), ClusterGrid(39, 4))
    sums = []
    for n_threads in (1, 4):
        with using_threads(n_threads):
            sums.append(sum_clusters(rows, centres))
    assert operator.eq(*sums)
