"""A map with its uncertainty: the notebook's numbers are right."""

import numpy as np
import pytest

from tests.notebooks import NotebookContract, printed_again

pytestmark = pytest.mark.documents

PROBE = """{
    "mean": mean.fillna(-1).values.tolist(), "std": std.fillna(-1).values.tolist(),
    "truth": truth.tolist(), "sea": sea.tolist(), "measured": measured.tolist(),
    "errors": [south, north, random_error, block_error], "lat": lat.tolist(), "noise": noise,
    "labels": labels.fillna(-1).values.tolist(),
}"""


class TestNotebook(NotebookContract):
    pass


@pytest.fixture
def maps(values):
    return {name: np.array(found) for name, found in values.items()}


def test_cells_without_inputs_are_missing_and_no_others(maps):
    for name in ("mean", "std", "labels"):
        np.testing.assert_array_equal(maps[name] == -1, maps["sea"])
    assert set(np.unique(maps["labels"])) == {-1, 0, 1, 2, 3}


def test_errors_are_those_of_cells_that_were_not_measured(maps):
    unseen = ~maps["sea"] & ~maps["measured"]
    northern = np.repeat(maps["lat"][:, None] >= 44, unseen.shape[1], axis=1)
    errors = [
        np.sqrt(np.mean((maps["mean"] - maps["truth"])[unseen & part] ** 2))
        for part in (~northern, northern)
    ]
    np.testing.assert_allclose(maps["errors"][:2], errors)


def test_standard_deviations_know_where_nothing_was_measured(maps):
    unseen = ~maps["sea"] & ~maps["measured"]
    northern = np.repeat(maps["lat"][:, None] >= 44, unseen.shape[1], axis=1)
    spread = np.sqrt((maps["mean"] - maps["truth"]) ** 2 + maps["noise"] ** 2)
    for part in (unseen & ~northern, unseen & northern):
        # as standard deviations of a made surface that is no draw of the kernel: within
        # a third
        assert maps["std"][part].mean() == pytest.approx(
            np.sqrt(np.mean(spread[part] ** 2)), rel=0.35
        )
    assert (
        maps["std"][unseen & northern].mean()
        > 2 * maps["std"][unseen & ~northern].mean()
    )


def test_random_folds_flatter_and_blocks_come_near_the_error_of_new_land(maps, run):
    _, north, random_error, block_error = maps["errors"]
    new_land = np.hypot(north, maps["noise"])
    assert random_error < 0.75 * block_error < block_error < new_land
    assert "with noise" in printed_again(run.fresh)
