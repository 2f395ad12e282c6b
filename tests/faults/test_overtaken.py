"""A run that is taken for dead and lives on publishes nothing over the run that took
its place.

The first run is stopped at one of its requests to the object store, a second run does
the same work to its end, and the first one goes on. Nothing here depends on how fast
the machine is."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from rff_dist.errors import ConflictError, OutputBusyError, OutputExistsError
from rff_dist.kmeans.cluster_options import ClusterSpace, LloydOptions
from rff_dist.models.versions import RegisteredModel
from rff_dist.ridge.models import write_model
from rff_dist.storage import zarr_access
from rff_dist.storage.documents import find_tag
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import hold
from rff_dist.storage.records import peek_record, read_record
from rff_dist.workbench.jobs.cluster import cluster
from rff_dist.workbench.jobs.places import WeightedDataSource
from rff_dist.workbench.jobs.specs import Clustering
from rff_dist.workbench.jobs.steps import in_this_process
from tests.faults.works import (
    ENGINE,
    fit,
    moments,
    nothing,
    predict_rows,
    read_predictions,
    read_rows,
    read_values,
    write,
    write_values,
)
from tests.versions import publish, whole

pytestmark = [pytest.mark.s3, pytest.mark.faults("F16")]

MOST = 4  # requests at which a run is stopped, each with all that it needs before
REFUSED = (OutputBusyError, ConflictError, OutputExistsError)


@dataclass(frozen=True)
class Work:
    """Something that two runs publish at one place.

    `prepare`: makes what is there before.
    `run`: does the work, as run 1 or 2.
    `state`: what a reader sees, and fails where that is not whole.
    `n_places`: how many places it publishes at.
    """

    prepare: Callable[[str], object]
    run: Callable[[str, int], object]
    state: Callable[[str], Any]
    n_places: int = 1


def publish_version(place, who):
    with hold(f"{place}/m", holder=f"run {who}"):
        publish(f"{place}/m", who)


def read_current(place):
    """Return what the current version says; it is the newest one, and no refused run
    has left one.
    """
    versions = [
        whole(read_record(one.url)) for one in RegisteredModel(f"{place}/m").versions()
    ]
    current = whole(read_record(f"{place}/m"))
    assert versions in ([3, current], [3, 1, current])
    return current


def two_values(place):
    """Prepare a model that was written twice, so that an old generation of its arrays
    goes.
    """
    write_values(place, 1)
    write_values(place, 3)


def replace_model(place, who):
    with hold(f"{place}/model", holder=f"run {who}"):
        write_values(place, 10 + who)


def two_models(place):
    write(place, 0)
    for who in (1, 2):
        write_model(fit(f"{place}/data", float(who)), f"{place}/model-{who}")


def predict_by(place, who, **options):
    predict_rows(place, model=f"model-{who}", **options)


def predicted_before(place):
    two_models(place)
    predict_by(place, 1)


def read_table(place):
    return find_tag(parse_location(f"{place}/predictions.csv"))


def cluster_rows(place, who):
    job = Clustering(
        source=WeightedDataSource(data=f"{place}/data"),
        output=f"{place}/labels",
        model=f"{place}/clusters",
        lloyd=LloydOptions(n_clusters=2, max_iter=1),
        space=ClusterSpace(n_components=16, seed=who),
        overwrite=True,
    )
    cluster(job, in_this_process(ENGINE))


def read_clusters(place):
    return peek_record(f"{place}/clusters").metadata["digest"], read_rows(
        place, "labels", "labels"
    )


WORKS = {
    "data": Work(nothing, write, read_rows),
    "data overwritten": Work(
        partial(write, seed=0), partial(write, overwrite=True), read_rows
    ),
    "versioned data": Work(nothing, partial(write, versioned=True), read_rows),
    "model overwritten": Work(two_values, replace_model, read_values),
    "version": Work(partial(publish_version, who=3), publish_version, read_current),
    "predictions": Work(two_models, predict_by, read_predictions),
    "predictions overwritten": Work(
        predicted_before, partial(predict_by, overwrite=True), read_predictions
    ),
    "table of predictions": Work(
        two_models,
        partial(predict_by, output="predictions.csv", overwrite=True),
        read_table,
    ),
    "clusters": Work(partial(write, seed=0), cluster_rows, read_clusters, n_places=2),
}
# The others differ in what is computed, not in how it is published.
FAST = {"data", "versioned data", "model overwritten", "version"}


@pytest.fixture(autouse=True)
def drained_at_once(monkeypatch):
    # One run must not wait for the other's requests.
    monkeypatch.setattr(zarr_access, "_DRAINED_S", 0.1)


def attempt(action):
    """Run, and return the error with which it was refused."""
    try:
        action()
    except REFUSED as error:
        return error
    return None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in WORKS
    ],
)
def test_a_run_that_was_taken_for_dead_does_not_publish_over_the_one_that_took_its_place(
    name, server
):
    work = WORKS[name]
    begin = f"{name}/begin"
    work.prepare(server.url(begin))
    alone = {}
    for who in (1, 2):
        server.copy(begin, f"{name}/alone-{who}")
        server.requests()
        work.run(server.url(f"{name}/alone-{who}"), who)
        requests = server.requests()
        alone[who] = work.state(server.url(f"{name}/alone-{who}"))
    assert alone[1] != alone[2]
    # From the request on that follows the look at what is there: a run that is stopped
    # before comes later.
    looks = [
        i
        for i, one in enumerate(requests)
        if one.startswith("HEAD") and "zarr.json" in one
    ]
    first = looks[work.n_places - 1] + 1
    refused = 0
    for n in moments(len(requests) - first, most=MOST):
        place = server.url(f"{name}/{n}")
        server.copy(begin, f"{name}/{n}")
        error, overtaken = overtake(work, place, first + n, server=server)
        refused += error is not None
        # One of them may have come too late, and says so; what is there is the other
        # one's.
        assert error is None or overtaken is None
        assert work.state(place) == (alone[2] if overtaken is None else alone[1])
    assert refused > 0


def overtake(work, place, after, *, server):
    """Stop run 1 at a request, let run 2 take over and end, and run 1 go on; return how
    both were refused.
    """
    ended = []
    server.pause(after)
    slow = threading.Thread(
        target=lambda: ended.append(attempt(lambda: work.run(place, 1)))
    )
    slow.start()
    try:
        assert server.is_paused()
        overtaken = attempt(lambda: work.run(place, 2))
    finally:
        server.go_on()
        slow.join(60)
    [error] = ended
    return error, overtaken
