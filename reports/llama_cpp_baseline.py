"""llama.cpp's times for the same steps, measured separately, with their conditions."""

from __future__ import annotations

from falsifiers.gate.benchmark_records import StepTimes

LABEL = "llama.cpp, measured separately"
CONDITIONS = ("llama.cpp, measured separately on the same GPU model with a file of the same shape "
              "and types: flash attention on, CUDA graphs as shipped, context 128 to 384")
MILLISECONDS = {1: 3.62, 2: 4.05, 4: 5.49, 8: 7.78, 16: 9.53, 32: 13.9}
DEVICE, SHAPE, CONTEXTS = "NVIDIA H200", "32 layers (24 recurrent), width 2,560,", range(128, 385)


def is_comparable(steps: StepTimes) -> bool:
    """Return whether llama.cpp was measured under the conditions of these times."""
    return steps.device == DEVICE and steps.model.startswith(SHAPE) and \
        any(f.context in CONTEXTS for f in steps.figures)
