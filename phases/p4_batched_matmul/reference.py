"""The batched step: layer by layer over all tokens at once, so each matrix is met once a step.

Letters: t tokens of all rows, m rows, C = conv_dim, V value heads, H query heads, G KV heads. A
row's tokens stand next to each other. Ops with state (`conv_step`, `delta_step`, `attend`) get the
state of every row as `Refs` and go one row after another; all other ops take t rows, the output
norm and the head m rows: the last token of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from engine.load import Layer
from engine.model import Model
from engine.ops import (  # the kernel_*.py are their twins
    add_norm,
    argmax,
    gated_norm,
    norm,
    silu_mul,
)
from engine.path import Held, Path, Rows, Sink
from engine.state import Pool, to_device
from engine.weights import Weight

__all__ = ["BatchedStep", "add_norm", "argmax", "gated_norm", "norm", "silu_mul", "step_rows"]


def step_rows(path: Path, model: Model, pool: Pool, tokens: Sequence[int] | Tensor,
              rows: Rows, sink: Sink | None) -> Tensor:
    """Advance every row by its tokens; return logits f32[m, vocab] of each row's last token."""
    return BatchedStep(path, model, pool, rows, sink).run(tokens)


@dataclass(frozen=True)
class BatchedStep:
    """One step under way; its methods are its parts, in the order of the model's blocks."""

    path: Path
    model: Model
    pool: Pool
    rows: Rows
    sink: Sink | None = None

    def run(self, tokens: Sequence[int] | Tensor) -> Tensor:
        """Return logits f32[m, vocab]."""
        weights = self.model.weights
        mixed: Tensor | None = None
        hidden = torch.empty(len(tokens), self.model.config.embd, device=self.pool.device)
        self.path.embed(weights.embedding, tokens, hidden)
        self.report("embed", (), hidden)
        for index, layer in enumerate(weights.layers):
            hidden, mixed = self.block(index, layer, hidden, mixed)
        assert mixed is not None  # a model has a layer
        return self.logits(self.last_tokens(hidden), self.last_tokens(mixed))

    def logits(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Return logits f32[m, vocab] of the rows' last tokens [m, embd]."""
        weights, single = self.model.weights, [slice(i, i + 1) for i in range(len(hidden))]
        x = self.joined("output_norm", hidden, mixed, weights.output_norm, single)[1]
        out = self.product(weights.head, x)
        self.report("head", (x,), out, single)
        return out

    @cached_property
    def held(self) -> Held:
        """What the ops take of the rows."""
        return self.rows.holding(self.pool)

    def last_tokens(self, hidden: Tensor) -> Tensor:
        """Return the last token of each row, f32[m, embd] of hidden[t, embd]."""
        if len(hidden) == len(self.rows.counts):
            return hidden
        last = torch.tensor([own.stop - 1 for own in self.rows.slices])
        return hidden[to_device(last, self.pool.device)]

    def block(self, index: int, layer: Layer, hidden: Tensor,
              mixed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return hidden[t, embd] and what is still to be added to it, after one block."""
        hidden, x = self.joined(f"{index}.attn_norm", hidden, mixed, layer.vectors["attn_norm"])
        mix = self.gdn if self.model.config.recurrent[index] else self.attention
        mixed = mix(index, layer, x)
        hidden, x = self.joined(f"{index}.post_attention_norm", hidden, mixed,
                                layer.vectors["post_attention_norm"])
        return hidden, self.feed_forward(index, layer, x)

    def joined(self, op: str, hidden: Tensor, mixed: Tensor | None, weight: Tensor,
               spans: list[slice] | None = None) -> tuple[Tensor, Tensor]:
        """Return the residual sum of hidden and mixed, and its norm, reported as `op`."""
        if mixed is None:
            x = self.norm(hidden, weight)
        else:
            total, x = torch.empty_like(hidden), torch.empty_like(hidden)
            self.path.fused.add_norm(hidden, mixed, weight, self.model.config.eps, total, x)
            hidden = total
        self.report(op, (hidden,), x, spans)
        return hidden, x

    def feed_forward(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        """Return the gated FFN of x[t, embd]."""
        gate, up = self.project_all(index, layer, ("ffn_gate", "ffn_up"), x)
        product = torch.empty_like(gate)
        self.path.silu_mul(gate, up, product)
        self.report(f"{index}.silu_mul", (gate, up), product)
        return self.project(index, layer, "ffn_down", product)

    def gdn(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        """Return a GDN layer's mixing of x[t, embd]; conv windows and recurrent states move on."""
        config, vectors = self.model.config, layer.vectors
        qkv, z, a, b = self.project_all(
            index, layer, ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"), x)
        mixed = self.convolve(index, qkv, vectors["ssm_conv1d"])
        widths = (config.key_dim, config.key_dim, config.value_dim)
        q, k, v = (part.unflatten(1, (-1, config.state_size)) for part in mixed.split(widths, 1))
        both = a.new_empty(2, *a.shape)
        g, beta = both.unbind()
        self.path.gates(a, b, vectors["ssm_a"], vectors["ssm_dt"], g, beta)
        self.report(f"{index}.gates", (a, b), both, axis=1)
        read = self.delta(index, q, k, v, g, beta)
        y = torch.empty_like(read)
        self.path.gated_norm(read, z.view_as(read), vectors["ssm_norm"], config.eps, y)
        self.report(f"{index}.gated_norm", (read, z), y)
        return self.project(index, layer, "ssm_out", y.flatten(1))

    def convolve(self, index: int, qkv: Tensor, taps: Tensor) -> Tensor:
        """Return the causal convolution of qkv[t, C], each row over its own window."""
        mixed = torch.empty_like(qkv)
        self.path.conv_step(qkv, taps, self.held.table.refs("conv", index), self.held.counts, mixed)
        self.report(f"{index}.conv_step", (qkv,), mixed)
        return mixed

    def delta(self, index: int, q: Tensor, k: Tensor, v: Tensor, g: Tensor,
              beta: Tensor) -> Tensor:
        """Return the delta rule's reads [t, V, 128], each row's state advanced by its tokens."""
        read = torch.empty_like(v, memory_format=torch.contiguous_format)
        states = self.held.table.refs("delta", index)
        self.path.delta_step(q, k, v, g, beta, states, self.held.counts, read)
        self.report(f"{index}.delta_step", (q, k, v, g, beta), read)
        return read

    def attention(self, index: int, layer: Layer, x: Tensor) -> Tensor:
        """Return an attention layer's mixing of x[t, embd]; each row's keys and values join."""
        dim = self.model.config.head_dim
        both, *kv = self.project_all(index, layer, ("attn_q", "attn_k", "attn_v"), x)
        q, gate = both.unflatten(1, (-1, 2, dim)).unbind(2)  # per head, query then gate
        k, v = (part.unflatten(1, (-1, dim)) for part in kv)
        q, k = self.turned(index, layer, q, k)
        mixed = torch.empty_like(q)
        held = self.held
        keys, values = (held.table.refs(kind, index) for kind in ("k", "v"))
        self.path.attend(q, k, v, gate, keys, values, held.lengths, held.counts, mixed)
        self.report(f"{index}.attend", (q, k, v, gate), mixed)
        return self.project(index, layer, "attn_output", mixed.flatten(1))

    def turned(self, index: int, layer: Layer, *given: Tensor) -> list[Tensor]:
        """Return q and k [t, heads, dim] normed and turned at each token's own position."""
        weights = [layer.vectors[f"attn_{name}_norm"] for name in "qk"]
        normed = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in given]
        outs = [torch.empty_like(x) for x in normed]
        table = self.model.rope.table_for(self.held.reach)
        self.path.fused.norm_rotate(given, weights, self.model.config.eps, table,
                                    self.held.positions, normed, outs)
        for name, x, middle, out in zip("qk", given, normed, outs, strict=True):
            self.report(f"{index}.norm.{name}", (x,), middle)
            self.report(f"{index}.rotate.{name}", (middle,), out)
        return outs

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the norm of x's last axis."""
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.path.norm(x, weight, self.model.config.eps, out)
        return out

    def project(self, index: int, layer: Layer, name: str, x: Tensor) -> Tensor:
        """Return one of a block's matrices times every row of x[t, K], reported."""
        out = self.product(layer.matrices[name], x)
        self.report(f"{index}.project.{name}", (x,), out)
        return out

    def project_all(self, index: int, layer: Layer, names: Sequence[str],
                    x: Tensor) -> list[Tensor]:
        """Return several of a block's matrices times every row of x[t, K], reported."""
        weights = [layer.matrices[name] for name in names]
        outs = [x.new_empty(len(x), weight.n) for weight in weights]
        self.path.fused.project_all(weights, x, outs)
        for name, out in zip(names, outs, strict=True):
            self.report(f"{index}.project.{name}", (x,), out)
        return outs

    def product(self, weight: Weight, x: Tensor) -> Tensor:
        """Return W x for every row of x, [rows, N]."""
        out = x.new_empty(x.shape[0], weight.n)
        self.path.project(weight, x, out)
        return out

    def report(self, op: str, inputs: tuple[Tensor, ...], output: Tensor,
               spans: list[slice] | None = None, axis: int = 0) -> None:
        """Tell the sink of an op once a row, with that row's tokens of its inputs and output.

        `axis` is where the output's tokens lie.
        """
        if self.sink is None:
            return
        for slot, span in zip(self.rows.slots, spans or self.rows.slices, strict=True):
            own = output[:, span] if axis else output[span]
            self.sink(op, slot, tuple(x[span] for x in inputs), own)
