"""Choose the features in which k-means finds clusters of any shape, and how many.

A dataset and options go in: with length scale "auto", with several numbers of clusters,
or both. Options with one kernel and one number come out, and a sentence on how clear
the choice is. The median distance between rows, the default of regression, is as wide
as the whole data: with it k-means finds only round clusters.

A partition of a sample is judged by the links that it cuts. Each row is linked to its
ten nearest rows; the cut is the mean over clusters of the share of links that lead out
of the cluster. *Round* clusters are those of plain k-means on the rows; *shapes* are
found by k-means on leading eigenvectors of a kernel. The cut needs no scale, so both
are compared in the same way. Clusters of one or two rows are judged badly, since all
their links are cut. The eigengap, which is often used, is largest for isolated rows and
chose worse; see the manual's page of decisions.

Ng, Jordan & Weiss (2001), On spectral clustering; von Luxburg (2007), A tutorial on
spectral clustering, Sec. 5 on conductance (the share of links that are cut).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy

from rff_dist.data import samples
from rff_dist.data.blocks import Dataset
from rff_dist.engines import events
from rff_dist.engines.protocol import Engine
from rff_dist.features import nystrom
from rff_dist.features.centres import choose_uniform, is_isolated, nearest_rows
from rff_dist.features.composed import unit_vectors
from rff_dist.features.maps import FeatureMap
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
from rff_dist.typing import AnyArray, FloatArray, IndexArray, Summary, frozen

SAMPLE_ROWS = 5_000
# the sample if several numbers of clusters are tried
NUMBERS_ROWS = 1_000
# the limit for the sample's features, if they are given: with very many components the
# sample has fewer rows
_SAMPLE_BYTES = 2**26
# For each n here, a length scale is tried: the median distance of a row to its nth
# nearest centre. Noisy spirals need the second, unequal blobs the seventh or tenth.
NEIGHBOURS = (2, 3, 4, 5, 7, 10)
# three zigzags of 750 rows need as many; with 400 only two of them are found
MOST_CENTRES = 512
N_LINKS = 10
#: the choice's name on cards, the JSON values that are stored with clusters
SHAPE = "shape"
# A partition counts as a shape only if its cut is smaller than that of round clusters
# by more than this share.
LEAST_GAIN = 0.1
# The sentence warns below this multiple of the cut, if there were more clusters,
CLEAR_RATIO = 2.0
# below this adjusted Rand index with the partition by other starts,
STABLE = 0.8
# and above this share of the rows in one cluster.
SWALLOWED = 0.9
# with fewer distinct rows no shapes are sought
_LEAST_ROWS = 4 * N_LINKS


@frozen(eq=False)
class Partition:
    """The clusters of a sample, and how many links between neighbours they cut."""

    n_clusters: int
    labels: IndexArray
    #: Mean over clusters of the share of links that lead out of a cluster.
    cut: float
    #: None for k-means on rows or in given features.
    length_scale: float | None = None
    #: Which of `NEIGHBOURS` the length scale comes from; 0 if there is none.
    neighbour: int = 0


@frozen(eq=False)
class ClusterChoice:
    """Options for the passes, and the evidence that chose them."""

    space: ClusterSpace
    lloyd: LloydOptions
    best: Partition
    #: The partition of plain k-means with as many clusters; None for given features.
    round_clusters: Partition | None
    #: The best partition for each number of clusters that was tried. If several are
    #: asked for, the number after each of them is tried too.
    by_number: tuple[Partition, ...]
    #: The smallest cut of any larger number of clusters, as a multiple of this cut.
    next_cut_ratio: float
    #: Adjusted Rand index with the partition by other centres and other starts.
    stability: float

    @property
    def sentence(self) -> str:
        """Say what was chosen, and how clear it is."""
        links = f"{self.best.cut:.1%} of the links between neighbours"
        if self.round_clusters is None:
            text = f"{self.best.n_clusters} clusters cut {links}"
        elif self.best.length_scale is None:
            text = (
                f"no shape beyond round clusters was found: plain k-means cuts {links}"
            )
        else:
            text = (
                f"shapes by a Gaussian kernel of length scale"
                f" {self.best.length_scale:.3g} cut {links}, round clusters"
                f" {self.round_clusters.cut:.1%}"
            )
        if len(self.by_number) > 1:
            text += f", more clusters at least {self.next_cut_ratio:.1f} times as many"
        text += f"; other centres and starts agree by {self.stability:.2f}"
        doubts = []
        if len(self.by_number) > 1 and self.next_cut_ratio < CLEAR_RATIO:
            doubts.append("no number of clusters stands out")
        if self.stability < STABLE:
            doubts.append("the clusters are not stable")
        sizes = np.bincount(self.best.labels)
        share = sizes.max() / sizes.sum()
        if self.best.n_clusters > 1 and share > SWALLOWED:
            doubts.append(f"one cluster has {share:.0%} of the rows")
        if doubts:
            text = f"no clear clusters, since {' and '.join(doubts)}: {text}"
        return text

    def to_dict(self) -> Summary:
        """Return JSON values for a model's card."""
        round_cut = None
        if self.round_clusters is not None:
            round_cut = self.round_clusters.cut
        return {
            "sentence": self.sentence,
            "length_scale": self.best.length_scale,
            "cut": self.best.cut,
            "round_cut": round_cut,
            "stability": self.stability,
            "cuts": {str(each.n_clusters): each.cut for each in self.by_number},
        }


def seeks_shapes(dataset: Dataset, space: ClusterSpace, lloyd: LloydOptions) -> bool:
    """Return whether `choose_features` is to choose the features.

    Not with categories, whose levels have no distances to make links from; and not with
    given centres, which are centres in given features.
    """
    has_levels = bool(recipes.levels_of(dataset.attributes))
    return space.finds_shapes and isinstance(lloyd.init, str) and not has_levels


def choose_features(
    dataset: Dataset,
    space: ClusterSpace,
    lloyd: LloydOptions,
    moments: Moments,
    *,
    engine: Engine,
) -> ClusterChoice:
    """Choose features and the number of clusters on a fixed sample, in this process."""
    prepared = prepare.prepare(
        dataset, standardize=space.standardize, moments=moments, engine=engine
    )
    n_rows = SAMPLE_ROWS if len(lloyd.numbers) == 1 else NUMBERS_ROWS
    n_rows = min(n_rows, dataset.n_samples)
    prepared.say("choose", f"the length scale on {n_rows:,} rows")
    sampled = samples.sample_inputs(dataset, space.seed, n_rows=n_rows)
    rows = np.asarray(prepared.row_source(space.seed).prepare(sampled), np.float32)
    choice = _choose(rows, min(space.n_components, MOST_CENTRES), space, lloyd)
    prepared.say("choose", choice.sentence)
    return replace(choice, space=_space_of(choice.best, space, rows.shape[1]))


def choose_number(
    dataset: Dataset,
    feature_map: FeatureMap,
    space: ClusterSpace,
    lloyd: LloydOptions,
    *,
    engine: Engine,
) -> ClusterChoice:
    """Choose the number of clusters in given features, on a fixed sample."""
    n_rows = _SAMPLE_BYTES // (8 * feature_map.n_components)
    n_rows = min(n_rows, NUMBERS_ROWS, dataset.n_samples)
    engine.tell(events.Remark("choose", f"the number of clusters on {n_rows:,} rows"))
    sampled = samples.sample_inputs(dataset, space.seed, n_rows=n_rows)
    Z = feature_map.transform(sampled, dtype=np.float64)
    # no centres, so no shapes: these would have other features than the given ones
    choice = replace(_choose(Z, 0, space, lloyd), round_clusters=None)
    engine.tell(events.Remark("choose", choice.sentence))
    return choice


def _choose(
    rows: AnyArray, n_centres: int, space: ClusterSpace, lloyd: LloydOptions
) -> ClusterChoice:
    """Choose a partition of a sample; without centres only plain k-means is tried."""
    with machine.using_threads(1):
        sample = _Sample(rows)
        n_centres = min(n_centres, len(sample.points))
        numbers = _numbers_to_try(lloyd)
        round_by_number = {
            number: sample.find_round(number, space.seed) for number in numbers
        }
        shapes = []
        # if all cuts are 0, no shape can cut fewer links
        is_any_cut = any(each.cut > 0 for each in round_by_number.values())
        if n_centres > 0 and is_any_cut:
            shapes = _find_shapes(sample, n_centres, numbers, space.seed)
        by_number = tuple(_better(shapes, each) for each in round_by_number.values())
        ratios = _next_cut_ratios(
            by_number, one_link=1 / (N_LINKS * len(sample.points))
        )
        number = max(lloyd.numbers, key=ratios.__getitem__)
        [best] = [each for each in by_number if each.n_clusters == number]
        stability = _stability(sample, n_centres, best, space.seed)
    return ClusterChoice(
        space,
        replace(lloyd, n_clusters=number),
        best,
        round_by_number[number],
        by_number,
        ratios[number],
        stability,
    )


def largest_space(space: ClusterSpace, lloyd: LloydOptions) -> ClusterSpace:
    """Return the options that need the most memory of all that may be chosen."""
    any_length_scale = 1.0  # memory does not depend on it
    return _shape_space(space, any_length_scale, max(2, lloyd.largest))


def _space_of(
    partition: Partition, space: ClusterSpace, n_features: int
) -> ClusterSpace:
    """Return the options with which passes over all rows find a sample's partition."""
    if partition.length_scale is None:
        # The features of a linear kernel are the columns. The options still want an
        # even number, for pairs of cosine and sine.
        return replace(
            space,
            kernel=Linear(),
            length_scale=None,
            n_components=n_features + n_features % 2,
        )
    return _shape_space(space, partition.length_scale, partition.n_clusters)


def _shape_space(
    space: ClusterSpace, length_scale: float, n_clusters: int
) -> ClusterSpace:
    n_centres = min(space.n_components, MOST_CENTRES)
    return replace(
        space,
        length_scale=length_scale,
        features=nystrom.Nystrom("dense", sample_rows=SAMPLE_ROWS),
        n_components=n_centres,
        # `pca` leaves out the first eigenvector, which depends on degrees only
        n_principal=min(n_centres, n_clusters - 1),
        normalize="degree",
    )


# -- which partition, and how many clusters
# ---------------------------------------------------------------------


def _better(shapes: Sequence[Partition], round_clusters: Partition) -> Partition:
    """Return the shapes that cut the fewest links, or the round clusters if no shapes
    cut clearly fewer.
    """
    rivals = [each for each in shapes if each.n_clusters == round_clusters.n_clusters]
    best = min(rivals, key=lambda each: each.cut, default=round_clusters)
    if best.cut < (1 - LEAST_GAIN) * round_clusters.cut:
        return best
    return round_clusters


def _numbers_to_try(lloyd: LloydOptions) -> list[int]:
    numbers = lloyd.numbers
    if len(numbers) > 1:
        # a number is judged by the cuts of larger numbers
        numbers = sorted({*numbers, *(number + 1 for number in numbers)})
    return numbers


def _next_cut_ratios(
    partitions: Sequence[Partition], *, one_link: float
) -> dict[int, float]:
    """Return for each number of clusters the smallest cut of any larger number, as a
    multiple of its own cut.

    The right number has the largest multiple: larger numbers must cut through real
    clusters. If there are three, 3 cuts nothing and 4 cuts links: a large multiple. 2
    cuts nothing either, since it joins two of them; but 3, which is larger, cuts
    nothing too, so the multiple of 2 is small. One cluster cuts nothing and counts as
    1. `one_link` avoids a division by 0.
    """
    ratios = {}
    for partition in partitions:
        number = partition.n_clusters
        larger = [each.cut for each in partitions if each.n_clusters > number]
        ratios[number] = 1.0
        if number > 1 and larger:
            ratios[number] = (min(larger) + one_link) / (partition.cut + one_link)
    return ratios


# -- partitions of a sample
# ---------------------------------------------------------------------


class _Sample:
    """The distinct rows of a sample, and the nearest rows of each."""

    def __init__(self, rows: AnyArray) -> None:
        self.points = np.unique(rows, axis=0).astype(np.float64)
        self.nearest = np.empty((len(self.points), 0), np.intp)
        self.is_isolated = np.zeros(len(self.points), bool)
        if len(self.points) > 1:
            distances, self.nearest = nearest_rows(self.points, N_LINKS)
            self.is_isolated = is_isolated(distances, self.nearest)

    def find_round(self, n_clusters: int, seed: int) -> Partition:
        """Cluster by plain k-means."""
        return self.judge(_kmeans(self.points, n_clusters, seed), n_clusters)

    def judge(
        self,
        labels_of_rows: IndexArray,
        n_clusters: int,
        length_scale: float | None = None,
        neighbour: int = 0,
    ) -> Partition:
        """Count the links that clusters cut."""
        own_clusters = np.repeat(labels_of_rows, self.nearest.shape[1])
        linked = labels_of_rows[self.nearest].ravel()
        is_cut = (own_clusters != linked).astype(np.float64)
        n_cut = np.bincount(own_clusters, is_cut, n_clusters)
        n_cut += np.bincount(linked, is_cut, n_clusters)
        n_links = np.bincount(own_clusters, minlength=n_clusters)
        n_links += np.bincount(linked, minlength=n_clusters)
        # a cluster without rows is as bad as one whose links are all cut
        shares = np.where(n_links > 0, n_cut / np.maximum(n_links, 1), 1.0)
        cut = float(shares.mean())
        return Partition(n_clusters, labels_of_rows, cut, length_scale, neighbour)


def _find_shapes(
    sample: _Sample, n_centres: int, numbers: Sequence[int], seed: int
) -> list[Partition]:
    """Cluster by each length scale, for each number of clusters."""
    # many clusters need many eigenvectors, and these many centres
    usable = [number for number in numbers if 1 < number <= n_centres // 4]
    has_few_rows = len(sample.points) < _LEAST_ROWS
    has_few_centres = n_centres <= NEIGHBOURS[-1]
    if has_few_rows or has_few_centres or not usable:
        return []
    centres = _Centres(sample, n_centres, seed)
    shapes: list[Partition] = []
    for neighbour in NEIGHBOURS:
        partitions = centres.partitions(neighbour, usable, seed)
        shapes += partitions
        # nothing was cut, so no further scale can be better
        if not any(each.cut > 0 for each in partitions):
            break
    return shapes


def _stability(
    sample: _Sample, n_centres: int, partition: Partition, seed: int
) -> float:
    """Return how well other centres and starts give the same partition, as an adjusted
    Rand index.
    """
    seed = uniforms.derived_seed(seed, 1)
    number = partition.n_clusters
    if partition.length_scale is None:
        other = sample.find_round(number, seed)
    else:
        # not all points, which would be the same centres again
        n_centres = min(n_centres, 4 * len(sample.points) // 5)
        centres = _Centres(sample, n_centres, seed)
        place = NEIGHBOURS.index(partition.neighbour)
        # with other centres the next length scale may be the better one
        others = [
            centres.partitions(neighbour, [number], seed)[0]
            for neighbour in NEIGHBOURS[place : place + 2]
        ]
        other = min(others, key=lambda each: each.cut)
    return labels.count_agreement(
        partition.labels, other.labels, number
    ).adjusted_rand_index


class _Centres:
    """Some rows of a sample as centres, and the distances of all rows to them."""

    def __init__(self, sample: _Sample, n_centres: int, seed: int) -> None:
        points = sample.points
        order = choose_uniform(points, Gaussian(), len(points), seed)
        self._sample = sample
        self._chosen = order[~sample.is_isolated[order]][:n_centres]
        # From here to `leading_directions` this is the computation of Nyström features
        # and `pca`, but with distances that are computed once for all length scales.
        self._squared = scipy.spatial.distance.cdist(
            points, points[self._chosen], "sqeuclidean"
        )
        # in order from index 0, which for a centre is itself
        near = np.partition(self._squared, NEIGHBOURS, axis=1)
        scales = np.sqrt(np.median(near[:, NEIGHBOURS], axis=0))
        self._scales = dict(zip(NEIGHBOURS, scales.tolist(), strict=True))

    def partitions(
        self, neighbour: int, numbers: Sequence[int], seed: int
    ) -> list[Partition]:
        """Cluster by one length scale, for each number of clusters."""
        scale = self._scales[neighbour]
        vectors = self._eigenvectors(scale, max(numbers))
        partitions = []
        for number in numbers:
            leading = vectors[:, :number]
            clusters = _kmeans(unit_vectors(leading, axis=1), number, seed)
            partitions.append(self._sample.judge(clusters, number, scale, neighbour))
        return partitions

    def _eigenvectors(self, scale: float, n_leading: int) -> FloatArray:
        """Return the leading eigenvectors of the degree-normalised kernel.

        C are the kernel values of rows and centres, T'T those of the centres; the
        features are Z = C·T⁻¹, and the degrees of the rows d = ZZ'·1. The eigenvectors
        of diag(d)^(-1/2)·ZZ'·diag(d)^(-1/2), times √d, are Z·V·Λ^(-1/2), where V and Λ
        are eigenvectors and eigenvalues of the smaller Z'·diag(d)⁻¹·Z.
        """
        C = np.exp(self._squared / (-2.0 * scale**2))
        of_centres = C[self._chosen]
        of_centres.flat[:: len(of_centres) + 1] += nystrom.RELATIVE_JITTER
        T = scipy.linalg.cholesky(of_centres)
        degrees = C @ scipy.linalg.cho_solve((T, False), C.sum(axis=0))
        degrees = np.maximum(degrees, DEGREE_FLOOR * degrees.mean())
        # T'⁻¹·C'·diag(d)⁻¹·C, and then times T⁻¹
        product = (C / degrees[:, np.newaxis]).T @ C
        half = scipy.linalg.solve_triangular(T, product, trans="T")
        gram = scipy.linalg.solve_triangular(T, half.T, trans="T")
        directions = leading_directions(gram, n_leading)  # V·Λ^(-1/2)
        return np.asarray(C @ scipy.linalg.solve_triangular(T, directions))


def _kmeans(points: FloatArray, n_clusters: int, seed: int) -> IndexArray:
    rows = starts.Candidates(points, np.ones(len(points)))
    # a start has been improved by Lloyd steps already
    centres = starts.choose_start(rows, n_clusters, seed)
    return candidates.shifted_distances(points, centres).argmin(axis=1)
