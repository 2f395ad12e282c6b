"""Export models to the formats of other programs, and tell MLflow of new versions.

In goes the URL of a stored model, out comes a file or folder in another format. The
code for MLflow must stay in `estimators/mlflow.py`: saved folders name that module as
the one that loads them.
"""

import os
from pathlib import Path

from rff_dist.errors import InvalidParameterError
from rff_dist.typing import PathLike


def export(
    format: str, model: str, output: str, *, encoded: bool, overwrite: bool
) -> tuple[Path, str]:
    """Write the model at a URL as "numpy", "onnx" or "mlflow"; return the place and the
    model's digest.

    `encoded`: whether a model with a recipe may be written without it; then its user
    must give rows that the recipe has encoded. Only MLflow's format applies recipes.
    """
    if format == "mlflow":
        from rff_dist.estimators.mlflow import save_mlflow
        from rff_dist.models.kinds import read_any

        if overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but MLflow's folders are never replaced; leave"
                " it out"
            )
        if encoded:
            raise InvalidParameterError(
                "`encoded` is given, but MLflow's format applies the model's recipe;"
                " leave it out"
            )
        # `save_mlflow` copies the stored model, and gives no digest
        return save_mlflow(model, output), read_any(model).digest()

    from rff_dist.export import write
    from rff_dist.ridge.models import read_model
    from rff_dist.workbench.integrations import onnx

    regression = read_model(model)
    export_model = onnx.export_onnx if format == "onnx" else write.export
    place = export_model(regression, output, encoded=encoded, overwrite=overwrite)
    return place, regression.digest()


def mirror_in_mlflow(url: PathLike) -> None:
    """Tell MLflow, if MLFLOW_TRACKING_URI names it, which version is current."""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        from rff_dist.estimators import mlflow

        mlflow.mirror(url)
