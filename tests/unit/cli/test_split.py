"""`rff-dist ingest --holdout` of a dataset: rows to train on and rows to test on."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from rff_dist import append_dataset, open_dataset, write_dataset
from rff_dist.storage import writing
from rff_dist.storage.columns import open_column
from rff_dist.workbench.tables import parts as module
from tests.command_line import document, refusal
from tests.seen import seen

N = 2000


@pytest.fixture(params=[None, "groups"])
def data(tmp_path, request):
    X = np.column_stack([np.arange(N), np.random.default_rng(0).permutation(N)]).astype(
        float
    )
    names = {"feature_names": ["row", "when"], "target_names": ["y"]}
    if request.param == "groups":
        names["groups"] = np.array([f"g{i % 50}" for i in range(N)])
    write_dataset("d.zarr", X, 2.0 * X[:, 0], sample_weight=X[:, 1] + 1, **names)
    return tmp_path / "d.zarr"


def split(data, *options):
    document("ingest", data, data.parent / "e.zarr", *options)
    return [rows_of(data.parent / name) for name in ("e.zarr", "e-test.zarr")]


def rows_of(url):
    dataset = open_dataset(url, sample_weight="sample_weight")
    X, y, weights = dataset.take(np.arange(dataset.n_samples))
    assert_array_equal(y[:, 0], 2 * X[:, 0])  # rows stay together
    assert_array_equal(weights, X[:, 1] + 1)
    assert dataset.feature_names == ("row", "when")
    assert dataset.target_names == ("y",)
    assert dataset.version is not None
    return X.astype(int)


def test_each_row_is_in_one_part_and_groups_stay_together(data, tmp_path):
    tests = []
    for seed in (0, 0, 1):
        train, test = split(data, "--holdout 25% --seed", seed, "--overwrite")
        assert sorted([*train[:, 0], *test[:, 0]]) == list(range(N))
        # 5 deviations of 19 rows, or of 3 groups of 40 rows
        has_groups = (data / "groups").exists()
        assert abs(len(test) - 500) < (640 if has_groups else 100)
        tests.append(test[:, 0].tolist())
        if has_groups:
            groups = [
                set(open_column(tmp_path / name, "groups").array[:].tolist())
                for name in ("e.zarr", "e-test.zarr")
            ]
            assert not groups[0] & groups[1]
            assert len(groups[0]) + len(groups[1]) == 50
    assert tests[0] == tests[1] != tests[2]


@pytest.mark.parametrize("column", [0, 1])
def test_the_last_rows_by_a_column_are_tested_on(data, column):
    by = ("row", "when")[column]
    train, test = split(data, "--holdout 0.1 --holdout-by", by)
    assert (len(train), len(test)) == (1800, 200)
    assert train[:, column].max() < test[:, column].min()


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        (2, "--holdout 20% --targets y", "targets"),
        (2, "--holdout 20% --impute median", "impute"),
        (2, "--holdout 20% --holdout-by day", "day"),
        (65, "--holdout 0.001", "0 of 20"),
        (65, "--plain", "Zarr"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, code, options, said):
    write_dataset("d.zarr", np.ones((20, 1)), feature_names=["row"])
    message = refusal(code, "ingest", "d.zarr", "e.zarr", options)
    assert said in message
    assert [path.name for path in tmp_path.iterdir()] == ["d.zarr"]


def test_both_parts_are_of_one_version(tmp_path, monkeypatch):
    rows = np.arange(100.0)[:, np.newaxis], np.arange(100.0)
    url = tmp_path / "d.zarr"
    write = writing.write_batches
    write_dataset(url, *rows, versioned=True)

    def write_late(*given, **named):
        append_dataset(url, *rows)
        return write(*given, **named)

    monkeypatch.setattr(module, "writing", seen(writing, write_batches=write_late))
    found = document("ingest", url, "e.zarr", "--holdout 0.3 --plain")
    assert found["n_samples"] + found["test"]["n_samples"] == 100
    assert open_dataset(url).n_samples == 300
