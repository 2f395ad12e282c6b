"""Runs that update a stored model: what is published, what is kept out, and what a
later run makes of it.
"""

import json
import uuid

import numpy as np
import pytest

from rff_dist import Gaussian, SerialEngine
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import PlanError
from rff_dist.fields import build
from rff_dist.fitting.plan import plan_on_engine
from rff_dist.fitting.sizes import SumOptions
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import read_model, write_model
from rff_dist.ridge.predict import predict_in_memory
from rff_dist.statistics import passes
from rff_dist.storage.locations import parse_location
from rff_dist.text import human_bytes
from rff_dist.workbench.jobs import refresh, refusals
from rff_dist.workbench.jobs.publishing import publish
from rff_dist.workbench.jobs.specs import Update
from rff_dist.workbench.jobs.steps import in_this_process
from rff_dist.workbench.results import updates
from tests.living_data import batch
from tests.places import scratch
from tests.plain import fit_ridge
from tests.refusals import refuses

ENGINE = SerialEngine(1)
FIRST = 1200


class Data:
    """A dataset that grows."""

    def __init__(self):
        self.parts = [batch(0, FIRST)]

    def append(self, *args, **options):
        self.parts.append(batch(*args, **options))

    @property
    def now(self):
        X, y = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        return ArrayDataset(X, y, chunk_rows=500)


@pytest.fixture
def data():
    return Data()


def fit(data):
    model, _ = fit_ridge(
        data.now,
        Gaussian(),
        engine=ENGINE,
        length_scale=2.0,
        n_components=32,
        alpha=0.1,
    )
    return model


@pytest.fixture
def url():
    """Return a place that no other test has."""
    return scratch(f"refresh-{uuid.uuid4().hex}")


@pytest.fixture
def place(data, url):
    """Return where a model is."""
    write_model(fit(data), url)
    return url


@pytest.fixture
def registered(data, url):
    """Return where a registered model is."""
    publish(fit(data), url, data=None, reason="trained")
    return url


@pytest.fixture(params=["place", "registered"])
def any_place(request):
    return request.getfixturevalue(request.param)


def run(url, dataset, *, test=None, held_out=None, **options):
    job = build(Update, {"model": url, "data": "rows in memory", **options})
    do = in_this_process(ENGINE)
    parts = {"test": test, "held_out": held_out}
    return refresh.update_from(job, dataset, do, **parts).record


def at_once(data):
    """Return the digest of one pass over all rows with the features and grids of the
    first fit.
    """
    model = fit(Data())
    statistics = passes.accumulate(
        data.now, model.feature_map, engine=ENGINE, spec=model.statistics.spec
    )
    return statistics.digest()


def test_new_rows_are_published_and_a_second_run_has_nothing_to_do(any_place, data):
    data.append(1)
    result = run(any_place, data.now)
    assert (result["decision"], result["n_new"], result["n_samples"]) == (
        "published",
        400,
        1600,
    )
    assert result["statistics_digest"] == at_once(data)
    published = read_model(any_place)
    assert published.digest() == result["digest"]
    assert published.statistics.digest() == result["statistics_digest"]
    assert published.card["update"]["progressive"] == result["progressive"]
    again = run(any_place, data.now)
    assert (again["decision"], again["n_new"], again["digest"]) == (
        "nothing new",
        0,
        result["digest"],
    )
    json.dumps([result, again], allow_nan=False)


def test_a_version_has_the_digest_of_the_rows_that_it_was_judged_on(registered, data):
    test = ArrayDataset(*batch(9, 300))
    for seed, judged_by in ((1, test), (2, test), (3, None)):
        data.append(seed)
        run(registered, data.now, test=judged_by)
    _, *updated = RegisteredModel(registered).versions()
    first, second, third = [version.lineage["judged_on"] for version in updated]
    assert first == second == test.fingerprint() != third
    held_out = ArrayDataset(*batch(8, 300))
    data.append(4)
    record = run(registered, data.now, held_out=held_out)
    lineage = RegisteredModel(registered).current().lineage
    assert lineage["judged_on"] == held_out.fingerprint()
    predictions = predict_in_memory(held_out, read_model(registered), engine=ENGINE)
    residuals = predictions["predictions"].ravel() - batch(8, 300)[1].ravel()
    assert lineage["errors"]["rmse"] == pytest.approx([np.sqrt(np.mean(residuals**2))])
    assert record["metrics"]["rmse"] == lineage["errors"]["rmse"]


def test_no_drift_is_said_with_the_level_that_several_tests_share(registered, data):
    data.append(1)
    record = run(registered, data.now)
    record["drift"]["drifted"] = False
    words = updates.update_facts(record)["drift"]
    level = 0.05 / len(record["drift"]["p_values"])
    assert f"no p-value is at most {level:.2g}, the level 0.05 divided" in words


def test_a_bad_batch_is_kept_out_and_the_next_good_one_is_judged_on_its_own(
    any_place, data
):
    before = read_model(any_place)
    data.append(1, bad=True)
    kept = run(any_place, data.now)
    assert kept["decision"] == "kept"
    assert "with 99% confidence over 5% higher" in kept["reason"]
    assert "errors" in kept["drift"]["parts"]
    after = read_model(any_place)
    assert after.digest() == before.digest()
    assert after.statistics == before.statistics
    assert after.card == before.card
    again = run(any_place, data.now)
    assert again["left_out_because"] == [kept["reason"]]
    assert again["reason"] == "the model holds 1,200 of 1,600 rows of the dataset"
    data.append(2)
    good = run(any_place, data.now)
    assert good["decision"] == "published"
    assert "; 400 rows were left out" in updates.decision_words(good)
    for waiting in (again, good):
        facts = updates.update_facts(waiting)
        assert facts["left out"] == f"rows 1,200 to 1,599: {kept['reason']}"
        assert "--backfill 1200" in facts["to judge them again"]
    assert (good["new"], good["left_out"]) == ([[1600, 2000]], [[1200, 1600]])
    assert good["n_samples"] == 1600
    assert read_model(any_place).card["left_out"] == [[1200, 1600]]


def test_a_backfill_judges_refused_rows_again_and_force_takes_them(place, data):
    data.append(1, bad=True)
    run(place, data.now)
    data.append(2)
    run(place, data.now)
    assert run(place, data.now, backfill=1600)["decision"] == "nothing new"
    assert run(place, data.now, backfill=0)["decision"] == "kept"
    assert [one.start for one in refusals.read_refusals(parse_location(place))] == [
        1200
    ]
    forced = run(place, data.now, backfill=0, force=True)
    assert forced["decision"] == "published"
    assert forced["reason"].startswith("forced, although RMSE is ")
    assert forced["statistics_digest"] == at_once(data)
    assert refusals.read_refusals(parse_location(place)) == []


def test_a_dry_run_writes_nothing(place, data):
    before = read_model(place)
    data.append(1, bad=True)
    assert run(place, data.now, dry_run=True)["decision"] == "would be kept"
    assert refusals.read_refusals(parse_location(place)) == []
    assert (
        run(place, data.now, dry_run=True, force=True)["decision"]
        == "would be published"
    )
    assert (
        run(place, data.now, dry_run=True, tolerance=1e6)["decision"]
        == "would be published"
    )
    assert read_model(place).card == before.card


def test_a_run_that_died_before_publishing_is_repeated_to_the_same_digest(
    place, data, monkeypatch
):
    data.append(1)
    before = read_model(place).digest()
    with monkeypatch.context() as patched:
        patched.setattr(refresh, "publish_update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(place, data.now)
    assert read_model(place).digest() == before
    assert run(place, data.now)["statistics_digest"] == at_once(data)


def test_rows_of_a_version_that_was_rolled_back_stay_out(registered, data):
    for seed in (1, 2):
        data.append(seed)
        run(registered, data.now)
    RegisteredModel(registered).rollback()
    # over an older one, which is rolling back too
    RegisteredModel(registered).promote(1)
    nothing = run(registered, data.now)
    assert nothing["decision"] == "nothing new"
    assert nothing["left_out_because"] == [
        "version 2 was rolled back; version 3 was rolled back"
    ]
    assert nothing["left_out"] == [[1200, 2000]]
    data.append(3)
    result = run(registered, data.now)
    assert (result["new"], result["left_out"]) == ([[2000, 2400]], [[1200, 2000]])
    assert result["version"] == 4
    assert run(registered, data.now, backfill=0)["statistics_digest"] == at_once(data)


@pytest.mark.faults("F17")
def test_rows_of_a_version_that_could_not_be_promoted_are_added_next_time(
    registered, data, monkeypatch
):
    data.append(1)
    with monkeypatch.context() as patched:
        patched.setattr(RegisteredModel, "promote", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(registered, data.now)
    model = RegisteredModel(registered)
    assert ([one.number for one in model.versions()], model.current().number) == (
        [1, 2],
        1,
    )
    again = run(registered, data.now)
    assert (again["decision"], again["version"], again["left_out"]) == (
        "published",
        3,
        [],
    )
    assert again["statistics_digest"] == at_once(data)


@pytest.mark.faults("F14")
def test_an_update_that_does_not_fit_into_memory_is_refused_with_both_numbers(
    place, data, monkeypatch
):
    """An update holds two more sets of sums than a fit."""
    data.append(1)
    enough_for_a_fit = plan_on_engine(
        data.now, 32, SumOptions(alpha=0.1), engine=ENGINE
    ).client_bytes
    monkeypatch.setattr(
        "rff_dist.numerics.machine.available_memory", lambda: enough_for_a_fit
    )
    with refuses(PlanError, human_bytes(enough_for_a_fit)):
        run(place, data.now)
