"""A document in a terminal, by rich.

In goes a `Document`, out comes an object that a rich console prints. rich's own tables
leave spaces at the ends of lines, which would get into copied texts and diffs.
"""

import shlex
from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from rff_dist.typing import frozen
from rff_dist.workbench.results import document, words


def to_rich(
    shown: document.Document, *, next: bool = True, details: bool = False
) -> RenderableType:
    """Return a document as rich prints it: the lead first, then the title above the
    parts.

    `next`: whether to suggest the commands that come next.
    `details`: whether to show the parts of details too.
    """
    heads = filter(None, (shown.lead, shown.title))
    views: list[RenderableType] = [
        Text(line, "bold", overflow="fold") for line in heads
    ]
    for part in shown.all_parts() if details else shown.main_parts():
        # captions stand out by an empty line
        if isinstance(part, words.Table) and part.caption:
            views.append("")
        views += _views(part)
    following = []
    for command in shown.next:
        # with `details`, commands that show details have nothing to add
        if next and not (details and "--details" in command):
            following.append(command)
    # not trimmed: a wrapped command keeps the space at its break, so it can be copied
    return Group(_Trimmed(Group(*views)), *_commands(following))


@frozen
class _Trimmed:
    """Text and tables without spaces at the ends of lines, which wrapping and filling
    leave.
    """

    content: RenderableType

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        for line in console.render_lines(self.content, options, pad=False):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                yield from line[:-1]
                yield Segment(line[-1].text.rstrip(), line[-1].style)
            yield Segment.line()


def _views(part: document.Part) -> Iterator[RenderableType]:
    match part:
        case document.Heading(title):
            yield from ("", Text(title, "bold"))
        case document.Paragraph(text, is_note):
            yield Text(text, "dim", overflow="fold") if is_note else _text(text)
        case document.Picture(caption=caption):
            yield Text(caption, "dim")
        case words.Table():
            if part.caption:
                yield Text(part.caption, "bold", overflow="fold")
            yield _table(part)
        case _:
            yield _facts(document.facts_table(part))


def _facts(facts: words.Table) -> Table:
    view = Table.grid(padding=(0, 2))
    view.add_column(style="dim", no_wrap=True)
    view.add_column(overflow="fold")
    for name, value in facts.cells():
        view.add_row(f"  {name}", _text(value))
    return view


def _table(table: words.Table) -> Table:
    """Return a table; the chosen row stands out."""
    view = Table(
        box=box.SIMPLE_HEAD,
        show_header=any(table.header),
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for i, column in enumerate(table.header):
        # In a narrow terminal the widest columns are wrapped: "…" would hide digits of
        # a number.
        view.add_column(
            column,
            justify="left" if table.is_text or not i else "right",
            overflow="fold",
        )
    for i, row in enumerate(table.cells()):
        view.add_row(*map(_text, row), style="bold" if i == table.chosen else None)
    return view


def _commands(commands: Iterable[Iterable[str]]) -> Iterator[Text]:
    for i, command in enumerate(commands):
        start = "        " if i else "\n  next: "
        yield Text.assemble(
            (start, "dim"), shlex.join(["rff-dist", *command]), overflow="fold"
        )


def _text(value: str) -> Text:
    return Text(
        value, "yellow" if isinstance(value, words.Alert) else "", overflow="fold"
    )
