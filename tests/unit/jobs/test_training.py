"""The steps of a training run without Prefect, on the serial engine."""

import json
import os
import threading
import uuid
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import accuracy_score

from rff_dist.classify import fit as classification
from rff_dist.classify import predict as class_prediction
from rff_dist.data.folds import HashFolds, TimeFolds
from rff_dist.data.memory import ArrayDataset
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import DataError, InvalidParameterError, OutputBusyError, OutputExistsError, StorageError
from rff_dist.features.nystrom import Nystrom
from rff_dist.jobs import fits
from rff_dist.jobs import train as training
from rff_dist.jobs.fits import Fit, JobData
from rff_dist.jobs.steps import in_this_process, run_steps
from rff_dist.kernels.stationary import Cauchy, Matern
from rff_dist.kernels.text import kernel_text
from rff_dist.ridge import automatic
from rff_dist.ridge import predict as prediction
from rff_dist.ridge.candidates import make_candidates
from rff_dist.ridge.choices import planner
from rff_dist.ridge.model import read_model
from rff_dist.ridge.options import RidgeOptions
from rff_dist.storage.columns import as_column
from rff_dist.storage.locations import parse_location
from rff_dist.storage.output_places import hidden_beside
from rff_dist.storage.records import read_record, write_record
from tests.plain import search_plain

PLAIN = {"kernel": "gaussian", "length_scale": 1.0, "features": "fourier", "n_components": 32}


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 2)) * [1.0, 100.0] + 1e4
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_normal(600)
    return ArrayDataset(X, y, rng.integers(0, 3, 600).astype(float), chunk_rows=100)


@pytest.fixture
def in_memory():
    """Return a place for a model that needs no disk, whose records are slow to write safely."""
    return f"memory://training-{uuid.uuid4().hex}"


def open_job(dataset, place, fit=None, *, labels=None, test=None, **options):
    fit = fit or Fit(options=RidgeOptions(**{**PLAIN, "alpha": 0.1}))
    test = test if test is None or isinstance(test, JobData) else JobData(test)
    options = {"engine": SerialEngine(1), **options}
    return training.open_run(fit, JobData(dataset, labels), place, test=test, **options)


def run(job):
    training.inspect_data(job)
    summary = training.fit_model(job)
    return summary, training.publish_model(job)


def assert_same(published, model):
    assert published.digest() == model.digest()
    assert published.statistics == model.statistics
    same = ("statistics_digest", "feature_map_digest", "data_fingerprint", "solver", "fit_intercept")
    same += ("rows_per_block", "prefix_fingerprint", "chosen_by", "estimate")  # what an update goes by
    assert (published.columns.to_arrays()["moments"] == model.columns.to_arrays()["moments"]).all()
    assert {key: published.card[key] for key in same} == {key: model.card[key] for key in same}
    assert published.card.get("candidates") == model.card.get("candidates")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_scale": "median"},
        {"length_scale": (0.7, 2.0), "standardize": False},
        {"alpha": 0.5},
        {"alpha": [1e-8, 1e-2, 1.0], "fit_intercept": False},
        {"alpha": "press"},
        {"map": "phases", "design": "iid", "seed": 3},
        {"kernel": Matern(nu=2.5), "cv": TimeFolds(3)},
        {"kernel": Cauchy(), "length_scale": 1e-4, "map": "auto", "design": "iid"},
        {"features": Nystrom("k-means++"), "alpha": 0.5},
        {"kernel": "auto", "length_scale": "median", "features": "auto", "cv": 3},
        {"conformal": True, "cv": 3},
    ],
)
def test_steps_give_the_bits_of_the_job_in_one_call(problem, in_memory, options):
    options = RidgeOptions(**{**PLAIN, **options})
    with open_job(problem, in_memory, Fit(options=options)) as job:
        summary, _ = run(job)
    published, model = read_model(in_memory), automatic.fit(problem, options, engine=SerialEngine(1)).model
    assert_same(published, model)
    assert summary["estimate"] == model.card["estimate"]
    assert (published.held_out is None) == (model.held_out is None)
    kernel = (
        published.feature_map.kernel
        if summary["features"] == "nystrom"
        else published.feature_map.spec.kernel
    )
    assert summary["kernel"] == kernel_text(kernel)


def test_given_candidates_are_those_of_a_search(problem, in_memory):
    candidates = tuple(make_candidates(["gaussian", "matern"], [0.5, 2.0]))
    options = RidgeOptions(n_components=[16, 32], features="fourier", alpha="cv", cv=3)
    with open_job(problem, in_memory, Fit(options=options, candidates=candidates)) as job:
        assert training.inspect_data(job)["n_candidates"] == 4
        run(job)
    found = search_plain(problem, candidates, engine=SerialEngine(1), n_components=[16, 32], cv=3)
    assert_same(read_model(in_memory), found.model)
    assert fits.chosen_candidate(found.rows) == found.best
    assert fits.n_candidates(found.rows) == 4


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_a_classifier_is_that_of_the_library_and_is_judged_by_its_labels(problem, in_memory, loss):
    rows = ArrayDataset(problem.X)
    labels = np.where(np.ravel(problem.y) > 0, "high", "low")
    options = RidgeOptions(**{**PLAIN, "alpha": 0.1})
    fit = Fit(options=options, loss=loss, class_weight="balanced")
    test = JobData(ArrayDataset(problem.X[:50]), as_column(labels[:50]))
    with open_job(rows, in_memory, fit, labels=as_column(labels), test=test) as job:
        training.inspect_data(job)
        summary = training.fit_model(job)
        metrics = training.evaluate_model(job)
        training.publish_model(job)
    losses = classification.LossOptions(loss, "balanced")
    found = classification.fit_labels(rows, as_column(labels), options, losses, engine=SerialEngine(1))
    expected = found.model
    published = read_model(in_memory)
    assert published.digest() == expected.digest()
    assert published.card["classifier"] == json.loads(json.dumps(expected.card["classifier"]))
    assert summary["estimate"] is None  # errors of codes are none of labels
    scores = prediction.predict_in_memory(test.rows, published, engine=SerialEngine(1))
    calibration = class_prediction.calibration_of(published)
    decided = class_prediction.decide(scores.reshape(-1, 1), calibration)
    predicted = class_prediction.read_classes(published)[decided]
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels[:50], predicted))
    assert metrics["log_loss"] > 0
    assert published.card["metrics"] == metrics


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (Fit(options=RidgeOptions(kernel="gausian")), "gausian"),
        (Fit(options=RidgeOptions(kernel="linear", length_scale=1.0)), "no part without a length scale"),
        (Fit(options=RidgeOptions(n_components=9)), "take 10"),
        (Fit(options=RidgeOptions(kernel="laplacian", design="orthogonal")), "isotropic"),
        (Fit(options=RidgeOptions(features="nystrom", design="iid")), "have none"),
        (Fit(options=RidgeOptions(alpha="gcv", cv=3)), "cross-validation"),
        (Fit(options=RidgeOptions(map="pair")), "pair"),
        (Fit(options=RidgeOptions(conformal=True), loss="squared"), "no intervals"),
        (Fit(options=RidgeOptions(), loss="hinge"), "squared_hinge"),
        (Fit(options=RidgeOptions(), class_weight="balanced"), "no classes"),
    ],
)
def test_what_cannot_be_fitted_is_refused_without_the_data(fit, words):
    with pytest.raises(InvalidParameterError, match=words):
        fit.check()


def test_length_scales_of_other_columns_are_refused_before_any_pass(problem, in_memory):
    events = []
    engine = SerialEngine(1, observers=(events.append,))
    fit = Fit(options=RidgeOptions(**{**PLAIN, "length_scale": (1.0, 2.0, 3.0)}))
    fit.check()
    refused = pytest.raises(InvalidParameterError, match="2 columns")
    with open_job(problem, in_memory, fit, engine=engine) as job, refused:
        training.inspect_data(job)
    assert not events


def test_a_run_that_iterates_is_planned_so_where_folds_choose_alpha(problem, in_memory):
    fit = Fit(options=RidgeOptions(**{**PLAIN, "alpha": [0.1, 1.0], "solver": "pcg"}))
    with open_job(problem, in_memory, fit) as job:
        assert fit.choices(problem, engine=job.engine).folds is not None
        assert training.inspect_data(job)["solver"] == "pcg"


@pytest.mark.parametrize("n_samples", [600, 20_000])
def test_the_plan_of_choices_is_what_is_tried(n_samples):
    X = np.random.default_rng(0).standard_normal((n_samples, 2))
    dataset = ArrayDataset(X, X[:, 0])
    options, engine = RidgeOptions(n_components=32, cv=3), SerialEngine(1)
    choices = automatic.choices_of(dataset, options, plan=planner(dataset, options, engine=engine))
    assert choices.n_tried == 15
    assert choices.n_finalists(n_samples) == (1 if n_samples == 600 else 3)
    assert choices.folds.base == HashFolds(3)
    if n_samples == 600:
        rows = automatic.fit(dataset, options, engine=engine).model.card
        assert fits.n_candidates(rows["candidates"]) <= choices.n_tried
    options = RidgeOptions(**PLAIN)
    given = automatic.choices_of(dataset, options, plan=planner(dataset, options, engine=engine))
    assert (given.choosing, given.n_tried, given.n_finalists(n_samples)) == (False, 0, 1)


def test_evaluation_agrees_with_numpy(problem, in_memory):
    test = ArrayDataset(problem.X[:50], problem.y[:50])
    with open_job(problem, in_memory, test=test) as job:
        training.inspect_data(job)
        training.fit_model(job)
        metrics = training.evaluate_model(job)
        training.publish_model(job)
    published = read_model(in_memory)
    predicted = prediction.predict_in_memory(test, published, engine=SerialEngine(1))
    error = np.ravel(test.y) - np.ravel(predicted)
    assert metrics["mse"] == pytest.approx([np.mean(error**2)], rel=1e-12)
    assert metrics["mae"] == pytest.approx([np.mean(abs(error))], rel=1e-12)
    assert metrics["bias"] == pytest.approx([np.mean(error)], rel=1e-9)
    assert metrics["r2"] == pytest.approx([1 - np.mean(error**2) / np.var(test.y)], rel=1e-9)
    assert published.card["metrics"] == metrics


def test_failed_run_leaves_nothing(problem, tmp_path):
    def stop_after_the_sums():
        with open_job(problem, str(tmp_path / "model")) as job:
            training.inspect_data(job)
            training.fit_model(job)
            assert len(list(tmp_path.iterdir())) == 3  # the run's folder, its lease and its ledger
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop_after_the_sums()
    assert not list(tmp_path.iterdir())


def test_a_step_that_is_run_again_does_no_harm(problem, in_memory):
    with open_job(problem, in_memory) as job:
        first = [training.inspect_data(job), training.fit_model(job)]
        again = [training.inspect_data(job), training.fit_model(job)]
        assert first[0] == again[0]
        assert {**first[1], "fit_seconds": 0} == {**again[1], "fit_seconds": 0}
        assert read_record(job.place("plan"), kind="plan").metadata == first[0]


def test_output_that_exists_is_refused_at_once(problem, tmp_path):
    with open_job(problem, str(tmp_path / "model")) as job:
        run(job)
    with pytest.raises(OutputExistsError, match="exists already"), open_job(problem, str(tmp_path / "model")):
        pytest.fail("the job was opened")
    (tmp_path / "model" / "model.json").rename(tmp_path / "model" / "notes.json")
    overwriting = open_job(problem, str(tmp_path / "model"), overwrite=True)
    with pytest.raises(StorageError, match="is not replaced"), overwriting:
        pytest.fail("the job was opened")


@pytest.mark.parametrize(("columns", "targets", "what"), [(3, 1, "n_features=3"), (2, 2, "n_targets=2")])
def test_test_data_of_other_columns_are_refused_before_any_pass(problem, in_memory, columns, targets, what):
    test = ArrayDataset(np.zeros((5, columns)), np.zeros((5, targets)))
    events = []
    engine = SerialEngine(1, observers=(events.append,))
    with open_job(problem, in_memory, test=test, engine=engine) as job, pytest.raises(DataError, match=what):
        training.inspect_data(job)
    assert not events


# -- one run at a time ---------------------------------------------------------------------------------


def begin_elsewhere(problem, place):
    """Begin a run in a context that holds no lease; return what it is told."""
    told = []

    def begin():
        try:
            with open_job(problem, place):
                told.append("it ran")
        except OutputBusyError as error:
            told.append(str(error))

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    return told[0]


def test_a_second_run_of_a_model_is_refused_with_the_first_ones_name(problem, tmp_path):
    place = str(tmp_path / "model")
    with open_job(problem, place, holder="run one"):
        message = begin_elsewhere(problem, place)
        assert f"another run is writing {place}: run one, process" in message
        assert begin_elsewhere(problem, f"{place}-2") == "it ran"
    assert begin_elsewhere(problem, place) == "it ran"
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed_but_for_trained_models(problem, tmp_path, caplog):
    (tmp_path / ".model.run-killed" / "plan").mkdir(parents=True)
    write_record(tmp_path / ".model.run-almost" / "trained-model", kind="a model", metadata={}, arrays={})
    begun = tmp_path / ".model.run-begun" / "trained-model"
    write_record(begun, kind="a model", metadata={}, arrays={"w": np.zeros(3)})
    (begun / "model.json").unlink()  # which is written last
    (tmp_path / ".model-2.run-of-another-model").mkdir()
    left = training.leftover_runs(str(tmp_path / "model"))
    names = [f".model.run-{name}" for name in ("almost", "begun", "killed")]
    assert sorted(Path(folder.path).name for folder in left) == names
    with open_job(problem, str(tmp_path / "model")):
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
    place = str(tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(training, "discard", lambda _: None)
        with open_job(problem, place, register=register) as job:
            run_steps(job.steps(), in_this_process())
    assert list(tmp_path.glob(".model.run-*/trained-model"))
    with open_job(problem, place, register=register, overwrite=not register):
        assert len(list(tmp_path.glob(".model.run-*"))) <= 1  # its own
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert "left trained models" not in caplog.text


def test_leftovers_in_memory_are_found_too(problem, in_memory):
    with open_job(problem, in_memory) as job:
        training.inspect_data(job)
        assert training.leftover_runs(in_memory) == [job.folder]
    assert training.leftover_runs(in_memory) == []


def test_a_runs_folder_is_beside_a_model_at_the_root_of_a_disk_too():
    assert hidden_beside(parse_location("/model"), "run").path.startswith("/.model.run-")


def test_a_run_that_lost_its_lease_publishes_nothing_and_keeps_its_model(problem, tmp_path):
    with open_job(problem, str(tmp_path / "model")) as job:
        training.inspect_data(job)
        training.fit_model(job)
        os.unlink(tmp_path / ".model.lock")
        with pytest.raises(OutputBusyError, match="its lease is gone") as lost:
            training.publish_model(job)
    assert "the trained model is kept at" in lost.value.__notes__[0]
    assert not (tmp_path / "model").exists()
    assert training.trained_models(job.folder)
