"""A document as Markdown with its pictures inside, as Prefect shows artifacts.

An artifact with a link to an HTML file would be of no use: browsers open no files from pages of a server.
"""

import base64
import re

from rff_dist.workbench.results import document, words


def to_markdown(page: document.Document) -> str:
    """Return a document as Markdown, with tables in GitHub's syntax."""
    lead = [_plain(page.lead)] if page.lead else []
    return "\n\n".join([f"# {_plain(page.title)}", *lead, *map(_markdown, page.parts)]) + "\n"


def _markdown(part: document.Part) -> str:
    match part:
        case document.Heading(title):
            return f"## {_plain(title)}"
        case document.Paragraph(text):
            return _plain(text)
        case document.Picture(png, alt, caption):
            data = base64.b64encode(png).decode()
            return f"![{_plain(alt)}](data:image/png;base64,{data})\n\n{_plain(caption)}"
        case words.Table(caption, header):
            side = ":--" if part.is_facts else "--:"
            lines = [header, [":--", *[side] * (len(header) - 1)]]
            lines += [[*map(_cell, row)] for row in part.cells()]
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            return f"**{_plain(caption)}**\n\n{table}" if caption else table
        case _:
            return _markdown(document.facts_table(part))


def _cell(text: str) -> str:
    return f"**{_plain(text)}**" if isinstance(text, words.Alert) else _plain(text)


def _plain(text: str) -> str:
    """Escape a text, so that nothing in it is taken for Markdown or HTML."""
    # Names of columns, levels and paths come from users: one could break a table, or bring in markup.
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text.replace("&", "&amp;"))
