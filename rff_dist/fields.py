"""How options are declared, checked and read from text, and how groups of them become flat names and back.

`option` returns a dataclass field that also holds an option's help and unit. `group` makes a frozen dataclass
of such fields, and lists them in its docstring. A group's `panel` is the title above its options in help.
An option is in the panel of the class that declares it first. A job's spec is a group of
groups: `options_of` lists all its options, and `build` makes the spec from values by name.

Every way to give options ends here: `Option.check` for values of Python, TOML and Prefect, `Option.read` for
text of flags and of the environment.
"""

import contextlib
import dataclasses
import difflib
import functools
import os
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAliasType, dataclass_transform, get_args, get_origin

from annotated_types import Ge, Gt, Le, Len, Lt

from rff_dist.errors import InvalidParameterError
from rff_dist.typing import Facts, frozen

_KEY = "rff_dist option"
MOST_LISTED = 30  # names in a message
_WORDS = {"yes": True, "true": True, "no": False, "false": False}


@frozen
class Reader:
    """In a type's annotation: how a text becomes a value where the type alone does not say it.

    `read` raises ValueError for other texts.
    `expected`: such texts in words.
    """

    read: Callable[[str], Any]
    expected: str = ""


@frozen
class Declared:
    """What a field declares of an option besides name, type and default.

    `help`: its text; other options are named in backticks.
    `unit`: placeholder of a value in the command line's help; by default its type tells it.
    `argument`: whether the command line takes it without its flag too, by its position.
    `place`: what the job does with the place that it names: reads, writes or changes it, or writes files
      below it ("fills").
    `suffixes`: that its name may have, if that place is a single file.
    `takes`: its type, if the annotation has objects too, which only Python can give.
    """

    help: str
    unit: str | None = None
    argument: bool = False
    place: Literal["reads", "writes", "changes", "fills"] | None = None
    suffixes: tuple[str, ...] = ()
    takes: Any = None

    @property
    def writes(self) -> bool:
        """Whether it names a place that the job writes to."""
        return self.place in ("writes", "fills")


@frozen
class Option:
    """An option of a job.

    `type`: as annotated, or what the declaration says that it takes.
    `default`: `dataclasses.MISSING` if it must be given.
    `panel`: the title of its group.
    """

    name: str
    type: Any
    default: Any
    declared: Declared
    panel: str | None = None

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING

    @property
    def names(self) -> list[str]:
        """The words that stand for themselves."""
        return [part for part in _parts(self.type) if isinstance(part, str)]

    @property
    def kinds(self) -> set[type]:
        """Its types of values, without their bounds; `list` among them if it takes several."""
        return {part for part in _parts(self.type) if isinstance(part, type)}

    def check(self, value: Any) -> Any:
        """Return a value of Python, TOML or JSON; raises InvalidParameterError if its type does not fit."""
        value = _plain(value)
        meanings = [*(self._readings(value) if isinstance(value, str) else ()), value]
        if list in self.kinds and not isinstance(value, list):
            meanings.append([value])
        return self._first(meanings, value)

    def read(self, *texts: str) -> Any:
        """Return the value that a text of a flag or of the environment stands for.

        Several texts, of a repeated flag, are several values. Raises InvalidParameterError if there is none.
        """
        return self._first(self._meanings(texts), texts[0] if len(texts) == 1 else list(texts))

    def _first(self, meanings: Iterable[Any], given: Any) -> Any:
        """Return the first meaning of what was given that has the option's type."""
        for meaning in meanings:
            with contextlib.suppress(ValueError):  # pydantic's are
                return _adapter(self.type).validate_python(meaning, strict=True)
        raise self.refusal(given)

    def _readings(self, text: str) -> Iterator[Any]:
        """Yield what a text stands for by the type's readers."""
        for reader in _readers(self.type):
            with contextlib.suppress(ValueError):
                yield reader.read(text)

    def _meanings(self, texts: tuple[str, ...]) -> Iterator[Any]:
        """Yield what texts may mean, the likeliest first."""
        if len(texts) == 1:
            [text] = texts
            yield from self._readings(text)
            if text.lower() in _WORDS:
                yield _WORDS[text.lower()]
            yield _number(text)
            yield text
            texts = tuple(part.strip() for part in text.split(","))
        if list in self.kinds:
            yield [_number(text) for text in texts]
            yield list(texts)

    def refusal(self, value: Any) -> InvalidParameterError:
        """Return the error for a value that the option does not take."""
        message = f"`{self.name}` is {value!r}; expected {self.expected}"
        return InvalidParameterError(message + did_you_mean(str(value), self.names))

    @property
    def expected(self) -> str:
        """What it takes, in words."""
        kinds, bounds = self.kinds, _bounds(self.type)
        words = [*self.names, *(part.expected for part in _readers(self.type) if part.expected)]
        if bool in kinds:
            words += ["true or false"]
        if kinds & {int, float}:
            words += [" ".join(["a number" if float in kinds else "a whole number", bounds]).strip()]
        if str in kinds:
            words += ["text"]
        more = ", or several" if list in kinds and len(kinds) > 1 else ""
        return (", ".join(words[:-1]) + " or " if words[1:] else "") + words[-1] + more


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield what a type is made of: words that it names, types, bounds and readers."""
    if isinstance(annotation, TypeAliasType):  # made by a `type` statement
        yield from _parts(annotation.__value__)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from arguments
    elif origin is Annotated:
        yield from _parts(arguments[0])
        yield from arguments[1:]
    elif origin is list:
        yield list
        yield from _parts(arguments[0])
    elif origin in (types.UnionType, typing.Union):
        for argument in arguments:
            yield from _parts(argument)
    elif annotation is not types.NoneType:
        yield annotation


def _plain(value: Any) -> Any:
    """Return paths as text, NumPy's numbers and arrays as Python's, and tuples as lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _readers(annotation: Any) -> list[Reader]:
    return [part for part in _parts(annotation) if isinstance(part, Reader)]


def _bounds(annotation: Any) -> str:
    """Return the bounds of a type's numbers in words."""
    words = {"ge": "of at least", "gt": "above", "le": "up to", "lt": "below"}
    found: dict[str, str] = {}
    for part in _parts(annotation):
        if part is list and found:
            break  # bounds of several are those of one, or nearly
        if not isinstance(part, type):
            found |= {name: f"{words[name]} {getattr(part, name)}" for name in words if hasattr(part, name)}
    return " and ".join(found.values())


def _number(text: str) -> Any:
    """Return a text as a number, a whole one if it is one; other text as it is."""
    with contextlib.suppress(ValueError):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return text
    # Above 2^53, floats skip whole numbers.
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


@functools.cache
def _adapter(annotation: Any) -> Any:
    """Return what checks values of a type."""
    from pydantic import ConfigDict, TypeAdapter  # 0.1 s, which help need not wait for

    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error's message: the nearest of the known names, if one is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_names(names: Iterable[str], known: Iterable[str], *, what: str = "option") -> None:
    """Check that there is an option of each name; raises InvalidParameterError with the nearest name."""
    known = list(known)
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            if not near and len(known) <= MOST_LISTED:
                near = f"; expected one of {', '.join(known)}"
            raise InvalidParameterError(f"there is no {what} `{name}`{near}")


def read_toml(name: str, path: str) -> dict[str, Any]:
    """Return the values of the TOML file that an option names.

    Raises InvalidParameterError if it cannot be read.
    """
    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameterError(f"`{name}` is {path!r}, but: {error}; expected a TOML file") from error


# -- types -----------------------------------------------------------------------------------------


def read_share(text: str) -> float:
    """Read a share of rows such as 10%."""
    if not text.endswith("%"):
        raise ValueError(text)
    return float(text.removesuffix("%")) / 100


type Positive = Annotated[float, Gt(0)]
type NonNegative = Annotated[float, Ge(0)]
type Probability = Annotated[float, Gt(0), Lt(1)]
type Share = Annotated[float, Gt(0), Lt(1), Reader(read_share, "a share such as 10%")]
type Count = Annotated[int, Ge(1)]
type RowNumber = Annotated[int, Ge(0)]
type Seed = Annotated[int, Ge(0), Le(2**64 - 1)]  # see `frequencies.uniforms`
type Positives = Annotated[list[Positive], Len(1)]
type Counts = Annotated[list[Count], Len(1)]
type Names = Annotated[list[str], Len(1)]


# -- declarations ----------------------------------------------------------------------------------


def option(help: str, /, default: Any = dataclasses.MISSING, **members: Any) -> Any:
    """Return a dataclass field; `members`: others of `Declared` than the help."""
    return _field(default, Declared(help, **members))


def optional(help: str, /, **members: Any) -> Any:
    """Return the field of an option that may be left out, and then is None; see `option`."""
    return _field(None, Declared(help, **members))


def argument(help: str, unit: str, /, default: Any = dataclasses.MISSING, **members: Any) -> Any:
    """Return the field of an option that a command takes by its position; see `option`."""
    return _field(default, Declared(help, unit, argument=True, **members))


def flag(help: str, /, **members: Any) -> Any:
    """Return the field of an option that is False unless it is given; see `option`."""
    return _field(False, Declared(help, **members))


def _field(default: Any, told: Declared) -> Any:
    if isinstance(default, list):  # which dataclasses refuse as a default
        return dataclasses.field(default_factory=lambda: list(default), metadata={_KEY: told})
    return dataclasses.field(default=default, metadata={_KEY: told})


def like(group: type, name: str, default: Any = ..., *, more: str = "", **changed: Any) -> Any:
    """Return the field of an option that another group declares, with another default if it is given.

    `more`: help that is added to its own.
    `changed`: other members of `Declared`.
    """
    [field] = [field for field in dataclasses.fields(group) if field.name == name]
    told: Declared = field.metadata[_KEY]
    told = dataclasses.replace(told, help=told.help + more, **changed)
    return _field(_default_of(field) if default is ... else default, told)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, field_specifiers=(option, optional, argument, flag, like)
)
def group[T](cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose docstring lists its options."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    lines = ["", "", "Attributes", "----------"]
    for field in dataclasses.fields(made):  # type: ignore[arg-type]  # it is a dataclass now
        if _KEY not in field.metadata:
            lines.append(f"{field.name} : {field.type}")
            continue
        default = "" if _default_of(field) is dataclasses.MISSING else f", default={_default_of(field)!r}"
        lines += [f"{field.name} : {field.type}{default}", textwrap.indent(field.metadata[_KEY].help, "    ")]
    made.__doc__ = (cls.__doc__ or cls.__name__).rstrip() + "\n".join(lines)
    return made


def declared(name: str, annotation: Any, field: dataclasses.Field[Any], panel: str | None = None) -> Option:
    """Return the option that a field declares."""
    told: Declared = field.metadata[_KEY]
    return Option(name, told.takes or annotation, _default_of(field), told, panel)


def options_of(spec: type, panel: str | None = None) -> Iterator[Option]:
    """Yield all options of a spec, including those of its groups."""
    hints = typing.get_type_hints(spec, include_extras=True)
    panels = {  # the class that declares an option first comes last in the order of resolution
        name: getattr(base, "panel", panel)
        for base in spec.__mro__
        for name in vars(base).get("__annotations__", ())
    }
    for field in dataclasses.fields(spec):
        if _KEY in field.metadata:
            yield declared(field.name, hints[field.name], field, panels[field.name])
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from options_of(hints[field.name], getattr(spec, "panel", panel))


def build[T](spec: type[T], values: Facts) -> T:
    """Make a spec and its groups from values of its options by name; other options keep their defaults.

    Raises InvalidParameterError if there is no option of a name, or a value does not fit.
    """
    options = {option.name: option for option in options_of(spec)}
    check_names(values, options)
    if missing := [f"`{name}`" for name, one in options.items() if one.required and name not in values]:
        raise InvalidParameterError(f"{', '.join(missing)} must be given")
    return _built(spec, {name: options[name].check(value) for name, value in values.items()})


def _built[T](spec: type[T], values: Facts) -> T:
    hints, members = typing.get_type_hints(spec), {}
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]  # specs are dataclasses
        if _KEY in field.metadata:
            if field.name in values:
                members[field.name] = values[field.name]
        elif dataclasses.is_dataclass(hints[field.name]):
            members[field.name] = _built(hints[field.name], values)
    return spec(**members)


def values(spec: Any) -> Iterator[tuple[str, Declared, Any]]:
    """Yield the name of each option of a spec, what it declares, and its value."""
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if _KEY in field.metadata:
            yield field.name, field.metadata[_KEY], value
        elif dataclasses.is_dataclass(value):
            yield from values(value)


def values_of(source: Any, *names: str) -> dict[str, Any]:
    """Return attributes by name, such as options of a group that the library calls the same."""
    return {name: getattr(source, name) for name in names}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()
