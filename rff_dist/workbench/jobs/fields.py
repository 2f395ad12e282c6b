"""How options are declared, and how groups of options become flat names and back.

`option` returns a dataclass field that also holds what the command line and Prefect's form show. `group`
makes a frozen dataclass of such fields, and lists them in its docstring. A group's `panel` is the title above
its options in help; with `last` the options of a base class come after those of derived classes. A job's spec
is a group of groups: `options_of` lists all its options, and `build` makes the spec from values by name.
"""

import dataclasses
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, dataclass_transform

type Face = Literal["both", "command", "form"]
_KEY = "rff_dist option"


@dataclass(frozen=True, slots=True)
class Shown:
    """What the faces (the command line and Prefect's form) show of an option beside name, type and default.

    `help`: its text; other options are named in backticks, as in Python.
    `flags`: on the command line; by default the name with dashes.
    `given`: the value that each flag sets, of flags that take no value.
    `unit`: placeholder of the value in the command line's help; by default N or NAME, by its type.
    `argument`: whether it is an argument of the command line, without a flag.
    `writes`: whether it names a place that the job writes to.
    `alias`: its name in the library's messages.
    `face`: {"both", "command", "form"}. Where it can be given.
    """

    help: str
    flags: tuple[str, ...] = ()
    given: tuple[Any, ...] = ()
    unit: str | None = None
    argument: bool = False
    writes: bool = False
    alias: str | None = None
    face: Face = "both"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a job.

    `type`: as annotated.
    `default`: `dataclasses.MISSING` if it must be given.
    `panel`: the title of its group.
    """

    name: str
    type: Any
    default: Any
    shown: Shown
    panel: str | None

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING


def option(
    help: str,
    /,
    default: Any = dataclasses.MISSING,
    *,
    flag: str | None = None,
    flags: tuple[str, ...] = (),
    given: tuple[Any, ...] = (),
    unit: str | None = None,
    argument: bool = False,
    writes: bool = False,
    alias: str | None = None,
    face: Face = "both",
) -> Any:
    """Return a dataclass field, with the members of `Shown`; `flag` is its one flag."""
    flags = flags if flag is None else (flag,)
    metadata = {_KEY: Shown(help, flags, given, unit, argument, writes, alias, face)}
    if isinstance(default, list):  # which dataclasses refuse as a default
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
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


def options_of(spec: type, panel: str | None = None) -> Iterator[Option]:
    """Yield all options of a spec, including those of its groups."""
    hints = typing.get_type_hints(spec, include_extras=True)
    panel = getattr(spec, "panel", panel)
    # Dataclasses put inherited fields first; those of a base with `last` are to come after the others.
    late = {name for base in spec.__mro__ if vars(base).get("last") for name in base.__annotations__}
    fields = sorted(dataclasses.fields(spec), key=lambda field: field.name in late)
    for field in fields:
        if _KEY in field.metadata:
            yield Option(field.name, hints[field.name], _default_of(field), field.metadata[_KEY], panel)
        else:
            yield from options_of(hints[field.name], panel)


def build[T](spec: type[T], values: Mapping[str, Any]) -> T:
    """Make a spec and its groups from values of its options by name; other options keep their defaults."""
    hints = typing.get_type_hints(spec)
    members = {
        field.name: values[field.name] if _KEY in field.metadata else build(hints[field.name], values)
        for field in dataclasses.fields(spec)  # type: ignore[arg-type]  # specs are dataclasses
        if _KEY not in field.metadata or field.name in values
    }
    return spec(**members)


def values_of(source: Any, *names: str) -> dict[str, Any]:
    """Return attributes by name, such as options of a group that the library calls the same."""
    return {name: getattr(source, name) for name in names}


def _default_of(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()
