"""Read the attributes of variables by the CF conventions for climate data.

Attributes go in, as many programs write them; marks of missing cells, meanings of
categories and coordinate reference systems come out. The attributes themselves cannot
be compared: programs write the same number as a list, as text or as base64, and the
same system in different words.
"""

import base64
import colorsys
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

import numpy as np

from rff_dist.errors import DataError
from rff_dist.typing import AnyArray, AnyDType, Facts, Summary

# Attributes whose values are marks of missing cells: CF's, and those of programs for
# maps.
MARKS = re.compile(
    "_?fill_?value|missing_?value|no_?data(_?val(ue)?s?)?", re.IGNORECASE
)
# Attributes that describe a coordinate reference system.
_SYSTEM = re.compile(
    "crs_wkt|spatial_ref|grid_mapping_name|standard_parallel|.*_(meridian|projection_origin)"
)
# The system's EPSG number, with which well-known text ends if there is one.
_EPSG = re.compile(r'(?:ID|AUTHORITY)\["EPSG",\s*"?(\d+)"?\]\]\s*$')


# -- missing cells


def marks_of(attributes: Facts, dtype: AnyDType, *more: Any) -> AnyArray:
    """Return the marks of missing cells: values of a dtype, other than NaN.

    They come from a variable's attributes and from `more`. A value that the dtype
    cannot hold marks no cell, and is left out.
    """
    values = [value for key, value in attributes.items() if MARKS.fullmatch(key)]
    numbers: list[Any] = []
    for value in [*values, *more]:
        for element in np.ravel(np.array(value, object)):
            number = _number(element)
            if isinstance(number, Real) and number == number:  # not NaN
                numbers.append(number)
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            marks = np.array(numbers, dtype)
        return np.unique(marks[np.isfinite(marks)])
    if dtype.kind not in "iu":
        return np.empty(0, dtype)
    limits = np.iinfo(dtype)
    within = [number for number in numbers if limits.min <= number <= limits.max]
    whole = [number for number in within if number == int(number)]
    return np.unique(np.array(whole, dtype))


def _number(value: Any) -> Any:
    """Return a number that may be stored as digits, or as base64 of its bytes."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        return int(value)
    with suppress(ValueError):
        return float(value)
    with suppress(ValueError):
        return np.frombuffer(base64.b64decode(value), "<f8").item()
    return None


# -- categories


def meanings_of(name: str, attributes: Facts) -> dict[Any, str]:
    """Return the text of each value of a category, by CF's `flag_values` and
    `flag_meanings`; empty for a variable of numbers.

    Raises DataError if a cell may hold several flags, or their numbers differ.
    """
    if "flag_masks" in attributes:
        raise DataError(
            f"{name!r} has `flag_masks`: a cell may hold several flags at"
            " once; expected numbers, or one flag in a cell (`flag_values`). Store each"
            " flag as a separate variable of 0 and 1"
        )
    if not {"flag_values", "flag_meanings"} <= attributes.keys():
        return {}
    words = " ".join(np.ravel(attributes["flag_meanings"]).tolist())
    texts = unicodedata.normalize("NFC", words).split()
    values = np.ravel(attributes["flag_values"]).tolist()
    if len(values) != len(texts):
        raise DataError(
            f"{name!r} has {len(values)} `flag_values` and {len(texts)} words"
            " in `flag_meanings`; expected as many. Correct these attributes, or remove"
            " them if the values are numbers"
        )
    return dict(zip(values, texts, strict=True))


def flags_of(meanings: Mapping[int, str]) -> Summary:
    """Return CF's attributes for labels, with a colour of each label."""
    if not meanings:
        return {}
    words = ["_".join(meaning.split()) for meaning in meanings.values()]
    if len(set(words)) < len(words):
        words = [f"{word}_{value}" for word, value in zip(words, meanings, strict=True)]
    colours = []
    for i in range(len(meanings)):
        # hues differ by the golden section, so that any number of them are distinct
        rgb = colorsys.hls_to_rgb(i * 0.618034 % 1, 0.45 + 0.2 * (i // 2 % 2), 0.6)
        colours.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return {
        "flag_values": [*meanings],
        "flag_meanings": " ".join(words),
        "flag_colors": " ".join(colours),
    }


# -- coordinate reference systems


def mappings_of(attributes: Sequence[Facts]) -> set[str]:
    """Return the names of the variables that describe coordinate reference systems: by
    the attributes of other variables, or else the usual names.
    """
    names: set[str] = set()
    for facts in attributes:
        words = str(facts.get("grid_mapping", "")).split()
        # the first, if there are several ("utm: x y geographic: lat lon")
        names.update(word.rstrip(":") for word in words[:1])
    return names or {"spatial_ref", "crs"}


def reference_of(attributes: Sequence[Facts]) -> dict[str, str]:
    """Return the one coordinate reference system that all attributes describe: the
    texts of these attributes, by their names.

    Raises DataError if they differ.
    """
    reference: dict[str, str] = {}
    for facts in attributes:
        for key, value in facts.items():
            if not _SYSTEM.fullmatch(key):
                continue
            system = value
            if not isinstance(value, str):
                # in one form: attributes may hold 3, 3.0, lists or arrays
                system = str(np.ravel(value).astype(float).tolist())
            epsg = _EPSG.search(system)
            if epsg is not None:
                system = f"EPSG:{epsg[1]}"
            if reference.get(key, system) != system:
                raise DataError(
                    f"there are several coordinate reference systems: {key!r} is"
                    f" {reference[key][:60]!r} and {system[:60]!r}; expected one, for"
                    " training and prediction too. Reproject to one grid first"
                )
            reference[key] = system
    return reference
