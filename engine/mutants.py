"""Wrong engines: each breaks one rule of the model, the file or the arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine import arithmetic as ar
from engine import ops
from engine.config import Config
from engine.load import Layer
from engine.model import Model
from engine.mutants_below import LOW_LEVEL_MUTANTS
from engine.state import Refs
from falsifiers.judging.subject import Builder, Subject

Counts = tuple[int, ...]


def _change_models(wrong: Callable[[Model], Model]) -> Builder:
    """Return a builder that changes each model when it is loaded."""
    def build(subject: Subject) -> Subject:
        return replace(subject, models=lambda name: wrong(subject.models(name)))

    return build


def _replace_ops(**wrong: Any) -> Builder:
    """Return a builder whose models run other ops."""
    return _change_models(lambda model: replace(model, ops=replace(model.ops, **wrong)))


def _change_vectors(name: str, wrong: Callable[[Tensor], Tensor]) -> Builder:
    """Return a builder that changes the f32 parameter `name` in every layer."""
    def change(model: Model) -> Model:
        layers = tuple(
            Layer(layer.matrices, {k: wrong(v) if k == name else v
                                   for k, v in layer.vectors.items()})
            for layer in model.weights.layers)
        return replace(model, weights=replace(model.weights, layers=layers))

    return _change_models(change)


def _replace_config(**wrong: Any) -> Builder:
    """Return a builder whose models have another configuration."""
    def change(model: Model) -> Model:
        config: Config = replace(model.config, **wrong)
        return Model(config, model.weights, type(model.rope)(config.rope_dim, config.rope_base),
                     model.ops, model.path)

    return _change_models(change)


def _tile_heads(x: Tensor, groups: int) -> Tensor:
    return x.repeat(groups, 1)


def _delta_variant(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                   counts: Counts, out: Tensor, *,
                   spread: Callable[[Tensor, int], Tensor] = _tile_heads,
                   l2: Callable[[Tensor], Tensor] = lambda x: ar.l2_norm(x, 1e-6),
                   scale: float = 128**-0.5, decay: str = "first", delta: bool = True,
                   read: str = "after", turned: bool = False) -> None:
    """Run one token of the delta rule with one step of it changed."""
    groups = v.shape[1] // k.shape[1]
    q, k = spread(l2(q[0]) * scale, groups), spread(l2(k[0]), groups)
    v, g, beta = v[0], g[0], beta[0]
    state = states.views[0]
    s = state * g[:, None, None]
    seen = state if decay == "after the read" else s
    recall = (
        ar.ordered_sum((seen * k[:, :, None]).transpose(1, 2)) if delta else torch.zeros_like(v)
    )
    change = beta[:, None] * (v - recall)
    if decay == "last":
        after = (state + k[:, :, None] * change[:, None, :]) * g[:, None, None]
    else:
        after = s + k[:, :, None] * change[:, None, :]
    looked = s if read == "before" else after
    out[0] = ar.ordered_sum((looked * q[:, :, None]).transpose(1, 2))
    state.copy_(after.transpose(1, 2) if turned else after)


def _conv_variant(x: Tensor, taps: Tensor, windows: Refs, counts: Counts, out: Tensor, *,
                  turn: Callable[[Tensor], Tensor] = lambda w: w, silu: bool = True,
                  keep: bool = True) -> None:
    if not keep:
        windows.views[0].zero_()
    ops.conv_step(x, turn(taps), windows, counts, out)
    if not silu:
        window = torch.cat([windows.views[0][:, :3], x[0, :, None]], 1)
        out[0] = (taps[:, 3] * window[:, 2]) + taps[:, 2] * window[:, 1] + taps[:, 1] * window[:, 0]


def _gates_variant(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor, beta: Tensor, *,
                   rate: Callable[[Tensor], Tensor] = lambda d: d,
                   shift: Callable[[Tensor], Tensor] = lambda x: x,
                   soft: Callable[[Tensor], Tensor] = ar.softplus,
                   squash: Callable[[Tensor], Tensor] = ar.sigmoid) -> None:
    g.copy_(ar.exp(rate(decay) * soft(a + shift(bias))))
    beta.copy_(squash(b))


def _gated_norm_variant(x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor, *,
                        first: bool = False, gate: Callable[[Tensor], Tensor] = ar.silu) -> None:
    y = ar.rms_norm(x * gate(z), weight, eps) if first else ar.rms_norm(x, weight, eps) * gate(z)
    out.copy_(y)


def _rotate_variant(x: Tensor, table: Tensor, positions: list[int], out: Tensor, *, late: int = 0,
                    adjacent: bool = False, reverse: bool = False, all_dims: bool = False) -> None:
    ops.rotate(x, table, [max(0, p - late) for p in positions], out)
    if reverse:
        turned = torch.stack([table[:, 0], -table[:, 1]], 1)
        ops.rotate(x, turned, positions, out)
    if adjacent:
        order = torch.arange(64).reshape(32, 2).T.flatten()
        picked = torch.cat([x[..., :64][..., order], x[..., 64:]], -1)
        ops.rotate(picked, table, positions, out)
        out[..., order] = out[..., :64].clone()
    if all_dims:
        parts = [torch.empty_like(x[..., :64]) for _ in range(4)]
        for i, part in enumerate(parts):
            ops.rotate(x[..., 64 * i:64 * i + 64].contiguous(), table, positions, part)
        out.copy_(torch.cat(parts, -1))


def _attend_variant(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
                    lengths: Counts, counts: Counts, out: Tensor, *, scale: float = 1.0,
                    shuffle: bool = False, gated: Callable[[Tensor], Tensor] | None = ar.sigmoid,
                    swap: bool = False, cached: bool = True) -> None:
    if swap:
        q, gate = gate, q
    n = lengths[0]
    keys.views[0][n], values.views[0][n] = k[0], v[0]
    mine = (q[0] * scale).contiguous()
    if shuffle:
        mine = mine.unflatten(0, (-1, k.shape[1])).transpose(0, 1).flatten(0, 1).contiguous()
    first = 0 if cached else n
    o = ops.attend_one(mine, keys.views[0][first:n + 1], values.views[0][first:n + 1])
    if shuffle:
        o = o.unflatten(0, (k.shape[1], -1)).transpose(0, 1).flatten(0, 1)
    out[0] = o * gated(gate[0]) if gated else o


def _silu_mul_swapped(gate: Tensor, up: Tensor, out: Tensor) -> None:
    ops.silu_mul(up, gate, out)


def _plus_one(x: Tensor) -> Tensor:
    return x + 1


def _mean_l2(x: Tensor) -> Tensor:
    return ar.l2_norm(x, 1e-6 * x.shape[-1])


def _delta_mutant(**change: Any) -> Builder:
    return _replace_ops(delta_step=partial(_delta_variant, **change))


MODEL_FAULTS: dict[str, Builder] = {
    "key_head_is_h_over_groups": _delta_mutant(spread=lambda x, n: x.repeat_interleave(n, 0)),
    "read_before_decay": _delta_mutant(decay="after the read"),
    "decay_after_write": _delta_mutant(decay="last"),
    "output_before_write": _delta_mutant(read="before"),
    "no_delta_term": _delta_mutant(delta=False),
    "state_turned": _delta_mutant(turned=True),
    "query_not_scaled": _delta_mutant(scale=1.0),
    "no_l2_norm": _delta_mutant(l2=lambda x: x),
    "l2_eps_added_to_the_mean": _delta_mutant(l2=_mean_l2),
    "l2_eps_left_out": _delta_mutant(l2=lambda x: ar.l2_norm(x, 0.0)),
    "conv_taps_flipped": _replace_ops(conv_step=partial(_conv_variant, turn=lambda w: w.flip(1))),
    "conv_taps_transposed": _replace_ops(
        conv_step=partial(_conv_variant, turn=lambda w: w.T.reshape(w.shape))
    ),
    "conv_without_silu": _replace_ops(conv_step=partial(_conv_variant, silu=False)),
    "conv_window_forgotten": _replace_ops(conv_step=partial(_conv_variant, keep=False)),
    "decay_not_in_log_space": _replace_ops(
        gates=partial(_gates_variant, rate=lambda d: -ar.exp(d))
    ),
    "decay_is_a_sigmoid": _replace_ops(gates=partial(_gates_variant, soft=ar.sigmoid)),
    "time_step_bias_left_out": _replace_ops(gates=partial(_gates_variant, shift=torch.zeros_like)),
    "beta_not_squashed": _replace_ops(gates=partial(_gates_variant, squash=lambda b: b)),
    "beta_through_bfloat16": _replace_ops(
        gates=partial(_gates_variant, squash=lambda b: ar.sigmoid(b).bfloat16().float())
    ),
    "gate_before_norm": _replace_ops(gated_norm=partial(_gated_norm_variant, first=True)),
    "gate_is_a_sigmoid": _replace_ops(gated_norm=partial(_gated_norm_variant, gate=ar.sigmoid)),
    "one_added_to_norms_twice": _change_vectors("attn_norm", _plus_one),
    "one_added_to_ssm_norm": _change_vectors("ssm_norm", _plus_one),
    "rope_on_adjacent_pairs": _replace_ops(rotate=partial(_rotate_variant, adjacent=True)),
    "rope_on_all_dimensions": _replace_ops(rotate=partial(_rotate_variant, all_dims=True)),
    "rope_turns_backwards": _replace_ops(rotate=partial(_rotate_variant, reverse=True)),
    "rope_position_late_by_one": _replace_ops(rotate=partial(_rotate_variant, late=1)),
    "rope_base_defaulted": _replace_config(rope_base=10000.0),
    "query_and_gate_swapped": _replace_ops(attend=partial(_attend_variant, swap=True)),
    "kv_head_is_h_mod": _replace_ops(attend=partial(_attend_variant, shuffle=True)),
    "attention_scale_wrong": _replace_ops(attend=partial(_attend_variant, scale=2**0.5)),
    "attention_not_gated": _replace_ops(attend=partial(_attend_variant, gated=None)),
    "attention_gated_by_silu": _replace_ops(attend=partial(_attend_variant, gated=ar.silu)),
    "cache_never_read": _replace_ops(attend=partial(_attend_variant, cached=False)),
    "query_norm_left_out": _change_vectors("attn_q_norm", torch.ones_like),
    "ffn_gate_and_up_swapped": _replace_ops(silu_mul=_silu_mul_swapped),
    "head_tied_though_it_is_not": _change_models(
        lambda m: replace(m, weights=replace(m.weights, head=m.weights.embedding))
    ),
    "one_layer_short": _change_models(
        lambda m: replace(m, weights=replace(m.weights, layers=m.weights.layers[:-1]))
    ),
}

MUTANTS: dict[str, Builder] = MODEL_FAULTS | LOW_LEVEL_MUTANTS
