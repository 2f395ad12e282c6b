"""Merging models that were trained separately gives the bits of one pass over all rows,
or an error.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import Ridge

from rff_dist import (
    SerialEngine,
    append_dataset,
    load_model,
    merge_models,
    open_dataset,
    save_model,
    write_dataset,
)
from rff_dist.data import blocks
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import InvalidParameterError, StatisticsError
from rff_dist.living.merge import merge, refit_on
from rff_dist.ridge.models import read_model
from rff_dist.ridge.predict import predict_in_memory
from rff_dist.statistics import passes
from tests.command_line import PLAIN, document, refusal
from tests.living_data import fit
from tests.plain import plain_ridge
from tests.refusals import refuses
from tests.tables import all_rows

ENGINE = SerialEngine(1)
BLOCK = 256


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "MIN_BLOCK_ROWS", BLOCK)
        yield


def draw(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) + seed
    return X, np.sin(X[:, 0]) + 0.1 * rng.standard_normal(n) + 5 * seed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hospitals")


@pytest.fixture(scope="module")
def parts(folder):
    """Rows of three hospitals; all but the last end with a whole block."""
    sizes = (4 * BLOCK, 3 * BLOCK, 500)
    rows = [draw(n, seed) for seed, n in enumerate(sizes)]
    datasets = [
        write_dataset(folder / f"{i}.zarr", *one, chunk_rows=128)
        for i, one in enumerate(rows)
    ]
    X, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    return datasets, write_dataset(folder / "all.zarr", X, y, chunk_rows=128)


@pytest.mark.parametrize("precision", ["standard", "high"])
@pytest.mark.parametrize("alpha", [0.1, "gcv"])
def test_merged_models_have_the_bits_of_one_pass_over_all_rows(parts, alpha, precision):
    datasets, whole = parts
    first = fit(datasets[0], alpha=alpha, precision=precision)
    models = [
        first,
        *(refit_on(first, dataset, engine=ENGINE) for dataset in datasets[1:]),
    ]
    merged = merge(models, "abc")
    expected = passes.accumulate(
        whole, first.feature_map, engine=ENGINE, spec=first.statistics.spec
    )
    assert merged.statistics == expected
    assert (
        merged.statistics.digest()
        == merged.card["statistics_digest"]
        == expected.digest()
    )
    rows = all_rows(whole)
    Z = first.feature_map.transform(rows.X)
    plain = Ridge(merged.alpha).fit(Z, rows.y[:, 0])
    found = predict_in_memory(ArrayDataset(rows.X), merged, engine=ENGINE)[
        "predictions"
    ]
    # cosines of 15 bits in float64 against float64 sums of the same: rounding of a
    # solve
    assert_allclose(found, plain.predict(Z), atol=1e-6)
    assert_allclose(merged.columns.mean, rows.X.mean(axis=0), atol=1e-12)
    pairs = [
        merge([merge(models[:2], "ab"), models[2]], "ab"),
        merge(models[::-1], "cba"),
    ]
    assert all(one.statistics == merged.statistics for one in pairs)
    assert len(pairs[0].card["merged"]) == 3


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("kernel", {"length_scale": 2.0}),
        ("n_components", {"n_components": 32}),
        ("precision", {"precision": "high"}),
        ("`map`", {"map": "phases"}),
        ("seed", {"seed": 3}),
        ("fit_intercept", {"fit_intercept": False}),
    ],
)
def test_the_first_field_that_differs_is_named(parts, field, options):
    (first, *_), _ = parts
    with refuses(StatisticsError, "a and b", field, "rff-dist refit a DATA b"):
        merge([fit(first), fit(first, **options)], "ab")


def test_standardisation_and_offsets_of_other_rows_are_another_spec(parts):
    (first, second, _), _ = parts
    with refuses(StatisticsError, "standardize", "partial_fit"):
        merge([fit(first), fit(second)], "ab")
    plain = {"standardize": False}
    with refuses(StatisticsError, "target_offset"):
        merge([fit(first, **plain), fit(second, **plain)], "ab")


def test_the_same_rows_do_not_count_twice(parts):
    (first, _, third), _ = parts
    second = write_dataset(
        "second", *draw(3 * BLOCK, 1), chunk_rows=128, versioned=True
    )
    model = fit(second)
    append_dataset(second.url, *draw(100, 7))
    later = refit_on(model, open_dataset(second.url), engine=ENGINE)
    with refuses(StatisticsError, "a and b were trained on versions of one dataset"):
        merge([model, later], "ab")
    others = [refit_on(model, one, engine=ENGINE) for one in (first, third)]
    with refuses(StatisticsError, "data of the same fingerprint"):
        merge([merge([model, others[0]], "ab"), merge(others, "bc")], ["ab", "bc"])


def test_what_has_no_sums_is_not_merged(parts):
    (first, *_), _ = parts
    model = fit(first)
    with refuses(StatisticsError, "no sums"):
        merge([model, model.without_statistics()], "ab")
    with refuses(InvalidParameterError, "two or more"):
        merge([model], "a")


def test_estimators_are_merged_after_loading(parts):
    (first, second, _), _ = parts
    estimator = plain_ridge(n_components=16, alpha=0.1, engine=ENGINE).fit(first)
    save_model(refit_on(estimator.model_, second, engine=ENGINE), "second")
    merged = merge_models([estimator, load_model("second")])
    assert merged.statistics_.n_samples == first.n_samples + second.n_samples
    X = draw(10, 0)[0]
    save_model(merged, "merged")
    assert_array_equal(load_model("merged").predict(X), merged.predict(X))
    with refuses(InvalidParameterError, "1"):
        merge_models([estimator, 3])


@pytest.mark.usefixtures("parts")
def test_at_the_command_line(folder, monkeypatch):
    monkeypatch.chdir(folder)
    document("fit", "0.zarr", "north", *PLAIN, "--n-components 16 --serial")
    document("refit", "north", "1.zarr", "south", "--serial")
    found = document("merge", "north", "south", "--model models/both --register")
    assert (found["n_samples"], found["version"], len(found["rows"])) == (
        7 * BLOCK,
        1,
        2,
    )
    merged = read_model("models/both")
    assert merged.digest() == found["digest"]
    document("evaluate", "models/both", "all.zarr", "--serial")
    assert "north and north were trained on data" in refusal(
        1, "merge", "north", "north", "--model x"
    )
    assert "--models and --model" in refusal(
        73, "merge", "north", "south", "--model south"
    )
    assert "--overwrite" in refusal(73, "merge", "north", "south", "--model all.zarr")
    assert "nothing is there" in refusal(65, "merge", "north", "east", "--model x")
    assert "does not say which rows" in refusal(
        1, "update", "models/both", "0.zarr", "--serial"
    )
