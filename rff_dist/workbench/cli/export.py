"""Write a model for programs without this package.

In goes the path or URL of a model, out come a folder or a file that NumPy, ONNX or
MLflow reads, and the line that predicts with it. The stored model alone would need this
package to make its features.
"""

from typing import Literal

from rff_dist import fields
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results.document import Document, Paragraph

_HOW = {
    "numpy": 'in Python, in {output}: import reader; reader.Model(".").predict(rows)',
    "onnx": (
        "in Python: onnxruntime.InferenceSession('{output}').run(None, {{'X': rows}})"
    ),
    "mlflow": "next: mlflow models serve -m {output} --env-manager local",
}
_MAX_LISTED = 10  # files in the text; the record has all


@shell.command(
    "model folder",
    "models/prices prices.onnx --overwrite",
    "models/prices prices-mlflow --format mlflow",
)
def export(
    *,
    model: str = fields.argument(
        "A regression or a classifier.", "MODEL", access="reads"
    ),
    output: str = fields.argument(
        "The folder or file to write.", "OUT", access="writes"
    ),
    format: Literal["numpy", "onnx", "mlflow"] | None = fields.optional(
        "numpy: two arrays, one JSON document and a reader that needs NumPy only. onnx:"
        " a graph; the default for names that end in .onnx. mlflow: a folder that"
        " MLflow serves, for models of any kind; the server needs this package."
    ),
    encoded: bool = fields.flag(
        "The rows to predict are already encoded as the model's recipe does it, which"
        " numpy and onnx do not apply."
    ),
    overwrite: bool = shell.OVERWRITE,
) -> Document:
    """Write a model as two arrays, one JSON document and a short reader; as ONNX; or
    for MLflow.

    A folder also gets a model card, README.md: errors, and the intended use, limits and
    data from `rff-dist fit --card`.
    """
    from rff_dist.text import human_bytes
    from rff_dist.workbench.integrations import exporters

    kind = format or ("onnx" if output.endswith(".onnx") else "numpy")
    written, digest = exporters.export(
        kind, model, output, encoded=encoded, overwrite=overwrite
    )
    how = _HOW[kind].format(output=output)
    files = {written.name: written}
    if written.is_dir():
        from rff_dist.workbench.results.readme import model_card

        (written / "README.md").write_text(model_card(model, how), "utf-8")
        paths = sorted(path for path in written.rglob("*") if path.is_file())
        files = {str(path.relative_to(written)): path for path in paths}
    sizes = {name: path.stat().st_size for name, path in files.items()}
    record = {
        "model": model,
        "output": output,
        "format": kind,
        "files": sizes,
        "digest": digest,
    }
    listed = list(sizes.items())[:_MAX_LISTED]
    facts = {name: human_bytes(size) for name, size in listed}
    return Document(f"wrote {output}", [facts, Paragraph(how)], record=record)
