"""Choose the features in which k-means finds clusters of any shape, on a sample.

A dataset and options whose length scale is "auto" go in; options with a kernel, centres
and a number of clusters come out, and a sentence that says how clear they are. The
median distance between rows, which is right for regression, is as wide as the whole of
the data: with it k-means finds round clusters only.

A partition is judged by the links between neighbours that it cuts: links of each row
to its ten nearest, and of each cluster the share that leads out of it. That needs no
scale, so partitions by any kernel and by plain k-means are compared alike; and clusters
of one or two rows are no good, since all of their links are cut. The eigengap is
perfect for isolated rows, and chose worse; see the manual's page of decisions.

Ng, Jordan & Weiss (2001), On spectral clustering; von Luxburg (2007), A tutorial on
spectral clustering, Sec. 5 on conductance (the share of links that are cut).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rff_dist.data import samples
from rff_dist.data.blocks import Dataset
from rff_dist.engines.protocol import Engine
from rff_dist.features import nystrom
from rff_dist.features.centres import nearest_centres, nearest_rows
from rff_dist.fitting import prepare
from rff_dist.frequencies import uniforms
from rff_dist.kernels.explicit import Linear
from rff_dist.kernels.stationary import Gaussian
from rff_dist.kmeans import candidates, labels, starts
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.numerics import machine
from rff_dist.pca.components import DEGREE_FLOOR, leading_directions
from rff_dist.recipes import recipes
from rff_dist.statistics.moments import Moments
from rff_dist.typing import FloatArray, IndexArray, Summary, frozen

SAMPLE_ROWS = 5_000
# if several numbers of clusters are tried, each by all length scales
NUMBERS_ROWS = 1_000
# Length scales that are tried: median distances of a row to its so manieth nearest
# centre. Noisy spirals need the second, unequal blobs the seventh or tenth.
NEIGHBOURS = (2, 3, 4, 5, 7, 10)
MOST_CENTRES = 512
N_LINKS = 10
#: The name on cards.
SHAPE = "shape"
# Partitions that cut fewer links than round clusters by less than this are no shape.
LEAST_GAIN = 0.1
# what the sentence warns of: links, agreement (adjusted Rand index), share of the rows
CLEAR_STEP = 2.0
STABLE = 0.8
SWALLOWED = 0.9
# with fewer distinct rows there are no shapes
_LEAST_ROWS = 4 * N_LINKS


@frozen(eq=False)
class Partition:
    """The clusters of a sample, and how many links between neighbours they cut."""

    n_clusters: int
    #: None for plain k-means.
    length_scale: float | None
    #: The length scale is the distance to the so manieth nearest centre; 0 for none.
    neighbour: int
    #: Mean over clusters of the share of links that lead out of a cluster.
    cut: float
    labels: IndexArray


@frozen(eq=False)
class ShapeChoice:
    """Options for the passes, and the evidence that chose them."""

    space: ClusterSpace
    lloyd: LloydOptions
    best: Partition
    #: The partition of plain k-means with as many clusters.
    round: Partition
    #: For each number of clusters that was tried, the best partition; of several also
    #: for the number after them.
    by_number: tuple[Partition, ...]
    #: How many times as many links the next number of clusters cuts.
    step: float
    #: Adjusted Rand index with the clusters of other centres and other starts.
    stability: float

    @property
    def sentence(self) -> str:
        """Say what was chosen, and how clear it is."""
        links = f"{self.best.cut:.1%} of the links between neighbours"
        if self.best.length_scale is None:
            text = (
                f"no shape beyond round clusters was found: plain k-means cuts {links}"
            )
        else:
            text = (
                f"shapes by a Gaussian kernel of length scale"
                f" {self.best.length_scale:.3g} cut {links}, round clusters"
                f" {self.round.cut:.1%}"
            )
        if len(self.by_number) > 1:
            text += (
                f", {self.best.n_clusters + 1} clusters {self.step:.1f} times as many"
            )
            if self.step < CLEAR_STEP:
                text += " (no number of clusters stands out)"
        text += f"; other centres and starts agree by {self.stability:.2f}"
        sizes = np.bincount(self.best.labels)
        share = sizes.max() / sizes.sum()
        if self.stability < STABLE:
            text += ", so the clusters are not stable"
        if self.best.n_clusters > 1 and share > SWALLOWED:
            text += f"; one cluster has {share:.0%} of the rows"
        return text

    def to_dict(self) -> Summary:
        """Return JSON values for a model's card."""
        return {
            "sentence": self.sentence,
            "length_scale": self.best.length_scale,
            "cut": self.best.cut,
            "round_cut": self.round.cut,
            "stability": self.stability,
            "cuts": {str(each.n_clusters): each.cut for each in self.by_number},
        }


def are_sought(dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions) -> bool:
    """Whether features are left to `choose`.

    Levels of categories have no distances that links could be made of, and given
    centres are centres in given features.
    """
    has_levels = bool(recipes.levels_of(dataset.attributes))
    return space.finds_shapes and isinstance(lloyd.init, str) and not has_levels


def choose(
    dataset: Dataset,
    space: ClusterSpace,
    lloyd: LloydOptions,
    moments: Moments,
    *,
    engine: Engine,
) -> ShapeChoice:
    """Choose features and the number of clusters on a fixed sample, in this process."""
    prepared = prepare.prepare(
        dataset, standardize=space.standardize, moments=moments, engine=engine
    )
    inputs = prepared.inputs(space.seed)
    n_rows = SAMPLE_ROWS
    numbers = lloyd.numbers
    if len(numbers) > 1:
        n_rows = NUMBERS_ROWS
        # each number is judged by the one that follows
        numbers = sorted({*numbers, *(number + 1 for number in numbers)})
    sampled = samples.sample_inputs(dataset, space.seed, n_rows=n_rows)
    rows = np.asarray(inputs.prepare(sampled), np.float32)
    with machine.using_threads(1):
        sample = _Sample(np.unique(rows, axis=0), space)
        partitions = sample.partitions(numbers, space.seed)
        rounds = [sample.round(number, space.seed) for number in numbers]
        best = [
            _better(shapes, rounded)
            for shapes, rounded in zip(partitions, rounds, strict=True)
        ]
        steps = _steps(best, lloyd.numbers, 1 / (N_LINKS * len(sample.rows)))
        n_clusters = max(lloyd.numbers, key=lambda number: steps[number])
        place = numbers.index(n_clusters)
        chosen = best[place]
        stability = sample.stability(chosen, space.seed)
    lloyd = replace(lloyd, n_clusters=n_clusters)
    return ShapeChoice(
        _space_of(chosen, space, sample),
        lloyd,
        chosen,
        rounds[place],
        tuple(best),
        steps[n_clusters],
        stability,
    )


def largest_space(space: ClusterSpace, lloyd: LloydOptions) -> ClusterSpace:
    """Return the features that need the most memory of those that may be chosen."""
    n_centres = min(space.n_components, MOST_CENTRES)
    n_principal = min(n_centres, max(1, lloyd.largest - 1))
    return _shape_space(space, 1.0, n_centres, n_principal)


def _shape_space(
    space: ClusterSpace, length_scale: float, n_centres: int, n_principal: int
) -> ClusterSpace:
    return replace(
        space,
        length_scale=length_scale,
        features=nystrom.Nystrom("dense", sample_rows=SAMPLE_ROWS),
        n_components=n_centres,
        n_principal=n_principal,
        normalize="degree",
    )


def _better(shapes: Sequence[Partition], rounded: Partition) -> Partition:
    best = min(shapes, key=lambda each: each.cut, default=rounded)
    return best if best.cut < (1 - LEAST_GAIN) * rounded.cut else rounded


def _steps(
    best: Sequence[Partition], numbers: Sequence[int], one_link: float
) -> dict[int, float]:
    """Return how many times as many links the next number of clusters cuts.

    The right number is where this is largest: a further cluster must cut through one.
    One cluster cuts nothing, so nothing can be compared with it.
    """
    cuts = {each.n_clusters: each.cut + one_link for each in best}
    return {
        number: cuts[number + 1] / cuts[number]
        if number > 1 and number + 1 in cuts
        else 1.0
        for number in numbers
    }


def _space_of(
    partition: Partition, space: ClusterSpace, sample: "_Sample"
) -> ClusterSpace:
    """Return the options by which the passes find a partition."""
    if partition.length_scale is None:
        n_features = sample.points.shape[1]
        return replace(
            space,
            kernel=Linear(),
            length_scale=None,
            n_components=n_features + n_features % 2,
        )
    n_principal = partition.n_clusters - 1
    return _shape_space(space, partition.length_scale, sample.n_centres, n_principal)


class _Sample:
    """Distinct rows, and who is near whom."""

    def __init__(self, rows: np.ndarray, space: ClusterSpace) -> None:
        self.rows = rows
        self.points = rows.astype(np.float64)
        self.nearest = np.empty((len(rows), 0), np.intp)
        self.n_centres = min(space.n_components, MOST_CENTRES, len(rows))
        if len(rows) > 1:
            _, self.nearest = nearest_rows(self.points, N_LINKS)

    def partitions(self, numbers: Sequence[int], seed: int) -> list[list[Partition]]:
        """Cluster by each length scale, for each number of clusters."""
        # eigenvectors of many clusters need many centres
        usable = [number for number in numbers if 1 < number <= self.n_centres // 4]
        if not usable or len(self.rows) < _LEAST_ROWS:
            return [[] for _ in numbers]
        centres = self._centres(self.n_centres, seed)
        found = [
            each
            for neighbour in NEIGHBOURS
            for each in self._by_scale(centres, neighbour, usable, seed)
        ]
        return [
            [each for each in found if each.n_clusters == number] for number in numbers
        ]

    def _by_scale(
        self,
        centres: nystrom.NystromFeatureMap,
        neighbour: int,
        numbers: Sequence[int],
        seed: int,
    ) -> list[Partition]:
        """Cluster by one length scale, for each number of clusters."""
        points = centres.centres.astype(np.float64)
        near = nearest_centres(self.points, points, neighbour + 1)
        scale = float(np.median(near[:, neighbour]))
        vectors = self._eigenvectors(centres, scale, max(numbers))
        found = []
        for number in numbers:
            leading = vectors[:, :number]
            norms = np.linalg.norm(leading, axis=1, keepdims=True)
            unit = leading / np.maximum(norms, np.finfo(np.float64).tiny)
            clusters = _kmeans(unit, number, seed)
            found.append(self._judged(clusters, number, scale, neighbour))
        return found

    def round(self, n_clusters: int, seed: int) -> Partition:
        """Cluster by plain k-means."""
        return self._judged(_kmeans(self.points, n_clusters, seed), n_clusters, None, 0)

    def stability(self, partition: Partition, seed: int) -> float:
        """Return how well other centres and starts repeat a partition."""
        seed = uniforms.derived_seed(seed, 1)
        number = partition.n_clusters
        if partition.length_scale is None:
            other = self.round(number, seed)
        else:
            n_centres = min(self.n_centres, 4 * len(self.rows) // 5)
            centres = self._centres(n_centres, seed)
            place = NEIGHBOURS.index(partition.neighbour)
            # other centres may need the next scale
            others = [
                self._by_scale(centres, neighbour, [number], seed)[0]
                for neighbour in NEIGHBOURS[place : place + 2]
            ]
            other = min(others, key=lambda each: each.cut)
        return labels.count_agreement(
            partition.labels, other.labels, number
        ).adjusted_rand_index

    def _centres(self, n_centres: int, seed: int) -> nystrom.NystromFeatureMap:
        return nystrom.draw_nystrom(
            Gaussian(1.0),
            self.rows,
            n_components=n_centres,
            nystrom=nystrom.Nystrom("dense"),
            seed=seed,
        )

    def _eigenvectors(
        self, centres: nystrom.NystromFeatureMap, scale: float, n_leading: int
    ) -> FloatArray:
        """Return the leading eigenvectors of the degree-normalised kernel."""
        feature_map = replace(centres, kernel=Gaussian(scale))
        Z = feature_map.transform(self.rows, dtype=np.float64)
        degrees = Z @ Z.sum(axis=0)
        degrees = np.maximum(degrees, DEGREE_FLOOR * degrees.mean())
        gram = (Z / degrees[:, np.newaxis]).T @ Z
        return np.asarray(Z @ leading_directions(gram, n_leading))

    def _judged(
        self,
        labels_of_rows: IndexArray,
        n_clusters: int,
        scale: float | None,
        neighbour: int,
    ) -> Partition:
        own = np.repeat(labels_of_rows, self.nearest.shape[1])
        linked = labels_of_rows[self.nearest].ravel()
        is_cut = (own != linked).astype(np.float64)
        n_cut = np.bincount(own, is_cut, n_clusters)
        n_cut += np.bincount(linked, is_cut, n_clusters)
        n_links = np.bincount(own, minlength=n_clusters)
        n_links += np.bincount(linked, minlength=n_clusters)
        # a cluster without rows is as bad as one whose links are all cut
        shares = np.where(n_links > 0, n_cut / np.maximum(n_links, 1), 1.0)
        cut = float(shares.mean())
        return Partition(n_clusters, scale, neighbour, cut, labels_of_rows)


def _kmeans(points: FloatArray, n_clusters: int, seed: int) -> IndexArray:
    weights = np.ones(len(points))
    found = starts.Candidates(points, weights)
    centres = starts.choose_start(found, n_clusters, seed)
    return candidates.scores_of(points, centres).argmin(axis=1)
