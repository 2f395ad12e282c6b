"""The table of defaults from a small file of results, and its statistics."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.defaults import fits, table, tables
from benchmarks.defaults.fits import Task
from benchmarks.defaults.sets import regression_sets
from tests.refusals import refuses

# errors of splits 4 to 7, and seconds
OURS = {
    "airfoil": ([0.2, 0.3, 0.2, 0.3], 2.0),
    "pol": ([0.1, 0.1, 0.2, 0.2], 8.0),
    "bike": ([1.0] * 4, 1.0),
}
THEIRS = {
    "airfoil": ([0.3, 0.4, 0.4, 0.5], 1.0),  # 0.15 more, ± 0.029
    "pol": ([0.2, 0.0, 0.3, 0.1], 2.0),  # 0 more
    "bike": ([0.1] * 4, 0.1),  # not counted
}


def line_of(name, split, model, error, seconds, **others):
    result = {
        "set": name,
        "split": split,
        "model": model,
        "classes": False,
        "n": 1353,
        "d": 5,
        "digest": name,
    }
    result |= {
        "wall": seconds,
        "cpu": 2 * seconds,
        "error": error,
        "version": "1.2",
        "commit": "abc",
    }
    result |= {
        "processor": "a processor (avx2)",
        "threads": 2,
        "load": 0.5,
        "python": "3.12.1",
    }
    return json.dumps(result | {"numpy": "2.5.5", "date": "2026-11-25"} | others)


@pytest.fixture
def path(tmp_path):
    lines = [
        line_of(name, 4 + i, model, error, seconds)
        for model, found in (("ours", OURS), ("catboost", THEIRS))
        for name, (errors, seconds) in found.items()
        for i, error in enumerate(errors)
    ]
    losses = {"ours": (0.0, 0.5), "catboost": (0.1, 0.25)}
    lines += [
        line_of(
            "wine", split, model, error, 1.0, classes=True, log_loss=loss + split / 64
        )
        for model, (error, loss) in losses.items()
        for split in range(4, 8)
    ]
    lines += [
        line_of("pol", split, "gp", 0.0, 0.0, skipped="more than 1,000 rows")
        for split in range(4, 8)
    ]
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "results.jsonl"


def write(path):
    return table.write(fits.read_results(path), [4, 5, 6, 7], path.parent).read_text()


def cells_of(text, head):
    """Return the rows of the table whose first line begins so, by what stands in its
    first column.
    """
    _, block = text.split(f"| {head}", 1)
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in block.split("\n\n")[0].splitlines()
    ]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_summary_counts_wins_and_takes_geometric_means_of_sets_that_count(path):
    means = [math.sqrt((0.4 / 0.25) * 1), math.sqrt((1 / 2) * (2 / 8))]
    wanted = ["2", "1", "1", "0", *(f"{mean:.3g}" for mean in [*means, means[1]])]
    assert cells_of(write(path), "z-RMSE, against") == {"CatBoost": wanted}


def test_a_set_shows_each_models_error_difference_and_seconds(path):
    lines = cells_of(write(path), "z-RMSE<br>")
    assert lines["airfoil"] == [
        "1,353 × 5",
        "0.25<br>2 s (4)",
        "0.4 (+0.15 ± 0.029) win<br>1 s (2)",
    ]
    assert lines["bike, not counted"][2].startswith("0.1 (-0.9 ± 0) lose")


def test_classes_show_accuracy_and_log_loss_with_opposite_winners(path):
    text = write(path)
    wanted = [
        "1<br>0.586<br>1 s (2)",
        "0.9 (-0.1 ± 0) win<br>0.336 (-0.25 ± 0) lose<br>1 s (2)",
    ]
    assert cells_of(text, "accuracy<br>")["wine"] == ["1,353 × 5", *wanted]
    assert cells_of(text, "accuracy, against")["CatBoost"][:5] == [
        "1",
        "1",
        "0",
        "0",
        "0.9",
    ]
    assert cells_of(text, "log loss, against")["CatBoost"][:4] == ["1", "0", "0", "1"]


def test_who_fails_loses_and_is_named_and_leaves_the_means(path):
    with path.open("a") as file:
        file.write(
            line_of(
                "pol", 5, "catboost", 0.0, 0.0, failed="exit status 1: out of memory"
            )
            + "\n"
        )
    text = write(path)
    assert "- CatBoost failed on pol, split 5: exit status 1: out of memory" in text
    assert cells_of(text, "z-RMSE<br>")["pol"][2].startswith("failed win")
    assert cells_of(text, "z-RMSE, against")["CatBoost"][:5] == [
        "2",
        "2",
        "0",
        "0",
        "1.6",
    ]


def test_a_set_counts_on_the_splits_that_all_its_models_were_fitted_to(path):
    lines = path.read_text().splitlines()
    kept = [
        line for line in lines if '"pol", "split": 6, "model": "catboost"' not in line
    ]
    path.write_text(
        "\n".join(kept) + "\n" + line_of("energy", 4, "catboost", 0.1, 1.0) + "\n"
    )
    text = table.write(
        fits.read_results(path), [4, 5, 6, 7], path.parent, ["pol", "energy"]
    ).read_text()
    assert "(only these were fitted: pol 4, 5, 7)" in text
    # of 0.1, 0.1 and 0.2
    assert cells_of(text, "z-RMSE<br>")["pol"][1].startswith("0.133<br>")
    assert "Not fitted: energy." in text  # ours was not


def test_regret_is_over_the_best_kernel_by_name_on_the_splits_of_both(path):
    with path.open("a") as file:
        for split in (4, 5):  # where ours errs by 0.2 and 0.3
            for model, error in (("gaussian", 0.2), ("additive", 0.3)):
                file.write(line_of("airfoil", split, model, error, 1.0) + "\n")
    text = write(path)
    lines = cells_of(text, "z-RMSE | splits")
    assert lines == {
        "airfoil": ["4, 5", "0.25", "0.2", "0.3", "+25.0%"],
        "mean": ["", "", "", "", "+25.0%"],
    }
    # kernels by name are no peers
    assert cells_of(text, "z-RMSE, against").keys() == {"CatBoost"}


def test_models_fitted_to_different_rows_are_refused(path):
    with path.open("a") as file:
        file.write(line_of("pol", 5, "catboost", 0.0, 0.0, digest="other") + "\n")
    with refuses(ValueError, "5"):
        write(path)


@given(
    st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=2, max_size=9)
)
def test_difference_has_the_standard_error_of_scipy(pairs):
    ours, theirs = np.array(pairs).T / 100
    difference, error, word = table.compare(ours, theirs)
    assert difference == pytest.approx(np.mean(theirs) - np.mean(ours), abs=1e-12)
    assert error == pytest.approx(stats.sem(theirs - ours), abs=1e-12)
    swapped = table.compare(theirs, ours)[2]
    assert {word, swapped} in ({"win", "lose"}, {"tie"})


@pytest.mark.slow
def test_only_what_is_missing_is_fitted_and_a_failure_is_kept_and_tried_again(tmp_path):
    path = tmp_path / "results.jsonl"
    done = Task("n=50 d=5", 0, "linear")
    wrong = Task("no such set", 0, "linear")
    assert [
        result["model"]
        for result in fits.run_missing([done], path, fits.Folders(), n_threads=1)
    ] == ["linear"]
    again = list(fits.run_missing([done, wrong], path, fits.Folders(), n_threads=1))
    assert [result["failed"] for result in again] == ["KeyError: 'no such set'"]
    assert [
        result["set"]
        for result in fits.run_missing([done, wrong], path, fits.Folders(), n_threads=1)
    ] == ["no such set"]
    assert 0 < fits.read_results(path)[done]["error"] < 1


def test_folder_of_real_sets_is_found_and_cut_in_parts(tmp_path):
    rows = np.random.default_rng(0).standard_normal((100, 3))
    for name in ("pol", "other"):
        (tmp_path / name).mkdir()
        np.savetxt(tmp_path / name / "data.csv.gz", rows, delimiter=",")
        np.savetxt(
            tmp_path / name / "test_mask.csv.gz",
            np.arange(100)[:, np.newaxis] < 10 * np.ones(10),
        )
    assert "other" in regression_sets(tmp_path)
    parts = regression_sets(tmp_path)["pol 64/16/20"](4)
    assert (parts.X.shape, parts.X_test.shape) == ((80, 2), (20, 2))
    assert not set(parts.y) & set(parts.y_test)
    assert set(parts.y) <= set(rows[:, 2])


# -- tables with text, dates and gaps
# ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Hitters with as many rows as it takes to learn that a league earns 2 more."""
    rng = np.random.default_rng(0)
    league = rng.choice(["A", "N"], 120)
    rows = pd.DataFrame(
        {
            "Hits": rng.integers(1, 99, 120),
            "League": league,
            "Born": pd.date_range("1960-01-31", periods=120).strftime("%Y-%m-%d"),
            "Salary": (2.0 * (league == "A")).astype(str),
        }
    )
    rows["Hits"] = rows["Hits"].astype(str).where(rng.random(120) > 0.1, " ")
    rows.loc[:19, "Salary"] = "NA"
    rows.to_csv(tmp_path / "hitters.csv", index=False)
    return tmp_path


def test_a_quarter_of_the_rows_with_a_target_is_held_out_as_texts(folder):
    draw = tables.tables_of(folder)["hitters"]
    cut = draw(0)
    assert (cut.X.shape, cut.X_test.shape) == ((75, 3), (25, 3))
    whole = pd.read_csv(folder / "hitters.csv", dtype=str, keep_default_na=False)
    both = pd.concat([cut.X, cut.X_test]).sort_index()
    pd.testing.assert_frame_equal(both, whole.iloc[20:, :3])
    assert draw(0).digest == cut.digest != draw(1).digest
    assert not {*tables.tables_of(folder)} - {"hitters"}


@pytest.mark.parametrize("model", ["ours", "lightgbm", "catboost"])
def test_models_learn_what_a_text_says_where_numbers_have_gaps(folder, model):
    if model != "ours":
        pytest.importorskip(model)
    task = Task("hitters", 0, model)
    found = fits.fit_and_score(task, fits.Folders(tables=folder), 1)
    assert found["measure"] == "z-RMSE"
    # 1 is the error of the mean
    assert found["error"] < 0.2
