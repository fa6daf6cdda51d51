"""Runs the files and commands of a document, for tests."""

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
    """A fenced block: a file to save, or commands and the exit code of the last."""

    kind: str
    """`file` or `exit`."""
    value: str
    """The file's name, or the exit code."""
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands without their prompt."""
        return [line.removeprefix("$ ") for line in self.text.splitlines()
                if line.startswith("$ ")]


def parse_blocks(document: Path) -> list[Block]:
    """Return a document's files and commands, in order."""
    return [Block(kind, value, text) for _, kind, value, text in
            BLOCK.findall(document.read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class CommandResult:
    """The result of one command."""

    command: str
    output: str
    code: int
    wanted: int
    seconds: float


def run_document(document: Path, folder: Path) -> Iterator[CommandResult]:
    """Write a document's files and run its commands in a folder; yield each result."""
    shim = folder / ".bin" / "rowtwin"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "rowtwin.py"}" "$@"\n')
    shim.chmod(0o755)
    env = {**os.environ, "PATH": f"{shim.parent}:{os.environ['PATH']}", "ROWTWIN": str(ROOT),
              "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for block in parse_blocks(document):
        if block.kind == "file":
            (folder / block.value).write_text(block.text, encoding="utf-8")
        for command in block.commands:
            started = time.perf_counter()
            done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, text=True,
                                  check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            last = command == block.commands[-1]
            yield CommandResult(command, done.stdout, done.returncode,
                                int(block.value) if last else 0, time.perf_counter() - started)
