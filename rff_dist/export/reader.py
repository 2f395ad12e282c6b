"""Predict with an exported model; this file needs NumPy and nothing else.

from reader import Model
Model("folder").predict(rows)          # (n_rows, n_targets), or labels of a classifier
"""

import json
import os
from typing import Any

import numpy as np


class Model:
    """A model in a folder: model.json, inner.npy and outer.npy."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "model.json"), encoding="utf-8") as file:
            self.facts = json.load(file)
        self.inner, self.outer = (np.load(os.path.join(folder, f"{name}.npy")) for name in ("inner", "outer"))

    def scores(self, rows: Any) -> Any:
        """Return f(x) = outer' · features(x) + intercept for rows of shape (n_rows, n_features)."""
        x = self._prepared(np.asarray(rows, np.float64))
        z = np.hstack([self._features(part, x) for part in self.facts["parts"]])
        return z @ self.outer + self.facts["intercept"]

    def _features(self, part: dict[str, Any], x: Any) -> Any:
        if "kernel" in part:
            return gram(part["kernel"], x, self.inner)
        if "columns" in part:  # columns of the inputs; -1 takes the constant 1 behind them
            return np.column_stack([x, np.ones(len(x))])[:, part["columns"]]
        inner = self.inner[:, part["start"] : part["stop"]]
        # float32 where the package has float32: the features then agree, but for a last bit
        angles = (x @ inner[:-1]).astype(np.float32) + inner[-1].astype(np.float32)
        pairs = np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(x), -1)
        z, unit = pairs if part["pairs"] else np.cos(angles), part["whole"]
        return z.astype(np.float64) if unit is None else np.rint(z * np.float32(unit)) / 2.0**14

    def predict(self, rows: Any) -> Any:
        """Return predictions, or the labels of a classifier's most probable classes."""
        scores, classes = self.scores(rows), self.facts["classes"]
        if classes is None:
            return scores
        scores = scores * self.facts["slopes"] + self.facts["offsets"]
        best = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        return np.array(classes, self.facts["dtype"])[best]

    def _prepared(self, x: Any) -> Any:
        if x.ndim != 2 or x.shape[1] != self.facts["n_features"] or not np.isfinite(x).all():
            raise ValueError(f"rows of shape {x.shape}; expected {self.facts['n_features']} finite columns")
        done = (x - self.facts["mean"]) / self.facts["scale"]
        for part in self.facts["maps"]:
            outputs = np.interp(x[:, part["column"]], part["inputs"], part["outputs"])
            done[:, part["column"]] = outputs + part["slope"] * done[:, part["column"]]
        return done.astype(np.float32).astype(np.float64)


def gram(kernel: dict[str, Any], x: Any, y: Any) -> Any:
    """Return k(x, y) for all pairs of rows; the kernel is a dictionary."""
    name = kernel["name"]
    if name in ("sum", "product"):
        parts = np.stack([gram(part, x, y) for part in kernel["kernels"]])
        return parts.sum(axis=0) if name == "sum" else parts.prod(axis=0)
    if name == "scaled":
        return kernel["weight"] * gram(kernel["kernel"], x, y)
    if name == "linear":
        return x @ y.T
    x, y = x / kernel["length_scale"], y / kernel["length_scale"]
    if name == "additive":
        inner, n = {**kernel["kernel"], "length_scale": 1.0}, x.shape[1]
        one = two = np.zeros((len(x), len(y)))
        for j in range(n):
            own = gram(inner, x[:, [j]] * n**0.5, y[:, [j]] * n**0.5)
            # Σ_{i<j} k_i·k_j, each column's kernel times the sum of those before it
            one, two = one + own, two + one * own
        w = np.array([kernel["order_1"], kernel["order_2"], kernel["dense"]])
        three = [one / n, two / (n * (n - 1) / 2) if n > 1 else one, gram(inner, x, y)]
        return np.tensordot(w / w.sum(), three, axes=1)
    # differences: ‖x‖² − 2x'y + ‖y‖² would lose digits
    if name == "laplacian":
        return np.exp(-np.stack([np.abs(row - y).sum(axis=1) for row in x]))
    r = np.stack([np.sqrt(np.square(row - y).sum(axis=1)) for row in x])
    if name == "gaussian":
        return np.exp(-0.5 * r**2)
    if name == "rational_quadratic":
        return (1 + r**2 / (2 * kernel["shape"])) ** -kernel["shape"]
    s = r * np.sqrt(2 * kernel["nu"])  # Matérn
    return {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[kernel["nu"]] * np.exp(-s)
