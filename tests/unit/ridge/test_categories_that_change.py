"""Models with columns of categories follow their data as one pass over all rows would,
whatever list of levels each table came with.
"""

import numpy as np
import pandas as pd
import pytest
import zarr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom
from sklearn.linear_model import Ridge

from rff_dist import (
    RFFPCA,
    Gaussian,
    Linear,
    RFFKMeans,
    delete_rows,
    draw_feature_map,
    open_dataset,
)
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import StatisticsError
from rff_dist.features.nystrom import NystromFeatureMap
from rff_dist.fields import build
from rff_dist.kmeans.labels import label_in_memory
from rff_dist.living.drift import level_test
from rff_dist.living.merge import merge, refit_on
from rff_dist.living.ranges import count_rows
from rff_dist.pca.fit import project
from rff_dist.recipes.recipes import levels_of
from rff_dist.ridge.models import read_model, write_model
from rff_dist.ridge.predict import evaluate, predict, predict_in_memory
from rff_dist.statistics import passes
from rff_dist.workbench.jobs.forget import forget
from rff_dist.workbench.jobs.specs import Forget
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.tables.corrections import correct
from tests.covering import covering
from tests.living_data import BLOCK, CHUNK, ENGINE, refresh, watch_sums
from tests.plain import fit_ridge
from tests.refusals import refuses
from tests.tables import ingest, ingest_more, save

pytestmark = pytest.mark.usefixtures("small_tiles")

TOWNS = ["Bonn", "Köln", "Rom"]
EFFECTS = {"Bonn": -1.0, "Köln": 0.0, "Rom": 1.0, "Ulm": 2.0, "Aachen": -2.0}
SCALES = (1.0, 0.7)
OPTIONS = {
    "fourier": {"n_components": 16, "seed": 5},
    "nystrom": {"n_components": 8, "features": "nystrom"},
}


def rows(n, towns, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    town = rng.choice(towns, n)
    y = np.sin(x) + [EFFECTS[name] for name in town] + 0.1 * rng.standard_normal(n)
    return pd.DataFrame({"x": x, "town": town, "y": y})


def store(frame, url, **how):
    ingest(save(frame, f"{url}.csv"), url, target="y", chunk_rows=CHUNK, **how)
    return open_dataset(url)


def fit(dataset, features, **options):
    how = {"length_scale": SCALES, "alpha": 0.1, **OPTIONS[features], **options}
    return fit_ridge(dataset, Gaussian(), engine=ENGINE, **how)[0]


def coded(frame, texts):
    codes = [texts.index(name) for name in frame["town"]]
    return np.column_stack([frame["x"], codes])


def features_of(begun, texts):
    """The oracle: the first model's features, drawn for a list of the test's own."""
    standardizer = begun.feature_map.standardizer
    if begun.feature_map.kind == "nystrom":
        known = begun.feature_map.levels[1]
        centres = begun.feature_map.centres.copy()
        centres[:, 1] = [texts.index(known[int(code)]) for code in centres[:, 1]]
        kernel = Gaussian(SCALES).with_categories([1])
        jitter = begun.feature_map.jitter
        return NystromFeatureMap(kernel, centres, jitter, standardizer, {1: texts})
    return draw_feature_map(
        Gaussian(SCALES),
        n_features=2,
        n_components=begun.feature_map.n_components,
        random_state=begun.feature_map.spec.seed,
        standardizer=standardizer,
        levels={1: texts},
    )


def assert_like_one_pass(model, begun, frame):
    """One pass over these rows, in codes of the test's own, has the model's bits."""
    texts = tuple(sorted({*EFFECTS, "(nowhere)"}, reverse=True))
    held = ArrayDataset(coded(frame, texts), frame["y"].to_numpy(), chunk_rows=CHUNK)
    expected = passes.accumulate(
        held, features_of(begun, texts), engine=ENGINE, spec=begun.statistics.spec
    )
    assert model.statistics.digest() == expected.digest()
    assert model.statistics == expected
    Z = features_of(begun, texts).transform(held.X, dtype=np.float64)
    plain = Ridge(model.alpha).fit(Z, held.y)
    # rounding of a solve
    assert_allclose(model.coefficients[:, 0], plain.coef_, atol=1e-6)
    # rows by their texts, in the list of the model's card
    listed = levels_of(model.card)[1]
    assert model.feature_map.levels[1] == listed
    counts = [(frame["town"] == text).sum() for text in listed]
    assert model.columns.counts[1].tolist() == [*counts, 0]
    found = predict_in_memory(ArrayDataset(coded(frame, listed)), model, engine=ENGINE)[
        "predictions"
    ]
    assert_allclose(found, plain.predict(Z), atol=1e-6)


# -- updates


def append(frame, url):
    more = rows(300, ["Ulm", "Bonn", "Aachen"], 1)
    ingest_more(save(more, "more.csv"), url, target="y")
    return pd.concat([frame, more], ignore_index=True), None


def put_right(frame, url):
    new = rows(3, ["Ulm"], 2)
    places = [5, 700, 1400]
    correct(save(new.assign(row=places), "right.csv"), url, by="row")
    frame = frame.copy()
    frame.loc[places, new.columns] = new.to_numpy()
    return frame, None


def leave_out_a_level(frame, url):
    gone = np.flatnonzero(frame["town"] == "Rom")
    delete_rows(url, gone, keep_order=True)
    return frame.drop(index=gone), None


def move_the_window(frame, url):
    # the window of two loads begins with the second block
    kept = rows(BLOCK, ["Ulm", "Köln"], 3)
    ingest_more(save(kept, "kept.csv"), url, target="y")
    refresh("model", url, force=True)
    more = rows(2 * BLOCK, ["Aachen", "Rom"], 4)
    ingest_more(save(more, "window.csv"), url, target="y")
    return pd.concat([kept, more], ignore_index=True), "2"


@pytest.mark.filterwarnings("ignore:levels that are new")
@pytest.mark.parametrize(
    ("change", "features"),
    covering(
        [append, put_right, leave_out_a_level, move_the_window], list(OPTIONS), meet=1
    ),
)
def test_an_update_has_the_bits_of_one_pass(change, features):
    frame = rows(BLOCK if change is move_the_window else 1500, TOWNS, 0)
    begun = fit(store(frame, "d"), features)
    write_model(begun, "model")
    frame, window = change(frame, "d")
    record = refresh("model", "d", force=True, window=window)
    assert record["decision"] == "published"
    assert_like_one_pass(read_model("model"), begun, frame)


@pytest.mark.parametrize("features", OPTIONS)
def test_forgotten_levels_are_subtracted_by_the_texts_that_they_had(features):
    frame = rows(1500, TOWNS, 0)
    gone = [40, 700]
    frame.loc[gone, "town"] = "Aachen"
    begun = fit(store(frame, "d"), features)
    write_model(begun, "model")
    rows_file = save(pd.DataFrame({"row": gone}), "gone.csv")
    job = build(Forget, {"data": "d", "rows": str(rows_file), "models": ["model"]})
    with pytest.MonkeyPatch.context() as patched:
        summed = watch_sums(patched, lambda _, ranges, __: count_rows(ranges))
        forget(job, in_this_process(ENGINE))
    # a few tiles of before and now; all rows summed again would subtract nothing
    assert [n < 1000 for n in summed] == [True, True, True]
    # the last rows took their places
    x = open_dataset("d").take(np.arange(1498)).X[:, 0]
    left = frame.drop(index=gone).set_index("x").loc[x].reset_index()
    assert_like_one_pass(read_model("model"), begun, left)


def test_new_levels_are_never_seen_where_an_update_is_judged():
    store(rows(1500, TOWNS, 0), "d")
    begun = fit(open_dataset("d"), "fourier", n_components=256)
    write_model(begun, "model")
    test = rows(400, ["Ulm", "Aachen"], 4)
    store(test, "test")
    ingest_more(save(rows(900, ["Ulm", "Aachen"], 5), "more.csv"), "d", target="y")
    record = refresh("model", "d", test="test")
    # the champion has the mean of all levels for both
    errors = evaluate(open_dataset("test"), begun, engine=ENGINE)
    error = np.sqrt(errors.mean_squared_error)
    assert record["gate"]["champion"] == pytest.approx(error, rel=1e-12)
    assert record["progressive"]["rmse"] == pytest.approx(error, rel=0.2)
    assert record["gate"]["challenger"][0] < 0.2 * error[0]
    assert record["decision"] == "published"


@pytest.mark.parametrize("case", ["the same", "without a level", "a new level"])
def test_drift_of_categories_is_by_the_shares_of_levels(case):
    towns = ["Bonn", "Rom"] if case == "without a level" else TOWNS
    frame = rows(1500, TOWNS, 0)
    write_model(fit(store(frame, "d"), "fourier"), "model")
    more = rows(600, towns, 2)
    if case == "a new level":
        more.loc[:11, "town"] = "Ulm"
    ingest_more(save(more, "more.csv"), "d", target="y")
    drift = refresh("model", "d")["drift"]
    (found,) = [column for column in drift["columns"] if column["column"] == 1]
    counts = pd.concat([one["town"].value_counts() for one in (frame, more)], axis=1)
    table = counts.fillna(0).to_numpy().T
    distance = abs(np.subtract(*table / table.sum(axis=1, keepdims=True))).sum() / 2
    assert found["distance"] == pytest.approx(distance, rel=1e-12)
    assert ("columns" in drift["parts"]) == (case != "the same")
    law = binom(table.sum(axis=0), 600 / 2100)
    tails = np.minimum(law.cdf(table[1]), law.sf(table[1] - 1))
    # the levels of the list, and one for texts that are in none
    expected = 1 - (1 - min(1, 2 * tails.min())) ** (table.shape[1] + 1)
    # Šidák of p-values near 0 loses digits here, and none there
    assert found["p_value"] == pytest.approx(expected, rel=1e-6, abs=1e-15)


def test_false_alarms_of_levels_are_no_more_than_promised():
    """A test at 5 %; the deviation of 1,000 draws is 0.7 %."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(60, 0.3))  # some frequent, many rare
    for n_new in (5, 50, 1000):
        p_values = [
            level_test(*(rng.multinomial(n, shares) for n in (2000, n_new)))
            for _ in range(1000)
        ]
        assert np.mean(np.array(p_values) <= 0.05) <= 0.065
    # one row of a new level: chance is all that says in which set it is
    found = level_test(np.array([1000, 1000, 0]), np.array([50, 50, 1]))
    assert found == pytest.approx(1 - (1 - 2 * 101 / 2101) ** 3)


# -- rows of other lists


@pytest.mark.parametrize("features", OPTIONS)
def test_rows_with_another_list_are_predicted_by_their_texts(features):
    model = fit(store(rows(1500, TOWNS, 0), "d"), features)
    others = rows(700, ["Ulm", "Rom", "Bonn"], 6)
    dataset = store(others, "others", id=None)
    assert levels_of(dataset.attributes)[1] != levels_of(model.card)[1][:3]
    listed = (*TOWNS, "Ulm")  # its code is beyond the list of the model
    assert levels_of(model.card) == {1: tuple(TOWNS)}
    expected = predict_in_memory(
        ArrayDataset(coded(others, listed)), model, std=True, engine=ENGINE
    )
    found = predict_in_memory(dataset, model, std=True, engine=ENGINE)
    for name, values in expected.items():
        assert_array_equal(found[name], values)
    is_new = (others["town"] == "Ulm").to_numpy()
    deviations = found["standard_deviations"]
    assert deviations[is_new].min() > deviations[~is_new].max()
    assert np.median(deviations[is_new]) > 2 * deviations[~is_new].max()
    predict(dataset, model, "out", engine=ENGINE)
    written = zarr.open_group("out", mode="r")["predictions"][:]
    assert_array_equal(written, expected["predictions"])


def test_clusters_and_components_know_rows_of_another_list_by_their_texts():
    dataset = store(rows(600, TOWNS, 0), "d")
    others = rows(300, ["Ulm", "Rom", "Bonn"], 6)
    stored = store(others, "others")
    # in the codes of the first list; the last is never seen
    same = ArrayDataset(coded(others, (*TOWNS, "Ulm")))
    how = {"length_scale": 1.0, "engine": ENGINE}
    clusters = RFFKMeans(4, n_components=64, **how).fit(dataset).clusters_
    labels = [label_in_memory(one, clusters, engine=ENGINE) for one in (stored, same)]
    assert_array_equal(*labels)
    projection = RFFPCA(2, n_random_features=64, **how).fit(dataset).projection_
    for name, one in (("by text", stored), ("by code", same)):
        project(one, projection, name, engine=ENGINE)
    scores = [
        zarr.open_group(name, mode="r")["X"][:] for name in ("by text", "by code")
    ]
    assert_array_equal(*scores)


# -- sites


@pytest.mark.parametrize("features", OPTIONS)
def test_merged_sites_have_the_bits_of_one_pass_over_the_union(features):
    parts = [
        rows(4 * BLOCK, ["Rom", "Bonn"], 0),
        rows(3 * BLOCK, ["Ulm", "Köln", "Bonn"], 1),
        rows(400, ["Aachen", "Rom"], 2),
    ]
    first, *others = [store(part, f"site{i}") for i, part in enumerate(parts)]
    begun = fit(first, features)
    models = [begun, *(refit_on(begun, one, engine=ENGINE) for one in others)]
    frame = pd.concat(parts, ignore_index=True)
    merged = merge(models, "abc")
    assert_like_one_pass(merged, begun, frame)
    assert set(merged.feature_map.levels[1]) == set(EFFECTS)
    in_turn = merge([merge(models[1:], "bc"), begun], "ab")
    assert in_turn.statistics == merged.statistics
    write_model(merged, "merged")
    assert read_model("merged").digest() == merged.digest()
    whole = refit_on(begun, store(frame, "whole"), engine=ENGINE)
    assert_array_equal(whole.coefficients, merged.coefficients)


def test_components_of_other_levels_do_not_add_up():
    sites = [
        store(rows(600, towns, i), f"site{i}")
        for i, towns in enumerate([["Rom", "Bonn"], ["Ulm", "Bonn"]])
    ]
    how = {"alpha": 0.1, "standardize": False, "n_components": 4}
    first, second = [fit_ridge(one, Linear(), engine=ENGINE, **how)[0] for one in sites]
    with refuses(StatisticsError, "a and b", "Rom", "Ulm", "rff-dist refit a DATA b"):
        merge([first, second], "ab")
    # levels that joined later have no component
    refitted = refit_on(first, sites[1], engine=ENGINE)
    merged = merge([first, refitted], "ab")
    assert merged.feature_map.n_components == first.feature_map.n_components
    assert merged.feature_map.levels[1] == ("Bonn", "Rom", "Ulm")
