"""Speed on the report: with its conditions, from stored records, and never on a red report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from contracts.load import load_contracts
from falsifiers.gate.benchmark_records import load_products, load_steps
from falsifiers.gate.receipts import FOLDER, load_receipts, phase_digest
from falsifiers.gate.runner import ROOT
from falsifiers.meta.gate.fake_benchmarks import products, step, steps
from falsifiers.witness.cli import judge_file
from reports import fake_evidence, llama_cpp_baseline, speed_plots, speeds
from reports.evidence import Evidence, StoredBenchmark
from reports.outline import Outline
from reports.render import page

H200 = {"device": llama_cpp_baseline.DEVICE, "model": f"{llama_cpp_baseline.SHAPE} and more"}


def with_speeds(**more: Any) -> Evidence:
    speeds = (StoredBenchmark(steps(), True), StoredBenchmark(products(), False))
    return fake_evidence.evidence(speeds=speeds, **more)


def test_page_shows_steps_and_products_with_their_conditions() -> None:
    outline = Outline(text := page(with_speeds()))
    words = " ".join(outline.texts("main."))
    assert "#0102" not in text
    for expected in ("Speed on a device", "a made-up device, torch 0.0, 2026-01-31; of these very "
                  "kernels. 32 layers, fake.", "not known to be of these very kernels",
                  "S7 asks for 0.50", "P4's goal is 1.50", "2,048 tokens in 0.250 s, 8,192",
                  "Quantising eight rows takes 2.0 us"):
        assert expected in words
    assert len([row for row in outline.texts("tbody.") if "4,096" in row]) == 1
    assert outline.tags.count("svg") == 4  # one is the gate's own time by phase
    named = [value for name, value in outline.attributes if name == "aria-label" and value]
    assert any(value.startswith("32 layers, fake. Medians") for value in named)


def test_page_without_stored_times_has_no_speed_section() -> None:
    assert 'id="speed"' not in page(fake_evidence.evidence())


@pytest.mark.parametrize("red", [
    {"outcomes": fake_evidence.MIXED_OUTCOMES},
    {"kills": fake_evidence.kills(survivors=("p1/copied",))},
    {"user_model": fake_evidence.user_model_run("failed")}])
def test_red_page_shows_no_speed(red: dict[str, Any]) -> None:
    assert 'id="speed"' not in page(with_speeds(**red))


def test_llama_cpp_is_drawn_with_its_label_and_only_for_its_conditions() -> None:
    plot = speed_plots.step_time_plot(steps(**H200))
    assert llama_cpp_baseline.LABEL in plot.svg
    assert llama_cpp_baseline.CONDITIONS in plot.caption
    for other in (steps(), steps(**{**H200, "device": "another"}),
                  steps(step(1, 4096), **H200), steps(**{**H200, "model": "24 layers"})):
        assert llama_cpp_baseline.LABEL not in speed_plots.step_time_plot(other).svg


def test_split_by_family_counts_every_op() -> None:
    figure = step(4, split={"project.attn_q": 1.0, "norm.q": 2.0, "rotate.k": 4.0,
                            "conv_step": 8.0, "gated_norm": 16.0, "argmax": 32.0, "head": 64.0,
                            "silu_mul": 128.0})
    assert speed_plots.time_by_family(figure) == {
        "projections": 1.0, "head": 64.0, "recurrence": 24.0, "attention": 4.0, "norms": 2.0,
        "SiLU": 128.0, "others": 32.0}
    assert speed_plots.step_split_plot(steps(step(4, split={}))) is None


def test_hostile_text_of_stored_times_is_escaped() -> None:
    text = fake_evidence.HOSTILE_TEXT
    stored = StoredBenchmark(steps(device=text, model=text, left_out=(text,)), True)
    hostile = page(fake_evidence.evidence(speeds=[stored]))
    assert "<script" not in hostile
    assert Outline(hostile).open == []


def test_stored_times_are_fresh_only_for_the_measured_kernels(tmp_path: Path) -> None:
    contracts = load_contracts()
    now = phase_digest(contracts["p4"], ROOT)
    for name, digest in (("a", now), ("b", "older"), ("c", "")):
        folder = tmp_path / FOLDER / name
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(steps(digest=digest).model_dump_json())
    (tmp_path / "engine").symlink_to(ROOT / "engine")
    (tmp_path / "phases").symlink_to(ROOT / "phases")
    (tmp_path / "contracts").symlink_to(ROOT / "contracts")
    found = speeds.load_benchmarks(tmp_path, contracts)
    assert [benchmark.fresh for benchmark in found] == [True, False, False]
    assert len(speeds.load_benchmarks(ROOT, contracts)) == \
        len(load_steps(ROOT)) + len(load_products(ROOT)) > 0


MATRICES = {"head, 248320x2560 Q6_K": ("output", 248320), "8192x2560 Q5_K": ("attn_qkv", 8192),
            "9216x2560 Q4_K": ("ffn_gate", 9216), "2560x9216 Q6_K": ("ffn_down", 2560),
            "4096x2560 Q4_K": ("attn_gate", 4096)}


def read_words(name: str) -> str:
    """Return a page of docs/ with every run of white space as one space."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def test_performance_page_quotes_the_stored_times_of_products() -> None:
    stored = load_products(ROOT)[0]

    def line(label: str, name: str, rows: int) -> str:
        by_width = {f.m: f for f in stored.figures
                    if (f.name, f.rows, f.kind) == (name, rows, label.split()[-1])}
        values = [by_width[1].floor, *(by_width[m].microseconds for m in (1, 2, 4, 8, 16))]
        return f"| {label} | " + " | ".join(f"{v:.2f}" if v < 9.995 else f"{v:.1f}"
                                            for v in values) + " |"

    lines = (ROOT / "docs/performance.md").read_text(encoding="utf-8").splitlines()
    expected = [line(label, *matrix) for label, matrix in MATRICES.items()]
    assert [row for row in lines if row.partition(" | ")[0][2:] in MATRICES] == expected
    text = read_words("performance.md")
    assert f"at the {stored.bandwidth_tb_s:.2f} TB/s" in text
    assert f"({stored.quantize_m8_us:.1f} us)" in text


def test_performance_page_quotes_the_stored_times_of_steps() -> None:
    stored = load_steps(ROOT)[0]
    times = {(f.m, f.context): f for f in stored.figures}
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    for m, other in llama_cpp_baseline.MILLISECONDS.items():
        near, far = times[m, 128], times[m, 4096]
        assert (f"| {m} | {near.floor:.2f} | {near.milliseconds:.2f} | {other} | {far.floor:.2f} | "
                f"{far.milliseconds:.2f} |") in text.splitlines()
    prompt = stored.prefill[0]
    assert f"({prompt.tokens / prompt.seconds:,.0f} tokens/s)" in text


def test_performance_page_counts_the_device_cases_of_the_receipts() -> None:
    stored = {phase: load_receipts(phase, ROOT)[0]
              for phase in ("engine", "p3", "p4", "p5", "p6", "p8")}
    passed = {phase: sum(v.outcome == "passed" for v in receipt.verdicts)
              for phase, receipt in stored.items()}
    counts = ", ".join(f"{phase if phase == 'engine' else phase.upper()} {count}"
                       for phase, count in passed.items())
    mutants = [row for receipt in stored.values() for row in receipt.mutants]
    assert all(row.killed_by for row in mutants)
    text = read_words("performance.md")
    assert f"{sum(passed.values())} device cases ({counts})" in text
    assert f"the {len(mutants)} mutants of kernels for a device died" in text


def test_stored_witness_of_p8_is_admissible_and_quoted() -> None:
    path = ROOT / FOLDER / "nvidia-h200/witness-p8.json"
    assert judge_file(path, "4b-shape")[0] == "ADMISSIBLE"
    bands = json.loads(path.read_text())["bands"]
    rates = [f"{band['decode_tok_s']:.0f}" for band in bands]
    assert [band["m_formed"] for band in bands] == [1, 4, 8, 16]
    assert f"at {', '.join(rates[:-1])} and {rates[-1]} tokens/s a request" \
        in read_words("witness.md")


def test_stored_witness_of_p1_is_refused_for_its_rate_and_missing_widths() -> None:
    path = ROOT / FOLDER / "nvidia-h200/witness-p1.json"
    verdict, reasons = judge_file(path, "4b-shape")
    assert (verdict, [reason["rule"] for reason in reasons]) == (
        "NOT ADMISSIBLE", ["S2", "S2", "S7"])
    bands = json.loads(path.read_text())["bands"]
    assert [(band["m_formed"], band["result"]) for band in bands] == [(1, "PASS"), (4, "PASS")]
    solo, four = (f"{band['decode_tok_s']:.2f}" for band in bands)
    assert f"a request's {solo} tokens/s fall to {four}" in read_words("witness.md")
