"""Figures of matplotlib as PNG, or as SVG in the colours of a page.

In goes a figure, out comes a picture with the same bytes each time. With fixed colours
a picture would be a white slab on a dark page.
"""

import io
import re
from typing import Any

from rff_dist.storage import documents

INK = "#1b1b1b"
MUTED = "#6b6b6b"
LINE = "#dddddd"
PAPER = "#ffffff"
BLUE = "#0b6e99"
#: Variables of page.css, which are light or dark as the reader's screen is.
VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", PAPER: "paper", BLUE: "accent"}
#: of files and SVG pictures
FILE_DPI = 160
#: of a PNG in Markdown, which has its bytes as text: smaller
TEXT_DPI = 110


def png_of(figure: Any, dpi: int = TEXT_DPI) -> bytes:
    """Return a figure as a PNG."""
    content = io.BytesIO()
    # without matplotlib's name and version, so that the same picture has the same bytes
    figure.savefig(
        content, format="png", dpi=dpi, metadata={"Software": documents.MADE_BY}
    )
    return content.getvalue()


def svg_of(figure: Any) -> str:
    """Return a figure as an SVG without paper, in the colours of the page it is in."""
    import matplotlib as mpl

    content = io.StringIO()
    # Texts stay texts, in the reader's font. The salt makes the ids of shared parts,
    # such as clip paths, a hash of their content.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": documents.MADE_BY}
    with mpl.rc_context(settings):
        figure.savefig(content, format="svg", dpi=FILE_DPI, transparent=True)
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :]
    # Ids with a number, such as "text_3", are removed: several pictures of a page would
    # have the same. Shared parts keep theirs, since others refer to them.
    svg = re.sub(r' id="[a-zA-Z]+_\d+"', "", svg)
    # the metadata have the date, so the bytes would change
    svg = re.sub("<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Matplotlib gives black parts no colour: they take the colour of the whole picture.
    svg = svg.replace("<svg", f'<svg style="fill: {INK}"', 1).replace("#000000", INK)
    for colour, name in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg
