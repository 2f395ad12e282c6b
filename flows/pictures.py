"""Pictures of what a run chose from, as artifacts that Prefect's pages show."""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from prefect.artifacts import create_image_artifact

from flows.running import number
from rff_dist.cross_validation import CrossValidation
from rff_dist.errors import DataError, RFFDistError
from rff_dist.folds import folds_from_dict
from rff_dist.model import RidgeModel
from rff_dist.report import AlphaPath, save_alpha_paths, save_cross_validation

__all__ = ["draw_choice", "show_choice"]


def show_choice(model: RidgeModel, *, key: str, title: str, log: Any) -> None:
    """Make an artifact of the errors that alpha was chosen from; log why where there is nothing to draw.

    Parameters
    ----------
    model : RidgeModel
        Its sums are not needed.
    key : str
        The artifact's.
    title : str
        Above the axes: which data.
    log : logger
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            picture = draw_choice(model, Path(folder) / "errors.png", title=title)
        except RFFDistError as error:  # all errors 0, say: the model is none the worse
            log.info("the errors are not drawn: %s", error)
            return
        if picture is None:
            log.info("alpha was given, so there are no errors to draw")
            return
        # With its bytes inside, whoever may see the run sees the picture, wherever the model is.
        content = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(
        f"data:image/png;base64,{content}",
        key=key,
        description=f"The error that alpha={number(model.plain_alpha)} was chosen by, against alpha.",
    )


def draw_choice(model: RidgeModel, path: Path, *, title: str) -> Path | None:
    """Draw the errors that alpha was chosen from; None where it was given.

    Raises
    ------
    DataError
        If no error is above 0.
    """
    arrays = model.selection
    if "cv_alphas" in arrays:
        table = CrossValidation.from_arrays(folds_from_dict(model.card["folds"]), arrays)
        return save_cross_validation(path, table, title=title, subtitle=str(table.folds))
    if "press_alphas" in arrays:
        errors = np.sqrt(arrays["press_errors"])
        panels = [AlphaPath("leave-one-out RMSE", arrays["press_alphas"], errors)]
    elif "alphas" in arrays:
        panels = [AlphaPath("root of the GCV score", arrays["alphas"], np.sqrt(arrays["scores"]))]
        if model.card.get("alpha_given") == "evidence":
            evidences = arrays["log_evidences"]
            panels.append(AlphaPath("log evidence", arrays["alphas"], evidences, logarithmic=False))
    else:
        return None
    if len(panels[0].alphas) < 2:
        return None
    if not (panels[0].values > 0).any():
        raise DataError("no error is above 0; expected some to draw on a logarithmic axis")
    labels = model.card.get("target_names") or [f"y{i}" for i in range(model.n_targets)]
    subtitle = f"D = {model.feature_map.n_components:,}"
    return save_alpha_paths(path, panels, chosen=model.alpha, labels=labels, title=title, subtitle=subtitle)
