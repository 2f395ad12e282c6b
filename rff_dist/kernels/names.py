"""Kernels by their names: read from text or stored facts, and written as text.

A text such as "0.1 * linear + matern:nu=2.5" goes in, and a kernel comes out, or the
reverse. `eval` of a kernel's repr would run any code.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import reduce
from importlib import import_module
from inspect import signature
from typing import Any

from rff_dist.checks import find_by_name
from rff_dist.errors import InvalidParameterError
from rff_dist.kernels import base, registry, spectral, stationary
from rff_dist.typing import Facts, Summary


def kernel_text(kernel: base.Kernel) -> str:
    """Return the text that `find_kernel` reads, without length scales.

    It is the repr if no text describes the kernel.

    >>> from rff_dist.kernels.explicit import Linear
    >>> from rff_dist.kernels.stationary import Matern
    >>> kernel_text(Matern(2.0, nu=1.5) + 0.1 * Linear())
    'matern:nu=1.5 + 0.1 * linear'
    """
    if isinstance(kernel, base.Constant):
        return _shortest(kernel.value)
    if isinstance(kernel, base.Sum):
        return " + ".join(map(kernel_text, kernel.kernels))
    if isinstance(kernel, base.Scaled) and not isinstance(kernel.kernel, base.Sum):
        return f"{_shortest(kernel.weight)} * {kernel_text(kernel.kernel)}"
    if isinstance(kernel, base.Product):
        has_sums = any(isinstance(factor, base.Sum) for factor in kernel.kernels)
        return str(kernel) if has_sums else " * ".join(map(kernel_text, kernel.kernels))
    kind: Any = type(kernel)
    if kind not in KERNELS.values():
        return str(kernel)
    own = [f for f in fields(kind) if f.name not in ("length_scale", "categories")]
    parameters = []
    for field in own:
        value = getattr(kernel, field.name)
        # a single parameter is always shown; several only if they differ from defaults
        if len(own) > 1 and value == field.default:
            continue
        if not isinstance(value, int | float | tuple | base.Kernel):
            return str(kernel)
        parameters.append(f"{field.name}={_value_text(value)}")
    if not parameters:
        return kernel.name
    return f"{kernel.name}:{','.join(parameters)}"


def _value_text(value: Any) -> str:
    if isinstance(value, base.Kernel):
        return kernel_text(value)
    if isinstance(value, tuple):
        return "/".join(map(_shortest, value))
    return _shortest(value)


def _shortest(number: float) -> str:
    """Return the shortest text that is read as this number."""
    text = f"{number:g}"
    return text if float(text) == number else repr(float(number))


def shortened_text(text: str) -> str:
    """Round the numbers in a kernel's text to three digits; weights become words.

    >>> shortened_text("Gaussian(length_scale=1.9087707404331382) + Linear()")
    'Gaussian(length_scale=1.91) + Linear()'
    >>> shortened_text("additive:kernel=gaussian,order_1=0.1/0.2,order_2=0,dense=0.7")
    'additive (30.0% single columns, 70.0% all columns) of gaussian'
    """

    def in_words(additive: re.Match[str]) -> str:
        texts = {"kernel": "matern", "order_1": "1", "order_2": "1", "dense": "1"}
        for parameter in additive[1].split(","):
            name, _, texts[name] = parameter.partition("=")
        inner = texts.pop("kernel")
        weights = [sum(map(float, text.split("/"))) for text in texts.values()]
        return f"additive ({weights_words(weights)}) of {inner}"

    def rounded(number: re.Match[str]) -> str:
        return f"{float(number[0]):.3g}"

    text = re.sub(r"additive:(\S+)", in_words, text)
    return re.sub(r"\d+\.\d{3,}(e-?\d+)?", rounded, text)


def weights_words(weights: Sequence[float]) -> str:
    """Return an additive kernel's shares of single columns, pairs and all in words."""
    names = ("single columns", "pairs", "all columns")
    shares = [
        f"{weight / sum(weights):.1%} {name}"
        for weight, name in zip(weights, names, strict=True)
        if weight
    ]
    return ", ".join(shares)


# -- kernels found by their text, or rebuilt from what was stored


def _import_kernels() -> dict[str, type[base.Kernel]]:
    kernels = {}
    for name, path in registry.KERNELS.items():
        module, _, class_name = path.rpartition(".")
        kernels[name] = getattr(import_module(module), class_name)
    return kernels


KERNELS = _import_kernels()
# `find_kernel` has no names for these
_WITHOUT_TEXT: tuple[type[base.Kernel], ...] = (
    base.Constant,
    base.Scaled,
    base.Sum,
    base.Product,
    base.OnColumns,
    spectral.SpectralKernel,
)
_STORED = KERNELS | {kernel.name: kernel for kernel in _WITHOUT_TEXT}

# A plus between terms: not the sign of a number, nor of its exponent.
_PLUS = re.compile(r"(?<![0-9.][eE])(?<!=)\+")
_FORM = (
    "expected a form such as 'matern:nu=1.5' or 'gaussian:length_scale=2 + 0.1 *"
    " linear'"
)


def find_kernel(kernel: str | base.Kernel) -> base.Kernel:
    """Return the kernel that a text describes, or the object itself.

    Parts without a length scale in the text take one from the data.

    The text is a sum, with `+`, of products, with `*`, of factors. A factor is a number
    or the name of a kernel, with `:` before its parameters and `,` between:
    "rational_quadratic:shape=2,length_scale=1". A kernel within a kernel has at most
    one parameter: "additive:kernel=matern:nu=2.5,order_2=0". Several numbers have `/`
    between: "additive:order_1=0.5/2/0".

    Raises InvalidParameterError if a name or a parameter is unknown (the message gives
    the nearest name), a parameter is not a number, or a single kernel has a length
    scale, which belongs in `length_scale`.

    >>> find_kernel("0.5 + 2 * matern:nu=2.5")
    0.5 + 2.0 * Matern(nu=2.5)
    """
    text: object = kernel
    if isinstance(text, base.Kernel):
        return text
    if not isinstance(text, str):
        # raises, with the names that are known
        also = " or an rff_dist Kernel, such as Gaussian(length_scale=2)"
        return find_by_name(KERNELS, text, "kernel", also=also)()
    total = reduce(operator.add, [_product(part, text) for part in _PLUS.split(text)])
    if isinstance(total, stationary.Stationary) and "length_scale" in text:
        raise InvalidParameterError(
            f"`kernel` is {text!r}, which is one kernel with a length scale; give that"
            " as `length_scale`"
        )
    return total


def _product(part: str, text: str) -> base.Kernel:
    weight = 1.0
    kernels: list[base.Kernel] = []
    for piece in part.split("*"):
        factor = piece.strip()
        if not factor:
            raise InvalidParameterError(
                f"`kernel` is {text!r}, with nothing next to an operator; {_FORM}"
            )
        number = _number(factor)
        if number is None:
            kernels.append(_factor(factor, text))
        else:
            # all numbers in a product are multiplied into one weight
            weight *= number
    if not kernels:
        return base.Constant(weight)
    product = reduce(operator.mul, kernels)
    return product if weight == 1 else weight * product


def _factor(factor: str, text: str) -> base.Kernel:
    name, colon, rest = factor.partition(":")
    _refuse_foreign(name.strip())
    kernel_class = find_by_name(KERNELS, name.strip(), "kernel")
    if not colon:
        return kernel_class()
    return kernel_class(**_parameters(kernel_class, rest, text))


def _refuse_foreign(name: str) -> None:
    """Raise InvalidParameterError for scikit-learn's names of kernels."""
    ours = {
        "rbf": "'gaussian' with `length_scale` = 1/√(2·gamma)",
        "poly": "'polynomial:degree=3', of inputs times √gamma, with offset=coef0",
    }
    if name in ours:
        raise InvalidParameterError(
            f"unknown `kernel` {name!r}; scikit-learn's {name!r} is {ours[name]}"
        )


def _parameters(kernel_class: type[base.Kernel], rest: str, text: str) -> Summary:
    signed = signature(kernel_class)
    known = [name for name in signed.parameters if name != "categories"]
    parameters: Summary = {}
    for pair in rest.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        argument: Any
        if name == "kernel" and name in known:
            argument = _factor(value, text)
        elif name == "order_1" and "/" in value:
            argument = tuple(map(_number, value.split("/")))
        else:
            argument = _number(value)
        if name not in known or argument is None or name in parameters:
            expected = "no parameters"
            if known:
                form = "number (`kernel`: a name)" if "kernel" in known else "number"
                expected = f"{', '.join(known)}, each a {form} and given once"
            raise InvalidParameterError(
                f"`kernel` is {text!r}, but the {kernel_class.name} kernel does not"
                f" take {pair.strip()!r}; it has {expected}"
            )
        parameters[name] = argument
    return parameters


def _number(text: str) -> int | float | None:
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def kernel_from_dict(values: Facts) -> base.Kernel:
    """Build a kernel from what `Kernel.to_dict` returned.

    Raises InvalidParameterError if the name or a parameter is unknown.
    """
    if not isinstance(values, Mapping):
        raise InvalidParameterError(
            f"the description of a kernel is {values!r}; expected a dictionary"
        )
    parameters = dict(values)
    kernel_class = find_by_name(_STORED, parameters.pop("name", None), "kernel")
    try:
        if "kernel" in parameters:
            parameters["kernel"] = kernel_from_dict(parameters["kernel"])
        if "kernels" in parameters:
            parameters["kernels"] = [
                kernel_from_dict(part) for part in parameters["kernels"]
            ]
        return kernel_class.from_parameters(parameters)
    except (TypeError, KeyError) as error:
        raise InvalidParameterError(
            f"the kernel {kernel_class.name!r} cannot be made of {sorted(parameters)}:"
            f" {error}"
        ) from error
