"""Predict with an exported model; this file needs NumPy and nothing else.

from reader import Model
Model("folder").predict(rows)    # (n_rows,), or (n_rows, n_targets) for several targets

A classifier's predictions are labels. Missing numbers are filled if the model does so.
In a column of categories, a text is the name of a level, None a missing value, and a
number a code: the position of a level in `levels` of model.json, from 0. Levels may be
unknown to the model.
"""

import json
import os
import re
import unicodedata
from typing import Any

import numpy as np


class Model:
    """A model in a folder: model.json, inner.npy and outer.npy."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "model.json"), encoding="utf-8") as file:
            self.facts = json.load(file)
        self.inner = np.load(os.path.join(folder, "inner.npy"))
        self.outer = np.load(os.path.join(folder, "outer.npy"))

    def predict(self, rows: Any) -> Any:
        """Return predictions, or the labels of a classifier's most probable classes."""
        scores = self.scores(rows)
        classes = self.facts["classes"]
        if classes is None:
            return scores[:, 0] if self.facts["one_dimensional"] else scores
        scores = scores * self.facts["slopes"] + self.facts["offsets"]
        if scores.shape[1] == 1:  # two classes have one score, the second's
            best = (scores[:, 0] > 0).astype(int)
        else:
            best = scores.argmax(axis=1)
        return np.array(classes, self.facts["dtype"])[best]

    def scores(self, rows: Any) -> Any:
        """Return outer' · features(x) + intercept for rows."""
        x = self._standardized(self._numbers(rows))
        z = np.hstack([self._features(part, x) for part in self.facts["parts"]])
        return z @ self.outer + self.facts["intercept"]

    def _numbers(self, rows: Any) -> Any:
        """Return rows with codes in place of the names of levels."""
        levels = self.facts["levels"]
        x = np.array(rows, object if levels else np.float64)
        n_features = self.facts["n_features"]
        if x.ndim != 2 or x.shape[1] != n_features:
            raise ValueError(f"rows of shape {x.shape}; expected {n_features} columns")
        for column, names in levels:
            code_of = {name: code for code, name in enumerate(names)}
            x[:, column] = [as_code(value, code_of) for value in x[:, column]]
        x = x.astype(np.float64)
        for column, value in self.facts["fills"]:
            x[np.isnan(x[:, column]), column] = value
        if not np.isfinite(x).all():
            raise ValueError("rows with NaN or infinity; expected finite numbers")
        return x

    def _standardized(self, rows: Any) -> Any:
        x = (rows - self.facts["mean"]) / self.facts["scale"]
        for part in self.facts["maps"]:
            j = part["column"]
            curve = np.interp(rows[:, j], part["inputs"], part["outputs"])
            x[:, j] = curve + part["slope"] * x[:, j]
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise ValueError("rows with numbers beyond float32, which models refuse")
        return x.astype(np.float64)

    def _features(self, part: dict[str, Any], x: Any) -> Any:
        if "kernel" in part:
            return mean_gram(part["kernel"], x, self.inner, self.facts["levels"])
        if "columns" in part:
            # column -1 is the constant 1 behind the inputs
            with_one = np.column_stack([x, np.ones(len(x))])
            values = with_one[:, part["columns"]]
            # a feature with a code ≥ 0 is 1 for rows of this level, else 0
            codes = np.array(part["codes"])
            return np.where(codes >= 0, values == codes, values)
        return self._cosines(part, x)

    def _cosines(self, part: dict[str, Any], x: Any) -> Any:
        """Return Fourier features, with the levels of categories as angles."""
        inner = self.inner[:, part["start"] : part["stop"]]
        n_features = self.facts["n_features"]
        # The same types and order of sums as in the package, so that features agree up
        # to the last bit.
        angles = (x @ inner[:n_features]).astype(np.float32)
        inner = inner[n_features:].astype(np.float32)
        turns = np.zeros_like(angles)
        shrinks = np.ones_like(angles)
        line = 1
        for column, names in self.facts["levels"]:
            # a line of angles per level, one for unseen levels, and one of their
            # factors
            codes = x[:, column]
            is_known = (codes >= 0) & (codes < len(names))
            places = np.where(is_known, codes, len(names)).astype(int)
            turns += inner[line + places]
            line += len(names) + 1
            shrinks[~is_known] *= inner[line]
            line += 1
        angles = angles + turns + inner[0]
        z = np.cos(angles)
        if part["pairs"]:  # cosine and sine of each frequency
            z = np.stack([z, np.sin(angles)], axis=-1).reshape(len(x), -1)
            shrinks = np.repeat(shrinks, 2, axis=1)
        if part["whole"] is None:
            return z.astype(np.float64) * shrinks
        # rounded to whole multiples of 2^-14
        whole = np.rint(z * np.float32(part["whole"])).astype(np.float64)
        return np.rint(whole * shrinks) / 2.0**14


def as_code(value: Any, code_of: dict[str, int]) -> Any:
    """Return the code of a level by its name; codes stay as they are."""
    if value is None or value == "" or value != value:
        value = "(missing)"
    if not isinstance(value, str):
        return value
    # in the package's form: accents composed, whole numbers without decimals
    name = unicodedata.normalize("NFC", value)
    name = re.sub(r"^(-?(?:0|[1-9][0-9]*))\.0+$", r"\1", name)
    return code_of.get(name, len(code_of))


def mean_gram(kernel: dict[str, Any], x: Any, y: Any, levels: Any) -> Any:
    """Return k(x, y); for an unseen level of x, its mean over all known levels."""
    if not levels:
        return gram(kernel, x, y)
    (column, names), *others = levels
    codes = x[:, [column]]
    is_unseen = (codes < 0) | (codes >= len(names))
    values = mean_gram(kernel, x, y, others)
    if not is_unseen.any():
        return values
    # Of n known levels one is the same as in a row of y, with the kernel's value for
    # equal levels; all others have its value for different ones.
    shares = is_unseen / max(1, len(names))
    same_x = x.copy()
    same_x[:, column] = 0
    same_y = y.copy()
    same_y[:, column] = 0
    return (1 - shares) * values + shares * mean_gram(kernel, same_x, same_y, others)


def gram(kernel: dict[str, Any], x: Any, y: Any) -> Any:
    """Return k(x, y) for all pairs of rows; `kernel` has its name and parameters."""
    name = kernel["name"]
    if name in ("sum", "product"):
        parts = np.stack([gram(part, x, y) for part in kernel["kernels"]])
        return parts.sum(axis=0) if name == "sum" else parts.prod(axis=0)
    if name == "scaled":
        return kernel["weight"] * gram(kernel["kernel"], x, y)
    is_code = np.isin(np.arange(x.shape[1]), kernel.get("categories", []))
    if name == "linear":
        matches = np.empty((len(x), len(y)))
        for i, row in enumerate(x[:, is_code]):
            matches[i] = (row == y[:, is_code]).sum(axis=1)
        return x[:, ~is_code] @ y[:, ~is_code].T + matches
    if name == "additive":
        return _additive(kernel, x, y, is_code)
    # the distance of two levels: their one-hot vectors differ by 1 in two places
    step = 2.0 if name == "laplacian" else 2.0**0.5
    scale = np.asarray(kernel["length_scale"])
    # by differences, since ‖x‖² − 2x'y + ‖y‖² would lose digits
    r = np.empty((len(x), len(y)))
    for i, row in enumerate(x):
        differences = np.where(is_code, step * (row != y), row - y) / scale
        if name == "laplacian":
            r[i] = np.abs(differences).sum(axis=1)
        else:
            r[i] = np.sqrt(np.square(differences).sum(axis=1))
    if name == "laplacian":
        return np.exp(-r)
    if name == "gaussian":
        return np.exp(-0.5 * r**2)
    if name == "rational_quadratic":
        return (1 + r**2 / (2 * kernel["shape"])) ** -kernel["shape"]
    # Matérn
    s = r * np.sqrt(2 * kernel["nu"])
    polynomial = {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3}[kernel["nu"]]
    return polynomial * np.exp(-s)


def _additive(kernel: dict[str, Any], x: Any, y: Any, is_code: Any) -> Any:
    """Return a weighted mean of kernels of single columns, pairs, and all columns."""
    inner = {**kernel["kernel"], "categories": np.flatnonzero(is_code)}
    n = x.shape[1]
    scales = np.broadcast_to(kernel["length_scale"], n)
    # a weight for each column, or one that they share
    order_1 = np.array(kernel["order_1"])
    column_weights = order_1 if order_1.ndim else np.full(n, order_1 / n)
    singles = np.zeros((len(x), len(y)))
    weighted = pairs = singles
    for j in range(n):
        column_kernel = {
            **inner,
            "length_scale": scales[j] / n**0.5,
            "categories": np.flatnonzero(is_code[[j]]),
        }
        column = gram(column_kernel, x[:, [j]], y[:, [j]])
        # Σ_{i<j} k_i·k_j: each column's kernel times the sum of earlier columns'
        pairs = pairs + singles * column
        singles = singles + column
        weighted = weighted + column_weights[j] * column
    dense = gram({**inner, "length_scale": scales}, x, y)
    if n == 1:
        return dense
    order_2 = kernel["order_2"] / (n * (n - 1) / 2)
    total = column_weights.sum() + kernel["order_2"] + kernel["dense"]
    return (weighted + order_2 * pairs + kernel["dense"] * dense) / total
