"""The tutorial does what it says: its wrong kernel fails where it says, and its mended one passes.

Only `--thorough` runs its commands; they take minutes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from contracts.load import load_contract
from contracts.schema import Case
from falsifiers.gate.candidates import Candidate, load_candidate
from falsifiers.judging.errors import ParityBroken
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.meta.tree.documents import ROOT, parse_blocks, run_document
from phases.p3_row_twin import test_falsifier

TUTORIAL = ROOT / "docs" / "tutorial.md"
BUG_FIX = ("parts = 4 if m == 1 else 1", "parts = 4")


def tutorial_kernel(folder: Path, *, mended: bool) -> Candidate:
    (text,) = [block.text for block in parse_blocks(TUTORIAL) if block.kind == "file"]
    assert text.count(BUG_FIX[0]) == 1
    path = folder / "mine.py"
    path.write_text(text.replace(*BUG_FIX) if mended else text)
    return load_candidate(f"file:{path}")


def tutorial_case() -> Case:
    (name,) = set(re.findall(r"--case '(p3/\S+\[interpret\S+)'", TUTORIAL.read_text()))
    table = load_contract(ROOT / "contracts" / "p3.yaml").expand()
    return next(case for case in table if case.id == name)


def attack(candidate: Candidate) -> None:
    case = tutorial_case()
    judge = Judge(case)
    test_falsifier.test_rows_equal_alone(
        case, Subject("mine", models=lambda name: None, candidate=candidate), judge)
    assert judge.compared > 0


@pytest.mark.tier("interpret")
def test_wrong_kernel_fails_as_the_text_quotes_it(tmp_path: Path) -> None:
    with pytest.raises(ParityBroken) as broken:
        attack(tutorial_kernel(tmp_path, mended=False))
    assert broken.value.finding.sentence in TUTORIAL.read_text()
    assert broken.value.finding.rule == "twin"


@pytest.mark.tier("interpret")
def test_mended_kernel_passes(tmp_path: Path) -> None:
    attack(tutorial_kernel(tmp_path, mended=True))


def test_every_case_that_the_text_names_exists() -> None:
    named = set(re.findall(r"--case '([^']+)'", TUTORIAL.read_text()))
    known = {case.id for case in load_contract(ROOT / "contracts" / "p3.yaml").expand()}
    assert len(named) == 2  # one each for the kernel in Triton and the one in CUDA C++
    assert named <= known


@pytest.mark.long
@pytest.mark.emulated
def test_commands_do_what_the_text_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spent, output = 0.0, ""
    for done in run_document(TUTORIAL, tmp_path):
        spent, output = spent + done.seconds, output + done.output
        with capsys.disabled():
            print(f"\n{done.seconds:6.1f} s  exit {done.code}  {done.command}")
        assert done.code == done.wanted, done.output
    with capsys.disabled():
        print(f"\n{spent:6.1f} s for all commands of {TUTORIAL.name}")
    quoted = re.findall(r"^```\n((?:out\[|project|## ).*?)^```", TUTORIAL.read_text(),
                        re.MULTILINE | re.DOTALL)
    assert len(quoted) == 4
    for line in "".join(quoted).splitlines():
        assert line in output
