"""A program as an answerer: `PROGRAM IN OUT` reads calls from one directory and answers in another.

Every call runs it once, in a process group and directories of its own, under a time limit. One
that crashes, hangs, or writes nothing or the wrong thing has broken the claim; it is never skipped.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from torch import Tensor

from falsifiers.gate.kill_descendants import end_group, kill_descendants_at_exit
from falsifiers.judging.errors import shorten_name
from falsifiers.tensor_files.safetensors_file import UnreadableError, write_tensors
from falsifiers.vectors.calls import (
    OWN_ARITHMETIC,
    Call,
    ExternalOps,
    raise_broken,
    read_answer,
    read_arithmetic,
)

TIME_LIMIT = 60.0
"""Seconds that a program may take for one call."""
MAX_MESSAGE_CHARS = 200
"""Letters of a program's last words that are repeated."""


class Program:
    """An answerer that runs a program for every call."""

    def __init__(self, argv: Sequence[str], limit: float = TIME_LIMIT,
                 probe: Call = ExternalOps.probe) -> None:
        self.argv, self.limit, self.probe = list(argv), limit, probe
        self.failure = ""
        """Why the program is not run again: one that hung once would hang at every call."""

    @cached_property
    def arithmetic(self) -> str:
        """The arithmetic that it declares with a first answer; `own` when there is none."""
        with _scratch_dir() as folder:
            try:
                return (
                    read_arithmetic(self._run(self.probe, folder), self.probe.answer_bytes)
                    or OWN_ARITHMETIC
                )
            except (UnreadableError, AssertionError):  # told by every case that asks for a call
                return OWN_ARITHMETIC

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Run the program for one call and return what it wrote."""
        arithmetic = self.arithmetic
        with _scratch_dir() as folder:
            return read_answer(call, self._run(call, folder), arithmetic)

    def _run(self, call: Call, folder: Path) -> Path:
        """Run the program for a call; return where its answer is due."""
        asked, due = folder / "in", folder / "out"
        for part in (asked, due):
            part.mkdir()
        write_tensors(asked / f"{call.name}.safetensors", call.inputs, call.metadata)
        for file in call.files:  # a copy: a program may write into what it is given
            shutil.copyfile(file, asked / file.name)
        if self.failure:
            raise_broken("crash", self.failure)
        with (
            tempfile.TemporaryFile() as heard,
            kill_descendants_at_exit(),
        ):  # a file without a name to reach
            try:
                process = subprocess.Popen(
                    [*self.argv, str(asked), str(due)], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=heard, start_new_session=True, cwd=folder)
            except OSError as error:
                self.failure = f"{self.argv[0]} cannot be run: {error.strerror}"
                raise_broken("crash", self.failure)
            try:
                code = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                self.failure = (f"{self.argv[0]} did not end within {self.limit:g} s of the call "
                             f"{call.name} and was stopped; it is not run again")
                raise_broken("crash", self.failure)
            finally:  # also what it left behind when it ended, which could still write
                end_group(process)
            if code:
                ended = f"was killed by signal {-code}" if code < 0 else f"exited {code}"
                raise_broken(
                    "crash",
                    f"{self.argv[0]} {ended} at the call {call.name}{_last_stderr_line(heard)}",
                )
        answer = due / f"{call.name}.safetensors"
        with contextlib.suppress(OSError):  # a folder that is gone holds no answer either
            if strays := set(os.listdir(due)) - {answer.name}:
                raise_broken(
                    "law",
                    f"{self.argv[0]} wrote {shorten_name(min(strays))} beside its answer "
                    f"to the call {call.name}",
                )
        return answer


@contextlib.contextmanager
def _scratch_dir() -> Iterator[Path]:
    """Yield a new folder; what of it cannot be removed afterwards is no verdict on a call."""
    folder = tempfile.TemporaryDirectory(prefix="rowtwin-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        with contextlib.suppress(OSError, RecursionError):  # such as a thousand folders deep
            folder.cleanup()


def _last_stderr_line(heard: IO[bytes]) -> str:
    """Return the last line that a program wrote to stderr, as it can be printed."""
    heard.seek(max(0, heard.seek(0, os.SEEK_END) - 4096))
    lines = heard.read(4096).decode("utf-8", "replace").strip().splitlines()
    return f": {shorten_name(lines[-1][:MAX_MESSAGE_CHARS])}" if lines else ""
