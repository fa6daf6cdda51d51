"""Traces of the same tokens are compared op by op, and an invalid trace is refused."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rowtwin
from engine.path import Rows
from falsifiers.bisect import trace_compare, trace_files, trace_names
from falsifiers.bisect.paired_runs import BatchRun, Setup, SoloRun, Step, plan
from falsifiers.bisect.search import Bisection
from falsifiers.bisect.trace import Trace
from falsifiers.bisect.trace_compare import Bounds, Comparison
from falsifiers.bisect.trace_names import NameMap
from falsifiers.judging.errors import SuiteError
from falsifiers.tensor_files.safetensors_file import read_tensors, write_tensors
from phases.p5_batched_gdn import mutants as p5
from phases.p6_batched_attention import mutants as p6
from reports import trace_map

STEPS = plan(3, 2, 4, 509)
WRITER = Path(__file__).parents[3] / "docs" / "examples" / "trace_writer.py"


def setup(phase: str, mutant: str | None = None) -> Setup:
    subject, model = rowtwin.assemble(phase, None), rowtwin.load_model("nano")
    banks = {"p5": p5.MUTANTS, "p6": p6.MUTANTS}
    build = banks[phase][mutant] if mutant else None
    return Setup(mutant or phase, "a reference", model,
                 lambda: (build(subject) if build else subject).path, None, model,
                 subject.path, Rows)


def record_batch(folder: Path, phase: str, mutant: str | None = None) -> Path:
    batch = setup(phase, mutant)
    run = BatchRun(batch, batch.path(), STEPS, 3)
    trace_files.record_trace(folder, run, STEPS, {"engine": batch.name})
    return folder


@pytest.fixture(scope="module")
def solo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "solo"
    trace_files.record_trace(folder, SoloRun(setup("p1"), None, STEPS), STEPS, {"engine": "solo"})
    return folder


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "wrong"
    return record_batch(folder, "p5", "strength_through_bfloat16")


def compare(got: Path, want: Path, names: NameMap | None = None,
            bounds: Bounds | None = None) -> Comparison:
    return trace_compare.compare_traces(
        trace_files.load_trace(got), trace_files.load_trace(want), names or NameMap(), bounds)


def test_right_batch_agrees_with_its_solo_rows(tmp_path: Path, solo: Path) -> None:
    found = compare(record_batch(tmp_path / "a", "p6"), solo)
    assert found.first_difference is None
    assert found.report.compared > 400
    assert found.report.not_compared == []
    assert {cell.status for cell in found.cells.values()} == {"equal"}
    assert found.layers == ("embed", "0", "1", "output_norm", "head", "logits")
    page = trace_map.page(found)
    assert "✓ AGREED" in page
    assert ' first"' not in page


@pytest.mark.parametrize("mutant", ["", "keys_of_the_last_row"])
def test_two_traces_differ_where_a_bisection_reports(tmp_path: Path, solo: Path, wrong: Path,
                                                     mutant: str) -> None:
    found = compare(record_batch(tmp_path / "wrong", "p6", mutant) if mutant else wrong, solo)
    batch = setup("p6", mutant) if mutant else setup("p5", "strength_through_bfloat16")
    bisected = Bisection(batch, STEPS, 3).find_first(batch.path())
    assert found.first_difference is not None
    assert bisected is not None
    place = bisected.place
    assert found.report.place == place
    assert found.report.row == STEPS[place.step].slots.index(place.slot)
    first = found.cells[place.step, place.op.partition(".")[0]]
    assert first.status == "differ"
    assert found.first_difference in first.differences


def test_bounds_accept_close_tensors_and_report_others(tmp_path: Path, solo: Path,
                                                       wrong: Path) -> None:
    close = compare(wrong, solo, bounds=Bounds(0.9, 0.2))
    assert close.first_difference is None
    assert {cell.status for cell in close.cells.values()} == {"equal", "within"}
    strict = compare(wrong, solo, bounds=Bounds(1 - 1e-15, 1e-12))
    assert strict.first_difference is not None
    assert strict.first_difference.place.op == "0.gates"
    with_nan = shutil.copytree(wrong, tmp_path / "nan")
    for path in with_nan.glob("*.safetensors"):
        tensors, metadata = read_tensors(path, 1 << 30)
        tensors = {key: torch.full_like(x, torch.nan) for key, x in tensors.items()}
        write_tensors(path, tensors, metadata)
    found = compare(with_nan, solo, bounds=Bounds(0.1, 0.9))
    assert {cell.status for cell in found.cells.values()} == {"differ"}


def record_foreign(folder: Path) -> Path:
    """Record a batch with the writer of the docs, under another engine's names."""
    writer = runpy.run_path(str(WRITER))["TraceWriter"](folder, "other", "nano")
    batch = setup("p4")
    run = BatchRun(batch, batch.path(), STEPS, 3)
    for step in STEPS:
        run.join(step)
        trace = Trace()
        run.advance(step, trace)
        writer.begin(step.spans())
        ops = list(dict.fromkeys(op for op, _ in trace.order))
        for op in ops:
            if op in ("output_norm", "head"):
                continue
            x = torch.cat([torch.stack(trace.reports[op, slot]["output"]) for slot in step.slots])
            layer, _, rest = op.partition(".")
            name = f"model.layers.{layer}.{rest.removeprefix('project.')}" if rest else op
            writer.tensor(name, "result", x.flatten(1))
        writer.end()
    return folder


NAMES = """\
ops:
  model.layers.{layer}.attn_qkv: "{layer}.project.attn_qkv"
  model.layers.{layer}.delta_step: "{layer}.delta_step"
  model.layers.{layer}.silu_mul: null
tensors:
  result: output
"""


def test_engine_with_other_names_and_shapes_is_compared(tmp_path: Path, solo: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(NAMES)
    other = record_foreign(tmp_path / "other")
    found = compare(other, solo, trace_names.load_names(path))
    assert found.first_difference is None
    ops = {line.id for step in trace_files.load_trace(solo).steps for line in step.tensors}
    compared = {op for op in ops if op not in found.report.not_compared
                or op.endswith(("attn_qkv", "delta_step"))}
    assert found.report.compared >= 3 * len(STEPS)
    assert {"0.project.attn_qkv", "0.delta_step", "embed"} <= compared
    assert "model.layers.0.gates" in found.report.not_compared
    assert not any("model.layers.0.silu_mul" in op for op in found.report.not_compared)
    with pytest.raises(SuiteError, match="nothing can be compared: map the names with --names"):
        compare(other, solo)


def test_writer_of_the_docs_is_short() -> None:
    assert len([line for line in WRITER.read_text().splitlines() if line.strip()]) <= 41


def index(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]


def edit_index(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        lines = index(folder)
        change(lines)
        (folder / "index.jsonl").write_text("\n".join(map(json.dumps, lines)))

    return edit


def _linked(folder: Path) -> None:
    path = folder / "step-000000.safetensors"
    path.rename(folder / "there")
    path.symlink_to(folder / "there")


@pytest.mark.parametrize(("damage", "sentence"), [
    (shutil.rmtree, "is not a directory of a trace"),
    (lambda folder: (folder / "index.jsonl").unlink(), "index.jsonl is missing"),
    (lambda folder: (folder / "index.jsonl").write_bytes(b""), "has no step"),
    (lambda folder: (folder / "index.jsonl").write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
    (lambda folder: (folder / "index.jsonl").write_text("[" * 5000), r"jsonl:1 is not JSON"),
    (lambda folder: (folder / "index.jsonl").write_text("1" * 5000), r"jsonl:1 is not JSON"),
    (lambda folder: (folder / "index.jsonl").write_text("{}"), r"jsonl:1: format: Field required"),
    (edit_index(lambda lines: lines[0].update(version=2)), r"jsonl:1: version: "),
    (edit_index(lambda lines: lines.pop(1)), r"jsonl:2: a tensor comes before the first step"),
    (edit_index(lambda lines: lines.append(lines[1])), r"step 0 comes after step 1"),
    (edit_index(lambda lines: lines[2].update(slot=9)), r"jsonl:3: slot 9 has no row in step 0"),
    (edit_index(lambda lines: lines[1].update(file="../../etc/passwd")), r"jsonl:2: file: "),
    (edit_index(lambda lines: lines[2].update(shape=[1 << 40, 1 << 40])), "but the index says F32"),
    (edit_index(lambda lines: lines[2].update(shape=[0, 4])), r"jsonl:3: shape.0: "),
    (edit_index(lambda lines: lines[2].update(dtype="BOOL")), r"jsonl:3: dtype: .*'F64'"),
    (edit_index(lambda lines: lines[2].update(dtype="\x1b[2J")), r"jsonl:3: dtype: [ -~]*$"),
    (edit_index(lambda lines: lines[1]["rows"].append(lines[1]["rows"][0])),
     r"jsonl:2: a slot has two rows in step 0"),
    (lambda folder: (folder / "index.jsonl").write_text('{"format": "x", "format": "y"}'),
     r"jsonl:1 is not JSON: an object repeats a key"),
    (edit_index(lambda lines: lines[2].update(op="a\x1b[31m")), r"jsonl:3: op: "),
    (edit_index(lambda lines: lines[2].update(name="a\ud800")), r"jsonl:3: name: "),
    (edit_index(lambda lines: lines[2].update(dtype="F16")), "but the index says F16"),
    (edit_index(lambda lines: lines[2].update(tensor="none")), "has no tensor 'none', which the"),
    (edit_index(lambda lines: lines.insert(3, lines[2])), "'output' of 'embed' twice for slot"),
    (edit_index(lambda lines: lines[1]["rows"][0].update(position=1)),
     "gives slot 3 other tokens or another position"),
    (_linked, "is a symbolic link, which is not followed"),
    (lambda folder: (folder / "step-000000.safetensors").unlink(), "safetensors is missing"),
    (lambda folder: (folder / "step-000000.safetensors").write_bytes(b"\xff" * 99),
     "is not a safetensors file")])
def test_invalid_trace_is_refused_in_one_sentence(
        tmp_path: Path, solo: Path, damage: Callable[[Path], object], sentence: str) -> None:
    wrong = shutil.copytree(solo, tmp_path / "wrong")
    damage(wrong)
    with pytest.raises(SuiteError, match=sentence) as refused:
        compare(wrong, solo)
    assert "\n" not in str(refused.value)


def test_unicode_line_separators_do_not_end_a_line(tmp_path: Path, solo: Path) -> None:
    named = shutil.copytree(solo, tmp_path / "named")
    path = named / "index.jsonl"
    path.write_text(path.read_text().replace('"engine"', '"note": "a\u2028b\x85c", "engine"', 1))
    assert compare(named, solo).first_difference is None


@pytest.mark.parametrize("exists", [False, True])
def test_interrupted_run_leaves_no_files(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "cut" if exists else tmp_path / "new" / "cut"
    if exists:
        folder.mkdir()
    succeeds = iter([True, False])

    class FailingRun(SoloRun):
        def join(self, step: Step) -> None:
            if not next(succeeds):
                raise SuiteError("the step failed")
            super().join(step)

    run = FailingRun(setup("p1"), None, STEPS)
    with pytest.raises(SuiteError, match="the step failed"):
        trace_files.record_trace(folder, run, STEPS, {"engine": "cut"})
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


def test_f64_values_are_not_narrowed_by_bounds(tmp_path: Path) -> None:
    for name, value in (("a", 1e300), ("b", 1e301)):
        (tmp_path / name).mkdir()
        x = torch.full((1, 2), value, dtype=torch.float64)
        write_tensors(tmp_path / name / "s", {"0": x}, {})
        (tmp_path / name / "index.jsonl").write_text("\n".join(map(json.dumps, (
            {"format": "rowtwin-trace", "version": 1},
            {"step": 0, "file": "s", "rows": [{"slot": 0, "position": 0, "tokens": [1]}]},
            {"slot": 0, "layer": None, "op": "x", "name": "output", "tensor": "0", "dtype": "F64",
             "shape": [1, 2]}))))
    first = compare(tmp_path / "a", tmp_path / "b", bounds=Bounds(0.99, 0.1)).first_difference
    assert first is not None
    assert first.note == ""
    assert first.values is not None
    assert first.values.got == "0x7e37e43c8800759c"


def test_map_marks_the_first_place_once_and_escapes_html(tmp_path: Path, solo: Path,
                                                         wrong: Path) -> None:
    named = shutil.copytree(wrong, tmp_path / "named")
    edit_index(lambda lines: lines[0].update(engine="<script>alert(1)</script>"))(named)
    found = compare(named, solo)
    page = trace_map.page(found)
    assert page.count(' first"') == 1
    assert page.count("the first divergence</span>") == 1
    assert "<script" not in page
    assert not re.search(r"(src|href)=\"(?!#|data:,)", page)
    assert found.first_difference is not None
    assert found.first_difference.values is not None
    assert found.first_difference.values.got in page
    for anchor in re.findall(r"href=\"#([^\"]+)\"", page):
        assert f'id="{anchor}"' in page
