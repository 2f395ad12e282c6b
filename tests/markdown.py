"""Tables in Markdown, as artifacts of Prefect hold them."""

import itertools


def rows_of(text: str, caption: str = "") -> list[dict[str, str]]:
    """Return the rows of the first table below a caption, of which a part is enough."""
    lines = text[text.index(caption) :].splitlines()
    below = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    table = itertools.takewhile(lambda line: line.startswith("|"), below)
    header, _, *rows = [
        [
            cell.strip().replace("\\", "")
            for cell in line.removesuffix("|").split("|")[1:]
        ]
        for line in table
    ]
    return [dict(zip(header, row, strict=True)) for row in rows]
