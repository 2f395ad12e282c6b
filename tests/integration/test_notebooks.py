"""The notebooks run as stored, and their numbers are right."""

import ast
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from scipy import integrate, special, stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

import rff_dist

pytestmark = pytest.mark.notebooks

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*.ipynb"))
BOCHNER = "01-bochner-in-pictures"
KERNELS = "02-kernels-and-designs"
UNCERTAINTY = "03-kernel-svm-and-uncertainty"
CLUSTERS = "04-kernel-k-means"
IMAGE = "05-an-image-as-a-function"

# Rows of the experiment in 03, which is stored with 100,000: an exact kernel machine takes minutes for those;
# and of the one out of core in 04, which is stored with a million.
FEW_ROWS = "4000"

# What is read from a notebook's variables when it has run: an expression whose value is JSON.
PROBES = {
    BOCHNER: """{
        "densities": {name: [float(p(w)) for w in (0.0, 0.7, 3.0)] for name, p in DENSITIES.items()},
        "fourier_gap": fourier_gap,
        "inside": list(inside.values()),
        "widths": widths.tolist(),
        "n_draws": int(errors.shape[1]),
        "closed_sd": {name: sd.tolist() for name, sd in closed_sd.items()},
        "measured_sd": {name: sd.tolist() for name, sd in measured_sd.items()},
        "slopes": [*slopes.values(), *largest_error_slopes.values()],
        "r": r.tolist(),
        "sd_formula": {design: sd.tolist() for design, sd in sd_formula.items()},
        "sd_by_design": {design: sd.tolist() for design, sd in sd_by_design.items()},
        "train": [x_train.tolist(), y_train.tolist()],
        "plot": [x_plot.tolist(), exact_fit.tolist()],
        "to_exact": to_exact.tolist(),
        "fit_slope": fit_slope,
        "settled": to_truth[-1] / floor,
    }""",
    KERNELS: """{
        "mass": {
            name: 2 * float(np.trapezoid(density(w) * w, np.log(w)))
            for w in [np.exp(np.linspace(-40, np.log(1000), 200_001))]
            for name, (_, density, _) in GALLERY.items()
        },
        "at_one": {
            name: 2 * float(np.trapezoid(density(w) * np.cos(w) * w, np.log(w)))
            for w in [np.exp(np.linspace(-40, np.log(1000), 200_001))]
            for name, (_, density, _) in GALLERY.items()
        },
        "drawn": {
            name: kernel.sample_frequencies(1, 2_000, rng=1)[0].tolist()
            for name, (kernel, _, _) in GALLERY.items()
        },
        "within": within,
        "exponents": exponents,
        "roughness": {name: values[:3].tolist() for name, values in roughness.items()},
        "roughness_drawn": {name: values[:3].tolist() for name, values in roughness_drawn.items()},
        "composite_error": composite_error,
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
        "designs": designs_by_kernel,
        "lowest": lowest,
        "spectra": [omega.tolist(), spectra["box"].tolist(), spectra["tent"].tolist()],
        "passes": {f"{name} {d}": check.positive_definite for (name, d), check in found_spectra.items()},
        "worst": [worst.worst_frequency, worst.worst_density],
        "delta": delta.tolist(),
        "map_ratio": {name: ratio.tolist() for name, ratio in map_ratio.items()},
        "better": {name: [[v.better, v.pairs, v.phases] for v in found] for name, found in better.items()},
        "spacings": spacings,
        "pairs_of_waves": [line[::40].tolist(), (Z @ Z.T)[::40, ::40].tolist(), pair_error],
    }""",
    UNCERTAINTY: """{
        "n_samples": N_SAMPLES,
        "table": table,
        "n_readings": search.n_readings,
        "train": [x_train.tolist(), y_gap.tolist()],
        "penalty": [float(model.alpha_), float(sigma)],
        "grid": grid[::10].tolist(),
        "band": [mean[::10].tolist(), std[::10].tolist()],
        "exact_band": [exact_mean[::10].tolist(), exact_std[::10].tolist()],
        "levels": list(LEVELS),
        "coverage": [float(share) for share in coverage],
        "nlpd": [float(nlpd), [float(value) for value in nlpd_by_factor], factors.tolist()],
        "cv_errors": cv_errors.tolist(),
        "cv_weights": weights.tolist(),
        "cv_grid": [candidates, alphas.tolist()],
        "chosen": [int(chooser.n_components_), float(chooser.alpha_)],
        "gap": float(gap),
    }""",
    CLUSTERS: """{
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
    }""",
    IMAGE: """{
        "known": int(known.sum()),
        "pixels": len(known),
        "squares": {
            name: float(((picture - colour)[~known] ** 2).mean()) for name, picture in pictures.items()
        },
        "curves": [coordinate_curve[-1], wave_curve[-1], float(decibels(by_ridge))],
        "to_scikit_learn": float(abs(by_ridge - __import__("sklearn.linear_model").linear_model.Ridge(
            ridge.alpha_
        ).fit(ridge.feature_map_.transform(where[known]), colour[known]).predict(
            ridge.feature_map_.transform(where)
        )).max()),
        "chosen": float(np.ravel(tuned.length_scale_)[0]),
        "learned": [float(down), float(across)],
        "by_width": by_width,
    }""",
}


@dataclass(frozen=True)
class Run:
    """A notebook as stored and as it has just run, with the values that were probed."""

    stored: Any
    fresh: Any
    values: dict[str, Any]


class Runs(dict[str, Run]):
    """Runs by the notebooks' names, each made when it is first asked for: together they take minutes."""

    def __missing__(self, name: str) -> Run:
        self[name] = found = run(NOTEBOOKS[0].parent / f"{name}.ipynb")
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run each notebook once, in this interpreter, whatever kernels and settings this machine has."""
    home = tmp_path_factory.mktemp("jupyter")
    kernel = home / "kernels" / "this-interpreter"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "test", "language": "python"})
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(home))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(home / "runtime"))
        patch.setenv("IPYTHONDIR", str(home / "ipython"))
        patch.setenv("OMP_NUM_THREADS", "1")  # the products are tiny: more threads only wait for each other
        patch.setenv("RFF_NOTEBOOK_ROWS", FEW_ROWS)
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        yield Runs()


def run(path):
    stored, fresh = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    probe = f"import json; print(json.dumps({PROBES.get(path.stem, '{}')}))"
    fresh.cells.append(nbformat.v4.new_code_cell(probe))
    NotebookClient(
        fresh, kernel_name="this-interpreter", timeout=120, resources={"metadata": {"path": path.parent}}
    ).execute()
    (output,) = fresh.cells.pop().outputs
    return Run(stored, fresh, json.loads(output.text))


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(cell):
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")


def printed_again(notebook):
    """Return what cells print but those tagged "measured": seconds, and what the number of rows changes."""
    cells = [cell for cell in notebook.cells if "measured" not in cell.metadata.get("tags", [])]
    return "".join(printed(cell) for cell in cells)


def n_figures(notebook):
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


every_notebook = pytest.mark.parametrize("name", [path.stem for path in NOTEBOOKS])


@every_notebook
def test_notebook_runs_without_a_warning(runs, name):
    # An error has stopped the run already; warnings go to stderr.
    assert [output.text for output in outputs(runs[name].fresh) if output.get("name") == "stderr"] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_opens_with_a_picture_and_uses_public_names_only(path):
    notebook = nbformat.read(path, as_version=4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert any("image/png" in output.get("data", {}) for output in first.outputs)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert "rcParams" not in code
    imported = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imported if str(node.module).startswith("rff_dist")]
    assert {node.module for node in ours} == {"rff_dist"}
    assert {name.name for node in ours for name in node.names} <= set(rff_dist.__all__)


@every_notebook
def test_stored_outputs_are_what_the_notebook_shows_today(runs, name):
    stored, fresh = runs[name].stored, runs[name].fresh
    assert n_figures(stored) == n_figures(fresh) > 0
    number = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
    then, now = printed_again(stored).replace(",", ""), printed_again(fresh).replace(",", "")
    assert number.sub("#", then) == number.sub("#", now)
    # The last digit printed may differ between processors: float32 cosines do, by one unit in the last place.
    np.testing.assert_allclose(
        [float(text) for text in number.findall(now)],
        [float(text) for text in number.findall(then)],
        rtol=0.02,
        atol=1e-6,
    )


@every_notebook
def test_stored_notebook_has_run_from_top_to_bottom(runs, name):
    counts = [cell.execution_count for cell in runs[name].stored.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebook_is_small_and_names_no_machine(path):
    assert path.stat().st_size < 1_000_000
    notebook = nbformat.read(path, as_version=4)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for output in outputs(notebook):
        output.get("data", {}).pop("image/png", None)  # base64 may spell anything
    folders = re.compile(r"/(?:home|root|tmp|Users|usr|work)/|[A-Z]:\\\\|site-packages")
    assert folders.findall(json.dumps(notebook)) == []


# -- 01: Bochner's theorem in pictures -------------------------------------------------------------


@pytest.fixture(scope="module")
def bochner(runs):
    return runs[BOCHNER].values


def test_densities_are_scipys_and_the_fourier_integrals_of_the_kernels(bochner):
    laws = {"Gaussian": stats.norm(), "Matérn 3/2": stats.t(3), "Laplacian": stats.cauchy()}
    for name, law in laws.items():
        np.testing.assert_allclose(bochner["densities"][name], law.pdf([0.0, 0.7, 3.0]), rtol=1e-12)
        # The trapezoidal rule at step 5e-4 errs by the step squared over 12 at the Laplacian's kink: 2e-8.
        assert bochner["fourier_gap"][name] < 1e-7


def test_measured_standard_deviations_are_the_closed_form(bochner):
    at_one = {
        "Gaussian": (np.exp(-0.5), np.exp(-2.0)),
        "Matérn 3/2": ((1 + 3**0.5) * np.exp(-(3**0.5)), (1 + 12**0.5) * np.exp(-(12**0.5))),
        "Laplacian": (np.exp(-1.0), np.exp(-2.0)),
    }
    sampling_error = 1 / np.sqrt(2 * bochner["n_draws"])
    for name, (k, k_twice) in at_one.items():
        expected = np.sqrt((1 + k_twice - 2 * k**2) / np.array(bochner["widths"]))
        np.testing.assert_allclose(bochner["closed_sd"][name], expected, rtol=1e-12)
        np.testing.assert_allclose(bochner["measured_sd"][name], expected, rtol=4 * sampling_error)


def test_errors_fall_with_the_square_root_of_the_number_of_features(bochner):
    assert len(bochner["slopes"]) == 6
    np.testing.assert_allclose([*bochner["slopes"], bochner["fit_slope"]], -0.5, atol=0.1)


def test_about_19_of_20_draws_lie_within_two_standard_deviations(bochner):
    # Not normal at D = 16, and correlated along each draw: between 93 % and 99 %.
    assert all(0.93 < share < 0.99 for share in bochner["inside"])


def test_orthogonal_error_is_the_formula_and_below_the_iid_error(bochner):
    d, n_frequencies, r = 8, 32, np.array(bochner["r"])
    single = (1 + np.exp(-2 * r**2) - 2 * np.exp(-(r**2))) / 2
    covariance = special.hyp1f1(d, d / 2, -(r**2) / 2) - np.exp(-(r**2))
    expected = {
        "iid": np.sqrt(single / n_frequencies),
        "orthogonal": np.sqrt((single + (d - 1) * covariance) / n_frequencies),
    }
    for design, sd in expected.items():
        np.testing.assert_allclose(bochner["sd_formula"][design], sd, rtol=1e-9)
        # 2,000 draws measure it to 1.6 %, and less well near r = 0, where the errors have heavier tails.
        np.testing.assert_allclose(bochner["sd_by_design"][design], sd, rtol=0.08)
    iid, orthogonal = (np.array(bochner["sd_by_design"][design]) for design in ("iid", "orthogonal"))
    assert (orthogonal < iid)[r <= 2].all()
    assert (1 - orthogonal / iid).max() > 0.45


def test_the_fit_tends_to_kernel_ridge_regression(bochner):
    x, y = map(np.array, bochner["train"])
    x_plot, exact_fit = map(np.array, bochner["plot"])
    oracle = KernelRidge(kernel="rbf", gamma=1 / (2 * 0.4**2), alpha=0.5).fit(x[:, np.newaxis], y)
    np.testing.assert_allclose(exact_fit, oracle.predict(x_plot[:, np.newaxis]), atol=1e-10)
    assert bochner["to_exact"][-1] < 0.02 < 0.2 < bochner["to_exact"][0]
    assert 0.95 < bochner["settled"] < 1.05


# -- 02: kernels and designs -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels(runs):
    return runs[KERNELS].values


def mixture_cdf(omega):
    return sum(w * stats.norm.cdf(omega, m, 0.3) for w, m in ((0.5, 0), (0.25, -2.5), (0.25, 2.5)))


def bessel_cdf(omega):
    """Return the distribution function of the density K₀(|ω|)/π, by an integral of it."""
    return 0.5 + np.sign(omega) * special.iti0k0(np.abs(omega))[1] / np.pi


OF_DIFFERENCE = {
    "Gaussian": lambda d: np.exp(-(d**2) / 2),
    "Matérn 3/2": lambda d: (1 + 3**0.5 * d) * np.exp(-(3**0.5) * d),
    "Laplacian": lambda d: np.exp(-d),
    "Rational quadratic": lambda d: (1 + d**2) ** -0.5,
    "Cauchy": lambda d: 1 / (1 + d**2),
    "Sinc": lambda d: np.sinc(d / np.pi),
    "Spectral mixture": lambda d: np.exp(-((0.3 * d) ** 2) / 2) * (1 + np.cos(2.5 * d)) / 2,
}


def test_densities_integrate_to_one_and_to_their_kernels(kernels):
    assert list(kernels["mass"]) == list(kernels["at_one"]) == list(OF_DIFFERENCE)
    for name, of_difference in OF_DIFFERENCE.items():
        # Up to ω = 1,000: the Laplacian's density has 2/1000π beyond, and the uniform one jumps.
        assert kernels["mass"][name] == pytest.approx(1, abs=1e-3)
        assert kernels["at_one"][name] == pytest.approx(of_difference(1.0), abs=2e-4)


def test_drawn_frequencies_follow_the_densities(kernels):
    laws = {
        "Gaussian": stats.norm.cdf,
        "Matérn 3/2": stats.t(3).cdf,
        "Laplacian": stats.cauchy.cdf,
        "Rational quadratic": bessel_cdf,
        "Cauchy": stats.laplace.cdf,
        "Sinc": stats.uniform(-1, 2).cdf,
        "Spectral mixture": mixture_cdf,
    }
    assert set(laws) == set(kernels["drawn"])
    for name, cdf in laws.items():
        assert stats.kstest(kernels["drawn"][name], cdf).pvalue > 1e-3, name


def test_reconstructions_err_as_the_closed_form_says(kernels):
    # 100 draws, whose errors at neighbouring points go together: good to about a tenth.
    assert all(0.85 < ratio < 1.15 for ratio in kernels["within"].values())


def test_roughness_is_the_kernels_second_difference(kernels):
    steps = np.array([1.0, 0.5, 0.25])
    for name in ("Laplacian", "Matérn 3/2", "Gaussian"):
        k = OF_DIFFERENCE[name]
        expected = 6 - 8 * k(steps) + 2 * k(2 * steps)
        np.testing.assert_allclose(kernels["roughness"][name], expected, rtol=1e-10)
        np.testing.assert_allclose(kernels["roughness_drawn"][name], expected, rtol=0.25)
    exponents = [kernels["exponents"][name] for name in ("Laplacian", "Matérn 3/2", "Gaussian")]
    np.testing.assert_allclose(exponents, [1, 3, 4], atol=0.05)


def test_features_of_composites_are_near_their_kernels(kernels):
    assert len(kernels["composite_error"]) == 4
    assert all(error < 0.06 for error in kernels["composite_error"].values())


def test_additive_kernel_needs_fewer_rows_and_misses_what_columns_do_together(kernels):
    whole, additive, pair = (
        np.array(kernels["test_error"][f"The truth is additive: {name}"])
        for name in ("all columns", "additive", "additive + pair (0, 1)")
    )
    assert (additive < 0.5 * whole).all()
    assert (additive < pair).all()
    assert additive[1] < whole[-1]
    whole, additive, pair = (
        np.array(kernels["test_error"][f"Columns 0 and 1 act together: {name}"])
        for name in ("all columns", "additive", "additive + pair (0, 1)")
    )
    # What no sum of functions of one column sees has the variance 1.2² · (E sin²(2x))², and stays.
    unseen = 1.2 * integrate.quad(lambda x: np.sin(2 * x) ** 2, 0, 3**0.5)[0] / 3**0.5
    assert additive[-1] == pytest.approx(unseen, rel=0.1)
    assert whole[-1] < additive[-1] / 2
    assert (pair < np.minimum(whole, additive)).all()


def test_additive_fit_is_near_exact_kernel_ridge_regression(kernels):
    X, y, X_test, truth = (np.array(kernels[name]) for name in ("X", "y", "X_test", "truth"))

    def gram(left, right):  # the large constant stands for the intercept, which is not penalised
        return 1e4 + np.exp(-0.5 * (left[:, np.newaxis] - right) ** 2).sum(axis=2)

    oracle = KernelRidge(kernel="precomputed", alpha=0.3**2).fit(gram(X, X), y)
    exact = np.sqrt(np.mean((oracle.predict(gram(X_test, X)) - truth) ** 2))
    at_200 = kernels["test_error"]["The truth is additive: additive"][kernels["rows"].index(200)]
    assert at_200 == pytest.approx(exact, rel=0.2)


def test_features_of_pairs_of_waves_are_near_their_kernels_double_sum(kernels):
    line, products, largest_error = kernels["pairs_of_waves"]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)  # exact for what is smooth here
    waves = np.exp(1j * np.outer(3 + nodes, line))
    both = (waves[:, np.newaxis] + waves) / 2
    law = np.outer(weights, weights) / weights.sum() ** 2
    kernel = np.einsum("ij,ijx,ijy->xy", law, both, both.conj()).real
    # 4,000 pairs: entries have a deviation below 1/√4000 = 0.016; of 40,401 the largest is about 4 of them
    np.testing.assert_allclose(products, kernel, atol=0.06)
    assert 0.01 < largest_error < 0.08


def orthogonal_ratio(distances, d):
    """Return the error of whole orthogonal blocks over that of i.i.d. draws, by numerical integration.

    For orthogonal frequencies E cos a · cos b = E cos(a + b), and their sum has a length of 2d degrees of
    freedom and a uniform direction, whose characteristic function is a Bessel function.
    """

    nodes, weights = special.roots_legendre(400)
    radius = 10 * (nodes + 1)  # up to 20: the lengths are near √(2d), at most 8
    z = np.outer(distances, radius)
    direction = special.gamma(d / 2) * (2 / z) ** (d / 2 - 1) * special.jv(d / 2 - 1, z)
    product = direction @ (10 * weights * stats.chi(2 * d).pdf(radius))
    covariance = product - np.exp(-(distances**2))
    single = (1 + np.exp(-2 * distances**2) - 2 * np.exp(-(distances**2))) / 2
    return np.sqrt(1 + (d - 1) * covariance.mean() / single.mean())


def test_designs_err_as_theory_says(kernels):
    counts = np.array(kernels["counts"])
    for d in (2, 8, 32):
        ratios = {
            design: np.array(kernels["relative"][f"{design} {d}"])
            for design in ("iid", "orthogonal", "structured", "quasi-monte-carlo")
        }
        whole = orthogonal_ratio(np.array(kernels["distances"][str(d)]), d)
        assert kernels["whole_blocks"][str(d)] == pytest.approx(whole, rel=1e-6)
        # 200 draws measure a standard deviation to 5 % where all pairs err together.
        np.testing.assert_allclose(ratios["iid"], 1, atol=0.15)
        for design in ("orthogonal", "structured"):
            assert (ratios[design] <= 1).all()
            np.testing.assert_allclose(ratios[design][counts >= d], whole, rtol=0.15)
        assert ratios["quasi-monte-carlo"][-1] < 0.7
    assert kernels["relative"]["quasi-monte-carlo 2"][-1] < 0.15


def test_points_of_quasi_monte_carlo_are_more_even(kernels):
    slopes = kernels["uneven_slopes"]
    assert slopes["iid"] == pytest.approx(-0.5, abs=0.1)
    assert slopes["quasi-monte-carlo"] < -0.8


def test_orthogonal_designs_are_refused_for_kernels_that_are_not_isotropic(kernels):
    refused = {"Laplacian", "Cauchy", "Sinc", "Spectral mixture"}
    for name, row in kernels["designs"].items():
        assert row["iid"] == pytest.approx(1, abs=0.12)
        assert row["quasi-monte-carlo"] < 1
        for design in ("orthogonal", "structured"):
            assert (row[design] is None) == (name in refused)
            assert name in refused or row[design] < 1


def test_the_box_is_no_kernel_and_the_tent_is_one_of_one_column(kernels):
    assert kernels["lowest"]["box"][0] == pytest.approx(1 - 2**0.5, rel=1e-10)
    assert kernels["lowest"]["tent"][0] == pytest.approx(1.1 - 0.73**0.5, rel=1e-10)
    assert kernels["lowest"]["box"][1] < -1
    assert kernels["lowest"]["tent"][1] > -1e-10
    omega, box, tent = map(np.array, kernels["spectra"])
    np.testing.assert_allclose(box, np.sinc(omega / np.pi) / np.pi, atol=1e-5)
    np.testing.assert_allclose(tent, np.sinc(omega / np.pi) ** 2 / np.pi, atol=1e-5)
    assert kernels["passes"] == {"box 1": False, "box 2": False, "tent 1": True, "tent 2": False}
    # The lowest point of sin(ω)/ω is where tan ω = ω; the check smooths the spectrum over 1/50.
    frequency, density = kernels["worst"]
    assert frequency == pytest.approx(4.4934, abs=0.02)
    assert density == pytest.approx(-0.21723 / np.pi, rel=0.05)


def test_the_better_map_is_that_of_the_closed_form(kernels):
    delta = np.array(kernels["delta"])
    for name, k in OF_DIFFERENCE.items():
        pairs, phases = 1 + k(2 * delta) - 2 * k(delta) ** 2, 1 + k(2 * delta) / 2 - k(delta) ** 2
        np.testing.assert_allclose(kernels["map_ratio"][name], pairs / phases, rtol=1e-7, atol=1e-10)
        for spacing, (better, by_pairs, by_phases) in zip(
            kernels["spacings"], kernels["better"][name], strict=True
        ):
            apart = spacing * np.arange(1, 33)
            weights = np.arange(32, 0, -1) / (32 * 33 / 2)
            pairs = weights @ (1 + k(2 * apart) - 2 * k(apart) ** 2)
            phases = weights @ (1 + k(2 * apart) / 2 - k(apart) ** 2)
            assert [by_pairs, by_phases] == pytest.approx([pairs, phases], rel=1e-9)
            assert better == ("pairs" if by_pairs <= by_phases else "phases")
    assert [kernels["better"][name][-1][0] for name in ("Cauchy", "Rational quadratic")] == ["phases"] * 2


# -- 03: kernel SVM and uncertainty ----------------------------------------------------------------


@pytest.fixture(scope="module")
def uncertainty(runs):
    return runs[UNCERTAINTY].values


def test_every_machine_learns_and_candidates_share_a_reading(uncertainty):
    assert uncertainty["n_samples"] == int(FEW_ROWS)
    assert uncertainty["n_readings"] == 1
    accuracy = {name: accuracy for name, _, _, _, accuracy in uncertainty["table"]}
    assert len(accuracy) == 9
    assert all(0.65 < share < 0.95 for share in accuracy.values())
    # 1,000 rows held out, and features that were drawn otherwise: each about 0.012
    for linear in ("RidgeClassifier", "LinearSVC"):
        assert accuracy["ours: ridge"] > accuracy[f"RBFSampler + {linear}"] - 0.04
    # a length scale for each column leaves out the sixteen of noise, which the exact machine's one cannot
    assert accuracy["chosen: ridge"] > accuracy["SVC, exact"]


def test_stored_experiment_has_the_lectures_rows_and_accuracies(runs):
    stored = runs[UNCERTAINTY].stored
    lines = "".join(printed(cell) for cell in stored.cells if "measured" in cell.metadata.get("tags", []))
    line = re.compile(r"^(\S.*?) +(\d+)? +\d+\.\d\d +\d+\.\d\d +(0\.\d{4})$", re.MULTILINE)
    accuracy = {(name, D): float(share) for name, D, share in line.findall(lines)}
    assert accuracy["ours: ridge", "800"] >= 0.883
    assert accuracy["ours: squared hinge", "800"] >= 0.885
    chosen = {int(D): share for (name, D), share in accuracy.items() if name == "chosen: squared hinge"}
    assert max(chosen) == 4096
    assert max(chosen.values()) >= 0.897


def test_bands_are_those_of_a_gaussian_process(uncertainty):
    (X, y), (alpha, sigma) = uncertainty["train"], uncertainty["penalty"]
    oracle = GaussianProcessRegressor(
        ConstantKernel(sigma**2 / alpha) * RBF(0.8), alpha=sigma**2, optimizer=None
    ).fit(X, y)
    mean, latent = oracle.predict(uncertainty["grid"], return_std=True)
    deviation = np.hypot(latent, sigma)
    np.testing.assert_allclose(uncertainty["exact_band"][0], mean, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(uncertainty["exact_band"][1], deviation, rtol=1e-7)
    np.testing.assert_allclose(uncertainty["band"][1], deviation, rtol=0.1)  # 2,048 features
    grid = np.array(uncertainty["grid"])[:, 0]
    in_gap, among_rows = (grid > -0.5) & (grid < 1), (grid > 2) & (grid < 3.5)
    assert min(deviation[in_gap]) > 2 * max(deviation[among_rows])


def test_bands_hold_as_many_new_rows_as_promised(uncertainty):
    # One noise variance estimated from 120 rows, good to 6 %: 1.5 % of the rows at the 50 % band.
    np.testing.assert_allclose(uncertainty["coverage"], uncertainty["levels"], atol=0.03)
    nlpd, by_factor, factors = uncertainty["nlpd"]
    assert factors[int(np.argmin(by_factor))] == 1
    assert nlpd == pytest.approx(min(by_factor), rel=1e-6)


def test_chosen_width_is_the_smallest_within_one_standard_error(uncertainty):
    errors, weights = np.array(uncertainty["cv_errors"]), np.array(uncertainty["cv_weights"])
    widths, alphas = uncertainty["cv_grid"]
    mean = np.average(errors, axis=0, weights=weights)
    best = np.unravel_index(mean.argmin(), mean.shape)
    deviation = errors[:, *best].std(ddof=1) / np.sqrt(len(errors))  # folds of one size
    assert np.ptp(weights) == 0
    chosen = int(np.argmax(mean.min(axis=1) <= mean.min() + deviation))
    assert uncertainty["chosen"] == [widths[chosen], pytest.approx(alphas[mean[chosen].argmin()])]
    assert chosen < best[0]


def test_table_is_what_scikit_learn_finds_by_refitting(uncertainty):
    assert uncertainty["gap"] < 1e-8


# -- 04: kernel k-means ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clusters(runs):
    return runs[CLUSTERS].values


def test_rings_are_found_exactly_and_in_features_but_not_by_k_means(clusters):
    assert clusters["ring_ari"] == {
        "k-means": pytest.approx(0, abs=0.01),
        "Kernel k-means, exact": 1,
        "512 random features": 1,
    }


def test_two_halves_have_less_inertia_than_the_moons_which_a_spectral_component_parts(clusters):
    X, upper = map(np.array, clusters["moons"])
    gram = rbf_kernel(X, gamma=1 / (2 * 0.5**2))

    def inertia(labels):
        same = np.equal.outer(labels, labels)
        return len(labels) - (gram * same / same.sum(axis=1)).sum()

    for name, labels in clusters["moon_labels"].items():
        assert clusters["inertia"][name] == pytest.approx(inertia(np.array(labels)), rel=1e-9)
    exact = inertia(np.array(clusters["moon_labels"]["Kernel k-means, exact"]))
    assert clusters["exact_inertia"] == pytest.approx(exact, rel=1e-9)
    assert exact < 0.97 * inertia(upper) == pytest.approx(0.97 * clusters["inertia_of_the_moons"])
    assert clusters["moon_ari"]["Kernel k-means, exact"] < 0.6
    assert clusters["moon_ari"]["512 random features"] < 0.7
    assert clusters["moon_ari"]["One spectral component"] == 1


def test_features_come_nearer_to_the_exact_labels_and_objective_as_d_grows(clusters):
    assert clusters["widths"] == [16, 64, 256, 1024]
    for name, least in (("rings", 1.0), ("moons", 0.95)):
        median = np.median(clusters["agreement"][name], axis=1)
        assert median[0] < 0.8
        assert (np.diff(median) >= 0).all()
        assert median[-1] >= least
        # 1/√64 of the error, and other local optima, which cost up to 3 % of the objective
        assert clusters["relative"][name][-1] < 0.5 * clusters["relative"][name][0]


def test_rows_out_of_core_are_parted_by_ring(clusters, runs):
    assert np.sum(clusters["counts"]) == clusters["n_samples"] == int(FEW_ROWS)
    assert clusters["large_ari"] > 0.999
    (cell,) = (cell for cell in runs[CLUSTERS].stored.cells if "draw_batches" in cell.source)
    rows, ari = re.search(r"^([\d,]+) rows(?:.|\n)*ARI (\d\.\d+)$", printed(cell), re.MULTILINE).groups()
    assert (rows, float(ari)) == ("1,000,000", 1)


# -- 05: an image as a function --------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(runs):
    return runs[IMAGE].values


def test_half_of_the_pixels_teach_the_other_half(image):
    assert image["known"] == image["pixels"] // 2
    errors = image["squares"]
    assert errors["the photograph"] == 0
    decibels = [-10 * np.log10(error) for name, error in errors.items() if name != "the photograph"]
    np.testing.assert_allclose(image["curves"], decibels, rtol=1e-6)
    on_coordinates, on_waves, by_ridge = decibels
    # tenfold is 10 dB; another draw of weights or waves moves each by less than 1
    assert on_waves > on_coordinates + 2
    assert by_ridge > on_coordinates + 3
    assert abs(on_waves - by_ridge) < 2


def test_ridge_is_scikit_learns_on_the_same_features(image):
    # colours from 0 to 1; both solve the normal equations, whose condition is that of Z'Z over the penalty
    assert image["to_scikit_learn"] < 1e-4


def test_length_scales_are_between_a_blur_and_noise(image):
    assert 0.01 < image["chosen"] < 0.1
    assert all(0.01 < scale < 0.1 for scale in image["learned"])
    found = [image["by_width"][D] for D in sorted(image["by_width"], key=int)]
    assert found == sorted(found)
