"""Tests of tables run in a folder of their own, so that files have short names."""

import pytest


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
