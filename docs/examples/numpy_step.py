"""Whole steps of a Qwen3.5 hybrid in NumPy, as a program: `python numpy_step.py IN OUT`.

It has its own arithmetic, so its rows are compared with itself at m = 1. Every product is computed
row by row, since a library's product of several rows sums in another order than that of one.

    rowtwin gate --phase 4 --candidate 'cmd:python docs/examples/numpy_step.py'
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open
from safetensors.numpy import save_file

Array = np.ndarray[Any, Any]
HEAD, STATE, TURNED = 256, 128, 64
"""Widths of an attention head and a GDN head, and of the rotated part of the first."""


class Model:
    """The weights of a GGUF file in f32, and the metadata that shapes do not show."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.weights = {t.name.removesuffix(".weight"):
                        np.array(dequantize(t.data, t.tensor_type), np.float32)
                        for t in reader.tensors}
        self.layers, eps, base = (reader.get_field(f"qwen35.{key}").contents() for key in (
            "block_count", "attention.layer_norm_rms_epsilon", "rope.freq_base"))
        self.eps, self.vocab = np.float32(eps), len(self.weights["token_embd"])
        self.turns = base ** (-np.arange(0, TURNED, 2) / TURNED)

    def of(self, layer: int) -> dict[str, Array]:
        """Return a layer's weights by their names without the layer."""
        first = f"blk.{layer}."
        return {name.removeprefix(first): w for name, w in self.weights.items()
                if name.startswith(first)}

    def norm(self, x: Array, weight: Array) -> Array:
        """Return the RMS norm of x's last axis, times weight."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight


def products(w: Array, x: Array) -> Array:
    """Return W x for every row of x."""
    return np.stack([w @ row for row in x])


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def step(model: Model, call: dict[str, Array]) -> dict[str, Array]:
    """Return a call's logits and the states after the step."""
    states = {name: x.copy() for name, x in call.items() if "." in name}
    w, counts = model.weights, call["counts"]
    hidden = w["token_embd"][call["tokens"]]
    ends = np.cumsum(counts)
    rows = [(slot, at, range(end - count, end)) for slot, at, count, end in
            zip(call["slots"], call["positions"], counts, ends, strict=True)]
    for index in range(model.layers):
        layer, kept = model.of(index), {name.split(".")[1]: x for name, x in states.items()
                                        if name.startswith(f"{index}.")}
        x = model.norm(hidden, layer["attn_norm"])
        hidden = hidden + (gdn if "ssm_a" in layer else attention)(model, layer, x, rows, kept)
        x = model.norm(hidden, layer["post_attention_norm"])
        gate, up = (products(layer[name], x) for name in ("ffn_gate", "ffn_up"))
        hidden = hidden + products(layer["ffn_down"], gate * sigmoid(gate) * up)
    last = model.norm(hidden[ends - 1], w["output_norm"])
    return {"logits": products(w.get("output", w["token_embd"]), last), **states}


def gdn(model: Model, layer: dict[str, Array], x: Array, rows: list[Any],
        kept: dict[str, Array]) -> Array:
    """Return a recurrent layer's output for x; update windows and states of the rows' slots."""
    qkv, z, a, b = (products(layer[name], x) for name in (
        "attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"))
    decay = np.exp(layer["ssm_a"] * np.log1p(np.exp(a + layer["ssm_dt.bias"])))
    values, out = len(layer["ssm_a"]), np.empty_like(z).reshape(len(z), -1, STATE)
    for slot, _, tokens in rows:
        window, s = kept["conv"][slot], kept["delta"][slot]  # views
        for t in tokens:
            held = np.concatenate([window, qkv[t][:, None]], axis=1)
            window[:] = held[:, 1:]
            mixed = (held * layer["ssm_conv1d"]).sum(1)
            heads = (mixed * sigmoid(mixed)).reshape(-1, STATE)
            q, k = np.split(heads[:-values], 2)
            q, k = (y / np.sqrt((y * y).sum(1, keepdims=True) + np.float32(1e-6)) for y in (q, k))
            q, k = (np.tile(y, (values // len(y), 1)) for y in (q / np.float32(STATE ** 0.5), k))
            s *= decay[t][:, None, None]
            change = sigmoid(b[t])[:, None] * (heads[-values:] - np.einsum("hkv,hk->hv", s, k))
            s += k[:, :, None] * change[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", s, q)
    z = z.reshape(out.shape)
    made = model.norm(out, layer["ssm_norm"]) * z * sigmoid(z)
    return products(layer["ssm_out"], made.reshape(len(x), -1))


def attention(model: Model, layer: dict[str, Array], x: Array, rows: list[Any],
              kept: dict[str, Array]) -> Array:
    """Return an attention layer's output for x; append its keys and values to the slots."""
    both, k, v = (products(layer[name], x) for name in ("attn_q", "attn_k", "attn_v"))
    q, gate = np.moveaxis(both.reshape(len(x), -1, 2, HEAD), 2, 0)
    k, v = (y.reshape(len(x), -1, HEAD) for y in (k, v))
    q, k = (model.norm(y, layer[f"attn_{name}_norm"]) for name, y in (("q", q), ("k", k)))
    out = np.empty_like(q)
    for slot, first, tokens in rows:
        for at, t in enumerate(tokens, first):
            kept["k"][slot, at], kept["v"][slot, at] = turned(model, k[t], at), v[t]
            keys, values = (np.repeat(kept[name][slot, :at + 1], q.shape[1] // k.shape[1], axis=1)
                            for name in "kv")
            scores = np.einsum("hd,nhd->hn", turned(model, q[t], at), keys) / 16
            share = np.exp(scores - scores.max(1, keepdims=True))
            read = np.einsum("hn,nhd->hd", share / share.sum(1, keepdims=True), values)
            out[t] = read * sigmoid(gate[t])
    return products(layer["attn_output"], out.reshape(len(x), -1))


def turned(model: Model, x: Array, position: int) -> Array:
    """Return heads rotated at a position: dimension i with i + 32, the rest unchanged."""
    angles = position * model.turns
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    low, high, rest = np.split(x, [TURNED // 2, TURNED], axis=1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], axis=1)


def refusal(call: dict[str, Array], vocab: int, slots: int, capacity: int) -> str | None:
    """Return why a step is invalid, or None."""
    named, at, counts = (call[name].tolist() for name in ("slots", "positions", "counts"))
    if not named:
        return "a step of no rows"
    if not len(named) == len(at) == len(counts):
        return f"{len(named)} slots, but {len(at)} positions and {len(counts)} counts"
    if sum(counts) != len(call["tokens"]):
        return f"{len(call['tokens'])} tokens, but counts for {sum(counts)}"
    for slot, position, count in zip(named, at, counts, strict=True):
        if not 0 <= slot < slots or named.count(slot) > 1:
            return f"slot {slot} is not one of {slots}, or is repeated"
        if count < 1 or position < 0 or position + count > capacity:
            return f"{count} tokens at {position} would reach {position + count} of {capacity}"
    return next((f"token {token} is none of {vocab}" for token in call["tokens"].tolist()
                 if not 0 <= token < vocab), None)


def argmax(logits: Array) -> Array:
    """Return the lowest index of each row's largest value, or -1 for a row with NaN."""
    return np.where(np.isnan(logits).any(1), -1, logits.argmax(1)).astype(np.float32)


def answer(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and the metadata of the reply to a call."""
    with safe_open(path, "numpy") as file:
        told, call = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if told["op"] == "argmax":
        return {"out": argmax(call["logits"])}, {}
    if told["op"] != "step":
        return {}, {"declined": "supports only step and argmax"}
    model = loaded(path.parent / told["model"])
    why = refusal(call, model.vocab, int(told["slots"]), int(told["capacity"]))
    return ({}, {"refused": why}) if why else (step(model, call), {})


loaded = cache(Model)

if __name__ == "__main__":
    np.seterr(all="ignore")  # a slot may hold NaN
    for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
        tensors, words = answer(path)
        save_file({name: np.ascontiguousarray(x) for name, x in tensors.items()},
                  Path(sys.argv[2]) / path.name, words)
