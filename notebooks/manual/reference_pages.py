"""What the manual takes from elsewhere: pages of commands, classes and errors and the
table of kernels from the program, and the gallery from the notebooks.

MkDocs calls `on_config` and `on_files`. The pages are no files of the repository, so they
cannot fall behind. It calls `on_post_page` with the HTML of each page."""

import base64
import inspect
import json
import posixpath
import pydoc
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from rff_dist import errors, fields
from rff_dist.kernels import names, registry
from rff_dist.workbench.cli import help, shell, sources
from rff_dist.workbench.results import exits

#: pages of the reference whose classes have pages of their own
TOPICS = {
    "reference/estimators.md": "Estimators",
    "reference/kernels.md": "Kernels",
    "reference/features.md": "Features, sums, engines",
}


def on_config(config: Any) -> Any:
    """Add the generated pages to the navigation, next to those they belong to."""
    [reference] = [part["Reference"] for part in config.nav if "Reference" in part]
    by_title = [{title: command_uri(title)} for title in commands()]
    reference.append({"Commands": ["reference/options.md", *by_title]})
    for topic, title in TOPICS.items():
        classes = [
            {path.rpartition(".")[2]: uri} for uri, path in class_pages(topic).items()
        ]
        reference.append({title: [topic, *classes]})
    return config


def on_files(files: Files, /, *, config: Any) -> Files:
    """Add the pages to those that are in the folder."""
    pages = {
        "reference/options.md": options_page(),
        "reference/errors.md": errors_page(),
    }
    for title, command in commands().items():
        pages[command_uri(title)] = command_page(title, command)
    for topic in TOPICS:
        for page, path in class_pages(topic).items():
            pages[page] = iter([f"::: {path}", "    options: {heading_level: 1}"])
    for uri, lines in pages.items():
        files.append(File.generated(config, uri, content="\n".join(lines)))
    lines = ["# Gallery\n", f"{GALLERY_ABOUT}\n"]
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        title, about, picture = read_notebook(path)
        number = path.name[:2]
        image = f"gallery/{path.stem}.png"
        files.append(File.generated(config, image, content=picture))
        lines.append(f"## {title} {{ #notebook-{number} }}\n")
        lines.append(f"{about} In `notebooks/{path.name}`.\n")
        lines.append(f"![{title}: its first picture]({image}){{ width=480 }}\n")
        lines.append(f"<!-- notebook {number} -->\n")
    files.append(File.generated(config, "gallery.md", content="\n".join(lines)))
    return files


PAGES = Path(__file__).resolve().parent / "pages"
NOTEBOOKS = Path(__file__).resolve().parent.parent
GALLERY_ABOUT = (
    "Each notebook shows one thing in pictures, whose titles are measured in the same"
    " run. They are in the folder `notebooks/` of a clone, with their outputs."
)


def read_notebook(path: Path) -> tuple[str, str, bytes]:
    """Return a notebook's title, its first sentence without formulas, and its first
    picture.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    title, _, text = "".join(cells[0]["source"]).removeprefix("# ").partition("\n")
    sentences = " ".join(text.split()).split(". ")
    about = next(sentence for sentence in sentences if "$" not in sentence)
    pictures = (
        output["data"]["image/png"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    )
    return title, f"{about.rstrip('.')}.", base64.b64decode(next(pictures))


def on_page_markdown(markdown: str, /, *, page: Any = None, **_: Any) -> str:
    """Put the kernels that have a name into the page about them, and links for classes
    that have a page of their own.
    """
    markdown = markdown.replace("<!-- kernels -->", "\n".join(kernels()))
    if page is None or page.file.src_uri not in TOPICS:
        return markdown
    for uri, path in class_pages(page.file.src_uri).items():
        link = posixpath.relpath(uri, "reference")
        entry = ""
        if f"]({link})" not in markdown:
            about = (pydoc.locate(path).__doc__ or "").partition("\n\n")[0]
            about = _cell(" ".join(about.split()))
            entry = f"- [`{path.rpartition('.')[2]}`]({link}): {about}"
        markdown = markdown.replace(f"::: {path}\n", f"{entry}\n")
    return markdown


def class_pages(topic: str) -> dict[str, str]:
    """Return by its page each class that a page of the reference lists."""
    text = on_page_markdown((PAGES / topic).read_text(encoding="utf-8"))
    paths = re.findall(r"^::: (\S+)$", text, re.M)
    folder = topic.removesuffix(".md")
    return {
        f"{folder}/{path.rpartition('.')[2]}.md": path
        for path in paths
        if inspect.isclass(pydoc.locate(path))
    }


def kernels() -> Iterator[str]:
    """Yield the table of kernels, and where the reference of each class goes."""
    yield "| `--kernel` | class | k(x, y) |\n|---|---|---|"
    for name, kernel in names.KERNELS.items():
        formula = (kernel.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        link = f"[`{kernel.__name__}`](kernels/{kernel.__name__}.md)"
        yield f"| `{name}` | {link} | {_cell(formula)} |"
    for path in registry.KERNELS.values():
        yield f"\n::: {path}"


def on_post_page(output: str, /, *, page: Any, config: Any) -> str:
    """Name the search box, which the theme leaves without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def options_page() -> Iterator[str]:
    """Yield the page that lists the commands, and the options of all of them."""
    yield "# Commands\n"
    by_title = commands()
    for panel, entries in help.COMMANDS.items():
        yield f"## {panel}\n\n| command | does |\n|---|---|"
        titles = [title for title in by_title if title.split()[0] in entries]
        for title in titles:
            link = command_uri(title).removeprefix("reference/")
            about = summary(by_title[title]).removesuffix(".")
            yield f"| [`{title}`]({link}) | {_cell(about)} |"
        yield ""
    yield (
        "## Options of every command\n\n"
        "Each option can be given by its flag, by a variable of the environment, or by"
        " name in the TOML file of `--config`: flags win over the environment, and the"
        " environment over the file. Flows take the same names as parameters."
        " `--print-config` prints the options in force and the source of each. See"
        " [Options in five ways](../how-to/command-line.md#options-in-five-ways).\n"
    )
    yield from _describe(fields.options_of(shell.CommonOptions))


def command_page(title: str, command: shell.Command) -> Iterator[str]:
    """Yield the page of a command: what it does, and its options by group."""
    common = fields.options_of(shell.CommonOptions)
    shared = {option.name for option in common}
    options = [option for option in command.options if option.name not in shared]
    usage = help.usage(title, options).strip().removeprefix("Usage: ")
    yield f"# rff-dist {title}\n\n```text\n{usage}\n```\n"
    yield f"{inspect.getdoc(command.function)}\n"
    panels = [help.ARGUMENTS, help.OPTIONS, *map(help.panel_of, options)]
    for panel in dict.fromkeys(panels):
        inside = [option for option in options if help.panel_of(option) == panel]
        if inside:
            yield f"## {panel}\n"
            yield from _describe(inside)
    prefix = sources.prefix_of(title.split())
    example = options[0].name.upper()
    yield (
        f"The variable of an option is `{prefix}` and its name: `{prefix}{example}`."
        " [Options of every command](../options.md#options-of-every-command) come in"
        " addition.\n"
    )


def command_uri(title: str) -> str:
    return f"reference/commands/{title.replace(' ', '-')}.md"


def summary(command: shell.Command) -> str:
    """Return the first sentence of a command's description."""
    text = inspect.getdoc(command.function) or ""
    return " ".join(text.partition("\n\n")[0].split())


def commands() -> dict[str, shell.Command]:
    """Return all commands, by name; those of a group follow its name."""
    app = shell.make_app()
    found = {}
    for name in shell.COMMANDS:
        apps = [
            app[name],
            *(app[name][sub] for sub in app[name] if name in shell.GROUPS),
        ]
        made = [
            one.default_command.command
            for one in apps
            if hasattr(one.default_command, "command")
        ]
        found |= {command.title: command for command in made}
    return found


def _describe(options: Iterable[fields.Option]) -> Iterator[str]:
    """Yield each option with its default and its meaning, as a list of definitions."""
    for option in options:
        words = "--" + option.name.replace("_", "-")
        if option.declared.is_argument:
            words = option.declared.placeholder or words
        default = ""
        if option.is_required:
            default = ", required"
        elif option.default:
            default = f", by default `{sources.toml(option.default).strip('"')}`"
        yield f"`{words}`{default}\n:   {_cell(option.declared.help)}\n"


def errors_page() -> Iterator[str]:
    """Yield the page of errors and exit codes."""
    yield "# Errors and exit codes\n"
    yield (
        "Errors are subclasses of `rff_dist.errors.RFFDistError`. Programs can rely on"
        " their kind: it is"
    )
    yield (
        "`error.kind` in `--json`, `kind` in JSON lines of the log and in Python, the"
        " tag `error:KIND`"
    )
    yield (
        "of a flow run that failed, and `error.type` in traces. Errors that rff_dist"
        " does not raise are of"
    )
    yield (
        "the kind `memory`, `stopped` (by a signal) or `unexpected`; wrong options of a"
        " command, `usage`."
    )
    yield (
        "An error about a place that the command writes to exits with"
        f" {exits.CANNOT_WRITE}, Ctrl-C"
    )
    yield f"with {exits.INTERRUPTED}, SIGTERM with {exits.TERMINATED}.\n"
    yield "| error | kind | exit code | meaning |\n|---|---|---|---|"
    for kind in _kinds(errors.RFFDistError):
        about = (kind.__doc__ or "").split("\n")[0]
        yield (
            f"| `{kind.__name__}` | `{kind.kind}` | {exits.exit_code(kind('…'))} |"
            f" {_cell(about)} |"
        )


def _kinds(kind: type[errors.RFFDistError]) -> Iterator[type[errors.RFFDistError]]:
    for below in kind.__subclasses__():
        if below.__module__ == kind.__module__:
            yield below
            yield from _kinds(below)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")
