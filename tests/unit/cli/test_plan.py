"""`rff-dist plan`: what a fit takes."""

import numpy as np
import pytest

from rff_dist import open_dataset, write_dataset
from rff_dist.engines.cluster import Cluster
from rff_dist.fitting.options import RidgeOptions
from rff_dist.fitting.sizes import Machines, PlannedFit, Sizes, SumOptions
from rff_dist.fitting.solver_plan import plan_chosen_solver
from tests.command_line import PLAIN, document, refusal, run, shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2GiB", 2**31),
        ("512 MiB", 2**29),
        ("1.5kiB", 1536),
        ("4096", 4096),
        ("1GB", 10**9),
    ],
)
def test_sizes_are_read_as_dask_does(text, value):
    assert Cluster(memory=text).memory_bytes == value


def test_the_plan_is_the_librarys(folder):
    sizes = ("--n-components", "512", "--n-workers", "3", "--n-threads", "2")
    found = document("plan", folder / "data.zarr", *PLAIN, *sizes)
    itemsize = open_dataset(folder / "data.zarr").dtype.itemsize
    options = RidgeOptions(features="fourier")
    job = PlannedFit(
        Sizes(
            n_samples=300, n_features=3, n_targets=1, chunk_rows=64, itemsize=itemsize
        ),
        512,
        Machines(
            n_workers=3,
            n_threads=2,
            has_separate_client=True,
            memory_limit=found["memory_limit"],
            client_memory_limit=found["client_memory_limit"],
        ),
        SumOptions.of(options, n_folds=5),
    )
    expected = plan_chosen_solver(job, options)
    assert found["memory_limit"] < found["client_memory_limit"]
    assert {name: found[name] for name in expected.to_dict()} == expected.to_dict()
    assert found["statistics_seconds"] == pytest.approx(
        expected.seconds(found["gflops_per_thread"])
    )
    assert found["choosing"] is None


def test_the_plan_says_what_choosing_takes(folder, monkeypatch):
    monkeypatch.setattr("rff_dist.numerics.machine.measure_gflops", lambda: 10.0)
    choosing = document("plan", folder / "data.zarr")["choosing"]
    given = {
        name: choosing[name]
        for name in ("n_candidates", "n_samples", "n_components", "n_trained")
    }
    assert given == {
        "n_candidates": 4,
        "n_samples": 300,
        "n_components": 512,
        "n_trained": 1,
    }
    more = document(
        "plan", folder / "data.zarr", "--n-components 2048 --kernel gaussian"
    )
    assert more["choosing"]["n_candidates"] == 4
    words = shown("plan", folder / "data.zarr")
    seconds = choosing["seconds"] + choosing["final_seconds"]
    assert f"in all, about {seconds:.1f} s" in words
    assert "3 features, 1 target," in words
    assert "4 candidates on 300 rows, D = 512" in words
    assert "D = 512 (Nyström features: 300, one per row)" in words


@pytest.mark.usefixtures("exact_bytes")
def test_the_plan_says_which_way_features_are_multiplied(folder, monkeypatch):
    plan = ("plan", folder / "data.zarr", *PLAIN, "--n-components", "512")
    assert document(*plan)["products"] == "float64"  # too small to measure
    monkeypatch.setattr("rff_dist.products.choice.WORTH_MEASURING", 1.0)
    monkeypatch.setenv("RFF_DIST_PRODUCTS", "bytes")
    found = document(*plan)
    assert found["products"] == "bytes"
    assert found["gflops_per_thread"] > 0
    assert "by bytes" in shown(*plan)


def test_the_plan_has_the_memory_and_seconds_of_more_components(tmp_path):
    data = tmp_path / "data.zarr"
    assert run("generate", data, "--rows 3000 --n-features 3").exit_code == 0
    found = document("plan", data)
    growing = found["growing"]
    assert growing["n_components"] == 2 * found["n_components"] == 4096
    assert growing["client_bytes"] > 2 * found["client_bytes"]
    assert growing["seconds"] > found["choosing"]["final_seconds"]
    assert "D = 4,096" in shown("plan", data)
    assert document("plan", data, "--n-components 2048")["growing"] is None


def test_a_file_of_options_for_fit_is_taken_and_a_misspelt_one_refused(folder):
    data = folder / "data.zarr"
    options = f'data = "{data}"\nmodel = "m"\nstandardize = false\nalpha = 1.0\n'
    config = folder / "fit.toml"
    config.write_text(options)
    plan = ("plan", "--config", config, *PLAIN, "--n-components 64")
    assert document(*plan)["n_components"] == 64
    config.write_text(options.replace("standardize", "standardise"))
    assert "`standardise`" in refusal(2, *plan)


def test_data_without_targets_have_none_in_the_plan(folder):
    write_dataset(folder / "no_y.zarr", np.ones((40, 3)))
    words = shown("plan", folder / "no_y.zarr", *PLAIN, "--n-components 64")
    assert "3 features, 0 targets" in words
