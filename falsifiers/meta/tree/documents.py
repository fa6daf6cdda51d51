"""Documents whose files and commands a test takes from the text and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```(\w+) (file|exit)=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block that says what it is: a file to save, or commands and how the last ends."""

    kind: str
    """`file` or `exit`."""
    said: str
    """The file's name, or the exit code."""
    text: str

    @property
    def commands(self) -> list[str]:
        """The lines that a reader types."""
        return [line.removeprefix("$ ") for line in self.text.splitlines()
                if line.startswith("$ ")]


def parse_blocks(document: Path) -> list[Block]:
    """Return a document's files and commands, in order."""
    return [Block(kind, said, text) for _, kind, said, text in
            BLOCK.findall(document.read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class CommandResult:
    """What one command did."""

    command: str
    output: str
    code: int
    wanted: int
    seconds: float


def run_document(document: Path, folder: Path) -> Iterator[CommandResult]:
    """Do what a document says in a folder, and yield each command as it ended."""
    shim = folder / ".bin" / "rowtwin"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "rowtwin.py"}" "$@"\n')
    shim.chmod(0o755)
    around = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}", "ROWTWIN": str(ROOT),
              "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for block in parse_blocks(document):
        if block.kind == "file":
            (folder / block.said).write_text(block.text, encoding="utf-8")
        for command in block.commands:
            started = time.perf_counter()
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=around, text=True,
                                  check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            last = command == block.commands[-1]
            yield CommandResult(
                command,
                done.stdout,
                done.returncode,
                int(block.said) if last else 0,
                time.perf_counter() - started,
            )
