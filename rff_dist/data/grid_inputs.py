"""Variables of a grid, and the columns of X that they become.

A variable with named dimensions goes in; its values as one column or three come out.
Stored values are not enough: models need a time as days and as the position in the
year, and a category as codes. A *level* is a text of a category, its *code* the
position in the list of levels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rff_dist.data import columns
from rff_dist.data.grid_attributes import meanings_of
from rff_dist.errors import InvalidParameterError
from rff_dist.typing import AnyArray, AnyDType, Facts, FloatArray

# days since 1970; sine and cosine of the day of the year
TIME_PARTS = ("days", "sin", "cos")

type Slices = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class Variable(ABC):
    """A variable of a grid: values with a name for each dimension."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    #: The lengths of a chunk or a shard, which is stored as one object.
    chunks: tuple[int, ...]
    #: The dtype of values from `read`; a float if cells may be missing.
    dtype: AnyDType
    #: Whether cells may be missing, and then are NaN.
    may_miss: bool
    #: Whether values are days since 1970.
    is_time: bool
    #: Stored attributes, such as units.
    attributes: Facts
    #: Whether other processes can read it.
    can_travel: bool
    #: The Zarr array's fill value, if it counts as missing although no attribute says
    #: so; else None.
    doubtful_fill: Any

    @abstractmethod
    def read(self, region: Slices) -> AnyArray:
        """Return the values of a region of the variable's own dimensions."""

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise ConflictError if the values are no longer those that were opened."""


@dataclass(frozen=True)
class GridInput:
    """A column of X: a variable, a part of a time, or the codes of a category."""

    variable: Variable
    #: One of `TIME_PARTS`; "" for the values themselves.
    part: str = ""
    #: For a category: the text of each stored value.
    meanings: Mapping[Any, str] = field(default_factory=dict, hash=False)
    #: For a category: the texts that rows have, in the order of their first rows.
    levels: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.variable.name}.{self.part}" if self.part else self.variable.name

    @property
    def dtype(self) -> AnyDType:
        return np.dtype(np.float32) if self.meanings else self.variable.dtype

    @property
    def encoder(self) -> Facts:
        """The column's entry in a recipe, as JSON; see `rff_dist.recipes`."""
        if not self.meanings:
            return {"kind": "number", "column": self.name}
        return {"kind": "category", "column": self.name, "levels": [*self.levels]}

    def texts_of(self, values: AnyArray) -> list[str]:
        """Return the texts of a category's values, each once, in their order."""
        distinct, first = np.unique(values, return_index=True)
        ordered = distinct[np.argsort(first)].tolist()
        return [self.meanings.get(value, columns.MISSING) for value in ordered]

    def encode(self, values: AnyArray) -> AnyArray:
        """Return the variable's values as this column has them."""
        if self.meanings:
            return self._codes(values)
        if self.part in ("sin", "cos"):
            angle = _angle_of_year(values)
            return np.sin(angle) if self.part == "sin" else np.cos(angle)
        return values

    def _codes(self, values: AnyArray) -> AnyArray:
        """Return the code of each value's text; the number of levels for a text that is
        no level.
        """
        code_of = {text: code for code, text in enumerate(self.levels)}
        distinct, inverse = np.unique(values, return_inverse=True)
        codes = []
        for value in distinct.tolist():
            text = self.meanings.get(value, columns.MISSING)
            codes.append(code_of.get(text, len(self.levels)))
        return np.array(codes, self.dtype)[inverse].reshape(values.shape)


def _angle_of_year(days: FloatArray) -> FloatArray:
    """Return the time since New Year, as an angle: 2π is one year; NaN stays NaN."""
    moments = (np.nan_to_num(days) * 86400e3).astype("M8[ms]")
    year = moments.astype("M8[Y]")
    begin = year.astype("M8[ms]")
    end = (year + np.timedelta64(1, "Y")).astype("M8[ms]")
    angle = 2 * np.pi * ((moments - begin) / (end - begin))
    return np.where(np.isnan(days), np.nan, angle)


def columns_of(
    names: Sequence[str], find: Callable[[str], Variable | None]
) -> list[GridInput]:
    """Return the columns of named inputs; `find` returns the variable of a name, or
    None.

    A time becomes three columns, one for each of `TIME_PARTS`; `time.days` names one of
    them. Raises InvalidParameterError if a name is no variable, or is repeated.
    """
    inputs: list[GridInput] = []
    for name in names:
        variable = find(name)
        if variable is not None:
            meanings = meanings_of(name, variable.attributes)
            parts = TIME_PARTS if variable.is_time else ("",)
            inputs += [GridInput(variable, part, meanings) for part in parts]
            continue
        stem, _, part = name.rpartition(".")
        time = find(stem) if part in TIME_PARTS else None
        if time is None or not time.is_time:
            raise InvalidParameterError(
                f"`inputs` has {name!r}, which is no variable of the grid; expected"
                " variables or coordinates"
            )
        inputs.append(GridInput(time, part))
    names = [column.name for column in inputs]
    if len(set(names)) < len(names):
        raise InvalidParameterError(f"`inputs` are {names}; expected different ones")
    return inputs
