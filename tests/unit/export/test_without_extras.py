"""Exports whose packages are not installed say which."""

import builtins
import sys

import pytest

from tests.command_line import PLAIN, document, refusal


@pytest.fixture(params=["onnx", "mlflow"])
def name(request, monkeypatch):
    """A package that is missing."""
    name = request.param
    plain = builtins.__import__

    def without(module, *given, **named):
        if module.split(".")[0] == name:
            raise ModuleNotFoundError(module)
        return plain(module, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    return name


def test_a_package_that_is_missing_is_named_with_the_extra(tmp_path, name, small_model):
    words = ["export", small_model, "out", "--format", name]
    assert f"pip install rff_dist[{name}]" in refusal(69, *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["mlflow"], indirect=True)
def test_a_version_is_published_without_mlflow_which_is_missed_only_if_it_has_an_address(
    name, data, monkeypatch, caplog
):
    words = ["fit", data, "m", "--register", "--serial", "--alpha", "1", *PLAIN]
    with monkeypatch.context() as without_ours:
        # an import of it fails
        without_ours.setitem(sys.modules, "rff_dist.estimators.mlflow", None)
        assert document(*words)["version"] == 1
    assert caplog.text == ""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert document(*words)["version"] == 2
    assert "m is not up to date in MLflow: MissingDependencyError" in caplog.text
