"""A document as one HTML file, which needs no other file and no network."""

import base64
import io
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from rff_dist.storage import documents
from rff_dist.typing import PathLike
from rff_dist.workbench.results import document, words

# On narrow screens tables and most pictures scroll by themselves: names broke after each letter there, and
# pictures that shrink with the page were too small to read.
STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --muted: #595959; --paper: #fff; --line: #ddd;
  --accent: #0b6e99; --link: #075170; --chip: #eef4f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --muted: #a8a8a8; --paper: #16181a;
  --line: #3a3f44; --accent: #58b4d9; --link: #7cc4e2; --chip: #23292e; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 54rem; padding: 1rem; }
.lead { font-size: 1.2rem; line-height: 1.45; }
.chips { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .4rem; }
.chips li { background: var(--chip); border-radius: 1rem; padding: .1rem .8rem; font-size: .9rem;
  overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 2px solid var(--accent); padding-bottom: .2rem; }
summary { cursor: pointer; } summary h2 { display: inline-block; margin: 1rem 0 .4rem; }
p, li { max-width: 44rem; } .note { color: var(--muted); }
nav ul { columns: 14rem; padding-left: 1.2rem; } a { color: var(--link); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; min-width: min(100%, 24rem); }
caption { text-align: left; font-weight: 600; padding-bottom: .3rem; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; vertical-align: top; }
th:first-child { text-align: left; overflow-wrap: anywhere; min-width: 10rem; max-width: 24rem; }
.facts th, .facts td { text-align: left; overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { color: var(--muted); }
img { max-width: 100%; height: auto; background: #fff; border-radius: .3rem; }
@media (max-width: 40rem) { figure img:not(.shrinks) { max-width: none; width: 42rem; } }
@media print { body { max-width: none; font-size: 11pt; } nav { display: none; }
  details::details-content { content-visibility: visible; block-size: auto; }
  figure, table { break-inside: avoid; } h2, h2 + p, caption { break-after: avoid; } }
"""


def write_page(page: document.Document, path: PathLike) -> Path:
    """Write a document to an HTML file, completely or not at all.

    Raises StorageError if it cannot be written.
    """
    return documents.write_file(Path(path), to_html(page).encode(), what="page")


def to_html(page: document.Document) -> str:
    """Return a document as HTML."""
    sections = [part.title for part in page.parts if isinstance(part, document.Heading)]
    links = "".join(f'<li><a href="#s{i}">{escape(name)}</a></li>' for i, name in enumerate(sections, 1))
    chips = "".join(f"<li>{escape(chip)}</li>" for chip in page.chips)
    chips = f'<ul class="chips">{chips}</ul>' if chips else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>"
        f'<header><h1>{escape(page.title)}</h1><p class="lead">{escape(page.lead)}</p>{chips}</header>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
        f"<main>{''.join(_parts(page))}</main></body></html>"
    )


def _parts(page: document.Document) -> Iterator[str]:
    number, section, end = 0, page.title, ""
    for part in page.parts:
        match part:
            case document.Heading(section, folded):
                number += 1
                heading = f'<h2 id="s{number}">{escape(section)}</h2>'
                yield end + (f"<details><summary>{heading}</summary>" if folded else heading)
                end = "</details>" if folded else ""
            case document.Paragraph(text, is_note):
                yield f"<p{' class="note"' if is_note else ''}>{escape(text)}</p>"
            case document.Picture(png, alt, caption, shrinks):
                data = base64.b64encode(png).decode()
                size = ' class="shrinks"' if shrinks else ""
                picture = f'<img{size} src="data:image/png;base64,{data}" alt="{escape(alt)}">'
                below = f"<figcaption>{escape(caption)}</figcaption>"
                yield f"<figure>{_scrolling(picture, f'Picture: {caption}')}{below}</figure>"
            case words.Table():
                yield _table(part, part.caption or section)
            case _:
                yield _table(document.facts_table(part), section)
    yield end


def _table(table: words.Table, label: str) -> str:
    caption = escape(table.caption)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = ""
    for first, *rest in table.cells():
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    return _scrolling(
        f"<table{' class="facts"' if table.is_facts else ''}><caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        label,
    )


def _scrolling(content: str, label: str) -> str:
    """Put content that may be wider than a phone in a frame that scrolls, by the keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def png_of(figure: Any) -> bytes:
    """Return a figure as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
