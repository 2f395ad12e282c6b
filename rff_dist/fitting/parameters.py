"""The parameters of an estimator as JSON values, on the card of a model, so that another fit is like it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from rff_dist.data import folding
from rff_dist.features import nystrom
from rff_dist.frequencies import designs
from rff_dist.kernels import base, names

#: The name on cards.
PARAMETERS = "parameters"


def to_card(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as JSON values, less those that these cannot hold: engines, generators, splitters."""
    values = {name: _to_json(value) for name, value in parameters.items()}
    return {name: value for name, value in values.items() if value is not NotImplemented}


def from_card(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters on a model's card; none if it was made without an estimator or options."""
    return {name: _from_json(value) for name, value in card.get(PARAMETERS, {}).items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, base.Kernel):
        return {"kernel": value.to_dict()}
    if isinstance(value, folding.Folds):
        return {"folds": folding.folds_to_dict(value)}
    if isinstance(value, nystrom.Nystrom):
        return {"nystrom": asdict(value)}
    if type(value) in map(type, designs.DESIGNS.values()):
        return {"design": value.name}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, Mapping):
        return {"items": [[_to_json(key), _to_json(part)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [_to_json(part) for part in value]
        return NotImplemented if NotImplemented in parts else parts
    return NotImplemented


_READERS: dict[str, Callable[..., Any]] = {
    "kernel": names.kernel_from_dict,
    "folds": folding.folds_from_dict,
    "nystrom": lambda values: nystrom.Nystrom(**values),
    "design": designs.find_design,
    "array": np.array,
    "items": dict,
}


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _READERS[kind](content)
