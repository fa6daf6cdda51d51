"""Steps and single ops as files: correct answers pass, and one wrong bit is located."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from falsifiers.meta.vectors.test_vectors_state import some
from falsifiers.meta.vectors.vector_fixtures import (
    answer_rightly,
    change_answer,
    finding_of,
    flip_last_bit,
    row_slots,
    step_answer_file,
)
from falsifiers.tensor_files.safetensors_file import MAX_HEADER_BYTES, read_tensors, write_tensors
from falsifiers.vectors import exchange, manifest
from falsifiers.vectors.exchange import VectorSet

SOME_STEPS = ("m1", "m3", "chunks", "nan-tenant", "refusals")
OPS = {"norm": "norm", "add_norm": "add_norm", "gated_norm": "gated_norm", "silu_mul": "silu_mul",
       "argmax": "argmax", "embed-Q6_K": "embed", "project-Q4_K": "gemv_rows"}
"""Cases of single ops, and the op that they call."""


@cache
def ops() -> VectorSet:
    """Return P4's cases of single ops."""
    return some("4", lambda case: "model" not in case.given)


@cache
def steps() -> VectorSet:
    """Return some of P4's cases of steps."""
    return some("4", lambda case: case.name.removeprefix("vectors-step-") in SOME_STEPS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("vectors")
    for name, vectors in (("ops", ops()), ("steps", steps())):
        exchange.export(folder / name, vectors)
    return {name: folder / name for name in ("ops", "steps")}


def test_right_answers_pass_and_every_op_is_called(exported: dict[str, Path],
                                                   tmp_path: Path) -> None:
    for name, vectors in (("ops", ops()), ("steps", steps())):
        folder = answer_rightly(exported[name], tmp_path / name)
        verdicts = exchange.check(folder, vectors)
        assert {v.outcome for v in verdicts} == {"passed"}
        assert {worst.rung for v in verdicts for worst in v.worst} <= {"bits"}
    called = {call.op for name in exported for call in manifest.load_manifest(exported[name]).calls}
    assert called == {*OPS.values(), "step"}


@pytest.mark.parametrize("name", OPS)
def test_one_bit_of_one_row_of_an_op_is_located(exported: dict[str, Path], tmp_path: Path,
                                                name: str) -> None:
    folder = answer_rightly(exported["ops"], tmp_path / "p4")
    (call,) = [call for call in manifest.load_manifest(folder).calls if call.op == OPS[name]
               and call.outputs["out"].shape[0] == 3
               and any(f"rows_equal_solo[cpu-vectors-{name}]" in case for case in call.cases)]
    path = folder / "outputs" / f"{call.name}.safetensors"
    at = (1, *(7 % n for n in call.outputs["out"].shape[1:]))
    if name == "argmax":
        change_answer(path, lambda tensors: tensors["out"][1].add_(1))
    else:
        change_answer(path, lambda tensors: flip_last_bit(tensors, "out", at))
    found = finding_of(exchange.check(folder, ops()), name)
    assert (found.rule, found.rung, found.differing) == ("twin", "bits", 1)
    assert (found.where["m"], found.where["row"]) == (3, 1)
    assert found.where["element"] == str([*at[1:]])
    op = {"add_norm": "norm"}.get(name, name.partition("-")[0])
    assert found.sentence.startswith(f"{op}[m 3, row 1, element {[*at[1:]]}]={found.got}, but ")


def test_one_bit_of_a_residual_sum_is_located(exported: dict[str, Path], tmp_path: Path) -> None:
    folder = answer_rightly(exported["ops"], tmp_path / "p4")
    name = next(call.name for call in manifest.load_manifest(folder).calls
                if call.name.startswith("add_norm-3x300-")
                and any("rows_equal_solo" in case for case in call.cases))
    path = folder / "outputs" / f"{name}.safetensors"
    change_answer(path, lambda tensors: flip_last_bit(tensors, "total", (2, 299)))
    found = finding_of(exchange.check(folder, ops()), "add_norm")
    assert found.sentence.startswith(f"sum[m 3, row 2, element [299]]={found.got}, but should be ")


@pytest.mark.parametrize("name", ["logits", "0.conv", "0.delta", "1.k", "1.v"])
def test_one_bit_of_one_row_of_a_step_is_located(exported: dict[str, Path], tmp_path: Path,
                                                 name: str) -> None:
    folder = answer_rightly(exported["steps"], tmp_path / "p4")
    path = step_answer_file(folder, "m3", 3)
    slot = row_slots(exported["steps"], path)[1]
    inside = {"logits": (400,), "0.conv": (9, 2), "0.delta": (3, 5, 7), "1.k": (0, 1, 200),
              "1.v": (1, 0, 9)}[name]
    at = (1 if name == "logits" else slot, *inside)
    change_answer(path, lambda tensors: flip_last_bit(tensors, name, at))
    found = finding_of(exchange.check(folder, steps()), "step-m3")
    assert (found.rule, found.rung, found.ulps, found.differing) == ("twin", "bits", 1, 1)
    assert (found.where["row"], found.where["slot"]) == (1, slot)
    shown = name if name == "logits" else f"state {name}"
    assert found.sentence.startswith(f"{shown}[row 1, slot {slot}, element {[*inside]}]=")


def test_slot_that_a_step_does_not_name_must_not_change(exported: dict[str, Path],
                                                        tmp_path: Path) -> None:
    folder = answer_rightly(exported["steps"], tmp_path / "p4")
    path = step_answer_file(folder, "m3", 3)
    (idle,) = {0, 1, 2, 3} - set(row_slots(exported["steps"], path))
    change_answer(path, lambda tensors: flip_last_bit(tensors, "0.delta", (idle, 0, 0, 0)))
    found = finding_of(exchange.check(folder, steps()), "step-m3")
    assert (found.rule, found.rung, found.where["slot"]) == ("law", "frame", idle)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".there"))
    path.symlink_to(path.with_suffix(".there"))


def _refused(path: Path) -> None:
    write_tensors(path, {}, {"arithmetic": "exact-23", "refused": "no\x1b"})


def _to(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], object]:
    return lambda path: change_answer(path, lambda x: x.update({name: change(x[name])}))


@pytest.mark.parametrize(
    ("damage", "rung", "sentence"),
    [
        (Path.unlink, "crash", "is missing"),
        (_link, "crash", "is a symbolic link"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), "crash", "not a safetensors file"),
        (lambda path: os.truncate(path, (1 << 30) + MAX_HEADER_BYTES),
         "crash", "bytes, but at most"),
        (lambda path: change_answer(path, lambda x: x.pop("0.delta")),
         "shape", "has no tensor '0.delta'"),
        (lambda path: change_answer(path, lambda x: x.update(a=x["logits"] + 1)),
         "shape", "has an unexpected tensor a"),
        (_to("logits", lambda x: x[:2]), "shape", r"logits has shape \[2, 509\]"),
        (_to("1.k", lambda x: x[:, :15]), "shape", "1.k has shape"),
        (_to("0.conv", lambda x: x.double()), "dtype", "0.conv has dtype torch.float64"),
        (_to("0.delta", lambda x: x.double()), "crash", "bytes, but at most"),
        (_to("logits", lambda x: x.half()), "dtype", "logits has dtype torch.float16"),
        (_to("logits", lambda x: x.fill_(torch.nan)), "finite", "NaN"),
        (_to("0.delta", lambda x: x.fill_(torch.nan)), "bits", r"state 0\.delta.*NaN"),
        (_refused, "law", r"a valid step was refused, the call step-m3-.*: 'no\\x1b'"),
    ],
)
def test_step_that_cannot_be_compared_is_a_verdict(
        exported: dict[str, Path], tmp_path: Path, damage: Callable[[Path], object], rung: str,
        sentence: str) -> None:
    folder = answer_rightly(exported["steps"], tmp_path / "p4")
    damage(step_answer_file(folder, "m3", 3))
    found = finding_of(exchange.check(folder, steps()), "step-m3")
    assert found.rung == rung
    assert re.search(sentence, found.sentence)
    assert "\n" not in found.sentence


def test_model_and_shapes_of_a_manifest_are_not_trusted(exported: dict[str, Path],
                                                        tmp_path: Path) -> None:
    folder = answer_rightly(exported["steps"], tmp_path / "p4")
    data = json.loads((folder / "manifest.json").read_text())
    for call in data["calls"]:
        call["facts"].update(model="../../../etc/passwd", capacity="-1", slots="9" * 30)
        call["outputs"] = {"logits": {"dtype": "F32", "shape": [1 << 40, -3, 1 << 40]}}
    (folder / "manifest.json").write_text(json.dumps(data))
    assert {v.outcome for v in exchange.check(folder, steps())} == {"passed"}


def test_invalid_step_must_be_refused_with_the_value(exported: dict[str, Path],
                                                     tmp_path: Path) -> None:
    folder = answer_rightly(exported["steps"], tmp_path / "p4")
    (case,) = [case for case in steps().cases if case.falsifier == "refusals_change_nothing"]
    (path, *_) = [path for path in sorted((folder / "outputs").iterdir())
                  if "token 509" in read_tensors(path, 1 << 26)[1].get("refused", "")]
    write_tensors(path, {}, {"arithmetic": "exact-23", "refused": "a bad token"})
    refusals = some("4", lambda other: other.id == case.id)
    sentences = [v.finding.sentence for v in exchange.check(folder, refusals) if v.finding]
    assert "says 'a bad token', which does not contain the value 509" in sentences[0]
    call = next(call for call in manifest.load_manifest(folder).calls if call.name == path.stem)
    states = {name: torch.zeros(form.shape) for name, form in call.inputs.items() if "." in name}
    write_tensors(path, {"logits": torch.zeros(2, 509), **states}, {"arithmetic": "exact-23"})
    sentences = [v.finding.sentence for v in exchange.check(folder, refusals) if v.finding]
    assert sentences[0].startswith("a step with a token past the vocabulary was not refused")
    write_tensors(path, {}, {"arithmetic": "exact-23", "declined": "no steps"})
    assert [(v.outcome, v.reason) for v in exchange.check(folder, refusals)] == [
        ("declined", f"{path.name}: no steps")]
    path.unlink()
    sentences = [v.finding.sentence for v in exchange.check(folder, refusals) if v.finding]
    assert sentences == [f"{path} is missing"]
