import functools
import hashlib
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GroupKFold

from rff_dist import Gaussian, Laplacian, Linear, SerialEngine, draw_feature_map
from rff_dist.data.blocks import Block, BlockTask, Rows, cut_blocks
from rff_dist.data.folding import (
    GroupFolds,
    HashFolds,
    PredefinedFolds,
    TimeFolds,
    find_folds,
    folds_from_dict,
    folds_to_dict,
    with_tuning_rows,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, InvalidParameterError, StatisticsError
from rff_dist.features.draw import shortened
from rff_dist.numerics.exact_sums import as_runs, expand
from rff_dist.statistics.accumulate import (
    Accumulations,
    accumulate_fold_rows,
    accumulate_rows,
    add_fold_rows,
)
from rff_dist.statistics.fold_statistics import FoldStatistics
from rff_dist.statistics.specs import FINE_FRACTION_BITS
from tests import small_statistics
from tests.refusals import each, for_each_refusal, once, refuses
from tests.small_statistics import part, random_rows

accumulation = functools.partial(
    small_statistics.accumulation, fraction_bits=FINE_FRACTION_BITS
)


@pytest.mark.parametrize("folds", [HashFolds(4), HashFolds(4, seed=7), TimeFolds(4)])
@given(cuts=st.lists(st.integers(0, 1000), max_size=6))
def test_a_row_is_in_the_same_fold_however_blocks_are_cut(folds, cuts):
    whole = folds.assign(0, 1000, n_samples=1000, groups=None)
    edges = sorted({0, 1000, *cuts})
    pieces = [
        folds.assign(a, b, n_samples=1000, groups=None)
        for a, b in itertools.pairwise(edges)
    ]
    assert_array_equal(np.concatenate(pieces), whole)
    assert set(whole) == set(range(4))


@given(
    n_samples=st.integers(2, 500),
    n_folds=st.integers(2, 40),
    seed=st.integers(0, 2**63 - 1),
)
def test_hash_folds_differ_by_at_most_a_row_and_keep_their_rows_when_more_come(
    n_samples, n_folds, seed
):
    folds = HashFolds(n_folds, seed)
    fold = folds.assign(0, n_samples, n_samples=n_samples, groups=None)
    sizes = np.bincount(fold, minlength=n_folds)
    assert sizes.max() - sizes.min() <= 1
    more = folds.assign(0, 2 * n_samples, n_samples=2 * n_samples, groups=None)
    assert_array_equal(more[:n_samples], fold)


def split_mix(key, seed):
    """SplitMix64 in Python's own integers: the `key`-th output of a stream that starts
    at the mixed seed.
    """
    golden = 0x9E3779B97F4A7C15
    mask = 2**64 - 1

    def finished(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    return finished((key * golden + finished((2 * seed + 1) * golden & mask)) & mask)


@given(
    start=st.integers(0, 2**40),
    seed=st.integers(0, 2**63 - 1),
    n_folds=st.integers(2, 1000),
)
def test_hash_folds_are_ranks_of_split_mix(start, seed, n_folds):
    """They must never change: a stored model names its folds by these numbers."""
    found = HashFolds(n_folds, seed).assign(
        start, start + 3, n_samples=start + 3, groups=None
    )
    hand = {
        row: range(row - row % n_folds, row - row % n_folds + n_folds)
        for row in range(start, start + 3)
    }
    expected = [
        sum(split_mix(other, seed) < split_mix(row, seed) for other in hand[row])
        for row in hand
    ]
    assert found.tolist() == expected


def test_group_folds_are_split_mix_of_the_number_or_of_the_text_s_hash():
    digest = int.from_bytes(
        hashlib.blake2b("ü".encode(), digest_size=8).digest(), "little"
    )
    text = GroupFolds(5, seed=2).assign(0, 1, n_samples=1, groups=np.array(["ü"]))
    assert text.tolist() == [(split_mix(digest, 2) >> 32) * 5 >> 32]
    number = GroupFolds(5).assign(0, 1, n_samples=1, groups=np.array([-3], np.int8))
    assert number.tolist() == [(split_mix(2**64 - 3, 0) >> 32) * 5 >> 32]


def test_text_of_any_storage_and_integers_of_any_width_are_the_same_groups():
    words = ["a", "bb", "a"]
    kinds = [
        np.array(words),
        np.array(words, object),
        np.array(words, np.dtypes.StringDType()),
    ]
    first, *others = (
        GroupFolds(97).assign(0, 3, n_samples=3, groups=kind).tolist() for kind in kinds
    )
    assert all(other == first for other in others)
    numbers = [
        np.array([3, 200, 3], kind)
        for kind in (np.uint8, np.int16, np.int64, np.uint64)
    ]
    first, *others = (
        GroupFolds(97).assign(0, 3, n_samples=3, groups=kind).tolist()
        for kind in numbers
    )
    assert all(other == first for other in others)


def test_time_folds_are_contiguous_and_validated_forward():
    folds = TimeFolds(4)
    fold = folds.assign(0, 10, n_samples=10, groups=None)
    assert (np.diff(fold) >= 0).all()
    assert folds.splits == [((0,), 1), ((0, 1), 2), ((0, 1, 2), 3)]
    assert HashFolds(3).splits == [((1, 2), 0), ((0, 2), 1), ((0, 1), 2)]


@pytest.mark.parametrize(
    "folds",
    [
        HashFolds(3, 7),
        GroupFolds(4),
        TimeFolds(9),
        PredefinedFolds(2),
        with_tuning_rows(HashFolds(3, 7), 1000, 100),
        with_tuning_rows(TimeFolds(9), 1000, 100),
    ],
)
def test_folds_are_rebuilt_from_their_facts(folds):
    facts = json.loads(json.dumps(folds_to_dict(folds)))
    assert folds_from_dict(facts) == folds
    with refuses(InvalidParameterError, "'Others'"):
        folds_from_dict({**facts, "kind": "Others"})


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=3, max_size=40), seed=st.integers(0, 5)
)
def test_balanced_folds_of_groups_are_as_even_as_scikit_learn_s(sizes, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    np.random.default_rng(seed).shuffle(groups)
    names, n_rows = np.unique(groups, return_counts=True)
    folds = GroupFolds(3, seed).balanced(names, n_rows)
    found = np.bincount(
        folds.assign(0, len(groups), n_samples=len(groups), groups=groups), minlength=3
    )
    splits = GroupKFold(3).split(groups, groups=groups)
    assert sorted(found) == sorted(len(test) for _, test in splits)


@pytest.mark.parametrize("folds", [HashFolds(3), TimeFolds(3), GroupFolds(3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_each_fold_has_the_statistics_of_its_own_rows(folds, weighted):
    rows = random_rows(400, weights=2 * weighted)
    rows = replace(rows, groups=np.arange(400) % 17)
    feature_map = draw_feature_map(
        "gaussian", n_features=3, n_components=64, random_state=0
    )
    state = accumulation(feature_map, weight_exponent=1)
    (parts,) = accumulate_fold_rows(rows, Accumulations((state,), folds, 400))
    found = FoldStatistics(folds, parts)
    fold = folds.assign(0, 400, n_samples=400, groups=rows.groups)
    for i in range(3):
        assert found.fold(i) == accumulate_rows(part(rows, fold == i), state)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_sum_of_folds_is_the_statistics_of_all_rows_to_rounding(n_threads):
    rng = np.random.default_rng(1)
    dataset = ArrayDataset(
        rng.standard_normal((30_000, 3)), rng.standard_normal((30_000, 2))
    )
    maps = [
        draw_feature_map(
            kernel, n_features=3, n_components=96, design="iid", random_state=1
        )
        for kernel in (Gaussian(1.0), Laplacian(2.0))
    ]
    members = tuple(map(accumulation, maps))
    folds = HashFolds(4)
    first, second = SerialEngine(n_threads).map_reduce(
        BlockTask(dataset, accumulate_fold_rows),
        cut_blocks(30_000, 1000, rows_per_block=7000),
        Accumulations(members, folds, 30_000),
        combine=add_fold_rows,
    )
    for parts, feature_map in ((first, maps[0]), (second, maps[1])):
        found = FoldStatistics(folds, parts)
        whole = found.total()
        assert whole.n_samples == 30_000 == found.n_samples
        Z = feature_map.transform(dataset.X)
        assert_allclose(whole.ZtZ(), Z.T @ Z, rtol=1e-12, atol=1e-10)
        assert_allclose(whole.Zty(), Z.T @ dataset.y, rtol=1e-9, atol=1e-10)
        for training, held_out in folds.splits:
            assert whole - found.fold(held_out) == found.sum(training)


def test_blocks_of_contiguous_folds_hold_only_their_own():
    rows = replace(random_rows(100), block=Block(2, 200, 300))
    feature_map = draw_feature_map(
        "gaussian", n_features=3, n_components=16, random_state=0
    )
    state = Accumulations((accumulation(feature_map),), TimeFolds(10), 1000)
    (parts,) = accumulate_fold_rows(rows, state)
    found = FoldStatistics(TimeFolds(10), parts)
    assert [i for i, part in enumerate(found.parts) if part is not None] == [2]
    assert add_fold_rows((parts,), (parts,))[0][0] is None
    with refuses(StatisticsError, "fold 0"):
        found.fold(0)
    assert found.sum([0, 1, 2]).n_samples == 100
    with refuses(StatisticsError, "no rows"):
        found.sum([0, 1])


# -- rows that are held in
# -------------------------------------------------------------------------


@st.composite
def held_in_folds(draw):
    n_samples = draw(st.integers(10, 3000))
    seed = draw(st.integers(0, 2**32))
    wanted = draw(st.integers(1, 4000))
    return (
        with_tuning_rows(HashFolds(draw(st.integers(2, 6)), seed), n_samples, wanted),
        n_samples,
        wanted,
    )


@given(case=held_in_folds(), cuts=st.lists(st.integers(0, 3000), max_size=5))
def test_rows_held_in_are_as_many_as_wanted_however_blocks_are_cut(case, cuts):
    folds, n_samples, wanted = case
    whole = folds.assign(0, n_samples, n_samples=n_samples, groups=None)
    held_in = folds.is_tuning(whole)
    assert held_in.sum() == min(wanted, n_samples // 2)
    # the other rows are in their own fold
    base = folds.base.assign(0, n_samples, n_samples=n_samples, groups=None)
    assert_array_equal(whole[~held_in], base[~held_in])
    assert (whole[held_in] == folds.n_folds - 1).all()
    edges = sorted({0, n_samples, *(cut for cut in cuts if cut < n_samples)})
    pieces = [
        folds.assign(a, b, n_samples=n_samples, groups=None)
        for a, b in itertools.pairwise(edges)
    ]
    assert_array_equal(np.concatenate(pieces), whole)


@given(case=held_in_folds(), added=st.integers(1, 500))
def test_rows_that_are_appended_later_are_not_held_in_and_move_no_other(case, added):
    folds, n_samples, _ = case
    before = folds.assign(0, n_samples, n_samples=n_samples, groups=None)
    after = folds.assign(0, n_samples + added, n_samples=n_samples + added, groups=None)
    assert_array_equal(after[:n_samples], before)
    assert not folds.is_tuning(after[n_samples:]).any()


@given(
    base=st.sampled_from(
        [HashFolds(3), HashFolds(5, 9), TimeFolds(4), GroupFolds(3), PredefinedFolds(4)]
    ),
    n_samples=st.integers(20, 400),
)
def test_rows_held_in_are_trained_on_in_every_split_that_uses_their_time_and_never_validated_on(
    base, n_samples
):
    folds = with_tuning_rows(base, n_samples, 10)
    held_in = {f for f in range(folds.n_folds) if folds.is_tuning(np.array([f]))[0]}
    assert len(held_in) == 1
    assert folds.splits
    for trained, validated in folds.splits:
        assert validated not in held_in
        assert held_in <= set(trained)
        assert validated not in trained
        # folds by time train only on earlier rows
        assert not isinstance(base, TimeFolds) or max(trained) < validated


@pytest.mark.parametrize("base", [TimeFolds(4), GroupFolds(4), PredefinedFolds(4)])
def test_of_times_and_groups_the_first_fold_is_held_in(base):
    groups = np.arange(100) % 4
    folds = with_tuning_rows(base, 100, 10)
    fold_of_row = folds.assign(0, 100, n_samples=100, groups=groups)
    assert_array_equal(fold_of_row, base.assign(0, 100, n_samples=100, groups=groups))
    assert_array_equal(folds.is_tuning(fold_of_row), fold_of_row == 0)
    assert folds.n_folds == 4


# -- leading components
# ----------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(leading=st.integers(1, 1100), seed=st.integers(0, 3))
def test_leading_tiles_are_the_leading_block(leading, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((20, 2))
    feature_map = draw_feature_map(
        "gaussian", n_features=2, n_components=1100, map="phases", random_state=seed
    )
    rows = Rows(Block(0, 0, 20), X, rng.standard_normal((20, 1)))
    statistics = accumulate_rows(rows, accumulation(feature_map, 1))
    scales = as_runs(expand(feature_map.scales)[:leading])
    of_leading = SimpleNamespace(
        n_components=leading, digest=lambda: "x", scales=scales
    )
    found = statistics.leading(of_leading)
    assert_array_equal(found.ZtZ(), statistics.ZtZ()[:leading, :leading])
    assert_array_equal(found.Zty(), statistics.Zty()[:leading])
    assert (found.spec.n_components, found.spec.feature_digest) == (leading, "x")
    assert (found.n_samples, found.targets) == (20, statistics.targets)
    assert found - found == found.empty(found.spec)


# -- what is refused
# -------------------------------------------------------------------------------


def balanced(n_groups):
    return GroupFolds(4).balanced(np.arange(n_groups), np.ones(n_groups, np.int64))


def assigned(groups):
    return PredefinedFolds(3).assign(5, 9, n_samples=9, groups=groups)


SMALL = draw_feature_map("gaussian", n_features=3, n_components=8, random_state=0)
SUM = draw_feature_map(
    Gaussian(1.0) + Linear(), n_features=3, n_components=32, random_state=0
)


@for_each_refusal(
    each(HashFolds, [1, 0, -3, 2.5, True, "5", 1001], "n_folds"),
    once(lambda: find_folds("five"), "TimeFolds"),
    once(lambda: balanced(3), "3 groups", "3 folds", error=DataError),
    once(
        lambda: balanced(1), "all rows with weight belong to one group", error=DataError
    ),
    once(
        lambda: GroupFolds(2).assign(0, 3, n_samples=3, groups=None),
        "no groups",
        error=DataError,
    ),
    once(lambda: assigned(np.array([2, 0, 3, 1])), "row 7", "0", "2", error=DataError),
    once(lambda: assigned(None), "no fold numbers", error=DataError),
    once(
        lambda: accumulate_rows(random_rows(9), accumulation(SMALL)).leading(
            SimpleNamespace(n_components=10)
        ),
        "10",
        error=StatisticsError,
    ),
    once(lambda: shortened(SMALL, 10), "10"),
    once(lambda: shortened(SUM, 16), "no smaller"),
)
def test_what_cannot_be_is_refused_by_name(call, error, names):
    with refuses(error, *names):
        call()


def test_all_of_the_components_are_the_map_itself():
    assert shortened(SMALL, 8) is SMALL
