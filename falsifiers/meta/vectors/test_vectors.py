"""Directories of vectors are judge by their outputs; hostile files are not followed or trusted."""

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
    """Return P3's cases of one Q4_K matrix and one BF16 matrix."""
    vectors = rowtwin.phase_vectors("3")
    cases = tuple(case for case in vectors.cases if case["k"] in (256, 257)
                  and case["kind"] in ("Q4_K", "BF16") and "neighbours" not in case.falsifier)
    assert {case.falsifier for case in cases} == {"rows_equal_alone", "products_are_true",
                                                  "every_tail_is_written"}
    return replace(vectors, cases=cases)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "p3"
    exchange.export(folder, few())
    return folder


@pytest.fixture
def answered(exported: Path, tmp_path: Path) -> Path:
    """Return a directory with a correct answer to every call."""
    folder = shutil.copytree(exported, tmp_path / "p3")
    shutil.copytree(folder / "expected", folder / "outputs", dirs_exist_ok=True)
    return folder


def judge(folder: Path) -> tuple[PhaseResult, list[Verdict]]:
    verdicts = exchange.check(folder, few())
    return phase_status.judge_phase("p3", verdicts, few().cases), verdicts


def first(verdicts: list[Verdict]) -> Finding:
    return next(v.finding for v in verdicts if v.finding is not None)


def answer(folder: Path, kind: str, m: int) -> Path:
    """Return the answer file of a type's m-row call, the first by name."""
    return min((folder / "outputs").glob(f"gemv_rows-{kind}-n17-*-m{m}-*"))


def change_out(path: Path, change: Callable[[torch.Tensor], torch.Tensor],
               arithmetic: str = "exact-23") -> None:
    tensors, _ = read_tensors(path, 1 << 20)
    write_tensors(path, {"out": change(tensors["out"])}, {"arithmetic": arithmetic})


def test_right_answers_pass(answered: Path) -> None:
    result, verdicts = judge(answered)
    assert (result.verdict, result.passed) == ("PASS", len(few().cases))
    assert {worst.rung for v in verdicts for worst in v.worst} == {"bits"}


def test_only_the_outputs_of_a_directory_are_trusted(answered: Path) -> None:
    for name in ("inputs", "expected"):
        for path in (answered / name).iterdir():
            path.write_bytes(b"")
    assert judge(answered)[0].verdict == "PASS"


def test_one_bit_of_a_row_is_located_under_twin(answered: Path) -> None:
    def flip(out: torch.Tensor) -> torch.Tensor:
        out[3, 5] = torch.nextafter(out[3, 5], out.new_tensor(9e9))
        return out

    change_out(answer(answered, "Q4_K", 5), flip)
    result, verdicts = judge(answered)
    found = first(verdicts)
    assert (result.verdict, result.failed) == ("FAIL", 1)
    assert (found.rule, found.rung, found.ulps, found.differing) == ("twin", "bits", 1, 1)
    assert (found.where["m"], found.where["row"], found.where["element"]) == (5, 3, "[5]")
    assert found.got is not None
    assert found.want is not None
    assert found.got in found.sentence
    assert found.want in found.sentence


def test_kernel_that_is_wrong_for_solo_rows_too_breaks_only_truth(answered: Path) -> None:
    for path in (answered / "outputs").iterdir():
        change_out(path, lambda out: out * 1.01)
    rules = {(v.falsifier, v.finding.rule) for v in judge(answered)[1] if v.finding is not None}
    assert rules == {("products_are_true", "truth"), ("every_tail_is_written", "truth")}


def test_answers_in_their_own_arithmetic_are_compared_by_the_budget(answered: Path) -> None:
    for path in (answered / "outputs").iterdir():
        change_out(path, lambda out: out.bfloat16().float(), "own")
    result, verdicts = judge(answered)
    assert result.verdict == "PASS"
    assert {worst.rung for v in verdicts for worst in v.worst} == {"bits", "budget"}
    for path in (answered / "outputs").iterdir():
        change_out(path, lambda out: out * 1.01, "own")
    assert first(judge(answered)[1]).rung == "budget"


def test_misspelt_arithmetic_is_refused(answered: Path) -> None:
    for path in (answered / "outputs").iterdir():
        change_out(path, lambda out: out.bfloat16().float(), "exact-23 ")
    with pytest.raises(SuiteError, match="ARITHMETIC is 'exact-23 ', but should be 'ordered'"):
        judge(answered)


def test_declined_calls_are_counted_and_required_cases_cannot_pass(answered: Path) -> None:
    for path in (answered / "outputs").glob("*-BF16-*"):
        write_tensors(path, {}, {"declined": "only Q4_K\x1b[31m"})
    result, verdicts = judge(answered)
    assert (result.verdict, result.declined) == ("PASS", 2)
    assert all("\x1b" not in (v.reason or "") for v in verdicts)
    for path in (answered / "outputs").iterdir():
        write_tensors(path, {}, {"declined": ""})
    result, _ = judge(answered)
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
    change_out(path, lambda out: out.double().half())


def _other_arithmetic(path: Path) -> None:
    change_out(path, lambda out: out, "ordered")


HOSTILE: list[tuple[Callable[[Path], object], str, str]] = [
    (Path.unlink, "crash", "is missing"),
    (_link, "crash", "is a symbolic link, which is not followed"),
    (_pipe, "crash", "is not a regular file"),
    (_folder, "crash", "is not a regular file"),
    (lambda path: path.write_bytes(b""), "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes(path.read_bytes()[:-3]), "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes(b"\xff" * 8 + b"{}"), "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes((1 << 40).to_bytes(8, "little") + b"{}"),
     "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes((60000).to_bytes(8, "little") + b"[" * 60000),
     "crash", "is not a safetensors file: "),
    (lambda path: path.write_bytes(b" " * (MAX_HEADER_BYTES + 2000)),
     "crash", "bytes, but at most"),
    (lambda path: write_tensors(path, {}, {"arithmetic": "exact-23"}),
     "shape", "has no tensor 'out'"),
    (lambda path: write_tensors(
        path, {**read_tensors(path, 1 << 20)[0], "more\x1b": torch.zeros(1)},
        {"arithmetic": "exact-23"}),
     "shape", r"has an unexpected tensor 'more\\x1b'"),
    (lambda path: write_tensors(path, {}, {"arithmetic": "exact-23", "refused": "too wide\n"}),
     "law", r"refuses a valid call: 'too wide\\n'"),
    (lambda path: change_out(path, lambda out: out.T),
     "shape", r"out has shape \[17, 3\], but should have \[3, 17\]"),
    (lambda path: change_out(path, lambda out: out[:, :16]), "shape", "out has shape"),
    (_dtype, "dtype", "out has dtype torch.float16, but should have torch.float32"),
    (_other_arithmetic, "law", "declares the arithmetic 'ordered', but the first answer declares"),
    (lambda path: change_out(path, lambda out: torch.full_like(out, torch.nan)), "finite", "NaN"),
]


@pytest.mark.parametrize(("damage", "rung", "sentence"), HOSTILE)
def test_answer_that_cannot_be_compared_is_a_verdict(
        answered: Path, damage: Callable[[Path], object], rung: str, sentence: str) -> None:
    damage(answer(answered, "Q4_K", 3))
    result, verdicts = judge(answered)
    found = first(verdicts)
    assert (result.verdict, result.error, result.declined) == ("FAIL", 0, 0)
    assert found.rung == rung
    assert re.search(sentence, found.sentence)
    assert "\n" not in found.sentence


def _manifest(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        data = json.loads((folder / "manifest.json").read_text())
        change(data)
        (folder / "manifest.json").write_text(json.dumps(data))

    return damage


def _linked(name: str) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        (folder / name).rename(folder / "there")
        (folder / name).symlink_to(folder / "there")

    return damage


@pytest.mark.parametrize(("damage", "sentence"), [
    (shutil.rmtree, "is not a directory of vectors"),
    (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    (_linked("manifest.json"), "is a symbolic link"),
    (_linked("outputs"), "is a symbolic link"),
    (lambda folder: shutil.rmtree(folder / "outputs"), "is empty: run a program that answers"),
    (lambda folder: write_tensors(folder / "outputs" / "a\x1b.safetensors", {}, {}),
     r"answers 'a\\x1b', which is no call of the manifest"),
    (lambda folder: (folder / "manifest.json").write_bytes(b"\xff{"), "is not UTF-8"),
    (lambda folder: (folder / "manifest.json").write_text("[" * 9999), "is not JSON"),
    (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json: top level"),
    (lambda folder: os.truncate(folder / "manifest.json", 1 << 25), "but at most"),
    (_manifest(lambda data: data.update(version=2)), "manifest.json: version"),
    (_manifest(lambda data: data.update(more=2)), "manifest.json: more"),
    (_manifest(lambda data: data.update({"a\x1b[31m": 2})), r"manifest.json: 'a\\x1b\[31m'"),
    (_manifest(lambda data: data["calls"][0].update(name="../../etc/passwd")),  # type: ignore[index]
     r"manifest.json: calls\.0\.name"),
    (_manifest(lambda data: data["calls"][0].update(op="\ud800")),  # type: ignore[index]
     r"manifest.json: calls\.0\.op"),
    (_manifest(lambda data: data["calls"][0].update(op="\x1b[31mstep")),  # type: ignore[index]
     r"manifest.json: calls\.0\.op")])
def test_invalid_directory_is_refused_in_one_sentence(
        answered: Path, damage: Callable[[Path], object], sentence: str) -> None:
    damage(answered)
    with pytest.raises(SuiteError, match=sentence) as refused:
        judge(answered)
    assert "\n" not in str(refused.value)


def test_call_that_is_not_in_the_directory_is_an_error(answered: Path) -> None:
    gone = manifest.load_manifest(answered).calls[0].name
    _manifest(lambda data: data["calls"].pop(0))(answered)  # type: ignore[attr-defined]
    (answered / "outputs" / f"{gone}.safetensors").unlink()
    result, verdicts = judge(answered)
    assert (result.verdict, result.error) == ("UNMEASURABLE", 1)
    assert any("does not have the call" in (v.reason or "") for v in verdicts)


def test_nothing_is_overwritten(answered: Path) -> None:
    with pytest.raises(SuiteError, match="is not empty: give a new or an empty folder"):
        exchange.export(answered, few())


def test_every_call_is_in_the_manifest_with_its_shapes(exported: Path) -> None:
    loaded = manifest.load_manifest(exported)
    for folder, forms in (("inputs", "inputs"), ("expected", "outputs")):
        assert {path.stem for path in (exported / folder).iterdir()} == {
            call.name for call in loaded.calls}
        for call in loaded.calls:
            tensors, _ = read_tensors(exported / folder / f"{call.name}.safetensors", 1 << 20)
            assert {name: tuple(x.shape) for name, x in tensors.items()} == {
                name: form.shape for name, form in getattr(call, forms).items()}
    assert {case for call in loaded.calls for case in call.cases} == {c.id for c in few().cases}
    assert loaded.rules.truth == loaded.rules.twin == "bitwise"


def test_case_without_a_call_is_an_error(answered: Path) -> None:
    idle = replace(few(), attacks={name: lambda case, subject, judge: judge.law(True, "it is true")
                                   for name in few().attacks})
    verdicts = exchange.check(answered, idle)
    assert {v.outcome for v in verdicts} == {"error"}
    assert all(v.reason == "SuiteError: the case made no call" for v in verdicts)
