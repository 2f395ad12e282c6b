"""Kernels and designs: the notebook's numbers are right."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import integrate, special, stats
from sklearn.kernel_ridge import KernelRidge

from tests.notebooks import NotebookContract

pytestmark = pytest.mark.documents

PROBE = """{
    "exponents": exponents,
    "roughness": {name: values[:3].tolist() for name, values in roughness.items()},
    "roughness_drawn": {name: values[:3].tolist() for name, values in roughness_drawn.items()},
    "rows": rows.tolist(),
    "test_error": {f"{title}: {name}": error for (title, name), error in test_error.items()},
    "X": X[:200].tolist(),
    "y": (additive_truth(X[:200]) + disturbance[:200]).tolist(),
    "X_test": X_test.tolist(),
    "truth": additive_truth(X_test).tolist(),
    "uneven_slopes": uneven_slopes,
    "counts": counts.tolist(),
    "distances": {d: np.linalg.norm(pairs[d], axis=1).tolist() for d in pairs},
    "whole_blocks": whole_blocks,
    "relative": {f"{design} {d}": ratio.tolist() for (design, d), ratio in relative.items()},
    "lowest": lowest,
    "spectra": [omega.tolist(), spectra["box"].tolist(), spectra["tent"].tolist()],
    "passes": {f"{name} {d}": check.positive_definite for (name, d), check in found_spectra.items()},
    "worst": [worst.worst_frequency, worst.worst_density],
    "pairs_of_waves": [line[::40].tolist(), (Z @ Z.T)[::40, ::40].tolist(), pair_error],
}"""


class TestNotebook(NotebookContract):
    pass


OF_DIFFERENCE = {
    "Gaussian": lambda d: np.exp(-(d**2) / 2),
    "Matérn 3/2": lambda d: (1 + 3**0.5 * d) * np.exp(-(3**0.5) * d),
    "Laplacian": lambda d: np.exp(-d),
}


def test_roughness_is_the_kernels_second_difference(values):
    steps = np.array([1.0, 0.5, 0.25])
    for name in ("Laplacian", "Matérn 3/2", "Gaussian"):
        k = OF_DIFFERENCE[name]
        expected = 6 - 8 * k(steps) + 2 * k(2 * steps)
        assert_allclose(values["roughness"][name], expected, rtol=1e-10)
        assert_allclose(values["roughness_drawn"][name], expected, rtol=0.25)
    exponents = [
        values["exponents"][name] for name in ("Laplacian", "Matérn 3/2", "Gaussian")
    ]
    assert_allclose(exponents, [1, 3, 4], atol=0.05)


def test_additive_kernel_needs_fewer_rows_and_misses_what_columns_do_together(values):
    whole, additive, pair = (
        np.array(values["test_error"][f"The truth is additive: {name}"])
        for name in ("all columns", "additive", "additive + pair (0, 1)")
    )
    assert (additive < 0.5 * whole).all()
    assert (additive < pair).all()
    assert additive[1] < whole[-1]
    whole, additive, pair = (
        np.array(values["test_error"][f"Columns 0 and 1 act together: {name}"])
        for name in ("all columns", "additive", "additive + pair (0, 1)")
    )
    # What no sum of functions of one column sees has the variance 1.2² · (E sin²(2x))²,
    # and stays.
    unseen = 1.2 * integrate.quad(lambda x: np.sin(2 * x) ** 2, 0, 3**0.5)[0] / 3**0.5
    assert additive[-1] == pytest.approx(unseen, rel=0.1)
    assert whole[-1] < additive[-1] / 2
    assert (pair < np.minimum(whole, additive)).all()


def test_additive_fit_is_near_exact_kernel_ridge_regression(values):
    X, y, X_test, truth = (
        np.array(values[name]) for name in ("X", "y", "X_test", "truth")
    )

    # the large constant stands for the intercept, which is not penalised
    def gram(left, right):
        return 1e4 + np.exp(-0.5 * (left[:, np.newaxis] - right) ** 2).sum(axis=2)

    oracle = KernelRidge(kernel="precomputed", alpha=0.3**2).fit(gram(X, X), y)
    exact = np.sqrt(np.mean((oracle.predict(gram(X_test, X)) - truth) ** 2))
    at_200 = values["test_error"]["The truth is additive: additive"][
        values["rows"].index(200)
    ]
    assert at_200 == pytest.approx(exact, rel=0.2)


def test_features_of_pairs_of_waves_are_near_their_kernels_double_sum(values):
    line, products, largest_error = values["pairs_of_waves"]
    # exact for what is smooth here
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    waves = np.exp(1j * np.outer(3 + nodes, line))
    both = (waves[:, np.newaxis] + waves) / 2
    law = np.outer(weights, weights) / weights.sum() ** 2
    kernel = np.einsum("ij,ijx,ijy->xy", law, both, both.conj()).real
    # 4,000 pairs: entries have a deviation below 1/√4000 = 0.016; of 40,401 the largest
    # is about 4 of them
    assert_allclose(products, kernel, atol=0.06)
    assert 0.01 < largest_error < 0.08


def orthogonal_ratio(distances, d):
    """Return the error of whole orthogonal blocks over that of i.i.d. draws, by
    numerical integration.

    For orthogonal frequencies E cos a · cos b = E cos(a + b), and their sum has a
    length of 2d degrees of freedom and a uniform direction, whose characteristic
    function is a Bessel function."""

    nodes, weights = special.roots_legendre(400)
    radius = 10 * (nodes + 1)  # up to 20: the lengths are near √(2d), at most 8
    z = np.outer(distances, radius)
    direction = special.gamma(d / 2) * (2 / z) ** (d / 2 - 1) * special.jv(d / 2 - 1, z)
    product = direction @ (10 * weights * stats.chi(2 * d).pdf(radius))
    covariance = product - np.exp(-(distances**2))
    single = (1 + np.exp(-2 * distances**2) - 2 * np.exp(-(distances**2))) / 2
    return np.sqrt(1 + (d - 1) * covariance.mean() / single.mean())


def test_designs_err_as_theory_says(values):
    counts = np.array(values["counts"])
    for d in (2, 8, 32):
        ratios = {
            design: np.array(values["relative"][f"{design} {d}"])
            for design in ("iid", "orthogonal", "quasi-monte-carlo")
        }
        whole = orthogonal_ratio(np.array(values["distances"][str(d)]), d)
        assert values["whole_blocks"][str(d)] == pytest.approx(whole, rel=1e-6)
        # 200 draws measure a standard deviation to 5 % where all pairs err together.
        assert_allclose(ratios["iid"], 1, atol=0.15)
        assert (ratios["orthogonal"] <= 1).all()
        assert_allclose(ratios["orthogonal"][counts >= d], whole, rtol=0.15)
        assert ratios["quasi-monte-carlo"][-1] < 0.7
    assert values["relative"]["quasi-monte-carlo 2"][-1] < 0.15


def test_points_of_quasi_monte_carlo_are_more_even(values):
    slopes = values["uneven_slopes"]
    assert slopes["iid"] == pytest.approx(-0.5, abs=0.1)
    assert slopes["quasi-monte-carlo"] < -0.8


def test_the_box_is_no_kernel_and_the_tent_is_one_of_one_column(values):
    assert values["lowest"]["box"][0] == pytest.approx(1 - 2**0.5, rel=1e-10)
    assert values["lowest"]["tent"][0] == pytest.approx(1.1 - 0.73**0.5, rel=1e-10)
    assert values["lowest"]["box"][1] < -1
    assert values["lowest"]["tent"][1] > -1e-10
    omega, box, tent = map(np.array, values["spectra"])
    assert_allclose(box, np.sinc(omega / np.pi) / np.pi, atol=1e-5)
    assert_allclose(tent, np.sinc(omega / np.pi) ** 2 / np.pi, atol=1e-5)
    assert values["passes"] == {
        "box 1": False,
        "box 2": False,
        "tent 1": True,
        "tent 2": False,
    }
    # The lowest point of sin(ω)/ω is where tan ω = ω; the check smooths the spectrum
    # over 1/50.
    frequency, density = values["worst"]
    assert frequency == pytest.approx(4.4934, abs=0.02)
    assert density == pytest.approx(-0.21723 / np.pi, rel=0.05)
