"""The steps of a training run without Prefect, on the serial engine."""

import json
import os
import uuid
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import zarr
from sklearn.metrics import accuracy_score

from rff_dist import (
    Cauchy,
    HashFolds,
    Matern,
    Nystrom,
    SerialEngine,
    TimeFolds,
    open_dataset,
)
from rff_dist.classify import fit as classification
from rff_dist.classify import predict as class_prediction
from rff_dist.data.memory import ArrayDataset
from rff_dist.errors import DataError, OutputBusyError
from rff_dist.fields import build
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.sizes import Machines
from rff_dist.kernels.names import kernel_text
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.candidates import make_candidates
from rff_dist.ridge.choices import choices_of
from rff_dist.ridge.describe import n_candidates
from rff_dist.ridge.fit import fit as fit_ridge
from rff_dist.ridge.models import read_model
from rff_dist.storage import output_places
from rff_dist.storage.columns import as_column
from rff_dist.storage.locations import new_hidden_folder, parse_location
from rff_dist.storage.records import write_record
from rff_dist.workbench.jobs import run_folders
from rff_dist.workbench.jobs import train as training
from rff_dist.workbench.jobs.fits import Fit, JobData
from rff_dist.workbench.jobs.limits import JobLimits
from rff_dist.workbench.jobs.places import Destination
from rff_dist.workbench.jobs.specs import Train
from rff_dist.workbench.jobs.steps import Runner, in_this_process
from tests.places import scratch
from tests.plain import fit_labels
from tests.refusals import refuses
from tests.seen import seen

PLAIN = {
    "kernel": "gaussian",
    "length_scale": 1.0,
    "features": "fourier",
    "n_components": 32,
}


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 2)) * [1.0, 100.0] + 1e4
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(600)
    return ArrayDataset(X, y, rng.integers(0, 3, 600).astype(float), chunk_rows=100)


@pytest.fixture
def new_place():
    """Return a place for a model that no other test has."""
    return scratch(f"training-{uuid.uuid4().hex}")


@dataclass(frozen=True)
class Job:
    """A training job of rows in memory, in the place of the spec."""

    fit: Fit
    destination: Destination
    statistics: bool = True
    card: str | None = None
    reason: str = "fitted"


def run(dataset, place, fit=None, *, labels=None, test=None, do=None, **destination):
    """Train and publish, plainly or by another runner."""
    fit = fit or Fit(options=RidgeOptions(**{**PLAIN, "alpha": 0.1}))
    test = test if test is None or isinstance(test, JobData) else JobData(test)
    job = Job(fit, Destination(model=place, **destination))
    return training.train(
        job, do or in_this_process(SerialEngine(1)), (JobData(dataset, labels), test)
    )


def watching(before, engine=None, holder="a test"):
    """Return a runner that calls `before` with the name of each step before it is
    taken.
    """

    def take(step):
        before(step.name)
        return step()

    return Runner(lambda _: nullcontext(engine or SerialEngine(1)), take, holder)


def stop_at(name, found=lambda: None):
    """Return a runner that looks at what is there before a step, and then stops."""

    def before(step):
        if step == name:
            found()
            raise RuntimeError("stop")

    return watching(before)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_scale": "median"},
        {"length_scale": (0.7, 2.0), "standardize": False},
        {"alpha": 0.5},
        {"alpha": [1e-8, 1e-2, 1.0], "fit_intercept": False},
        {"alpha": "gcv"},
        {"map": "phases", "design": "iid", "seed": 3},
        {"kernel": Matern(nu=2.5), "cv": TimeFolds(3)},
        {"kernel": Cauchy(), "length_scale": 1e-4, "map": "phases", "design": "iid"},
        {"features": Nystrom("k-means++"), "alpha": 0.5},
        {"kernel": "auto", "length_scale": "median", "features": "auto", "cv": 3},
        {"alpha": "cv", "cv": 3},
    ],
)
def test_steps_give_the_bits_of_the_job_in_one_call(problem, new_place, options):
    options = RidgeOptions(**{**PLAIN, **options})
    summary = run(problem, new_place, Fit(options=options)).fit_record
    published = read_model(new_place)
    model = fit_ridge(problem, options, engine=SerialEngine(1)).model
    assert published.digest() == model.digest()
    assert published.statistics == model.statistics
    assert (
        published.columns.to_arrays()["moments"] == model.columns.to_arrays()["moments"]
    ).all()
    same = [
        "statistics_digest",
        "feature_map_digest",
        "data_fingerprint",
        "solver",
        "fit_intercept",
    ]
    # what an update goes by
    same += ["rows_per_block", "prefix_fingerprint", "chosen_by", "estimate"]
    assert {key: published.card[key] for key in same} == {
        key: model.card[key] for key in same
    }
    assert published.card.get("candidates") == model.card.get("candidates")
    assert summary["estimate"] == model.card["estimate"]
    assert (published.held_out is None) == (model.held_out is None)
    kernel = (
        published.feature_map.kernel
        if summary["features"] == "nystrom"
        else published.feature_map.spec.kernel
    )
    assert summary["kernel"] == kernel_text(kernel)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_classifier_is_that_of_the_library_and_is_judged_by_its_labels(
    problem, new_place, loss
):
    rows = ArrayDataset(problem.X)
    labels = np.where(np.ravel(problem.y) > 0, "high", "low")
    options = RidgeOptions(**{**PLAIN, "alpha": 0.1})
    losses = classification.LossOptions(loss, "balanced")
    fit = Fit(options, losses)
    test = JobData(ArrayDataset(problem.X[:50]), as_column(labels[:50]))
    trained = run(rows, new_place, fit, labels=as_column(labels), test=test)
    summary = trained.fit_record
    metrics = trained.metrics
    expected = fit_labels(
        rows, as_column(labels), options, losses, engine=SerialEngine(1)
    )
    published = read_model(new_place)
    assert published.digest() == expected.digest()
    assert published.card["classifier"] == json.loads(
        json.dumps(expected.card["classifier"])
    )
    assert summary["estimate"] is None  # errors of codes are none of labels
    scores = prediction.predict_in_memory(test.rows, published, engine=SerialEngine(1))[
        "predictions"
    ]
    calibration = class_prediction.calibration_of(published)
    decided = class_prediction.decide(scores.reshape(-1, 1), calibration)
    predicted = class_prediction.read_classes(published)[decided]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels[:50], predicted))
    assert metrics["log_loss"] > 0
    assert published.card["metrics"] == metrics


@pytest.mark.filterwarnings("ignore:alpha=0.1 was chosen by cv, but it is the smallest")
def test_a_run_that_iterates_is_planned_so_where_folds_choose_alpha(problem, new_place):
    fit = Fit(options=RidgeOptions(**{**PLAIN, "alpha": [0.1, 1.0], "solver": "pcg"}))
    choices = fit.begin(JobData(problem), engine=SerialEngine(1))
    assert choices.folds is not None
    assert run(problem, new_place, fit).plan["solver"] == choices.plan.solver == "pcg"


@pytest.mark.parametrize("n_samples", [600, 20_000])
def test_the_plan_of_choices_is_what_is_tried(n_samples):
    X = np.random.default_rng(0).standard_normal((n_samples, 2))
    dataset = ArrayDataset(X, X[:, 0])
    options = RidgeOptions(n_components=32, cv=3)
    engine = SerialEngine(1)
    choices = choices_of(dataset, options, machines=Machines.of(engine))
    # linear, the median, and two kernels with both kinds of features
    assert len(choices.candidates) == 6
    assert choices.folds.base == HashFolds(3)
    if n_samples == 600:
        rows = fit_ridge(dataset, options, engine=engine).model.card
        assert n_candidates(rows["candidates"]) == 6
    options = RidgeOptions(**PLAIN)
    given = choices_of(dataset, options, machines=Machines.of(engine))
    assert (given.has_first_round, len(given.candidates)) == (False, 1)


def test_arrays_of_other_names_and_weights_are_used_for_data_and_test_data(tmp_path):
    rng = np.random.default_rng(0)
    names = {"x": "inputs", "y": "price", "sample_weight": "w"}
    for name, n_samples in (("data", 400), ("test", 60)):
        group = zarr.create_group(tmp_path / name)
        X = rng.standard_normal((n_samples, 2))
        for array, values in zip(
            names.values(), (X, X[:, 0], rng.random(n_samples)), strict=True
        ):
            group.create_array(array, data=values)
    places = {name: str(tmp_path / name) for name in ("data", "test", "model")}
    job = build(
        Train, {**places, **PLAIN, **names, "alpha": 0.1, "missing_chunks": "fill"}
    )
    found = training.train(job, in_this_process(SerialEngine(1)))
    data, test = (open_dataset(tmp_path / name, **names) for name in ("data", "test"))
    model = fit_ridge(
        data, RidgeOptions(**PLAIN, alpha=0.1), engine=SerialEngine(1)
    ).model
    assert found.model.digest() == model.digest()
    expected = prediction.evaluate(
        test, model, engine=SerialEngine(1)
    ).mean_squared_error
    np.testing.assert_allclose(found.metrics["mse"], expected)


def test_failed_run_leaves_nothing(problem, tmp_path):
    def look():
        # the run's folder, its lock and its ledger
        assert len(list(tmp_path.iterdir())) == 3

    with refuses(RuntimeError, "stop"):
        run(problem, "model", do=stop_at("publish", look))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{}, {"alpha": "cv"}, {"alpha": "gcv"}])
def test_a_step_that_is_run_again_does_no_harm(problem, options):
    def twice(step):
        if step.delays:
            step()
        return step()

    fit = Fit(options=RidgeOptions(**{**PLAIN, "alpha": 0.1, **options}))
    retries = JobLimits(retries=1)
    runner = Runner(lambda _: nullcontext(SerialEngine(1)), twice, limits=retries)
    first = run(problem, "a", fit)
    again = run(problem, "b", fit, do=runner)
    assert first.plan == again.plan
    assert {**first.fit_record, "fit_seconds": 0} == {
        **again.fit_record,
        "fit_seconds": 0,
    }
    assert first.publication["digest"] == again.publication["digest"]


def test_what_memory_holds_one_by_one_is_summed_and_solved_by_turns(
    problem, new_place, monkeypatch
):
    monkeypatch.setattr("rff_dist.ridge.fit.plan_readings", lambda *_, **__: (1, 1))
    names = []
    fit = Fit(
        options=RidgeOptions(n_components=16, features="fourier"),
        candidates=tuple(make_candidates(["gaussian"], [0.5, 2.0])),
    )
    found = run(problem, new_place, fit, do=watching(names.append))
    assert names[4:10] == ["broadcast", "accumulate", "solve"] * 2
    assert found.fitted.trained.n_readings == 2


@pytest.mark.parametrize(
    ("columns", "targets", "what"), [(3, 1, ["n_features=3"]), (2, 2, ["n_targets=2"])]
)
def test_test_data_of_other_columns_are_refused_before_any_pass(
    problem, new_place, columns, targets, what
):
    test = ArrayDataset(np.zeros((5, columns)), np.zeros((5, targets)))
    events = []
    engine = SerialEngine(1, observers=(events.append,))
    with refuses(DataError, *what):
        run(problem, new_place, test=test, do=in_this_process(engine))
    assert not events


# -- one run at a time
# ---------------------------------------------------------------------------------


def test_what_a_killed_run_left_is_removed_but_for_trained_models(tmp_path, caplog):
    (tmp_path / ".model.run-killed" / "plan").mkdir(parents=True)
    write_record(
        ".model.run-almost/trained-model", kind="a model", metadata={}, arrays={}
    )
    begun = tmp_path / ".model.run-begun" / "trained-model"
    write_record(begun, kind="a model", metadata={}, arrays={"w": np.zeros(3)})
    (begun / "zarr.json").unlink()  # which is written last
    (tmp_path / ".model-2.run-of-another-model").mkdir()
    left = run_folders.leftover_runs("model")
    names = [f".model.run-{name}" for name in ("almost", "begun", "killed")]
    assert sorted(Path(folder.path).name for folder in left) == names
    with run_folders.open_run(parse_location("model"), "a run"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".model-2.run-of-another-model",
        ".model.run-almost",
    ]
    assert f"{tmp_path}/.model.run-almost/trained-model" in caplog.text


@pytest.mark.parametrize("register", [False, True])
def test_what_a_run_left_that_was_killed_when_it_had_published_is_removed(
    problem, tmp_path, monkeypatch, caplog, register
):
    place = "model"
    with monkeypatch.context() as patched:
        patched.setattr(
            run_folders, "output_places", seen(output_places, discard=lambda _: None)
        )
        run(problem, place, register=register)
    assert list(tmp_path.glob(".model.run-*/trained-model"))
    with run_folders.open_run(parse_location(place), "a run"):
        assert len(list(tmp_path.glob(".model.run-*"))) <= 1  # its own
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert "left trained models" not in caplog.text


def test_a_runs_folder_is_beside_a_model_at_the_root_of_a_disk_too():
    assert new_hidden_folder(parse_location("/model"), "run").path.startswith(
        "/.model.run-"
    )


def test_a_run_that_lost_its_lease_publishes_nothing_and_keeps_its_model(
    problem, tmp_path
):
    def lose(step):
        if step == "publish":
            os.unlink(tmp_path / ".model.lock")

    with refuses(OutputBusyError, "may no longer write") as lost:
        run(problem, "model", do=watching(lose))
    assert "the trained model is kept at" in lost.value.__notes__[0]
    assert not (tmp_path / "model").exists()
    [folder] = run_folders.leftover_runs("model")
    assert run_folders.trained_models(folder)
