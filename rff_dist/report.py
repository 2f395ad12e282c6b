"""Pictures of results: figures without a display and without any state between them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from rff_dist.errors import DataError, StorageError

__all__ = ["Panel", "save_comparison"]

_INK = "#1b1b1b"
_MUTED = "#6b6b6b"
_WIDTH_INCHES = 4.3
_DPI = 160


@dataclass(frozen=True, eq=False)
class Panel:
    """One picture of a comparison.

    Attributes
    ----------
    image : real array of shape (height, width, 3)
        Red, green and blue from 0 to 1; values beyond are clipped, as any screen does.
    title, caption : str
        Written above and below.
    """

    image: NDArray[Any]
    title: str
    caption: str = ""


def save_comparison(path: str | os.PathLike[str], panels: Sequence[Panel], title: str) -> Path:
    """Save pictures side by side as one PNG, at about the resolution of one screen.

    Parameters
    ----------
    path : str or Path
        Where; its folder is made, and a file that is there is replaced when the new one is whole.
    panels : sequence of Panel
        From left to right.
    title : str
        Above all of them.

    Returns
    -------
    path : Path

    Raises
    ------
    DataError
        If there is no panel, or an image does not have three colours per pixel.
    StorageError
        If the file cannot be written.
    """
    if not panels:
        raise DataError("there is no panel to draw; expected at least 1")
    for panel in panels:
        if panel.image.ndim != 3 or panel.image.shape[2] != 3:
            raise DataError(
                f"the image of {panel.title!r} has shape {panel.image.shape}; expected (height, width, 3)"
            )
    height, width = panels[0].image.shape[:2]
    panel_inches = _WIDTH_INCHES * height / width
    figure = Figure(
        figsize=(_WIDTH_INCHES * len(panels) + 0.4, panel_inches + 1.05),
        layout="constrained",
        facecolor="white",
    )
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    # Names are text: a dollar sign must not start a formula.
    heading = {"parse_math": False, "fontweight": "bold", "fontsize": 13, "color": _INK}
    figure.suptitle(title, x=0.08 / figure.get_figwidth(), ha="left", **heading)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.imshow(np.clip(panel.image, 0.0, 1.0))
        axes.set_title(panel.title, parse_math=False, loc="left", fontsize=11, color=_INK)
        axes.set_xlabel(panel.caption, parse_math=False, loc="left", fontsize=9.5, color=_MUTED)
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    return _save(figure, Path(path))


def _save(figure: Figure, path: Path) -> Path:
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without the name of the software the same picture has the same bytes.
        figure.savefig(temporary, format="png", dpi=_DPI, metadata={"Software": None})
        os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"the picture {path} cannot be written: {error}; choose another place") from error
    finally:
        with contextlib.suppress(OSError):  # it is gone, or never was
            temporary.unlink()
    return path
