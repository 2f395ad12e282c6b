"""A document as Markdown with its pictures inside, as Prefect shows artifacts.

In goes a `Document`, out comes text. An artifact with a link to an HTML file would be
useless, because browsers do not open local files from the pages of a server.
"""

import base64
import re

from rff_dist.workbench.results import document, figures, words


def to_markdown(page: document.Document) -> str:
    """Return a document as Markdown, with tables in GitHub's syntax."""
    lead = [_plain(page.lead)] if page.lead else []
    return (
        "\n\n".join(
            [f"# {_plain(page.title)}", *lead, *map(_markdown, page.all_parts())]
        )
        + "\n"
    )


def _markdown(part: document.Part) -> str:
    match part:
        case document.Heading(title):
            return f"## {_plain(title)}"
        case document.Paragraph(text):
            return _plain(text)
        case document.Picture(figure, alt, caption):
            data = base64.b64encode(figures.png_of(figure)).decode()
            source = f"data:image/png;base64,{data}"
            return f"![{_plain(alt)}]({source})\n\n{_plain(caption)}"
        case words.Table(caption, header):
            side = ":--" if part.is_text else "--:"
            lines = [[_plain(name) for name in header]]
            lines.append([":--", *[side] * (len(header) - 1)])
            for row in part.cells():
                lines.append([_cell(text) for text in row])
            table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
            return f"**{_plain(caption)}**\n\n{table}" if caption else table
        case _:  # facts, the rest of `document.Part`
            return _markdown(document.facts_table(part))


def _cell(text: str) -> str:
    return f"**{_plain(text)}**" if isinstance(text, words.Alert) else _plain(text)


def _plain(text: str) -> str:
    """Escape a text but for its code in backticks, so that nothing in it is read as
    Markdown or HTML.
    """
    # Names of columns, levels and paths come from users: with "|" a name would break a
    # table, and with "<" it would add markup.
    special = r"([\\`*_{}\[\]<>#|$~])"
    parts = re.split(r"(`[^`|\n]+`)", text)
    for place in range(0, len(parts), 2):
        escaped = re.sub(special, r"\\\1", parts[place].replace("&", "&amp;"))
        parts[place] = escaped
    return "".join(parts)
