"""Folds for cross-validation: which rows are held out together.

Row numbers or groups go in; the number of each row's fold comes out. scikit-learn's
`KFold` would need a shuffled copy of all rows. Here any process can assign the rows of
a block, and the folds are the same on any cluster.
"""

import hashlib
import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.typing import (
    AnyArray,
    BoolArray,
    EqualByFields,
    Facts,
    FloatArray,
    IntArray,
    Summary,
)

MAX_FOLDS = 1000
# In data with more than `MANY_ROWS`, random rows may all lie in different chunks. There
# a sample is `STRETCHES` stretches of consecutive rows.
MANY_ROWS = 2**18
STRETCHES = 256
# SplitMix64's increment: 2**64 over the golden ratio, and odd
_GOLDEN = 0x9E3779B97F4A7C15
# A group in a table takes 10 bytes. More groups are distributed evenly enough by
# hashes.
MAX_BALANCED_GROUPS = 2**16


@dataclass(frozen=True)
class Folds(ABC):
    """Assigns each row to one of `n_folds` folds; this never depends on the cluster."""

    #: At least 2.
    n_folds: int = 5

    words: ClassVar[str]  # how rows are distributed, for messages and pages

    def __post_init__(self) -> None:
        n_folds: Any = self.n_folds
        is_int = isinstance(n_folds, int | np.integer) and not isinstance(n_folds, bool)
        if not is_int or not 2 <= n_folds <= MAX_FOLDS:
            raise InvalidParameterError(
                f"`n_folds` is {n_folds!r}; expected an integer in [2, {MAX_FOLDS}]"
            )

    @abstractmethod
    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        """Return the fold of each of the rows `start:stop` of a dataset of `n_samples`
        rows.

        `groups` are the groups of the rows: an int, bool or str array of shape (stop -
        start,), or None.

        Raises DataError if these folds need groups and there are none, or if a group is
        not the number of a fold (`PredefinedFolds`).
        """

    @property
    def may_lack_rows(self) -> bool:
        """Whether a fold may have no rows. Then it is not validated on; for other folds
        that is an error.
        """
        return False

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        """Each split: the folds to train on, and the one to validate on."""
        every = range(self.n_folds)
        return [
            (tuple(f for f in every if f != held_out), held_out) for held_out in every
        ]


@dataclass(frozen=True)
class HashFolds(Folds):
    """scikit-learn's shuffled `KFold`, by hashes: each `n_folds` consecutive rows go to
    different folds, in a pseudo-random order.

    They are the same on every machine, and appended rows do not change them.

    Attributes
    ----------
    n_folds : int
        At least 2. Folds differ in size by at most one row.
    seed : int
        Another seed gives other folds.

    Examples
    --------
    >>> HashFolds(n_folds=3).assign(0, 6, n_samples=6, groups=None).tolist()
    [0, 1, 2, 0, 1, 2]
    """

    seed: int = 0

    words = "by a hash of the row"

    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        # Rows are dealt like cards: a hand is `n_folds` consecutive rows, and each fold
        # gets one of them.
        first = start // self.n_folds
        last = -(-stop // self.n_folds)
        rows = np.arange(first * self.n_folds, last * self.n_folds, dtype=np.uint64)
        hands = _mix(rows, self.seed).reshape(-1, self.n_folds)
        # The order of the hashes is a random permutation of each hand: in hand i, row
        # order[i, k] goes to fold k.
        order = np.argsort(hands, axis=1, kind="stable")
        fold_of_row = np.empty(order.shape, np.int64)
        folds = np.arange(self.n_folds)[np.newaxis]
        np.put_along_axis(fold_of_row, order, folds, axis=1)
        offset = first * self.n_folds
        return fold_of_row.ravel()[start - offset : stop - offset]


@dataclass(frozen=True, eq=False)
class GroupTable(EqualByFields):
    """The fold of each group."""

    #: The groups as numbers or hashes, ascending; shape (n_groups,).
    keys: NDArray[np.uint64]
    #: Shape (n_groups,).
    folds: NDArray[np.int16]


@dataclass(frozen=True)
class GroupFolds(Folds):
    """Like `sklearn.model_selection.GroupKFold`: rows of one group (patient, site) are
    held out together.

    Passes over a dataset first count the rows of its groups. Up to 65,536 groups are
    then distributed by size, so that folds are as even as groups allow. With more
    groups, or for a group that was not counted, a hash of the group gives its fold.

    Attributes
    ----------
    n_folds : int
        At least 2.
    seed : int
        Another seed gives other folds.
    table : GroupTable or None
        The fold of each group that was counted; see `balanced`. It belongs to one
        dataset and is not stored in models' cards.
    is_default : bool
        Whether the number of folds was left open: data with fewer groups then have a
        fold for each group.

    References
    ----------
    Graham (1969): largest group first, each to the fold with the fewest rows, as
    scikit-learn's `GroupKFold`.
    """

    seed: int = 0
    # `folds_to_dict` leaves these out by their repr
    table: GroupTable | None = field(default=None, repr=False)
    is_default: bool = field(default=False, repr=False)

    words = "by group"

    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        if groups is None:
            raise DataError(
                "the data have no groups to cut folds by; name their array, or give"
                " `groups`"
            )
        values, inverse = np.unique(np.asarray(groups), return_inverse=True)
        keys = _keys(values)
        fold_of_group = _numbers_below(np.uint64(self.n_folds), _mix(keys, self.seed))
        if self.table is not None:
            places = np.searchsorted(self.table.keys, keys)
            # A key beyond the last one gets the last place, where the keys differ.
            places = np.minimum(places, len(self.table.keys) - 1)
            is_counted = self.table.keys[places] == keys
            fold_of_group = np.where(
                is_counted, self.table.folds[places], fold_of_group
            )
        return fold_of_group[inverse]

    def balanced(self, groups: AnyArray, n_rows: IntArray) -> Self:
        """Return the same folds, with groups distributed by size.

        Parameters
        ----------
        groups : int, bool or str array of shape (n_groups,)
            Each group once.
        n_rows : int array of shape (n_groups,)
            Rows of each group.

        Raises
        ------
        DataError
            If there is one group, or fewer than the requested folds.
        """
        if len(groups) < 2:
            raise DataError(
                "all rows with weight belong to one group, which cannot be held out;"
                " leave `groups` out"
            )
        if len(groups) < self.n_folds and self.is_default:
            return replace(self, n_folds=len(groups)).balanced(groups, n_rows)
        if len(groups) < self.n_folds:
            raise DataError(
                f"the data have {len(groups)} groups of rows with weight, but {self}"
                f" needs a group or more for each fold; use at most {len(groups)} folds"
            )
        # By hashes alone, 46 % of data sets with 10 groups had an empty fold of 5.
        keys = _keys(groups)
        fold_of_group = np.empty(len(keys), np.int16)
        # a heap, whose first entry is the fold with the fewest rows
        rows_of_folds = [(0, fold) for fold in range(self.n_folds)]
        # By size, then by hash (lexsort's last key comes first), so that the order of
        # the groups in the data does not matter.
        for group in np.lexsort((keys, _mix(keys, self.seed), -n_rows)):
            rows, fold = rows_of_folds[0]
            fold_of_group[group] = fold
            heapq.heapreplace(rows_of_folds, (rows + int(n_rows[group]), fold))
        order = np.argsort(keys)
        return replace(self, table=GroupTable(keys[order], fold_of_group[order]))


def _keys(groups: AnyArray) -> NDArray[np.uint64]:
    """Return integers as they are, and texts as hashes."""
    if groups.dtype.kind in "biu":
        # negative integers wrap around; keys only need to be distinct
        return groups.astype(np.int64).view(np.uint64)
    digests = [
        hashlib.blake2b(str(group).encode(), digest_size=8).digest() for group in groups
    ]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


@dataclass(frozen=True)
class TimeFolds(Folds):
    """`sklearn.model_selection.TimeSeriesSplit(n_folds - 1)`, if `n_folds` divides the
    number of rows.

    Folds are contiguous, and each is validated on after training on those before it. If
    their number does not divide the rows, their sizes differ by at most one, whereas
    scikit-learn's first fold takes the remaining rows. The first fold is only trained
    on, so `n_folds` folds give `n_folds` - 1 splits.

    Attributes
    ----------
    n_folds : int
        At least 2.
    """

    words = "in the order of time"

    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        return np.asarray(
            np.arange(start, stop, dtype=np.int64) * self.n_folds // max(1, n_samples)
        )

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        return [
            (tuple(range(held_out)), held_out) for held_out in range(1, self.n_folds)
        ]


@dataclass(frozen=True)
class PredefinedFolds(Folds):
    """`sklearn.model_selection.PredefinedSplit`: each row's group is the number of its
    fold.

    Attributes
    ----------
    n_folds : int
        Groups are 0 to `n_folds` - 1.
    """

    words = "as given"

    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        if groups is None:
            raise DataError(
                "the data have no fold numbers; name their array, or give them as"
                " `groups`"
            )
        folds = np.asarray(groups)
        wrong = ~np.isin(folds, np.arange(self.n_folds))
        if wrong.any():
            row = int(np.argmax(wrong))
            last = self.n_folds - 1
            raise DataError(
                f"the fold of row {start + row:_} is {folds[row]!r}; expected one from"
                f" 0 to {last}"
            )
        return folds.astype(np.int64)


@dataclass(frozen=True)
class DatedFolds(PredefinedFolds):
    """Like `TimeFolds`, for rows in any order: each row's group is the number of its
    fold, the earliest is 0.

    Attributes
    ----------
    n_folds : int
        Groups are 0 to `n_folds` - 1.
    """

    words = TimeFolds.words

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        return TimeFolds(self.n_folds).splits


def first_values(values: FloatArray, n_folds: int) -> FloatArray:
    """Cut ascending values into folds with equally many; return the first value of each
    fold except fold 0.
    """
    return values[-(-np.arange(1, n_folds) * len(values) // n_folds)]


# On noise with 20 columns and 60 rows, the folds' R² was 0.35 too high when folds
# validated on tuning rows; now it is 0.02.
@dataclass(frozen=True)
class TuningFolds(Folds):
    """Folds with some rows for tuning: length scales are tuned on them, every split
    trains on them, and none validates on them.

    Length scales that were tuned on a row predict that row too well, so its error says
    little about new rows. `with_tuning_rows` makes these folds.

    The tuning rows are the last fold, in addition to the folds of `base`; or they are
    the first fold of `base`, if `n_stretches` is 0.
    """

    #: The folds of all other rows.
    base: Folds = HashFolds()
    #: The first `n_samples` rows are cut into `n_stretches` equal parts. In each part
    #: `width` consecutive rows, from a random one on, are for tuning. Rows that are
    #: appended later are not.
    n_samples: int = 0
    n_stretches: int = 0
    width: int = 0
    seed: int = 0

    def assign(
        self, start: int, stop: int, *, n_samples: int, groups: AnyArray | None
    ) -> IntArray:
        folds = self.base.assign(start, stop, n_samples=n_samples, groups=groups)
        if not self.n_stretches:
            return folds
        rows = np.arange(start, stop, dtype=np.int64)
        inside = np.minimum(rows, self.n_samples - 1)
        # A row is in the last part that begins at it or before. Part p begins at row
        # p · n_samples // n_stretches.
        parts = ((inside + 1) * self.n_stretches - 1) // self.n_samples
        first = self.stretch_starts(parts)
        is_tuning = (rows >= first) & (rows < first + self.width)
        is_tuning &= rows < self.n_samples
        return np.where(is_tuning, self.n_folds - 1, folds)

    def stretch_starts(self, parts: IntArray) -> IntArray:
        """Return the first tuning row of each of these parts."""
        begin = parts * self.n_samples // self.n_stretches
        end = (parts + 1) * self.n_samples // self.n_stretches
        room = (end - begin - self.width + 1).astype(np.uint64)
        # Not the folds' seed: with it, the place of a stretch and the folds of its rows
        # would depend on each other.
        return begin + _numbers_below(
            room, _mix(parts.astype(np.uint64), self.seed + 1)
        )

    @property
    def may_lack_rows(self) -> bool:
        """True if tuning rows are random: a fold may lose all its rows to them."""
        return self.n_stretches > 0

    @property
    def _tuning_fold(self) -> int:
        return self.n_folds - 1 if self.n_stretches else 0

    def is_tuning(self, fold_of_row: IntArray) -> BoolArray:
        """Return which rows are for tuning, from the fold of each row."""
        return np.asarray(fold_of_row == self._tuning_fold)

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        if not self.n_stretches:
            return [split for split in self.base.splits if split[1] != 0]
        return [
            ((*trained, self._tuning_fold), held_out)
            for trained, held_out in self.base.splits
        ]


@dataclass(frozen=True)
class SampledFolds(PredefinedFolds):
    """Folds of a sample of rows, with the same splits as those of all rows.

    The group of a sampled row is the number of its fold in `whole`.
    """

    whole: Folds = HashFolds()

    # no row of a fold may be in the sample, which leaves out rows without weight
    may_lack_rows = True

    @property
    def splits(self) -> list[tuple[tuple[int, ...], int]]:
        return self.whole.splits


def with_tuning_rows(folds: Folds, n_samples: int, n_tuning: int) -> TuningFolds:
    """Return folds with some rows on which length scales can be tuned.

    With folds by hash they are about `n_tuning` random rows, at most half of all rows.
    With folds by groups, times and given ones they are the first fold, so that no group
    or time is both tuned and validated on.
    """
    if isinstance(folds, TuningFolds):
        return folds
    if not isinstance(folds, HashFolds):
        return TuningFolds(folds.n_folds, folds)
    # Half of the rows tuned length scales as well as all rows did (on airfoil, concrete
    # and energy).
    wanted = max(1, min(n_tuning, n_samples // 2))
    n_stretches = wanted if n_samples <= MANY_ROWS else STRETCHES
    width = -(-wanted // n_stretches)
    return TuningFolds(
        folds.n_folds + 1, folds, n_samples, n_stretches, width, folds.seed
    )


def without_tuning_rows(folds: Folds) -> Folds:
    """Return the folds to which `with_tuning_rows` added tuning rows, or `folds`."""
    return folds.base if isinstance(folds, TuningFolds) else folds


# classes by their names in stored models
_KINDS: dict[str, type[Folds]] = {
    kind.__name__: kind
    for kind in (
        HashFolds,
        GroupFolds,
        TimeFolds,
        DatedFolds,
        PredefinedFolds,
        TuningFolds,
    )
}


def folds_to_dict(folds: Folds) -> Summary:
    """Return folds as JSON values for `folds_from_dict`, without a table of groups."""
    facts: Summary = {"kind": type(folds).__name__}
    for member in fields(folds):
        if member.repr:
            facts[member.name] = getattr(folds, member.name)
    if isinstance(folds, TuningFolds):
        facts["base"] = folds_to_dict(folds.base)
    return facts


def folds_words(facts: Facts) -> str:
    """Return the facts of `folds_to_dict` in words for people."""
    if "base" in facts:
        return f"{folds_words(facts['base'])}, excluding rows used for tuning"
    return f"{facts['n_folds']} folds {_KINDS[facts['kind']].words}"


def folds_from_dict(facts: Facts) -> Folds:
    """Return folds from `folds_to_dict`; raises InvalidParameterError if unknown."""
    values = dict(facts)
    name = values.pop("kind")
    if name not in _KINDS:
        raise InvalidParameterError(
            f"unknown folds {name!r}; expected one of {sorted(_KINDS)}"
        )
    if "base" in values:
        values["base"] = folds_from_dict(values["base"])
    return _KINDS[name](**values)


def find_folds(cv: int | Folds) -> Folds:
    """Return folds as they are, and `HashFolds` for a number of folds.

    Raises InvalidParameterError for other values.
    """
    if isinstance(cv, Folds):
        return cv
    if isinstance(cv, bool) or not isinstance(cv, int | np.integer):
        raise InvalidParameterError(
            f"`cv` is {cv!r}; expected a number of folds, HashFolds(…), GroupFolds(…)"
            " or TimeFolds(…)"
        )
    return HashFolds(int(cv))


def _mix(keys: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Return pseudo-random numbers of keys, by SplitMix64 (Steele, Lea & Flood 2014,
    fig. 17).

    The seed is mixed first, and the stream starts there. Streams that started at the
    seeds themselves would be shifted copies of each other.
    """
    start = _mix_bits(np.array([(2 * seed + 1) * _GOLDEN % 2**64], np.uint64))
    return _mix_bits(keys * np.uint64(_GOLDEN) + start)


def _mix_bits(mixed: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Stafford's thirteenth mixer: each bit of the result depends on all bits
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _numbers_below(
    limits: NDArray[np.uint64] | np.uint64, hashes: NDArray[np.uint64]
) -> IntArray:
    """Turn hashes into numbers from 0 to limit - 1; limits are below 2**32."""
    # A product and a shift instead of a remainder (Lemire 2019, Sec. 3), with a bias
    # below limit / 2**32.
    return ((hashes >> np.uint64(32)) * limits >> np.uint64(32)).astype(np.int64)
