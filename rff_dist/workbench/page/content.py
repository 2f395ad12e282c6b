"""The content of a page, part by part; as one HTML file, and as Markdown."""

import base64
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rff_dist.storage import documents
from rff_dist.typing import PathLike
from rff_dist.workbench.results import words


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
class Picture:
    """A PNG; `alt` describes it to readers who cannot see it."""

    png: bytes
    alt: str
    caption: str


type Element = Heading | Paragraph | words.Table | Picture


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
        self.parts.append(words.Table(caption, header, rows))

    def facts(self, caption: str, facts: Mapping[str, Any]) -> None:
        """Add a table of names and values; values of None are left out."""
        rows = [(name, value) for name, value in facts.items() if value is not None]
        self.parts.append(words.Table(caption, ("what", "value"), rows, is_facts=True))

    def picture(self, png: bytes, alt: str, caption: str) -> None:
        """Add a picture, with a description in words."""
        self.parts.append(Picture(png, alt, caption))


def png_of(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()


# -- A page as one HTML file that needs no other file and no network -------------------------------


# On narrow screens tables and pictures scroll by themselves: names broke after each letter there, and
# pictures that shrink with the page were too small to read.
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.55 system-ui, sans-serif; color: #1b1b1b; background: #fff; margin: 0 auto;
  max-width: 54rem; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 2px solid #0b6e99; padding-bottom: .2rem; }
p, li { max-width: 44rem; } .note { color: #595959; }
nav ul { columns: 14rem; padding-left: 1.2rem; } a { color: #075170; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; min-width: min(100%, 24rem); }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd;
  font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child { text-align: left; overflow-wrap: anywhere; min-width: 10rem; max-width: 24rem; }
.facts th, .facts td { text-align: left; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; } figcaption { color: #595959; }
@media (max-width: 40rem) { figure img { max-width: none; width: 42rem; } }
@media print { body { max-width: none; font-size: 11pt; } nav { display: none; }
  figure, table { break-inside: avoid; } h2, h2 + p, caption { break-after: avoid; } }
"""


def write_page(page: Page, path: PathLike) -> Path:
    """Write a page to an HTML file, completely or not at all.

    Raises StorageError if it cannot be written.
    """
    return documents.write_whole(
        Path(path), lambda place: place.write_text(to_html(page), "utf-8"), what="page"
    )


def to_html(page: Page) -> str:
    """Return a page as HTML."""
    sections = [part.title for part in page.parts if isinstance(part, Heading)]
    links = "".join(f'<li><a href="#s{i}">{escape(name)}</a></li>' for i, name in enumerate(sections, 1))
    numbers = itertools.count(1)
    parts = [_html(part, numbers) for part in page.parts]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{escape(page.title)}</h1><p>{escape(page.lead)}</p></header>"
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
        f"<main>{''.join(parts)}</main></body></html>"
    )


def _html(part: Element, numbers: Iterator[int]) -> str:
    match part:
        case Heading(title):
            return f'<h2 id="s{next(numbers)}">{escape(title)}</h2>'
        case Paragraph(text, is_note):
            return f"<p{' class="note"' if is_note else ''}>{escape(text)}</p>"
        case Picture(png, alt, caption):
            data = base64.b64encode(png).decode()
            picture = f'<img src="data:image/png;base64,{data}" alt="{escape(alt)}">'
            below = f"<figcaption>{escape(caption)}</figcaption>"
            return f"<figure>{_scrolling(picture, f'Picture: {caption}')}{below}</figure>"
        case words.Table():
            return _table(part)


def _table(table: words.Table) -> str:
    caption = escape(table.caption)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = ""
    for first, *rest in table.cells():
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    return _scrolling(
        f"<table{' class="facts"' if table.is_facts else ''}><caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        table.caption,
    )


def _scrolling(content: str, label: str) -> str:
    """Put content that may be wider than a phone in a frame that scrolls, by the keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


# -- A page as Markdown with its pictures inside, as Prefect shows artifacts -----------------------
#
# An artifact with a link to the HTML file would be of no use: browsers open no files from pages of a server.


def to_markdown(page: Page) -> str:
    """Return a page as Markdown, with tables in GitHub's syntax."""
    return "\n\n".join([f"# {_plain(page.title)}", _plain(page.lead), *map(_markdown, page.parts)]) + "\n"


def _markdown(part: Element) -> str:
    match part:
        case Heading(title):
            return f"## {_plain(title)}"
        case Paragraph(text):
            return _plain(text)
        case Picture(png, alt, caption):
            data = base64.b64encode(png).decode()
            return f"![{_plain(alt)}](data:image/png;base64,{data})\n\n{_plain(caption)}"
        case words.Table(caption, header):
            side = ":--" if part.is_facts else "--:"
            lines = [header, [":--", *[side] * (len(header) - 1)]]
            lines += [[*map(_cell, row)] for row in part.cells()]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            return f"**{_plain(caption)}**\n\n{table}" if caption else table


def _cell(text: str) -> str:
    return f"**{_plain(text)}**" if isinstance(text, words.Alert) else _plain(text)


def _plain(text: str) -> str:
    """Escape a text, so that nothing in it is taken for Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text.replace("&", "&amp;"))
