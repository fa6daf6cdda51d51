"""P3 on a user's own file: any architecture, and what cannot be judged is never passed over."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from contracts.load import load_contract
from contracts.schema import Case
from engine.blocks import TYPES
from engine.errors import InputError
from falsifiers.gate.candidates import Candidate
from falsifiers.gate.cli import app
from falsifiers.gate.weight_sample import WeightSample
from falsifiers.judging.errors import Declined, ParityBroken, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.meta.console.command import command_entry, make_main
from phases.p3_row_twin import test_falsifier
from phases.p3_row_twin.data import blocks
from phases.p3_row_twin.harness import CONTRACT
from phases.p3_row_twin.mutants import MUTANTS
from phases.p3_row_twin.weights import load_rows, sample

FOREIGN_TENSORS = {"blk.0.attn_q.weight": "Q4_K", "blk.1.attn_q.weight": "Q4_K",
           "blk.0.ffn_down.weight": "Q6_K", "token_embd.weight": "Q8_0", "router.weight": "F32",
           "odd/näme [0]": "BF16"}


def write_gguf(folder: Path, kinds: dict[str, str], rows: int = 100, *, three_bits: int = 0,
            vector: bool = False) -> Path:
    """Write a file of another architecture with the gguf package: matrices of 512 columns."""
    path = folder / "foreign.gguf"
    writer = gguf.GGUFWriter(path, "mamba9")
    for name, kind in kinds.items():
        writer.add_tensor(name, blocks(kind, rows, 512, "plain").copy(),
                          raw_dtype=gguf.GGMLQuantizationType(TYPES[kind].ggml))
    for number in range(three_bits):
        writer.add_tensor(f"blk.{number}.attn_k.weight", np.zeros((8, 220), np.uint8),
                          raw_dtype=gguf.GGMLQuantizationType.Q3_K)
    if vector:
        writer.add_tensor("output_norm.weight", np.ones(512, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    return write_gguf(tmp_path, FOREIGN_TENSORS, three_bits=2, vector=True)


def tensor_names(drawn: WeightSample) -> list[str]:
    return [one.tensor for one in drawn.sampled]


def judge_case(case: Case, subject: Subject) -> Judge:
    judge = Judge(case)
    getattr(test_falsifier, f"test_{case.falsifier}")(case, subject, judge)
    assert judge.compared > 0
    return judge


def cpu_cases(drawn: WeightSample) -> Iterator[Case]:
    return (case for case in drawn.cases if case.tier == "cpu")


SUBJECT = Subject("in-tree", models=lambda name: None)


def test_every_type_is_drawn_and_what_is_not_judged_is_named_and_counted(foreign: Path) -> None:
    drawn = sample(str(foreign), 1, 0)
    assert sorted(one.kind for one in drawn.sampled) == ["BF16", "F32", "Q4_K", "Q6_K", "Q8_0"]
    assert drawn.not_drawn == 1
    assert {(out.why, out.tensors, out.example) for out in drawn.left_out} == {
        ("of type Q3_K, which P3 does not know", 2, "blk.0.attn_k.weight"),
        ("of one dimension: no matrix", 1, "output_norm.weight")}
    assert json.loads(json.dumps(drawn.as_json()))["sampled"][0]["shape"] == [100, 512]


def test_a_seed_draws_the_same_and_another_seed_draws_others(tmp_path: Path) -> None:
    path = str(write_gguf(tmp_path, {f"blk.{i}.w": "Q8_0" for i in range(9)}, rows=300))
    draws = [sample(path, 3, seed) for seed in (0, 0, 1, 2)]
    assert draws[0] == draws[1]
    assert all(len(draw.sampled) == 3 and draw.not_drawn == 6 for draw in draws)
    assert len({tuple(tensor_names(draw)) for draw in draws}) > 1
    assert len({one.first for draw in draws for one in draw.sampled}) > 1


def test_cases_have_names_that_tests_may_have_and_tell_how_to_run_them(foreign: Path) -> None:
    drawn = sample(str(foreign), 12, 0)
    cases = [case for case in drawn.cases if case.given["tensor"] == "blk.0.attn_q.weight"]
    assert "p3/rows_equal_alone[cpu-weights-blk.0.attn_q.weight-Q4_K-m3]" in {c.id for c in cases}
    assert len({case.id for case in drawn.cases}) == len(drawn.cases)
    assert all(re.fullmatch(r"[A-Za-z0-9_.=+-]+", case.name) for case in drawn.cases)
    assert cases[0].repro.endswith("--seed 0 --tensor blk.0.attn_q.weight")
    again = sample(str(foreign), 12, 0, ["blk.0.attn_q.weight"])
    assert tensor_names(again) == ["blk.0.attn_q.weight"]
    known = {falsifier.id for falsifier in load_contract(CONTRACT).falsifiers}
    assert {case.falsifier for case in drawn.cases} <= known
    must = {(c.given["kind"], c.falsifier) for c in drawn.cases if c.must_claim}
    assert must == {("Q4_K", "rows_equal_alone"), ("Q4_K", "products_are_true")}


def test_names_that_would_collide_are_told_apart(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path, {"a b": "F32", "a_b": "F32", "\n[0]": "F32", "é" * 80: "F32"}, rows=3
    )
    drawn = sample(str(path), 12, 0)
    assert len({case.id for case in drawn.cases}) == len(drawn.cases)
    assert all("\n" not in line and len(line) < 200 for line in drawn.lines())
    assert all("\n" not in case.repro for case in drawn.cases)


def test_real_rows_are_judged_and_hold(foreign: Path) -> None:
    drawn = sample(str(foreign), 12, 3)
    entry = gguf.GGUFReader(foreign).tensors[0]
    case = next(c for c in cpu_cases(drawn) if c.given["tensor"] == entry.name)
    first = case.given["first"]
    assert load_rows(case, "Q4_K", 7, 256).tobytes() == entry.data[first:first + 7, :144].tobytes()
    outcomes = {case.falsifier: judge_case(case, SUBJECT).worst for case in cpu_cases(drawn)}
    assert set(outcomes) == {"rows_equal_alone", "products_are_true",
                             "products_equal_integer_arithmetic"}


@pytest.mark.tier("interpret")
def test_kernels_hold_on_real_rows_under_the_interpreter(tmp_path: Path) -> None:
    drawn = sample(str(write_gguf(tmp_path, {"a": "Q4_K", "b": "Q4_K", "c": "F16"})), 12, 0)
    cases = [case for case in drawn.cases if case.tier == "interpret"]
    assert sorted(case.given["kind"] for case in cases) == ["F16", "F16", "Q4_K", "Q4_K"]
    for case in cases:
        judge_case(case, SUBJECT)


@pytest.mark.parametrize(("mutant", "rule"), [
    ("scale_of_the_next_sub_block", "truth"), ("other_kernel_above_eight_rows", "twin"),
    ("split_of_k_by_width", "twin"), ("eight_bit_activations", "truth")])
def test_wrong_products_die_on_real_rows(tmp_path: Path, mutant: str, rule: str) -> None:
    drawn = sample(str(write_gguf(tmp_path, {"a": "Q4_K"})), 1, 0)
    wrong = MUTANTS[mutant](SUBJECT)
    broken = []
    for case in cpu_cases(drawn):
        try:
            judge_case(case, wrong)
        except ParityBroken as death:
            broken.append(death.finding.rule)
        except Declined:
            continue
    assert rule in broken


def test_budget_over_too_few_outputs_is_declined(tmp_path: Path) -> None:
    drawn = sample(str(write_gguf(tmp_path, {"a": "Q4_K"}, rows=8)), 1, 0)
    case = next(c for c in cpu_cases(drawn) if c.falsifier == "products_are_true")
    own = Candidate("mine", type("Own", (), {"gemv_rows": staticmethod(lambda w, x, out: None)}))
    assert not case.must_claim
    with pytest.raises(Declined, match="64 outputs are needed, but the tensor has 8 rows"):
        judge_case(case, replace(SUBJECT, candidate=own))


def test_weights_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    path = write_gguf(tmp_path, {"a": "F32"}, rows=2)
    raw = bytearray(path.read_bytes())
    raw[-4:] = b"\xff\xff\xff\x7f"
    path.write_bytes(raw)
    drawn = sample(str(path), 12, 0)
    assert drawn.cases == ()
    assert drawn.left_out[0].why == "with values that are not finite"


def test_file_that_became_another_is_not_judged(tmp_path: Path, foreign: Path) -> None:
    case = next(cpu_cases(sample(str(foreign), 12, 0)))
    other = tmp_path / "other"
    other.mkdir()
    path = write_gguf(other, {"else": "F32"})
    moved = case.model_copy(update={"given": case.given | {"file": str(path)}})
    with pytest.raises(SuiteError, match="not the file that cases were drawn from"):
        judge_case(moved, SUBJECT)


def test_unusable_files_and_names_are_one_sentence(tmp_path: Path, foreign: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(foreign.read_bytes()[:-5000])
    none = tmp_path / "none.gguf"
    none.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(64))
    for path, named, sentence in ((cut, [], "ends at byte"), (none, [], "no tensors"),
                                  (tmp_path / "x", [], "No such file"),
                                  (tmp_path / "a\udcff", [], "not UTF-8"),
                                  (foreign, ["b"], "has no tensor b")):
        with pytest.raises(InputError, match=sentence) as refusal:
            sample(str(path), 12, 0, named)
        assert "\n" not in str(refusal.value)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch,
         capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Return a function that runs the gate, whose cases take a process: exit code, JSON."""
    run = make_main(command_entry(app, InputError), monkeypatch, capsys, "app", "gate",
                  "--json", "--device", "cpu", "--jobs", "1")

    def run_gate(*argv: object) -> tuple[int, Any]:
        code, out, _ = run(*argv)
        return code, json.loads(out)

    return run_gate


def test_gate_judges_a_candidate_on_a_file(gate: Callable[..., tuple[int, Any]], foreign: Path,
                                           tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def gemv_rows(weight, x, out):\n"
                     "    out.copy_(weight.product(x) * (1 if len(x) < 3 else 1.0001))\n")
    code, result = gate("--phase", "3", "--weights", foreign, "--tensor", "router.weight",
                      "--candidate", f"file:{wrong}")
    assert (code, result["verdict"]) == (1, "FAIL")
    # it holds at m = 2 and within the budget, and integers are not for an arithmetic of its own
    assert (result["failed"], result["passed"], result["declined"]) == (3, 2, 1)
    assert "weights-router.weight-F32-m3" in result["why"][0]
    assert [one["tensor"] for one in result["weights"]["sampled"]] == ["router.weight"]
    assert result["weights"]["left_out"][0]["tensors"] == 2


def test_gate_of_a_file_without_a_tensor_it_can_judge_is_not_a_pass(
        gate: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    path = write_gguf(tmp_path, {}, three_bits=3)
    code, result = gate("--phase", "3", "--weights", path)
    assert (code, result["verdict"], result["cases"]) == (2, "UNMEASURABLE", 0)
    assert result["weights"]["left_out"] == [{"why": "of type Q3_K, which P3 does not know",
                                           "tensors": 3, "example": "blk.0.attn_k.weight"}]
