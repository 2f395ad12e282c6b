"""Parts of compiled loops written as code for LLVM: vectors that it does not find in loops by itself.

Every function is for code compiled by Numba alone. Integers are exact and sums of floats have their order:
the bits are the same on any processor. Products of bytes are fast where it has AVX-512 VNNI, whose
instructions sum four of them in each lane.

Numba keeps machine code for the source of `numerics/compiled.py`: touch that when this changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from rff_dist.numerics.screening import FRACTION, GROUP, LANES, LARGEST

__all__ = [
    "ROWS",
    "bits_of",
    "find_least_others",
    "find_near",
    "fma",
    "four_vectors_of_products",
    "has_byte_products",
    "lowest_bit",
    "one_vector_of_products",
    "round_to_bytes",
    "sum_byte_products",
    "sum_products",
    "three_vectors_of_products",
    "two_vectors_of_products",
]

ROWS = 6  # that are multiplied at once: with four vectors of columns, 24 sums, which fill the registers
_CHAINS = 16  # sums of floats that are made side by side

_INT64, _INT32 = ir.IntType(64), ir.IntType(32)
_VECTOR = ir.VectorType(_INT32, LANES)


def has_byte_products() -> bool:
    """Return whether the processor that code is compiled for has instructions for products of bytes."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return "+avx512vnni" in features.split(",")


# -- single numbers --------------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def fma(_: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a · b + c, rounded once."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, b, c), generate


@intrinsic  # type: ignore[untyped-decorator]
def bits_of(_: Any, value: Any) -> Any:
    """Return the bits of a float as an integer of its size."""
    result = types.int64 if value == types.float64 else types.int32

    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(result))

    return result(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(_: Any, value: Any) -> Any:
    """Return the number of the lowest bit of an integer that is set."""

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return value(value), generate


# -- products of bytes -----------------------------------------------------------------------------


def _multiplying(n_vectors: int) -> Callable[..., None]:
    """Return the function that multiplies six rows by some vectors of columns."""

    @intrinsic  # type: ignore[untyped-decorator]
    def multiply(_: Any, lines: Any, weights: Any, offsets: Any, out: Any, row: Any, column: Any) -> Any:
        """Write products of bytes, with offsets, to a block of `out` that begins at a row and a column.

        Parameters
        ----------
        lines : contiguous int8 array of shape (n_rows, 2, n_bytes)
            The first half of a row is multiplied.
        weights : contiguous uint8 array of shape (n_groups, n_columns, 4)
        offsets : contiguous int32 array of shape (n_columns,)
        out : contiguous int32 array of shape (n_rows, n_columns)
            Changed.
        row, column : int
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            arrays = _arrays_of(context, builder, signature.args[:4], arguments[:4])
            n_groups, n_columns, _ = cgutils.unpack_tuple(builder, arrays[1].shape, 3)
            data = [builder.bitcast(array.data, _INT32.as_pointer()) for array in arrays]
            row, column = arguments[4:]
            _multiply_block(builder, data, (n_groups, n_columns), (row, column), n_vectors)
            return context.get_dummy_value()

        return types.void(lines, weights, offsets, out, types.intp, types.intp), generate

    return multiply  # type: ignore[no-any-return]


one_vector_of_products, two_vectors_of_products, three_vectors_of_products, four_vectors_of_products = map(
    _multiplying, (1, 2, 3, 4)
)


def _multiply_block(
    builder: Any, data: Sequence[Any], shape: tuple[Any, Any], corner: tuple[Any, Any], n_vectors: int
) -> None:
    """Generate the loop over groups of bytes, whose sums are in registers."""
    lines, weights, offsets, out = data
    (n_groups, n_columns), (row, column) = shape, corner
    row_groups = builder.mul(n_groups, _INT64(2))

    def vectors_at(data: Any, number: Any) -> list[Any]:
        first = builder.add(builder.mul(number, n_columns), column)
        return [_vector_at(builder, data, builder.add(first, _INT64(i * LANES))) for i in range(n_vectors)]

    rows = [builder.add(row, _INT64(i)) for i in range(ROWS)]
    places = [place for number in rows for place in vectors_at(out, number)]
    starts = [builder.load(place, align=4) for place in vectors_at(offsets, _INT64(0))]
    with _Loop(builder, n_groups, starts * ROWS) as loop:
        columns = [builder.load(place, align=4) for place in vectors_at(weights, loop.number)]
        ends = []
        for i, number in enumerate(rows):
            group = builder.gep(lines, [builder.add(builder.mul(number, row_groups), loop.number)])
            signed = _spread(builder, builder.load(group, align=1))
            sums = loop.values[i * n_vectors : (i + 1) * n_vectors]
            ends += [_dot(builder, *pair, signed) for pair in zip(sums, columns, strict=True)]
        loop.values = ends
    for place, end in zip(places, loop.values, strict=True):
        builder.store(end, place, align=4)


def _dot(builder: Any, sums: Any, unsigned: Any, signed: Any) -> Any:
    """Return sums and, in each lane, four products of an unsigned and a signed byte."""
    if has_byte_products():
        return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _VECTOR, sums, unsigned, signed)
    for i in range(GROUP):
        to_top, down = (ir.Constant(_VECTOR, [n_bits] * LANES) for n_bits in (24 - 8 * i, 24))
        left = builder.lshr(builder.shl(unsigned, to_top), down)
        right = builder.ashr(builder.shl(signed, to_top), down)
        sums = builder.add(sums, builder.mul(left, right))
    return sums


@intrinsic  # type: ignore[untyped-decorator]
def round_to_bytes(_: Any, line: Any, units: Any, out: Any, rest: Any) -> Any:
    """Write numbers in units as whole ones and 254ths; return whether none is beyond 127 or NaN.

    Parameters
    ----------
    line : contiguous float array of shape (n,)
        As many as fill vectors are rounded.
    units : contiguous float32 array of shape (n or more,)
        What numbers are multiplied by.
    out, rest : contiguous int8 arrays of shape (n or more,)
        Changed: the nearest whole numbers, and 254 times what is left.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line, units, *targets = _arrays_of(context, builder, signature.args, arguments)
        narrow, bytes_ = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.IntType(8), LANES)
        double = signature.args[0].dtype == types.float64
        kind = ir.VectorType(ir.DoubleType(), LANES) if double else narrow
        n_vectors = builder.udiv(cgutils.unpack_tuple(builder, line.shape, 1)[0], _INT64(LANES))
        # added to a number, it leaves the rounded one in the lowest bits
        rounding, fraction = (ir.Constant(narrow, [value] * LANES) for value in (1.5 * 2.0**23, FRACTION))
        positive = ir.Constant(_VECTOR, [2**31 - 1] * LANES)
        with _Loop(builder, n_vectors, [ir.Constant(_VECTOR, [0] * LANES)]) as loop:
            first = builder.mul(loop.number, _INT64(LANES))
            values = builder.load(_vector_at(builder, line.data, first, kind), align=4)
            values = builder.fptrunc(values, narrow) if double else values
            values = builder.fmul(
                values, builder.load(_vector_at(builder, units.data, first, narrow), align=4)
            )
            shifted = builder.fadd(values, rounding)
            left = builder.fmul(builder.fsub(values, builder.fsub(shifted, rounding)), fraction)
            for target, sums in zip(targets, (shifted, builder.fadd(left, rounding)), strict=True):
                whole = builder.trunc(builder.bitcast(sums, _VECTOR), bytes_)
                builder.store(whole, _vector_at(builder, target.data, first, bytes_), align=1)
            magnitude = builder.and_(builder.bitcast(values, _VECTOR), positive)
            loop.values = [_call(builder, f"llvm.smax.v{LANES}i32", _VECTOR, magnitude, loop.values[0])]
        largest = _call(builder, f"llvm.vector.reduce.smax.v{LANES}i32", _INT32, loop.values[0])
        limit = ir.Constant(_INT32, int(np.float32(LARGEST).view(np.int32)))  # NaN and infinity are larger
        return builder.icmp_signed("<", largest, limit)

    return types.boolean(line, units, out, rest), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_byte_products(_: Any, signed: Any, unsigned: Any) -> Any:
    """Return the sum of products of bytes of both pairs of rows.

    Parameters
    ----------
    signed : contiguous int8 array of shape (2, n)
        As many columns as fill vectors of 64.
    unsigned : contiguous uint8 array of shape (2, n)
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        signed, unsigned = _arrays_of(context, builder, signature.args, arguments)
        n_bytes = _INT64(GROUP * LANES)
        n_columns = cgutils.unpack_tuple(builder, signed.shape, 2)[1]
        nothing = ir.Constant(_VECTOR, [0] * LANES)
        with _Loop(builder, builder.udiv(n_columns, n_bytes), [nothing, nothing]) as loop:
            first = builder.mul(loop.number, n_bytes)
            for i, place in enumerate((first, builder.add(first, n_columns))):
                left, right = (
                    builder.load(_vector_at(builder, array.data, place), align=1)
                    for array in (unsigned, signed)
                )
                loop.values[i] = _dot(builder, loop.values[i], left, right)
        total = builder.add(*loop.values)
        return _call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _INT32, total)

    return types.int32(signed, unsigned), generate


# -- searches and sums -----------------------------------------------------------------------------


@intrinsic  # type: ignore[untyped-decorator]
def find_near(_: Any, scores: Any, slack: Any, masks: Any) -> Any:
    """Return n · 2**32 + k: how many scores less their slack are not above the least, and the last of these.

    Parameters
    ----------
    scores, slack : contiguous int32 arrays of shape (n_columns,)
        As many as fill vectors.
    masks : uint16 array of shape (n_columns / 16,)
        Their bits say which they are; overwritten.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, slack, masks = _arrays_of(context, builder, signature.args, arguments)
        n_columns = cgutils.unpack_tuple(builder, scores.shape, 1)[0]
        n_vectors = builder.udiv(n_columns, _INT64(LANES))
        largest = ir.Constant(_VECTOR, [2**31 - 1] * LANES)
        with _Loop(builder, n_vectors, [largest]) as loop:
            first = builder.mul(loop.number, _INT64(LANES))
            here = builder.load(_vector_at(builder, scores.data, first), align=4)
            loop.values = [_call(builder, f"llvm.smin.v{LANES}i32", _VECTOR, here, loop.values[0])]
        lane = _call(builder, f"llvm.vector.reduce.smin.v{LANES}i32", _INT32, loop.values[0])
        least = _spread(builder, lane)
        with _Loop(builder, n_vectors, [_INT64(0), _INT64(0)]) as loop:
            count, last = loop.values
            first = builder.mul(loop.number, _INT64(LANES))
            here, room = (
                builder.load(_vector_at(builder, data, first), align=4) for data in (scores.data, slack.data)
            )
            near = builder.icmp_signed("<=", builder.sub(here, room), least)
            mask, last = _last_set(builder, near, loop.number, last)
            builder.store(builder.trunc(mask, ir.IntType(LANES)), builder.gep(masks.data, [loop.number]))
            loop.values = [builder.add(count, builder.ctpop(mask)), last]
        count, last = loop.values
        return builder.add(builder.shl(count, _INT64(32)), last)

    return types.int64(scores, slack, masks), generate


@intrinsic  # type: ignore[untyped-decorator]
def find_least_others(_: Any, scores: Any, slack: Any, masks: Any, least: Any) -> Any:
    """Return the last of the centres with the least score less slack, of those whose bits are not set.

    Parameters
    ----------
    scores, slack, masks
        As for `find_near`.
    least : contiguous int32 array of shape (16,)
        The least of every sixteenth column; 2**31 - 1 where there is none.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, slack, masks, least = _arrays_of(context, builder, signature.args, arguments)
        n_vectors = cgutils.unpack_tuple(builder, masks.shape, 1)[0]
        largest = ir.Constant(_VECTOR, [2**31 - 1] * LANES)
        lanes = ir.VectorType(ir.IntType(1), LANES)

        def others_at(number: Any) -> Any:
            first = builder.mul(number, _INT64(LANES))
            here, room = (
                builder.load(_vector_at(builder, data, first), align=4) for data in (scores.data, slack.data)
            )
            set_ = builder.bitcast(builder.load(builder.gep(masks.data, [number])), lanes)
            return builder.select(set_, largest, builder.sub(here, room))

        with _Loop(builder, n_vectors, [largest]) as loop:
            others = others_at(loop.number)
            loop.values = [_call(builder, f"llvm.smin.v{LANES}i32", _VECTOR, others, loop.values[0])]
        builder.store(loop.values[0], _vector_at(builder, least.data, _INT64(0)), align=4)
        lowest = _call(builder, f"llvm.vector.reduce.smin.v{LANES}i32", _INT32, loop.values[0])
        lowest = _spread(builder, lowest)
        with _Loop(builder, n_vectors, [_INT64(0)]) as loop:
            found = builder.icmp_signed("==", others_at(loop.number), lowest)
            loop.values = [_last_set(builder, found, loop.number, loop.values[0])[1]]
        return loop.values[0]

    return types.int64(scores, slack, masks, least), generate


@intrinsic  # type: ignore[untyped-decorator]
def sum_products(_: Any, line: Any, weights: Any) -> Any:
    """Return the sum of products of as many numbers as make chains of 16, in float64.

    Parameters
    ----------
    line : contiguous float array of shape (n,)
    weights : contiguous float64 array of shape (n or more,)
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line, weights = _arrays_of(context, builder, signature.args, arguments)
        wide = ir.VectorType(ir.DoubleType(), _CHAINS)
        single = signature.args[0].dtype == types.float32
        narrow = ir.VectorType(ir.FloatType(), _CHAINS) if single else wide
        n = builder.udiv(cgutils.unpack_tuple(builder, line.shape, 1)[0], _INT64(_CHAINS))
        with _Loop(builder, n, [ir.Constant(wide, [0.0] * _CHAINS)]) as loop:
            first = builder.mul(loop.number, _INT64(_CHAINS))
            left = builder.load(_vector_at(builder, line.data, first, narrow), align=4)
            right = builder.load(_vector_at(builder, weights.data, first, wide), align=8)
            left = builder.fpext(left, wide) if single else left
            loop.values = [_call(builder, f"llvm.fma.v{_CHAINS}f64", wide, left, right, loop.values[0])]
        sums = loop.values[0]
        lanes = [builder.extract_element(sums, _INT32(i)) for i in range(_CHAINS)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [builder.fadd(a, b) for a, b in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    return types.float64(line, weights), generate


# -- pieces ----------------------------------------------------------------------------------------


class _Loop:
    """Generates a loop of numbers from 0 on, and values that it changes.

    Attributes
    ----------
    number : value
        Of a step.
    values : list of values
        As a step finds them; it sets them to what the next one finds, and they are the last ones after.
    """

    def __init__(self, builder: Any, n_steps: Any, values: Sequence[Any]) -> None:
        self._builder, self._n_steps = builder, n_steps
        self.values = list(values)

    def __enter__(self) -> _Loop:
        builder, before = self._builder, self._builder.block
        self._check, self._after = builder.append_basic_block(), builder.append_basic_block()
        body = builder.append_basic_block()
        builder.branch(self._check)
        builder.position_at_end(self._check)
        self.number = builder.phi(_INT64)
        self.number.add_incoming(_INT64(0), before)
        self._found = [builder.phi(value.type) for value in self.values]
        for variable, value in zip(self._found, self.values, strict=True):
            variable.add_incoming(value, before)
        self.values = list(self._found)
        going_on = builder.icmp_signed("<", self.number, self._n_steps)
        builder.cbranch(going_on, body, self._after)
        builder.position_at_end(body)
        return self

    def __exit__(self, *_: object) -> None:
        builder = self._builder
        self.number.add_incoming(builder.add(self.number, _INT64(1)), builder.block)
        for variable, value in zip(self._found, self.values, strict=True):
            variable.add_incoming(value, builder.block)
        builder.branch(self._check)
        builder.position_at_end(self._after)
        self.values = list(self._found)


def _arrays_of(context: Any, builder: Any, kinds: Sequence[Any], values: Sequence[Any]) -> list[Any]:
    """Return the structures of arrays, whose numbers lie side by side."""
    for kind in kinds:
        if kind.layout != "C":
            raise TypingError(f"expected a contiguous array, got {kind}")
    return [
        context.make_array(kind)(context, builder, value) for kind, value in zip(kinds, values, strict=True)
    ]


def _vector_at(builder: Any, data: Any, place: Any, kind: Any = _VECTOR) -> Any:
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def _last_set(builder: Any, lanes: Any, number: Any, last: Any) -> tuple[Any, Any]:
    """Return the bits of a vector, and the column of the last that is set, or what was the last before."""
    mask = builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), _INT64)
    highest = builder.sub(_INT64(63), builder.ctlz(mask, ir.IntType(1)(0)))
    column = builder.add(builder.mul(number, _INT64(LANES)), highest)
    return mask, builder.select(builder.icmp_unsigned("!=", mask, _INT64(0)), column, last)


def _spread(builder: Any, value: Any) -> Any:
    """Return a vector of one number."""
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    lone = builder.insert_element(undefined, value, _INT32(0))
    return builder.shuffle_vector(lone, undefined, ir.Constant(_VECTOR, [0] * LANES))


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    signature = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), arguments)
