"""Runs the command line: imports a command only when it runs, and prints no traceback.

`--help` is therefore fast. A user's mistake, a full disk and a closed pipe have exit codes of
their own.
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

EXIT_SIGPIPE = 141  # the shell's code for a process killed by SIGPIPE
BISECT, SKIP, STOP = "--bisect", 125, 130
"""The option for `git bisect run`, and its exit codes: skip a commit, stop the search."""
Table = dict[str, tuple[str, str]]
"""A command's module and help sentence, by its name."""


def _drop_output() -> None:
    """Redirect stdout to /dev/null."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class LazyCommand(TyperCommand):
    """A command whose module is imported when it runs."""

    module = ""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """Return the context of the real command."""
        group: Any = typer.main.get_group(importlib.import_module(self.module).app)
        return group.commands[self.name].make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of a table, each imported when it runs."""

    table: ClassVar[Table] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the lazy command of that name, or None."""
        if cmd_name not in self.table:
            return None
        module, sentence = self.table[cmd_name]
        command = LazyCommand(cmd_name, help=sentence, add_help_option=False)
        command.module = module
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command; exit with 141 if the reader closes the pipe."""
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
    r"""Return a message with control characters escaped, such as `\x1b`."""
    return "".join(letter if letter.isprintable() or letter == "\n"
                   else letter.encode("unicode_escape").decode("ascii")
                   for letter in escape_non_utf8(text))


def run_app(app: typer.Typer, mistakes: Callable[[], tuple[type[Exception], ...]]) -> None:
    """Run a command line; print a user's mistake in one sentence and exit with 2.

    With `--bisect` only a verdict makes a commit good or bad. A mistake, a failed import or an
    unknown case skips the commit.
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
        elif isinstance(error.filename, str):  # name too long, permission denied, I/O error
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


def _run_for_git_bisect(app: typer.Typer,
                        mistakes: Callable[[], tuple[type[Exception], ...]]) -> int:
    """Run a command line and return its exit code for `git bisect run`."""
    try:
        code = typer.main.get_command(app).main(prog_name="rowtwin", standalone_mode=False)
        print(end="", flush=True)
    except typer.Abort:  # Ctrl-C says nothing about the commit
        return STOP
    except Exception as error:
        _print_error(error, mistakes)
        return SKIP
    return code if code in (0, 1) or code >= STOP else SKIP


def _print_error(error: Exception, mistakes: Callable[[], tuple[type[Exception], ...]]) -> None:
    """Print a user's mistake in one sentence, and any other error with its traceback."""
    show = getattr(error, "show", None)  # a usage error of typer
    try:
        known = isinstance(error, mistakes())
    except Exception:  # the classes of mistakes cannot be imported either
        known = False
    if show is not None:
        show()
    elif known:
        print(f"rowtwin: {escape_non_utf8(str(error))}", file=sys.stderr)
    else:
        traceback.print_exception(error)
