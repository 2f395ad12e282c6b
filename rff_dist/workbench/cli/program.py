"""The program `rff-dist`: it imports a command's module when the command is used, so that help shows at once.

`--help` waits for every import here, so errors, tables and commands are imported when they are needed.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from rff_dist import __version__
from rff_dist.workbench.cli import help as texts
from rff_dist.workbench.cli import settings

# The base class of all mistakes in the arguments. Releases of typer keep it in different places.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


class Group(TyperGroup):
    """A group of commands with help of our own."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(texts.group_help(ctx, self))


class Command(TyperCommand):
    """A command whose help shows what people ask for first; `--help-all` shows the rest."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(texts.command_help(ctx, self, everything=False))


class Program(Group):
    """All commands, each imported when it is used; mistakes in arguments are reported like other errors."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands' names in the order of the help."""
        return [name for panel in texts.COMMANDS.values() for name in panel]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if it is unknown, after importing all of them to suggest a near name."""
        names = self.list_commands(ctx)
        for name in [cmd_name] if cmd_name in names else names:
            if name not in self.commands:
                import_module(f"rff_dist.workbench.cli.{name}")  # which adds the command to `app`
                group: Any = typer.main.get_command(app)
                self.commands[name] = group.commands[name]
        return self.commands.get(cmd_name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and exit with its code, or return the code where `standalone_mode` is False."""
        words = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            # Not standalone: typer would print errors itself, and exit with codes of its own.
            code = super().main(words, prog_name, complete_var, False, windows_expand_args, **extra)
        except (UsageError, typer.Abort) as error:
            from rff_dist.workbench.cli.messages import INTERRUPTED, report_usage

            aborted = isinstance(error, typer.Abort)
            code = INTERRUPTED if aborted else report_usage(error, as_json="--json" in words)
        if standalone_mode:
            sys.exit(code or 0)
        return code


# Without rich's markup, since help must not wait for the import of rich.
_PLAIN: Any = {"rich_markup_mode": None, "context_settings": {"help_option_names": ["-h", "--help"]}}
app = typer.Typer(cls=Program, pretty_exceptions_enable=False, **_PLAIN)


def make_group(name: str, help: str) -> typer.Typer:
    """Return a group of commands, `rff-dist NAME …`; the caller adds it to `app`."""
    return typer.Typer(cls=Group, name=name, help=help, add_completion=False, **_PLAIN)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rff-dist {__version__}")
        raise typer.Exit


def show_everything(context: typer.Context, wanted: bool) -> None:
    """Show the whole help of a command, if it is wanted."""
    if wanted:
        typer.echo(texts.command_help(context, context.command, everything=True))
        raise typer.Exit


@app.callback()
def describe(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
    messages: Annotated[
        str,
        typer.Option(
            "--log-format",
            metavar="text|json",
            envvar="RFF_DIST_LOG",
            help="Format of messages on standard error: text for people, or one JSON object a line.",
        ),
    ] = "text",
) -> None:
    """Kernel methods on data of any size: random Fourier features, exact sums, Dask."""
    from rff_dist.engines.logs import FORMATS

    if messages not in FORMATS:
        raise typer.BadParameter(
            f"{messages!r}; expected one of {', '.join(FORMATS)}", param_hint="--log-format"
        )
    settings.log_format.set(messages)
