"""The inputs of a plan: sizes of the data, machines, and which sums a fit makes.

Datasets, engines and options go in; plain numbers come out, so that planning is
arithmetic, and a fit can be planned for data and machines that are not there yet.
"""

from dataclasses import field
from typing import Self

from rff_dist.data import blocks
from rff_dist.engines import protocol
from rff_dist.engines.cluster import PROCESS_BYTES
from rff_dist.features import feature_options, nystrom
from rff_dist.fitting.options import Alpha, RidgeOptions
from rff_dist.numerics import machine
from rff_dist.recipes import recipes
from rff_dist.statistics import row_passes
from rff_dist.typing import frozen


@frozen(kw_only=True)
class Sizes:
    """Sizes of a dataset."""

    n_samples: int
    n_features: int
    n_targets: int
    #: Rows that are worth reading together.
    chunk_rows: int
    #: Bytes of one number of X.
    itemsize: int = 4
    #: Whether rows come in pieces that are always read whole, as a grid's do.
    comes_in_pieces: bool = False
    #: Number of levels, over all columns of categories.
    n_levels: int = 0

    @classmethod
    def of(cls, dataset: blocks.Dataset) -> Self:
        """Return the sizes of a dataset, planned with at least one target.

        Raises DataError if the dataset has no rows.
        """
        row_passes.blocks_of(dataset)  # for its DataError alone
        return cls(
            n_samples=dataset.n_samples,
            n_features=dataset.n_features,
            n_targets=max(1, dataset.n_targets),
            chunk_rows=dataset.chunk_rows,
            itemsize=dataset.dtype.itemsize,
            comes_in_pieces=dataset.edges is not None,
            n_levels=sum(map(len, recipes.levels_of(dataset.attributes).values())),
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as read, with its targets and weight."""
        return self.n_features * self.itemsize + 8 * (self.n_targets + 1)

    def block_rows(self, n_folds: int = 1) -> int:
        """Return the rows of the largest block of a pass."""
        if self.comes_in_pieces:
            return min(self.chunk_rows, blocks.MAX_BLOCK_ROWS)
        rows = blocks.block_rows(
            self.n_samples,
            self.n_features,
            self.itemsize,
            self.chunk_rows,
            n_folds=n_folds,
        )
        return min(rows, self.n_samples)


@frozen(kw_only=True)
class Machines:
    """What runs a fit."""

    n_workers: int = 1
    #: Of each worker.
    n_threads: int = 1
    #: Whether the solver runs in its own process.
    has_separate_client: bool = False
    #: Bytes that a worker process may use, if known.
    memory_limit: int | None = None
    #: Bytes that the solver's process may use; `memory_limit` by default.
    client_memory_limit: int | None = None

    @classmethod
    def of(cls, engine: protocol.Engine) -> Self:
        here = machine.available_memory()
        return cls(
            # a cluster may still wait for its first worker, and have none
            n_workers=max(1, engine.n_workers),
            n_threads=engine.n_threads,
            has_separate_client=not engine.is_in_process,
            memory_limit=engine.worker_memory or here,
            client_memory_limit=here,
        )


@frozen(kw_only=True)
class SumOptions:
    """Which sums a fit makes from the rows, and how it solves them."""

    #: One number takes a Cholesky factorisation, anything else eigenvectors.
    alpha: Alpha = "auto"
    #: Nyström features also need their whitener, of n_components² numbers.
    features: str | nystrom.Nystrom = "fourier"
    #: Folds that are summed separately, for cross-validation; 1 for none.
    n_folds: int = 1
    #: Feature maps whose sums one reading of the data makes.
    n_maps: int = 1
    #: Whether several readings may make the sums if they are too large for a worker.
    may_use_parts: bool = False

    @classmethod
    def of(cls, options: RidgeOptions, n_folds: int = 1) -> Self:
        """Return the sums of a regression, for its most costly kind of features."""
        return cls(
            alpha=options.alpha,
            # `kinds` has the most costly one last
            features=options.kinds[-1],
            n_folds=n_folds,
            may_use_parts=True,
        )

    @property
    def uses_nystrom(self) -> bool:
        """Whether features are Nyström's."""
        return feature_options.find_nystrom(self.features) is not None


@frozen
class PlannedFit:
    """A fit to plan: its data, D, machines and sums."""

    sizes: Sizes
    n_components: int
    machines: Machines
    sums: SumOptions = field(default_factory=SumOptions)

    @property
    def process_bytes(self) -> int:
        """Bytes of a process before it has rows.

        They include the tables of angles that Fourier features have for levels of
        categories, see `features.levels`.
        """
        if self.sums.uses_nystrom:  # Nyström features have no such tables
            return PROCESS_BYTES
        # an angle of four bytes per frequency, of which there are n_components / 2
        angle_bytes = 2 * self.n_components * self.sizes.n_levels
        return PROCESS_BYTES + self.sums.n_maps * angle_bytes
