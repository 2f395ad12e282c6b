"""Pictures of what a run chose from, and pages about models, as artifacts that Prefect's pages show."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_markdown_artifact

from rff_dist.errors import RFFDistError
from rff_dist.features.kernel_of import kernel_of
from rff_dist.flows.running import number
from rff_dist.kernels.text import kernel_text, shortened_text
from rff_dist.page.content import Page
from rff_dist.page.markdown import to_markdown
from rff_dist.report import save_choice
from rff_dist.ridge.model import RidgeModel


def show_choice(model: RidgeModel, *, key: str, title: str, log: Any) -> None:
    """Make an artifact of the errors that alpha was chosen from; log why where there is nothing to draw.

    `model`: its sums are not needed.
    `key`: the artifact's.
    `title`: above the axes: which data.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            kernel = kernel_of(model.feature_map)
            about = "features as given" if kernel is None else shortened_text(kernel_text(kernel))
            picture = save_choice(model, Path(folder) / "errors.png", title=title, about=about)
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


def show_page(make: Callable[[], Page], *, key: str, log: Any) -> None:
    """Make an artifact of a page, its pictures inside; log why where it cannot be made.

    Browsers open no file and no data of a page that they got over HTTP, so that a link to the HTML would lead
    nowhere; the artifact is the page itself.

    `make`: returns the page.
    `key`: the artifact's.
    """
    try:
        page = make()
    except RFFDistError as error:  # the model is published and none the worse
        log.warning("there is no page about it: %s", error)
        return
    create_markdown_artifact(to_markdown(page), key=key, description=page.lead)
