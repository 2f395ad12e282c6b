"""Plan a pass that carries D × D matrices, such as the pass of standard deviations.

A dataset and a feature map with D components go in; a PlanError is raised if memory is
too small. The sums of the fit exist already, but each worker has to hold the matrices.
"""

from dataclasses import replace

from rff_dist.data import blocks
from rff_dist.engines import protocol
from rff_dist.errors import PlanError
from rff_dist.features import maps
from rff_dist.fitting.plan import n_limbs, shortages_of
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.numerics import triangular
from rff_dist.statistics import layouts, specs
from rff_dist.text import human_bytes


def check_matrix_pass(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    engine: protocol.Engine,
    n_targets: int,
    n_matrices: int,
) -> None:
    """Refuse a pass that carries D × D matrices if memory is too small.

    `n_targets` of 0 takes the dataset's number.
    """
    sums = SumOptions(features="fourier" if feature_map.whitener is None else "nystrom")
    sizes = Sizes.of(dataset)
    machines = Machines.of(engine)
    sizes = replace(sizes, n_targets=n_targets or sizes.n_targets)
    fit = PlannedFit(sizes, feature_map.n_components, machines, sums)
    worker, client = plan_matrix_pass(fit, n_matrices=n_matrices)
    shortages = shortages_of(
        ("a worker", worker, machines.memory_limit),
        ("this process", client, machines.client_memory_limit),
    )
    if shortages:
        who, needed, limit = shortages[0]
        raise PlanError(
            f"{who} needs {human_bytes(needed)} for a pass that carries a matrix of"
            f" n_components={feature_map.n_components:_} squared, but has"
            f" {human_bytes(limit)}; give it more memory, or fit fewer components"
        )


def plan_matrix_pass(fit: PlannedFit, *, n_matrices: int = 1) -> tuple[int, int]:
    """Return the peak bytes of a worker and the client in a pass with D × D matrices.

    Of the fit's sums, only the kind of features matters.
    """
    sizes = fit.sizes
    n_components = fit.n_components
    machines = fit.machines
    n_samples = sizes.n_samples
    n_threads = machines.n_threads
    rows = sizes.block_rows()
    height = min(specs.tile_rows(n_components), rows)
    # a block as stored and as decoded
    block_bytes = 2 * max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    # 24 bytes per number, as `plan.plan_direct` counts: float64 as read and as
    # standardised, and two float32. Targets count four times: with predictions,
    # residuals and their squares.
    block_bytes += rows * 24 * (sizes.n_features + 4 * (sizes.n_targets + 1))
    # each thread has the features of a strip of rows, their product with a matrix and
    # its squares, and with several matrices a copy of the features; and a stripe of a
    # tile for predictions
    n_copies = 3 if n_matrices == 1 else 4
    strip_bytes = n_threads * n_copies * 8 * triangular.STRIP_COLUMNS * n_components
    strip_bytes += n_threads * 8 * layouts.OUTPUT_TILE * height
    whitener_bytes = fit.sums.uses_nystrom * 8 * n_components**2
    matrix_bytes = n_matrices * 8 * n_components**2
    pass_bytes = fit.process_bytes + block_bytes + strip_bytes + matrix_bytes
    # the model's own sums
    sums_bytes = (
        8 * n_limbs(n_samples) * layouts.TileLayout(n_components).size + whitener_bytes
    )
    # the Cholesky factor that the pass carries is made in the Gram's own memory
    making_bytes = fit.process_bytes + sums_bytes + matrix_bytes
    if machines.has_separate_client:
        # a matrix that is sent exists twice while it is packed or unpacked
        return pass_bytes + matrix_bytes, making_bytes + matrix_bytes
    shared_bytes = max(making_bytes, pass_bytes + sums_bytes)
    return shared_bytes, shared_bytes
