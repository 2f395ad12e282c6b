"""Five nights of one table: the night with wrong prices is kept out, and no other."""

import pytest

from tests.notebooks import NotebookContract

pytestmark = pytest.mark.documents

PROBE = """{
    "decisions": [update["decision"] for update in updates.values()],
    "new_rows": new_rows,
    "champion": champion,
    "challenger": challenger,
    "noise": NOISE,
    "n_samples": updates[NIGHTS[-1]]["n_samples"],
    "left_out": updates[NIGHTS[-1]]["left_out"],
}"""


class TestNotebook(NotebookContract):
    pass


def test_only_the_night_with_wrong_prices_is_kept_out(values):
    assert values["decisions"] == ["published", "published", "kept", "published"]
    assert values["left_out"] == [[900, 1200]]
    assert values["n_samples"] == 1200  # five nights of 300 rows less one


def test_errors_on_held_out_rows_come_near_the_noise(values):
    assert values["new_rows"][2] > 3 * max(values["new_rows"][:2])
    assert values["challenger"][2] > values["champion"][2]
    assert values["noise"] < values["challenger"][3] < 2 * values["noise"]
