"""The steps of a training run without Prefect, on the serial engine."""

import threading
import uuid
from pathlib import Path

import numpy as np
import pytest

from rff_dist import pipeline, prediction, training
from rff_dist.engines.serial import SerialEngine
from rff_dist.errors import (
    BroadcastError,
    DataError,
    InvalidParameterError,
    OutputBusyError,
    OutputExistsError,
    StorageError,
)
from rff_dist.feature_map import Nystrom
from rff_dist.kernels import Cauchy, Gaussian, Matern
from rff_dist.model import read_model
from rff_dist.storage import ArrayDataset, leases


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


def open_job(dataset, place, kernel=None, **options):
    options = {"engine": SerialEngine(1), "n_components": 32, **options}
    return training.open_job(dataset, kernel or Gaussian(), place, **options)


def run(job, length_scale, name="candidate-1"):
    candidate = training.draw_features(job, length_scale, name=name)
    training.broadcast_features(job, candidate)
    training.accumulate_statistics(job, candidate)
    return candidate, training.solve_ridge(job, candidate)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"length_scale": 0.7},
        {"length_scale": (0.7, 2.0), "standardize": False},
        {"alpha": 0.5},
        {"alpha": [0.1, 1.0], "fit_intercept": False},
        {"map": "phases", "design": "iid", "seed": 3},
        {"kernel": Matern(nu=2.5)},
        {"kernel": Cauchy(), "length_scale": 1e-4, "map": "auto", "design": "iid"},
        {"features": "nystrom"},
        {"features": Nystrom("k-means++"), "alpha": 0.5},
    ],
)
def test_steps_give_the_bits_of_the_job_in_one_call(problem, in_memory, options):
    options = dict(options)
    length_scale = options.pop("length_scale", "auto")
    with open_job(problem, in_memory, **options) as job:
        training.inspect_data(job)
        candidate, _ = run(job, length_scale)
        training.publish_model(job, candidate)
    published = read_model(in_memory)
    kernel = options.pop("kernel", Gaussian())
    model, _ = pipeline.fit(
        problem, kernel, engine=SerialEngine(1), length_scale=length_scale, n_components=32, **options
    )
    assert published.digest() == model.digest()
    assert published.statistics == model.statistics
    same = ("statistics_digest", "feature_map_digest", "data_fingerprint", "solver", "fit_intercept")
    same += ("rows_per_block", "prefix_fingerprint", "chosen_by")  # what an update goes by
    assert (published.columns.to_arrays()["moments"] == model.columns.to_arrays()["moments"]).all()
    assert {key: published.card[key] for key in same} == {key: model.card[key] for key in same}


def test_candidates_with_one_alpha_compete_by_gcv_at_that_alpha(problem, in_memory):
    with open_job(problem, in_memory, alpha=0.5, choosing=True) as job:
        training.inspect_data(job)
        solved = [run(job, scale, f"candidate-{i}")[1] for i, scale in enumerate((0.01, 1.0))]
        assert [one["alpha"] for one in solved] == [0.5, 0.5]
        best = training.choose_candidate(solved)
        assert best is solved[1]
        assert best["score"] < solved[0]["score"]
        training.publish_model(job, best, compared=solved, metrics={"mse": [1.0]})
    card = read_model(in_memory).card
    assert [one["length_scale"] for one in card["length_scales"]] == [0.01, 1.0]
    assert card["metrics"] == {"mse": [1.0]}


def test_score_does_not_depend_on_the_units_of_a_target(in_memory):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((300, 2))
    y = np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 1])]) + 0.1 * rng.standard_normal((300, 2))
    scores = []
    for units in (np.array([1.0, 1.0]), np.array([1.0, 1024.0])):  # a power of two changes no bit
        with open_job(ArrayDataset(X, y * units), in_memory) as job:
            training.inspect_data(job)
            scores.append(run(job, 1.0)[1]["score"])
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)


def test_one_candidate_wins_and_several_without_scores_do_not():
    lonely = {"name": "a", "score": None}
    assert training.choose_candidate([lonely]) is lonely
    with pytest.raises(InvalidParameterError, match="cannot be compared"):
        training.choose_candidate([lonely, lonely])
    with pytest.raises(InvalidParameterError, match="no candidate"):
        training.choose_candidate([])


def test_evaluation_agrees_with_numpy(problem, in_memory):
    test = ArrayDataset(problem.X[:50], problem.y[:50])
    with open_job(problem, in_memory, test=test) as job:
        training.inspect_data(job)
        candidate, _ = run(job, 1.0)
        metrics = training.evaluate_model(job, candidate)
        training.publish_model(job, candidate)
    predicted = prediction.predict_in_memory(test, read_model(in_memory), engine=SerialEngine(1))
    error = np.ravel(test.y) - np.ravel(predicted)
    assert metrics["mse"] == pytest.approx([np.mean(error**2)], rel=1e-12)
    assert metrics["mae"] == pytest.approx([np.mean(abs(error))], rel=1e-12)
    assert metrics["bias"] == pytest.approx([np.mean(error)], rel=1e-9)
    assert metrics["r2"] == pytest.approx([1 - np.mean(error**2) / np.var(test.y)], rel=1e-9)


def test_failed_run_leaves_nothing(problem, tmp_path):
    def stop_after_the_sums():
        with open_job(problem, str(tmp_path / "model")) as job:
            training.inspect_data(job)
            run(job, 1.0)
            assert len(list(tmp_path.iterdir())) == 2  # the run's folder and its lease
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop_after_the_sums()
    assert not list(tmp_path.iterdir())


def test_output_that_exists_is_refused_at_once(problem, tmp_path):
    with open_job(problem, str(tmp_path / "model")) as job:
        training.inspect_data(job)
        training.publish_model(job, run(job, 1.0)[0])
    with pytest.raises(OutputExistsError, match="exists already"), open_job(problem, str(tmp_path / "model")):
        pytest.fail("the job was opened")
    (tmp_path / "model" / "model.json").unlink()
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


def test_candidate_says_which_map_auto_chose(problem, in_memory):
    with open_job(problem, in_memory, Cauchy(), map="auto", design="iid") as job:
        training.inspect_data(job)
        assert [training.draw_features(job, scale)["map"] for scale in (1.0, 1e-4)] == ["pairs", "phases"]


def test_candidate_drawn_elsewhere_with_another_digest_is_refused(problem, in_memory):
    with open_job(problem, in_memory) as job:
        training.inspect_data(job)
        candidate = {**training.draw_features(job, 1.0), "feature_map": "0" * 64}
        with pytest.raises(BroadcastError, match="same packages"):
            training.broadcast_features(job, candidate)


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
    (tmp_path / ".model.run-killed" / "moments").mkdir(parents=True)
    (tmp_path / ".model.run-almost" / "candidate-1-model").mkdir(parents=True)
    (tmp_path / ".model-2.run-of-another-model").mkdir()
    left = training.leftover_runs(str(tmp_path / "model"))
    assert [Path(folder.path).name for folder in left] == [".model.run-almost", ".model.run-killed"]
    with open_job(problem, str(tmp_path / "model")):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".model-2.run-of-another-model",
        ".model.run-almost",
    ]
    assert f"{tmp_path}/.model.run-almost/candidate-1-model" in caplog.text


def test_leftovers_in_memory_are_found_too(problem, in_memory):
    with open_job(problem, in_memory) as job:
        training.inspect_data(job)
        assert training.leftover_runs(in_memory) == [job.folder]
    assert training.leftover_runs(in_memory) == []


def test_a_run_that_lost_its_lease_publishes_nothing_and_keeps_its_model(problem, tmp_path):
    with open_job(problem, str(tmp_path / "model"), alpha=0.1) as job:
        training.inspect_data(job)
        _, solved = run(job, 1.0)
        # As a successor does that finds this run without a sign of life.
        leases._delete(job.lease._store, job.lease._number)
        with pytest.raises(OutputBusyError, match="its lease is gone") as lost:
            training.publish_model(job, solved)
    assert "the trained model is kept at" in lost.value.__notes__[0]
    assert not (tmp_path / "model").exists()
    assert training.trained_models(job.folder)
