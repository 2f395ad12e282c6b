"""What a job found, part by part, as terminal, Markdown, HTML and JSON show it.

In go headings, facts, tables and pictures, out comes a `Document`, which `terminal`,
`markdown` and `html` render. If each of them made its own texts, these would differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rff_dist.typing import Facts, frozen
from rff_dist.workbench.results import words


@frozen
class Heading:
    """The beginning of a section; a page shows a folded section only when a reader
    opens it.
    """

    title: str
    is_folded: bool = False


@frozen
class Paragraph:
    """A few sentences; a note is less important, and shown paler."""

    text: str
    is_note: bool = False


@frozen
class Picture:
    """A figure of matplotlib.

    `alt`: describes it to readers who cannot see it.
    `shrinks`: whether it shrinks to the width of a phone, or scrolls there.
    """

    figure: Any
    alt: str
    caption: str
    shrinks: bool = False


type Part = Heading | Paragraph | words.Table | Picture | Facts


@dataclass(slots=True)
class Document:
    """The result of a job, as a terminal, JSON, Prefect's Markdown and a page in HTML
    show it.
    """

    title: str
    #: in order. A mapping is shown as a list of names and texts, its facts; a fact of
    #: None is left out.
    parts: list[Part] = field(default_factory=list)
    #: more parts; without `--details` a terminal shows only their alerts
    details: list[Part] = field(default_factory=list)
    #: one sentence that comes first; "" for none
    lead: str = ""
    #: what `--json` shows. It may hold NumPy's numbers and arrays; NaN and infinity
    #: become null.
    record: Facts = field(default_factory=dict)
    #: commands that come next, without the program's name
    next: Sequence[Sequence[str]] = ()
    #: the exit code of the command
    code: int = 0
    #: a few words each, which a page shows below the lead
    chips: Sequence[str] = ()

    def all_parts(self) -> list[Part]:
        """Return the parts and the details."""
        heading = [Heading("Details")] if self.details else []
        return [*self.parts, *heading, *self.details]

    def main_parts(self) -> list[Part]:
        """Return the parts, and the alerts among the facts of the details."""
        alerts = {}
        for part in self.details:
            facts = part if isinstance(part, Mapping) else {}
            for name, fact in facts.items():
                if isinstance(fact, words.Alert):
                    alerts[name] = fact
        return [*self.parts, alerts] if alerts else self.parts

    def section(self, title: str, text: str = "", *, is_folded: bool = False) -> None:
        """Begin a section."""
        self.parts.append(Heading(title, is_folded))
        self.say(text)

    def say(self, text: str, *, is_note: bool = False) -> None:
        """Add a paragraph, unless it is empty."""
        if text:
            self.parts.append(Paragraph(text, is_note))

    def table(
        self, caption: str, header: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        """Add a table whose first column names the rows."""
        self.parts.append(words.Table(caption, header, rows))

    def picture(
        self, figure: Any, alt: str, caption: str, *, shrinks: bool = False
    ) -> None:
        """Add a picture, with a description in words."""
        self.parts.append(Picture(figure, alt, caption, shrinks))


def facts_table(facts: Facts) -> words.Table:
    """Return facts as a table of names and values, without values of None."""
    rows = [(name, value) for name, value in facts.items() if value is not None]
    return words.Table("", ("what", "value"), rows, is_text=True)
