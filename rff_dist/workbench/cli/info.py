"""Describe what is stored at a path: a dataset, a model or predictions.

In goes a path, out comes a document. Listing the folder would show files, but neither
rows nor damage.
"""

from rff_dist import fields
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results.document import Document


@shell.command("data.zarr", "model --json")
def info(
    path: str = fields.argument("A dataset, a model or predictions.", "PATH"),
) -> Document:
    """Describe a dataset, predictions or a model. Every byte of a model is checked."""
    from rff_dist.workbench.results.stored import stored_document

    return stored_document(path)
