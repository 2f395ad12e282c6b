"""`rff-dist demo`."""

import pytest

from tests.command_line import document, run


def test_demo_hands_its_options_on_and_shows_its_result(tmp_path, monkeypatch):
    demo = pytest.importorskip("rff_dist.workbench.demo")
    calls = []

    def run_demo(output, **options):
        options.pop("console").print("at work")
        calls.append((output, options))
        return {"psnr": 25.0, "files": ["picture.png"]}

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.setattr(demo, "facts_of", lambda figures: {"PSNR": f"{figures['psnr']:g} dB"})
    found = document(
        "demo", "--output", tmp_path, "--n-components", "64", "--n-workers", "1", "--n-threads", "2"
    )
    assert found == {"command": "demo", "psnr": 25.0, "files": ["picture.png"]}
    assert calls == [(tmp_path, {"n_components": 64, "seed": 0, "n_workers": 1, "n_threads": 2})]
    shown = " ".join(run("demo", "--output", tmp_path).stdout.split())
    assert shown == "at work wrote picture.png PSNR 25 dB"
