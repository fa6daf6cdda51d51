"""The recipe for another repository's pull requests: its steps, run on a good and a bad kernel.

The steps themselves are run by `--thorough` alone; they take minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_group

from falsifiers.meta.documents import ROOT, blocks
from reports.cli import app

RECIPE, TUTORIAL = ROOT / "docs" / "ci.md", ROOT / "docs" / "tutorial.md"


def workflow() -> dict[Any, Any]:
    (block,) = blocks(RECIPE)
    told: dict[Any, Any] = yaml.safe_load(block.text)
    return told


def steps() -> dict[str, dict[str, Any]]:
    """Return the steps that run commands, by name."""
    return {step["name"]: step for step in workflow()["jobs"]["parity"]["steps"] if "run" in step}


def kernel(mended: bool) -> str:
    (text,) = [block.text for block in blocks(TUTORIAL) if block.kind == "file"]
    return text.replace("parts = 4 if m == 1 else 1", "parts = 4") if mended else text


def test_recipe_cannot_write_and_judges_from_a_pin() -> None:
    told = workflow()
    assert told["permissions"] == {"contents": "read"}
    assert told[True] == "pull_request"  # YAML 1.1 reads the key `on` so
    pins = [step["with"]["ref"] for step in told["jobs"]["parity"]["steps"]
            if "ref" in step.get("with", {})]
    assert len(pins) == 1
    assert re.fullmatch("[0-9a-f]{40}", pins[0])


def test_every_option_of_the_recipe_exists() -> None:
    report: Any = get_group(app).commands["report"]
    known = {option for command in (report, report.commands["diff"])
             for parameter in command.params for option in (*parameter.opts,
                                                            *parameter.secondary_opts)}
    used = {word for step in steps().values() for line in step["run"].split("rowtwin report")[1:]
            for word in re.findall(r"(?<= )--[a-z-]+", line.split("||")[0])}
    assert len(used) >= 5
    assert used <= known


class Repository:
    """A sample repository with a kernel, and a runner of the recipe's steps in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sample"
        (self.folder / "kernels").mkdir(parents=True)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "rowtwin").write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "rowtwin.py"}" "$@"\n')
        (tools / "pip").write_text('#!/bin/sh\necho "pip $*"\n')  # what it installs is here already
        for tool in tools.iterdir():
            tool.chmod(0o755)
        self.summary = folder / "summary.md"
        self.around = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "GITHUB_STEP_SUMMARY": str(self.summary), "CUDA_VISIBLE_DEVICES": "",
            **{key: str(value) for key, value in workflow()["env"].items()},
            **{f"GIT_{who}_{what}": "sample@example.org" for who in ("AUTHOR", "COMMITTER")
               for what in ("NAME", "EMAIL")}}
        self.git("init", "--quiet")

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.folder, env=self.around, check=True,
                              capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        (self.folder / "kernels" / "rows.py").write_text(text)
        self.git("add", "kernels")
        self.git("commit", "--quiet", "-m", "a kernel")
        return self.git("rev-parse", "HEAD")

    def run(self, base: str) -> dict[str, int]:
        """Run the recipe's steps as its runner does, and return how each ended."""
        ends: dict[str, int] = {}
        for name, step in steps().items():
            if any(ends.values()) and step.get("if") != "always()":
                continue
            ends[name] = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", step["run"]],
                                        cwd=self.folder, env={**self.around, "BASE": base},
                                        check=False, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL).returncode
        self.git("worktree", "remove", "--force", ".base")
        return ends


@pytest.mark.long
def test_steps_stop_a_bad_kernel_and_pass_a_good_one(tmp_path: Path) -> None:
    sample = Repository(tmp_path)
    good = sample.commit(kernel(mended=True))
    bad = sample.commit(kernel(mended=False))
    assert sample.run(good) == {"install": 0, "judge the base": 0, "judge the pull request": 1,
                                "say what changed": 1}
    assert "newly broken" in sample.summary.read_text().splitlines()[0]
    assert "**Newly broken: p3 rows_equal_alone**" in sample.summary.read_text()
    sample.summary.unlink()
    sample.commit(kernel(mended=True))
    assert set(sample.run(bad).values()) == {0}
    assert sample.summary.read_text().startswith("## ✓ Row parity since the base: 3 newly proven")
