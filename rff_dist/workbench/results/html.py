"""A document as one HTML file, which needs no other file and no network.

In goes a `Document`, out comes HTML with its pictures inside. If the pictures were
separate files, a page that is sent by mail would have none.
"""

from collections.abc import Iterator
from html import escape
from pathlib import Path

from rff_dist.storage import documents
from rff_dist.typing import PathLike
from rff_dist.workbench.results import document, figures, words


def write_page(page: document.Document, path: PathLike) -> Path:
    """Write a document to an HTML file, completely or not at all.

    Raises StorageError if it cannot be written.
    """
    return documents.write_marked(Path(path), to_html(page).encode(), what="page")


def to_html(page: document.Document) -> str:
    """Return a document as HTML."""
    sections = [part.title for part in page.parts if isinstance(part, document.Heading)]
    links = "".join(
        f'<li><a href="#s{i}">{escape(name)}</a></li>'
        for i, name in enumerate(sections, 1)
    )
    chips = "".join(f"<li>{escape(chip)}</li>" for chip in page.chips)
    style = Path(__file__).with_name("page.css").read_text("utf-8")
    chips = f'<ul class="chips">{chips}</ul>' if chips else ""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="generator" content="{documents.MADE_BY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(page.title)}</h1>"
        f'<p class="lead">{escape(page.lead)}</p>{chips}</header>'
        f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
        f"<main>{''.join(_parts(page))}</main></body></html>"
    )


def _parts(page: document.Document) -> Iterator[str]:
    """Yield the parts as HTML. A table without a caption gets its section's title as
    its label.
    """
    number = 0
    section = page.title
    end = ""  # what closes the present section: an end tag if it is folded
    for part in page.parts:
        match part:
            case document.Heading(title, folded):
                number += 1
                section = title
                heading = f'<h2 id="s{number}">{escape(title)}</h2>'
                yield end  # of the section before
                end = ""
                if folded:
                    heading = f"<details><summary>{heading}</summary>"
                    end = "</details>"
                yield heading
            case document.Paragraph(text, is_note):
                yield f"<p{' class="note"' if is_note else ''}>{escape(text)}</p>"
            case document.Picture(figure, alt, caption, shrinks):
                size = ' class="shrinks"' if shrinks else ""
                label = f'<svg{size} role="img" aria-label="{escape(alt)}"'
                picture = figures.svg_of(figure).replace("<svg", label, 1)
                below = f"<figcaption>{escape(caption)}</figcaption>"
                scrolling = _scrolling(picture, f"Picture: {caption}")
                yield f"<figure>{scrolling}{below}</figure>"
            case words.Table():
                yield _table(part, part.caption or section)
            case _:  # facts, the rest of `document.Part`
                yield _table(document.facts_table(part), section)
    yield end


def _table(table: words.Table, label: str) -> str:
    caption = escape(table.caption)
    style = ' class="facts"' if table.is_text else ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    body = ""
    for first, *rest in table.cells():
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        body += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    return _scrolling(
        f"<table{style}><caption>{caption}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        label,
    )


def _scrolling(content: str, label: str) -> str:
    """Put content that may be wider than a phone in a frame that scrolls.

    `tabindex` lets the keyboard scroll it too.
    """
    region = f'role="region" aria-label="{escape(label)}"'
    return f'<div class="wide" tabindex="0" {region}>{content}</div>'
