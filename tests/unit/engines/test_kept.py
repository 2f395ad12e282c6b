"""How passes are named, and which blocks of them are summed up again."""

import operator
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rff_dist import HashFolds, SerialEngine, draw_feature_map
from rff_dist.data.blocks import BlockTask, cut_blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines import resuming as kept_module
from rff_dist.engines.events import BlockDone, PassResumed
from rff_dist.engines.resuming import Keeper, PassLedger, most_kept, name_pass
from rff_dist.statistics.accumulate import Accumulation, accumulate_rows
from rff_dist.statistics.specs import StatisticsSpec

BLOCKS = cut_blocks(120, 10, rows_per_block=10)


class InMemory:
    """A ledger in a dictionary; keeping takes `cost` seconds."""

    def __init__(self, cost=0.0):
        self.sums = {}
        self.cost = cost

    def spans(self, name):
        return [span for found, span in self.sums if found == name]

    def find(self, name, span):
        found = self.sums.get((name, span))
        return None if found is None else (found.copy(),)

    def put(self, name, span, total):
        inside = [
            (n, s)
            for n, s in self.sums
            if n == name and span.start <= s.start and s.stop <= span.stop
        ]
        for key in inside:
            del self.sums[key]
        self.sums[name, span] = total.copy()

    def seconds(self, total):
        return self.cost


def add(rows, scale, total=None):
    total = np.zeros(12) if total is None else total
    total[rows.block.index] += scale
    return total


def other_add(rows, scale):
    return add(rows, scale)


@dataclass(frozen=True)
class Stored(ArrayDataset):
    """Rows that have a name, as stored rows do."""

    name: str | None = "first"

    def content_key(self):
        return self.name


ROWS = Stored(np.zeros((120, 1)))
TASK = BlockTask(ROWS, add, adds=True)


def accumulation(**spec):
    features = draw_feature_map(
        "gaussian", n_features=3, n_components=8, random_state=spec.pop("seed", 0)
    )
    return Accumulation(
        features, StatisticsSpec(8, 1, features.digest(), features.scales, **spec)
    )


def test_threads_that_share_an_engine_keep_sums_each_in_its_own_ledger():
    engine = SerialEngine(1)
    both = threading.Barrier(2, timeout=60)

    def keep(ledger):
        with engine.keeping(ledger):
            both.wait()
            return engine.ledger is ledger

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(keep, [InMemory(), InMemory()]))
    assert engine.ledger is None


# -- names
# --------------------------------------------------------------------------------------


def test_whatever_the_sums_depend_on_changes_the_name():
    state = accumulation(target_offset=(0.5,))
    first = state.feature_map
    passes = [
        (TASK, BLOCKS, state),
        (replace(TASK, source=Stored(ROWS.X, name="second")), BLOCKS, state),
        (replace(TASK, compute=other_add), BLOCKS, state),
        (replace(TASK, compute=accumulate_rows), BLOCKS, state),
        (replace(TASK, compute=partial(add, scale=1)), BLOCKS, state),
        (replace(TASK, compute=partial(add, scale=2)), BLOCKS, state),
        (TASK, BLOCKS[:-1], state),
        (TASK, cut_blocks(120, 10, rows_per_block=20), state),
    ]
    states = [
        accumulation(target_offset=(0.25,)),
        accumulation(target_offset=(0.5,), fixed_point=True),
        accumulation(target_offset=(0.5,), seed=1),
        replace(state, tile_folds=HashFolds(3)),
        replace(state, tile_folds=HashFolds(4)),
        first,
        (first, np.zeros(2)),
        (first, np.zeros(2, np.float32)),
        (first, np.zeros((2, 1))),
        (first, np.array([0.0, 5e-324])),
        ("ab", "c"),
        ("a", "bc"),
        (("a",), "bc"),
        (1, 2),
        (1.0, 2),
        {"a": 1},
        {"a": True},
    ]
    passes += [(TASK, BLOCKS, other) for other in states]
    names = [name_pass(*arguments, operator.add) for arguments in passes]
    names.append(name_pass(TASK, BLOCKS, state, np.maximum))
    assert None not in names
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("task", "state"),
    [
        (TASK, lambda: None),
        (TASK, object()),
        (replace(TASK, compute=lambda rows, state: 0), None),
        (replace(TASK, source=Stored(ROWS.X, name=None)), None),
    ],
)
def test_what_does_not_say_what_it_is_made_of_has_no_name(task, state):
    assert name_pass(task, BLOCKS, state, operator.add) is None


# -- what is kept
# ----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=6),
    st.integers(0, 11),
)
def test_the_parts_of_a_pass_cover_each_block_once(spans, start):
    ledger = InMemory()
    ledger.sums = {("pass", range(*span)): None for span in spans if span[0] < span[1]}
    runs = PassLedger(ledger, "pass").cut(range(start, 12))
    assert [i for run in runs for i in run.positions] == list(range(start, 12))
    kept = [run for run in runs if run.is_kept]
    assert all(("pass", run.positions) in ledger.sums for run in kept)


def resumed(ledger, blocks=BLOCKS):
    events = []
    engine = SerialEngine(1, observers=(events.append,))
    with engine.keeping(ledger):
        total = engine.map_reduce(TASK, blocks, 2.0)
    return total.tolist(), events


@given(st.sets(st.integers(0, 11)))
def test_what_is_kept_and_what_is_summed_up_make_the_whole(kept):
    name = name_pass(TASK, BLOCKS, 2.0, operator.add)
    assert name is not None
    ledger = InMemory(cost=np.inf)
    for i in kept:
        ledger.sums[name, range(i, i + 1)] = np.where(np.arange(12) == i, 2.0, 0.0)
    total, events = resumed(ledger)
    assert total == [2.0] * 12
    again = [
        e.block.index
        for e in events
        if isinstance(e, BlockDone) and e.seconds == e.seconds
    ]
    assert again == [i for i in range(12) if i not in kept]
    assert [e.n_kept for e in events if isinstance(e, PassResumed)] == (
        [10 * len(kept)] if kept else []
    )


def test_one_process_keeps_the_sums_of_all_blocks_and_tells_of_each_block_once():
    ledger = InMemory()
    assert resumed(ledger)[0] == [2.0] * 12
    [(_, span)] = ledger.sums
    assert span == range(12)
    _, events = resumed(ledger)
    indices = [event.block.index for event in events if isinstance(event, BlockDone)]
    assert sorted(indices) == list(span)


def test_kept_sums_do_not_change_with_the_total_that_goes_on_from_them():
    ledger = InMemory()
    resumed(ledger)
    [key] = ledger.sums
    ledger.sums = {(key[0], range(6)): np.repeat([2.0, 0.0], 6)}
    before = ledger.sums[key[0], range(6)]
    ledger.cost = np.inf
    assert resumed(ledger)[0] == [2.0] * 12
    assert before.tolist() == [2.0] * 6 + [0.0] * 6


def test_without_a_ledger_nothing_is_named(monkeypatch):
    monkeypatch.setattr(kept_module, "name_pass", pytest.fail)
    assert SerialEngine(1).map_reduce(TASK, BLOCKS, 2.0).tolist() == [2.0] * 12


def kept_in(monkeypatch, n_blocks, cost):
    """Return when sums were kept, and of how many blocks, in a pass whose blocks take a
    second each.
    """
    now = 0.0
    kept = []
    monkeypatch.setattr(kept_module.time, "perf_counter", lambda: now)

    class Timed(InMemory):
        def put(self, name, span, total):
            nonlocal now
            kept.append((now, span.stop))
            now += self.cost

    keeper = Keeper(PassLedger(Timed(cost), "pass"), 0)
    for i in range(n_blocks):
        now += 1.0
        keeper.note(i + 1, None, is_last=i == n_blocks - 1)
    return kept


def test_sums_are_kept_for_three_hundredths_of_the_time(monkeypatch):
    kept = kept_in(monkeypatch, 100, 0.1)
    assert len(kept) * 0.1 <= 0.03 * kept[-1][0]
    assert len(kept) >= 15
    assert max(np.diff([0, *(n_blocks for _, n_blocks in kept)])) <= 7


def test_work_is_kept_every_two_minutes_at_the_latest_where_that_is_cheap(monkeypatch):
    times = [now for now, _ in kept_in(monkeypatch, 36_000, 0.1)]
    assert np.diff([0, *times]).max() <= 121 + 0.1


def test_runs_on_workers_leave_no_more_than_was_planned():
    assert most_kept(1, 1, are_separate=False) == 1
    assert most_kept(10_000, 1, are_separate=False) == 2
    assert most_kept(100_000, 2, are_separate=True) < 130
