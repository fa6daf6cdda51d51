"""The recipe for another repository's pull requests: pasted, and run on a good and a bad kernel.

Only `--thorough` runs the steps; they take minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_group

from falsifiers.meta.tree.documents import ROOT, parse_blocks
from reports.cli import app

RECIPE, TUTORIAL = ROOT / "docs" / "ci.md", ROOT / "docs" / "tutorial.md"


NOT_CLONED = shutil.ignore_patterns(".git", ".venv", ".cache", ".*_cache", "__pycache__", "out",
                              "*.egg-info", ".hypothesis", ".benchmarks")
"""Files that a clone lacks."""


def recipe() -> dict[str, str]:
    """Return what is pasted and the workflow, by the names that the text gives them."""
    return {block.value: block.text for block in parse_blocks(RECIPE)}


def workflow() -> dict[Any, Any]:
    parsed: dict[Any, Any] = yaml.safe_load(recipe()["row-parity.yml"])
    return parsed


def command_steps(parsed: dict[Any, Any]) -> dict[str, dict[str, Any]]:
    """Return a workflow's steps that run commands, by name."""
    return {step["name"]: step for step in parsed["jobs"]["parity"]["steps"] if "run" in step}


def tutorial_kernel(mended: bool) -> str:
    (text,) = [block.text for block in parse_blocks(TUTORIAL) if block.kind == "file"]
    return text.replace("parts = 4 if m == 1 else 1", "parts = 4") if mended else text


def test_recipe_cannot_write_and_judges_from_a_pin() -> None:
    parsed = workflow()
    assert parsed["permissions"] == {"contents": "read"}
    assert parsed[True] == "pull_request"  # YAML 1.1 reads the key `on` so
    assert re.fullmatch("[0-9a-f]{40}", parsed["env"]["PIN"])
    assert [step["uses"] for step in parsed["jobs"]["parity"]["steps"]
            if "uses" in step and "repository" in step.get("with", {})] == []


def test_every_option_of_the_recipe_exists() -> None:
    report: Any = get_group(app).commands["report"]
    known = {option for command in (report, report.commands["diff"])
             for parameter in command.params for option in (*parameter.opts,
                                                            *parameter.secondary_opts)}
    used = {word for step in command_steps(workflow()).values()
            for line in step["run"].split("rowtwin report")[1:]
            for word in re.findall(r"(?<= )--[a-z-]+", line.split("||")[0])}
    assert len(used) >= 5
    assert used <= known


class Repository:
    """A sample repository with a kernel and the pasted recipe, and a runner of its steps."""

    def __init__(self, folder: Path, part: str = ".") -> None:
        self.folder = folder / "sample"
        (self.folder / "kernels").mkdir(parents=True)
        tools = folder / "bin"
        tools.mkdir()
        (tools / "rowtwin").write_text(  # as if installed from the checkout that the job fetched
            f'#!/bin/sh\nexec "{sys.executable}" "{self.folder / ".rowtwin/rowtwin.py"}" "$@"\n')
        (tools / "pip").write_text('#!/bin/sh\necho "pip $*"\n')  # what it installs is here already
        for tool in tools.iterdir():
            tool.chmod(0o755)
        self.summary = folder / "summary.md"
        self.environment = {
            **os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "GITHUB_STEP_SUMMARY": str(self.summary), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "",
            **{f"GIT_{who}_{what}": "sample@example.org" for who in ("AUTHOR", "COMMITTER")
               for what in ("NAME", "EMAIL")}}
        self.git("init", "--quiet")
        self.workflow = self.paste_recipe(folder, part)
        self.environment |= {key: str(value) for key, value in self.workflow["env"].items()}

    def paste_recipe(self, folder: Path, part: str) -> dict[Any, Any]:
        """Publish a part of this tree, clone it, paste the recipe, and return what it wrote."""
        shutil.copytree(ROOT / part, folder / "published" / part, ignore=NOT_CLONED)
        for words in (("init", "--quiet"), ("add", "-A"), ("commit", "--quiet", "-m", "all")):
            self.git("-C", str(folder / "published"), *words)
        self.git("clone", "--quiet", str(folder / "published"), str(folder / "clone"))
        subprocess.run(
            ["bash", "-c", recipe()["paste.sh"]],
            cwd=self.folder,
            check=True,
            env={**self.environment, "JUDGE": str(folder / "clone")},
            capture_output=True,
        )
        wrote: dict[Any, Any] = yaml.safe_load(
            (self.folder / ".github" / "workflows" / "row-parity.yml").read_text())
        return wrote

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.folder, env=self.environment, check=True,
                              capture_output=True, text=True).stdout.strip()

    def commit(self, text: str) -> str:
        (self.folder / "kernels" / "rows.py").write_text(text)
        self.git("add", "kernels")
        self.git("commit", "--quiet", "-m", "a kernel")
        return self.git("rev-parse", "HEAD")

    def step(self, name: str, **more: str) -> int:
        """Run one step of the recipe as its runner does, and return how it ended."""
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command_steps(self.workflow)[name]["run"]],
            cwd=self.folder,
            env={**self.environment, **more},
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode

    def run(self, base: str) -> dict[str, int]:
        """Run the recipe's steps in turn, and return how each ended."""
        ends: dict[str, int] = {}
        for name, step in command_steps(self.workflow).items():
            if not any(ends.values()) or step.get("if") == "always()":
                ends[name] = self.step(name, BASE=base)
        self.git("worktree", "remove", "--force", ".base")
        return ends


def test_what_is_pasted_fetches_the_clone_s_own_commit(tmp_path: Path) -> None:
    sample = Repository(tmp_path, "docs")
    published = str(tmp_path / "published")
    head = sample.git("-C", published, "rev-parse", "HEAD")
    env = {**workflow()["env"], "JUDGE": published, "PIN": head}
    assert sample.workflow == {**workflow(), "env": env}
    sample.git("-C", published, "commit", "--quiet", "--allow-empty", "-m", "moved on")
    assert sample.step("fetch the judge") == 0
    assert sample.git("-C", ".rowtwin", "rev-parse", "HEAD") == head
    assert sample.step("fetch the judge", PIN="f" * 40) != 0


@pytest.mark.long
def test_steps_stop_a_bad_kernel_and_pass_a_good_one(tmp_path: Path) -> None:
    sample = Repository(tmp_path)
    good = sample.commit(tutorial_kernel(mended=True))
    bad = sample.commit(tutorial_kernel(mended=False))
    assert sample.run(good) == {"fetch the judge": 0, "install": 0, "judge the base": 0,
                                "judge the pull request": 1, "say what changed": 1}
    assert "newly broken" in sample.summary.read_text().splitlines()[0]
    assert "**Newly broken: p3 rows_equal_alone**" in sample.summary.read_text()
    sample.summary.unlink()
    sample.commit(tutorial_kernel(mended=True))
    assert set(sample.run(bad).values()) == {0}
    assert sample.summary.read_text().startswith("## ✓ Row parity since the base: 3 newly proven")
