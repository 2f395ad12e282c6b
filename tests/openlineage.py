"""A server for OpenLineage events over loopback, and the schemas that its client was
generated from.
"""

import enum
import json
import os
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import attr
from openlineage.client import event_v2, facet_v2

from tests.listening import listen


@contextmanager
def sent_to(url: str) -> Iterator[None]:
    """Send events to a URL while the context lasts; the client copies it to variables
    of other names.
    """
    with mock.patch.dict(os.environ):
        for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
            del os.environ[name]
        os.environ["OPENLINEAGE_URL"] = url
        yield


@contextmanager
def receive() -> Iterator[list[dict[str, Any]]]:
    """Get all events on a free port while the context lasts, and check them; yield what
    they are added to.
    """
    events: list[dict[str, Any]] = []

    def take(path: str, _: Any, body: bytes) -> None:
        assert path == "/api/v1/lineage"
        events.append(json.loads(body))

    with listen(take) as url, sent_to(url):
        yield events
    for event in events:
        check(event)


def check(event: dict[str, Any]) -> None:
    """Check an event and its facets against the published schemas, as the client's
    classes have them.
    """
    _check(event, event_v2.RunEvent, "event")


def _facets() -> dict[str, type]:
    modules = [
        value
        for value in vars(facet_v2).values()
        if isinstance(value, types.ModuleType)
    ]
    kinds = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
    }
    return {
        kind._get_schema(): kind
        for kind in kinds
        if issubclass(kind, facet_v2.BaseFacet)
    }


FACETS = _facets()


def _check(value: Any, kind: Any, where: str) -> None:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        [kind] = [one for one in arguments if one is not types.NoneType]
        if value is not None:
            _check(value, kind, where)
    elif origin is list:
        assert isinstance(value, list), where
        for i, one in enumerate(value):
            _check(one, arguments[0], f"{where}[{i}]")
    elif origin is dict:
        assert isinstance(value, dict), where
        for name, one in value.items():
            _check(one, arguments[1], f"{where}.{name}")
    elif attr.has(kind):
        _check_members(value, kind, where)
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        assert value in {one.value for one in kind}, where
    elif kind is float:
        assert isinstance(value, int | float), where
    elif kind is not Any:
        assert type(value) is kind, (where, value, kind)


def _check_members(value: Any, kind: Any, where: str) -> None:
    assert isinstance(value, dict), where
    if issubclass(kind, facet_v2.BaseFacet):
        assert value["_schemaURL"] in FACETS, where
        assert issubclass(FACETS[value["_schemaURL"]], kind), where
        kind = FACETS[value["_schemaURL"]]
    hints = typing.get_type_hints(kind)
    members = {one.name: one for one in attr.fields(kind)}
    assert value.keys() <= members.keys(), (where, value.keys() - members.keys())
    missing = {
        name for name, one in members.items() if one.default is attr.NOTHING
    } - value.keys()
    assert not missing, (where, missing)
    for name, one in value.items():
        _check(one, hints.get(name, str), f"{where}.{name}")
