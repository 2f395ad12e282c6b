"""The two models that ONNX Runtime runs, of one operator each: their bytes, which need no library to make.

A model is a protocol buffer (onnx.proto): fields of a number, a type and a value.
"""

from __future__ import annotations

_UINT8, _INT8, _INT32 = 2, 3, 6  # TensorProto.DataType


def _number(field: int, value: int) -> bytes:
    """Return a field that holds a whole number below 128."""
    return bytes([field << 3, value])


def _part(field: int, content: bytes) -> bytes:
    """Return a field that holds text or fields, of fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(content)]) + content


def _matrix(name: bytes, data_type: int) -> bytes:
    """Return what a graph says of an input or output: its name, its type and two axes of any length."""
    axes = _part(1, b"") + _part(1, b"")
    return _part(1, name) + _part(2, _part(1, _number(1, data_type) + _part(2, axes)))


def _model(
    operator: bytes, inputs: dict[bytes, int], output: int, constants: bytes = b"", extra: bytes = b""
) -> bytes:
    """Return a model of one operator (IR version 8, operators of version 13) whose output is Y."""
    names = b"".join(_part(1, name) for name in inputs)
    node = names + extra + _part(2, b"Y") + _part(4, operator)
    graph = _part(1, node) + _part(2, b"graph") + constants
    graph += b"".join(_part(11, _matrix(name, data_type)) for name, data_type in inputs.items())
    graph += _part(12, _matrix(b"Y", output))
    return _number(1, 8) + _part(7, graph) + _part(8, _part(1, b"") + _number(2, 13))


_ZERO_POINT = _part(5, _number(2, _UINT8) + _part(8, b"zero") + _part(9, bytes([128])))  # of A

# Y = (A - 128) @ B, of unsigned and signed bytes
MATMUL_INTEGER = _model(
    b"MatMulInteger", {b"A": _UINT8, b"B": _INT8}, _INT32, constants=_ZERO_POINT, extra=_part(1, b"zero")
)

TRANSPOSE = _model(b"Transpose", {b"A": _UINT8}, _UINT8)  # Y = A.T
