"""`rff-dist split`: rows to train on and rows to test on."""

import numpy as np
import pytest

from rff_dist import append_dataset, open_dataset, write_dataset
from rff_dist.storage import writing
from rff_dist.storage.columns import open_column
from rff_dist.workbench.jobs import split as module
from rff_dist.workbench.jobs.specs import Split
from tests.command_line import document, refusal
from tests.seen import seen

N = 2000


@pytest.fixture(params=[False, True], ids=["plain", "versioned"])
def data(tmp_path, request):
    X = np.column_stack([np.arange(N), np.random.default_rng(0).permutation(N)]).astype(float)
    names = {"feature_names": ["row", "when"], "target_names": ["y"]}
    groups = np.array([f"g{i % 50}" for i in range(N)])
    given = {"sample_weight": X[:, 1] + 1, "groups": groups, "versioned": request.param, **names}
    write_dataset(tmp_path / "d.zarr", X, 2.0 * X[:, 0], **given)
    return tmp_path / "d.zarr"


def rows_of(folder, part):
    dataset = open_dataset(folder / f"d-{part}.zarr", sample_weight="sample_weight")
    X, y, weights = dataset.take(np.arange(dataset.n_samples))
    np.testing.assert_array_equal(y[:, 0], 2 * X[:, 0])  # rows stay together
    np.testing.assert_array_equal(weights, X[:, 1] + 1)
    assert dataset.feature_names == ("row", "when")
    assert dataset.target_names == ("y",)
    assert (dataset.version is None) == (open_dataset(folder / "d.zarr").version is None)
    return X.astype(int)


def test_each_row_is_in_one_part_and_another_seed_takes_others(data, tmp_path):
    tests = []
    for seed in (0, 0, 1):
        found = document("split", data, "--holdout", "25%", "--seed", seed, "--overwrite")
        train, test = (rows_of(tmp_path, part)[:, 0] for part in ("train", "test"))
        assert sorted([*train, *test]) == list(range(N))
        assert (found["n_train"], found["n_test"]) == (len(train), len(test))
        assert abs(len(test) - 500) < 100  # 5 deviations of 19
        tests.append(test.tolist())
    assert tests[0] == tests[1] != tests[2]


def values_in_parts(folder, name):
    return [set(open_column(folder / f"d-{part}.zarr", name).array[:].tolist()) for part in ("train", "test")]


def test_groups_stay_together(data, tmp_path):
    document("split", data, "--by", "group")
    train, test = values_in_parts(tmp_path, "groups")
    assert not train & test
    assert len(train) + len(test) == 50


@pytest.mark.parametrize(("time", "column"), [((), 0), (("--time", "when"), 1)])
def test_the_last_rows_are_tested_on(data, tmp_path, time, column):
    document("split", data, "--by", "time", *time, "--holdout", "0.1")
    train, test = rows_of(tmp_path, "train"), rows_of(tmp_path, "test")
    assert (len(train), len(test)) == (1800, 200)
    assert train[:, column].max() < test[:, column].min()


ROWS = np.arange(100.0)[:, np.newaxis], np.arange(100.0)


def test_parts_are_called_after_the_rows_in_a_folder_of_tests_too(tmp_path):
    url = tmp_path / "a-test" / "d.zarr"
    write_dataset(url, *ROWS)
    document("split", url)
    assert {path.name for path in url.parent.glob("*.zarr")} == {"d.zarr", "d-train.zarr", "d-test.zarr"}


def test_both_parts_are_of_one_version(tmp_path, monkeypatch):
    url, write = tmp_path / "d.zarr", writing.write_batches
    write_dataset(url, *ROWS, versioned=True)

    def write_late(*given, **named):
        append_dataset(url, *ROWS)
        return write(*given, **named)

    monkeypatch.setattr(module, "writing", seen(writing, write_batches=write_late))
    found = module.split(Split(data=str(url), holdout=0.3))
    assert found.n_train + found.n_test == 100
    assert open_dataset(url).n_samples == 300


def test_a_version_of_before_is_split(tmp_path):
    url = tmp_path / "d.zarr"
    version = write_dataset(url, *ROWS, versioned=True).version
    append_dataset(url, *ROWS)
    found = document("split", url, "--version", version, "--holdout", "0.3")
    assert found["n_train"] + found["n_test"] == 100
    assert "no version" in refusal(65, "split", url, "--version", "nothing", "--overwrite")
