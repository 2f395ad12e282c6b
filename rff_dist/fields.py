"""Options of jobs: declared once, then read, checked and shown in one way everywhere.

An option is a field of a frozen dataclass: `option`, `flag` and others attach its help
and a placeholder for its value, and `group` makes the dataclass. The spec of a job is a
group that has all options of the job, most of them in further groups. `options_of`
lists all options of a spec, from which flags, TOML files, variables of the environment
and Prefect's forms are made, and `build` makes the spec from values by name. Every way
ends in the same check: `Option.check` for values of Python, TOML and Prefect,
`Option.read` for texts of flags and of the environment.
"""

import contextlib
import dataclasses
import functools
import os
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAliasType,
    dataclass_transform,
    get_args,
    get_origin,
)

from annotated_types import Ge, Gt, Le, Len, Lt

from rff_dist.errors import InvalidParameterError
from rff_dist.text import nearest
from rff_dist.typing import Facts, frozen

#: where a dataclass field keeps its `OptionDeclaration`
_METADATA = "rff_dist option"
MOST_LISTED = 30  # names in a message
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
_BOUNDS = {"ge": "of at least", "gt": "above", "le": "up to", "lt": "below"}


@frozen
class Reader:
    """Part of a type's annotation: reads texts such as 10%, which pydantic refuses."""

    #: raises ValueError for texts of other forms
    read: Callable[[str], Any]
    #: the form in words, for messages
    expected: str = ""


@frozen
class OptionDeclaration:
    """All that describes an option besides its name, type and default."""

    #: names other options in backticks
    help: str
    #: stands for a value in the command line's help
    placeholder: str | None = None
    #: whether the command line also takes it by its position, without its flag
    is_argument: bool = False
    #: if the option names a place, what the job does there: "writes" makes it,
    #: "fills" makes files in it, "changes" edits what is there
    access: Literal["reads", "writes", "changes", "fills"] | None = None
    #: file name suffixes, if the place may be a single file
    suffixes: tuple[str, ...] = ()
    #: the option's type, if the annotation also allows objects that only Python can
    #: pass
    takes: Any = None

    @property
    def writes(self) -> bool:
        """Whether the place is a new output; data that a job changes are its input."""
        return self.access in ("writes", "fills")


@frozen
class Option:
    """An option of a job."""

    name: str
    type: Any
    #: `dataclasses.MISSING` if a value is required
    default: Any
    declared: OptionDeclaration
    #: the title above it in help, from the group that declares it first
    panel: str | None = None

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def literals(self) -> list[str]:
        """The texts that a `Literal` allows."""
        return [part for part in _parts(self.type) if isinstance(part, str)]

    @property
    def kinds(self) -> set[type]:
        """Its types without bounds, with `list` if it takes several values."""
        return {part for part in _parts(self.type) if isinstance(part, type)}

    def check(self, value: Any) -> Any:
        """Return a value of Python, TOML or JSON, converted to the option's type.

        Raises InvalidParameterError if it does not fit.
        """
        value = _plain(value)
        candidates = [value]
        if isinstance(value, str):
            candidates = [*self._read_specially(value), value]
        if list in self.kinds and not isinstance(value, list):
            candidates.append([value])
        return self._first_valid(candidates, value)

    def read(self, *texts: str) -> Any:
        """Return the value of the texts of a flag or of an environment variable.

        A repeated flag has several texts. Raises InvalidParameterError if there is no
        such value.
        """
        shown: Any = texts[0] if len(texts) == 1 else list(texts)
        return self._first_valid(self._readings(texts), shown)

    def _first_valid(self, candidates: Iterable[Any], shown: Any) -> Any:
        for candidate in candidates:
            if type(candidate) is self.type:
                return candidate  # without pydantic, which takes 0.1 s to import
            with contextlib.suppress(ValueError):  # the base of pydantic's errors
                return _adapter(self.type).validate_python(candidate, strict=True)
        raise self.refusal(shown)

    def _readings(self, texts: tuple[str, ...]) -> Iterator[Any]:
        """Yield the possible values of texts, the likeliest first."""
        if len(texts) == 1:
            [text] = texts
            yield from self._read_specially(text)
            if text.lower() in _BOOLEANS:
                yield _BOOLEANS[text.lower()]
            yield _number(text)
            yield text
            texts = tuple(part.strip() for part in text.split(","))
        if list in self.kinds:
            yield [_number(text) for text in texts]
            yield list(texts)

    def _read_specially(self, text: str) -> Iterator[Any]:
        """Yield the values that readers in the type's annotation read in a text."""
        for reader in _readers(self.type):
            with contextlib.suppress(ValueError):
                yield reader.read(text)

    def refusal(self, value: Any) -> InvalidParameterError:
        """Return the error for a value that the option does not take."""
        message = f"`{self.name}` is {value!r}; expected {self.expected}"
        return InvalidParameterError(message + did_you_mean(str(value), self.literals))

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        kinds = self.kinds
        words = self.literals
        words += [reader.expected for reader in _readers(self.type) if reader.expected]
        if bool in kinds:
            words.append("true or false")
        if kinds & {int, float}:
            number = "a number" if float in kinds else "a whole number"
            words.append(f"{number} {_bounds(self.type)}".strip())
        if str in kinds:
            words.append("text")

        *others, last = words
        expected = f"{', '.join(others)} or {last}" if others else last
        if list in kinds and len(kinds) > 1:
            expected += ", or several"
        return expected


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield the texts, types, bounds and readers in an annotation."""
    if isinstance(annotation, TypeAliasType):  # made by a `type` statement
        yield from _parts(annotation.__value__)
        return
    origin = get_origin(annotation)
    arguments = get_args(annotation)
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
    """Return paths, NumPy's values and tuples as texts, numbers and lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _readers(annotation: Any) -> list[Reader]:
    return [part for part in _parts(annotation) if isinstance(part, Reader)]


def _bounds(annotation: Any) -> str:
    """Return the bounds of a type's numbers in words."""
    words: dict[str, str] = {}
    for part in _parts(annotation):
        if part is list and words:
            # Next come the bounds of a list's elements. A single value's bounds are
            # nearly the same, and enough for a message.
            break
        for name, word in _BOUNDS.items():
            if hasattr(part, name) and not isinstance(part, type):
                words[name] = f"{word} {getattr(part, name)}"
    return " and ".join(words.values())


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
    """Return pydantic's validator of a type."""
    from pydantic import ConfigDict, TypeAdapter  # 0.1 s, which help need not wait for

    return TypeAdapter(annotation, config=ConfigDict(allow_inf_nan=False))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the nearest known name, if any."""
    near = nearest(name, known)
    return f"; did you mean {near!r}?" if near else ""


def check_names(
    names: Iterable[str], known: Iterable[str], *, what: str = "option"
) -> None:
    """Raise InvalidParameterError, with the nearest name, if a name is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            if not hint and 0 < len(known) <= MOST_LISTED:
                hint = f"; expected one of {', '.join(known)}"
            raise InvalidParameterError(f"there is no {what} `{name}`{hint}")


def read_toml(name: str, path: str) -> dict[str, Any]:
    """Return the values of the TOML file that the option `name` names.

    Raises InvalidParameterError if it cannot be read.
    """
    import tomllib

    try:
        return tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameterError(
            f"`{name}` is {path!r}, but: {error}; expected a TOML file"
        ) from error


# -- types


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
type WholeNumber = Annotated[int, Ge(0)]
type Seed = Annotated[int, Ge(0), Le(2**64 - 1)]  # see `frequencies.uniforms`
type Positives = Annotated[list[Positive], Len(1)]
type Counts = Annotated[list[Count], Len(1)]
type Names = Annotated[list[str], Len(1)]


# -- declarations: each returns a dataclass field, for the body of a group


def option(help: str, /, default: Any = dataclasses.MISSING, **members: Any) -> Any:
    """Declare an option; `members` are those of `OptionDeclaration`."""
    return _field(default, OptionDeclaration(help, **members))


def optional(help: str, /, **members: Any) -> Any:
    """Declare an option that is None by default."""
    return option(help, None, **members)


def argument(
    help: str, placeholder: str, /, default: Any = dataclasses.MISSING, **members: Any
) -> Any:
    """Declare an option that a command takes by its position."""
    return option(help, default, placeholder=placeholder, is_argument=True, **members)


def flag(help: str, /, **members: Any) -> Any:
    """Declare an option that is False by default."""
    return option(help, False, **members)


def like(
    group: type, name: str, default: Any = ..., *, more: str = "", **changed: Any
) -> Any:
    """Declare an option as another group does, with other members.

    Its help is followed by `more`. By default (`...`) its default is the same too.
    """
    [field] = [field for field in dataclasses.fields(group) if field.name == name]
    declaration = _declaration_of(field)
    changed["help"] = declaration.help + more
    if default is ...:
        default = _default_of(field)
    return _field(default, dataclasses.replace(declaration, **changed))


def _field(default: Any, declaration: OptionDeclaration) -> Any:
    metadata = {_METADATA: declaration}
    if isinstance(default, list):  # which dataclasses refuse as a default
        return dataclasses.field(
            default_factory=lambda: list(default), metadata=metadata
        )
    return dataclasses.field(default=default, metadata=metadata)


def _declaration_of(field: dataclasses.Field[Any]) -> Any:
    """Return the declaration of an option; None for a field that is no option."""
    return field.metadata.get(_METADATA)


def _default_of(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


# -- groups and specs


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    field_specifiers=(option, optional, argument, flag, like),
)
def group[T](cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose docstring lists its options."""
    grouped = dataclass(frozen=True, kw_only=True)(cls)
    lines = ["", "", "Attributes", "----------"]
    for field in dataclasses.fields(grouped):  # type: ignore[arg-type]  # it is a dataclass now
        line = f"{field.name} : {field.type}"
        declaration = _declaration_of(field)
        if declaration is None:
            lines.append(line)
            continue
        if _default_of(field) is not dataclasses.MISSING:
            line += f", default={_default_of(field)!r}"
        lines += [line, textwrap.indent(declaration.help, "    ")]
    grouped.__doc__ = (cls.__doc__ or cls.__name__).rstrip() + "\n".join(lines)
    return grouped


def option_of(
    name: str, annotation: Any, field: dataclasses.Field[Any], panel: str | None = None
) -> Option:
    """Return the option that a field declares."""
    declaration = _declaration_of(field)
    kind = declaration.takes or annotation
    return Option(name, kind, _default_of(field), declaration, panel)


def options_of(spec: type, panel: str | None = None) -> Iterator[Option]:
    """Yield all options of a spec, including those of its groups."""
    hints = typing.get_type_hints(spec, include_extras=True)
    # Later entries overwrite, and `__mro__` ends with the base classes: an option that
    # several classes declare gets the panel of the most basic one.
    panels = {
        name: getattr(base, "panel", panel)
        for base in spec.__mro__
        for name in vars(base).get("__annotations__", ())
    }
    for field in dataclasses.fields(spec):
        if _declaration_of(field) is not None:
            yield option_of(field.name, hints[field.name], field, panels[field.name])
        elif dataclasses.is_dataclass(hints[field.name]):
            yield from options_of(hints[field.name], getattr(spec, "panel", panel))


def build[T](spec: type[T], values: Facts) -> T:
    """Make a spec and its groups from values by name; others keep their defaults.

    Raises InvalidParameterError if there is no option of a name, or a value does not
    fit.
    """
    options = {option.name: option for option in options_of(spec)}
    check_names(values, options)
    required = [name for name, option in options.items() if option.is_required]
    if missing_options := [f"`{name}`" for name in required if name not in values]:
        raise InvalidParameterError(f"{', '.join(missing_options)} must be given")
    checked = {name: options[name].check(value) for name, value in values.items()}
    return fill(spec, checked)


def fill[T](spec: type[T], values: Facts) -> T:
    """Make a spec and its groups from values that `Option.check` returned."""
    hints = typing.get_type_hints(spec)
    members = {}
    for field in dataclasses.fields(spec):  # type: ignore[arg-type]  # specs are dataclasses
        name = field.name
        if _declaration_of(field) is None and dataclasses.is_dataclass(hints[name]):
            members[name] = fill(hints[name], values)
        elif name in values:
            members[name] = values[name]
    return spec(**members)


def values(spec: Any) -> Iterator[tuple[str, OptionDeclaration, Any]]:
    """Yield the name, the declaration and the value of each option of a spec."""
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        declaration = _declaration_of(field)
        if declaration is not None:
            yield field.name, declaration, value
        elif dataclasses.is_dataclass(value):
            yield from values(value)


def values_of(source: Any, *names: str) -> dict[str, Any]:
    """Return attributes by name, for options with the same names in two objects."""
    return {name: getattr(source, name) for name in names}
