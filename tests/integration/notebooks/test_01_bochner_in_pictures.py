"""Bochner's theorem in pictures: the notebook's numbers are right."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special
from sklearn.kernel_ridge import KernelRidge

from tests.notebooks import NotebookContract

pytestmark = pytest.mark.documents

PROBE = """{
    "inside": list(inside.values()),
    "slopes": [*slopes.values(), *largest_error_slopes.values()],
    "r": r.tolist(),
    "sd_formula": {design: sd.tolist() for design, sd in sd_formula.items()},
    "sd_by_design": {design: sd.tolist() for design, sd in sd_by_design.items()},
    "train": [x_train.tolist(), y_train.tolist()],
    "plot": [x_plot.tolist(), exact_fit.tolist()],
    "to_exact": to_exact.tolist(),
    "fit_slope": fit_slope,
    "settled": to_truth[-1] / floor,
}"""


class TestNotebook(NotebookContract):
    pass


def test_errors_fall_with_the_square_root_of_the_number_of_features(values):
    assert len(values["slopes"]) == 6
    assert_allclose([*values["slopes"], values["fit_slope"]], -0.5, atol=0.1)


def test_about_19_of_20_draws_lie_within_two_standard_deviations(values):
    # Not normal at D = 16, and correlated along each draw: between 93 % and 99 %.
    assert all(0.93 < share < 0.99 for share in values["inside"])


def test_orthogonal_error_is_the_formula_and_below_the_iid_error(values):
    d = 8
    n_frequencies = 32
    r = np.array(values["r"])
    single = (1 + np.exp(-2 * r**2) - 2 * np.exp(-(r**2))) / 2
    covariance = special.hyp1f1(d, d / 2, -(r**2) / 2) - np.exp(-(r**2))
    expected = {
        "iid": np.sqrt(single / n_frequencies),
        "orthogonal": np.sqrt((single + (d - 1) * covariance) / n_frequencies),
    }
    for design, sd in expected.items():
        assert_allclose(values["sd_formula"][design], sd, rtol=1e-9)
        # 2,000 draws measure it to 1.6 %, and less well near r = 0, where the errors
        # have heavier tails.
        assert_allclose(values["sd_by_design"][design], sd, rtol=0.08)
    iid, orthogonal = (
        np.array(values["sd_by_design"][design]) for design in ("iid", "orthogonal")
    )
    assert (orthogonal < iid)[r <= 2].all()
    assert (1 - orthogonal / iid).max() > 0.45


def test_the_fit_tends_to_kernel_ridge_regression(values):
    x, y = map(np.array, values["train"])
    x_plot, exact_fit = map(np.array, values["plot"])
    oracle = KernelRidge(kernel="rbf", gamma=1 / (2 * 0.4**2), alpha=0.5).fit(
        x[:, np.newaxis], y
    )
    assert_allclose(exact_fit, oracle.predict(x_plot[:, np.newaxis]), atol=1e-10)
    assert values["to_exact"][-1] < 0.02 < 0.2 < values["to_exact"][0]
    assert 0.95 < values["settled"] < 1.05
