"""Files of calls are judged by what they hold; nothing hostile in them is followed or trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

import rowtwin
from falsifiers.gate import phase_status
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Finding, Verdict
from falsifiers.tensor_files.safetensors_file import MAX_HEADER_BYTES, read_tensors, write_tensors
from falsifiers.vectors import exchange, manifest
from falsifiers.vectors.exchange import VectorSet


@cache
def few() -> VectorSet:
    """Return what P3 asks of one Q4_K matrix and one of BF16."""
    wanted = rowtwin.phase_vectors("3")
    cases = tuple(case for case in wanted.cases if case["k"] in (256, 257)
                  and case["kind"] in ("Q4_K", "BF16") and "neighbours" not in case.falsifier)
    assert {case.falsifier for case in cases} == {"rows_equal_alone", "products_are_true",
                                                  "every_tail_is_written"}
    return replace(wanted, cases=cases)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "p3"
    exchange.export(folder, few())
    return folder


@pytest.fixture
def whole(exported: Path, tmp_path: Path) -> Path:
    """Return a directory of which every call has been answered rightly."""
    folder = shutil.copytree(exported, tmp_path / "p3")
    shutil.copytree(folder / "expected", folder / "outputs", dirs_exist_ok=True)
    return folder


def judged(folder: Path) -> tuple[PhaseResult, list[Verdict]]:
    verdicts = exchange.check(folder, few())
    return phase_status.judge_phase("p3", verdicts, few().cases), verdicts


def first(verdicts: list[Verdict]) -> Finding:
    return next(v.finding for v in verdicts if v.finding is not None)


def answer(folder: Path, kind: str, m: int) -> Path:
    """Return the file of the answer to the m-row call of a type, the first in order of name."""
    return min((folder / "outputs").glob(f"gemv_rows-{kind}-n17-*-m{m}-*"))


def changed(path: Path, change: Callable[[torch.Tensor], torch.Tensor],
            arithmetic: str = "exact-23") -> None:
    tensors, _ = read_tensors(path, 1 << 20)
    write_tensors(path, {"out": change(tensors["out"])}, {"arithmetic": arithmetic})


def test_right_answers_pass(whole: Path) -> None:
    result, verdicts = judged(whole)
    assert (result.verdict, result.passed) == ("PASS", len(few().cases))
    assert {worst.rung for v in verdicts for worst in v.worst} == {"bits"}


def test_nothing_of_the_directory_but_its_outputs_is_believed(whole: Path) -> None:
    for part in ("inputs", "expected"):
        for path in (whole / part).iterdir():
            path.write_bytes(b"")
    assert judged(whole)[0].verdict == "PASS"


def test_one_bit_of_a_row_is_located_under_twin(whole: Path) -> None:
    def flip(out: torch.Tensor) -> torch.Tensor:
        out[3, 5] = torch.nextafter(out[3, 5], out.new_tensor(9e9))
        return out

    changed(answer(whole, "Q4_K", 5), flip)
    result, verdicts = judged(whole)
    found = first(verdicts)
    assert (result.verdict, result.failed) == ("FAIL", 1)
    assert (found.rule, found.rung, found.ulps, found.differing) == ("twin", "bits", 1, 1)
    assert (found.where["m"], found.where["row"], found.where["element"]) == (5, 3, "[5]")
    assert found.got is not None
    assert found.want is not None
    assert found.got in found.sentence
    assert found.want in found.sentence


def test_kernel_that_is_wrong_alone_too_breaks_truth_and_not_twin(whole: Path) -> None:
    for path in (whole / "outputs").iterdir():
        changed(path, lambda out: out * 1.01)
    rules = {(v.falsifier, v.finding.rule) for v in judged(whole)[1] if v.finding is not None}
    assert rules == {("products_are_true", "truth"), ("every_tail_is_written", "truth")}


def test_answers_of_an_own_arithmetic_are_held_to_the_budget(whole: Path) -> None:
    for path in (whole / "outputs").iterdir():
        changed(path, lambda out: out.bfloat16().float(), "own")
    result, verdicts = judged(whole)
    assert result.verdict == "PASS"
    assert {worst.rung for v in verdicts for worst in v.worst} == {"bits", "budget"}
    for path in (whole / "outputs").iterdir():
        changed(path, lambda out: out * 1.01, "own")
    assert first(judged(whole)[1]).rung == "budget"


def test_arithmetic_that_is_misspelt_lowers_nobody_to_the_budget(whole: Path) -> None:
    for path in (whole / "outputs").iterdir():
        changed(path, lambda out: out.bfloat16().float(), "exact-23 ")
    with pytest.raises(SuiteError, match="ARITHMETIC is 'exact-23 ', but should be 'ordered'"):
        judged(whole)


def test_declining_is_counted_and_what_must_be_claimed_cannot_pass(whole: Path) -> None:
    for path in (whole / "outputs").glob("*-BF16-*"):
        write_tensors(path, {}, {"declined": "only Q4_K\x1b[31m"})
    result, verdicts = judged(whole)
    assert (result.verdict, result.declined) == ("PASS", 2)
    assert all("\x1b" not in (v.reason or "") for v in verdicts)
    for path in (whole / "outputs").iterdir():
        write_tensors(path, {}, {"declined": ""})
    result, _ = judged(whole)
    assert (result.verdict, result.passed, result.failed) == ("UNMEASURABLE", 0, 0)


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".there"))
    path.symlink_to(path.with_suffix(".there"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _dtype(path: Path) -> None:
    write_tensors(
        path,
        {"out": read_tensors(path, 1 << 20)[0]["out"].double().half()},
        {"arithmetic": "exact-23"},
    )


def _other_arithmetic(path: Path) -> None:
    changed(path, lambda out: out, "ordered")


HOSTILE: list[tuple[Callable[[Path], object], str, str]] = [
    (Path.unlink, "crash", "is missing"),
    (_link, "crash", "is a symbolic link, which is not followed"),
    (_pipe, "crash", "is not a plain file"),
    (_folder, "crash", "is not a plain file"),
    (lambda path: path.write_bytes(b""), "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes(path.read_bytes()[:-3]), "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes(b"\xff" * 8 + b"{}"), "crash", "is not a safetensors file: "),
    (
        lambda path: path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}"),
        "crash",
        "is not a safetensors file: ",
    ),
    (
        lambda path: path.write_bytes((60000).to_bytes(8, "little") + b"[" * 60000),
        "crash",
        "is not a safetensors file: ",
    ),
    (
        lambda path: path.write_bytes(b" " * (MAX_HEADER_BYTES + 2000)),
        "crash",
        "bytes, but at most",
    ),
    (
        lambda path: write_tensors(path, {}, {"arithmetic": "exact-23"}),
        "shape",
        "has no tensor 'out'",
    ),
    (
        lambda path: write_tensors(
            path,
            {**read_tensors(path, 1 << 20)[0], "more\x1b": torch.zeros(1)},
            {"arithmetic": "exact-23"},
        ),
        "shape",
        r"has a tensor 'more\\x1b' that was not asked for",
    ),
    (
        lambda path: write_tensors(path, {}, {"arithmetic": "exact-23", "refused": "too wide\n"}),
        "law",
        r"refuses a call that can be made: 'too wide\\n'",
    ),
    (
        lambda path: changed(path, lambda out: out.T),
        "shape",
        r"out has shape \[17, 3\], but should have \[3, 17\]",
    ),
    (lambda path: changed(path, lambda out: out[:, :16]), "shape", "out has shape"),
    (_dtype, "dtype", "out has dtype torch.float16, but should have torch.float32"),
    (_other_arithmetic, "law", "declares the arithmetic 'ordered', but the first answer declares"),
    (lambda path: changed(path, lambda out: torch.full_like(out, torch.nan)), "finite", "NaN"),
]


@pytest.mark.parametrize(("harm", "rung", "sentence"), HOSTILE)
def test_answer_that_cannot_be_compared_is_a_verdict(
        whole: Path, harm: Callable[[Path], object], rung: str, sentence: str) -> None:
    harm(answer(whole, "Q4_K", 3))
    result, verdicts = judged(whole)
    found = first(verdicts)
    assert (result.verdict, result.error, result.declined) == ("FAIL", 0, 0)
    assert found.rung == rung
    assert re.search(sentence, found.sentence)
    assert "\n" not in found.sentence


def _manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        data = json.loads((folder / "manifest.json").read_text())
        change(data)
        (folder / "manifest.json").write_text(json.dumps(data))

    return harm


def _linked(name: str) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        (folder / name).rename(folder / "there")
        (folder / name).symlink_to(folder / "there")

    return harm


@pytest.mark.parametrize(("harm", "sentence"), [
    (shutil.rmtree, "is not a directory of vectors"),
    (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    (_linked("manifest.json"), "is a symbolic link"),
    (_linked("outputs"), "is a symbolic link"),
    (lambda folder: shutil.rmtree(folder / "outputs"), "nothing has answered these calls yet"),
    (lambda folder: write_tensors(folder / "outputs" / "a\x1b.safetensors", {}, {}),
     r"answers a call that was not asked, 'a\\x1b'"),
    (lambda folder: (folder / "manifest.json").write_bytes(b"\xff{"), "is not JSON"),
    (lambda folder: (folder / "manifest.json").write_text("[" * 9999), "is not JSON"),
    (lambda folder: (folder / "manifest.json").write_text("[]"), "is not a manifest: the whole"),
    (lambda folder: os.truncate(folder / "manifest.json", 1 << 25), "but at most"),
    (_manifest(lambda data: data.update(version=2)), "is not a manifest: version"),
    (_manifest(lambda data: data.update(more=2)), "is not a manifest: more"),
    (_manifest(lambda data: data.update({"a\x1b[31m": 2})), r"is not a manifest: 'a\\x1b\[31m'"),
    (_manifest(lambda data: data["calls"][0].update(name="../../etc/passwd")),  # type: ignore[index]
     r"is not a manifest: calls\.0\.name"),
    (_manifest(lambda data: data["calls"][0].update(op="\ud800")),  # type: ignore[index]
     r"is not a manifest: calls\.0\.op"),
    (_manifest(lambda data: data["calls"][0].update(op="\x1b[31mstep")),  # type: ignore[index]
     r"is not a manifest: calls\.0\.op")])
def test_directory_that_is_none_is_refused_in_one_sentence(
        whole: Path, harm: Callable[[Path], object], sentence: str) -> None:
    harm(whole)
    with pytest.raises(SuiteError, match=sentence) as refused:
        judged(whole)
    assert "\n" not in str(refused.value)


def test_call_that_the_directory_does_not_hold_is_an_error(whole: Path) -> None:
    gone = manifest.load_manifest(whole).calls[0].name
    _manifest(lambda data: data["calls"].pop(0))(whole)  # type: ignore[attr-defined]
    (whole / "outputs" / f"{gone}.safetensors").unlink()
    result, verdicts = judged(whole)
    assert (result.verdict, result.error) == ("UNMEASURABLE", 1)
    assert any("does not hold the call" in (v.reason or "") for v in verdicts)


def test_nothing_is_overwritten(whole: Path) -> None:
    with pytest.raises(SuiteError, match="is not empty: give a new or an empty folder"):
        exchange.export(whole, few())


def test_every_call_that_is_asked_is_in_the_manifest_with_its_form(exported: Path) -> None:
    held = manifest.load_manifest(exported)
    for part, forms in (("inputs", "inputs"), ("expected", "outputs")):
        assert {path.stem for path in (exported / part).iterdir()} == {c.name for c in held.calls}
        for call in held.calls:
            tensors, _ = read_tensors(exported / part / f"{call.name}.safetensors", 1 << 20)
            assert {name: tuple(x.shape) for name, x in tensors.items()} == {
                name: form.shape for name, form in getattr(call, forms).items()}
    assert {case for call in held.calls for case in call.cases} == {c.id for c in few().cases}
    assert held.rules.truth == held.rules.twin == "bitwise"




def test_case_that_asks_for_no_call_is_an_error(whole: Path) -> None:
    idle = replace(few(), attacks={name: lambda case, subject, judge: judge.law(True, "it holds")
                                   for name in few().attacks})
    verdicts = exchange.check(whole, idle)
    assert {v.outcome for v in verdicts} == {"error"}
    assert all(v.reason == "SuiteError: it asked for no call" for v in verdicts)
