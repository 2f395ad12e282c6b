"""Exact sums: the notebook's numbers are right."""

import numpy as np
import pytest

from tests.notebooks import NotebookContract

pytestmark = pytest.mark.documents

PROBE = """{
    "workers": workers,
    "digests": list(digests.values()),
    "differences": differences,
    "gone": [total.digest(), clean.digest()],
    "left_of": left_of,
    "errors": [errors, clean_errors],
    "by_scikit_learn": [
        float(np.sqrt(np.mean((Ridge(1e-2, fit_intercept=False).fit(
            feature_map.transform(np.concatenate([rows_of(d)[0] for d in chosen])).astype(float),
            np.concatenate([rows_of(d)[1] for d in chosen]),
        ).predict(feature_map.transform(X_new)) - y_new) ** 2)))
        for chosen in (range(1, BROKEN + 1), [d for d in range(1, N_DAYS + 1) if d != BROKEN])
    ],
    "days": [BROKEN, NOTICED, N_DAYS],
    "megabytes": {name: [megabytes[name, n] for n in sizes] for name, (_, sizes) in contenders.items()},
    "test_errors": {name: [test_errors[name, n] for n in sizes] for name, (_, sizes) in contenders.items()},
}"""


class TestNotebook(NotebookContract):
    pass


def test_any_number_of_workers_gives_one_model_but_not_by_floating_point_sums(values):
    assert values["workers"] == [1, 2, 4, 8]
    assert len(set(values["digests"])) == 1
    moved = {name: max(found) for name, found in values["differences"].items()}
    assert moved["rff_dist"] == 0
    assert 0 < moved["sums in float64"] < 1e-6 < moved["sums in float32"]


def test_a_day_that_is_taken_away_leaves_no_bit(values):
    taken, never = values["gone"]
    assert taken == never
    left = values["left_of"]
    assert left["rff_dist"] == 0
    assert 0 < left["float64"] < left["float32"]
    broken, noticed, n_days = values["days"]
    errors, clean = map(np.array, values["errors"])
    assert (errors[: broken - 1] == clean[: broken - 1]).all()
    assert (errors[noticed - 1 :] == clean[noticed - 1 :]).all()
    assert (
        errors[broken - 1 : noticed - 1] > 2 * clean[broken - 1 : noticed - 1]
    ).all()
    # sums in float64 of the same features, which has them to eleven digits or more
    np.testing.assert_allclose(
        [errors[broken - 1], errors[n_days - 1]], values["by_scikit_learn"], rtol=1e-6
    )


def test_memory_stays_while_rows_grow_sixteenfold(values):
    ours, theirs, exact = values["megabytes"].values()
    assert ours[-1] < 3 * ours[1]
    assert theirs[-1] > 10 * theirs[1]
    assert exact[-1] > 10 * exact[0]  # rows × 4
    for found in values["test_errors"].values():
        # 0.1 is the noise of the target
        assert 0.09 < found[-1] < 0.12
        assert found == sorted(found, reverse=True)
