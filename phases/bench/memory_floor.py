"""What a step cannot be faster than: the bytes it must move, and how fast this machine reads."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

import torch

from engine.model import Model

HOST_BUFFER = 1 << 27
"""Bytes that a host without a device is asked to read."""


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one step moves, by what they grow with."""

    weights: int
    """Every matrix and vector once; a tied head is the embedding."""
    state: int
    """A slot's conv windows and recurrent state."""
    cache: int
    """One token's keys and values, of all layers."""


def step_bytes(model: Model) -> StepBytes:
    """Return what a step of this model must move."""
    weights = model.weights
    matrices = [w for w in weights.matrices()
                if w is not weights.embedding or w is weights.head]  # else a row is looked up
    vectors = [v for layer in weights.layers for v in layer.vectors.values()]
    one = model.new_pool(1, 1)
    cache = sum(x.nbytes for kind in (one.k, one.v) for x in kind.values())
    read = sum(w.raw.nbytes for w in matrices) + sum(
        v.nbytes for v in (*vectors, weights.output_norm))
    return StepBytes(read, one.nbytes - cache, cache)


def describe_shape(model: Model) -> str:
    """Return a model's shape in words."""
    c = model.config
    kinds: dict[str, int] = {}
    for weight in model.weights.matrices():
        kinds[weight.kind] = kinds.get(weight.kind, 0) + weight.raw.nbytes
    most = ", ".join(sorted(kinds, key=lambda kind: -kinds[kind]))
    return (f"{c.layers} layers ({sum(c.recurrent)} recurrent), width {c.embd:,}, feed-forward "
            f"{c.ffn:,}, vocabulary {c.vocab:,}, {sum(kinds.values()) / 1e6:,.1f} MB of {most}"
            + (f", keys and values in {model.kv}" if model.kv != "f32" else ""))


def is_on_cuda(model: Model) -> bool:
    """Return whether a model is on a CUDA device."""
    return model.device.startswith("cuda")


def wait_until_idle(model: Model) -> None:
    """Wait for the device to be idle."""
    if is_on_cuda(model):
        torch.cuda.synchronize()


def device_name(device: str) -> str:
    """Return the device's own name; a processor says that it is one."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name()
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def measure_host_bandwidth() -> float:
    """Return the bytes a second that torch reads on the host, the best of five sums."""
    buffer, best = torch.ones(HOST_BUFFER // 8, dtype=torch.float64), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - began)
    return buffer.nbytes / best
