"""An estimator's parameters on the card of a model, as JSON values.

Parameters go in, as kernels, folds and numbers; JSON comes out, and `from_card` reads
the parameters back, so that another fit can repeat this one. A card is the dictionary
of facts that is stored with a model. `repr` could not be read back, and pickle would
run code.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from numbers import Real
from typing import Any

import numpy as np

from rff_dist.data import folding
from rff_dist.features import nystrom
from rff_dist.frequencies import designs
from rff_dist.kernels import base, names
from rff_dist.typing import Facts, Summary, frozen

#: The name on cards.
PARAMETERS = "parameters"


def to_card(parameters: Facts) -> Summary:
    """Return parameters as JSON values, without engines, generators and splitters.

    A list or mapping may hold any kind of value, nested too. It is left out as a whole
    if a value in it has no JSON.
    """
    values = {name: _to_json(value) for name, value in parameters.items()}
    return {
        name: value for name, value in values.items() if value is not NotImplemented
    }


def of_options(*groups: Any) -> Summary:
    """Return groups of options for a card, the seed also as `random_state`."""
    values = {
        item.name: getattr(group, item.name)
        for group in groups
        for item in fields(group)
    }
    return to_card({**values, "random_state": values["seed"]})


def from_card(card: Facts, known: Facts) -> Summary:
    """Return the parameters on a model's card that an estimator knows."""
    return {
        name: _from_json(value)
        for name, value in card.get(PARAMETERS, {}).items()
        if name in known
    }


@frozen
class _Form:
    """How values of a type, or of several types, become JSON and are read back."""

    types: Any
    write: Callable[..., Any]
    read: Callable[..., Any]


# By the name that stands for the type in JSON.
_FORMS = {
    "kernel": _Form(
        base.Kernel, lambda kernel: kernel.to_dict(), names.kernel_from_dict
    ),
    "folds": _Form(folding.Folds, folding.folds_to_dict, folding.folds_from_dict),
    "nystrom": _Form(nystrom.Nystrom, asdict, lambda values: nystrom.Nystrom(**values)),
    "design": _Form(
        tuple(map(type, designs.DESIGNS.values())),
        lambda design: design.name,
        designs.find_design,
    ),
    "array": _Form(np.ndarray, np.ndarray.tolist, np.array),
    "items": _Form(
        Mapping,
        lambda items: _to_json([*items.items()]),
        lambda items: dict(_from_json(items)),
    ),
}


def _to_json(value: Any) -> Any:
    """Return a value as JSON; NotImplemented if it, or a value in it, has none."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Real):  # such as a Fraction
        return float(value)
    if isinstance(value, list | tuple):
        parts = [_to_json(part) for part in value]
        return NotImplemented if NotImplemented in parts else parts
    for name, form in _FORMS.items():
        if isinstance(value, form.types):
            content = form.write(value)
            return NotImplemented if content is NotImplemented else {name: content}
    return NotImplemented


def _from_json(value: Any) -> Any:
    """Return the value that `_to_json` wrote; KeyError for the name of no form."""
    if isinstance(value, list):
        return [_from_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((name, content),) = value.items()
    return _FORMS[name].read(content)
