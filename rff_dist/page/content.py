"""The content of a page, part by part, for any output format."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rff_dist.checks import is_number
from rff_dist.text import number


@dataclass(frozen=True, slots=True)
class Heading:
    """The beginning of a section."""

    title: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences; notes are less important."""

    text: str
    is_note: bool = False


@dataclass(frozen=True, slots=True)
class PageTable:
    """Rows whose first cell names them; `is_facts` says that the other cells are words, not figures."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_facts: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG; `alt` describes it to readers who cannot see it."""

    png: bytes
    alt: str
    caption: str


type Element = Heading | Paragraph | PageTable | Picture


@dataclass(frozen=True, slots=True)
class Page:
    """A page that grows section by section.

    `title`: of the whole page.
    `lead`: one sentence below the title.
    """

    title: str
    lead: str
    parts: list[Element] = field(default_factory=list)

    def section(self, title: str, text: str = "") -> None:
        """Begin a section."""
        self.parts.append(Heading(title))
        self.say(text)

    def say(self, text: str, *, note: bool = False) -> None:
        """Add a paragraph, unless it is empty."""
        if text:
            self.parts.append(Paragraph(text, note))

    def table(self, caption: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a table whose first column names the rows."""
        cells = [[str(first), *map(words_of, rest)] for first, *rest in rows]
        self.parts.append(PageTable(caption, header, cells))

    def facts(self, caption: str, found: Mapping[str, Any]) -> None:
        """Add a table of names and values."""
        cells = [[name, words_of(value)] for name, value in found.items()]
        self.parts.append(PageTable(caption, ("what", "value"), cells, is_facts=True))

    def picture(self, png: bytes, alt: str, caption: str) -> None:
        """Add a picture, with a description in words."""
        self.parts.append(Picture(png, alt, caption))


def words_of(value: Any) -> str:
    """Return a value as tables show it: numbers as `number` writes them."""
    return number(value) if value is None or is_number(value) else str(value)


def png_of(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
