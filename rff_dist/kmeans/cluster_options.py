"""Options of kernel k-means: the features to cluster in, and how clusters are found.

The features are random ones of a kernel, the matrix Z; or their leading principal
components. Both the command line and `RFFKMeans` make these groups of options.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from rff_dist import fields
from rff_dist.checks import check_count, check_name, is_number
from rff_dist.errors import InvalidParameterError
from rff_dist.features import feature_options
from rff_dist.fields import Count, Counts, NonNegative
from rff_dist.typing import AnyArray

type Init = str | AnyArray
type Numbers = int | Sequence[int] | Literal["auto"]

INITS = ("k-means||", "k-means++")
AUTO_NUMBERS = range(2, 17)
# what length_scale="auto" chooses on a sample of rows, but only if none of these is
# given
_CHOSEN_TOGETHER = (
    "length_scale",
    "kernel",
    "features",
    "design",
    "precision",
    "n_principal",
    "normalize",
)


@fields.group
class ClusterSpace(feature_options.FeatureOptions):
    """Features to cluster in, or their leading principal components.

    Principal components take another pass, of O(n_samples · n_components²). Those of
    degree-normalised features are the random walk's leading eigenfunctions, each times
    the root of its eigenvalue. Raises InvalidParameterError if a value is out of range.

    Schölkopf, Smola & Müller (1998), Sec. 4; von Luxburg (2007), A tutorial on spectral
    clustering, Sec. 4; Shi & Malik (2000).
    """

    length_scale: feature_options.Scale = fields.option(
        f"{feature_options.LENGTH_SCALE}auto: on a sample of rows the features are"
        " chosen that cut the fewest links between neighbours, or plain k-means if no"
        " shape shows; where kernel, features, design, precision, n_principal or"
        " normalize are given, as median. median: the median distance between rows.",
        default="auto",
        placeholder="L|L1,L2,…",
        takes=Literal["auto", "median"] | fields.Positive | fields.Positives,
    )
    n_principal: int | None = fields.optional(
        "Number of leading kernel principal components to cluster in. By default rows"
        " are clustered in the features themselves.",
        placeholder="M",
        takes=Count | None,
    )
    normalize: str | None = fields.optional(
        "Normalisation of the features before the principal components. degree: by"
        " their degrees, which is spectral clustering; set `n_principal` to one less"
        " than the number of clusters.",
        takes=Literal["degree"] | None,
    )

    def __post_init__(self) -> None:
        from rff_dist.pca import fit

        super().__post_init__()
        feature_options.check_without_targets(self.length_scale)
        fit.check_normalize(self.normalize)
        if self.n_principal is None:
            if self.normalize is not None:
                raise InvalidParameterError(
                    f"`normalize` is {self.normalize!r} without `n_principal`; it"
                    " applies to principal components only: say how many, for example"
                    " one less than clusters"
                )
        elif check_count(self.n_principal, "n_principal") > self.n_components:
            raise InvalidParameterError(
                f"`n_principal` is {self.n_principal}, above"
                f" `n_components`={self.n_components}, of which principal components"
                " are made; lower it, or draw more features"
            )

    @property
    def finds_shapes(self) -> bool:
        """Whether the features are chosen on a sample of rows, to show shapes."""
        unset = ClusterSpace(n_principal=None, normalize=None)
        return all(
            getattr(self, name) == getattr(unset, name) for name in _CHOSEN_TOGETHER
        )

    @property
    def width(self) -> int:
        """Largest possible number of columns in which clusters are found."""
        if self.n_principal is None:
            return self.n_components
        # degree-normalised components have the constant eigenvector too
        return self.n_principal + (self.normalize is not None)


@fields.group
class LloydOptions:
    """How k-means finds clusters.

    "k-means||" draws 4 · n_clusters candidates in each of two passes, weights them in
    another, and chooses centres among them by k-means++ and local search. "k-means++"
    takes a seeded sample of 4,096 rows as candidates; so does "k-means||" for a dataset
    no larger than that. An array as `init` gives the centres: inputs, of shape
    (n_clusters, n_features), or centres in Z, of shape (n_clusters, n_components).
    Raises InvalidParameterError if a value is out of range.
    """

    panel: ClassVar[str] = "Clusters"

    n_clusters: Numbers = fields.option(
        "Number of clusters. Given several, the one beyond which the number of cut"
        " links between neighbouring rows rises most, on 1,000 rows. auto: 2 to 16.",
        default=8,
        placeholder="K|K1,K2,…",
        takes=Literal["auto"] | Count | Counts,
    )
    init: Init = fields.option(
        "Source of the candidates for the first centres. k-means||: all rows, in three"
        " passes. k-means++: a sample of 4,096 rows.",
        default="k-means||",
        takes=Literal["k-means||", "k-means++"],
    )
    n_init: int = fields.option(
        "Number of starts, which share each pass. The one with the smallest inertia is"
        " kept.",
        default=1,
        takes=Count,
    )
    max_iter: int = fields.option(
        "Largest number of Lloyd passes.", default=300, takes=Count
    )
    tol: float = fields.option(
        "Threshold of the centres' squared shifts, as a share of the mean variance of"
        " the features: passes end below it. With 0 they end when no label changes.",
        default=1e-4,
        placeholder="SHARE",
        takes=NonNegative,
    )
    #: seed of the starts and of samples of rows
    seed: int = 0

    def __post_init__(self) -> None:
        numbers = self.numbers
        if not numbers or len(set(numbers)) < len(numbers):
            raise InvalidParameterError(
                f"`n_clusters` is {self.n_clusters}; expected different whole numbers"
                " of at least 1"
            )
        for name in ("n_init", "max_iter"):
            check_count(getattr(self, name), name)
        if not is_number(self.tol) or not 0 <= self.tol < np.inf:
            raise InvalidParameterError(
                f"`tol` is {self.tol!r}; expected a number of at least 0"
            )
        if isinstance(self.init, str):
            check_name(self.init, INITS, "init", also=", or an array of centres")
        elif self.n_init != 1 or len(numbers) > 1:
            raise InvalidParameterError(
                f"`n_init` is {self.n_init} and `n_clusters` {self.n_clusters} together"
                " with given centres, which are one start of one number of clusters;"
                " leave out `n_init`, and say how many centres there are"
            )

    @property
    def numbers(self) -> list[int]:
        """Numbers of clusters to find, in ascending order."""
        if isinstance(self.n_clusters, str):
            check_name(self.n_clusters, ("auto",), "n_clusters", also=", or numbers")
            return list(AUTO_NUMBERS)
        several = (
            [self.n_clusters] if np.ndim(self.n_clusters) == 0 else self.n_clusters
        )
        return sorted(check_count(number, "n_clusters") for number in several)  # type: ignore[union-attr]

    @property
    def largest(self) -> int:
        """The largest number of clusters, which memory is planned for."""
        return self.numbers[-1]
