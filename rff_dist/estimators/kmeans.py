"""Kernel k-means in random features, for data of any size.

Rows go in; centres in the space of features, and a label for each row come out.
scikit-learn's `KMeans` on a pipeline of features would need all of Z in memory, the
matrix of features.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rff_dist.checks import check_count
from rff_dist.engines.clock import Clock
from rff_dist.estimators import base, inputs, kernel_kmeans, panel
from rff_dist.features import feature_options
from rff_dist.fields import values_of
from rff_dist.kmeans import cluster_options, lloyd_pass, shapes, starts
from rff_dist.kmeans import fit as kmeans
from rff_dist.kmeans import labels as kmeans_labels
from rff_dist.text import number


@dataclass(repr=False, eq=False)
class RFFKMeans(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClusterMixin,
    base.FeatureEstimator,
):
    """scikit-learn's `KMeans` and `SpectralClustering` for any number of rows.

    Kernel k-means in random Fourier or Nyström features z(x): it minimises Σ w·‖z(x) −
    c‖² over `n_clusters` centres c, and finds clusters that no plane separates, such as
    rings. Each Lloyd pass costs O(n_samples · n_components · (n_features + n_clusters))
    per start, and memory does not grow with the rows. Sums are exact, so labels and
    centres have the same bits on one thread, many threads or a cluster.

    Parameters
    ----------
    n_clusters : int or "auto", default=8
        Set it, or take "auto": a number from 2 to 16, chosen on 1,000 rows as the one
        beyond which the number of cut links between neighbouring rows rises most.
    kernel : str or Kernel, default="gaussian"
        Usually leave it, so that shapes are found: the fit then chooses the Gaussian or
        the linear kernel, see `length_scale`. The kernel to approximate: a name, or a
        text such as "matern:nu=2.5" or "gaussian:length_scale=2 + linear", see
        `rff_dist.kernels.names.find_kernel`; or a Kernel object. Length scales given
        here are left alone.
    length_scale : "auto", float or array of shape (n_features,), default="auto"
        Usually leave it. In units of the (standardised) inputs. "auto" clusters up to
        5,000 rows in degree-normalised Nyström features of six length scales, and by
        plain k-means. The partition that cuts the smallest share of the links between
        neighbours decides `kernel` (linear for plain k-means), `features`,
        `n_components` (at most so many), `n_principal` and `normalize`. If any of
        `kernel`, `features`, `design`, `precision`, `n_principal` or `normalize`
        differs from its default, or `init` is an array, or a column holds categories,
        "auto" is the median distance between rows, which suits round clusters.
    n_components : int, default=1024
        Usually leave it: D, the number of components of Z; the most that a fit may
        choose, see `length_scale`. The error of the kernel falls as 1/√D, and the cost
        grows as D. An even number makes pairs of cosines and sines, an odd one cosines
        with random phases, which have more variance. With Nyström features it is the
        number of centres; data with fewer distinct rows use all of them, and the kernel
        is then exact.
    n_init : int or "auto", default="auto"
        Raise it for better clusters: the number of starts, which share each pass. The
        start with the smallest inertia is kept. "auto" is 1.
    init : {"k-means||", "k-means++"} or array, default="k-means||"
        Usually leave it. It says how centres begin. "k-means||" draws candidates from
        all rows in three passes, "k-means++" takes a sample of 4,096 rows; with fewer
        rows, all distinct ones are candidates. Among the candidates, k-means++ and
        local search choose the centres. An array gives centres as rows of inputs, of
        shape (n_clusters, n_features), or in Z, of shape (n_clusters, n_components or
        `n_principal`).
    max_iter : int, default=300
        Raise it if a warning says so: the largest number of Lloyd passes.
    tol : float, default=1e-4
        Usually leave it. A start stops when the sum of its centres' squared shifts is
        at most this share of the mean variance of Z's columns; with 0, when no label
        changes.
    n_principal : int or None, default=None
        Usually leave it. Cluster the scores on this many leading kernel principal
        components (see `RFFPCA`) instead of the features. This takes one more pass of
        O(n_samples · n_components²), and makes the others cheaper.
    normalize : {None, "degree"}, default=None
        Usually leave it. "degree" uses the principal components of degree-normalised
        features, see `RFFPCA`. This is spectral clustering if `n_principal` is one less
        than the number of clusters and `length_scale` is below the gaps between them;
        rows are scaled to norm 1 (Ng, Jordan & Weiss 2001). Use Nyström features with
        it: Fourier features blur the degrees of a narrow kernel.
    features : {"fourier", "nystrom", "nystrom:RULE"} or Nystrom, default="fourier"
        Usually leave it. Fourier features do not depend on the data; Nyström features
        are kernel values at rows of the data, by RULE uniform (the default), dense
        (without isolated rows) or k-means++, and work with any kernel.
        Whitening them costs O(n_components²) more per row and pass.
    design : "auto", "orthogonal", "iid", "quasi-monte-carlo", default="auto"
        Usually leave it. It says how the frequencies of Fourier features are arranged;
        see `RFFSampler`.
    precision : {"standard", "high"}, default="standard"
        Usually leave it. It says how Fourier features are rounded: "standard" to 15
        bits, so that products are summed exactly and fast; "high" to float32.
    standardize : {"auto", "rank"} or bool, default=False
        Set it to True if columns have different units. False leaves inputs as they are,
        as scikit-learn does, so columns of large values decide most. True, "rank" and
        "auto" are as in `RFFRidge`.
    categorical_features : "from_dtype", list, array or None, default="from_dtype"
        Usually leave it. It says which columns are categories; see `RFFRidge`.
    random_state : int, RandomState, Generator or None, default=None
        Set it to an integer for clusters that can be repeated: the seed of frequencies,
        samples and starts.
    engine : Engine or None, default=None
        Usually leave it: None is this process, or, for data out of memory, the
        current Dask client if there is one.
    verbose : int, default=0
        1 shows the progress of the fit as a bar on standard error; as lines in
        notebooks and pipes.

    Attributes
    ----------
    feature_centers_ : float64 array of shape (n_clusters, n_components)
        The centres, in Z; `n_principal` columns if that is given or chosen. The mean
        of the inputs in cluster k is X[labels_ == k].mean(axis=0).
    labels_ : int32 array of shape (n_samples,)
        The cluster of each row; only after a fit to data in memory. For other data use
        `predict`.
    inertia_ : float
        Σ w·‖z − c‖², with c the nearest centre of each row, in units of the kernel.
    n_iter_ : int
        The number of Lloyd passes.
    length_scale_ : float or tuple of float
        The length scale in use.
    kernel_ : Kernel or None
        The kernel in use, with its length scales; None if the features were made of
        given frequencies.
    features_ : str
        The kind of features in use, "fourier" or "nystrom".
    feature_map_ : FeatureMap
        The features, with the standardizer of the inputs.
    clusters_ : Clusters
        All of this, with the inertia of each pass and each start, and the weight of
        each cluster.
    shape_ : str
        What length_scale="auto" or n_clusters="auto" chose, and how distinct the
        clusters are; "" if nothing was chosen.
    n_features_in_ : int
        Columns of the inputs.
    feature_names_in_ : array of str
        Their names; only if they have some.

    See Also
    --------
    RFFPCA : The principal components that `n_principal` clusters in.
    RFFRidge : Regression in the same features.

    Notes
    -----
    Ties go to the lowest cluster. An empty cluster moves to the row that is farthest
    from its own centre (of several, the first); several empty clusters take the
    farthest rows in turn.

    References
    ----------
    Dhillon, Guan & Kulis (2004), kernel k-means; Chitta, Jin & Jain (2012), in random
    Fourier features; Bahmani et al. (2012), k-means||; Lattanzi & Sohler (2019), local
    search; von Luxburg (2007), spectral clustering.

    Examples
    --------
    >>> import numpy as np
    >>> from rff_dist import RFFKMeans
    >>> angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    >>> ring = np.column_stack([np.cos(angles), np.sin(angles)])
    >>> X = np.vstack([0.2 * ring, 2 * ring])
    >>> model = RFFKMeans(2, random_state=0)
    >>> labels = model.fit_predict(X)
    >>> bool((labels[:200] == labels[0]).all() and (labels[200:] != labels[0]).all())
    True
    """

    n_clusters: Any = 8
    _: KW_ONLY
    n_components: int = 1024
    n_init: Any = "auto"
    init: Any = "k-means||"
    max_iter: int = cluster_options.LloydOptions.max_iter
    tol: float = cluster_options.LloydOptions.tol
    n_principal: int | None = None
    normalize: str | None = None
    labels_: NDArray[np.int32] = field(init=False)
    _fitted: starts.Clusters = field(init=False)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the clusters.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
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
        """
        clock = Clock()
        space, lloyd = self._options()
        dataset = inputs.as_dataset(
            self, X, None, sample_weight, reset=True, supervised=False
        )
        with self._engine_of_fit(dataset, clock) as engine:
            clusters = kmeans.fit(dataset, space, lloyd, engine=engine).clusters
            if hasattr(self, "labels_"):  # from an earlier fit
                del self.labels_
            # for data out of memory, one label per row may be too much
            if inputs.is_in_memory(X):
                self.labels_ = kmeans_labels.label_in_memory(
                    dataset, clusters, engine=engine
                )
        self._keep(self._with_names(clusters))
        not_converged = ""
        if not clusters.converged:
            not_converged = (
                f"the centres still moved after max_iter={self.max_iter} passes; raise"
                " `max_iter` or `tol`"
            )
        kernel_kmeans.warn_of_clusters(
            clusters.n_filled, clusters.n_clusters, not_converged
        )
        return self

    def _options(
        self,
    ) -> tuple[cluster_options.ClusterSpace, cluster_options.LloydOptions]:
        """Return the parameters as the library takes them, checked."""
        # first, because `_features` chooses pairs or phases by this number
        feature_options.check_n_components(self.n_components, "phases", self.features)
        n_init = kernel_kmeans.n_starts_of(self.n_init, auto=1)
        features = {
            **self._features(self.n_components),
            **values_of(self, "n_principal", "normalize"),
        }
        space = cluster_options.ClusterSpace(**features)
        n_clusters = self.n_clusters
        if not isinstance(n_clusters, str):
            n_clusters = check_count(n_clusters, "n_clusters")
        others = values_of(self, "init", "max_iter", "tol")
        return space, cluster_options.LloydOptions(
            n_clusters=n_clusters, n_init=n_init, seed=space.seed, **others
        )

    def _keep(self, clusters: starts.Clusters) -> None:
        self._fitted = clusters
        self.feature_centers_ = clusters.centres
        self.inertia_ = clusters.inertia
        self.n_iter_ = clusters.n_iter
        self._n_features_out = clusters.n_clusters

    def _choices(self) -> dict[str, str]:
        clusters = self._fitted
        shape = clusters.card.get(shapes.SHAPE)
        return {
            **panel.features_facts(clusters.feature_map, self._names),
            **({} if shape is None else {"shape": shape["sentence"]}),
            "clusters": f"{clusters.n_filled:,}",
            "inertia": number(clusters.inertia),
            "passes": f"{clusters.n_iter:,}",
        }

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        """Find the clusters, and return the cluster of each row as `predict` does."""
        self.fit(X, y, sample_weight)
        return self.labels_ if hasattr(self, "labels_") else self.predict(X)

    def predict(self, X: Any) -> Any:
        """Return the cluster of each row.

        It is the one with the nearest centre; of equals, the lowest.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).

        Returns
        -------
        labels : int32 array of shape (n_samples,)
            A lazy Dask array for a Dask collection, else in memory;
            `rff_dist.kmeans.labels.write_labels` writes them to Zarr.

        Raises
        ------
        NotFittedError
            Before `fit`.
        DataError
            If values are not finite, or columns are missing.
        """
        check_is_fitted(self)
        clusters = self._fitted
        return self._map(
            X,
            lloyd_pass.label_rows,
            clusters.state,
            label="label",
            width=None,
            dtype=np.int32,
        )

    def transform(self, X: Any) -> Any:
        """Return the distances ‖z − c‖ of each row to all centres.

        They are of shape (n_samples, n_clusters). Inputs, laziness and errors as in
        `predict`.
        """
        check_is_fitted(self)
        clusters = self._fitted
        return self._map(
            X,
            lloyd_pass.centre_distances,
            clusters.state,
            label="distances",
            width=clusters.n_clusters,
            dtype=np.float64,
        )

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return −Σ w·‖z − c‖², with c the nearest centre of each row.

        Parameters
        ----------
        X : array-like, frame, xarray, sparse matrix, Dask or Zarr array, dataset, URL
            Of shape (n_samples, n_features).
        y : ignored
            For scikit-learn's pipelines.
        sample_weight : array-like of shape (n_samples,), optional
            Not negative.
        """
        check_is_fitted(self)
        dataset = inputs.as_dataset(
            self, X, None, sample_weight, reset=False, supervised=False
        )
        with inputs.suitable_engine(self.engine, dataset) as engine:
            return -kmeans_labels.inertia_of(dataset, self._fitted, engine=engine)

    @property
    def shape_(self) -> str:
        """What was chosen, and how distinct the clusters are."""
        return str(self._fitted.card.get(shapes.SHAPE, {}).get("sentence", ""))

    @property
    def clusters_(self) -> starts.Clusters:
        """The clusters, with the inertia of each pass and each start."""
        return self._fitted
