"""What the manual takes from elsewhere: pages of options and errors and the table of
kernels from the program, and the gallery from the notebooks.

MkDocs calls `on_files`. The pages are no files of the repository, so they cannot fall
behind. It calls `on_post_page` with the HTML of each page."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from rff_dist import errors, fields
from rff_dist.kernels import names, registry
from rff_dist.workbench.cli import shell, sources
from rff_dist.workbench.results import exits


def on_files(files: Files, /, *, config: Any) -> Files:
    """Add the pages to those that are in the folder."""
    for name, lines in {"options": options_page(), "errors": errors_page()}.items():
        files.append(
            File.generated(config, f"reference/{name}.md", content="\n".join(lines))
        )
    lines = ["# Gallery\n", f"{GALLERY_ABOUT}\n"]
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        title, about, picture = read_notebook(path)
        image = f"gallery/{path.stem}.png"
        files.append(File.generated(config, image, content=picture))
        lines.append(f"## {title}\n")
        lines.append(f"{about} In `notebooks/{path.name}`.\n")
        lines.append(f"![{title}: its first picture]({image}){{ width=480 }}\n")
    files.append(File.generated(config, "gallery.md", content="\n".join(lines)))
    return files


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


def on_page_markdown(markdown: str, /, **_: Any) -> str:
    """Put the kernels that have a name into the page about them."""
    return markdown.replace("<!-- kernels -->", "\n".join(kernels()))


def kernels() -> Iterator[str]:
    """Yield the table of kernels, and where the reference of each class goes."""
    yield "| `--kernel` | class | k(x, y) |\n|---|---|---|"
    for name, kernel in names.KERNELS.items():
        formula = (kernel.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        yield f"| `{name}` | `{kernel.__name__}` | {_cell(formula)} |"
    for path in registry.KERNELS.values():
        yield f"\n::: {path}"


def on_post_page(output: str, /, *, page: Any, config: Any) -> str:
    """Name the search box, which the theme leaves without a name."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')


def options_page() -> Iterator[str]:
    """Yield the page of all commands, their options and the variables of the
    environment.
    """
    yield "# Commands and options\n"
    yield (
        "Each option can be given by its flag, by a variable of the environment, or by"
        " name in the TOML"
    )
    yield (
        "file of `--config`; flags count most. Flows take the same names as parameters."
        " `--print-config`"
    )
    yield (
        "shows what holds and where it came from. The last table has the options of"
        " every command.\n"
    )
    shared = {one.name for one in fields.options_of(shell.CommonOptions)}
    for title, command in commands().items():
        own = [one for one in command.options if one.name not in shared]
        prefix = sources.prefix_of(title.split())
        yield (
            "## rff-dist"
            f" {title}\n\n{(command.function.__doc__ or '').split(chr(10))[0]}"
        )
        yield (
            f"Variables: `{prefix}` and the option, such as"
            f" `{prefix}{own[0].name.upper()}`.\n"
        )
        yield from _table(own)
    yield "## Options of every command\n"
    yield from _table(fields.options_of(shell.CommonOptions))


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


def _table(options: Any) -> Iterator[str]:
    yield "| option | default | meaning |\n|---|---|---|"
    for one in options:
        flag = "--" + one.name.replace("_", "-")
        default = (
            "required"
            if one.required
            else sources.toml(one.default).strip('"')
            if one.default
            else ""
        )
        code = f'<code style="white-space: nowrap">{flag}</code>'
        yield f"| {code} | {_cell(default)} | {_cell(one.declared.help)} |"
    yield ""


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
