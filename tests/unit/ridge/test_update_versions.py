"""A model that follows the versions of its data: the bits of a fresh pass, whatever
became of the rows.
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.testing import assert_allclose

from rff_dist import (
    GroupFolds,
    HashFolds,
    append_dataset,
    delete_rows,
    open_dataset,
    replace_rows,
    write_dataset,
)
from rff_dist.data.blocks import Block
from rff_dist.errors import FingerprintMismatchError
from rff_dist.estimators.splits import with_groups
from rff_dist.living.differences import find_differences
from rff_dist.living.new_rows import find_new_rows
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model
from rff_dist.statistics import passes
from rff_dist.statistics.accumulate import Accumulation
from rff_dist.storage.locations import parse_location
from rff_dist.storage.repositories import expire, roll_back
from rff_dist.workbench.jobs.publishing import publish
from rff_dist.workbench.jobs.refusals import refusals_of
from tests.living_data import (
    BLOCK,
    CHUNK,
    ENGINE,
    assert_follows,
    draw,
    fit,
    make_small,
    refresh,
    watch_sums,
)
from tests.plain import update_model
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("small_tiles")


class Versions(RuleBasedStateMachine):
    """Append, correct, delete and roll back in any order; now and then the model
    follows.

    With "high" precision features have no fixed point, and their products are rounded
    tile by tile."""

    @initialize(precision=st.sampled_from(["standard", "high"]))
    def begin(self, precision):
        self.patched = pytest.MonkeyPatch()
        make_small(self.patched)
        self.folder = tempfile.TemporaryDirectory()
        self.url = f"{self.folder.name}/data"
        self.seed = 1
        dataset = write_dataset(
            self.url, *draw(1500, 0), chunk_rows=CHUNK, versioned=True
        )
        self.model = self.begun = fit(dataset, precision=precision)
        self.version = dataset.version
        self.window = None
        # for each version, the load of each row
        self.loads = {self.version: np.zeros(1500, int)}

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
        self.version = version
        self.loads[version] = loads

    @rule(n=st.sampled_from([1, 60, 128, 512, 700]))
    def append(self, n):
        loads = self.loads[self.version]
        self.changed(
            append_dataset(self.url, *self.rows(n)).version,
            [*loads, *[max(loads) + 1] * n],
        )

    @rule(data=st.data())
    def correct(self, data):
        n = self.n_samples
        which = data.draw(
            st.lists(st.integers(0, n - 1), min_size=1, max_size=6, unique=True)
        )
        loads = self.loads[self.version]
        self.changed(
            replace_rows(self.url, which, *self.rows(len(which))).version, loads
        )

    @rule(data=st.data(), keep_order=st.booleans())
    def delete(self, data, keep_order):
        n = self.n_samples
        which = data.draw(
            st.lists(st.integers(0, n - 1), min_size=1, max_size=40, unique=True)
        )
        if len(which) < n:
            loads = self.loads[self.version]
            # the last rows take these places, and belong to the loads of the places
            left = np.delete(loads, which) if keep_order else loads[: n - len(which)]
            self.changed(
                delete_rows(self.url, which, keep_order=keep_order).version, left
            )

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

    @rule(window=st.sampled_from([None, None, "1", "2", "3", "all"]))
    def follow(self, window):
        dataset = open_dataset(self.url)
        self.model = update_model(self.model, dataset, window=window, engine=ENGINE)
        self.window = window or self.window
        assert_follows(self.model, self.begun, dataset, self.first_row(self.window))

    @invariant()
    def rows_that_only_moved_are_not_new(self):
        if not hasattr(self, "loads") or self.window not in (None, "all"):
            return
        dataset = open_dataset(self.url)
        before = open_dataset(self.url, version=self.model.card["data_version"])
        rows = find_new_rows(self.model, dataset)
        old, new = (
            set(map(bytes, one.read(Block(0, 0, one.n_samples)).X))
            for one in (before, dataset)
        )
        twice = rows.n_new - len(new - old)
        assert rows.n_gone - len(old - new) == twice
        # a row that moved behind the former last one counts as gone and new: rows there
        # are not compared
        assert 0 <= twice <= max(0, dataset.n_samples - before.n_samples)


steps = settings(
    max_examples=4,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
Versions.TestCase.settings = steps
TestVersions = Versions.TestCase


class ManyVersions(Versions):
    """A case that few examples find: a window of one row, whose columns no longer
    vary.
    """


ManyVersions.TestCase.settings = settings(steps, max_examples=100)
TestManyVersions = pytest.mark.timeout(1800)(pytest.mark.slow(ManyVersions.TestCase))


@pytest.mark.parametrize("precision", ["standard", "high"])
def test_only_tiles_with_changed_rows_are_summed_again(url, precision, monkeypatch):
    model = fit(open_dataset(url), precision=precision)
    begun = model.card["data_version"]
    replace_rows(url, [5, 70, 3000], *draw(3, 1))
    delete_rows(url, [3999])
    summed = watch_sums(
        monkeypatch, lambda dataset, ranges, _: (dataset.version, sorted(ranges))
    )
    dataset = open_dataset(url)
    found = update_model(model, dataset, engine=ENGINE)
    assert_follows(found, model, dataset)
    tail = 4000 // BLOCK * BLOCK
    pieces = [(0, 128), (2944, 3008)]
    assert summed == [
        (begun, [*pieces, (tail, 4000)]),
        (dataset.version, [*pieces, (tail, 3999)]),
    ]


def bytes_read():
    """What this process has read from files, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the kernel does not count"
)
def test_chunks_that_differ_are_read_once_in_either_version_and_no_others(
    tmp_path, monkeypatch
):
    monkeypatch.undo()
    # chunks of 1.5 MiB, far above what else is read
    rows = 2**16
    n = 7
    url = tmp_path / "d"
    chunk = rows * 8 * 3
    dataset = write_dataset(
        url, *draw(n * rows - 5, 0), chunk_rows=rows, versioned=True
    )
    model = fit(dataset, alpha="gcv")

    def chunks_read():
        before = bytes_read()
        dataset = open_dataset(url)
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
    (parts,) = passes.accumulate_folds(
        open_dataset(url), [member], folds=HashFolds(3), engine=ENGINE
    )
    assert found.statistics == parts.total()


def test_a_version_that_has_expired_leaves_the_comparison_by_fingerprints(url, begun):
    append_dataset(url, *draw(10, 1))
    expire(parse_location(url), datetime.now(UTC))
    assert find_differences(open_dataset(url), begun.card["data_version"], []) is None
    found = update_model(begun, open_dataset(url), engine=ENGINE)
    assert_follows(found, begun, open_dataset(url))


@pytest.fixture
def weighted(tmp_path):
    """Return the place of rows with weights, one of them 0, and a model of them."""
    X, y = draw(600, 0)
    weights = np.full(600, 0.25)
    weights[5] = 0
    weights[500] = 1
    dataset = write_dataset(
        tmp_path / "d", X, y, sample_weight=weights, chunk_rows=CHUNK, versioned=True
    )
    return dataset.url, fit(dataset)


@pytest.mark.parametrize("gone", [[5], range(400)])
def test_rows_that_leave_take_their_weight_from_the_moments(weighted, gone):
    url, model = weighted
    delete_rows(url, gone, keep_order=True)
    dataset = open_dataset(url, sample_weight="sample_weight")
    found = update_model(model, dataset, engine=ENGINE)
    rows = dataset.read(Block(0, 0, dataset.n_samples))
    total = rows.sample_weight.sum()  # the largest weight is 1
    assert found.columns.n_effective == pytest.approx(total)
    expected = rows.sample_weight @ rows.X / total
    assert_allclose(found.columns.mean, expected, atol=1e-12)  # sums of 600 terms


@pytest.mark.parametrize("constant", [1 / 3, 4 / 3, 10 / 3, 16 / 3])
def test_a_column_that_is_constant_by_now_has_no_variance_below_0(tmp_path, constant):
    X, y = draw(600, 3)
    X[300:, 1] = constant
    dataset = write_dataset(tmp_path / "d", X, y, chunk_rows=CHUNK, versioned=True)
    model = fit(dataset)
    delete_rows(dataset.url, range(300), keep_order=True)
    found = update_model(model, open_dataset(dataset.url), engine=ENGINE)
    # sums of 600 squares of at most 30
    assert 0 <= found.columns.variance[1] < 1e-10


def test_versions_with_other_arrays_than_the_models_are_refused(weighted):
    url, model = weighted
    append_dataset(url, *draw(10, 1), sample_weight=np.ones(10))
    with refuses(FingerprintMismatchError, "weights"):
        find_new_rows(model, open_dataset(url))  # without weights


def test_a_model_with_folds_of_groups_follows_its_versions(tmp_path):
    X, y = draw(600, 0)
    groups = np.arange(600) // 10
    url = str(tmp_path / "d")
    dataset = write_dataset(url, X, y, groups=groups, chunk_rows=CHUNK, versioned=True)
    model = fit(with_groups(dataset, groups), cv=GroupFolds(3))
    replace_rows(url, [3], *draw(1, 1), groups=[0])
    assert find_new_rows(model, open_dataset(url)).n_new == 1


class TestARun:
    def test_publishes_what_corrections_and_deletions_make(self, url, begun):
        replace_rows(url, range(40), *draw(40, 1))
        delete_rows(url, [100, 200])
        found = refresh("model", url)
        facts = ("decision", "n_new", "n_replaced", "n_gone")
        assert [found[name] for name in facts] == ["published", 40, 40, 42]
        assert_follows(read_model("model"), begun, open_dataset(url))
        assert refresh("model", url)["decision"] == "nothing new"
        delete_rows(url, [100, 200])  # nothing is scored
        found = refresh("model", url)
        assert (found["decision"], found["n_new"], found["n_gone"]) == (
            "published",
            0,
            2,
        )
        assert "drift" not in found
        delete_rows(url, [0], keep_order=True)  # rows that only moved are held out too
        append_dataset(url, *draw(300, 5))
        found = refresh("model", url)
        assert (found["decision"], found["n_new"], found["n_gone"]) == (
            "published",
            300,
            1,
        )
        assert (
            found["held_out"]["held_out"]
            == "the newest 799 rows that both models hold (a fifth), left out of both"
        )
        assert_follows(read_model("model"), begun, open_dataset(url))

    def test_keeps_the_champion_of_bad_corrections_and_remembers_them(self, url, begun):
        X, y = draw(1500, 1)
        version = open_dataset(url).version
        replace_rows(url, range(1500), X, 20 * y[::-1])
        found = refresh("model", url)
        assert found["decision"] == "kept"
        assert read_model("model").digest() == begun.digest()
        [refusal] = refusals_of(parse_location("model"))
        assert (refusal.start, refusal.stop, refusal.n_changed) == (0, 1500, 1500)
        assert (refusal.reason, refusal.data_version) == (
            found["reason"],
            open_dataset(url).version,
        )
        roll_back(parse_location(url), version)
        assert refresh("model", url)["decision"] == "nothing new"
        append_dataset(url, *draw(300, 2))
        assert refresh("model", url)["decision"] == "published"
        assert refusals_of(parse_location("model")) == []

    def test_leaves_out_what_a_rolled_back_version_added_but_corrects_and_deletes_again(
        self, url
    ):
        publish(fit(open_dataset(url)), "models/a", data=url, reason="trained")
        append_dataset(url, *draw(300, 5))
        replace_rows(url, range(40), *draw(40, 1))
        delete_rows(url, [100, 200], keep_order=True)
        facts = ("n_new", "n_gone", "n_samples")
        found = refresh("models/a", url)
        assert [found[name] for name in facts] == [340, 42, 4298]
        RegisteredModel("models/a").rollback()
        again = refresh("models/a", url)
        # two of the added rows moved into the places of the deleted ones
        assert [again[name] for name in facts] == [42, 42, 4000]
        last = refresh("models/a", url, backfill=0)
        assert last["statistics_digest"] == found["statistics_digest"]
