"""Models as ONNX graphs, which runtimes in many languages and browsers compute.

In goes a model, out comes a file with a graph: nodes of arithmetic, and arrays as
constants. It computes in float64 what the package computes, and in float32 and whole
numbers where the package does, so predictions differ only by rounding.
"""

# mypy: disable-error-code="no-any-return"

import json
import math
from collections.abc import Sequence
from functools import partialmethod, reduce
from itertools import accumulate
from operator import add, mul
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.export import write
from rff_dist.lazy import require
from rff_dist.ridge import models
from rff_dist.storage import documents, locations, output_places
from rff_dist.typing import PathLike, Summary, frozen

# versions that ONNX Runtime reads since its 1.14 (2023)
_OPERATORS = 18
_FORMAT = 9
# ONNX types of labels by the kind of their dtype; all other labels are integers.
_LABELS: dict[str, tuple[str, type]] = {
    "U": ("STRING", object),
    "f": ("DOUBLE", np.float64),
}


def export_onnx(
    model: models.RidgeModel,
    path: PathLike,
    *,
    encoded: bool = False,
    overwrite: bool = False,
) -> Path:
    """Write an ONNX graph to a file, whole or not at all.

    Its input is `X`, float64 of shape (n_rows, n_features). A level of a category is
    given as its place in the list of the property `levels`, which has pairs of a column
    and names. Its output is `predictions` for a regression; for a classifier it is
    `labels` and, if the model has them, `probabilities` with a column for each class.

    Raises MissingDependencyError if the package onnx is not installed;
    InvalidParameterError as `export.write.describe`; OutputExistsError if the file
    exists and `overwrite` is False; StorageError if it cannot be written.
    """
    output_places.check_file(locations.parse_location(path), overwrite=overwrite)
    onnx = require("onnx", "ONNX graphs are made by the package onnx", "onnx")
    graph = _Graph(onnx)
    exported = write.describe(model, encoded=encoded)
    outputs = _outputs(graph, exported)
    inputs = [graph.info("X", "DOUBLE", exported.facts["n_features"])]
    onnx_graph = onnx.helper.make_graph(
        graph.nodes, "rff_dist", inputs, outputs, graph.constants
    )
    operators = [onnx.helper.make_opsetid("", _OPERATORS)]
    about = f"{documents.MADE_BY}: model {model.digest()}"
    model_proto = onnx.helper.make_model(
        onnx_graph,
        opset_imports=operators,
        ir_version=_FORMAT,
        producer_name="rff_dist",
        doc_string=about,
    )
    # for programs that turn the names of levels into the codes in X
    levels = json.dumps(exported.facts["levels"], ensure_ascii=False)
    onnx.helper.set_model_props(model_proto, {"levels": levels})
    onnx.checker.check_model(model_proto)
    return documents.write_marked(
        Path(path), model_proto.SerializeToString(), what="graph"
    )


class _Graph:
    """The nodes and constants of a graph under construction, which numbers their
    names.
    """

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes = list[Any]()
        self.constants = list[Any]()

    def add(
        self, operator: str, *inputs: Any, name: str | None = None, **attributes: Any
    ) -> "_Value":
        """Add a node and return its output; arrays and numbers become constants."""
        output = name or f"v{len(self.nodes)}"
        names = [
            value.name if isinstance(value, _Value) else self._constant(value)
            for value in inputs
        ]
        self.nodes.append(
            self.onnx.helper.make_node(operator, names, [output], **attributes)
        )
        return _Value(self, output)

    def _constant(self, values: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(
            self.onnx.numpy_helper.from_array(np.asarray(values), name)
        )
        return name

    def info(self, name: str, dtype: str, *shape: int) -> Any:
        """Describe the graph's input or an output; `shape`: the shape of a row."""
        kind = getattr(self.onnx.TensorProto, dtype)
        return self.onnx.helper.make_tensor_value_info(name, kind, ["rows", *shape])


@frozen(eq=False)
class _Value:
    """A value in a graph; arithmetic with it adds nodes to the graph."""

    graph: _Graph
    name: str

    def apply(self, operator: str, *others: Any, **attributes: Any) -> "_Value":
        return self.graph.add(operator, self, *others, **attributes)

    __add__ = partialmethod(apply, "Add")
    __sub__ = partialmethod(apply, "Sub")
    __mul__ = partialmethod(apply, "Mul")
    __truediv__ = partialmethod(apply, "Div")
    __matmul__ = partialmethod(apply, "MatMul")

    def take_from(self, values: np.ndarray) -> "_Value":
        """Return the entries of an array at these places."""
        return self.graph.add("Gather", values, self)

    def joined(self, *others: "_Value") -> "_Value":
        """Put columns next to each other."""
        return self.apply("Concat", *others, axis=1) if others else self

    def is_known(self, n_levels: float) -> "_Value":
        """Return whether codes are of known levels: 0 to `n_levels` − 1."""
        return self.apply("GreaterOrEqual", 0.0).apply(
            "And", self.apply("Less", n_levels)
        )

    def sum(self, axis: int, *, keepdims: int = 0) -> "_Value":
        return self.apply("ReduceSum", [axis], keepdims=keepdims)

    def cast(self, dtype: str) -> "_Value":
        """Convert to another type, such as "FLOAT" or "DOUBLE"."""
        return self.apply("Cast", to=getattr(self.graph.onnx.TensorProto, dtype))


def _outputs(graph: _Graph, exported: write.ExportedModel) -> list[Any]:
    """Add the whole graph from X to its outputs, and return descriptions of these."""
    facts = exported.facts
    inputs = _inputs(_Value(graph, "X"), facts)
    features = [_features(part, inputs, exported) for part in facts["parts"]]
    scores = features[0].joined(*features[1:]) @ _outer(exported)
    intercept = np.asarray(facts["intercept"], np.float64)
    n_scores = exported.outer.shape[1]
    if facts["classes"] is None:
        scores.apply("Add", intercept, name="predictions")
        return [graph.info("predictions", "DOUBLE", n_scores)]
    slopes = np.atleast_1d(np.asarray(facts["slopes"], np.float64))
    offsets = np.atleast_1d(np.asarray(facts["offsets"], np.float64))
    logits = (scores + intercept) * slopes + offsets
    # Two classes have one score, the log odds of the second. softmax(0, s) is the
    # sigmoid of s, so a column of zeros makes them like several classes.
    if n_scores == 1:
        logits = (logits * np.zeros(1)).joined(logits)
    place = logits.apply("ArgMax", axis=1, keepdims=0)
    classes = np.asarray(facts["classes"])
    kind, dtype = _LABELS.get(classes.dtype.kind, ("INT64", np.int64))
    graph.add("Gather", classes.astype(dtype), place, name="labels")
    outputs = [graph.info("labels", kind)]
    if facts["has_probabilities"]:
        logits.apply("Softmax", axis=1, name="probabilities")
        outputs.append(graph.info("probabilities", "DOUBLE", len(classes)))
    return outputs


def _outer(exported: write.ExportedModel) -> np.ndarray:
    """Return the coefficients in the graph's order of features.

    The package has cosine and sine of each frequency next to each other; the graph has
    all cosines of a part, then all sines.
    """
    rows = []
    start = 0
    for part in exported.facts["parts"]:
        if "kernel" in part:
            return exported.outer
        if "columns" in part:
            shape = len(part["columns"]), 1
        else:  # frequencies, and features of each
            shape = part["stop"] - part["start"], 2 if part["pairs"] else 1
        stop = start + math.prod(shape)
        rows.append(np.arange(start, stop).reshape(shape).T.ravel())
        start = stop
    return exported.outer[np.concatenate(rows)]


def _inputs(X: _Value, facts: Summary) -> _Value:
    """Return the inputs, standardised, or mapped by ranks; rounded to float32 as in the
    package.
    """
    standardised = (X - facts["mean"]) / facts["scale"]
    for column_map in facts["maps"]:
        j = column_map["column"]
        inputs = np.array(column_map["inputs"])
        outputs = np.array(column_map["outputs"])
        column = X.apply("Gather", [j], axis=1)
        # linear interpolation: `place` is the last knot at or below the value, and
        # `share` how far the value is on the way to the next knot
        below = column.apply("GreaterOrEqual", inputs[np.newaxis]).cast("INT64")
        place = (below.sum(1, keepdims=1) - [1]).apply("Clip", 0, len(inputs) - 2)
        share = (column - place.take_from(inputs)) / place.take_from(np.diff(inputs))
        rise = share.apply("Clip", 0.0, 1.0) * place.take_from(np.diff(outputs))
        curve = place.take_from(outputs) + rise
        line = standardised.apply("Gather", [j], axis=1) * column_map["slope"]
        is_mapped = np.arange(facts["n_features"]) == j
        standardised = X.graph.add(
            "Where", is_mapped[np.newaxis], curve + line, standardised
        )
    return standardised.cast("FLOAT").cast("DOUBLE")


def _features(part: Summary, x: _Value, exported: write.ExportedModel) -> _Value:
    """Return the features of a part of the map, of shape (n_rows, n_components)."""
    if "kernel" in part:
        return _mean_kernel(part["kernel"], x, exported.inner, exported.facts["levels"])
    if "columns" in part:
        return _linear(part, x, exported.facts["n_features"])
    return _fourier(part, x, exported)


def _linear(part: Summary, x: _Value, n_features: int) -> _Value:
    """Return columns of the inputs, where column -1 is a constant 1; with a code ≥ 0
    instead whether a row has this level.
    """
    columns = np.array(part["columns"])
    values = x @ ((np.arange(n_features)[:, np.newaxis] == columns) * 1.0)
    codes = np.array(part["codes"], np.float64)
    if (codes >= 0).any():
        is_level = values.apply("Equal", codes).cast("DOUBLE")
        values = x.graph.add("Where", codes >= 0, is_level, values)
    return values + (columns < 0) * 1.0


def _fourier(part: Summary, x: _Value, exported: write.ExportedModel) -> _Value:
    """Return the cosines of angles, then the sines; levels of categories add angles."""
    n_features = exported.facts["n_features"]
    inner = exported.inner[:, part["start"] : part["stop"]]
    angles = (x @ np.ascontiguousarray(inner[:n_features])).cast("FLOAT")
    inner = inner[n_features:].astype(np.float32)
    shrinks = []
    line = 1
    for column, names in exported.facts["levels"]:
        unknown = float(len(names))
        code = x.apply("Gather", column, axis=1)
        place = x.graph.add("Where", code.is_known(unknown), code, unknown)
        place = place.cast("INT64")
        of_levels = inner[line : line + len(names) + 1]
        angles += place.take_from(of_levels)
        line += len(names) + 1
        factors = np.ones_like(of_levels)
        factors[-1] = inner[line]  # of levels that were never seen
        shrinks.append(place.take_from(factors))
        line += 1
    angles += inner[0]
    z = angles.apply("Cos")
    if part["pairs"]:
        z = z.joined(angles.apply("Sin"))
    if part["whole"] is not None:
        # fixed point: whole multiples of 2^-14, see `products`
        z = (z * np.float32(part["whole"])).apply("Round")
    z = z.cast("DOUBLE")
    if shrinks:
        factor = reduce(mul, shrinks).cast("DOUBLE")
        z *= factor.joined(factor) if part["pairs"] else factor
    if part["whole"] is None:
        return z
    return (z.apply("Round") if shrinks else z) / 2.0**14


def _mean_kernel(
    kernel: Summary, x: _Value, centres: np.ndarray, levels: Sequence[Any]
) -> _Value:
    """Return k(x, centre); for a level that was never seen, its mean over all known
    levels.
    """
    if not levels:
        return _kernel(kernel, x, centres)
    (column, names), *others = levels
    others_only = np.arange(centres.shape[1]) != column
    code = x.apply("Gather", [column], axis=1)
    is_unseen = code.is_known(float(len(names))).apply("Not").cast("DOUBLE")
    # of the known levels one is the centre's
    share = is_unseen * (1.0 / max(1, len(names)))
    as_it_is = _mean_kernel(kernel, x, centres, others)
    if_equal = _mean_kernel(
        kernel, x * (others_only * 1.0), centres * others_only, others
    )
    return as_it_is + (if_equal - as_it_is) * share


def _kernel(kernel: Summary, x: _Value, centres: np.ndarray) -> _Value:
    """Return k(x, centre) for all pairs; the kernel is a dictionary."""
    name = kernel["name"]
    if name in ("sum", "product"):
        parts = [_kernel(part, x, centres) for part in kernel["kernels"]]
        return reduce(add if name == "sum" else mul, parts)
    if name == "scaled":
        return _kernel(kernel["kernel"], x, centres) * float(kernel["weight"])
    n = centres.shape[1]
    is_code = np.isin(np.arange(n), kernel.get("categories", ()))
    if name == "linear":
        products = x @ np.where(is_code, 0.0, centres).T.copy()
        if not is_code.any():
            return products
        return products + (_are_equal(x, centres) * (is_code * 1.0)).sum(2)
    if name == "additive":
        return _additive(kernel, x, centres)
    scale = np.broadcast_to(np.asarray(kernel["length_scale"], np.float64), n)
    # differences from each centre, of shape (rows, centres, columns): ‖x‖² − 2x'c +
    # ‖c‖² would lose digits
    apart = (x / scale).apply("Unsqueeze", [1]) - (centres / scale)[np.newaxis]
    if is_code.any():
        # the one-hot vectors of two levels differ by 1 in two entries
        step = (2.0 if name == "laplacian" else 2.0**0.5) / scale
        differs = (_are_equal(x, centres) - 1.0) * -step
        apart = x.graph.add("Where", is_code, differs, apart)
    if name == "laplacian":
        return (apart.apply("Abs").sum(2) * -1.0).apply("Exp")
    square = (apart * apart).sum(2)
    if name == "gaussian":
        return (square * -0.5).apply("Exp")
    if name == "rational_quadratic":
        shape = float(kernel["shape"])
        return (square * (0.5 / shape) + 1.0).apply("Pow", -shape)
    s = square.apply("Sqrt") * np.sqrt(2 * kernel["nu"])  # Matérn
    decay = (s * -1.0).apply("Exp")
    if kernel["nu"] == 0.5:
        return decay
    factor = s + 1.0
    if kernel["nu"] == 2.5:
        factor += s * s * (1 / 3)
    return factor * decay


def _are_equal(x: _Value, centres: np.ndarray) -> _Value:
    """Return 1 where a row has the value of a centre, else 0, of shape (n_rows,
    n_centres, n_columns).
    """
    rows = x.apply("Unsqueeze", [1])
    return rows.apply("Equal", centres[np.newaxis]).cast("DOUBLE")


def _additive(kernel: Summary, x: _Value, centres: np.ndarray) -> _Value:
    """Return the weighted mean of kernels of single columns, of pairs, and of all."""
    n = centres.shape[1]
    codes = kernel.get("categories", ())
    inner = {**kernel["kernel"], "categories": codes}
    together = _kernel({**inner, "length_scale": kernel["length_scale"]}, x, centres)
    if n == 1:  # all parts are the same kernel
        return together
    each = []
    for j, scale in enumerate(np.broadcast_to(kernel["length_scale"], n)):
        column = x.apply("Gather", [j], axis=1)
        own = {
            **inner,
            "length_scale": scale / n**0.5,
            "categories": (0,) if j in codes else (),
        }
        each.append(_kernel(own, column, centres[:, [j]]))
    # Σ_{i<j} k_i·k_j = Σ_j (k_1 + … + k_{j−1})·k_j
    pairs = map(mul, accumulate(each, add), each[1:])
    # one weight of each column, or one that they share
    order_1 = np.array(kernel["order_1"])
    of_columns = order_1 if order_1.ndim else np.full(n, order_1 / n)
    # the mean over pairs
    of_pairs = kernel["order_2"] / (n * (n - 1) / 2)
    weights = np.array([*of_columns, of_pairs, kernel["dense"]])
    weights /= of_columns.sum() + kernel["order_2"] + kernel["dense"]
    parts = (*each, reduce(add, pairs), together)
    return reduce(add, map(mul, parts, weights.tolist()))
