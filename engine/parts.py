"""The engine's parts as one object, so that falsifiers use and mutants replace any of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from engine import arithmetic
from engine.model import Model
from engine.rope import rope_table
from engine.state import Checkpoint, State, checkpoint, restore
from engine.weights import Weight

FUNCTIONS = ("exp", "sigmoid", "silu", "softplus", "rsqrt")


@dataclass(frozen=True)
class EngineParts:
    """The functions and classes of the engine below a path."""

    load: Callable[[str | Path], Model] = Model.load
    weight: Callable[..., Weight] = Weight
    functions: Mapping[str, Callable[[Tensor], Tensor]] = field(
        default_factory=lambda: {name: getattr(arithmetic, name) for name in FUNCTIONS})
    rope_table: Callable[[int, int, float], Tensor] = rope_table
    checkpoint: Callable[[State, int], Checkpoint] = checkpoint
    restore: Callable[[Checkpoint, State], None] = restore
    kernels: Mapping[str, Callable[..., None]] = field(default_factory=dict)
    """Kernels by name that replace the in-tree ones."""

    def kernel(self, name: str) -> Callable[..., Any]:
        """Return a Triton kernel's entry; its module, and Triton, are imported now."""
        if name in self.kernels:
            return self.kernels[name]
        entry: Callable[..., Any] = getattr(importlib.import_module(f"engine.kernels.{name}"), name)
        return entry


def engine_parts() -> EngineParts:
    """Return the engine without changes."""
    return EngineParts()
