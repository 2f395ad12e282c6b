"""Links at the end of the manual's pages: how-to pages, commands, public names and
notebooks lead to each other.

`see-also.toml` lists, by page, what is read next to it. The ways back are made from the
same list: a command's page leads to the pages that name the command. MkDocs calls
`on_files` and `on_page_markdown`.
"""

import json
import posixpath
import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

import rff_dist

FOLDER = Path(__file__).resolve().parent
NEXT_TO = tomllib.loads((FOLDER / "see-also.toml").read_text(encoding="utf-8"))
COMMANDS = "reference/commands/"
ESTIMATORS = "reference/estimators/"
NOTEBOOKS = {
    path.name[:2]: "".join(
        json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]
    )
    for path in sorted(FOLDER.parent.glob("*.ipynb"))
}


def on_files(files: Files, /, *, config: Any) -> Files:
    """Refuse to build if no page leads to one of the commands or estimators."""
    pages = {file.src_uri for file in files}
    for kind, folder in {"commands": COMMANDS, "names": ESTIMATORS}.items():
        named = {name for entry in NEXT_TO.values() for name in entry.get(kind, [])}
        for uri in sorted(pages):
            name = posixpath.basename(uri).removesuffix(".md")
            if uri.startswith(folder) and name not in named:
                raise PluginError(f"see-also.toml: no page names {name!r} in `{kind}`")
    unknown = NEXT_TO.keys() - pages
    if unknown:
        raise PluginError(f"see-also.toml: there is no page {min(unknown)!r}")
    return files


def on_page_markdown(markdown: str, /, *, page: Any, **_: Any) -> str:
    """Add the links to a page, or to each notebook of the gallery."""
    uri = page.file.src_uri
    if uri == "gallery.md":
        return re.sub(
            r"<!-- notebook (\d\d) -->",
            lambda found: "How to: " + _join(pages_with("notebooks", [found[1]]), uri),
            markdown,
        )
    lines = list(next_to(uri) if uri in NEXT_TO else ways_back(uri, markdown))
    if not lines:
        return markdown
    return "\n".join([markdown, "\n## See also\n", *lines])


def next_to(uri: str) -> Iterator[str]:
    """Yield a line for each kind of thing that is read next to a page."""
    entry = NEXT_TO[uri]
    if "pages" in entry:
        yield f"- Manual: {_join(entry['pages'], uri)}"
    if "commands" in entry:
        links = (
            f"[`{name.replace('-', ' ')}`]({_path(f'{COMMANDS}{name}.md', uri)})"
            for name in entry["commands"]
        )
        yield f"- Commands: {', '.join(links)}"
    if "names" in entry:
        # found by their paths, on whichever page they are
        links = (
            f"[`{name}`][{rff_dist._HOMES[name]}.{name}]" for name in entry["names"]
        )
        yield f"- Python: {', '.join(links)}"
    if "notebooks" in entry:
        links = (
            f"[{_title(NOTEBOOKS[number])}]({_path('gallery.md', uri)}#notebook-{number})"
            for number in entry["notebooks"]
        )
        yield f"- Notebooks: {', '.join(links)}"


def ways_back(uri: str, markdown: str) -> Iterator[str]:
    """Yield the line of how-to pages that name a command, or what a page describes."""
    names = [
        path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", markdown, re.M)
    ]
    if uri.startswith(COMMANDS):
        pages = pages_with("commands", [posixpath.basename(uri).removesuffix(".md")])
    else:
        pages = pages_with("names", names)
    if pages:
        yield f"- Manual: {_join(pages, uri)}"


def pages_with(kind: str, names: Iterable[str]) -> list[str]:
    """Return the pages that name one of `names`."""
    wanted = set(names)
    return [uri for uri, entry in NEXT_TO.items() if wanted & set(entry.get(kind, []))]


def _join(pages: Iterable[str], uri: str) -> str:
    links = (f"[{_title_of_page(page)}]({_path(page, uri)})" for page in pages)
    return ", ".join(links)


def _title_of_page(uri: str) -> str:
    path = FOLDER / "pages" / uri
    if not path.exists():  # made by reference_pages.py
        return "Errors and exit codes"
    return _title(path.read_text(encoding="utf-8"))


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _path(target: str, uri: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(uri))
