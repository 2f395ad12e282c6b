"""Models in MLflow: logged, read back, and served by name."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

import rff_dist.estimators.mlflow
from rff_dist import load_model, write_dataset
from rff_dist.estimators.mlflow import log_mlflow
from tests.command_line import PLAIN, document, refusal

mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
# its own, of type hints, of Pydantic and of databases
pytestmark = pytest.mark.filterwarnings("ignore::Warning")


@pytest.fixture(autouse=True)
def tracking(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # sets MLFLOW_TRACKING_URI too
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    yield
    mlflow.set_tracking_uri(None)


@pytest.fixture
def frame(small_model):
    return pd.read_csv(small_model.parent / "t.csv", parse_dates=["day"])


def test_a_logged_model_predicts_tables_and_has_what_was_chosen(small_model, frame):
    with mlflow.start_run() as run:
        info = log_mlflow(small_model)
    kept = mlflow.get_run(run.info.run_id).data
    found = document("info", small_model)
    assert kept.params["digest"] == found["digest"]
    assert kept.metrics["rmse"] == pytest.approx(found["estimate"]["rmse"][0])
    served = mlflow.pyfunc.load_model(info.model_uri)
    assert_array_equal(served.predict(frame), load_model(small_model).predict(frame))


def test_a_registered_model_is_logged_with_its_errors_on_test_rows_and_its_lineage(
    tmp_path,
):
    rng = np.random.default_rng(0)
    for name, n_samples in (("data", 300), ("test", 100)):
        X = rng.standard_normal((n_samples, 2))
        write_dataset(tmp_path / name, X, X.sum(axis=1))
    flags = [
        "--kernel",
        "linear",
        "--alpha",
        "1",
        "--serial",
        "--test",
        tmp_path / "test",
        "--register",
    ]
    found = document("fit", tmp_path / "data", tmp_path / "models" / "m", *flags)
    with mlflow.start_run() as run:
        log_mlflow(tmp_path / "models" / "m")
    kept = mlflow.get_run(run.info.run_id).data
    assert kept.metrics["test_rmse"] == pytest.approx(found["metrics"]["rmse"][0])
    assert kept.params["version"] == "1"
    lineage = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/lineage.json")
    assert lineage["lineage"]["data"] == str(tmp_path / "data")
    assert lineage["digest"] == found["digest"]


def test_the_signature_names_the_columns_and_takes_what_the_model_takes(
    small_model, frame, tmp_path
):
    found = document("export", small_model, tmp_path / "out", "--format mlflow")
    assert "MLmodel" in found["files"]
    assert "exists" in refusal(
        73, "export", small_model, tmp_path / "out", "--format mlflow"
    )
    model = mlflow.models.Model.load(tmp_path / "out")
    names = ["kind", "size", "day"]
    assert model.signature.inputs.input_names() == names
    served = mlflow.pyfunc.load_model(str(tmp_path / "out"))
    expected = load_model(small_model).predict(frame)
    assert frame["size"].dtype == np.int64
    forms = {
        "small integers": frame.astype({"size": np.int16}),
        "floats": frame.astype({"size": float}),
        "dates as text": frame.assign(day=frame["day"].dt.strftime("%Y-%m-%d")),
        "categories": frame.astype({"kind": "category"}),
        "other order": frame[[*names[::-1]]],
    }
    for form, table in forms.items():
        assert_array_equal(served.predict(table), expected, err_msg=form)
    with pytest.raises(mlflow.exceptions.MlflowException, match="size"):
        served.predict(frame[["kind", "day"]])
    example = model.load_input_example(str(tmp_path / "out"))
    assert list(example.columns) == names
    assert served.predict(example).shape == (1,)


@pytest.mark.parametrize("names", [None, ["a", "b"]])
def test_the_signature_of_a_model_of_an_array_takes_arrays_or_named_frames(
    tmp_path, names
):
    X = np.random.default_rng(0).integers(0, 9, (300, 2))
    write_dataset(
        tmp_path / "data",
        X.astype(float),
        X.sum(axis=1).astype(float),
        feature_names=names,
    )
    document(
        "fit", tmp_path / "data", tmp_path / "m", "--kernel linear --alpha 1 --serial"
    )
    with mlflow.start_run():
        info = log_mlflow(tmp_path / "m")
    assert info.signature.inputs.has_input_names() == (names is not None)
    rows = X if names is None else pd.DataFrame(X, columns=names)
    served = mlflow.pyfunc.load_model(info.model_uri)
    assert_array_equal(served.predict(rows), load_model(tmp_path / "m").predict(rows))
    example = mlflow.models.Model.load(info.model_uri).load_input_example()
    assert np.shape(example) == (1, 2)


@pytest.fixture
def registered(tmp_path):
    """The words of a fit that publishes a version, but for its penalty."""
    X = np.random.default_rng(0).standard_normal((200, 2))
    write_dataset(tmp_path / "data", X, X.sum(axis=1))
    return [
        "fit",
        tmp_path / "data",
        tmp_path / "models" / "prices",
        "--serial",
        "--register",
        *PLAIN,
    ]


def test_the_alias_of_mlflow_follows_the_current_version(
    registered, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    name = "models:/prices@champion"
    rows = np.ones((3, 2))
    client = mlflow.MlflowClient()

    def champion():
        expected = load_model(registered[2]).predict(rows)
        assert_array_equal(mlflow.pyfunc.load_model(name).predict(rows), expected)
        return client.get_model_version_by_alias("prices", "champion")

    digests = [document(*registered, "--alpha", alpha)["digest"] for alpha in (1, 5)]
    second = champion()
    assert second.tags == {"rff_dist.version": "2", "rff_dist.digest": digests[1]}
    document("models", "rollback", registered[2])
    first = champion()
    assert first.tags == {"rff_dist.version": "1", "rff_dist.digest": digests[0]}
    document("models", "promote", registered[2], 2)
    assert champion().version == second.version
    assert len(client.search_model_versions("name = 'prices'")) == 2
    assert client.get_run(second.run_id).data.params["version"] == "2"


def test_two_models_of_one_name_do_not_share_an_alias(
    registered, tmp_path, monkeypatch, caplog
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    document(*registered, "--alpha", 1)
    registered[2] = tmp_path / "others" / "prices"
    assert document(*registered, "--alpha", 2)["version"] == 1
    assert "prices is not up to date in MLflow: InvalidParameterError: " in caplog.text
    assert len(mlflow.MlflowClient().search_model_versions("name = 'prices'")) == 1


@pytest.mark.parametrize("patience", ["0", "7"])
def test_mlflow_that_does_not_answer_fails_no_job(
    registered, monkeypatch, caplog, patience
):
    mlflow.set_tracking_uri(None)
    # no server listens there
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", patience)
    if patience != "0":
        monkeypatch.setattr(rff_dist.estimators.mlflow, "WAIT_S", 1.0)
    assert document(*registered, "--alpha", 1)["version"] == 1
    assert "prices is not up to date in MLflow: " in caplog.text
    assert ("no answer within 1 s" in caplog.text) == (patience != "0")
    assert "secret" not in caplog.text
