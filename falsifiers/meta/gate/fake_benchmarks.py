"""Made-up benchmark records for tests, with round numbers."""

from __future__ import annotations

from typing import Any

from falsifiers.gate.benchmark_records import (
    PrefillTime,
    ProductTime,
    ProductTimes,
    StepTime,
    StepTimes,
)

MADE_UP = {"device": "a made-up device", "torch": "0.0", "bandwidth_tb_s": 1.0,
           "measured": "2026-01-31", "digest": "fake"}
SPLIT = {"project.ffn_up": 1.0, "attn_norm": 0.2, "delta_step": 2.0, "attend": 1.0, "head": 0.8}


def step(m: int, context: int = 128, path: str = "p4", **more: Any) -> StepTime:
    """Return a step that takes 1 + m / 4 milliseconds."""
    milliseconds = 1.0 + 0.25 * m
    split = {op: ms * milliseconds / 5 for op, ms in SPLIT.items()}
    return StepTime.model_validate({
        "path": path, "m": m, "context": context, "milliseconds": milliseconds,
        "fastest": milliseconds - 0.1, "slowest": milliseconds + 0.3, "steps": 9,
        "floor": 0.5 + 0.02 * m, "equal_values": 1000 * m, "split": split,
        "kernels": 600, "launches": 600,
        "kernels_a_layer": {"gdn": 20.0, "attention": 15.0, "outside": 3.0}, **more})


def steps(*figures: StepTime, **more: Any) -> StepTimes:
    """Return a record of these steps, by default of six widths at two contexts."""
    usual = tuple(step(m, context) for context in (128, 4096) for m in (1, 2, 4, 8, 16, 32))
    prompt = PrefillTime(path="p4", tokens=2048, seconds=0.25, fastest=0.2, slowest=0.3, runs=3,
                     equal_steps=70)
    return StepTimes.model_validate({
        **MADE_UP, "model": "32 layers, fake", "weight_bytes": 2_500_000_000,
        "state_bytes": 50_000_000, "cache_bytes": 65_536, "figures": figures or usual,
        "prefill": (prompt,), **more})


def products(**more: Any) -> ProductTimes:
    """Return times of two matrices at five widths."""
    figures = tuple(
        ProductTime(name=name, kind="Q4_K", rows=rows, columns=2560, m=m, fastest=2.0, slowest=9.0,
                    microseconds=3.0 + 0.5 * m, floor=rows / 4096)
        for name, rows in (("attn_gate", 4096), ("output", 248320)) for m in (1, 2, 4, 8, 16))
    return ProductTimes.model_validate(
        {**MADE_UP, "quantize_m8_us": 2.0, "figures": figures, **more})
