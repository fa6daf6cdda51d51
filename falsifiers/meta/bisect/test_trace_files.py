"""Traces of the same tokens are held together op by op, and what is no trace is refused."""

from __future__ import annotations

import importlib.util
import json
import re
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
    wrong = banks[phase][mutant] if mutant else None
    return Setup(mutant or phase, "a peer", model,
                 lambda: (wrong(subject) if wrong else subject).path, None, model,
                 subject.path, Rows)


def batched(folder: Path, phase: str, mutant: str | None = None) -> Path:
    one = setup(phase, mutant)
    trace_files.record_trace(
        folder, BatchRun(one, one.path(), STEPS, 3), STEPS, {"engine": one.name}
    )
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "alone"
    trace_files.record_trace(folder, SoloRun(setup("p1"), None, STEPS), STEPS, {"engine": "alone"})
    return folder


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "wrong"
    return batched(folder, "p5", "strength_through_bfloat16")


def held(got: Path, want: Path, names: NameMap | None = None,
         bounds: Bounds | None = None) -> Comparison:
    return trace_compare.compare_traces(
        trace_files.load_trace(got), trace_files.load_trace(want), names or NameMap(), bounds
    )


def test_right_batch_agrees_with_its_rows_alone(tmp_path: Path, alone: Path) -> None:
    found = held(batched(tmp_path / "a", "p6"), alone)
    assert found.first_difference is None
    assert found.report.compared > 400
    assert found.report.not_compared == []
    assert {cell.status for cell in found.cells.values()} == {"equal"}
    assert found.layers == ("embed", "0", "1", "output_norm", "head", "logits")
    page = trace_map.page(found)
    assert "✓ AGREED" in page
    assert ' first"' not in page


@pytest.mark.parametrize("mutant", ["", "keys_of_the_last_row"])
def test_two_traces_part_where_a_bisection_says(tmp_path: Path, alone: Path, wrong: Path,
                                                mutant: str) -> None:
    found = held(batched(tmp_path / "wrong", "p6", mutant) if mutant else wrong, alone)
    one = setup("p6", mutant) if mutant else setup("p5", "strength_through_bfloat16")
    bisected = Bisection(one, STEPS, 3).find_first(one.path())
    assert found.first_difference is not None
    assert bisected is not None
    place = bisected.place
    assert found.report.place == place
    assert found.report.row == STEPS[place.step].slots.index(place.slot)
    first = found.cells[place.step, place.op.partition(".")[0]]
    assert first.status == "differ"
    assert found.first_difference in first.differences


def test_bounds_take_what_is_close_and_show_what_is_not(tmp_path: Path, alone: Path,
                                                        wrong: Path) -> None:
    close = held(wrong, alone, bounds=Bounds(0.9, 0.2))
    assert close.first_difference is None
    assert {cell.status for cell in close.cells.values()} == {"equal", "within"}
    strict = held(wrong, alone, bounds=Bounds(1 - 1e-15, 1e-12))
    assert strict.first_difference is not None
    assert strict.first_difference.place.op == "0.gates"
    zero = shutil.copytree(wrong, tmp_path / "nan")
    for path in zero.glob("*.safetensors"):
        tensors, told = read_tensors(path, 1 << 30)
        write_tensors(
            path, {key: torch.full_like(x, torch.nan) for key, x in tensors.items()}, told
        )
    assert {c.status for c in held(zero, alone, bounds=Bounds(0.1, 0.9)).cells.values()} == {
        "differ"
    }


def foreign(folder: Path, alone: Path) -> Path:
    """Write the batch as another engine would, by the writer of the docs and under its names."""
    spec = importlib.util.spec_from_file_location("trace_writer", WRITER)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    writer = made.TraceWriter(folder, "other", "nano")
    one = setup("p4")
    lane = BatchRun(one, one.path(), STEPS, 3)
    for step in STEPS:
        lane.join(step)
        trace = Trace()
        lane.advance(step, trace)
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


def test_engine_with_other_names_and_shapes_is_compared(tmp_path: Path, alone: Path) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(NAMES)
    other = foreign(tmp_path / "other", alone)
    found = held(other, alone, trace_names.load_names(path))
    assert found.first_difference is None
    compared = {
        op
        for step in trace_files.load_trace(alone).steps
        for op in (t.id for t in step.tensors)
        if op not in found.report.not_compared or op.endswith(("attn_qkv", "delta_step"))
    }
    assert found.report.compared >= 3 * len(STEPS)
    assert {"0.project.attn_qkv", "0.delta_step", "embed"} <= compared
    assert "model.layers.0.gates" in found.report.not_compared
    assert not any("model.layers.0.silu_mul" in op for op in found.report.not_compared)
    with pytest.raises(SuiteError, match="nothing can be compared; --names FILE maps names"):
        held(other, alone)


def test_writer_of_the_docs_is_short() -> None:
    assert len([line for line in WRITER.read_text().splitlines() if line.strip()]) <= 41


def index(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]


def rewritten(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], object]:
    def harm(folder: Path) -> None:
        lines = index(folder)
        change(lines)
        (folder / "index.jsonl").write_text("\n".join(map(json.dumps, lines)))

    return harm


def _linked(folder: Path) -> None:
    path = folder / "step-000000.safetensors"
    path.rename(folder / "there")
    path.symlink_to(folder / "there")


@pytest.mark.parametrize(("harm", "sentence"), [
    (shutil.rmtree, "is not a directory of a trace"),
    (lambda folder: (folder / "index.jsonl").unlink(), "index.jsonl is missing"),
    (lambda folder: (folder / "index.jsonl").write_bytes(b""), "holds no step"),
    (lambda folder: (folder / "index.jsonl").write_bytes(b"\xff\xfe"), "is not UTF-8 text"),
    (lambda folder: (folder / "index.jsonl").write_text("[" * 5000), r"jsonl:1: is not JSON"),
    (lambda folder: (folder / "index.jsonl").write_text("1" * 5000), r"jsonl:1: is not JSON"),
    (lambda folder: (folder / "index.jsonl").write_text("{}"), r"jsonl:1: format: Field required"),
    (rewritten(lambda lines: lines[0].update(version=2)), r"jsonl:1: version: "),
    (rewritten(lambda lines: lines.pop(1)), r"jsonl:2: a tensor stands before any step"),
    (rewritten(lambda lines: lines.append(lines[1])), r"step 0 comes after step 1"),
    (rewritten(lambda lines: lines[2].update(slot=9)), r"jsonl:3: slot 9 has no row in step 0"),
    (rewritten(lambda lines: lines[1].update(file="../../etc/passwd")), r"jsonl:2: file: "),
    (rewritten(lambda lines: lines[2].update(shape=[1 << 40, 1 << 40])), "but the index says F32"),
    (rewritten(lambda lines: lines[2].update(shape=[0, 4])), r"jsonl:3: shape.0: "),
    (rewritten(lambda lines: lines[2].update(dtype="BOOL")), r"jsonl:3: dtype: .*'F64'"),
    (rewritten(lambda lines: lines[2].update(dtype="\x1b[2J")), r"jsonl:3: dtype: [ -~]*$"),
    (rewritten(lambda lines: lines[1]["rows"].append(lines[1]["rows"][0])),
     r"jsonl:2: a slot has two rows in step 0"),
    (lambda folder: (folder / "index.jsonl").write_text('{"format": "x", "format": "y"}'),
     r"jsonl:1: is not JSON: a key stands twice"),
    (rewritten(lambda lines: lines[2].update(op="a\x1b[31m")), r"jsonl:3: op: "),
    (rewritten(lambda lines: lines[2].update(name="a\ud800")), r"jsonl:3: name: "),
    (rewritten(lambda lines: lines[2].update(dtype="F16")), "but the index says F16"),
    (rewritten(lambda lines: lines[2].update(tensor="none")), "has no tensor 'none', which the"),
    (rewritten(lambda lines: lines.insert(3, lines[2])), "'output' of 'embed' twice for slot"),
    (rewritten(lambda lines: lines[1]["rows"][0].update(position=1)),
     "gives slot 3 other tokens or another position"),
    (_linked, "is a symbolic link, which is not followed"),
    (lambda folder: (folder / "step-000000.safetensors").unlink(), "safetensors is missing"),
    (lambda folder: (folder / "step-000000.safetensors").write_bytes(b"\xff" * 99),
     "is not a safetensors file")])
def test_trace_that_is_none_is_refused_in_one_sentence(
        tmp_path: Path, alone: Path, harm: Callable[[Path], object], sentence: str) -> None:
    wrong = shutil.copytree(alone, tmp_path / "wrong")
    harm(wrong)
    with pytest.raises(SuiteError, match=sentence) as refused:
        held(wrong, alone)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("text", "sentence"), [
    ("ops: [a]", "ops: Input should be a valid dictionary"), ("more: {}", "more: Extra inputs"),
    ("ops: {a: {b: c}}", "ops.a: Input should be a valid string"), ("ops: {", "is not YAML"),
    ("ops: {'{layer}.{layer}': a}", "may stand once"), ("ops: {a: '{layer}'}", "may stand once"),
    ("ops: {a: b, a: c}", "duplicate key 'a'"), ("ops: {a: ''}", "ops.a: "),
    ('ops: {a: "\\e[2J"}', "ops.a: "), ("- a", "the whole: "),
    ("!!python/object:os.system {}", "is not YAML")])
def test_names_that_are_none_are_refused_in_one_sentence(tmp_path: Path, text: str,
                                                         sentence: str) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=re.escape(sentence)) as refused:
        trace_names.load_names(path)
    assert "\n" not in str(refused.value)


def test_line_separators_in_words_of_an_engine_end_no_line(tmp_path: Path, alone: Path) -> None:
    named = shutil.copytree(alone, tmp_path / "named")
    path = named / "index.jsonl"
    path.write_text(path.read_text().replace('"engine"', '"note": "a\u2028b\x85c", "engine"', 1))
    assert held(named, alone).first_difference is None


@pytest.mark.parametrize("there", [False, True])
def test_run_that_is_broken_off_leaves_no_trace(tmp_path: Path, *, there: bool) -> None:
    folder = tmp_path / "cut" if there else tmp_path / "new" / "cut"
    if there:
        folder.mkdir()
    one, later = setup("p1"), iter([True, False])

    class Breaks(SoloRun):
        def join(self, step: Step) -> None:
            if not next(later):
                raise SuiteError("the step failed")
            super().join(step)

    with pytest.raises(SuiteError, match="the step failed"):
        trace_files.record_trace(folder, Breaks(one, None, STEPS), STEPS, {"engine": "cut"})
    assert list(tmp_path.rglob("*")) == ([folder] if there else [])


def test_bounds_narrow_no_values(tmp_path: Path) -> None:
    for name, value in (("a", 1e300), ("b", 1e301)):
        (tmp_path / name).mkdir()
        write_tensors(
            tmp_path / name / "s", {"0": torch.full((1, 2), value, dtype=torch.float64)}, {}
        )
        (tmp_path / name / "index.jsonl").write_text("\n".join(map(json.dumps, (
            {"format": "rowtwin-trace", "version": 1},
            {"step": 0, "file": "s", "rows": [{"slot": 0, "position": 0, "tokens": [1]}]},
            {"slot": 0, "layer": None, "op": "x", "name": "output", "tensor": "0", "dtype": "F64",
             "shape": [1, 2]}))))
    first = held(tmp_path / "a", tmp_path / "b", bounds=Bounds(0.99, 0.1)).first_difference
    assert first is not None
    assert first.note == ""
    assert first.values is not None
    assert first.values.got == "0x7e37e43c8800759c"


def test_map_marks_the_first_place_once_and_escapes_what_is_foreign(tmp_path: Path,
                                                                    alone: Path,
                                                                    wrong: Path) -> None:
    named = shutil.copytree(wrong, tmp_path / "named")
    rewritten(lambda lines: lines[0].update(engine="<script>alert(1)</script>"))(named)
    found = held(named, alone)
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
