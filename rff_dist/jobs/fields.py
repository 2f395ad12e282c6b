"""How an option is declared, and how groups of options become flat names and back.

`option` is a dataclass field that also says what the command line and Prefect's form show. `group` makes a
frozen dataclass of such fields and writes its docstring; its `panel` is the title above them, and its `last`
says whether those of groups that are derived from it come first. A job's spec is a group of groups:
`options_of` lists all its options by name, and `build` makes the spec from values by name.
"""

from __future__ import annotations

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
    """What faces show of an option beside its name, type and default.

    `help`: what it is, in the words of Python: names of other options stand in backticks.
    `flags`: on the command line, where the name with dashes would not do.
    `given`: of options without a value: what each of the flags sets.
    `unit`: what stands for the value in the command line's help; N or NAME by its type if left out.
    `argument`: whether it is an argument of the command line, without a flag.
    `writes`: whether it names a place that the job writes to.
    `alias`: what the library's messages call it.
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
    `default`: `dataclasses.MISSING` where it must be given.
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


def option(help: str, /, default: Any = dataclasses.MISSING, *, flag: str | None = None, **shown: Any) -> Any:
    """Return a dataclass field; `shown` are members of `Shown`, and `flag` the only one of its flags."""
    flags = shown.pop("flags", () if flag is None else (flag,))
    metadata = {_KEY: Shown(help, flags, **shown)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=lambda: list(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
def group[T](cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose docstring lists its options."""
    made = dataclass(frozen=True, kw_only=True)(cls)
    lines = ["", "", "Attributes", "----------"]
    for one in dataclasses.fields(made):  # type: ignore[arg-type]  # it is a dataclass now
        if _KEY not in one.metadata:
            lines.append(f"{one.name} : {one.type}")
            continue
        default = "" if _default_of(one) is dataclasses.MISSING else f", default={_default_of(one)!r}"
        lines += [f"{one.name} : {one.type}{default}", textwrap.indent(one.metadata[_KEY].help, "    ")]
    made.__doc__ = (cls.__doc__ or cls.__name__).rstrip() + "\n".join(lines)
    return made


def options_of(spec: type, panel: str | None = None) -> Iterator[Option]:
    """Yield all options of a spec, those of its groups included."""
    hints = typing.get_type_hints(spec, include_extras=True)
    panel = getattr(spec, "panel", panel)
    # inherited fields come first otherwise
    late = {name for base in spec.__mro__ if vars(base).get("last") for name in base.__annotations__}
    fields = sorted(dataclasses.fields(spec), key=lambda one: one.name in late)
    for one in fields:
        if _KEY in one.metadata:
            yield Option(one.name, hints[one.name], _default_of(one), one.metadata[_KEY], panel)
        else:
            yield from options_of(hints[one.name], panel)


def build[T](spec: type[T], values: Mapping[str, Any]) -> T:
    """Make a spec, and its groups, from the values of its options by name; others keep their defaults."""
    hints = typing.get_type_hints(spec)
    members = {
        one.name: values[one.name] if _KEY in one.metadata else build(hints[one.name], values)
        for one in dataclasses.fields(spec)  # type: ignore[arg-type]  # specs are dataclasses
        if _KEY not in one.metadata or one.name in values
    }
    return spec(**members)


def values_of(options: Any, *names: str) -> dict[str, Any]:
    """Return options of a group by their names, where the library calls them the same."""
    return {name: getattr(options, name) for name in names}


def _default_of(one: dataclasses.Field[Any]) -> Any:
    factory = one.default_factory
    return one.default if factory is dataclasses.MISSING else factory()
