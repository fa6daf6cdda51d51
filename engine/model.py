"""The model and its oracle, `forward_single`: one token of one sequence at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath

import torch
from torch import Tensor

from engine.config import Config
from engine.errors import InputError
from engine.gguf_file import open_gguf
from engine.load import Layer, Weights, load_weights
from engine.path import Path, Sink, bound, check_token, reference
from engine.rope import RopeTable
from engine.state import Pool, State, kv_type
from engine.weights import Weight

OpReporter = Callable[[str, tuple[Tensor, ...], Tensor], None]


@dataclass(frozen=True)
class Model:
    """A loaded Qwen3.5 hybrid: configuration, weights and the ops that its oracle runs."""

    config: Config
    weights: Weights
    rope: RopeTable
    ops: Path = field(default_factory=reference)
    """The reference ops; only mutants replace them."""
    path: FilePath | None = None
    kv: str = "f32"
    """Type of keys and values in its pools, one of `KV_TYPES`."""

    @staticmethod
    def load(path: str | FilePath) -> Model:
        """Load a `qwen35` GGUF file; raise `InputError` for a missing, unknown or wrong tensor."""
        file = open_gguf(path)
        try:
            return Model.from_weights(*load_weights(file), FilePath(path))
        except InputError as error:
            raise error if str(path) in str(error) else InputError(f"{path}: {error}") from None

    @staticmethod
    def from_weights(config: Config, weights: Weights, path: FilePath | None = None) -> Model:
        """Return a model of loaded weights."""
        return Model(config, weights, RopeTable(config.rope_dim, config.rope_base), path=path)

    def with_arithmetic(self, name: str) -> Model:
        """Return the model with its quantised products in another registered arithmetic."""
        return replace(self, weights=self.weights.like(arithmetic=name))

    def with_kv(self, name: str) -> Model:
        """Return the model with pools that store keys and values in another type."""
        kv_type(name)
        return replace(self, kv=name)

    def to(self, device: str) -> Model:
        """Return the model with its weights and rotary table on a device."""
        rope = RopeTable(self.config.rope_dim, self.config.rope_base, device)
        return replace(self, weights=self.weights.like(device=device), rope=rope)

    @property
    def device(self) -> str:
        """Where weights and state are."""
        return self.rope.device

    def new_pool(self, slots: int, capacity: int) -> Pool:
        """Return fresh state for `slots` sequences of up to `capacity` tokens."""
        return Pool(self.config, slots, capacity, self.device, self.kv)

    def new_state(self, capacity: int) -> State:
        """Return fresh state for one sequence."""
        return self.new_pool(1, capacity).slot(0)

    def forward_single(self, token: int, state: State, position: int,
                       sink: Sink | None = None) -> Tensor:
        """Advance one sequence by one token and return its logits f32[vocab].

        `position` is the number of tokens in the state. On `InputError` no state changes.
        """
        check_token(self, token)
        if not 0 <= position < state.pool.capacity:
            raise InputError(f"position {position} is past the state's capacity of "
                             f"{state.pool.capacity}")
        with torch.inference_mode():  # a third faster than with autograd
            return self._forward(token, state, position, bound(sink, state.index))

    def _forward(self, token: int, state: State, position: int, report: OpReporter) -> Tensor:
        hidden = torch.empty(1, self.config.embd, device=self.device)
        self.ops.embed(self.weights.embedding, [token], hidden)
        report("embed", (), hidden)
        for index, layer in enumerate(self.weights.layers):
            hidden = self._block(index, layer, hidden, state, position, report)
        x = self._norm("output_norm", hidden, self.weights.output_norm, report)
        return self._project("head", self.weights.head, x, report)[0]

    def prefill(self, tokens: Sequence[int], state: State, position: int = 0,
                sink: Sink | None = None) -> Tensor:
        """Run `forward_single` over tokens in order; return the logits f32[vocab] of the last."""
        if not tokens:
            raise InputError("the prompt is empty: pass at least one token")
        for token in tokens:
            check_token(self, token)
        if position < 0 or position + len(tokens) > state.pool.capacity:
            raise InputError(f"{len(tokens)} tokens from position {position} do not fit the "
                             f"state's capacity of {state.pool.capacity}")
        for offset, token in enumerate(tokens):
            logits = self.forward_single(token, state, position + offset, sink)
        return logits

    def _block(self, index: int, layer: Layer, hidden: Tensor, state: State, position: int,
               report: OpReporter) -> Tensor:
        x = self._norm(f"{index}.attn_norm", hidden, layer.vectors["attn_norm"], report)
        if self.config.recurrent[index]:
            mixed = self._gdn(index, layer, x, state, report)
        else:
            mixed = self._attention(index, layer, x, state, position, report)
        hidden = hidden + mixed
        weight = layer.vectors["post_attention_norm"]
        x = self._norm(f"{index}.post_attention_norm", hidden, weight, report)
        gate, up = (self._project_layer(index, layer, name, x, report)
                    for name in ("ffn_gate", "ffn_up"))
        product = torch.empty_like(gate)
        self.ops.silu_mul(gate, up, product)
        report(f"{index}.silu_mul", (gate, up), product)
        return hidden + self._project_layer(index, layer, "ffn_down", product, report)

    def _gdn(self, index: int, layer: Layer, x: Tensor, state: State, report: OpReporter) -> Tensor:
        config, vectors, one, slots = self.config, layer.vectors, (1,), [state.index]
        qkv, z, a, b = (self._project_layer(index, layer, name, x, report)
                        for name in ("attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"))
        mixed = torch.empty_like(qkv)
        windows = state.pool.refs("conv", index, slots)
        self.ops.conv_step(qkv, vectors["ssm_conv1d"], windows, one, mixed)
        report(f"{index}.conv_step", (qkv,), mixed)
        widths = (config.key_dim, config.key_dim, config.value_dim)
        q, k, v = (part.unflatten(1, (-1, config.state_size)) for part in mixed.split(widths, 1))
        both = a.new_empty(2, *a.shape)
        g, beta = both.unbind()
        self.ops.gates(a, b, vectors["ssm_a"], vectors["ssm_dt"], g, beta)
        report(f"{index}.gates", (a, b), both)
        read = torch.empty_like(v, memory_format=torch.contiguous_format)
        self.ops.delta_step(q, k, v, g, beta, state.pool.refs("delta", index, slots), one, read)
        report(f"{index}.delta_step", (q, k, v, g, beta), read)
        y = torch.empty_like(read)
        self.ops.gated_norm(read, z.view_as(read), vectors["ssm_norm"], config.eps, y)
        report(f"{index}.gated_norm", (read, z), y)
        return self._project_layer(index, layer, "ssm_out", y.flatten(1), report)

    def _attention(self, index: int, layer: Layer, x: Tensor, state: State, position: int,
                   report: OpReporter) -> Tensor:
        dim, pool, slots = self.config.head_dim, state.pool, [state.index]
        both = self._project_layer(index, layer, "attn_q", x, report)
        q, gate = both.unflatten(1, (-1, 2, dim)).unbind(2)  # per head, query then gate
        k, v = (self._project_layer(index, layer, name, x, report).unflatten(1, (-1, dim))
                for name in ("attn_k", "attn_v"))
        q, k = (self._rotate(index, name, part, layer, position, report)
                for name, part in (("q", q), ("k", k)))
        mixed = torch.empty_like(q)
        self.ops.attend(q, k, v, gate, pool.refs("k", index, slots), pool.refs("v", index, slots),
                        (position,), (1,), mixed)
        report(f"{index}.attend", (q, k, v, gate), mixed)
        return self._project_layer(index, layer, "attn_output", mixed.flatten(1), report)

    def _rotate(self, index: int, name: str, x: Tensor, layer: Layer, position: int,
                report: OpReporter) -> Tensor:
        x = self._norm(f"{index}.norm.{name}", x, layer.vectors[f"attn_{name}_norm"], report)
        out = torch.empty_like(x)
        self.ops.rotate(x, self.rope.table_for(position + 1), [position], out)
        report(f"{index}.rotate.{name}", (x,), out)
        return out

    def _norm(self, op: str, x: Tensor, weight: Tensor, report: OpReporter) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.ops.norm(x, weight, self.config.eps, out)
        report(op, (x,), out)
        return out

    def _project_layer(self, index: int, layer: Layer, name: str, x: Tensor,
                       report: OpReporter) -> Tensor:
        return self._project(f"{index}.project.{name}", layer.matrices[name], x, report)

    def _project(self, op: str, weight: Weight, x: Tensor, report: OpReporter) -> Tensor:
        out = x.new_empty(x.shape[0], weight.n)
        self.ops.project(weight, x, out)
        report(op, (x,), out)
        return out
