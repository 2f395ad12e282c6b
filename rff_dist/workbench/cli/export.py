"""Write a model for programs without this package."""

from pathlib import Path
from typing import Literal

from rff_dist import fields
from rff_dist.workbench.cli import shell
from rff_dist.workbench.results.document import Document, Paragraph

_HOW = {
    "numpy": 'in Python, in {place}: import reader; reader.Model(".").predict(rows)',
    "onnx": "in Python: onnxruntime.InferenceSession('{place}').run(None, {{'X': rows}})",
    "mlflow": "next: mlflow models serve -m {place} --env-manager local",
}


@shell.command(
    "model folder", "models/prices prices.onnx --overwrite", "models/prices prices-mlflow --format mlflow"
)
def export(
    *,
    model: str = fields.argument("A regression or a classifier.", "MODEL", place="reads"),
    output: str = fields.argument("The folder or file to write.", "OUT", place="writes"),
    format: Literal["numpy", "onnx", "mlflow"] | None = fields.optional(
        "numpy: two arrays, one JSON document and a reader that needs NumPy only. onnx: a graph; the default "
        "for names that end in .onnx. mlflow: a folder that MLflow serves, for models of any kind; the "
        "server needs this package."
    ),
    encoded: bool = fields.flag(
        "Rows will be given as the model's recipe makes them of a table's: numpy and onnx apply no recipe."
    ),
    overwrite: bool = shell.OVERWRITE,
) -> Document:
    """Write a model as two arrays, one JSON document and a reader of 80 lines; as ONNX; or for MLflow.

    A folder also gets a model card, README.md: errors, and the intended use, limits and data of `card`.
    """
    from rff_dist.text import human_bytes

    kind = format or ("onnx" if output.endswith(".onnx") else "numpy")
    place, digest = _write(kind, model, output, encoded=encoded, overwrite=overwrite)
    if place.is_dir():
        from rff_dist.workbench.results.readme import model_card

        (place / "README.md").write_text(model_card(model), "utf-8")
    files = sorted(path for path in place.rglob("*") if path.is_file()) if place.is_dir() else [place]
    sizes = {
        path.name if path == place else str(path.relative_to(place)): path.stat().st_size for path in files
    }
    record = {"model": model, "output": output, "format": kind, "files": sizes, "digest": digest}
    facts = {name: human_bytes(size) for name, size in list(sizes.items())[:10]}
    how = Paragraph(_HOW[kind].format(place=output))
    return Document(f"wrote {output}", [facts, how], record=record)


def _write(kind: str, model: str, output: str, *, encoded: bool, overwrite: bool) -> tuple[Path, str]:
    """Write a model, and return its place and its digest."""
    if kind == "mlflow":
        from rff_dist.errors import InvalidParameterError
        from rff_dist.estimators.mlflow import save_mlflow
        from rff_dist.models.kinds import read_any

        if overwrite:
            raise InvalidParameterError(
                "`overwrite` is given, but MLflow's folders are never replaced; leave it out"
            )
        if encoded:
            raise InvalidParameterError(
                "`encoded` is given, but MLflow's format applies the model's recipe; leave it out"
            )
        return save_mlflow(model, output), read_any(model).digest()
    from rff_dist.export.onnx import export_onnx
    from rff_dist.export.write import export
    from rff_dist.ridge.models import read_model

    regression = read_model(model)
    write = export_onnx if kind == "onnx" else export
    return write(regression, output, encoded=encoded, overwrite=overwrite), regression.digest()
