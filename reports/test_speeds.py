"""Speed on the page: with its conditions, from what is kept, and never beside anything red."""

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
    return fake_evidence.evidence(
        speeds=(StoredBenchmark(steps(), True), StoredBenchmark(products(), False)), **more
    )


def test_page_shows_steps_and_products_with_their_conditions() -> None:
    outline = Outline(text := page(with_speeds()))
    whole = " ".join(outline.texts("main."))
    assert "#0102" not in text
    for words in ("Speed on a device", "a made-up device, torch 0.0, 2026-01-31; of these very "
                  "kernels. 32 layers, made up.", "not known to be of these very kernels",
                  "S7 asks for 0.50", "P4's goal is 1.50", "2,048 tokens in 0.250 s, 8,192",
                  "Quantising eight rows takes 2.0 us"):
        assert words in whole
    assert len([row for row in outline.texts("tbody.") if "4,096" in row]) == 1
    assert outline.tags.count("svg") == 4  # with where the gate's own time went
    named = [value for name, value in outline.attributes if name == "aria-label" and value]
    assert any(value.startswith("32 layers, made up. Medians") for value in named)


def test_page_without_kept_times_says_nothing_of_speed() -> None:
    assert 'id="speed"' not in page(fake_evidence.evidence())


@pytest.mark.parametrize(
    "red",
    [
        {"outcomes": fake_evidence.MIXED_OUTCOMES},
        {"kills": fake_evidence.kills(survivors=("p1/copied",))},
        {"user_model": fake_evidence.user_model_run("failed")},
    ],
)
def test_red_page_shows_no_speed(red: dict[str, Any]) -> None:
    assert 'id="speed"' not in page(with_speeds(**red))


def test_peer_is_drawn_only_beside_its_own_conditions_and_labelled() -> None:
    beside = speed_plots.step_time_plot(steps(**H200))
    assert llama_cpp_baseline.LABEL in beside.svg
    assert llama_cpp_baseline.CONDITIONS in beside.caption
    for other in (steps(), steps(**{**H200, "device": "another"}),
                  steps(step(1, 4096), **H200), steps(**{**H200, "model": "24 layers"})):
        assert llama_cpp_baseline.LABEL not in speed_plots.step_time_plot(other).svg


def test_split_is_drawn_by_family_and_nothing_is_lost() -> None:
    one = step(4, split={"project.attn_q": 1.0, "norm.q": 2.0, "rotate.k": 4.0, "conv_step": 8.0,
                         "gated_norm": 16.0, "argmax": 32.0, "head": 64.0, "silu_mul": 128.0})
    told = speed_plots.time_by_family(one)
    assert told == {"projections": 1.0, "head": 64.0, "recurrence": 24.0, "attention": 4.0,
                    "norms": 2.0, "SiLU": 128.0, "others": 32.0}
    assert speed_plots.step_split_plot(steps(step(4, split={}))) is None


def test_hostile_words_of_kept_figures_are_escaped() -> None:
    hostile = page(
        fake_evidence.evidence(
            speeds=[
                StoredBenchmark(
                    steps(
                        device=fake_evidence.HOSTILE_TEXT,
                        model=fake_evidence.HOSTILE_TEXT,
                        left_out=(fake_evidence.HOSTILE_TEXT,),
                    ),
                    True,
                )
            ]
        )
    )
    assert "<script" not in hostile
    assert Outline(hostile).open == []


def test_kept_times_are_fresh_only_for_the_kernels_that_were_measured(tmp_path: Path) -> None:
    contracts = load_contracts()
    now = phase_digest(contracts["p4"], ROOT)
    for name, digest in (("a", now), ("b", "older"), ("c", "")):
        folder = tmp_path / FOLDER / name
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(steps(digest=digest).model_dump_json())
    (tmp_path / "engine").symlink_to(ROOT / "engine")
    (tmp_path / "phases").symlink_to(ROOT / "phases")
    (tmp_path / "contracts").symlink_to(ROOT / "contracts")
    assert [one.fresh for one in speeds.load_benchmarks(tmp_path, contracts)] == [
        True,
        False,
        False,
    ]
    kept = speeds.load_benchmarks(ROOT, contracts)
    assert len(kept) == len(load_steps(ROOT)) + len(load_products(ROOT)) > 0


README = {"head, 248320x2560 Q6_K": ("output", 248320), "8192x2560 Q5_K": ("attn_qkv", 8192),
          "9216x2560 Q4_K": ("ffn_gate", 9216), "2560x9216 Q6_K": ("ffn_down", 2560),
          "4096x2560 Q4_K": ("attn_gate", 4096)}


def test_readme_quotes_the_products_that_are_kept() -> None:
    kept = load_products(ROOT)[0]

    def line(told: str, name: str, rows: int) -> str:
        mine = {f.m: f for f in kept.figures
                if (f.name, f.rows, f.kind) == (name, rows, told.split()[-1])}
        values = [mine[1].floor, *(mine[m].microseconds for m in (1, 2, 4, 8, 16))]
        return f"| {told} | " + " | ".join(f"{v:.2f}" if v < 9.995 else f"{v:.1f}"
                                           for v in values) + " |"

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    due = [line(told, *place) for told, place in README.items()]
    assert [row for row in text.splitlines() if row.partition(" | ")[0][2:] in README] == due
    assert f"at the {kept.bandwidth_tb_s:.2f} TB/s" in text
    assert f"({kept.quantize_m8_us:.1f} us" in text


def test_readme_quotes_the_steps_that_are_kept() -> None:
    kept = load_steps(ROOT)[0]
    steps = {(f.m, f.context): f for f in kept.figures}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for m, other in llama_cpp_baseline.MILLISECONDS.items():
        near, far = steps[m, 128], steps[m, 4096]
        assert (f"| {m} | {near.floor:.2f} | {near.milliseconds:.2f} | {other} | {far.floor:.2f} | "
                f"{far.milliseconds:.2f} |") in text.splitlines()
    prompt = kept.prefill[0]
    assert f"({prompt.tokens / prompt.seconds:,.0f} tokens/s)" in text


def test_readme_counts_the_device_cases_that_are_kept() -> None:
    kept = {phase: load_receipts(phase, ROOT)[0]
            for phase in ("engine", "p3", "p4", "p5", "p6", "p8")}
    passed = {phase: sum(v.outcome == "passed" for v in one.verdicts)
              for phase, one in kept.items()}
    told = ", ".join(f"{phase if phase == 'engine' else phase.upper()} {count}"
                     for phase, count in passed.items())
    dead = sum(len(one.mutants) for one in kept.values())
    assert all(row.killed_by for one in kept.values() for row in one.mutants)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{sum(passed.values())} device cases ({told})" in text
    assert f"the {dead} mutants of kernels for a device died" in text


def test_the_witness_that_is_kept_is_admitted_and_quoted() -> None:
    path = ROOT / FOLDER / "nvidia-h200/witness-p8.json"
    assert judge_file(path, "4b-shape")[0] == "ADMISSIBLE"
    bands = json.loads(path.read_text())["bands"]
    rates = [f"{band['decode_tok_s']:.0f}" for band in bands]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert [band["m_formed"] for band in bands] == [1, 4, 8, 16]
    assert f"at {', '.join(rates[:-1])} and {rates[-1]} tokens/s a request" in text


def test_the_looped_path_s_witness_is_refused_for_its_rate_and_what_it_lacks() -> None:
    path = ROOT / FOLDER / "nvidia-h200/witness-p1.json"
    said, reasons = judge_file(path, "4b-shape")
    assert (said, [reason["rule"] for reason in reasons]) == ("NOT ADMISSIBLE", ["S2", "S2", "S7"])
    bands = json.loads(path.read_text())["bands"]
    assert [(band["m_formed"], band["result"]) for band in bands] == [(1, "PASS"), (4, "PASS")]
    alone, four = (f"{band['decode_tok_s']:.2f}" for band in bands)
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"a request's {alone} tokens/s fall to {four}" in text
