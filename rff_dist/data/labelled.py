"""Datasets with labels or groups next to their rows.

A dataset and a column go in; a dataset of the same rows comes out, with a group or a
label for each row. Rows of one group are held out together. A label becomes targets of
−1 and +1 for a ridge regression. Labels are counted first, in a pass that reads no X,
because a block may lack some classes.
"""

from __future__ import annotations

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rff_dist.data import array_checks, blocks, columns, digests
from rff_dist.errors import DataError, InvalidParameterError
from rff_dist.numerics import exact_sums
from rff_dist.text import first_few
from rff_dist.typing import AnyArray, FloatArray, IndexArray, IntArray, frozen


def of_source(name: str) -> Any:
    """Return a property that returns the same property of `self.source`."""
    return property(operator.attrgetter(f"source.{name}"))


def source_of(dataset: blocks.Dataset) -> blocks.Dataset:
    """Return the innermost dataset, which extends no other one."""
    while isinstance(dataset, ExtendedDataset):
        dataset = dataset.source
    return dataset


class ExtendedDataset(blocks.Dataset):
    """A dataset with the rows of `source`, completed by values from elsewhere.

    If a cluster computes the source's rows in its own tasks, the engine completes them
    with `complete_rows`.
    """

    source: blocks.Dataset

    url = of_source("url")
    attributes = of_source("attributes")
    reference = of_source("reference")
    feature_names = of_source("feature_names")
    missing_chunks = of_source("missing_chunks")
    version = of_source("version")
    n_samples = of_source("n_samples")
    n_features = of_source("n_features")
    dtype = of_source("dtype")
    chunk_rows = of_source("chunk_rows")
    edges = of_source("edges")
    is_lazy = of_source("is_lazy")
    client = of_source("client")
    can_travel = of_source("can_travel")
    check_unchanged = of_source("check_unchanged")

    @property
    @abstractmethod
    def complete_rows(self) -> Callable[[blocks.Rows], blocks.Rows]:
        """The function that completes rows; it pickles without the source."""

    @property
    def extends(self) -> tuple[blocks.Dataset, Callable[[blocks.Rows], blocks.Rows]]:
        return self.source, self.complete_rows

    def read(self, block: blocks.Block) -> blocks.Rows:
        return self.complete_rows(self.source.read(block))

    def prefix_fingerprint(self, n_samples: int) -> str | None:
        """Return the digest of the first rows with their added values, see
        `prefix_digest`.

        Weights that balance classes depend on all rows, so appended rows change the
        digest of these rows too.
        """
        return None if self.is_lazy else digests.prefix_digest(self, n_samples)


class TargetsOfSource(ExtendedDataset):
    """An extended dataset with the targets and weights of its source."""

    target_names = of_source("target_names")
    n_targets = of_source("n_targets")
    one_dimensional = of_source("one_dimensional")
    weighted = of_source("weighted")
    read_weight = of_source("read_weight")
    read_targets = of_source("read_targets")


# -- groups


def _read_groups(groups: columns.Column, block: blocks.Block) -> AnyArray:
    values = groups.read(block)
    # 3.0 is group 3
    return values.astype(np.int64) if values.dtype.kind == "f" else values


def _with_groups(groups: columns.Column, rows: blocks.Rows) -> blocks.Rows:
    return replace(rows, groups=_read_groups(groups, rows.block))


@dataclass(frozen=True, eq=False)
class GroupedDataset(TargetsOfSource):
    """A dataset with a group for each row; rows of one group are held out together.

    Raises DataError if the numbers of groups and rows differ.
    """

    source: blocks.Dataset
    #: The group of each row; whole floats count as integers.
    groups: columns.Column

    recorded_prefix = of_source("recorded_prefix")
    take = of_source("take")

    def __post_init__(self) -> None:
        array_checks.require_rows(
            {"X": self.n_samples, "groups": self.groups.n_samples}
        )

    @property
    def complete_rows(self) -> Callable[[blocks.Rows], blocks.Rows]:
        return partial(_with_groups, self.groups)

    def read_groups(self, block: blocks.Block) -> AnyArray:
        return _read_groups(self.groups, block)

    def without_targets(self) -> GroupedDataset:
        return GroupedDataset(self.source.without_targets(), self.groups)

    def fingerprint(self) -> str:
        parts = ("groups", self.source.fingerprint(), self.groups.fingerprint())
        return hashlib.sha256("|".join(parts).encode()).hexdigest()


# -- labels


@dataclass(frozen=True, eq=False)
class _LabelAddition:
    """Completes rows by their labels' targets and their classes' weights."""

    labels: columns.Column
    classes: AnyArray
    class_weight: FloatArray | None

    def __call__(self, rows: blocks.Rows) -> blocks.Rows:
        codes = self.read_codes(rows.block)
        weight = rows.sample_weight
        labelled = replace(
            rows, y=class_targets(codes, len(self.classes)), own_weight=None
        )
        if self.class_weight is None:
            return labelled
        # kept without the factors of classes, since these weights count observations
        own_weight = np.ones(len(codes)) if weight is None else weight
        return replace(
            labelled,
            sample_weight=self.weights_of(codes, weight),
            own_weight=own_weight,
        )

    def read_codes(self, block: blocks.Block) -> IntArray:
        """Return the labels of a block as positions in `classes`."""
        return encode(
            self.labels.read(block), self.classes, np.arange(block.start, block.stop)
        )

    def weights_of(
        self, codes: IntArray, sample_weight: FloatArray | None
    ) -> FloatArray | None:
        if self.class_weight is None:
            return sample_weight
        weights = self.class_weight[codes]
        return weights if sample_weight is None else weights * sample_weight


@dataclass(frozen=True, eq=False)
class LabelledDataset(ExtendedDataset):
    """A dataset whose targets are classes: +1 for a row's own class and -1 for the
    others.

    Two classes make one column of y, which is +1 for the second class. More make a
    column for each.

    Raises DataError if the numbers of labels and rows differ, or there are fewer than
    two classes; on reading, if a label is not among the classes.
    """

    #: The rows. If it has targets, they are not used.
    source: blocks.Dataset
    #: The label of each row.
    labels: columns.Column
    #: All labels, sorted, each once, of shape (n_classes,): `LabelCounts.classes`.
    classes: AnyArray
    #: A factor for the weights of each class's rows, of shape (n_classes,), see
    #: `class_weights`. None means 1.
    class_weight: FloatArray | None = None

    target_names = None  # the columns of y are classes, not columns of the data
    read_groups = of_source("read_groups")

    def __post_init__(self) -> None:
        array_checks.require_rows({"X": self.n_samples, "y": self.labels.n_samples})
        if len(self.classes) < 2:
            raise DataError(
                f"y holds {len(self.classes)} class"
                f" ({', '.join(map(repr, self.classes.tolist()))}); a classifier needs"
                " at least 2 classes"
            )

    @property
    def complete_rows(self) -> _LabelAddition:
        return _LabelAddition(self.labels, self.classes, self.class_weight)

    @property
    def n_targets(self) -> int:
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def one_dimensional(self) -> bool:
        return self.n_targets == 1

    @property
    def weighted(self) -> bool:
        return self.source.weighted or self.class_weight is not None

    def read_weight(self, block: blocks.Block) -> FloatArray | None:
        weight = self.source.read_weight(block)
        if self.class_weight is None:
            return weight
        return self.complete_rows.weights_of(
            self.complete_rows.read_codes(block), weight
        )

    def read_targets(self) -> columns.Column:
        return self.labels

    def without_targets(self) -> blocks.Dataset:
        return self.source.without_targets()

    def take(self, indices: IndexArray, /) -> blocks.Sample:
        X, _, weight = self.source.take(indices)
        codes = encode(self.labels.take(indices), self.classes, np.asarray(indices))
        weight = self.complete_rows.weights_of(codes, weight)
        return blocks.Sample(X, class_targets(codes, len(self.classes)), weight)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            "|".join([self.source.fingerprint(), self.labels.fingerprint()]).encode()
        )
        digest.update(repr(self.classes.tolist()).encode())
        if self.class_weight is not None:
            digest.update(digests.as_bytes(self.class_weight))
        return digest.hexdigest()


def encode(labels: AnyArray, classes: AnyArray, rows: AnyArray) -> IntArray:
    """Return labels as positions in `classes`, which are sorted.

    Like `sklearn.preprocessing.LabelEncoder.transform`; classes may be Python texts or
    NumPy's, and `rows` are the labels' rows. Raises DataError, with the first row whose
    label is not among the classes.
    """
    known = columns.check_values(
        np.asarray(classes), "classes", np.arange(len(classes))
    )
    sought = labels
    if columns.is_text(known.dtype) != columns.is_text(labels.dtype):
        kinds = [
            "text" if columns.is_text(dtype) else "numbers"
            for dtype in (labels.dtype, known.dtype)
        ]
        raise DataError(
            f"y holds {kinds[0]} ({labels.dtype}), but the classes are {kinds[1]}:"
            f" {_listed(classes)}; give labels of the same kind"
        )
    if known.dtype.kind != sought.dtype.kind and columns.is_text(known.dtype):
        # NumPy does not search text of fixed width among text of variable width
        known = known.astype(columns.TEXT)
        sought = sought.astype(columns.TEXT)
    # A label beyond the last class gets the last position, where it differs.
    codes = np.minimum(np.searchsorted(known, sought), len(known) - 1)
    equal = known[codes] == sought
    if not equal.all():
        at = int(np.argmin(equal))
        raise DataError(
            f"y is {labels[at : at + 1].tolist()[0]!r} in row {rows[at]:_}, which is"
            f" not among the {len(classes)} classes: {_listed(classes)}"
        )
    return codes.astype(np.int64, copy=False)


def class_targets(codes: IntArray, n_classes: int) -> FloatArray:
    """Like `sklearn.preprocessing.LabelBinarizer(neg_label=-1)`, on codes.

    Two classes make a single column.
    """
    if n_classes == 2:
        return np.where(codes == 1, 1.0, -1.0)[:, np.newaxis]
    targets = np.full((len(codes), n_classes), -1.0)
    targets[np.arange(len(codes)), codes] = 1.0
    return targets


# -- counts


@frozen(eq=False)
class LabelCounts:
    """Labels, and the number of rows and the weight of each; `+` does not round."""

    #: Sorted, each once, of shape (n_classes,); text of variable width as NumPy's
    #: StringDType.
    labels: AnyArray
    #: Rows of each label; shape (n_classes,).
    n_samples: IntArray
    #: The sum of each label's weights; shape (n_classes,).
    weight: exact_sums.ExactSum
    #: Whether the rows have weights that are all whole numbers: these may count repeats
    #: of rows.
    whole: bool = False

    def __add__(self, other: LabelCounts) -> LabelCounts:
        labels = np.unique(np.concatenate([self.labels, other.labels]))
        left, right = (
            part._placed(labels, np.searchsorted(labels, part.labels))
            for part in (self, other)
        )
        weight = left.weight + right.weight
        whole = self.whole and other.whole
        return LabelCounts(labels, left.n_samples + right.n_samples, weight, whole)

    def among(self, classes: AnyArray) -> LabelCounts:
        """Return the counts for sorted classes, among which are all labels."""
        return self._placed(
            classes, encode(self.labels, classes, np.arange(len(self.labels)))
        )

    def _placed(self, labels: AnyArray, places: IndexArray | IntArray) -> LabelCounts:
        """Return counts for `labels`: these at `places`, and 0 elsewhere."""
        n_samples = np.zeros(len(labels), np.int64)
        n_samples[places] = self.n_samples
        # A row for each digit of the exact sum. Columns of zeros keep its canonical
        # form.
        digits = np.zeros((len(self.weight.digits), len(labels)), np.int64)
        digits[:, places] = self.weight.digits
        return LabelCounts(
            labels,
            n_samples,
            exact_sums.ExactSum(self.weight.lowest, digits),
            self.whole,
        )

    @property
    def classes(self) -> AnyArray:
        """The labels as scikit-learn takes them: text of variable width as objects."""
        return (
            self.labels.astype(object) if self.labels.dtype.kind == "T" else self.labels
        )


def count_block(
    labels: AnyArray, sample_weight: FloatArray | None, first_row: int = 0
) -> LabelCounts:
    """Count the labels of one block; without weights each row counts 1.

    Raises DataError, with the row, if a weight is negative, NaN or infinite.
    """
    distinct, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    n_samples = counts.astype(np.int64)
    if sample_weight is None:
        return LabelCounts(
            distinct, n_samples, exact_sums.ExactSum.of(n_samples.astype(np.float64))
        )
    usable = np.isfinite(sample_weight) & (sample_weight >= 0)
    if not usable.all():
        at = int(np.argmin(usable))
        where = f"sample_weight is {sample_weight[at]} in row {first_row + at:_}"
        raise DataError(f"{where}; weights must be finite and not negative")
    weight = exact_sums.ExactSum.by_group(sample_weight, codes, len(distinct))
    return LabelCounts(
        distinct,
        n_samples,
        weight,
        bool((sample_weight == np.rint(sample_weight)).all()),
    )


@dataclass(frozen=True, eq=False)
class LabelCounter(blocks.BlockFunction[None, LabelCounts]):
    """The block function of a counting pass: it reads labels and weights, but no X."""

    labels: columns.Column
    #: The dataset with the weights; None means 1 for each row.
    source: blocks.Dataset | None

    def begin(self, block: blocks.Block, _: None) -> Callable[[], LabelCounts]:
        weight = None if self.source is None else self.source.read_weight(block)
        return partial(count_block, self.labels.read(block), weight, block.start)


def class_weights(
    class_weight: str | Mapping[Any, float] | None, counts: LabelCounts
) -> FloatArray | None:
    """Return a factor for the weights of each class's rows; None if all are 1.

    Like `sklearn.utils.class_weight.compute_class_weight`. "balanced" gives all classes
    the same weight and keeps the total: total weight / (n_classes · the class's
    weight). Classes that are not in a mapping have the factor 1. Raises
    InvalidParameterError if `class_weight` is something else, has a label that the data
    lack, or a factor is negative or not finite; DataError if a class cannot be balanced
    since all its rows have weight 0.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str) and class_weight == "balanced":
        weight = counts.weight.value()
        if (weight == 0).any():
            empty = counts.classes[weight == 0].tolist()
            raise DataError(
                f"all rows of the class {empty[0]!r} have sample_weight 0, so"
                " class_weight='balanced' has no finite weight for it; drop these rows"
            )
        return weight.sum() / (len(weight) * weight)
    if not isinstance(class_weight, Mapping):
        raise InvalidParameterError(
            f"`class_weight` is {class_weight!r}; expected 'balanced', a mapping of"
            " label to weight, or None"
        )
    classes = counts.classes.tolist()
    if unknown := [label for label in class_weight if label not in classes]:
        problem = f"`class_weight` has the label {unknown[0]!r}, which no row has"
        raise InvalidParameterError(
            f"{problem}; the labels are {_listed(counts.classes)}"
        )
    weights = np.array([class_weight.get(label, 1.0) for label in classes], np.float64)
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidParameterError(
            f"`class_weight` is {dict(class_weight)}; expected weights that are finite"
            " and not negative"
        )
    return weights


def _listed(classes: AnyArray) -> str:
    return first_few([*map(repr, classes.tolist())])
