"""Processes in groups of their own, so that what they start ends with them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any


def end_group(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of the group of a process that was started with a session of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
