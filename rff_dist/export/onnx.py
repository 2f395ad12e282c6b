"""Models as ONNX graphs, which runtimes in many languages and browsers compute."""

from functools import partial, reduce
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from rff_dist.export import write
from rff_dist.lazy import require
from rff_dist.ridge import models
from rff_dist.storage import documents, locations, output_places
from rff_dist.typing import PathLike, Summary

_OPERATORS, _FORMAT = 18, 9  # versions that ONNX Runtime reads since its 1.14 (2023)
# ONNX types of labels by the kind of their dtype; all other labels are integers.
_LABELS: dict[str, tuple[str, type]] = {"U": ("STRING", object), "f": ("DOUBLE", np.float64)}


def export_onnx(
    model: models.RidgeModel, path: PathLike, *, encoded: bool = False, overwrite: bool = False
) -> Path:
    """Write an ONNX graph to a file, whole or not at all.

    Its input is `X`, float64 of shape (n_rows, n_features). Its output is `predictions` for a regression; for
    a classifier it is `labels` and, if the model has them, `probabilities` with a column for each class.

    Raises MissingDependencyError if the package onnx is not installed; InvalidParameterError as `describe`;
      OutputExistsError if the file exists and `overwrite` is False; StorageError if it cannot be written.
    """
    output_places.check_file(locations.parse_location(path), overwrite=overwrite)
    onnx = require("onnx", "ONNX graphs are made by the package onnx", "onnx")
    graph = _Graph(onnx)
    slim = write.describe(model, encoded=encoded)
    outputs = _outputs(graph, slim)
    inputs = [graph.info("X", onnx.TensorProto.DOUBLE, ["rows", slim.facts["n_features"]])]
    made = onnx.helper.make_graph(graph.nodes, "rff_dist", inputs, outputs, graph.constants)
    operators, about = (
        [onnx.helper.make_opsetid("", _OPERATORS)],
        f"{documents.MADE_BY}: model {model.digest()}",
    )
    model_proto = onnx.helper.make_model(
        made, opset_imports=operators, ir_version=_FORMAT, producer_name="rff_dist", doc_string=about
    )
    onnx.checker.check_model(model_proto)
    return documents.write_file(Path(path), model_proto.SerializeToString(), what="graph")


class _Graph:
    """The nodes and constants of a graph under construction; names are numbered."""

    def __init__(self, onnx: Any) -> None:
        self.onnx, self.nodes, self.constants = onnx, list[Any](), list[Any]()

    def add(self, operator: str, *inputs: Any, name: str | None = None, **attributes: Any) -> str:
        """Add a node and return its output's name; inputs that are arrays or numbers become constants."""
        output = name or f"v{len(self.nodes)}"
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant and return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def cast(self, value: str, dtype: str) -> str:
        """Convert a value to another type, such as "FLOAT" or "DOUBLE"."""
        return self.add("Cast", value, to=getattr(self.onnx.TensorProto, dtype))

    def info(self, name: str, dtype: Any, shape: list[Any]) -> Any:
        """Describe the graph's input or an output."""
        return self.onnx.helper.make_tensor_value_info(name, dtype, shape)


def _outputs(graph: _Graph, slim: write.Slim) -> list[Any]:
    facts, types = slim.facts, graph.onnx.TensorProto
    inputs = _inputs(graph, facts)
    features = [_features(graph, part, inputs, slim) for part in facts["parts"]]
    z = graph.add("Concat", *features, axis=1) if len(features) > 1 else features[0]
    scores = graph.add("MatMul", z, _outer(slim))
    intercept = np.asarray(facts["intercept"], np.float64)
    if facts["classes"] is None:
        graph.add("Add", scores, intercept, name="predictions")
        return [graph.info("predictions", types.DOUBLE, ["rows", slim.outer.shape[1]])]
    scores = graph.add("Add", scores, intercept)
    logits = graph.add("Mul", scores, np.atleast_1d(np.asarray(facts["slopes"], np.float64)))
    logits = graph.add("Add", logits, np.atleast_1d(np.asarray(facts["offsets"], np.float64)))
    # softmax(0, s) is the sigmoid of s, so that two classes need no graph of their own
    if slim.outer.shape[1] == 1:  # the log odds of the second class
        logits = graph.add("Concat", graph.add("Mul", logits, np.zeros(1)), logits, axis=1)
    place = graph.add("ArgMax", logits, axis=1, keepdims=0)
    classes = np.asarray(facts["classes"])
    kind, dtype = _LABELS.get(classes.dtype.kind, ("INT64", np.int64))
    graph.add("Gather", classes.astype(dtype), place, name="labels")
    outputs = [graph.info("labels", getattr(types, kind), ["rows"])]
    if facts["has_probabilities"]:
        graph.add("Softmax", logits, axis=1, name="probabilities")
        outputs.append(graph.info("probabilities", types.DOUBLE, ["rows", len(classes)]))
    return outputs


def _outer(slim: write.Slim) -> np.ndarray:
    """Return the coefficients in the graph's order of features: for pairs, all cosines before all sines."""
    rows, start = [], 0
    for part in slim.facts["parts"]:
        if "kernel" in part:
            return slim.outer
        n_rows = len(part["columns"]) if "columns" in part else part["stop"] - part["start"]
        together = 2 if part.get("pairs") else 1
        stop = start + n_rows * together
        rows.append(np.arange(start, stop).reshape(n_rows, together).T.ravel())
        start = stop
    return slim.outer[np.concatenate(rows)]


def _inputs(graph: _Graph, facts: Summary) -> str:
    """Return the inputs, standardised or mapped, and rounded to float32 as in the package."""
    done = graph.add("Div", graph.add("Sub", "X", facts["mean"]), facts["scale"])
    for part in facts["maps"]:
        inputs, outputs = np.array(part["inputs"]), np.array(part["outputs"])
        column = graph.add("Gather", "X", [part["column"]], axis=1)
        # linear interpolation: the last knot at or below the value, and the share of the way to the next
        below = graph.cast(graph.add("GreaterOrEqual", column, inputs[np.newaxis]), "INT64")
        place = graph.add("Sub", graph.add("ReduceSum", below, [1], keepdims=1), [1])
        place = graph.add("Clip", place, 0, len(inputs) - 2)
        low, gap = graph.add("Gather", inputs, place), graph.add("Gather", np.diff(inputs), place)
        share = graph.add("Clip", graph.add("Div", graph.add("Sub", column, low), gap), 0.0, 1.0)
        rise = graph.add("Mul", share, graph.add("Gather", np.diff(outputs), place))
        output = graph.add("Add", graph.add("Gather", outputs, place), rise)
        line = graph.add("Mul", graph.add("Gather", done, [part["column"]], axis=1), part["slope"])
        chosen = np.arange(facts["n_features"]) == part["column"]
        done = graph.add("Where", chosen[np.newaxis], graph.add("Add", output, line), done)
    return graph.cast(graph.cast(done, "FLOAT"), "DOUBLE")


def _features(graph: _Graph, part: Summary, x: str, slim: write.Slim) -> str:
    if "kernel" in part:
        return _kernel(graph, part["kernel"], x, slim.inner)
    if "columns" in part:  # columns of the inputs; -1 stands for a constant 1
        columns = np.array(part["columns"])
        chosen = np.arange(slim.facts["n_features"])[:, np.newaxis] == columns
        return graph.add("Add", graph.add("MatMul", x, chosen * 1.0), (columns < 0) * 1.0)
    inner = slim.inner[:, part["start"] : part["stop"]]
    angles = graph.cast(graph.add("MatMul", x, np.ascontiguousarray(inner[:-1])), "FLOAT")
    angles = graph.add("Add", angles, inner[-1].astype(np.float32))
    z = graph.add("Cos", angles)
    if part["pairs"]:
        z = graph.add("Concat", z, graph.add("Sin", angles), axis=1)
    if part["whole"] is None:
        return graph.cast(z, "DOUBLE")
    # fixed point: whole multiples of 2^-14, see `products`
    rounded = graph.add("Round", graph.add("Mul", z, np.array(part["whole"], np.float32)))
    return graph.add("Div", graph.cast(rounded, "DOUBLE"), 2.0**14)


def _kernel(graph: _Graph, kernel: Summary, x: str, centres: np.ndarray) -> str:
    """Return k(x, centre) for all pairs; the kernel is a dictionary."""
    name = kernel["name"]
    if name in ("sum", "product"):
        parts = [_kernel(graph, part, x, centres) for part in kernel["kernels"]]
        return reduce(partial(graph.add, "Add" if name == "sum" else "Mul"), parts)
    if name == "scaled":
        return graph.add("Mul", _kernel(graph, kernel["kernel"], x, centres), float(kernel["weight"]))
    if name == "linear":
        return graph.add("MatMul", x, np.ascontiguousarray(centres.T))
    scale = np.asarray(kernel["length_scale"], np.float64)
    if name == "additive":
        return _additive(graph, kernel, x, centres)
    # differences from each centre, in an axis of their own: ‖x‖² − 2x'c + ‖c‖² would lose digits
    rows = graph.add("Unsqueeze", graph.add("Div", x, np.atleast_1d(scale)), [1])
    apart = graph.add("Sub", rows, (centres / scale)[np.newaxis])
    if name == "laplacian":
        distance = graph.add("ReduceSum", graph.add("Abs", apart), [2], keepdims=0)
        return graph.add("Exp", graph.add("Neg", distance))
    square = graph.add("ReduceSum", graph.add("Mul", apart, apart), [2], keepdims=0)
    if name == "gaussian":
        return graph.add("Exp", graph.add("Mul", square, -0.5))
    if name == "rational_quadratic":
        shape = float(kernel["shape"])
        base = graph.add("Add", graph.add("Mul", square, 0.5 / shape), 1.0)
        return graph.add("Pow", base, -shape)
    s = graph.add("Mul", graph.add("Sqrt", square), np.sqrt(2 * kernel["nu"]))  # Matérn
    decay = graph.add("Exp", graph.add("Neg", s))
    if kernel["nu"] == 0.5:
        return decay
    factor = graph.add("Add", s, 1.0)
    if kernel["nu"] == 2.5:
        factor = graph.add("Add", factor, graph.add("Mul", graph.add("Mul", s, s), 1 / 3))
    return graph.add("Mul", factor, decay)


def _additive(graph: _Graph, kernel: Summary, x: str, centres: np.ndarray) -> str:
    n, inner, add = centres.shape[1], kernel["kernel"], partial(graph.add, "Add")
    each = []
    for j, scale in enumerate(np.broadcast_to(kernel["length_scale"], n)):
        column, own = graph.add("Gather", x, [j], axis=1), {**inner, "length_scale": scale / n**0.5}
        each.append(_kernel(graph, own, column, centres[:, [j]]))
    # Σ_{i<j} k_i·k_j = Σ_j (k_1 + … + k_{j−1})·k_j; in a single column all parts are the same kernel
    sums = list(accumulate(each, add))
    pairs = [graph.add("Mul", before, own) for before, own in zip(sums, each[1:], strict=False)] or each
    together = _kernel(graph, {**inner, "length_scale": kernel["length_scale"]}, x, centres)
    weights = np.array([kernel["order_1"], kernel["order_2"], kernel["dense"]])
    # means over columns and over pairs of them
    weights /= weights.sum() * np.array([n, max(n * (n - 1) / 2, 1), 1])
    parts = zip([sums[-1], reduce(add, pairs), together], weights.tolist(), strict=True)
    return reduce(add, [graph.add("Mul", part, weight) for part, weight in parts])
