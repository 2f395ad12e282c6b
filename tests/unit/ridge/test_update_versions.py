"""A model that follows the versions of its data: the bits of a fresh pass, whatever became of the rows."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rff_dist.data import cut
from rff_dist.data.blocks import Block
from rff_dist.data.folds import HashFolds
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.jobs.refresh import find_lacking, open_refresh, outcome
from rff_dist.jobs.steps import in_this_process, run_steps
from rff_dist.kernels.stationary import Gaussian
from rff_dist.ridge import fading, update
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.differences import find_differences
from rff_dist.ridge.fading import MOST_HALVINGS
from rff_dist.ridge.gate import hold_out, judge
from rff_dist.ridge.merge import merge, refit_on
from rff_dist.ridge.model import read_model, write_model
from rff_dist.ridge.new_rows import find_new_rows
from rff_dist.ridge.row_ranges import merge_ranges
from rff_dist.ridge.update import update_model
from rff_dist.statistics import accumulate, inspection, passes
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.statistics.moments import ColumnMoments, measure_moments
from rff_dist.statistics.ridge_statistics import RidgeStatistics
from rff_dist.storage import loads
from rff_dist.storage.appending import append_dataset
from rff_dist.storage.corrections import delete_rows, replace_rows
from rff_dist.storage.datasets import open_dataset
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import expire, roll_back
from rff_dist.storage.writing import write_dataset
from tests.plain import fit_ridge

ENGINE = SerialEngine(1)
CHUNK, TILE, BLOCK = 128, 64, 256


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    make_small(monkeypatch)


def make_small(patched):
    """Many blocks and tiles of few rows, so that most of them stay."""
    patched.setattr(cut, "MIN_BLOCK_ROWS", BLOCK)
    for module in (accumulate, update):
        patched.setattr(module, "tile_rows", lambda _: TILE)


def draw(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n)


def fit(dataset, **options):
    options = {"length_scale": 1.0, "n_components": 8, "alpha": 0.1, **options}
    return fit_ridge(dataset, Gaussian(), engine=ENGINE, **options)[0]


def assert_follows(model, begun, dataset, start=0):
    """One pass over the rows of this version, with the first model's features and grids, is the oracle.

    `start`: the first row of a window, whose rows are a dataset of their own.
    """
    rows = dataset.read(Block(0, start, dataset.n_samples))
    held = ArrayDataset(rows.X, rows.y[:, 0], chunk_rows=CHUNK) if start else dataset
    expected = passes.accumulate(held, begun.feature_map, engine=ENGINE, spec=begun.statistics.spec)
    if start % BLOCK == 0:
        assert model.statistics == expected
        assert model.statistics.digest() == expected.digest()
        assert model.statistics.n_tiles == expected.n_tiles
    else:  # rows lie in other tiles, in which Z'y and products without a fixed point are rounded
        assert model.statistics.n_samples == expected.n_samples
        if begun.statistics.spec.fixed_point:
            assert np.array_equal(model.statistics.ZtZ(), expected.ZtZ())
        np.testing.assert_allclose(model.statistics.ZtZ(), expected.ZtZ(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(model.statistics.Zty(), expected.Zty(), rtol=1e-9, atol=1e-9)
    assert model.card["data_version"] == dataset.version
    columns = ColumnMoments.of(measure_moments(rows, np.zeros(3)))
    assert model.columns.n_samples == pytest.approx(columns.n_samples)
    # sums of a thousand terms, in another order
    np.testing.assert_allclose(model.columns.mean, columns.mean, atol=1e-11)
    np.testing.assert_allclose(model.columns.second, columns.second, rtol=1e-9)


def assert_fades(model, begun, dataset, ages, start=0):
    """The oracle: each piece of a block whose rows weigh the same, summed apart and divided by powers of two.

    `ages`: how often the weight of each row is halved.
    """
    state = Accumulation(begun.feature_map, begun.statistics.spec)
    edges = {0, start, *(np.flatnonzero(np.diff(ages)) + 1).tolist(), dataset.n_samples}
    edges |= {block.start for block in inspection.blocks_of(dataset)}
    expected = RidgeStatistics.empty(begun.statistics.spec).reweighted(0, MOST_HALVINGS)
    for a, b in pairwise(sorted(edge for edge in edges if edge >= start)):
        part = accumulate.accumulate_rows(dataset.read(Block(0, a, b)), state)
        expected = expected + part.reweighted(-int(ages[a]), MOST_HALVINGS)
    assert model.statistics == expected
    assert model.statistics.digest() == expected.digest()
    W = 2.0 ** -ages[start:, np.newaxis].astype(float)
    rows = dataset.read(Block(0, start, dataset.n_samples))
    Z = begun.feature_map.transform(rows.X)
    np.testing.assert_allclose(model.statistics.ZtZ(), Z.T @ (W * Z), rtol=1e-6, atol=1e-6 * W.sum())
    np.testing.assert_allclose(model.statistics.Zty()[:, np.newaxis], Z.T @ (W * rows.y), atol=1e-6 * W.sum())


class Versions(RuleBasedStateMachine):
    """Append, correct, delete and roll back in any order; now and then the model follows."""

    precision = "standard"

    @initialize()
    def begin(self):
        self.patched = pytest.MonkeyPatch()
        make_small(self.patched)
        self.folder = tempfile.TemporaryDirectory()
        self.url, self.seed = f"{self.folder.name}/data", 1
        dataset = write_dataset(self.url, *draw(1500, 0), chunk_rows=CHUNK, versioned=True)
        self.model = self.begun = fit(dataset, precision=self.precision)
        self.version, self.window, self.half_life = dataset.version, None, None
        self.loads = {self.version: np.zeros(1500, int)}  # of each version, which load each row is of

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()
            self.patched.undo()

    def rows(self, n):
        self.seed += 1
        return draw(n, self.seed)

    @property
    def n_samples(self):
        return len(self.loads[self.version])

    def changed(self, version, loads):
        self.version, self.loads[version] = version, loads

    @rule(n=st.sampled_from([1, 60, 128, 512, 700]))
    def append(self, n):
        loads = self.loads[self.version]
        self.changed(append_dataset(self.url, *self.rows(n)).version, [*loads, *[max(loads) + 1] * n])

    @rule(data=st.data())
    def correct(self, data):
        n = self.n_samples
        which = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=6, unique=True))
        loads = self.loads[self.version]
        self.changed(replace_rows(self.url, which, *self.rows(len(which))).version, loads)

    @rule(data=st.data(), keep_order=st.booleans())
    def delete(self, data, keep_order):
        n = self.n_samples
        which = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=40, unique=True))
        if len(which) < n:
            loads = self.loads[self.version]
            # the last rows take the places, and belong to the loads that these are of
            left = np.delete(loads, which) if keep_order else loads[: n - len(which)]
            self.changed(delete_rows(self.url, which, keep_order=keep_order).version, left)

    @rule(data=st.data())
    def go_back(self, data):
        self.version = data.draw(st.sampled_from(list(self.loads)))
        roll_back(parse_location(self.url), self.version)

    def first_row(self, window):
        """Return the first row of the last loads."""
        loads = self.loads[self.version]
        if window in (None, "all"):
            return 0
        return int(np.searchsorted(loads, np.unique(loads)[-int(window) :][0]))

    @rule(
        window=st.sampled_from([None, None, "1", "2", "3", "all"]),
        half_life=st.sampled_from([None, None, "1", "2", "none"]),
    )
    def follow(self, window, half_life):
        dataset = open_dataset(self.url)
        self.model = update_model(self.model, dataset, window=window, half_life=half_life, engine=ENGINE)
        self.window, self.half_life = window or self.window, half_life or self.half_life
        start = self.first_row(self.window)
        if self.half_life in (None, "none"):
            assert_follows(self.model, self.begun, dataset, start)
        else:
            _, load_of_row = np.unique(self.loads[self.version], return_inverse=True)
            spans = load_of_row // int(self.half_life)
            assert_fades(self.model, self.begun, dataset, spans[-1] - spans, start)

    @invariant()
    def rows_that_only_moved_are_not_new(self):
        if not hasattr(self, "loads") or self.window not in (None, "all"):
            return
        dataset = open_dataset(self.url)
        before = open_dataset(self.url, version=self.model.card["data_version"])
        rows = find_new_rows(self.model, dataset)
        old, new = (set(map(bytes, one.read(Block(0, 0, one.n_samples)).X)) for one in (before, dataset))
        assert (rows.n_samples, rows.n_gone) == (len(new - old), len(old - new))


class RoundedVersions(Versions):
    """Features without a fixed point, whose products are rounded tile by tile."""

    precision = "high"


steps = settings(
    max_examples=5, stateful_step_count=10, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
Versions.TestCase.settings = RoundedVersions.TestCase.settings = steps
TestVersions = Versions.TestCase
TestRoundedVersions = RoundedVersions.TestCase


@pytest.fixture
def url(tmp_path):
    write_dataset(tmp_path / "d", *draw(4000, 0), chunk_rows=CHUNK, versioned=True)
    return tmp_path / "d"


@pytest.mark.parametrize("precision", ["standard", "high"])
def test_only_tiles_with_changed_rows_are_summed_again(url, precision, monkeypatch):
    model, summed = fit(open_dataset(url), precision=precision), []
    begun = model.card["data_version"]
    replace_rows(url, [5, 70, 3000], *draw(3, 1))
    delete_rows(url, [3999])
    original = update.sum_ranges

    def counted(dataset, ranges, state, *, engine):
        summed.append((dataset.version, state.state.sums, sorted(ranges)))
        return original(dataset, ranges, state, engine=engine)

    monkeypatch.setattr(update, "sum_ranges", counted)
    dataset = open_dataset(url)
    found = update_model(model, dataset, engine=ENGINE)
    assert_follows(found, model, dataset)
    tail = 4000 // BLOCK * BLOCK
    # of features in fixed point only the rows that differ are multiplied: Z'Z is not rounded
    sums = ["moments"] if precision == "standard" else ["all"]
    pieces = [(0, 128), (2944, 3008)]
    expected = [(begun, one, [*pieces, (tail, 4000)]) for one in sums]
    expected += [(begun, "gram", [(3999, 4000)]), (None, "gram", [(0, 3)])] * (precision == "standard")
    expected += [(dataset.version, one, [*pieces, (tail, 3999)]) for one in sums]
    expected += [(None, "gram", [(0, 3)])] * (precision == "standard")
    assert summed == expected


def bytes_read():
    """What this process has read from files, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel does not count")
def test_chunks_that_differ_are_read_once_in_either_version_and_no_others(tmp_path, monkeypatch):
    monkeypatch.undo()
    rows, n, url = 2**16, 12, tmp_path / "d"  # chunks of 1.5 MiB, far above what else is read
    chunk = rows * 8 * 3
    dataset = write_dataset(url, *draw(n * rows - 5, 0), chunk_rows=rows, versioned=True)
    model = fit(dataset, alpha="gcv")

    def chunks_read():
        before, dataset = bytes_read(), open_dataset(url)
        found = update_model(model, dataset, engine=ENGINE)
        assert found.card["data_version"] == dataset.version
        return (bytes_read() - before) / chunk

    append_dataset(url, *draw(rows, 2))
    # the last chunk and a new one as they are, and what is small
    assert 1.9 < chunks_read() < 2.6
    replace_rows(url, [5 * rows, 5 * rows + 9], *draw(2, 1))
    delete_rows(url, [5 * rows + 3])
    # two chunks as they were; these two and a new one as they are
    assert 4.9 < chunks_read() < 5.6


def test_sums_by_hash_folds_follow_too(url):
    model = fit(open_dataset(url), cv=HashFolds(3))
    assert model.card["summed_by_folds"]
    replace_rows(url, [1, 2000], *draw(2, 1))
    delete_rows(url, [17])
    found = update_model(model, open_dataset(url), engine=ENGINE)
    member = Accumulation(model.feature_map, model.statistics.spec)
    (parts,) = passes.accumulate_folds(open_dataset(url), [member], folds=HashFolds(3), engine=ENGINE)
    assert found.statistics == parts.total()


def test_a_version_that_has_expired_leaves_the_comparison_by_fingerprints(url):
    from datetime import UTC, datetime

    model = fit(open_dataset(url))
    append_dataset(url, *draw(10, 1))
    expire(parse_location(url), datetime.now(UTC))
    assert find_differences(open_dataset(url), model.card["data_version"], []) is None
    found = update_model(model, open_dataset(url), engine=ENGINE)
    assert_follows(found, model, open_dataset(url))


def refresh(model, url, **options):
    runner = in_this_process(ENGINE)
    with open_refresh(model, open_dataset(url), runner=runner, **options) as run:
        return outcome(run_steps(run.steps(), runner))


class TestAWindow:
    """A model of the last loads: what leaves is subtracted."""

    def test_has_the_bits_of_a_fit_on_its_rows(self, url, tmp_path):
        model = fit(open_dataset(url), alpha="gcv")
        append_dataset(url, *draw(96, 1))  # to a whole number of blocks: the tiles are then the same
        append_dataset(url, *draw(3 * BLOCK, 2))
        found = update_model(model, open_dataset(url), window="1", engine=ENGINE)
        rows = write_dataset(tmp_path / "window", *draw(3 * BLOCK, 2), chunk_rows=CHUNK)
        fresh = refit_on(model, rows, engine=ENGINE)
        assert found.statistics.digest() == fresh.statistics.digest()
        assert found.digest() == fresh.digest()
        assert found.card["window"] == {"of": "1", "start": 4096}

    def test_moves_with_each_load_and_is_left_by_all(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        starts = []
        for night, window in enumerate(["2", None, None, "3", "all"]):
            append_dataset(url, *draw(256, night + 1))
            found = refresh(tmp_path / "model", url, window=window)
            assert (found["decision"], found["n_new"] >= 256) == ("published", True)
            starts.append(found["first_row"])
            assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url), starts[-1])
        assert starts == [0, 4000, 4256, 4256, 0]
        assert found["n_new"] == 256 + 4256

    def test_that_is_shorter_subtracts_where_nothing_is_new(self, url, tmp_path):
        begun = fit(open_dataset(url))
        append_dataset(url, *draw(256, 1))
        write_model(update_model(begun, open_dataset(url), engine=ENGINE), tmp_path / "model")
        found = refresh(tmp_path / "model", url, window="1")
        facts = ("decision", "n_new", "n_gone", "n_samples")
        assert [found[name] for name in facts] == ["published", 0, 4000, 256]
        again = refresh(tmp_path / "model", url)
        assert (again["decision"], again["window"]) == ("nothing new", "1")
        assert again["reason"] == "the model holds all 256 rows of the window 1"

    def test_is_remembered_where_it_holds_all_rows_yet(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        found = refresh(tmp_path / "model", url, window="2")
        assert (found["decision"], found["n_new"], found["n_gone"]) == ("published", 0, 0)
        assert refresh(tmp_path / "model", url)["decision"] == "nothing new"
        for seed in (1, 2):
            append_dataset(url, *draw(300, seed))
            found = refresh(tmp_path / "model", url)
        assert (found["window"], found["first_row"], found["n_samples"]) == ("2", 4000, 600)

    def test_stays_as_it_is_where_rows_before_it_are_deleted_in_order(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        for seed in (1, 2):
            append_dataset(url, *draw(300, seed))
            refresh(tmp_path / "model", url, window="2")
        delete_rows(url, [3], keep_order=True)
        found = refresh(tmp_path / "model", url)
        facts = ("decision", "first_row", "n_new", "n_gone", "n_samples")
        assert [found[name] for name in facts] == ["published", 3999, 0, 0, 600]
        assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url), 3999)

    def test_sums_what_comes_and_what_leaves(self, tmp_path, monkeypatch):
        url = tmp_path / "d"
        write_dataset(url, *draw(BLOCK, 0), chunk_rows=CHUNK, versioned=True)
        for seed in range(1, 5):
            append_dataset(url, *draw(BLOCK, seed))
        begun = model = fit(open_dataset(url))
        summed, original = [], update.sum_ranges

        def counted(dataset, ranges, state, *, engine):
            summed.append((state.state.sums, merge_ranges(ranges)))
            return original(dataset, ranges, state, engine=engine)

        monkeypatch.setattr(update, "sum_ranges", counted)
        for i in range(3):
            append_dataset(url, *draw(BLOCK, 9 + i))
            model = update_model(model, open_dataset(url), window="5", engine=ENGINE)
            assert_follows(model, begun, open_dataset(url), (i + 1) * BLOCK)
        parts = [[(j * BLOCK, (j + 1) * BLOCK)] for i in range(3) for j in (i, 5 + i)]
        assert summed == [("all", part) for part in parts]

    def test_needs_data_that_know_their_loads(self, url, tmp_path):
        plain = write_dataset(tmp_path / "plain", *draw(500, 0))
        with pytest.raises(InvalidParameterError, match="keeps no versions"):
            update_model(fit(plain), plain, window="2", engine=ENGINE)
        with pytest.raises(InvalidParameterError, match="expected a number of loads"):
            update_model(fit(open_dataset(url)), open_dataset(url), window="2 weeks", engine=ENGINE)

    def test_keeps_refused_rows_out_until_they_leave(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        X, y = draw(500, 1)
        append_dataset(url, X, 20 * y[::-1])
        assert refresh(tmp_path / "model", url, window="3")["decision"] == "kept"
        append_dataset(url, *draw(300, 2))
        found = refresh(tmp_path / "model", url, window="3")
        assert (found["decision"], found["left_out"]) == ("published", [[4000, 4500]])
        append_dataset(url, *draw(300, 3))
        append_dataset(url, *draw(300, 4))
        found = refresh(tmp_path / "model", url)
        assert (found["decision"], found["left_out"], found["n_samples"]) == ("published", [], 900)
        assert find_lacking(parse_location(tmp_path / "model")) == []
        assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url), 4500)


class TestAHalfLife:
    """Weights that halve from one span of loads to the next."""

    def test_reads_only_what_came_while_all_weights_are_halved(self, tmp_path, monkeypatch):
        url = tmp_path / "d"
        write_dataset(url, *draw(BLOCK, 0), chunk_rows=CHUNK, versioned=True)
        begun = fit(open_dataset(url))
        write_model(update_model(begun, open_dataset(url), half_life="1", engine=ENGINE), tmp_path / "model")
        summed, original = [], update.sum_ranges

        def counted(dataset, ranges, state, *, engine):
            summed.append(merge_ranges(ranges))
            return original(dataset, ranges, state, engine=engine)

        monkeypatch.setattr(update, "sum_ranges", counted)
        for night in range(1, 4):
            append_dataset(url, *draw(BLOCK, night))
            found = refresh(tmp_path / "model", url)
            assert (found["decision"], found["half_life"]) == ("published", "1")
            ages = night - np.repeat(np.arange(night + 1), BLOCK)
            assert_fades(read_model(tmp_path / "model"), begun, open_dataset(url), ages)
        assert summed == [[(night * BLOCK, (night + 1) * BLOCK)] for night in range(1, 4)]
        assert refresh(tmp_path / "model", url)["decision"] == "nothing new"

    def test_taken_at_once_has_the_bits_of_every_night(self, url):
        nightly = begun = fit(open_dataset(url))
        for night in range(4):
            append_dataset(url, *draw(300, night + 1))
            nightly = update_model(nightly, open_dataset(url), half_life="2", engine=ENGINE)
        at_once = update_model(begun, open_dataset(url), half_life="2", engine=ENGINE)
        assert at_once.statistics == nightly.statistics
        assert at_once.digest() == nightly.digest()
        back = update_model(nightly, open_dataset(url), half_life="none", engine=ENGINE)
        assert_follows(back, begun, open_dataset(url))
        assert "fading" not in back.card

    def test_by_days_follows_the_clock_of_the_loads(self, url, monkeypatch):
        begun = model = fit(open_dataset(url))
        now = datetime.now(UTC)
        for days in (1, 12, 13, 40):  # spans of ten days, of which the first load's is cut somewhere
            clock = type("Clock", (datetime,), {"now": lambda _, days=days: now + timedelta(days=days)})
            with monkeypatch.context() as patched:
                patched.setattr(loads, "datetime", clock)
                append_dataset(url, *draw(200, days))
            model = update_model(model, open_dataset(url), half_life="10d", engine=ENGINE)
            spans = [int((now + timedelta(days=d)).timestamp() // 864_000) for d in (0, 1, 12, 13, 40)]
            ages = np.repeat(spans, [4000, 200, 200, 200, 200])[: open_dataset(url).n_samples]
            assert_fades(model, begun, open_dataset(url), ages[-1] - ages)

    def test_lets_rows_leave_that_were_halved_too_often(self, url, tmp_path, monkeypatch):
        monkeypatch.setattr(fading, "MOST_HALVINGS", 2)
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        for night in range(4):
            append_dataset(url, *draw(256, night + 1))
            found = refresh(tmp_path / "model", url, half_life="1" if night == 0 else None)
        facts = ("decision", "first_row", "n_gone", "n_samples")
        assert [found[name] for name in facts] == ["published", 4256, 256, 3 * 256]
        model = read_model(tmp_path / "model")
        assert model.statistics.sum_of_weights == 256 * (1 + 0.5 + 0.25)
        assert refresh(tmp_path / "model", url)["reason"] == "the model holds all 768 rows that count"

    def test_gives_the_newest_rows_the_model(self, tmp_path):
        """The law changes; what came before it hardly counts after some nights."""
        url, rng = tmp_path / "d", np.random.default_rng(0)

        def rows(slope):
            X = rng.standard_normal((1000, 2))
            return X, slope * X[:, 0] + 0.1 * rng.standard_normal(1000)

        write_dataset(url, *rows(1.0), chunk_rows=CHUNK, versioned=True)
        plain = fades = fit(open_dataset(url), n_components=64)
        for _ in range(4):
            append_dataset(url, *rows(-1.0))
            plain = update_model(plain, open_dataset(url), engine=ENGINE)
            fades = update_model(fades, open_dataset(url), half_life="1", engine=ENGINE)
        X, y = rows(-1.0)
        errors = [
            np.sqrt(np.mean((prediction.predict_in_memory(ArrayDataset(X), one, engine=ENGINE) - y) ** 2))
            for one in (plain, fades)
        ]
        assert errors[1] < 0.5 * errors[0]

    def test_is_no_spec_of_models_without_one(self, url, tmp_path):
        model = fit(open_dataset(url))
        fades = update_model(model, open_dataset(url), half_life="1", engine=ENGINE)
        other = refit_on(model, write_dataset(tmp_path / "other", *draw(500, 7)), engine=ENGINE)
        with pytest.raises(StatisticsError, match="`half_life` is 1 and none"):
            merge([fades, other], ["fades", "other"])

    def test_needs_data_that_know_their_loads(self, url, tmp_path):
        plain = write_dataset(tmp_path / "plain", *draw(500, 0))
        with pytest.raises(InvalidParameterError, match=r"`half_life` is '2', but .* keeps no versions"):
            update_model(fit(plain), plain, half_life="2", engine=ENGINE)
        with pytest.raises(InvalidParameterError, match=r"`half_life` is '2 weeks'; .* or none"):
            update_model(fit(open_dataset(url)), open_dataset(url), half_life="2 weeks", engine=ENGINE)

    @pytest.mark.parametrize(
        ("deleted", "keep_order", "sizes"),
        [
            ([], False, [4000, 400, 400, 400]),
            ([10], True, [3999, 400, 400, 400]),  # all rows behind it move, in their loads
            (
                [100],
                False,
                [4000, 400, 399, 400],
            ),  # the newest takes its place, and is old from now on
        ],
    )
    def test_holds_out_rows_by_the_weights_of_either_model(self, url, deleted, keep_order, sizes):
        model = update_model(fit(open_dataset(url)), open_dataset(url), half_life="1", engine=ENGINE)
        for night in range(2):
            append_dataset(url, *draw(400, night + 1))
            model = update_model(model, open_dataset(url), engine=ENGINE)
        before = open_dataset(url)
        if deleted:
            delete_rows(url, deleted, keep_order=keep_order)
        append_dataset(url, *draw(400, 9))
        dataset = open_dataset(url)
        held_out = hold_out(model, dataset, find_new_rows(model, dataset), engine=ENGINE)
        gate = judge(update_model(model, dataset, engine=ENGINE), held_out, engine=ENGINE)
        held = np.concatenate([np.arange(block.start, block.stop) for block in held_out.blocks])
        assert len(held) == (sum(sizes) - 400) // 5
        X_held, y_held = (one[held] for one in dataset.take(np.arange(dataset.n_samples))[:2])
        expected = []
        for rows, loads_of in ((before, [4000, 400, 400]), (dataset, sizes)):
            X, y, _ = rows.take(np.arange(rows.n_samples))
            W = 2.0 ** np.repeat(-np.arange(len(loads_of))[::-1].astype(float), loads_of)
            W[np.isin(X[:, 0], X_held[:, 0])] = 0
            Z, Z_held = (
                np.column_stack([model.feature_map.transform(one), np.ones(len(one))]) for one in (X, X_held)
            )
            penalty = np.diag([0.1] * 8 + [0.0])
            weights = np.linalg.solve(Z.T @ (W[:, np.newaxis] * Z) + penalty, Z.T @ (W * np.ravel(y)))
            expected.append(np.sqrt(np.mean((Z_held @ weights - np.ravel(y_held)) ** 2)))
        np.testing.assert_allclose([gate.champion[0], gate.challenger[0]], expected, rtol=1e-7)

    @pytest.mark.parametrize("features", ["fourier", "nystrom"])
    def test_is_followed_by_a_whole_run_with_either_kind_of_features(self, url, tmp_path, features):
        model = fit(open_dataset(url), features=features)
        write_model(model, tmp_path / "model")
        for half_life in ("1", None):
            append_dataset(url, *draw(400, 7))
            found = refresh(tmp_path / "model", url, half_life=half_life)
            assert (found["decision"], found["half_life"]) == ("published", "1")
        ages = np.repeat([2, 1, 0], [4000, 400, 400])
        assert read_model(tmp_path / "model").statistics.sum_of_weights == (2.0**-ages).sum()


class TestARun:
    def test_publishes_what_corrections_and_deletions_make(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        replace_rows(url, range(40), *draw(40, 1))
        delete_rows(url, [100, 200])
        found = refresh(tmp_path / "model", url)
        facts = ("decision", "n_new", "n_replaced", "n_gone")
        assert [found[name] for name in facts] == ["published", 40, 40, 42]
        assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url))
        assert refresh(tmp_path / "model", url)["decision"] == "nothing new"

    def test_that_only_deletes_scores_nothing_and_publishes(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        delete_rows(url, [100, 200])
        found = refresh(tmp_path / "model", url)
        assert (found["decision"], found["n_new"], found["n_gone"]) == ("published", 0, 2)
        assert "drift" not in found
        assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url))

    def test_holds_out_rows_that_only_moved(self, url, tmp_path):
        begun = fit(open_dataset(url))
        write_model(begun, tmp_path / "model")
        delete_rows(url, [0], keep_order=True)
        append_dataset(url, *draw(300, 1))
        found = refresh(tmp_path / "model", url)
        assert (found["decision"], found["n_new"], found["n_gone"]) == ("published", 300, 1)
        assert found["held_out"]["held_out"] == "the newest 799 rows that the champion holds"
        assert_follows(read_model(tmp_path / "model"), begun, open_dataset(url))

    def test_keeps_the_champion_of_corrections_that_are_bad(self, url, tmp_path):
        write_model(fit(open_dataset(url)), tmp_path / "model")
        before = read_model(tmp_path / "model").digest()
        X, y = draw(1500, 1)
        version = open_dataset(url).version
        replace_rows(url, range(1500), X, 20 * y[::-1])
        assert refresh(tmp_path / "model", url)["decision"] == "kept"
        assert read_model(tmp_path / "model").digest() == before
        roll_back(parse_location(url), version)
        assert refresh(tmp_path / "model", url)["decision"] == "nothing new"

    def test_remembers_refused_corrections_until_the_model_follows_the_data(self, url, tmp_path):
        write_model(fit(open_dataset(url)), tmp_path / "model")
        X, y = draw(1500, 1)
        version = open_dataset(url).version
        replace_rows(url, range(1500), X, 20 * y[::-1])
        found = refresh(tmp_path / "model", url)
        [refusal] = find_lacking(parse_location(tmp_path / "model"))
        assert (refusal.start, refusal.stop, refusal.n_changed) == (0, 1500, 1500)
        assert (refusal.reason, refusal.data_version) == (found["reason"], open_dataset(url).version)
        roll_back(parse_location(url), version)
        append_dataset(url, *draw(300, 2))
        assert refresh(tmp_path / "model", url)["decision"] == "published"
        assert find_lacking(parse_location(tmp_path / "model")) == []

    def test_keeps_refused_rows_out_when_other_rows_are_corrected(self, url, tmp_path):
        write_model(fit(open_dataset(url)), tmp_path / "model")
        X, y = draw(1000, 1)
        append_dataset(url, X, 20 * y[::-1])
        assert refresh(tmp_path / "model", url)["decision"] == "kept"
        replace_rows(url, [5], *draw(1, 2))
        append_dataset(url, *draw(300, 3))
        found = refresh(tmp_path / "model", url)
        assert (found["decision"], found["n_replaced"]) == ("published", 1)
        assert (found["new"], found["left_out"]) == ([[5000, 5300]], [[4000, 5000]])
        replace_rows(url, range(4000, 5000), *draw(1000, 4))
        mended = refresh(tmp_path / "model", url)
        assert (mended["decision"], mended["left_out"]) == ("published", [])
        assert find_lacking(parse_location(tmp_path / "model")) == []
