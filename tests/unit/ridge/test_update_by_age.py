"""A model of the last loads alone."""

import numpy as np
import pytest

from rff_dist import append_dataset, delete_rows, open_dataset, write_dataset
from rff_dist.errors import InvalidParameterError
from rff_dist.living.ranges import merge_ranges
from rff_dist.ridge.models import read_model, write_model
from rff_dist.storage.locations import parse_location
from rff_dist.workbench.jobs.refusals import refusals_of
from tests.living_data import (
    BLOCK,
    CHUNK,
    ENGINE,
    assert_follows,
    draw,
    fit,
    refresh,
    watch_sums,
)
from tests.plain import update_model
from tests.refusals import refuses

pytestmark = pytest.mark.usefixtures("small_tiles")


def test_needs_data_that_know_their_loads(url, begun):
    plain = write_dataset("plain", *draw(500, 0))
    with refuses(InvalidParameterError, "window", "'2'", "no versions"):
        update_model(fit(plain), plain, window="2", engine=ENGINE)
    with refuses(InvalidParameterError, "window", "'2 weeks'"):
        update_model(begun, open_dataset(url), window="2 weeks", engine=ENGINE)


class TestAWindow:
    """A model of the last loads: what leaves is subtracted."""

    def test_moves_with_each_load_and_is_left_by_all(self, url, begun):
        starts = []
        for night, window in enumerate(["2", None, None, "3", "all"]):
            append_dataset(url, *draw(256, night + 1))
            found = refresh("model", url, window=window)
            assert (found["decision"], found["n_new"] >= 256) == ("published", True)
            starts.append(found["first_row"])
            assert_follows(read_model("model"), begun, open_dataset(url), starts[-1])
        assert starts == [0, 4000, 4256, 4256, 0]
        assert found["n_new"] == 256 + 4256

    @pytest.mark.usefixtures("begun")
    def test_that_is_shorter_subtracts_where_nothing_is_new(self, url):
        append_dataset(url, *draw(256, 1))
        refresh("model", url)
        found = refresh("model", url, window="1")
        facts = ("decision", "n_new", "n_gone", "n_samples")
        assert [found[name] for name in facts] == ["published", 0, 4000, 256]
        again = refresh("model", url)
        assert (again["decision"], again["window"]) == ("nothing new", "1")
        assert again["reason"] == "the model holds all 256 rows of the window 1"

    def test_stays_as_it_is_where_rows_before_it_are_deleted_in_order(self, url, begun):
        for seed in (1, 2):
            append_dataset(url, *draw(300, seed))
            refresh("model", url, window="2")
        delete_rows(url, [3], keep_order=True)
        found = refresh("model", url)
        facts = ("decision", "first_row", "n_new", "n_gone", "n_samples")
        assert [found[name] for name in facts] == ["published", 3999, 0, 0, 600]
        assert_follows(read_model("model"), begun, open_dataset(url), 3999)

    def test_sums_what_comes_and_what_leaves(self, tmp_path, monkeypatch):
        url = tmp_path / "d"
        write_dataset(url, *draw(BLOCK, 0), chunk_rows=CHUNK, versioned=True)
        for seed in range(1, 5):
            append_dataset(url, *draw(BLOCK, seed))
        begun = model = fit(open_dataset(url))
        summed = watch_sums(monkeypatch, lambda _, ranges, __: merge_ranges(ranges))
        for i in range(3):
            append_dataset(url, *draw(BLOCK, 9 + i))
            model = update_model(model, open_dataset(url), window="5", engine=ENGINE)
            assert_follows(model, begun, open_dataset(url), (i + 1) * BLOCK)
        parts = [[(j * BLOCK, (j + 1) * BLOCK)] for i in range(3) for j in (i, 5 + i)]
        assert summed == parts

    def test_keeps_refused_rows_out_until_they_leave(self, url, begun):
        X, y = draw(500, 1)
        append_dataset(url, X, 20 * y[::-1])
        assert refresh("model", url, window="3")["decision"] == "kept"
        append_dataset(url, *draw(300, 2))
        found = refresh("model", url, window="3")
        assert (found["decision"], found["left_out"]) == ("published", [[4000, 4500]])
        append_dataset(url, *draw(300, 3))
        append_dataset(url, *draw(300, 4))
        found = refresh("model", url)
        assert (found["decision"], found["left_out"], found["n_samples"]) == (
            "published",
            [],
            900,
        )
        assert refusals_of(parse_location("model")) == []
        assert_follows(read_model("model"), begun, open_dataset(url), 4500)

    # at a million deviations
    @pytest.mark.filterwarnings("ignore:angles of Fourier features:UserWarning")
    def test_sees_no_drift_in_columns_that_are_constant_by_now(self, tmp_path):
        """The rows that varied in them were taken out, and only rounding is left."""
        url = tmp_path / "d"
        constant = np.array([0.0, 1e6 + 0.1])
        X = np.column_stack([draw(2000, 0)[0], draw(2000, 9)[0][:, 0]])
        dataset = write_dataset(
            url, X, np.sin(X[:, 0]), chunk_rows=CHUNK, versioned=True
        )
        write_model(fit(dataset), "model")
        for night in range(4):
            X = np.column_stack(
                [draw(400, night + 1)[0][:, 0], np.tile(constant, (400, 1))]
            )
            append_dataset(url, X, np.sin(X[:, 0]))
            options = {"window": "2", "force": True} if night == 0 else {}
            found = refresh("model", url, **options)
            assert found["decision"] == "published"
            drifted = {
                one["column"]
                for one in found["drift"]["columns"]
                if one["p_value"] < 0.01
            }
            # the mean of column 1 stays at 0
            assert drifted == ({2} if night < 2 else set())
        X[:, 1:] = constant + 1e-5 * (constant + 1.0)
        append_dataset(url, X, np.sin(X[:, 0]))
        columns = refresh("model", url)["drift"]["columns"]
        assert {one["column"] for one in columns[:2]} == {1, 2}
