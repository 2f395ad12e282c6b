"""Kernel k-means: the notebook's numbers are right."""

import re

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from tests.notebooks import FEW_ROWS, NotebookContract, printed

pytestmark = pytest.mark.documents

PROBE = """{
    "ring_ari": ring_ari,
    "moon_ari": moon_ari,
    "moons": [moons.tolist(), upper.tolist()],
    "moon_labels": {name: labels.tolist() for name, labels in moon_labels.items()},
    "inertia": {name: inertia(labels) for name, labels in moon_labels.items()},
    "inertia_of_the_moons": inertia(upper),
    "exact_inertia": exact_moons.inertia_,
    "widths": widths,
    "agreement": {name: [agreement[name, D] for D in widths] for name in ("rings", "moons")},
    "relative": {name: [relative[name, D] for D in widths] for name in ("rings", "moons")},
    "n_samples": N_SAMPLES,
    "counts": counts.tolist(),
    "large_ari": large_ari,
}"""


class TestNotebook(NotebookContract):
    pass


def test_rings_are_found_exactly_and_in_features_but_not_by_k_means(values):
    assert values["ring_ari"] == {
        "k-means": pytest.approx(0, abs=0.01),
        "Kernel k-means, exact": 1,
        "512 random features": 1,
    }


def test_two_halves_have_less_inertia_than_the_moons_which_a_spectral_component_parts(
    values,
):
    X, upper = map(np.array, values["moons"])
    gram = rbf_kernel(X, gamma=1 / (2 * 0.5**2))

    def inertia(labels):
        same = np.equal.outer(labels, labels)
        return len(labels) - (gram * same / same.sum(axis=1)).sum()

    for name, labels in values["moon_labels"].items():
        assert values["inertia"][name] == pytest.approx(
            inertia(np.array(labels)), rel=1e-9
        )
    exact = inertia(np.array(values["moon_labels"]["Kernel k-means, exact"]))
    assert values["exact_inertia"] == pytest.approx(exact, rel=1e-9)
    assert (
        exact
        < 0.97 * inertia(upper)
        == pytest.approx(0.97 * values["inertia_of_the_moons"])
    )
    assert values["moon_ari"]["Kernel k-means, exact"] < 0.6
    assert values["moon_ari"]["512 random features"] < 0.7
    assert values["moon_ari"]["One spectral component"] == 1


def test_features_come_nearer_to_the_exact_labels_and_objective_as_d_grows(values):
    assert values["widths"] == [16, 64, 256, 1024]
    for name, least in (("rings", 1.0), ("moons", 0.95)):
        median = np.median(values["agreement"][name], axis=1)
        assert median[0] < 0.8
        assert (np.diff(median) >= 0).all()
        assert median[-1] >= least
        # 1/√64 of the error, and other local optima, which cost up to 3 % of the
        # objective
        assert values["relative"][name][-1] < 0.5 * values["relative"][name][0]


def test_rows_out_of_core_are_parted_by_ring(values, run):
    assert np.sum(values["counts"]) == values["n_samples"] == int(FEW_ROWS)
    assert values["large_ari"] > 0.999
    (cell,) = (cell for cell in run.stored.cells if "draw_batches" in cell.source)
    rows, ari = re.search(
        r"^([\d,]+) rows(?:.|\n)*ARI (\d\.\d+)$", printed(cell), re.MULTILINE
    ).groups()
    assert (rows, float(ari)) == ("1,000,000", 1)
