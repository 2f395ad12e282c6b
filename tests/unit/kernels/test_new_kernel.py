"""A new kernel takes two files: its class, and a line in the registry."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from rff_dist.kernels.registry import KERNELS

REPOSITORY = Path(__file__).resolve().parents[3]
CLASS = '''

@dataclass(frozen=True, repr=False)
class Sech(CoordinateKernel):
    """Π_d 1 / cosh(|x_d - y_d|/wℓ)."""

    width: float = 1.0

    name = "sech"

    def of_difference(self, difference: FloatArray) -> FloatArray:
        return 1 / np.cosh(difference / self.width)

    def spectral_measure(self) -> measures.SpectralMeasure:
        return measures.ProductMeasure(
            lambda u: 2 / np.pi * np.log(np.tan(np.pi / 2 * u)) / self.width,
            self.of_difference,
        )
'''
USES = """
import json, runpy
import rff_dist, tests.strategies
from rff_dist.features.feature_options import KernelFeatures
from rff_dist.kernels.names import find_kernel, kernel_from_dict, kernel_text

kernel = rff_dist.Sech(width=2.0)
assert "Sech" in rff_dist.__all__
assert find_kernel("sech:width=2") == kernel
assert kernel_text(kernel) == "sech:width=2"
assert kernel_from_dict(json.loads(json.dumps(kernel.to_dict()))) == kernel
assert KernelFeatures(kernel="sech").kernel == rff_dist.Sech()
X = [[0.0, 0.0], [0.5, -1.0]]
Z = rff_dist.draw_feature_map(kernel, n_features=2, n_components=8192).transform(X)
assert abs(Z @ Z.T - kernel(X)).max() < 0.05
assert rff_dist.Sech in tests.strategies.STATIONARY

from rff_dist.workbench.cli import shell
options = {option.name: option for option in shell.fields.options_of(KernelFeatures)}
assert "sech" in options["kernel"].declared.help

hook = runpy.run_path("notebooks/manual/reference_pages.py")
page = hook["on_page_markdown"](open("notebooks/manual/pages/reference/kernels.md").read())
assert "| `sech` | [`Sech`](kernels/Sech.md) | Π_d 1 / cosh(" in page
assert "::: rff_dist.kernels.stationary.Sech" in page
"""


def test_a_new_kernel_is_in_texts_exports_help_manual_and_strategies(tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("rff_dist", "tests", "notebooks/manual"):
        shutil.copytree(REPOSITORY / folder, tmp_path / folder, ignore=ignored)
    module = tmp_path / "rff_dist/kernels/stationary.py"
    module.write_text(module.read_text() + CLASS)
    registry = tmp_path / "rff_dist/kernels/registry.py"
    line = 'KERNELS = {\n    "sech": "rff_dist.kernels.stationary.Sech",'
    registry.write_text(registry.read_text().replace("KERNELS = {", line))
    subprocess.run(
        [sys.executable, "-c", USES],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
    )


def test_type_checkers_see_every_kernel():
    stub = (REPOSITORY / "rff_dist/__init__.pyi").read_text()
    for path in KERNELS.values():
        module, _, name = path.rpartition(".")
        line = f"from {module} import {name} as {name}"
        assert line in stub, f"add to rff_dist/__init__.pyi: {line}"
