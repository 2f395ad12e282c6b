"""Lloyd passes of one run that know of each other: rows whose nearest centre cannot have changed are skipped.

What a process remembers of a block is each row's nearest centre, how far away it is, and how much farther
the others are (its margins, by groups of centres), with the block's sums. When the centres have
moved, the caller knows how much of a margin that can have taken at most. A row that still has a margin beyond
the scores' rounding has the label that a whole pass would give it, so its features are not made; the others
are gathered, and those that change clusters are taken from one sum and added to another. Sums are integers:
the bits are those of whole passes. A block whose rows are all certain is not read.

For a row z, its centre a, another centre j and their moves Δ since the margin was measured,

    ‖z − j‖² − ‖z − a‖² changes by −2(z − a)'(Δ_j − Δ_a) + 2(j − a)'Δ_j + ‖Δ_j‖² − ‖Δ_a‖²,

and the first term is at most 2‖z − a‖·‖Δ_j − Δ_a‖. The rest is exact, and the bound is of the pair of centres
where the triangle inequality adds up the moves of both.

References
----------
Elkan (2003) and Hamerly (2010) on bounds; Ding, Zhao, Shen, Musuvathi & Mytkowicz (2015), groups of centres;
Newling & Fleuret (2016), Fast k-means with accurate bounds: moves since a row was last looked at.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.data.blocks import Block, BlockFunction, Dataset, Rows
from rff_dist.engines import block_memory
from rff_dist.kmeans.cluster_sums import Centres, ClusterSums, visit_tiles
from rff_dist.kmeans.lloyd_pass import Addition, Scorer, Tally, scorer_of, sum_clusters
from rff_dist.numerics.threads import even_height, share_out, using_threads
from rff_dist.typing import FloatArray

__all__ = ["Course", "LloydState", "LloydTask", "Past", "sum_remembered"]


_MAX_GROUPS = 16  # of 100 centres, say; more skip a few rows more and take two bytes a row each
_MAX_WINDOW = 24  # passes; what moves take from margins older than that is taken off for good
_WINDOW_ROWS = 160  # rows a centre and pass of the window: comparing centres then takes some 2 % of a pass
_TABLE_SIZE = 2**21  # numbers of a table, which travels with the state
_LARGEST_CODE = int(np.iinfo(np.uint16).max)  # of a margin, whose type it is
_RADIUS = 4.0  # of the root mean square of a cluster's distances; rows beyond are always looked at
_ROUNDING = 1e-12  # of centres' products in float64, relative
_KEPT_ROWS = 2048  # of a tile of features that were kept
_NEVER = -1e30
_UNKNOWN = int(np.iinfo(np.int32).min)  # the pass that a row's margins are from, which has none
_WORTH_NOTING = 0.8  # of a block's rows: to look at more of them takes longer than at all without margins


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """What a pass must know of those before it in its run.

    `run`: what entries in the memory of blocks are kept under.
    `number`: of this pass; 0 for the first.
    `starts`: which of the run's starts take part.
    `n_starts`: all starts of the run.
    `budget`: bytes that each process may remember.
    `feature_budget`: bytes up to which it may keep features too; 0 for none.
    `unit`: what margins are counted in.
    `n_groups`: groups of centres whose margins are remembered; 0 where none are, only labels.
    `needed`: float32 array of shape (n_starts, window · n_clusters, n_groups). For each start of this pass,
      age of a row's margins (1 first) and label: the margin that a row at its centre must have had, in units.
    `slopes`: float32 array of the same shape. What it must have had more for each unit of distance from its
      centre.
    `rival_needed`, `rival_slopes`: float32 arrays of shape (n_starts, window · n_clusters, n_clusters). The
      same for the second nearest centre alone.
    `radii`: float32 array of shape (n_starts, window · n_clusters). The largest distance that this holds for.
    `moves`: float32 array of shape (n_starts, window · n_clusters). How far the centre has moved since.
    `oldest`: the age that the next pass will not know any more; 0 for none.
    """

    run: str
    number: int
    starts: tuple[int, ...]
    n_starts: int
    budget: int
    feature_budget: int
    unit: float
    n_groups: int
    needed: NDArray[np.float32]
    slopes: NDArray[np.float32]
    rival_needed: NDArray[np.float32]
    rival_slopes: NDArray[np.float32]
    radii: NDArray[np.float32]
    moves: NDArray[np.float32]
    oldest: int


@dataclass(frozen=True, slots=True, eq=False)
class LloydState:
    """The state of a pass of a run."""

    centres: Centres
    past: Past

    def digest(self) -> str:
        """Return the feature map's digest: what every worker must agree on."""
        return self.centres.digest()


@dataclass(frozen=True, slots=True)
class LloydTask(BlockFunction[LloydState, ClusterSums]):
    """Read a block where some of its rows must be looked at, and return its sums over clusters.

    An engine calls it as `function(block, state)`, best where it ran the block before.

    `run`: what processes remember of it is kept under.
    """

    source: Dataset
    run: str

    def begin(self, block: Block, state: LloydState) -> Callable[[], ClusterSums]:
        """Read a block where some of its rows must be looked at, and return what is left to do."""
        return _begin_block(block, state, lambda: self.source.read(block))


def sum_remembered(rows: Rows, state: LloydState) -> ClusterSums:
    """Return the sums over clusters of a block that was read already; `LloydTask` for other sources."""
    return _begin_block(rows.block, state, lambda: rows)()


# -- what is remembered of a block -----------------------------------------------------------------


type _OfStart = tuple[
    NDArray[Any], NDArray[np.int32], NDArray[np.float32], NDArray[Any], NDArray[np.uint16], NDArray[np.uint16]
]


@dataclass(slots=True, eq=False)
class _Remembered:
    """A block's rows as all starts of a run last saw them; changed in place.

    `labels`: int array of shape (n_starts, n_rows).
    `numbers`: int32 array of shape (n_starts, n_rows). Of the passes that the distances and margins were
      measured in.
    `distances`: float32 array of shape (n_starts, n_rows). From a row to its centre.
    `rivals`: int array of shape (n_starts, n_rows). Labels of the second nearest centres then.
    `rival_margins`: uint16 array of shape (n_starts, n_rows). Theirs, in the run's unit.
    `margins`: uint16 array of shape (n_starts, n_rows, n_groups). Of the centres that are neither.
    `sums`: of the labels.
    `note_at`: the pass in which all margins are noted next, or were last.
    `n_wasted`: how often in a row most margins noted were of no use.
    """

    block: Block
    labels: NDArray[np.signedinteger[Any]]
    numbers: NDArray[np.int32]
    distances: NDArray[np.float32]
    rivals: NDArray[np.signedinteger[Any]]
    rival_margins: NDArray[np.uint16]
    margins: NDArray[np.uint16]
    sums: ClusterSums
    note_at: int
    n_wasted: int = 0

    def of_start(self, start: int) -> _OfStart:
        """Return the labels, numbers, distances, rivals, their margins and the others' of a start's rows."""
        seen = self.labels[start], self.numbers[start], self.distances[start]
        return *seen, self.rivals[start], self.rival_margins[start], self.margins[start]

    @property
    def n_bytes(self) -> int:
        rows = (self.labels, self.numbers, self.distances, self.rivals, self.rival_margins, self.margins)
        return sum(array.nbytes for array in (*rows, self.sums.features, self.sums.weights))


def _label_type(n_clusters: int) -> type[np.signedinteger[Any]]:
    return np.int16 if n_clusters < 2**15 else np.int32


def block_bytes(n_rows: int, n_starts: int, n_clusters: int, n_components: int, *, n_groups: int) -> int:
    """Return the bytes that remembering a block takes."""
    row = 2 * np.dtype(_label_type(n_clusters)).itemsize + 4 + 4 + 2 + 2 * n_groups
    return n_starts * (n_rows * row + 8 * n_clusters * (n_components + 1))


def _make_entry(block: Block, state: LloydState) -> _Remembered:
    past, centres = state.past, state.centres
    _, n_clusters, n_components = centres.values.shape
    shape = past.n_starts, block.n_samples
    return _Remembered(
        block,
        np.zeros(shape, _label_type(n_clusters)),
        np.full(shape, _UNKNOWN, np.int32),
        np.zeros(shape, np.float32),
        np.zeros(shape, _label_type(n_clusters)),
        np.zeros(shape, np.uint16),
        np.zeros((*shape, past.n_groups), np.uint16),
        ClusterSums(
            block.n_samples,
            np.zeros((past.n_starts, n_clusters, n_components), np.int64),
            np.zeros((past.n_starts, n_clusters), np.int64),
            0,
        ),
        past.number,
    )


# -- a pass ----------------------------------------------------------------------------------------


def _begin_block(block: Block, state: LloydState, read: Callable[[], Rows]) -> Callable[[], ClusterSums]:
    """Find out which rows must be looked at, and read the block for these; return what is left to do."""
    past = state.past
    entry: _Remembered | None = block_memory.take(past.run, _key_of(block))
    kept: _KeptTiles | None = block_memory.take(past.run, ("features", *_key_of(block)))
    if entry is None:
        return partial(_sum_anew, read(), state)
    open_rows, noting = _to_look_at(entry, past)
    if not len(open_rows):
        return partial(_remember, entry, past, _sums_of(entry, past), kept)
    return partial(_sum_open, entry, state, open_rows, read() if kept is None else kept, noting=noting)


def _to_look_at(entry: _Remembered, past: Past) -> tuple[NDArray[np.intp], bool]:
    """Return the rows that a pass must look at, and whether to note margins.

    Where twice in a row most rows had to be looked at, margins are noted again after one pass without, then
    after two, four and so on: without them a look takes three quarters of the time.
    """
    n_rows = entry.block.n_samples
    if past.number <= entry.note_at:
        return np.arange(n_rows), past.number == entry.note_at
    open_rows = np.flatnonzero(~_are_certain(entry, past))
    if len(open_rows) <= _WORTH_NOTING * n_rows:
        entry.n_wasted = 0
        return open_rows, True
    entry.n_wasted += 1
    if entry.n_wasted == 1:
        return open_rows, True
    entry.note_at = past.number + 2 ** (entry.n_wasted - 2)
    return np.arange(n_rows), False


def _key_of(block: Block) -> tuple[int, int, int]:
    return block.index, block.start, block.stop


def _sum_anew(rows: Rows, state: LloydState) -> ClusterSums:
    """Label all rows of a block, and sum them; remember them where there is room."""
    past, centres, block = state.past, state.centres, rows.block
    if past.number and len(past.starts) < past.n_starts:
        return sum_clusters(rows, centres)  # the other starts' sums are not known here
    _, n_clusters, n_components = centres.values.shape
    size = block_bytes(block.n_samples, past.n_starts, n_clusters, n_components, n_groups=past.n_groups)
    if not block_memory.has_room(past.run, size, number=past.number, budget=past.budget):
        return sum_clusters(rows, centres)
    entry, scorer, tally = _make_entry(block, state), scorer_of(centres), Tally(centres)
    kept = _room_for_features(rows, state)
    weights = centres.grid.scaled(rows.sample_weight, block.n_samples)

    def visit(first: int, features: NDArray[Any]) -> None:
        here = slice(first, first + len(features))
        if kept is not None:
            kept.features[here] = features
        with tally.adding(weights[here]) as addition:
            _look(entry, state, scorer, features, here, addition, noting=True)

    visit_tiles(rows, centres.feature_map, visit, n_columns=past.n_starts * n_clusters)
    return _remember(entry, past, tally.sums(block.n_samples), kept)


def _sum_open(
    entry: _Remembered,
    state: LloydState,
    chosen: NDArray[np.intp],
    source: Rows | _KeptTiles,
    *,
    noting: bool,
) -> ClusterSums:
    """Label some rows of a block, and move those that change clusters from sum to sum."""
    past, centres = state.past, state.centres
    scorer, tally = scorer_of(centres), Tally(centres)
    starts = np.array(past.starts)[:, np.newaxis]
    weights = centres.grid.scaled(source.sample_weight, entry.block.n_samples)

    def visit(first: int, features: NDArray[Any]) -> None:
        here = chosen[first : first + len(features)]
        former = entry.labels[starts, here].astype(np.int32)
        with tally.adding(weights[here], former) as addition:
            _look(entry, state, scorer, features, here, addition, noting=noting)

    if isinstance(source, Rows):
        n_columns = scorer.n_init * scorer.n_clusters
        visit_tiles(source, centres.feature_map, visit, n_columns=n_columns, chosen=chosen)
        kept = None
    else:
        source.visit(visit, chosen)
        kept = source
    return _remember(entry, past, _sums_of(entry, past) + tally.sums(0), kept)


def _sums_of(entry: _Remembered, past: Past) -> ClusterSums:
    starts = list(past.starts)
    features, weights = entry.sums.features[starts], entry.sums.weights[starts]
    return ClusterSums(entry.block.n_samples, features, weights, 0)


@dataclass(frozen=True, slots=True, eq=False)
class _KeptTiles:
    """Features of a block's rows that were kept, shape (n_rows, n_components): rows are gathered quickly."""

    features: NDArray[Any]
    sample_weight: FloatArray | None

    def visit(self, visit: Callable[[int, NDArray[Any]], None], chosen: NDArray[np.intp]) -> None:
        """Call `visit(first row, features)` with tiles of some rows, as `visit_tiles` does."""
        height = even_height(len(chosen), _KEPT_ROWS, multiple=64)

        def work(first: int) -> None:
            visit(first, self.features.take(chosen[first : first + height], axis=0))

        share_out(work, range(0, len(chosen), height))

    @property
    def n_bytes(self) -> int:
        return self.features.nbytes + (0 if self.sample_weight is None else self.sample_weight.nbytes)


def _room_for_features(rows: Rows, state: LloydState) -> _KeptTiles | None:
    """Return where to keep a block's features; None where they are not to be kept, or do not fit."""
    past, feature_map = state.past, state.centres.feature_map
    dtype = np.dtype(np.float32 if feature_map.single_precision else np.float64)
    shape = rows.block.n_samples, feature_map.n_components
    size = shape[0] * (shape[1] * dtype.itemsize + 8)
    if not block_memory.has_room(past.run, size, number=past.number, budget=past.feature_budget):
        return None
    return _KeptTiles(np.empty(shape, dtype), rows.sample_weight)


def _remember(entry: _Remembered, past: Past, found: ClusterSums, kept: _KeptTiles | None) -> ClusterSums:
    """Return the sums of a block's labels; keep them, and what is known of it, for the next pass."""
    starts, key = list(past.starts), _key_of(entry.block)
    entry.sums.features[starts] = found.features
    entry.sums.weights[starts] = found.weights
    keep = partial(block_memory.keep, past.run, number=past.number)
    keep(key, entry, n_bytes=entry.n_bytes, budget=past.budget)
    if kept is not None:
        keep(("features", *key), kept, n_bytes=kept.n_bytes, budget=past.feature_budget)
    return found


def _look(
    entry: _Remembered,
    state: LloydState,
    scorer: Scorer,
    features: NDArray[Any],
    here: slice | NDArray[np.intp],
    addition: Addition,
    *,
    noting: bool,
) -> None:
    """Label a tile's rows, add them up, and remember what was seen."""
    past = state.past
    if not past.n_groups or not noting:
        labels = scorer.labels(features, addition)
        for i, start in enumerate(past.starts):
            entry.labels[start, here], entry.numbers[start, here] = labels[i], _UNKNOWN
        return
    from rff_dist.numerics import compiled

    found = scorer.nearest(features, past.n_groups, addition)
    rows = np.arange(here.start, here.stop) if isinstance(here, slice) else here
    for i, start in enumerate(past.starts):
        compiled.note_margins(
            rows,
            past.number,
            found.labels[i],
            found.rivals[i],
            found.distances[i],
            found.rival_margins[i],
            found.margins[i],
            scorer.tolerance,
            1.0 / past.unit,
            *entry.of_start(start),
        )


def _are_certain(entry: _Remembered, past: Past) -> NDArray[np.bool_]:
    """Return which rows cannot have changed clusters in any start of the pass."""
    certain = np.full(entry.block.n_samples, bool(past.radii.shape[1]))
    if certain.any():
        from rff_dist.numerics import compiled

        n_clusters = entry.sums.weights.shape[1]
        for i, start in enumerate(past.starts):
            compiled.find_certain(
                past.number,
                past.oldest,
                n_clusters,
                past.radii[i],
                past.moves[i],
                past.rival_needed[i],
                past.rival_slopes[i],
                past.needed[i],
                past.slopes[i],
                *entry.of_start(start),
                certain,
            )
    return certain


# -- what the caller keeps -------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Former:
    """Centres of a former pass, and how far their rows reach, by start."""

    centres: dict[int, FloatArray] = field(default_factory=dict)
    radii: dict[int, FloatArray] = field(default_factory=dict)


class Course:
    """The centres of a run's passes so far, kept by the caller: from them follows what has stayed.

    `blocks`: sequence of Block. Of all rows.
    `spread`: mean squared distance of the rows from their mean.
    `mean_norm`: mean ‖z‖².
    `budget`: bytes that each process may remember.
    `features`: whether it may keep features in what labels leave of these.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        n_starts: int,
        n_clusters: int,
        *,
        spread: float,
        mean_norm: float,
        n_components: int,
        budget: int,
        features: bool = False,
    ) -> None:
        self.run = uuid.uuid4().hex
        self._n_starts, self._n_clusters = n_starts, n_clusters
        self._mean_norm, self._budget = mean_norm, budget
        self._unit = spread / _LARGEST_CODE if spread > 0 else 1.0
        groups = min(n_clusters, _MAX_GROUPS)
        n_samples = sum(block.n_samples for block in blocks)
        fitting = _TABLE_SIZE // (n_starts * n_clusters**2)
        self._window = min(_MAX_WINDOW, n_samples // (_WINDOW_ROWS * n_clusters), fitting)
        self._n_groups = groups if self._window else 0
        labels = sum(
            block_bytes(block.n_samples, n_starts, n_clusters, n_components, n_groups=self._n_groups)
            for block in blocks
        )
        self._feature_budget = max(0, budget - labels) if features else 0
        self._number = 0
        self._former: list[_Former] = []  # the last pass first

    def state(self, centres: Centres, starts: Sequence[int]) -> LloydState:
        """Return the state of the next pass, for centres of some of the starts."""
        shape = len(starts), len(self._former) * self._n_clusters
        needed = np.zeros((*shape, self._n_groups), np.float32)
        slopes, radii = np.zeros_like(needed), np.full(shape, -1.0, np.float32)
        rival_needed = np.zeros((*shape, self._n_clusters), np.float32)
        rival_slopes = np.zeros_like(rival_needed)
        moves = np.zeros(shape, np.float32)
        tolerance = Scorer(centres).tolerance
        with using_threads(1):  # threads of BLAS go on to spin for 25 ms after such a product
            for age, former in enumerate(self._former):
                here = slice(age * self._n_clusters, (age + 1) * self._n_clusters)
                for i, start in enumerate(starts):
                    if start in former.centres:
                        radii[i, here] = former.radii[start]
                        moved = centres.values[i] - former.centres[start]
                        moves[i, here] = np.sqrt(np.square(moved).sum(axis=1)) * (1.0 + 1e-6)
                        tables = self._compare(
                            former.centres[start], centres.values[i], former.radii[start], tolerance
                        )
                        rival_needed[i, here], rival_slopes[i, here] = tables[:2]
                        needed[i, here], slopes[i, here] = tables[2:]
        past = Past(
            self.run,
            self._number,
            tuple(int(start) for start in starts),
            self._n_starts,
            self._budget,
            self._feature_budget,
            self._unit,
            self._n_groups,
            needed,
            slopes,
            rival_needed,
            rival_slopes,
            radii,
            moves,
            self._window if len(self._former) == self._window else 0,
        )
        return LloydState(centres, past)

    def note(self, state: LloydState, sums: ClusterSums) -> None:
        """Note what a pass has found."""
        former, centres = _Former(), state.centres
        means = sums.means(centres)
        for i, start in enumerate(state.past.starts):
            values = centres.values[i]
            squared = self._mean_norm + (values * (values - 2.0 * means[i])).sum(axis=1)
            former.centres[start] = values
            former.radii[start] = _RADIUS * np.sqrt(np.maximum(squared, 0.0))
        self._former = [former, *self._former][: self._window]
        self._number += 1

    def _compare(
        self, former: FloatArray, centres: FloatArray, radii: FloatArray, tolerance: float
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the margins that rows must have had, and slopes, of single centres and then of groups."""
        at_centre, per_distance = margin_losses(former, centres)
        at_rim = at_centre + per_distance * radii[:, np.newaxis]
        low, high = (self._by_groups(losses) for losses in (at_centre, at_rim))
        # the largest of a group's lines is convex in the distance, and below its chord
        slopes = (high - low) / np.maximum(radii, np.finfo(np.float64).tiny)[:, np.newaxis]
        needed = self._in_units(low, high, tolerance)
        alone = low <= _NEVER
        needed[alone], slopes[alone] = -1.0, 0.0
        single = self._in_units(at_centre, at_rim, tolerance)
        return single, per_distance / self._unit, needed, slopes / self._unit

    def _in_units(self, low: FloatArray, high: FloatArray, tolerance: float) -> FloatArray:
        rounding = 1e-6 * (np.abs(low) + np.abs(high) + tolerance)
        return (low + tolerance + rounding) / self._unit + 0.01  # codes are rounded in float32 too

    def _by_groups(self, losses: FloatArray) -> FloatArray:
        groups = [losses[:, group :: self._n_groups].max(axis=1) for group in range(self._n_groups)]
        return np.stack(groups, axis=1)


def margin_losses(former: FloatArray, centres: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return how much nearer another centre can have come than a row's own: a + b · (distance from its own).

    `former`, `centres`: float64 arrays of shape (n_clusters, n_components).
    Returns `a, b`, float64 arrays of shape (n_clusters, n_clusters): by own and other centre, in squared
      distances; −1e30 on the diagonal of a.
    """
    moves = centres - former
    products, squares = moves @ moves.T, np.square(moves).sum(axis=1)
    pairs = squares[:, np.newaxis] + squares
    apart = np.sqrt(np.maximum(pairs - 2.0 * products, 0.0) + _ROUNDING * pairs)
    along = former @ moves.T
    lengths = np.sqrt(np.square(former).sum(axis=1).max(initial=0.0) * squares)
    gains = 2.0 * (np.diagonal(along) - along) + squares - squares[:, np.newaxis]
    slack = _ROUNDING * (pairs + 4.0 * (lengths[:, np.newaxis] + lengths))
    losses = slack - gains
    np.fill_diagonal(losses, _NEVER)
    return losses, 2.0 * apart * (1.0 + 1e-9)
