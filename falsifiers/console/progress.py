"""A progress bar for long commands, shown only at a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class ProgressBar:
    """A bar on stderr: `with ProgressBar("cases", total) as progress: progress("p1/case")`."""

    def __init__(self, what: str, total: int | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), TextColumn("[dim]{task.fields[last]}"), transient=True,
            console=Console(stderr=True), disable=not sys.stderr.isatty(),
            redirect_stdout=sys.stdout.isatty())
        self._task = self._bar.add_task(what, total=total, last="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def __call__(self, last: str) -> None:
        """Count one more step and show its name."""
        from rich.markup import escape
        self._bar.update(self._task, advance=1, last=escape(last[:70]))

    def set_total(self, total: int) -> None:
        """Set the number of steps."""
        self._bar.update(self._task, total=total)
