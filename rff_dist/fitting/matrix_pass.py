"""Plan a pass that carries D × D matrices, such as one of standard deviations.

A dataset and a feature map go in; a PlanError is raised if memory is too small. The
sums of the fit are there already, but on a cluster a worker has to hold the matrices.
"""

from dataclasses import replace

from rff_dist.data import blocks
from rff_dist.engines import protocol
from rff_dist.errors import PlanError
from rff_dist.features import maps
from rff_dist.fitting.plan import n_limbs, shortages_of
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, Sums
from rff_dist.numerics import triangular
from rff_dist.statistics import layouts, specs
from rff_dist.text import human_bytes


def check_matrix_pass(
    dataset: blocks.Dataset,
    feature_map: maps.FeatureMap,
    *,
    engine: protocol.Engine,
    n_targets: int = 0,
    n_matrices: int = 1,
) -> None:
    """Refuse a pass that carries D × D matrices if memory is too small.

    By default `n_targets` are those of the dataset.
    """
    sums = Sums(features="fourier" if feature_map.whitener is None else "nystrom")
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
    n_targets = sizes.n_targets
    n_threads = machines.n_threads
    rows = sizes.block_rows()
    height = min(specs.tile_rows(n_components), rows)
    # a block as stored and as decoded
    block_bytes = 2 * max(rows, min(sizes.chunk_rows, n_samples)) * sizes.row_bytes
    # 24 as in `_block_bytes`; targets four times, with room for predictions, residuals
    # and their squares
    block_bytes += rows * 24 * (sizes.n_features + 4 * (n_targets + 1))
    # of each thread: features of 256 rows, what they are turned into and its squares; a
    # stripe of a tile for predictions
    copies = 3 + (n_matrices > 1)
    strip_bytes = n_threads * (copies * 8 * triangular.STRIP_COLUMNS * n_components)
    strip_bytes += n_threads * 8 * layouts.OUTPUT_TILE * height
    whitener_bytes = fit.sums.whitened * 8 * n_components**2
    matrix_bytes = n_matrices * 8 * n_components**2
    pass_bytes = fit.process_bytes + block_bytes + strip_bytes + matrix_bytes
    # of the model
    sums_bytes = (
        8 * n_limbs(n_samples) * layouts.TileLayout(n_components).size + whitener_bytes
    )
    # the Cholesky factor that the pass carries is made in the Gram's own memory
    making_bytes = fit.process_bytes + sums_bytes + matrix_bytes
    if machines.separate_client:
        # a matrix that travels is there twice while it is packed or unpacked
        return pass_bytes + matrix_bytes, making_bytes + matrix_bytes
    shared_bytes = max(making_bytes, pass_bytes + sums_bytes)
    return shared_bytes, shared_bytes
