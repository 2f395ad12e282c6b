"""Turn values into JSON and a list of arrays, and back, instead of pickles.

Numbers, arrays, dataclasses and named tuples of this package go in; JSON comes out, in
which a number stands for each array of the list. JSON alone has no arrays and no NaN,
and unpickling would run code of a file.
"""

import logging
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

KINDS = "biuf"  # kinds of arrays' dtypes


def pack(value: Any) -> tuple[Any, list[np.ndarray]] | None:
    """Return a value as JSON and the arrays that it refers to; None if a part of it is
    of another type.
    """
    arrays: list[np.ndarray] = []
    try:
        return _tree(value, arrays), arrays
    except TypeError as error:
        logger.debug("not packed: %s", error)
        return None


def _tree(value: Any, arrays: list[np.ndarray]) -> Any:
    # NumPy's str_ is also a str and its float64 a float, so NumPy's scalars are
    # excluded here.
    if value is None or (
        isinstance(value, bool | int | str) and not isinstance(value, np.generic)
    ):
        return value
    if (
        isinstance(value, np.ndarray | np.generic)
        and np.asarray(value).dtype.kind in KINDS
    ):
        # `ascontiguousarray` makes 0-d arrays 1-d, and `reshape` 0-d again
        arrays.append(np.ascontiguousarray(value).reshape(np.shape(value)))
        return {"scalar" if isinstance(value, np.generic) else "array": len(arrays) - 1}
    if isinstance(value, float):  # JSON has no NaN and no infinity.
        return {"float": value.hex()}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_tree(element, arrays) for element in value]}
    if _has_fields(type(value)):
        members = {name: getattr(value, name) for name in _field_names(type(value))}
        return {
            "class": f"{type(value).__module__}:{type(value).__qualname__}",
            "members": {
                name: _tree(member, arrays) for name, member in members.items()
            },
        }
    raise TypeError(f"a {type(value).__name__} is no number, array or dataclass")


def _has_fields(kind: type) -> bool:
    """Return whether a class is a dataclass or a named tuple."""
    return is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))


def _field_names(kind: Any) -> Sequence[str]:
    if is_dataclass(kind):
        return [item.name for item in fields(kind) if item.init]
    return kind._fields  # type: ignore[no-any-return]


def unpack(tree: Any, arrays: Sequence[np.ndarray]) -> Any:
    """Return the value of which `pack` returned `tree` and `arrays`.

    Raises LookupError, TypeError or ValueError if they are not from `pack`.
    """
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        members = {
            name: unpack(member, arrays) for name, member in tree["members"].items()
        }
        return _class_of(tree["class"])(**members)
    [(kind, content)] = tree.items()
    match kind:
        case "array":
            return arrays[content]
        case "scalar":
            return arrays[content][()]
        case "float":
            return float.fromhex(content)
        case "tuple" | "list":
            elements = [unpack(element, arrays) for element in content]
            return elements if kind == "list" else tuple(elements)
    raise ValueError(f"{kind!r} is no kind of value")


def _class_of(name: str) -> type:
    """Return a dataclass or named tuple of this package by name; no module is imported
    for it.
    """
    module, _, path = name.partition(":")
    kind = getattr(sys.modules.get(module), path, None)
    if (
        not module.startswith("rff_dist.")
        or not isinstance(kind, type)
        or not _has_fields(kind)
    ):
        raise ValueError(f"{name!r} is no dataclass of this package")
    return kind
