"""What P1 changes: a step takes m rows."""

from __future__ import annotations

from dataclasses import replace

from engine.path import Path, reference
from phases.p1_looped_step.reference import step_rows


def path() -> Path:
    """Return the engine's path with the looped step."""
    return replace(reference(), name="p1", step_rows=step_rows)
