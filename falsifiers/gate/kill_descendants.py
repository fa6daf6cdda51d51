"""Kills process groups and descendants, so that no process outlives a run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: a process that has set it becomes the parent of its orphaned descendants."""


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill the group of a process that was started with `start_new_session=True`."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def kill_descendants_at_exit() -> Iterator[None]:
    """Kill all descendants that were started in the block and still run at its end.

    An orphan becomes a child of this process, and so do its children when it is killed. Without
    PR_SET_CHILD_SUBREAPER no orphan is found. Start no other process during the block.
    """
    before = child_pids()
    set_subreaper(on=True)
    try:
        yield
    finally:
        while left := child_pids() - before:
            before |= {pid for pid in left if not _kill_and_wait(pid)}
        set_subreaper(on=False)


def _kill_and_wait(pid: int) -> bool:
    """Kill a child and wait for its end; return False for a process of another user."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except PermissionError:
        return False
    except (ProcessLookupError, ChildProcessError):
        pass
    return True


def set_subreaper(*, on: bool) -> None:
    """Set whether orphaned descendants become children of this process."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def child_pids() -> set[int]:
    """Return the children of this process; empty without /proc/self/task/*/children."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            found.update(map(int, path.read_text().split()))
    return found
