"""What a fit and a choice by folds cost: workers' rates are measured, and times predicted from them."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import memory
from rff_dist.data.blocks import Block, Dataset, cut_blocks
from rff_dist.engines import serial
from rff_dist.engines.protocol import Engine
from rff_dist.features import draw
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.plan import Plan
from rff_dist.kernels import stationary
from rff_dist.numerics import machine
from rff_dist.products import choice
from rff_dist.ridge import budget
from rff_dist.ridge.choices import ROUND_ROWS, Choices
from rff_dist.ridge.fit import fit
from rff_dist.selection import cross_validation
from rff_dist.statistics import inspection, passes, specs

MEASURED_COMPONENTS = 2048  # at most; the time of more components follows from this number and half of it
MEASURED_BYTES = 2**25  # at most, of the partials whose merging is timed
READ_ROWS = 2**16
FEW_ROWS = 256
REPEATS = 2
EMPTY_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds that one worker takes with all its threads.

    `feature`, `product`: for a row, per component and per squared component.
    `moment`: for a row in the first pass, without reading it.
    `read`: to read a row from the store. Rows that were read just before may come from memory.
    `merge`: to move a byte of a partial to another worker and add it there.
    `task`: of the scheduler and the client, per block.
    `begin`: of a pass, apart from its blocks.
    `fit`, `entry`: of a fit apart from its passes and its factorisation: a constant, and a part per entry of
      Z'Z.
    `first`: what the first fit takes longer in new processes, which import packages and choose a way to
      multiply; 0 where they had done so before.
    """

    feature: float
    product: float
    moment: float
    read: float
    merge: float
    task: float
    begin: float
    fit: float = 0.0
    entry: float = 0.0
    first: float = 0.0

    def row(self, n_components: int) -> float:
        """Return the seconds of a row's share of Z'Z and Z'y."""
        return self.feature * n_components + self.product * n_components**2


@dataclass(frozen=True, slots=True)
class _Sample:
    """Seconds per row on one worker.

    `choosing`: seconds that it took to choose the way to multiply.
    `rows`: numbers of components, each with the seconds of a row that has so many.
    """

    choosing: float
    read: float
    moment: float
    rows: tuple[tuple[int, float], ...]


def measure_rates(dataset: Dataset, n_components: int, *, engine: Engine) -> Rates:
    """Measure all workers at the same time, as they work in a pass; this takes about five seconds.

    Fourier features of a Gaussian kernel are timed; those of other stationary kernels take as long.
    """
    n_workers = max(1, engine.n_workers)
    first_pass = _timed(_pass(engine, n_workers, 0))
    sampling = dataset, n_components, dataset.n_samples // n_workers, engine.n_threads
    # Each worker reads other rows: rows that another has just read may come from memory.
    places = np.linspace(0, dataset.n_samples, n_workers, endpoint=False).astype(int).tolist()
    blocks = [Block(i, place, min(place + READ_ROWS, dataset.n_samples)) for i, place in enumerate(places)]
    samples = engine.map_reduce(_sample, blocks, sampling, label="measure")
    feature, product = _split([sample.rows for sample in samples])
    begin, many = (_least(_pass(engine, n_blocks, 0)) for n_blocks in (1, EMPTY_BLOCKS))
    # About as large as a partial: half of Z'Z in integers of 8 bytes, and Z'y.
    n_bytes = min(MEASURED_BYTES, 4 * n_components**2 + 8 * n_components)
    small, large = (_least(_pass(engine, n_workers, size)) for size in (8, n_bytes))
    # Partials move up a tree of workers, and the last one to the client.
    moves = (n_workers - 1).bit_length() + (not engine.in_process)
    # The difference from tiny partials leaves out what a pass takes however large they are.
    merge = max(0.0, large - small) / (max(1, moves) * n_bytes)
    fit, entry, first_fit = _beside(dataset, n_components, begin=begin, merge=merge, engine=engine)
    return Rates(
        feature=feature,
        product=product,
        moment=statistics.median(sample.moment for sample in samples),
        read=statistics.median(sample.read for sample in samples),
        merge=merge,
        task=max(0.0, many - begin) / (EMPTY_BLOCKS - 1),
        begin=begin,
        fit=fit,
        entry=entry,
        first=max(0.0, first_pass - begin) + max(sample.choosing for sample in samples) + first_fit,
    )


def _beside(
    dataset: Dataset, n_components: int, *, begin: float, merge: float, engine: Engine
) -> tuple[float, float, float]:
    """Time fits of few rows, and return what they take apart from their passes.

    These are the seconds of any fit, the seconds per entry of Z'Z, and what the first fit takes longer.
    """
    rows = dataset.read(Block(0, 0, min(FEW_ROWS, dataset.n_samples)))
    y = rows.X[:, 0] if rows.y is None else rows.y
    few = memory.ArrayDataset(rows.X, y)
    points, takes = [], []
    for width in _widths(n_components):
        options = RidgeOptions(
            kernel=stationary.Gaussian(), length_scale=1.0, features="fourier", n_components=width, alpha=1.0
        )
        takes += [_timed(partial(fit, few, options, engine=engine)) for _ in range(REPEATS)]
        taken = min(takes[-REPEATS:])
        # A fit has two passes; the second merges half of Z'Z in integers of 8 bytes: 4·D² bytes.
        points.append((width**2, max(0.0, taken - 2 * begin - merge * 4 * width**2)))
    # Two widths give the line fit + entry · D².
    (many, slow), (less, fast) = points
    entry = max(0.0, slow - fast) / (many - less) if many > less else 0.0
    return max(0.0, slow - entry * many), entry, takes[0] - min(takes[:REPEATS])


def _sample(block: Block, sampling: tuple[Dataset, int, int, int]) -> list[_Sample]:
    """Time this worker while it reads a block and sums up a few tiles of it."""
    dataset, n_components, n_rows_each, n_threads = sampling
    # Ask for a worker's share of the whole job, so that it chooses the way to multiply that the job will use.
    choosing = _timed(lambda: choice.products_for(n_rows_each, n_components))
    started = time.perf_counter()
    rows = dataset.read(block)
    read = (time.perf_counter() - started) / block.n_samples
    widths = _widths(n_components)
    n_tiled = min(block.n_samples, specs.tile_rows(widths[0]) * n_threads)
    few = memory.ArrayDataset(rows.X[:n_tiled], None if rows.y is None else rows.y[:n_tiled])
    here = serial.SerialEngine(n_threads)
    moment = _typical(partial(inspection.inspect, few, engine=here)) / n_tiled
    kernel, n_features, takes = stationary.Gaussian(), rows.X.shape[1], []
    for width in widths:
        drawn = draw.draw_feature_map(kernel, n_features=n_features, n_components=width, random_state=0)
        takes.append((width, _typical(partial(passes.accumulate, few, drawn, engine=here)) / n_tiled))
    return [_Sample(choosing, read, moment, tuple(takes))]


def _widths(n_components: int) -> tuple[int, int]:
    """Return the numbers of components that are timed: the largest, and about half of it."""
    widest = min(n_components, MEASURED_COMPONENTS)
    return widest, max(2, widest // 4 * 2)  # even, for pairs of cosines and sines


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _least(work: Callable[[], object]) -> float:
    return min(_timed(work) for _ in range(REPEATS))


def _typical(work: Callable[[], object]) -> float:
    work()  # the first time imports packages and fills caches
    return statistics.median(_timed(work) for _ in range(REPEATS + 1))


def _split(samples: list[tuple[tuple[int, float], ...]]) -> tuple[float, float]:
    """Return a row's seconds per component and per squared component, neither below 0."""
    (wide, slow), (narrow, fast) = (
        (samples[0][i][0], statistics.median(sample[i][1] for sample in samples)) for i in range(2)
    )
    if wide == narrow:
        return 0.0, slow / wide**2
    # A row takes feature · D + product · D². Divided by D that is a line, and two widths give its slope.
    product = (slow / wide - fast / narrow) / (wide - narrow)
    # Noise of the timing may tilt the line: neither part may become negative.
    product = min(max(product, 0.0), slow / wide**2)
    return slow / wide - product * wide, product


def _pass(engine: Engine, n_blocks: int, n_bytes: int) -> Callable[[], object]:
    """Return a pass whose blocks make partials of `n_bytes` and do nothing else."""
    blocks = cut_blocks(n_blocks, 1, rows_per_block=1)
    return partial(engine.map_reduce, _make, blocks, n_bytes, label="measure")


def _make(block: Block, n_bytes: int) -> np.ndarray:
    return np.zeros(max(1, n_bytes // 8), np.int64)


# -- the seconds of a fit in closed form, from its plan and the workers' rates ---------------------


WORTH_HAVING = 0.8  # least share of its time for which each worker should be busy


@dataclass(frozen=True, slots=True)
class FitTimes:
    """The predicted times of a fit.

    `moments`, `statistics`, `solve`: seconds of the two passes and of the factorisation.
    `beside`: seconds of everything else: new processes import packages, features are drawn, sent to workers
      and checked, and the model is described.
    `scheduler`: seconds that the scheduler and the client spend on the blocks meanwhile.
    `bytes_moved`: between workers and to the client, at the end of the pass of statistics.
    `efficiency`: share of the pass of statistics that a worker spends on rows.
    """

    moments: float
    statistics: float
    solve: float
    beside: float
    scheduler: float
    bytes_moved: int
    efficiency: float

    @property
    def seconds(self) -> float:
        """Seconds from beginning to end."""
        return self.moments + self.statistics + self.solve + self.beside

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as JSON-able values."""
        return {**asdict(self), "seconds": self.seconds}


def predict(plan: Plan, rates: Rates, *, solve: float = 0.0) -> FitTimes:
    """Predict the times of a direct fit.

    A worker reads the next block while it works at one. Its share is a whole number of blocks. The scheduler
    may take longer than the workers. In the end partials move up a tree of workers, and on to the client.

    `solve`: seconds that solving takes.
    """
    share = _share(plan)
    scheduler = plan.n_blocks * rates.task
    moments = rates.begin + max(share * max(rates.moment, rates.read), scheduler)
    # Where Z'Z is summed in parts, each further pass makes all features again.
    again = (plan.n_parts - 1) * rates.feature * plan.n_components
    work = share * (rates.row(plan.n_components) + again)
    # Reading, working and scheduling overlap, so the slowest of the three decides.
    rows = max(work, plan.n_parts * share * rates.read, plan.n_parts * scheduler)
    rows += min(plan.rows_per_block, share) * rates.read  # of the first block, before there is work
    # Levels of a binary tree of workers, and the move to the client.
    moves = (min(plan.n_workers, plan.n_blocks) - 1).bit_length() + 1
    statistics = plan.n_parts * rates.begin + rows + moves * rates.merge * plan.statistics_bytes
    ideal = plan.n_samples * rates.row(plan.n_components) / plan.n_workers
    return FitTimes(
        moments=moments,
        statistics=statistics,
        solve=solve,
        beside=rates.first + rates.fit + rates.entry * plan.n_components**2,
        scheduler=2 * scheduler,
        bytes_moved=min(plan.n_workers, plan.n_blocks) * plan.statistics_bytes,
        efficiency=ideal / statistics,
    )


def workers_worth_having(plan: Plan, rates: Rates) -> int:
    """Return the largest power of two of workers that are busy for four fifths of the time."""
    n_workers = 2
    while n_workers <= plan.n_blocks:
        if predict(replace(plan, n_workers=n_workers), rates).efficiency < WORTH_HAVING:
            break
        n_workers *= 2
    return n_workers // 2


def _share(plan: Plan) -> int:
    """Return the rows of the worker that has the most."""
    blocks = -(-plan.n_blocks // plan.n_workers)
    return min(plan.n_samples, blocks * plan.rows_per_block)


# For an estimate to a factor of two: the speed of many small products and decompositions as a share of the
# speed of one large product.
_SHARE_OF_PEAK = 0.25


def cost_of_choosing(choices: Choices, *, gflops: float) -> dict[str, Any] | None:
    """Return what a choice by folds takes beyond one fit: a first round in this process, and a final."""
    if not choices.choosing and choices.n_finalists == 1:
        return None
    assert choices.by is not None  # which compare the candidates
    chosen, tuning, n_splits = choices.plan, choices.tuning, len(choices.by.splits)
    rows, width = min(ROUND_ROWS, chosen.n_samples), choices.round_width
    tuned = {candidate.kernel for candidate in choices.candidates if candidate.length_scale == "evidence"}
    flops = len(tuned) * tuning.flops(choices.n_tuned_on, chosen.n_features)
    operations = rows * width * (width + 2 * (chosen.n_features + 2))
    if choices.choosing:  # else given candidates meet on all rows at once
        flops += choices.n_tried * (operations + cross_validation.cross_validation_flops([width], n_splits))
    rate = _SHARE_OF_PEAK * gflops * 1e9 * machine.available_cores()

    def final_of(finals: Choices, of_rows: float = 1.0) -> float:
        share = of_rows * (finals.widths[-1] / choices.widths[-1]) ** 2
        tables = cross_validation.cross_validation_flops(finals.widths, n_splits) / rate
        return share * chosen.seconds(gflops) + tables

    meeting, *alone = choices.finals(choices.n_finalists)
    met = choices.meeting_rows / chosen.n_samples
    if met < 1 < choices.n_finalists:  # on a sample, so that only the best takes a pass over all rows
        alone = [choices]
    final = choices.n_finalists * final_of(meeting, met if alone else 1.0) + sum(map(final_of, alone))
    first, limit = float(flops / rate), choices.options.time_limit
    if limit is not None:
        first = min(first, budget.FIRST_SHARE * limit)
        final = min(final, limit - first)
    return {
        "n_candidates": choices.n_tried,
        "n_samples": rows,
        "n_components": width,
        "flops": float(flops),
        "seconds": first,
        "n_finalists": choices.n_finalists,
        "final_seconds": float(final),
    }
