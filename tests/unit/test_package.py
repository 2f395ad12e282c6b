"""The package as a whole: its public names, what importing it costs, and its tree of
errors.
"""

import ast
import builtins
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile

import numpy as np
import pytest

import rff_dist
from rff_dist import errors
from tests.command_line import PLAIN, document
from tests.refusals import refuses
from tools.architecture_pictures import layers

# The tree as drawn: branch marks, the class, the built-in it is too, what it means.
DRAWN = re.compile(
    r"^    (?P<branches>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<built_in>[\w.]+)\))?(?: "
    r" .*| .*)?$",
    re.M,
)
DRAWN_ERRORS = {match["name"]: match for match in DRAWN.finditer(errors.__doc__ or "")}
DEFINED_ERRORS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and value.__module__ == errors.__name__
}


def parent_in_the_drawing(name):
    """Return the nearest name above that is drawn one level further out."""
    depth = len(DRAWN_ERRORS[name]["branches"])
    above = list(DRAWN_ERRORS)[: list(DRAWN_ERRORS).index(name)]
    return next(
        (
            other
            for other in reversed(above)
            if len(DRAWN_ERRORS[other]["branches"]) < depth
        ),
        None,
    )


# Steps of one process, from the lightest on, and what none of them up to there may
# load.
SLOW = (
    *("dask", "distributed", "matplotlib", "pandas", "prefect", "sklearn"),
    *("scipy.optimize", "scipy.stats"),
)
FIT = ["fit", "data", "again", *PLAIN, "--n-components", "8", "--alpha", "1"]
STEPS = {
    "import rff_dist": (*SLOW, "pyarrow", "scipy", "zarr"),
    "from rff_dist.workbench import cli": (*SLOW, "pyarrow", "scipy", "zarr"),
    "cli.run(['fit', '--help'])": (*SLOW, "pyarrow", "pydantic", "scipy", "zarr"),
    "cli.run(['models', 'list', 'registry'])": (
        *SLOW,
        *("pyarrow", "pydantic", "rff_dist.ridge.describe", "scipy", "zarr"),
    ),
    "cli.run(['models', 'show', 'registry/a'])": (*SLOW, "pyarrow", "pydantic", "zarr"),
    "cli.run(['info', 'model'])": (
        *SLOW,
        *("pyarrow", "pydantic", "scipy.linalg", "scipy.spatial"),
        *(
            "rff_dist.classify",
            "rff_dist.kmeans.fit",
            "rff_dist.workbench.tables.files",
        ),
    ),
    # a few rows
    "cli.run(['predict', 'model', 'one.csv', 'out.csv'])": (
        *SLOW,
        *(
            "icechunk",
            "pydantic",
            "pyarrow.parquet",
            "scipy.spatial",
            "rff_dist.workbench.page",
        ),
    ),
    f"cli.run({FIT})": (*SLOW, "rff_dist.workbench.page"),
    "from rff_dist.products.choice import products_for; products_for(1000, 512)": (
        "onnxruntime",
    ),
    "rff_dist.RFFRidge(n_components=8, alpha=0.1).fit(np.eye(30), np.arange(30.0))": (
        "opentelemetry",
    ),
    "for name in rff_dist.__all__: getattr(rff_dist, name)": ("prefect", "matplotlib"),
    "import rff_dist.flows.refresh, rff_dist.flows.predict": ("matplotlib",),
    # which has a global state
    "import rff_dist.workbench.page.pictures": ("matplotlib.pyplot",),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return the modules that a fresh interpreter has loaded after each step."""
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "t.csv").write_text(
        "a,y\n" + "".join(f"{i % 7},{i % 5}\n" for i in range(50))
    )
    (folder / "one.csv").write_text("a\n3\n")
    document("ingest", folder / "t.csv", folder / "data", "--targets y")
    document("fit", folder / "data", folder / "model", *FIT[3:])
    document("fit", folder / "data", folder / "registry/a", *FIT[3:], "--register")
    note = "found.append(list(sys.modules))"
    lines = ["import json, sys", "import numpy as np", "found = []"]
    lines += [*(f"{step}\n{note}" for step in STEPS), "print(json.dumps(found))"]
    command = [sys.executable, "-c", "\n".join(lines)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_")
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=folder
    )
    assert (folder / "out.csv").read_text().startswith('"prediction"\n')
    return dict(zip(STEPS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("step", STEPS)
def test_what_a_step_does_not_use_is_not_loaded(loaded, step):
    heavy = re.compile("|".join(rf"{name}(\.|$)" for name in STEPS[step]))
    assert [name for name in loaded[step] if heavy.match(name)] == []


def test_public_names_are_sorted_and_can_be_imported():
    assert rff_dist.__all__ == sorted(set(rff_dist.__all__))
    assert [name for name in rff_dist.__all__ if not hasattr(rff_dist, name)] == []


def described_and_real_parameters():
    """Yield each public function, class and method with the parameters that its
    docstring describes, and those that it has.
    """
    for name in rff_dist.__all__:
        value = getattr(rff_dist, name)
        members = [(name, value)] if callable(value) else []
        if inspect.isclass(value):
            members += [
                (f"{name}.{key}", member)
                for key, member in inspect.getmembers(value, inspect.isfunction)
                if not key.startswith("_") and member.__module__.startswith("rff_dist")
            ]
        for path, member in members:
            doc = f"{inspect.getdoc(member)}\n\n"
            _, _, section = doc.partition("Parameters\n----------\n")
            section = re.split(r"\n\n\w+\n---", section)[0]
            entries = re.findall(r"^(\S.*)$", section, re.M)
            names = {
                name.strip(" *")
                for entry in entries
                for name in entry.partition(" : ")[0].split(",")
            }
            yield path, names - {""}, set(inspect.signature(member).parameters)


def test_docstrings_describe_parameters_that_exist():
    """A type that is broken over two lines reads as a parameter of its own."""
    checked = 0
    for path, described, real in described_and_real_parameters():
        if "shared" not in real:  # `tune_kernels` takes those of `RFFRidge`
            assert described <= real, path
        checked += bool(described)
    assert checked > 50


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with refuses(AttributeError, "no_such_name"):
        _ = rff_dist.no_such_name


def test_every_error_is_drawn_in_the_tree_and_every_drawn_error_exists():
    assert sorted(DRAWN_ERRORS) == sorted(DEFINED_ERRORS)


@pytest.mark.parametrize("name", DEFINED_ERRORS)
def test_an_error_stands_under_the_parent_that_is_drawn_and_is_the_built_in_one_too(
    name,
):
    error = DEFINED_ERRORS[name]
    parent = parent_in_the_drawing(name)
    if parent is None:
        assert error.__bases__ == (Exception,)
        return
    assert DEFINED_ERRORS[parent] in error.__bases__
    others = {
        base
        for base in error.__mro__
        if base.__module__ in ("builtins", "numpy.linalg")
    }
    assert others - {Exception, BaseException, object}
    if drawn := DRAWN_ERRORS[name]["built_in"]:
        assert (
            np.linalg.LinAlgError if "." in drawn else getattr(builtins, drawn)
        ) in others


OPTIONAL = (
    "delta",
    "excel",
    "iceberg",
    "metrics",
    "mlflow",
    "onnx",
    "openlineage",
    "otel",
    "postgresql",
    "s3",
    "skops",
    "xarray",
)
DISTRIBUTIONS = {  # that are called otherwise
    "mlflow": "mlflow_skinny",
    "opentelemetry": "opentelemetry_sdk",
    "openlineage": "openlineage_python",
    "sklearn": "scikit_learn",
    "yaml": "pyyaml",
}


def imported_by(path):
    """Return the top-level packages that a file imports, at its top or later."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {
        alias.name
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {
        node.module or ""
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.level == 0
    }
    return {name.partition(".")[0] for name in names}


def test_every_package_that_is_imported_is_a_declared_dependency(project_root):
    project = tomllib.loads((project_root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    optional = [requirement for name in OPTIONAL for requirement in extras[name]]
    requirements = [*project["dependencies"], *optional]
    declared = {
        re.split(r"[^\w.-]", requirement)[0].replace("-", "_")
        for requirement in requirements
    }
    own = set(sys.stdlib_module_names) | {"rff_dist"}
    imported = {
        name
        for path in (project_root / "rff_dist").rglob("*.py")
        for name in imported_by(path)
    }
    assert {
        DISTRIBUTIONS.get(name, name) for name in imported - own
    } - declared == set()


def test_the_installed_version_is_the_one_in_pyproject(project_root):
    declared = tomllib.loads((project_root / "pyproject.toml").read_text())["project"][
        "version"
    ]
    assert importlib.metadata.version("rff_dist") == declared


def test_every_document_has_tests_that_make_test_documents_runs(project_root):
    notebooks = {path.stem for path in (project_root / "notebooks").glob("*.ipynb")}
    integration = project_root / "tests" / "integration"
    files = sorted((integration / "notebooks").glob("test_*.py"))
    assert notebooks == {
        path.stem.removeprefix("test_").replace("_", "-") for path in files
    }
    for path in (
        *files,
        integration / "test_readme.py",
        integration / "test_manual.py",
    ):
        assert "pytest.mark.documents" in path.read_text(), path


def test_constraints_pin_every_line_and_name_no_index(project_root):
    lines = (project_root / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+( ; .+)?", pin) for pin in pins)
    assert "fastapi" in {pin.partition("==")[0] for pin in pins}
    assert "://" not in "\n".join(lines)


def test_the_picture_of_the_house_has_every_room(project_root):
    drawn = (project_root / "notebooks/images/house.svg").read_text()
    rooms = {room for line in layers() for room in line}
    assert all(f">{room}</text>" in drawn for room in rooms), (
        "run `python -m tools.architecture_pictures`"
    )


def test_the_wheel_installs_one_package(project_root, tmp_path):
    """A second one, `flows` say, would collide with other projects' where the wheel is
    installed.
    """
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path),
    ]
    subprocess.run(build, cwd=project_root, capture_output=True, check=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {
        "rff_dist"
    }
    stubs = {"rff_dist/__init__.pyi", "rff_dist/py.typed"}
    assert {"rff_dist/__init__.py", "rff_dist/flows/train.py"} | stubs <= set(names)


def test_each_kind_of_error_is_its_own():
    kinds = [error.kind for error in vars(errors).values() if isinstance(error, type)]
    assert len(kinds) == len(set(kinds)) > 20
    assert errors.kind_of(errors.ConflictError("x")) == "storage.conflict"
    assert errors.kind_of(errors.NotFiniteError("x")) == "data.nan"
    others = (KeyboardInterrupt(), MemoryError(), KeyError("x"))
    assert [errors.kind_of(error) for error in others] == [
        "stopped",
        "memory",
        "unexpected",
    ]
