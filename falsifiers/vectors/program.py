"""A program as an answerer: `PROGRAM IN OUT` reads a call from IN and writes its answer into OUT.

It runs once for every call, in its own process group and directories, with a time limit. A program
that crashes, hangs, or writes nothing or wrong files fails the case; no call is skipped.
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
"""Characters of a program's last line on stderr that a message quotes."""


class Program:
    """An answerer that runs a program for every call."""

    def __init__(self, argv: Sequence[str], limit: float = TIME_LIMIT,
                 probe: Call = ExternalOps.probe) -> None:
        self.argv, self.limit, self.probe = list(argv), limit, probe
        self.failure = ""
        """Why the program is not run again: a hang would cost the time limit at every call."""

    @cached_property
    def arithmetic(self) -> str:
        """The arithmetic that its answer to the probe declares, else `own`."""
        with _scratch_dir() as folder:
            try:
                answer = self._run(self.probe, folder)
                return read_arithmetic(answer, self.probe.answer_bytes) or OWN_ARITHMETIC
            except (UnreadableError, AssertionError):  # every case that makes a call reports it
                return OWN_ARITHMETIC

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Run the program for one call and return its outputs; raise as `read_answer` does."""
        arithmetic = self.arithmetic
        with _scratch_dir() as folder:
            return read_answer(call, self._run(call, folder), arithmetic)

    def _run(self, call: Call, folder: Path) -> Path:
        """Run the program for a call; return the path of its answer."""
        inputs, outputs = folder / "in", folder / "out"
        inputs.mkdir()
        outputs.mkdir()
        write_tensors(inputs / f"{call.name}.safetensors", call.inputs, call.metadata)
        for file in call.files:  # a copy, because the program may write into it
            shutil.copyfile(file, inputs / file.name)
        if self.failure:
            raise_broken("crash", self.failure)
        # stderr goes to an unnamed file, which the program cannot replace
        with tempfile.TemporaryFile() as stderr, kill_descendants_at_exit():
            try:
                process = subprocess.Popen(
                    [*self.argv, str(inputs), str(outputs)], stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True, cwd=folder)
            except OSError as error:
                self.failure = f"{self.argv[0]} cannot be run: {error.strerror}"
                raise_broken("crash", self.failure)
            try:
                code = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                self.failure = (f"{self.argv[0]} did not end within {self.limit:g} s of the call "
                             f"{call.name} and was stopped; it is not run again")
                raise_broken("crash", self.failure)
            finally:  # also ends children that outlive the program and could still write
                end_group(process)
            if code:
                end = f"was killed by signal {-code}" if code < 0 else f"exited {code}"
                raise_broken("crash", f"{self.argv[0]} {end} at the call {call.name}"
                                      f"{_last_stderr_line(stderr)}")
        answer = outputs / f"{call.name}.safetensors"
        with contextlib.suppress(OSError):  # if the program removed OUT, reading the answer fails
            if extra := set(os.listdir(outputs)) - {answer.name}:
                raise_broken("law", f"{self.argv[0]} wrote {shorten_name(min(extra))} in addition "
                                    f"to its answer to the call {call.name}")
        return answer


@contextlib.contextmanager
def _scratch_dir() -> Iterator[Path]:
    """Yield a new directory; remove it afterwards and ignore errors of the removal."""
    folder = tempfile.TemporaryDirectory(prefix="rowtwin-", ignore_cleanup_errors=True)
    try:
        yield Path(folder.name)
    finally:
        with contextlib.suppress(OSError, RecursionError):  # such as directories nested too deep
            folder.cleanup()


def _last_stderr_line(stderr: IO[bytes]) -> str:
    """Return `: ` and the last line of stderr in printable form, or an empty string."""
    stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - 4096))
    lines = stderr.read(4096).decode("utf-8", "replace").strip().splitlines()
    return f": {shorten_name(lines[-1][:MAX_MESSAGE_CHARS])}" if lines else ""
