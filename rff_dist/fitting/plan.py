"""Plan a fit before anything runs: bytes, operations, blocks and peak memory.

Sizes of the data, options and the memory of machines go in; a `Plan` comes out, or a
PlanError with the bytes needed and available. A fit that runs out of memory would fail
after hours, and on a cluster take other jobs with it.

Statistics are the sums that a pass over the rows makes, such as Z'Z and Z'y of the
features Z, for each fold and feature map; D is the number of features, `n_components`.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, replace

from rff_dist.checks import check_count
from rff_dist.data import blocks
from rff_dist.engines import protocol, resuming
from rff_dist.errors import PlanError
from rff_dist.features import nystrom
from rff_dist.fitting.options import is_one_alpha
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.numerics import machine
from rff_dist.products.protocol import FLOAT64_REGION
from rff_dist.selection import cross_validation
from rff_dist.statistics import layouts, specs
from rff_dist.text import human_bytes
from rff_dist.typing import Summary, frozen

logger = logging.getLogger(__name__)

MAX_PARTS = 64  # of sums too large for one worker; each part takes a pass over all rows
ASSUMED_ALPHAS = 64  # of a cross-validation; the real number depends on the data


@frozen
class Plan:
    """The figures of one fit."""

    n_samples: int
    n_features: int
    n_targets: int
    n_components: int
    n_workers: int
    #: Of each worker.
    n_threads: int
    n_blocks: int
    rows_per_block: int
    tile_rows: int
    #: Inputs and targets are read once to measure the columns, then once for each part
    #: of the statistics.
    bytes_read: int
    #: Multiplications and additions of the products. For "pcg" these and
    #: `statistics_bytes` assume a sketch of rank 512 and 40 steps.
    flops: int
    #: Memory of one block's statistics, for all folds and feature maps.
    statistics_bytes: int
    #: Peak memory of a worker process, reached in the statistics pass.
    worker_bytes: int
    #: Peak memory of the process that solves; without workers it runs the pass too.
    client_bytes: int
    #: Bytes that a worker and the solver may use, if known.
    memory_limit: int | None
    client_memory_limit: int | None
    #: The most that a job keeps of its sums next to its output, until it is published.
    ledger_bytes: int
    #: "direct" or "pcg" (conjugate gradients).
    solver: str = "direct"
    #: Why this solver.
    reason: str = "it was asked for"
    #: Passes that each sum up a part of the statistics; 1 if a worker's memory suffices
    #: for the whole.
    n_parts: int = 1

    @property
    def peak_bytes(self) -> int:
        return max(self.worker_bytes, self.client_bytes)

    @property
    def shortages(self) -> list[tuple[str, int, int]]:
        """Processes that lack memory, each with the bytes needed and available."""
        return shortages_of(
            ("a worker", self.worker_bytes, self.memory_limit),
            ("the solver", self.client_bytes, self.client_memory_limit),
        )

    def seconds(self, gflops: float) -> float:
        """Return the seconds of the statistics pass, at 10⁹ · `gflops` per thread."""
        return self.flops / (gflops * 1e9 * self.n_workers * self.n_threads)

    def to_dict(self) -> Summary:
        return {**asdict(self), "peak_bytes": self.peak_bytes}


def plan_fit(fit: PlannedFit) -> Plan:
    """Plan one fit: O(n_samples · n_components²) operations, O(n_components²) memory.

    Raises PlanError if a worker or the solver needs more memory than it has; the
    message has both numbers.
    """
    return plan_within_memory(plan_direct, fit)


def plan_within_memory(
    make_plan: Callable[[PlannedFit], Plan], fit: PlannedFit
) -> Plan:
    """Return what `make_plan` makes of a fit; raise PlanError if it has shortages."""

    def is_too_large(n_components: int) -> bool:
        return bool(make_plan(replace(fit, n_components=n_components)).shortages)

    check_count(fit.n_components, "n_components")
    plan = make_plan(fit)
    if plan.shortages:
        who, needed, limit = plan.shortages[0]
        needed_by_all = max(n_bytes for _, n_bytes, _ in plan.shortages)
        n_mebibytes = -(-needed_by_all // 2**20)
        advice = f"give each process {n_mebibytes}MiB of `memory`"
        # memory grows with D, so the largest D that fits is found by bisection
        smaller = range(512, fit.n_components, 512)
        n_fitting = bisect_left(smaller, True, key=is_too_large)
        if n_fitting:
            advice = (
                f"lower n_components to {smaller[n_fitting - 1]:_} or give each process"
                " more memory"
            )
        raise PlanError(
            f"{who} needs {human_bytes(needed)} (n_components={fit.n_components:_}, "
            f"blocks of {plan.rows_per_block:_} rows) but has {human_bytes(limit)}; "
            f"{advice}"
        )
    return plan


def shortages_of(*processes: tuple[str, int, int | None]) -> list[tuple[str, int, int]]:
    """Return the processes that need more bytes than their limit; None is no limit."""
    return [
        (who, needed, limit)
        for who, needed, limit in processes
        if limit is not None and needed > limit
    ]


def plan_direct(fit: PlannedFit) -> Plan:
    """Return the plan of summing Z'Z and solving it, even if memory is too small."""
    sizes = fit.sizes
    n_components = fit.n_components
    machines = fit.machines
    sums = fit.sums
    n_samples = sizes.n_samples
    rows = sizes.block_rows(sums.n_folds)
    n_blocks = -(-n_samples // rows)
    one_set = _bytes_of_one_set(fit)
    statistics_bytes = one_set * sums.n_folds * sums.n_maps

    # A pass: blocks are added in place to the sums of a run, consecutive blocks of one
    # task. Then a worker has three arrays at once: these, its total so far, and the sum
    # of both.
    pass_bytes = fit.process_bytes + _block_bytes(sizes, rows) + _tile_bytes(fit, rows)
    n_copies = 3 if machines.has_separate_client and n_blocks > 1 else 1
    limit = machines.memory_limit
    n_parts = 1
    if sums.may_use_parts and machines.has_separate_client and limit is not None:
        room = (limit - pass_bytes) // n_copies
        n_parts = _parts_for(statistics_bytes, room, _cell_bytes(fit))
    part_bytes = statistics_bytes
    if n_parts > 1:
        part_bytes = statistics_bytes // n_parts + _cell_bytes(fit)
    pass_bytes += part_bytes * n_copies

    # the process that solves, which without workers runs the pass too
    whitener_bytes = 8 * n_components**2 if sums.uses_nystrom else 0
    client_bytes = _bytes_to_solve(fit, one_set) + whitener_bytes
    if not machines.has_separate_client:
        client_bytes = max(pass_bytes + whitener_bytes, client_bytes)
    client_limit = machines.client_memory_limit
    if client_limit is None:
        client_limit = limit

    # Operations: each part computes the features again. Half of Z'Z is enough, since it
    # is symmetric.
    feature_flops = n_parts * n_components * (sizes.n_features + sizes.n_targets + 1)
    gram_flops = n_components * n_components // 2
    n_kept = resuming.most_kept(
        n_blocks, machines.n_workers, are_separate=machines.has_separate_client
    )
    return Plan(
        n_samples=n_samples,
        n_features=sizes.n_features,
        n_targets=sizes.n_targets,
        n_components=n_components,
        n_workers=machines.n_workers,
        n_threads=machines.n_threads,
        n_blocks=n_blocks,
        rows_per_block=rows,
        tile_rows=min(specs.tile_rows(n_components), rows),
        # one reading more, to measure the columns
        bytes_read=(1 + n_parts) * n_samples * sizes.row_bytes,
        flops=2 * n_samples * sums.n_maps * (gram_flops + feature_flops),
        statistics_bytes=statistics_bytes,
        worker_bytes=pass_bytes,
        client_bytes=client_bytes,
        memory_limit=limit,
        client_memory_limit=client_limit,
        n_parts=n_parts,
        ledger_bytes=statistics_bytes * n_kept,
    )


def _bytes_of_one_set(fit: PlannedFit) -> int:
    """Return the bytes of the statistics of one fold and one feature map."""
    n_components = fit.n_components
    gram_numbers = layouts.TileLayout(n_components).size
    # Z'Z is summed as whole numbers of one or two limbs. Z'[Y, 1] is summed as
    # `ExactSum`, which takes about six digits for each number. Limbs and digits have 8
    # bytes.
    n_cross_products = n_components * (fit.sizes.n_targets + 1)
    return 8 * n_limbs(fit.sizes.n_samples) * gram_numbers + 8 * 6 * n_cross_products


def _cell_bytes(fit: PlannedFit) -> int:
    """Return the bytes of a cell of Z'Z, for all folds and feature maps.

    Cells are squares of Z'Z, see `layouts.CELL`. Parts of the sums are made of whole
    cells, so that a cell's sum has the same bits whether there is one part or several.
    """
    n_numbers = layouts.cell_components(fit.n_components) ** 2
    n_sets = fit.sums.n_folds * fit.sums.n_maps
    return 8 * n_limbs(fit.sizes.n_samples) * n_numbers * n_sets


def _block_bytes(sizes: Sizes, rows: int) -> int:
    chunk_rows = max(rows, min(sizes.chunk_rows, sizes.n_samples))
    # a number takes 24 bytes: float64 as read and as standardised, then float32 with
    # and without the rows of weight 0
    n_numbers = rows * (sizes.n_features + sizes.n_targets + 1)
    # three chunks: a block as stored and as decoded, and the next one, which is read
    # ahead
    return 3 * chunk_rows * sizes.row_bytes + 24 * n_numbers


def _tile_bytes(fit: PlannedFit, rows: int) -> int:
    """Return the bytes of features and products in a block of so many rows."""
    n_threads = fit.machines.n_threads
    n_components = fit.n_components
    height = min(specs.tile_rows(n_components), rows)
    n_tiles_at_once = 1
    if n_threads > 1:
        # as in `statistics.accumulate`: two regions of Z'Z for each thread
        n_regions = layouts.TileLayout(n_components).count_regions(FLOAT64_REGION)
        n_tiles_at_once = min(-(-rows // height), -(-2 * n_threads // n_regions))
    features = 8 * n_components * height * n_tiles_at_once
    # of each thread: the product of a region in float64, and a stripe of features in
    # float32
    return features + n_threads * (
        8 * FLOAT64_REGION**2 + 4 * layouts.OUTPUT_TILE * height
    )


def _bytes_to_solve(fit: PlannedFit, one_set: int) -> int:
    """Return the peak bytes of solving, without the whitener of Nyström features.

    `one_set` are the bytes of the statistics of one fold and one feature map.
    """
    n_components = fit.n_components
    sums = fit.sums
    n_matrices = 5  # the Gram, its copy, eigenvectors and two work arrays
    if is_one_alpha(sums.alpha):
        n_matrices = 2  # the Gram and its Cholesky factor
    # statistics twice: the totals, and the shorter copies that the solver makes
    needed = (
        fit.process_bytes
        + 2 * one_set * sums.n_folds * sums.n_maps
        + 8 * n_components**2 * n_matrices
    )
    if sums.n_folds == 1:
        return needed
    return needed + cross_validation.cross_validation_bytes(
        n_components,
        n_targets=fit.sizes.n_targets,
        n_alphas=ASSUMED_ALPHAS,
        n_threads=machine.available_cores(),
        statistics_bytes=one_set,
    )


def _parts_for(n_bytes: int, room: int, cell_bytes: int) -> int:
    """Return into how many parts to split sums so that each takes at most `room` bytes.

    A part has whole cells, so it may exceed its equal share by `cell_bytes`. Returns 1
    if no parts are needed, or 64 are not enough.
    """
    if n_bytes <= room or room <= cell_bytes:
        return 1
    n_parts = -(-n_bytes // (room - cell_bytes))
    if n_parts > MAX_PARTS:
        return 1
    return n_parts


def n_limbs(n_samples: int) -> int:
    """Return how many limbs, 64-bit integers, the sum of so many products needs."""
    # a product of features is at most 1, which is 2**FRACTION_BITS on the grid of the
    # sums
    most_in_one_limb = 1 << (specs.LIMB_BITS - specs.FRACTION_BITS)
    return 1 if n_samples <= most_in_one_limb else 2


def plan_on_engine(
    dataset: blocks.Dataset,
    n_components: int,
    sums: SumOptions,
    *,
    engine: protocol.Engine,
) -> Plan:
    """Plan a fit on an engine's machines; see `plan_fit`."""
    return plan_fit(
        PlannedFit(Sizes.of(dataset), n_components, Machines.of(engine), sums)
    )


def plan_readings(
    dataset: blocks.Dataset,
    n_components: int,
    n_maps: int,
    *,
    engine: protocol.Engine,
    n_folds: int,
    features: str | nystrom.Nystrom,
) -> tuple[int, int]:
    """Divide feature maps among as few readings of the data as memory allows.

    Returns how many maps share a reading, and the passes of a reading: more than 1 if a
    worker lacks memory for the sums of a single map. Raises PlanError if memory is too
    small for a single map.
    """
    for n_readings in range(1, n_maps + 1):
        # equal batches, since a last reading for a single map would cost as much
        n_at_once = -(-n_maps // n_readings)
        sums = SumOptions(
            alpha="cv",
            features=features,
            n_folds=n_folds,
            n_maps=n_at_once,
            may_use_parts=n_at_once == 1,
        )
        try:
            plan = plan_on_engine(dataset, n_components, sums, engine=engine)
        except PlanError:
            if n_at_once == 1:
                raise
        else:
            break
    if n_at_once < n_maps:
        logger.warning(
            "memory holds the statistics of %d of %d candidates at once, so the data"
            " are read %d times",
            n_at_once,
            n_maps,
            -(-n_maps // n_at_once),
        )
    return n_at_once, plan.n_parts
