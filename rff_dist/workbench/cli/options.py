"""Options of commands, built from the specs of jobs, and how the texts that users give become values."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from rff_dist.workbench.jobs import fields

MAX_ALPHAS = 10_000

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there, once the job is done.")]
PlotPath = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="PNG", help="Draw the errors that alpha and D are chosen by: against both."
    ),
]
ReportPath = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="HTML",
        help="Write one HTML page about the result, without other files: data, errors, columns, lineage.",
    ),
]


# -- options of a spec -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpecOptions:
    """The options that build one parameter of a command: all those of a spec or a group, or some of them."""

    spec: type
    options: tuple[fields.Option, ...]

    @classmethod
    def of(cls, annotation: Any) -> SpecOptions | None:
        """Return the options of a parameter annotated with a spec, or with a spec and names of its options.

        None for any other annotation.
        """
        is_annotated = typing.get_origin(annotation) is Annotated
        spec, *only = typing.get_args(annotation) if is_annotated else (annotation,)
        if not dataclasses.is_dataclass(spec) or not isinstance(spec, type):
            return None
        shown = [option for option in fields.options_of(spec) if option.shown.face != "form"]
        return cls(spec, tuple(option for option in shown if not only or option.name in only))

    def flags(self) -> dict[str, str]:
        """Return the flag for each parameter name that a message may use."""
        flags: dict[str, str] = {}
        for option in self.options:
            if not option.shown.argument:
                flags |= dict.fromkeys((option.name, option.shown.alias or option.name), flags_of(option)[0])
        return flags

    def parameters(self, flags: Mapping[str, str]) -> list[Parameter]:
        """Return the parameters that typer reads; `flags` replace parameter names in their help."""
        return [parameter for option in self.options for parameter in _parameters(option, flags)]

    def read(self, values: dict[str, Any]) -> Any:
        """Build the spec from what was given, and remove its options from `values`."""
        return fields.build(
            self.spec, {name: value for option in self.options for name, value in _read(option, values)}
        )


def flags_of(option: fields.Option) -> tuple[str, ...]:
    """Return an option's flags on the command line."""
    return option.shown.flags or ("--" + option.name.replace("_", "-"),)


def _names(option: fields.Option) -> list[str]:
    """Return the names of an option's parameters: one for each flag that sets it."""
    return [option.name, *(flag.removeprefix("--").replace("-", "_") for flag in flags_of(option)[1:])]


def _parameters(option: fields.Option, flags: Mapping[str, str]) -> Iterator[Parameter]:
    shown, reads = option.shown, Reads.of(option.type)
    text = re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), shown.help)
    unit = shown.unit or reads.unit
    info: dict[str, Any] = {"help": text, "rich_help_panel": option.panel, "metavar": unit}
    kind, default = reads.parameter(option)
    if shown.argument:
        del info["rich_help_panel"]
        default = Parameter.empty if option.required else None
        yield _parameter(option.name, kind, default, typer.Argument(**info))
    elif shown.given or kind is bool:
        for name, flag in zip(_names(option), flags_of(option), strict=True):
            info["metavar"] = None
            yield _parameter(name, bool, False, typer.Option(flag, **info))
    else:
        if kind in (int, int | None):
            info |= {"min": reads.least, "max": reads.most}
        if reads.names or option.name in ("kernel", "kernels"):
            info["autocompletion"] = _completion(option.name, reads.names)
        yield _parameter(option.name, kind, default, typer.Option(*flags_of(option), **info))


def _completion(name: str, names: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the function that completes an option's value when the tab key is pressed."""

    def complete(incomplete: str) -> list[str]:
        known = list(names)
        if name in ("kernel", "kernels"):
            from rff_dist.kernels.names import KERNELS

            known += KERNELS
        return [word for word in known if word.startswith(incomplete)]

    return complete


def _parameter(name: str, kind: Any, default: Any, info: Any) -> Parameter:
    annotation = Annotated[kind, info]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read(option: fields.Option, given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield an option's name and value if it was given or has a default; remove it from `given`."""
    values = [given.pop(name) for name in _names(option)]
    if option.shown.given:
        set_by = [value for is_given, value in zip(values, option.shown.given, strict=True) if is_given]
        if set_by:
            yield option.name, set_by[-1]
    elif (value := values[0]) is not None and value != ():
        value = list(value) if isinstance(value, tuple) else value
        yield option.name, Reads.of(option.type).read(value, option) if isinstance(value, str) else value


@dataclass(slots=True)
class Reads:
    """What texts an option takes, according to its type.

    `names`: words that stand for themselves.
    `kinds`: types of single values: bool, int, float or str.
    `several`: whether the text may hold several values, with commas between them.
    `least`, `most`: bounds of a whole number.
    """

    names: list[str]
    kinds: set[type]
    several: bool = False
    least: int | None = None
    most: int | None = None

    @classmethod
    def of(cls, annotation: Any) -> Reads:
        """Return what texts an option with this annotation takes."""
        reads = cls([], set())
        reads._add(annotation)
        return reads

    def _add(self, part: Any) -> None:
        if isinstance(part, typing.TypeAliasType):  # made by a `type` statement
            part = part.__value__
        origin, arguments = typing.get_origin(part), typing.get_args(part)
        if origin is Annotated:
            self._add(arguments[0])
            for bound in arguments[1:]:
                self.least = getattr(bound, "ge", self.least)
                self.most = getattr(bound, "le", self.most)
        elif origin is typing.Literal:
            self.names += arguments
        elif origin is list:
            self.several = True
            self._add(arguments[0])
        elif origin in (types.UnionType, typing.Union):
            for argument in arguments:
                self._add(argument)
        elif part is not type(None):
            self.kinds.add(part)

    @property
    def unit(self) -> str:
        """The placeholder for a value in the help, if the option names none."""
        return "N" if self.kinds == {int} and not self.several and not self.names else "NAME"

    def parameter(self, option: fields.Option) -> tuple[Any, Any]:
        """Return the type that typer reads, and the default as the help shows it."""
        plain: Any = str
        if not self.names and not self.several and len(self.kinds) == 1 and option.name not in _TEXTS:
            [plain] = self.kinds
        elif self.several and (option.shown.argument or option.shown.unit is None):
            plain = list[str]
        if option.required:
            return plain, Parameter.empty
        if option.default is None or option.default == []:
            return plain | None, None
        return plain, option.default if plain is not str else _as_text(option.default)

    def read(self, text: str, option: fields.Option) -> Any:
        """Return the value that a text stands for.

        Raises BadParameter if the option takes no such text.
        """
        flag = option.name if option.shown.argument else flags_of(option)[0]
        if option.name in _READERS:
            return _READERS[option.name](text, flag)
        if bool in self.kinds:
            meanings = {"no": False, "yes": True, **{name: name for name in self.names}}
            if text not in meanings:
                raise typer.BadParameter(f"{text!r}; expected one of {', '.join(meanings)}", param_hint=flag)
            return meanings[text]
        if text in self.names:
            return text
        if not self.kinds & {int, float}:
            return [part.strip() for part in text.split(",")] if self.several else text
        parts = text.split(",") if self.several else [text]
        if int in self.kinds:
            values: list[Any] = [read_count(part, flag) for part in parts]
        else:
            values = read_numbers(parts, text, flag, ", ".join([*self.names, "a number"]))
        return values if len(values) > 1 else values[0]


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


# -- texts -----------------------------------------------------------------------------------------


def _number(text: str) -> float:
    """Return a text as a number; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_count(text: str, flag: str) -> int:
    """Read a whole number such as 1000, 1_000 or 1e6."""
    value = _number(text)
    if not (value.is_integer() and 1 <= value <= 2**53):  # above, floats skip whole numbers
        raise typer.BadParameter(
            f"{text!r}; expected a whole number of at least 1, such as 4096 or 1e6", param_hint=flag
        )
    return int(value)


def read_numbers(parts: Sequence[str], text: str, flag: str, expected: str) -> list[float]:
    """Read numbers, the parts of a text; `expected` tells in errors what else the option takes."""
    try:
        return [float(part) for part in parts]
    except ValueError:
        if text == "evidence":
            expected = "evidence needs targets, and nothing is fitted here; give auto, a number"
        else:
            expected = f"{text!r}; expected {expected}"
        raise typer.BadParameter(
            f"{expected}, or numbers with commas between them", param_hint=flag
        ) from None


def read_alphas(text: str, flag: str) -> list[float]:
    """Read a range such as 1e-6:1e3:30, in equal ratios, or numbers with commas between them."""
    from rff_dist.fitting.options import check_alpha

    if ":" not in text:
        values = read_numbers(text.split(","), text, flag, "LOW:HIGH:N")
    else:
        import numpy as np

        try:
            low, high, count = (float(part) for part in text.split(":"))
        except ValueError:
            low = high = count = math.nan
        if not (0 < low < high < math.inf and count.is_integer() and 2 <= count <= MAX_ALPHAS):
            raise typer.BadParameter(
                f"{text!r}; expected LOW:HIGH:N, 0 < LOW < HIGH and N from 2 to {MAX_ALPHAS}, such as "
                "1e-6:1e3:30",
                param_hint=flag,
            )
        values = np.geomspace(low, high, int(count)).tolist()
    check_alpha(values)
    return values


_COMMA = re.compile(r",(?!\s*\w+\s*=)")  # a comma between kernels, not between the parameters of one


def read_kernels(text: str, _: str) -> list[str]:
    """Read kernels with commas between them."""
    return [part.strip() for part in _COMMA.split(text)]


def _read_length_scales(text: str, _: str) -> list[str | float]:
    values: list[str | float] = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            values.append(part.strip())  # the library checks words, and says which it takes
    return values


def read_share(text: str, flag: str) -> float:
    """Read a share of rows such as 10% or 0.1."""
    digits = text.strip().removesuffix("%")
    value = _number(digits) / (1 if digits == text.strip() else 100)
    if not 0 < value < 1:
        raise typer.BadParameter(f"{text!r}; expected a share such as 10% or 0.1", param_hint=flag)
    return value


_READERS = {
    "alphas": read_alphas,
    "kernels": read_kernels,
    "length_scales": _read_length_scales,
    "chunk_rows": read_count,
    "holdout": read_share,
    "share": read_share,
}


_TEXTS = {"n_components", *_READERS}  # read as text: typer would refuse whole numbers such as 1e6


def read_bytes(text: str, flag: str) -> int:
    """Read a size in memory such as 512MiB or 2G; all units are powers of 1024."""
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?)(i?B)?", text.strip(), re.IGNORECASE)
    number = _number(match[1]) if match else math.nan
    if match is None or not number > 0:
        raise typer.BadParameter(f"{text!r}; expected a size such as 2GiB or 512MiB", param_hint=flag)
    return int(number * 1024 ** " KMGT".index(match[2].upper() or " "))
