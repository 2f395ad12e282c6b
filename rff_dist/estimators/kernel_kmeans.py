"""Kernel k-means with the exact kernel, for few rows.

Rows go in; a label for each row comes out, in scikit-learn's form. The iterations are
in `kmeans/exact.py`; here inputs are checked, weighted and sorted.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from rff_dist.checks import check_count
from rff_dist.data import blocks
from rff_dist.engines import events, protocol
from rff_dist.engines.clock import Clock
from rff_dist.errors import DataError, InvalidParameterError, PlanError, warn
from rff_dist.estimators import base, categories, panel
from rff_dist.estimators.inputs import as_dataset
from rff_dist.estimators.parameter_checks import choose_kernel
from rff_dist.features import draw, feature_options, for_dataset, maps
from rff_dist.fitting.prepare import prepare
from rff_dist.kernels.base import Kernel
from rff_dist.kmeans import exact
from rff_dist.kmeans import starts as kmeans_starts
from rff_dist.numerics import machine
from rff_dist.recipes.recipes import RECIPE
from rff_dist.statistics import standardizing
from rff_dist.text import human_bytes, number
from rff_dist.typing import FloatArray

N_INIT = 10
# Kernel values that are computed at once. Strips are small, since memory is checked for
# one Gram matrix only.
_STRIP_BYTES = 2**22


@dataclass(repr=False, eq=False)
class KernelKMeans(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, base.RowsEstimator
):
    """Exact kernel k-means, which scikit-learn lacks, for some thousands of rows.

    It needs the whole Gram matrix: it minimises Σ w·‖φ(x) − c‖², with c the mean of the
    row's cluster in the kernel's feature space, and finds clusters that no plane
    separates, such as rings. It takes 8 · n_samples² bytes, and O(n_samples² ·
    n_clusters) per iteration. For more rows use `RFFKMeans`, which approximates this.

    Parameters
    ----------
    n_clusters : int, default=8
        Set it: the number of clusters.
    kernel : str or Kernel, default="gaussian"
        Set it, or leave it for a first try: a name, or a text such as "matern:nu=2.5"
        or "gaussian:length_scale=2 + linear", see `rff_dist.kernels.names.find_kernel`;
        or a Kernel object. Length scales given here are left alone.
    length_scale : "auto", float or array of shape (n_features,), default="auto"
        Set it if clusters are not convex, to about the width of a cluster. In units of
        the (standardised) inputs; "auto" is the median distance between rows of a
        seeded sample.
    n_init : int or "auto", default="auto"
        Usually leave it: the number of starts, each by greedy k-means++ in feature
        space. The one with the smallest inertia is kept. "auto" is 10.
    max_iter : int, default=300
        Raise it if a warning says so: the largest number of iterations of each start.
    standardize : {"auto", "rank"} or bool, default=False
        Set it to True if columns have different units, see `RFFKMeans`.
    categorical_features : "from_dtype", list, array or None, default="from_dtype"
        Usually leave it. It says which columns are categories; see `RFFRidge`.
    random_state : int, RandomState, Generator or None, default=None
        Set it to an integer for clusters that can be repeated: the seed of starts and
        sample.
    verbose : int, default=0
        1 shows what the fit is doing, on standard error.

    Attributes
    ----------
    labels_ : int32 array of shape (n_samples,)
        The cluster of each row: the one with the nearest centre, the lowest of equals.
    inertia_ : float
        Σ w · squared distance of the rows to their nearest centres, in units of the
        kernel.
    n_iter_ : int
        The number of assignments in the start that was kept.
    objectives_ : tuple of float
        The inertia of each partition of that start, about its own means; it never
        rises.
    kernel_ : Kernel
        The kernel with its length scale.
    n_features_in_ : int
        Columns of the inputs.
    feature_names_in_ : array of str
        Their names; only if they have some.

    Notes
    -----
    Iterations stop when no row changes its cluster. An empty cluster takes the row that
    is farthest from its own centre (of several, the first); several empty clusters take
    the farthest rows in turn. If fewer rows are distinct than there are clusters, some
    stay empty. Rows are sorted first, so that the starts depend neither
    on the order of the rows nor on whether a row has a weight of 3 or is there 3 times.

    References
    ----------
    Schölkopf, Smola & Müller (1998), section 5; Dhillon, Guan & Kulis (2004), Alg. 1.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import KernelKMeans
    >>> angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    >>> ring = np.column_stack([np.cos(angles), np.sin(angles)])
    >>> X = np.vstack([0.2 * ring, 2 * ring])
    >>> labels = KernelKMeans(2, length_scale=0.7, random_state=0).fit_predict(X)
    >>> bool((labels[:200] == labels[0]).all() and (labels[200:] != labels[0]).all())
    True
    """

    n_clusters: int = 8
    _: KW_ONLY
    kernel: str | Kernel = "gaussian"
    length_scale: Any = "auto"
    n_init: Any = "auto"
    max_iter: int = 300
    standardize: bool | str = False
    categorical_features: Any = categories.FROM_DTYPE
    random_state: Any = None
    verbose: int = 0
    kernel_: Kernel = field(init=False)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the clusters.

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_samples, n_features).
        y : ignored
            For scikit-learn's pipelines.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative. A weight of 3 counts as three repetitions of the row.

        Raises
        ------
        InvalidParameterError
            If a parameter is out of range.
        DataError
            If values are not finite, or there are fewer rows than clusters.
        PlanError
            If the Gram matrix would need more memory than there is.
        """
        clock = Clock()
        self._check_parameters()
        seed = draw.seed_from_random_state(self.random_state)
        with self._engine_of_fit(None, clock) as engine:
            inputs, weights = self._read_rows(X, sample_weight, seed, engine)
            n_init = n_starts_of(self.n_init, auto=N_INIT)
            words = f"{len(inputs):,} rows, {n_init} starts"
            engine.tell(events.Remark("cluster", words))
            # sorted, so that starts do not depend on the order of the rows
            order = np.lexsort(inputs.T[::-1])
            self._rows = inputs[order]
            best = self._best_start(weights[order], n_init, seed)
        self._kept = best
        self.labels_ = np.empty(len(order), np.int32)
        self.labels_[order] = best.labels
        self.inertia_ = best.inertia
        self.objectives_ = best.objectives
        self.n_iter_ = len(best.objectives)
        self._n_features_out = self.n_clusters
        not_converged = ""
        if not best.converged:
            not_converged = (
                f"rows still changed clusters after max_iter={self.max_iter}"
                " iterations; raise `max_iter`"
            )
        warn_of_clusters(best.n_filled, self.n_clusters, not_converged)
        return self

    def _choices(self) -> dict[str, str]:
        """Return what `verbose=1` shows at the end of a fit, by name."""
        return {
            **panel.kernel_facts(self.kernel_, self._names),
            "inertia": number(self.inertia_),
            "iterations": f"{self.n_iter_:,}",
        }

    def _check_parameters(self) -> None:
        for name in ("n_clusters", "max_iter"):
            check_count(getattr(self, name), name)
        standardizing.check_standardize(self.standardize)
        check_count(n_starts_of(self.n_init, auto=N_INIT), "n_init")

    def _read_rows(
        self, X: Any, sample_weight: Any, seed: int, engine: protocol.Engine
    ) -> tuple[FloatArray, FloatArray]:
        """Return the rows to cluster and their weights.

        Sets what later rows need too: the kernel, the standardizer and the recipe.
        """
        feature_options.check_without_targets(self.length_scale)
        kernel = choose_kernel(self.kernel, self.length_scale)
        dataset = as_dataset(
            self, X, None, sample_weight, reset=True, supervised=False
        ).without_targets()
        self._check_size(dataset.n_samples)
        prepared = prepare(dataset, standardize=self.standardize, engine=engine)
        self._standardizer = prepared.standardizer
        kernel.check_columns(dataset.n_features)
        self.kernel_ = for_dataset.resolve_kernel(
            prepared.row_source(seed), kernel, self.length_scale
        )
        self._recipe = dataset.attributes.get(RECIPE)
        return _read(dataset, self._standardizer)

    def _check_size(self, n_samples: int) -> None:
        kmeans_starts.check_enough(n_samples, self.n_clusters)
        n_bytes = 8 * n_samples**2
        limit = machine.available_memory()
        if n_bytes > limit:
            raise PlanError(
                f"the Gram matrix of {n_samples:_} rows needs {human_bytes(n_bytes)}"
                f" and there are {human_bytes(limit)}; use RFFKMeans, which needs none"
            )

    def _kernel_strips(self, inputs: FloatArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield slices of rows, and their kernel values with the clustered rows.

        Each slice has 4 MiB of values.
        """
        step = max(1, _STRIP_BYTES // (8 * len(self._rows)))
        for first in range(0, len(inputs), step):
            strip = slice(first, first + step)
            values = self.kernel_.gram(inputs[strip], self._rows)
            if not np.isfinite(values).all():
                raise DataError(
                    f"{self.kernel_} overflows on these rows; standardise them, or"
                    " scale them down"
                )
            yield strip, values

    def _best_start(
        self, weights: FloatArray, n_init: int, seed: int
    ) -> exact.KernelClusters:
        """Return the clusters of the start of smallest inertia, the first of equals."""
        gram = np.empty((len(self._rows), len(self._rows)))
        for strip, values in self._kernel_strips(self._rows):
            gram[strip] = values
        best = None
        for start in range(n_init):
            rows = exact.choose_rows(
                gram, weights, self.n_clusters, seed=seed, start=start
            )
            clusters = exact.cluster(
                gram,
                weights,
                exact.labels_from_rows(gram, weights, rows),
                n_clusters=self.n_clusters,
                max_iter=self.max_iter,
            )
            if best is None or clusters.inertia < best.inertia * (1.0 - exact.EQUAL):
                best = clusters
        assert best is not None  # `n_init` is at least 1
        return best

    def predict(self, X: Any) -> NDArray[np.int32]:
        """Return the cluster of each row.

        Takes O(n_rows · n_samples · (n_features + n_clusters)).

        Parameters
        ----------
        X : array-like, frame, sparse matrix, Dask or Zarr array, dataset, path or URL
            Of shape (n_rows, n_features).

        Returns
        -------
        labels : int32 array of shape (n_rows,)
            The cluster with the nearest centre, the lowest of equals.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        labels = [
            self._kept.nearest(values)
            for _, values in self._kernel_strips(self._new_rows(X))
        ]
        return np.concatenate(labels).astype(np.int32)

    def transform(self, X: Any) -> FloatArray:
        """Return the distances of each row to all centres, shape (n_rows, n_clusters).

        A cluster without rows is infinitely far. Inputs and errors as in `predict`.
        """
        check_is_fitted(self)
        inputs = self._new_rows(X)
        # ‖φ(x) − c‖² is the score, ‖c‖² − 2·φ(x)·c, plus k(x, x)
        squared = [
            self._kept.scores(values)
            + self.kernel_.diagonal(inputs[strip])[:, np.newaxis]
            for strip, values in self._kernel_strips(inputs)
        ]
        return np.sqrt(np.maximum(np.concatenate(squared), 0.0))

    def _new_rows(self, X: Any) -> FloatArray:
        dataset = as_dataset(self, X, reset=False, supervised=False)
        return _read(dataset, self._standardizer)[0]


def n_starts_of(n_init: Any, *, auto: int) -> Any:
    """Return the number of starts: `n_init`, or `auto` if that is "auto"."""
    if not isinstance(n_init, str):
        return n_init
    if n_init != "auto":
        raise InvalidParameterError(
            f"`n_init` is {n_init!r}; expected 'auto' or an integer of at least 1"
        )
    return auto


def warn_of_clusters(n_filled: int, n_clusters: int, not_converged: str) -> None:
    """Warn if fewer than `n_clusters` have rows, in scikit-learn's words.

    `not_converged` is the warning that a fit did not converge; "" if it did.
    """
    few = (
        f"Number of distinct clusters ({n_filled}) found smaller than n_clusters"
        f" ({n_clusters}). Possibly due to duplicate points in X; or, with kernels that"
        " grow without bound such as linear and polynomial, to a row so far out that"
        " differences between the others round to nothing. Leave such a row out"
    )
    if n_filled < n_clusters:
        warn(few, ConvergenceWarning)
    if not_converged:
        warn(not_converged, ConvergenceWarning)


def _read(
    dataset: blocks.Dataset, standardizer: maps.Standardizer | None
) -> tuple[FloatArray, FloatArray]:
    """Return all rows, standardised, and their weights."""
    rows = dataset.read(blocks.Block(0, 0, dataset.n_samples))
    inputs = (
        np.asarray(rows.X, np.float64) if standardizer is None else standardizer(rows.X)
    )
    # only X: `prepare` checks the weights of a fit, and `predict` uses no weights
    blocks.check_finite(replace(rows, y=None, sample_weight=None), inputs)
    return inputs, rows.weights
