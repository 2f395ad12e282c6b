"""Export models to the formats of other programs, and tell MLflow of new versions.

In goes the URL of a stored model, out comes a file or folder in another format. The
code for MLflow must stay in `estimators/mlflow.py`: saved folders name that module as
the one that loads them.
"""

import os
from pathlib import Path
from typing import Protocol

from rff_dist.errors import InvalidParameterError
from rff_dist.typing import PathLike


class Exporter(Protocol):
    """Writes a stored model in another format.

    `encoded`: whether a model with a recipe may be written without it; then its user
    must give rows that the recipe has encoded. Only MLflow's format applies recipes.
    """

    def __call__(
        self, model: str, output: str, *, encoded: bool, overwrite: bool
    ) -> tuple[Path, str]:
        """Write the model at a URL, and return the place and the model's digest."""


def _to_numpy(
    model: str, output: str, *, encoded: bool, overwrite: bool
) -> tuple[Path, str]:
    from rff_dist.export.write import export
    from rff_dist.ridge.models import read_model

    regression = read_model(model)
    place = export(regression, output, encoded=encoded, overwrite=overwrite)
    return place, regression.digest()


def _to_onnx(
    model: str, output: str, *, encoded: bool, overwrite: bool
) -> tuple[Path, str]:
    from rff_dist.ridge.models import read_model
    from rff_dist.workbench.integrations.onnx import export_onnx

    regression = read_model(model)
    place = export_onnx(regression, output, encoded=encoded, overwrite=overwrite)
    return place, regression.digest()


def _to_mlflow(
    model: str, output: str, *, encoded: bool, overwrite: bool
) -> tuple[Path, str]:
    from rff_dist.estimators.mlflow import save_mlflow
    from rff_dist.models.kinds import read_any

    if overwrite:
        raise InvalidParameterError(
            "`overwrite` is given, but MLflow's folders are never replaced; leave it"
            " out"
        )
    if encoded:
        raise InvalidParameterError(
            "`encoded` is given, but MLflow's format applies the model's recipe; leave"
            " it out"
        )
    # `save_mlflow` copies the stored model, and gives no digest
    return save_mlflow(model, output), read_any(model).digest()


#: Each format's exporter, by the name that the command line takes.
EXPORTERS: dict[str, Exporter] = {
    "numpy": _to_numpy,
    "onnx": _to_onnx,
    "mlflow": _to_mlflow,
}


def mirror_in_mlflow(url: PathLike) -> None:
    """Tell MLflow, if MLFLOW_TRACKING_URI names it, which version is current."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        from rff_dist.estimators import mlflow

        mlflow.mirror(url)
