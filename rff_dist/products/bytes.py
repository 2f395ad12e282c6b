"""Products of bytes by ONNX Runtime, on processors that multiply bytes.

Features go into a `ByteTile`; squares of Z'Z come out, as exact whole numbers. A
feature of 15 bits is two bytes, so four products of bytes (three on the diagonal)
replace one of float64, at several times its rate. NumPy has no product of bytes with
sums of 32 bits.
"""

import math
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np

from rff_dist.numerics import machine
from rff_dist.products import protocol
from rff_dist.typing import FloatArray

# Components of a right operand. `gram` gets squares of 512: on the diagonal one of the
# four parts of such a square is copied, not computed.
STRIP = 256


class ByteTile(protocol.Tile):
    """Features as bytes, twice: as left and as right operands.

    ONNX Runtime wants the left operand as unsigned bytes with 128 for zero, and the
    right one transposed, signed and without gaps. So left operands have one component
    per line, and right ones are strips of `STRIP` components with one row per line.
    """

    def __init__(self, n_components: int, n_rows: int) -> None:
        self.n_components = n_components
        self._memory = np.empty((2, 2 * n_components * n_rows), np.uint8)
        self._spare = machine.SpareMemory()
        self.clear(n_rows)

    def clear(self, n_rows: int) -> None:
        self.n_rows = n_rows
        left, self._right = self._memory
        size = 2 * self.n_components * n_rows
        self._left = left[:size].reshape(2, self.n_components, n_rows)

    def _strip(self, start: int) -> protocol.Bytes:
        """Return the right operands from component `start`, (2, n_rows, width)."""
        width = min(STRIP, self.n_components - start)
        first = 2 * start * self.n_rows
        numbers = self._right[first : first + 2 * self.n_rows * width]
        return numbers.reshape(2, self.n_rows, width)

    def panel(self, start: int, stop: int, rows: slice) -> FloatArray:
        shape = stop - start, rows.stop - rows.start
        size = math.prod(shape)
        memory: FloatArray = self._spare.take(size, np.float64)
        return memory[:size].reshape(shape)

    def put(self, start: int, rows: slice, panel: FloatArray) -> None:
        planes = protocol.split(panel)
        stop = start + len(panel)
        self._spare.give(panel.reshape(-1))
        self._left[:, start:stop, rows] = planes
        for first in range(start // STRIP * STRIP, stop, STRIP):
            begin = max(first, start)
            end = min(stop, first + STRIP)
            for plane, right in zip(planes, self._strip(first), strict=True):
                lines = transpose(plane[begin - start : end - start])
                np.bitwise_xor(
                    lines, protocol.SIGN, out=right[rows, begin - first : end - first]
                )

    def gram(self, left: slice, right: slice, out: FloatArray) -> None:
        # `right` begins at a multiple of STRIP, and ends at one or with the last
        # component
        for start in range(right.start, right.stop, STRIP):
            stop = min(start + STRIP, right.stop)
            columns = slice(start - right.start, stop - right.start)
            # the lines of the strip; on the diagonal only those above its own square
            stop_above = left.stop if left != right else start
            if stop_above > left.start:
                lines = slice(0, stop_above - left.start)
                self._multiply(
                    slice(left.start, stop_above), start, out[lines, columns]
                )
            if left == right:
                self._multiply(slice(start, stop), start, out[columns, columns])
                out[columns, : columns.start] = out[: columns.start, columns].T

    def _multiply(self, left: slice, start: int, out: FloatArray) -> None:
        """Write the products of components `left` with the strip from `start`."""
        high, low = self._left[:, left]
        right_high, right_low = self._strip(start).view(np.int8)
        middle = multiply(high, right_low)
        if left.start == start:
            # On the diagonal l'h is the transpose of h'l, and need not be computed.
            middle += middle.T
        else:
            middle += multiply(low, right_high)
        highest = multiply(high, right_high)
        lowest = multiply(low, right_low)
        protocol.combine(highest, middle, lowest, out)


class ByteProducts(protocol.Products):
    """Products by ONNX Runtime's MatMulInteger, each in the calling thread."""

    name = "bytes"
    make_tile = ByteTile


def multiply(left: protocol.Bytes, right: protocol.SignedBytes) -> protocol.Int32Array:
    """Return (left - 128) @ right in int32, for operands without gaps."""
    # Unsigned times signed is fastest: one thread with AVX-512 VNNI makes 375e9
    # operations per second of u8·s8, 146e9 of u8·u8, 33e9 of s8·s8.
    (products,) = _session("MatMulInteger").run(None, {"A": left, "B": right})
    return cast("protocol.Int32Array", products)


def transpose(matrix: protocol.Bytes) -> protocol.Bytes:
    """Return the transpose of a matrix without gaps, in a tenth of NumPy's time."""
    (transposed,) = _session("Transpose").run(None, {"A": matrix})
    return cast("protocol.Bytes", transposed)


@lru_cache
def _session(operator: str) -> Any:
    """Return the session of an operator's model, which each thread may run."""
    import onnxruntime  # takes 0.05 s and 30 MiB, too much for small jobs

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(
        _MODELS[operator](), options, providers=["CPUExecutionProvider"]
    )


# -- the models
#
# ONNX Runtime runs two models of one operator each. A model is a protocol buffer
# (onnx.proto): fields, each a number, a type and a value. The bytes are written here,
# so that the package onnx is not needed.

# TensorProto.DataType
_UINT8 = 2
_INT8 = 3
_INT32 = 6


def _number(field: int, value: int) -> bytes:
    """Return a field that holds a whole number below 128."""
    return bytes([field << 3, value])


def _part(field: int, content: bytes) -> bytes:
    """Return a field that holds text or fields, of fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(content)]) + content


def _matrix(name: bytes, data_type: int) -> bytes:
    """Return a graph's input or output: name, type and two axes of any length."""
    axes = _part(1, b"") + _part(1, b"")
    return _part(1, name) + _part(2, _part(1, _number(1, data_type) + _part(2, axes)))


def _model(
    operator: bytes, inputs: dict[bytes, int], output: int, zero: bytes = b""
) -> bytes:
    """Return a model of one operator (IR version 8, operators of version 13).

    Its output is Y. If `zero` is given, it names the operator's last input, a constant:
    an unsigned byte of 128.
    """
    names = [*inputs, zero] if zero else list(inputs)
    node = b"".join(_part(1, name) for name in names)
    node += _part(2, b"Y") + _part(4, operator)
    graph = _part(1, node) + _part(2, b"graph")
    if zero:
        constant = _number(2, _UINT8) + _part(8, zero) + _part(9, bytes([128]))
        graph += _part(5, constant)
    for name, data_type in inputs.items():
        graph += _part(11, _matrix(name, data_type))
    graph += _part(12, _matrix(b"Y", output))
    versions = _part(1, b"") + _number(2, 13)
    return _number(1, 8) + _part(7, graph) + _part(8, versions)


# functions that make the models, by operator
_MODELS = {
    # Y = (A - 128) @ B, of unsigned and signed bytes
    "MatMulInteger": partial(
        _model,
        b"MatMulInteger",
        {b"A": _UINT8, b"B": _INT8},
        _INT32,
        zero=b"zero",
    ),
    # Y = A.T
    "Transpose": partial(_model, b"Transpose", {b"A": _UINT8}, _UINT8),
}
