"""The batched step: layer by layer over all tokens at once, so a step reads each matrix once.

Letters: t tokens of all rows, m rows, K the width of a matrix's rows. A row's tokens are next to
each other. Ops with state (`conv_step`, `delta_step`, `attend`) take the state of every row as
`Refs`. All other ops take t rows; the output norm and the head take m rows: each row's last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engine.load import Layer
from engine.model import Model
from engine.path import Path, RowOperands, Rows, Sink
from engine.quantised import Activations, QuantisedActivations, rows_of
from engine.state import Pool, Refs, to_device
from engine.weights import Weight

Tensors = tuple[Tensor, ...]


def step_rows(path: Path, model: Model, pool: Pool, tokens: Sequence[int] | Tensor,
              rows: Rows, sink: Sink | None) -> Tensor:
    """Advance every row by its tokens; return logits f32[m, vocab] of each row's last token."""
    return BatchedStep(path, model, pool, rows, sink).run(tokens)


@dataclass(frozen=True)
class BatchedStep:
    """One step under way; its methods follow the equations of the model's blocks.

    A residual sum is computed with the norm that reads it. A block therefore returns its hidden
    state and the output that the next norm adds to it.
    """

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

    def block(self, index: int, layer: Layer, hidden: Tensor,
              mixed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return hidden[t, embd] and the output of the FFN, which is still to be added to it."""
        norms, mix = layer.vectors, self.gdn if self.model.config.recurrent[index] \
            else self.attention
        hidden, x = self.add_norm(f"{index}.attn_norm", hidden, mixed, norms["attn_norm"])
        mixed = mix(index, layer, x)
        hidden, x = self.add_norm(f"{index}.post_attention_norm", hidden, mixed,
                                  norms["post_attention_norm"])
        gate, up = self.products(index, layer, ("ffn_gate", "ffn_up"), x)
        activated = self.activations(index, "silu_mul", (gate, up))
        return hidden, self.product(index, layer, "ffn_down", activated)

    def gdn(self, index: int, layer: Layer, x: Activations) -> Tensor:
        """Return a GDN layer's output for x[t, embd]; windows and recurrent states advance."""
        config, vectors, counts = self.model.config, layer.vectors, self.operands.counts
        qkv, z, a, b = self.products(
            index, layer, ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"), x)
        c = self.call(index, "conv_step", (qkv,), vectors["ssm_conv1d"],
                      self.state("conv", index), counts)
        q, k, v = (part.unflatten(1, (-1, config.state_size)) for part in
                   c.split((config.key_dim, config.key_dim, config.value_dim), 1))
        alpha, beta = self.call(index, "gates", (a, b), vectors["ssm_a"], vectors["ssm_dt"], outs=2)
        o = self.call(index, "delta_step", (q, k, v, alpha, beta), self.state("delta", index),
                      counts, like=v)
        y = self.activations(index, "gated_norm", (o, z.view_as(o)), vectors["ssm_norm"],
                             config.eps, reported=(o, z))
        return self.product(index, layer, "ssm_out", y)

    def attention(self, index: int, layer: Layer, x: Activations) -> Tensor:
        """Return an attention layer's output for x[t, embd]; keys and values join the caches."""
        dim, operands = self.model.config.head_dim, self.operands
        both, k, v = self.products(index, layer, ("attn_q", "attn_k", "attn_v"), x)
        q, gate = both.unflatten(1, (-1, 2, dim)).unbind(2)  # per head, query then gate
        k, v = k.unflatten(1, (-1, dim)), v.unflatten(1, (-1, dim))
        q, k = self.norm_rotate(index, layer, q, k)
        o = self.activations(index, "attend", (q, k, v, gate), self.state("k", index),
                             self.state("v", index), operands.lengths, operands.counts)
        return self.product(index, layer, "attn_output", o)

    def logits(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Return logits f32[m, vocab] of the rows' last tokens [m, embd]."""
        weights, single = self.model.weights, [slice(i, i + 1) for i in range(len(hidden))]
        x = self.add_norm("output_norm", hidden, mixed, weights.output_norm, single)[1]
        out = self.multiply(weights.head, x)
        self.report("head", (rows_of(x),), out, single)
        return out

    @cached_property
    def operands(self) -> RowOperands:
        """What the ops take of the rows."""
        return self.rows.operands_on(self.pool)

    def state(self, kind: str, index: int) -> Refs:
        """Return one kind of a layer's state, of every row."""
        return self.operands.table.refs(kind, index)

    def last_tokens(self, hidden: Tensor) -> Tensor:
        """Return the last token of each row, f32[m, embd] of hidden[t, embd]."""
        if len(hidden) == len(self.rows.counts):
            return hidden
        last = torch.tensor([own.stop - 1 for own in self.rows.slices])
        return hidden[to_device(last, self.pool.device)]

    def call(self, index: int, op: str, inputs: Tensors, *others: Any, **how: Any) -> Tensor:
        """Run an op as `run_op` does, and return its result."""
        return self.run_op(index, op, inputs, *others, **how)[0]

    def activations(self, index: int, op: str, inputs: Tensors, *others: Any,
                    **how: Any) -> Activations:
        """Run an op before a product as `run_op` does; return its rows, quantised if they are."""
        out, returned = self.run_op(index, op, inputs, *others, **how)
        return returned if isinstance(returned, QuantisedActivations) else out.flatten(1)

    def run_op(self, index: int, op: str, inputs: Tensors, *others: Any,
               like: Tensor | None = None, outs: int = 1,
               reported: Tensors | None = None) -> tuple[Tensor, Any]:
        """Allocate an op's result, run the op and report it; return what it wrote and returned.

        The op takes its inputs, then the others, then its result, which has the shape of `like`,
        or else of the first input. Several results are one tensor [outs, ...]. The sink gets
        `reported`, or else the inputs.
        """
        like = inputs[0] if like is None else like
        out = torch.empty_like(like, memory_format=torch.contiguous_format) if outs == 1 else \
            like.new_empty(outs, *like.shape)
        returned = getattr(self.path, op)(*inputs, *others,
                                          *([out] if outs == 1 else out.unbind()))
        self.report(f"{index}.{op}", reported or inputs, out, axis=int(outs > 1))
        return out, returned

    def add_norm(self, op: str, hidden: Tensor, mixed: Tensor | None, weight: Tensor,
                 slices: list[slice] | None = None) -> tuple[Tensor, Activations]:
        """Return the residual sum of hidden and mixed, and its norm, reported as `op`."""
        total, x, returned = hidden, torch.empty_like(hidden), None
        if mixed is None:
            self.path.norm(hidden, weight, self.model.config.eps, x)
        else:
            total = torch.empty_like(hidden)
            returned = self.path.fused.add_norm(hidden, mixed, weight, self.model.config.eps,
                                                total, x)
        self.report(op, (total,), x, slices)
        return total, returned if isinstance(returned, QuantisedActivations) else x

    def norm_rotate(self, index: int, layer: Layer, *given: Tensor) -> list[Tensor]:
        """Return q and k [t, heads, dim], normed and rotated at each token's own position."""
        weights = [layer.vectors[f"attn_{name}_norm"] for name in "qk"]
        normed = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in given]
        outs = [torch.empty_like(x) for x in normed]
        table = self.model.rope.table_for(self.operands.reach)
        self.path.fused.norm_rotate(given, weights, self.model.config.eps, table,
                                    self.operands.positions, normed, outs)
        for name, x, middle, out in zip("qk", given, normed, outs, strict=True):
            self.report(f"{index}.norm.{name}", (x,), middle)
            self.report(f"{index}.rotate.{name}", (middle,), out)
        return outs

    def product(self, index: int, layer: Layer, name: str, x: Activations) -> Tensor:
        """Return one of a block's matrices times every row of x[t, K], reported."""
        out = self.multiply(layer.matrices[name], x)
        self.report(f"{index}.project.{name}", (rows_of(x),), out)
        return out

    def products(self, index: int, layer: Layer, names: Sequence[str],
                 x: Activations) -> list[Tensor]:
        """Return several of a block's matrices times every row of x[t, K], reported."""
        weights, rows = [layer.matrices[name] for name in names], rows_of(x)
        outs = [rows.new_empty(len(rows), weight.n) for weight in weights]
        self.path.fused.project_all(weights, x, outs)
        for name, out in zip(names, outs, strict=True):
            self.report(f"{index}.project.{name}", (rows,), out)
        return outs

    def multiply(self, weight: Weight, x: Activations) -> Tensor:
        """Return W x for every row of x: [rows, N]."""
        rows = rows_of(x)
        out: Tensor = rows.new_empty(len(rows), weight.n)
        self.path.fused.project(weight, x, out)
        return out

    def report(self, op: str, inputs: Tensors, output: Tensor, slices: list[slice] | None = None,
               axis: int = 0) -> None:
        """Call the sink once a row, with that row's tokens of an op's inputs and output.

        `axis` is where the output's tokens lie.
        """
        if self.sink is None:
            return
        for slot, own in zip(self.rows.slots, slices or self.rows.slices, strict=True):
            self.sink(op, slot, tuple(x[own] for x in inputs),
                      output[:, own] if axis else output[own])
