"""Running a command line: commands imported only when they are run, and ends without a traceback.

So `--help` answers at once, and a user's mistake, a full disk or a reader that went away each end
in an exit code of their own.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

EXIT_SIGPIPE = 141  # as a shell tells a death by SIGPIPE
BISECT, SKIP, STOP = "--bisect", 125, 130
"""The option that asks for the exit codes of `git bisect run`: skip a commit, end the search."""
Table = dict[str, tuple[str, str]]
"""By a command's name: its module, and its help in a sentence."""


def _drop_output() -> None:
    """Send what is still to be printed nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LazyCommand(TyperCommand):
    """Stands for a command until it is run; its module is imported then."""

    module = ""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """Hand over to the real command."""
        group: Any = typer.main.get_group(importlib.import_module(self.module).app)
        return group.commands[self.name].make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of a table, none of them imported before it is run."""

    table: ClassVar[Table] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in for the command of that name, or None."""
        if cmd_name not in self.table:
            return None
        module, told = self.table[cmd_name]
        command = LazyCommand(cmd_name, help=told, add_help_option=False)
        command.module = module
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader that went away is not a failure of what is judged."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(EXIT_SIGPIPE) from None


def make_group(table: Table) -> type[LazyGroup]:
    """Return the group of a table's commands."""
    return type("Commands", (LazyGroup,), {"table": table})


def escape_non_utf8(text: str) -> str:
    r"""Return text with the bytes of a path that is not UTF-8 as `\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def escape_control(text: str) -> str:
    r"""Return a message as a terminal may have it: what it would act on stands as `\x1b`."""
    return "".join(letter if letter.isprintable() or letter == "\n"
                   else letter.encode("unicode_escape").decode("ascii")
                   for letter in escape_non_utf8(text))


def run_app(app: typer.Typer, mistakes: Callable[[], tuple[type[Exception], ...]]) -> None:
    """Run a command line; a user's mistake ends in one sentence and exit code 2.

    With `--bisect` a commit is called good or bad by a verdict alone: a mistake, a module that
    does not import or a case that nobody knows would be taken for bad, and are skipped.
    """
    if BISECT in sys.argv[1:]:
        sys.exit(_run_for_git_bisect(app, mistakes))
    try:
        if sys.stdout is None:
            raise SystemExit("rowtwin: standard output is closed")
        try:
            typer.main.get_command(app).main(prog_name="rowtwin")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(EXIT_SIGPIPE)
    except OSError as error:
        if error.errno == errno.ENOSPC and error.filename is None:
            _drop_output()
            why = f"the output cannot be written: {error.strerror}"
        elif isinstance(error.filename, str):  # too long a name, no rights, a disk that fails
            why = f"{error.filename} cannot be used: {error.strerror}"
        else:
            raise
        print(f"rowtwin: {escape_control(why)}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if not isinstance(error, mistakes()):
            raise
        print(f"rowtwin: {escape_control(str(error))}", file=sys.stderr)
        sys.exit(2)


def _run_for_git_bisect(
    app: typer.Typer, mistakes: Callable[[], tuple[type[Exception], ...]]
) -> int:
    """Run a command line and return what `git bisect run` should make of it."""
    try:
        code = typer.main.get_command(app).main(prog_name="rowtwin", standalone_mode=False)
        print(end="", flush=True)
    except typer.Abort:  # somebody pressed Ctrl-C, which says nothing of a commit
        return STOP
    except Exception as error:
        _print_error(error, mistakes)
        return SKIP
    return code if code in (0, 1) or code >= STOP else SKIP


def _print_error(error: Exception, mistakes: Callable[[], tuple[type[Exception], ...]]) -> None:
    """Say a mistake in a sentence, and where anything else came from."""
    show = getattr(error, "show", None)  # typer's own complaint about the arguments
    try:
        known = isinstance(error, mistakes())
    except Exception:  # what a mistake is cannot be imported either
        known = False
    if show is not None:
        show()
    elif known:
        print(f"rowtwin: {escape_non_utf8(str(error))}", file=sys.stderr)
    else:
        traceback.print_exception(error)
