"""Exports whose packages are not installed say which."""

import builtins

import pytest

from tests.command_line import refusal


@pytest.mark.parametrize("name", ["onnx", "mlflow"])
def test_a_package_that_is_missing_is_named_with_the_extra(tmp_path, monkeypatch, name, small_model):
    plain = builtins.__import__

    def without(module, *given, **named):
        if module.split(".")[0] == name:
            raise ModuleNotFoundError(module)
        return plain(module, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    words = ["export", small_model, tmp_path / "out", "--format", name]
    assert f"pip install rff_dist[{name}]" in refusal(69, *words)
    assert not (tmp_path / "out").exists()
