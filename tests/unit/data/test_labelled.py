"""Classes become targets of -1 and +1, groups travel with their rows, and counts do not
depend on blocks.
"""

import functools
import operator
import pickle

import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils.class_weight import compute_class_weight

from rff_dist import (
    SerialEngine,
    accumulate,
    draw_feature_map,
    open_dataset,
    write_dataset,
)
from rff_dist.data.blocks import Block, BlockTask, cut_blocks
from rff_dist.data.columns import TEXT
from rff_dist.data.labelled import (
    GroupedDataset,
    LabelledDataset,
    class_weights,
    count_block,
)
from rff_dist.data.memory import ArrayDataset, SparseDataset
from rff_dist.engines.dask_arrays import DaskArrayDataset
from rff_dist.errors import DataError
from rff_dist.statistics.label_counts import count_labels
from rff_dist.storage.columns import as_column, open_column
from tests.dask_processes import scaled
from tests.refusals import each, for_each_refusal, once, refuses

N = 500
D = 3
NAMES = np.array(["setosa", "versicolor", "virginica"], object)
ROWS = ArrayDataset(np.ones((3, 1)))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, D)), rng.integers(0, 3, N), rng.random(N)


def sources(X, weight, folder):
    """Return the same rows and weights as every kind of dataset."""
    write_dataset(
        folder / "d.zarr", X, np.zeros(N), sample_weight=weight, chunk_rows=64
    )
    return {
        "array": ArrayDataset(X, None, weight, chunk_rows=64),
        "sparse": SparseDataset(sp.csr_matrix(X), None, weight),
        "stored": open_dataset(
            folder / "d.zarr", y=None, sample_weight="sample_weight"
        ),
        "Dask": DaskArrayDataset(
            da.from_array(X, chunks=(64, -1)), None, da.from_array(weight, chunks=64)
        ),
    }


def in_one_block(dataset):
    return dataset.read(Block(0, 0, dataset.n_samples))


def facts_of(counts):
    """Return all that counts hold, to be compared; their weights are equal to the
    bit.
    """
    return counts.labels.tolist(), counts.n_samples.tolist(), counts.weight


class TestLabels:
    @pytest.mark.parametrize(
        "labels", [NAMES, NAMES.astype("U"), np.array([7, -2, 300]), np.arange(3.0)]
    )
    def test_targets_are_those_of_a_label_binarizer(self, rows, labels, tmp_path):
        X, codes, weight = rows
        y = labels[codes]
        expected = LabelBinarizer(neg_label=-1).fit_transform(y)
        for source in sources(X, weight, tmp_path).values():
            counts = count_labels(as_column(y), source=source, engine=SerialEngine())
            dataset = LabelledDataset(source, as_column(y), counts.classes)
            read = in_one_block(dataset)
            assert_array_equal(read.y, expected)
            assert_array_equal(read.X, X)
            assert_array_equal(read.sample_weight, weight)
            assert (dataset.n_targets, dataset.one_dimensional, dataset.weighted) == (
                3,
                False,
                True,
            )
            some = dataset.take(np.array([400, 3, 3]))
            assert_array_equal(some.y, expected[[400, 3, 3]])
            assert_array_equal(some.X, X[[400, 3, 3]])

    def test_two_classes_make_one_column_and_the_second_is_positive(self, rows):
        X, codes, _ = rows
        dataset = LabelledDataset(
            ArrayDataset(X), as_column(codes == 1), np.array([False, True])
        )
        assert_array_equal(
            in_one_block(dataset).y[:, 0], np.where(codes == 1, 1.0, -1.0)
        )
        assert (dataset.n_targets, dataset.one_dimensional, dataset.weighted) == (
            1,
            True,
            False,
        )

    def test_class_weights_multiply_sample_weights(self, rows):
        X, codes, weight = rows
        factors = np.array([1.0, 2.0, 0.5])
        for own, expected in (
            (None, factors[codes]),
            (weight, weight * factors[codes]),
        ):
            dataset = LabelledDataset(
                ArrayDataset(X, None, own), as_column(codes), np.arange(3), factors
            )
            assert dataset.weighted
            assert_array_equal(in_one_block(dataset).sample_weight, expected)
            assert_array_equal(dataset.read_weight(Block(0, 10, 20)), expected[10:20])
            assert_array_equal(
                dataset.take(np.array([9, 1])).sample_weight, expected[[9, 1]]
            )

    @pytest.mark.parametrize(
        ("labels", "classes", "names"),
        [
            (
                ["a", "x", "b"],
                ["a", "b"],
                ("y is 'x'", "row 1", "2 classes", "'a', 'b'"),
            ),
            ([1, 2, 9], [1, 2], ("y is 9", "row 2", "2 classes", "1, 2")),
            ([0, 2, 1], [1, 2], ("y is 0", "row 0")),
            (["1", "2", "1"], [1, 2], ("y holds text", "classes are numbers")),
            ([1, 2, 1], ["1", "2"], ("y holds numbers", "classes are text")),
        ],
    )
    def test_a_label_that_is_no_class_is_named_with_its_row(
        self, labels, classes, names
    ):
        for kind in (list, lambda values: np.array(values, object)):
            dataset = LabelledDataset(
                ROWS, as_column(kind(labels)), np.asarray(kind(classes))
            )
            with refuses(DataError, *names):
                dataset.read(Block(0, 0, 3))

    def test_the_fingerprint_follows_rows_labels_classes_and_weights(self):
        X = np.arange(3.0)[:, np.newaxis]
        y = as_column([1, 2, 1])
        classes = np.array([1, 2])
        variants = [
            LabelledDataset(ArrayDataset(X), y, classes),
            LabelledDataset(ArrayDataset(X + 1), y, classes),
            LabelledDataset(ArrayDataset(X), as_column([1, 2, 2]), classes),
            LabelledDataset(ArrayDataset(X), y, np.array([1, 2, 3])),
            LabelledDataset(ArrayDataset(X), y, classes, np.ones(2)),
            GroupedDataset(ArrayDataset(X), y),
            GroupedDataset(ArrayDataset(X), as_column([1, 2, 2])),
        ]
        assert len({dataset.fingerprint() for dataset in variants}) == len(variants)

    def test_stored_rows_and_labels_pickle_as_their_urls(self, rows, tmp_path):
        X, codes, _ = rows
        write_dataset(tmp_path / "d.zarr", X, NAMES[codes], groups=codes)
        labels = open_column(tmp_path / "d.zarr", "y")
        dataset = GroupedDataset(
            LabelledDataset(
                open_dataset(tmp_path / "d.zarr", y=None), labels, NAMES, np.ones(3)
            ),
            open_column(tmp_path / "d.zarr", "groups"),
        )
        pickled = pickle.dumps(dataset)
        assert len(pickled) < 2000
        again = pickle.loads(pickled)
        assert again.fingerprint() == dataset.fingerprint()
        assert_array_equal(in_one_block(again).y, in_one_block(dataset).y)
        assert_array_equal(in_one_block(again).groups, codes)


def test_groups_come_with_their_rows_from_every_kind_of_dataset(rows, tmp_path):
    X, codes, weight = rows
    for source in sources(X, weight, tmp_path).values():
        dataset = GroupedDataset(source, as_column(NAMES[codes]))
        read = dataset.read(Block(0, 100, 200))
        assert read.groups.tolist() == NAMES[codes][100:200].tolist()
        assert_array_equal(read.X, X[100:200])
        assert_array_equal(dataset.take(np.array([5]))[0], X[5:6])
        assert_array_equal(dataset.read_weight(Block(0, 0, 9)), weight[:9])


class TestCounts:
    @given(
        st.lists(
            st.tuples(
                st.sampled_from(["", "a", "bb", "é"]),
                st.floats(0, 1e300, allow_nan=False) | st.integers(0, 3).map(float),
            ),
            min_size=1,
            max_size=30,
        ),
        st.integers(1, 30),
    )
    def test_blocks_do_not_change_a_bit(self, pairs, rows_per_block):
        labels = np.array([label for label, _ in pairs], TEXT)
        weight = np.array([value for _, value in pairs])
        blocks = [
            slice(b.start, b.stop)
            for b in cut_blocks(len(pairs), 1, rows_per_block=rows_per_block)
        ]
        whole = count_block(labels, weight)
        parts = functools.reduce(
            operator.add, (count_block(labels[rows], weight[rows]) for rows in blocks)
        )
        assert facts_of(parts) == facts_of(whole)
        assert whole.labels.tolist() == sorted(set(labels.tolist()))

    def test_rows_and_weights_are_those_of_each_label(self, rows):
        X, codes, weight = rows
        counts = count_labels(
            as_column(NAMES[codes]),
            source=ArrayDataset(X, None, weight),
            engine=SerialEngine(),
        )
        assert counts.classes.tolist() == NAMES.tolist()
        assert counts.classes.dtype == object
        assert_array_equal(counts.n_samples, np.bincount(codes))
        # bincount rounds
        assert_allclose(counts.weight.value(), np.bincount(codes, weight), rtol=1e-14)

    def test_stored_labels_are_counted_without_reading_x(self, tmp_path):
        write_dataset(
            tmp_path / "d.zarr",
            np.ones((9, 1)),
            [1, 2, 1] * 3,
            sample_weight=np.arange(9.0),
        )
        source = open_dataset(
            tmp_path / "d.zarr", y=None, sample_weight="sample_weight"
        )
        (tmp_path / "d.zarr" / "X" / "c" / "0" / "0").unlink()
        counts = count_labels(
            open_column(tmp_path / "d.zarr", "y"), source=source, engine=SerialEngine()
        )
        assert counts.n_samples.tolist() == [6, 3]
        assert counts.weight.value().tolist() == [0 + 2 + 3 + 5 + 6 + 8, 1 + 4 + 7]


class TestClassWeights:
    @pytest.mark.parametrize("labels", [NAMES, np.array([3, 5, 9])])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_they_are_scikit_learns(self, rows, labels, weighted):
        _, codes, weight = rows
        y = labels[codes]
        weight = weight if weighted else None
        counts = count_block(as_column(y).values, weight)
        classes = labels.tolist()
        for how in (
            "balanced",
            {classes[0]: 2.0, classes[1]: 1.0, classes[2]: 0.0},
            None,
        ):
            expected = compute_class_weight(
                how, classes=labels, y=y, sample_weight=weight
            )
            found = class_weights(how, counts)
            # rounding of the sums, which scikit-learn makes in float64
            assert_allclose(
                np.ones(3) if found is None else found, expected, rtol=1e-13
            )


def weigh(how, weight=None):
    return class_weights(how, count_block(np.array([1, 2, 1]), weight))


def count(labels, weight=None):
    return count_labels(
        as_column(labels),
        source=ArrayDataset(ROWS.X, None, weight),
        engine=SerialEngine(),
    )


bad_data = functools.partial(once, error=DataError)


@for_each_refusal(
    bad_data(
        lambda: LabelledDataset(ROWS, as_column([1, 1, 1]), np.array([1])),
        "1 class",
        "2 classes",
    ),
    bad_data(
        lambda: LabelledDataset(ROWS, as_column([1, 2]), np.array([1, 2])), "3", "2"
    ),
    bad_data(lambda: GroupedDataset(ROWS, as_column([1, 2])), "3", "2"),
    bad_data(lambda: count([1, 2]), "3", "2"),
    bad_data(
        lambda: count_labels(as_column(np.array([], int)), engine=SerialEngine()),
        "0 rows",
    ),
    bad_data(lambda: count([1, 2, 1], [1, 2, -1.0]), "sample_weight is -1.0", "row 2"),
    bad_data(lambda: count([1, 2, 1], [1, 2, np.nan]), "sample_weight is nan", "row 2"),
    bad_data(lambda: count([1, 2, 1], [1, 2, np.inf]), "sample_weight is inf", "row 2"),
    bad_data(
        lambda: weigh("balanced", np.array([1.0, 0.0, 1.0])),
        "class 2",
        "sample_weight",
        "0",
    ),
    each(weigh, [{"x": 1.0}], "'x'", "1, 2"),
    each(weigh, [{1: -1.0}, {1: np.inf}], "finite and not negative"),
    each(weigh, ["heavy", [1, 2]], "'balanced'", "mapping"),
)
def test_wrong_labels_and_weights_are_refused(call, error, names):
    with refuses(error, *names):
        call()


def labels_and_groups(rows, _):
    """Return the block's rows as they arrived, one entry for each row."""
    return [
        (x, y.tolist(), w, str(g))
        for x, y, w, g in zip(
            rows.X[:, 0], rows.y, rows.sample_weight, rows.groups, strict=True
        )
    ]


@pytest.mark.distributed
class TestEngines:
    def test_codes_give_the_statistics_that_the_same_targets_give_on_both_engines(
        self, rows, tmp_path, embedded
    ):
        X, codes, weight = rows
        factors = np.array([1.0, 2.0, 0.5])
        feature_map = draw_feature_map("gaussian", n_features=D, n_components=16)
        targets = LabelBinarizer(neg_label=-1).fit_transform(codes)
        expected = accumulate(
            ArrayDataset(X, targets, weight * factors[codes], chunk_rows=64),
            feature_map,
        )
        write_dataset(tmp_path / "y.zarr", X, NAMES[codes], chunk_rows=50)
        column = {
            "stored": open_column(tmp_path / "y.zarr", "y"),
            "memory": as_column(NAMES[codes]),
        }
        found = sources(X, weight, tmp_path)
        pairs = (
            ("array", "memory"),
            ("stored", "stored"),
            ("Dask", "memory"),
            ("Dask", "stored"),
        )
        for kind, where in pairs:
            for engine in (SerialEngine(), scaled(embedded, 1)):
                counts = count_labels(column[where], source=found[kind], engine=engine)
                plain = count_labels(
                    column["memory"], source=found["array"], engine=engine
                )
                assert facts_of(counts) == facts_of(plain)
                dataset = LabelledDataset(
                    found[kind], column[where], counts.classes, factors
                )
                assert accumulate(dataset, feature_map, engine=engine) == expected

    def test_rows_of_a_dask_collection_meet_their_labels_and_groups_on_the_worker(
        self, rows, embedded
    ):
        X, codes, weight = rows
        source = DaskArrayDataset(da.from_array(X, chunks=(70, -1)), None, weight)
        dataset = GroupedDataset(
            LabelledDataset(source, as_column(NAMES[codes]), NAMES),
            as_column(codes[::-1]),
        )
        blocks = cut_blocks(N, 70, rows_per_block=140)
        passed = [
            engine.map_reduce(
                BlockTask(dataset, labels_and_groups),
                blocks,
                None,
                combine=operator.add,
            )
            for engine in (SerialEngine(), scaled(embedded, 1))
        ]
        assert passed[0] == passed[1]
        assert [group for *_, group in passed[0]] == [str(code) for code in codes[::-1]]
