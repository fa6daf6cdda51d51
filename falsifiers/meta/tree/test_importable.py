"""Modules and names that candidates import, which no rename may remove."""

from __future__ import annotations

import importlib

import pytest

from rowtwin import DECODE_PHASES, SERVING_PHASES, phase_package

NAMES = {
    "engine.path": ("Path", "Rows", "Sink", "check_step"),
    "engine.ops": ("norm", "project", "conv_step", "gates", "delta_step", "attend", "rotate",
                   "gated_norm", "silu_mul", "argmax"),
    "engine.candidate": ("Engine", "PathEngine", "engine_of"),
    "engine.weights": ("EXACT", "ORDERED", "Weight"),
    "engine.state": ("Ints", "Pool", "Refs", "State"),
}
"""By module: the names that a candidate uses."""


@pytest.mark.parametrize("module", NAMES)
def test_names_of_the_engine_are_importable(module: str) -> None:
    assert [name for name in NAMES[module]
            if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("phase", DECODE_PHASES + SERVING_PHASES)
def test_reference_and_increment_of_every_phase_are_importable(phase: str) -> None:
    package = phase_package(phase)
    importlib.import_module(f"{package}.reference")
    increment = importlib.import_module(f"{package}.increment")
    assert hasattr(increment, "path" if phase in DECODE_PHASES else "stack")


def test_older_name_of_all_slots_is_readable() -> None:
    from engine import testmodels
    pool = testmodels.load("nano").new_pool(2, 4)
    refs = importlib.import_module("engine.state").Refs(next(iter(pool.conv.values())), (0,))
    assert refs.whole is refs.all_slots
