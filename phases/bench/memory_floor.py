"""The bytes that a step must move, which bound its time from below."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.model import Model


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one step moves."""

    weights: int
    """Every matrix and vector once; a tied head is the embedding."""
    state: int
    """A slot's conv windows and recurrent state."""
    cache: int
    """One token's keys and values, of all layers."""


def step_bytes(model: Model) -> StepBytes:
    """Return the bytes that a step of this model must move."""
    weights = model.weights
    matrices = [w for w in weights.matrices()
                if w is not weights.embedding or w is weights.head]  # a step reads one row
    vectors = [v for layer in weights.layers for v in layer.vectors.values()]
    slot = model.new_pool(1, 1)
    cache = sum(x.nbytes for kind in (slot.k, slot.v) for x in kind.values())
    read = sum(w.raw.nbytes for w in matrices) + sum(
        v.nbytes for v in (*vectors, weights.output_norm))
    return StepBytes(read, slot.nbytes - cache, cache)


def describe_shape(model: Model) -> str:
    """Return a sentence with a model's shape, its size and its types."""
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
