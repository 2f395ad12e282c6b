"""The options of k-means, checked once: in which features clusters are found, and how."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rff_dist.checks import check_count, check_name, is_number
from rff_dist.errors import InvalidParameterError
from rff_dist.features.options import FeatureOptions, check_without_targets
from rff_dist.pca.fit import check_normalize

INITS = ("k-means||", "k-means++")


@dataclass(frozen=True)
class ClusterSpace(FeatureOptions):
    """Features to cluster in, or their leading principal components.

    `n_principal`: number of leading principal components in whose scores clusters are found, which takes a
      pass of O(n_samples · n_components²). By default clusters are found in the features themselves.
    `normalize`: {None, "degree"}. With "degree" the principal components are those of degree-normalised
      features. This is spectral clustering by the random walk's leading eigenfunctions, each times the root
      of its eigenvalue.
    Raises InvalidParameterError if a value is out of range.

    Schölkopf, Smola & Müller (1998), Sec. 4; von Luxburg (2007), A tutorial on spectral clustering, Sec. 4;
    Shi & Malik (2000).
    """

    n_principal: int | None = None
    normalize: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_without_targets(self.length_scale)
        check_normalize(self.normalize)
        if self.n_principal is None:
            if self.normalize is not None:
                raise InvalidParameterError(
                    f"`normalize` is {self.normalize!r} without `n_principal`; it applies to principal "
                    "components only: say how many, for example one less than clusters"
                )
        elif check_count(self.n_principal, "n_principal") > self.n_components:
            raise InvalidParameterError(
                f"`n_principal` is {self.n_principal}, above `n_components`={self.n_components}, of which "
                "principal components are made; lower it, or draw more features"
            )

    @property
    def width(self) -> int:
        """Largest possible number of columns in which clusters are found."""
        return self.n_components if self.n_principal is None else self.n_principal


@dataclass(frozen=True, eq=False)
class LloydOptions:
    """How k-means finds clusters.

    `n_clusters`: number of clusters; the largest, if several numbers share the passes.
    `init`: "k-means||", "k-means++" or array. "k-means||" draws 4 · n_clusters candidates in each of two
      passes, weights them in another, and chooses centres among them by k-means++ and local search.
      "k-means++" takes a seeded sample of 4,096 rows as candidates; so does "k-means||" for a dataset no
      larger than that. An array gives the centres: inputs, of shape (n_clusters, n_features), or centres in
      Z, of shape (n_clusters, n_components).
    `n_init`: number of starts, with different centres chosen among the same candidates; they share each pass.
    `max_iter`: largest number of Lloyd passes.
    `tol`: a start stops when the sum of its centres' squared shifts is at most this share of the mean
      variance of Z's columns. With 0 it stops when no centre moved at all, so that no label changed.
    `seed`: seed of the starts and of samples of rows.
    Raises InvalidParameterError if a value is out of range.
    """

    n_clusters: int = 8
    _: KW_ONLY
    init: str | NDArray[Any] = "k-means||"
    n_init: int = 1
    max_iter: int = 300
    tol: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_clusters", "n_init", "max_iter"):
            check_count(getattr(self, name), name)
        if not is_number(self.tol) or not 0 <= self.tol < np.inf:
            raise InvalidParameterError(f"`tol` is {self.tol!r}; expected a number of at least 0")
        if isinstance(self.init, str):
            check_name(self.init, INITS, "init", also=", or an array of centres")
        elif self.n_init != 1:
            raise InvalidParameterError(
                f"`n_init` is {self.n_init} beside given centres, which are one start; leave it out"
            )
