"""A page as Markdown with its pictures inside, as Prefect shows artifacts.

An artifact with a link to the HTML file would be of no use: browsers open no files from pages of a server.
"""

from __future__ import annotations

import base64
import re

from rff_dist.page.content import Element, Heading, Page, PageTable, Paragraph, Picture


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
        case PageTable(caption, header, rows, is_facts):
            side = ":--" if is_facts else "--:"
            lines = [header, [":--", *[side] * (len(header) - 1)], *([*map(_plain, row)] for row in rows)]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            return f"**{_plain(caption)}**\n\n{table}"


def _plain(text: str) -> str:
    """Escape a text, so that nothing in it is taken for Markdown or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text.replace("&", "&amp;"))
