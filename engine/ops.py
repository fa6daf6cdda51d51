"""The reference ops of one step, in plain PyTorch; simple rather than fast.

Letters: t tokens, m rows (one a sequence), C = conv_dim, H query heads, G KV heads, V value heads,
and each function writes into `out`. Tokens of a row are adjacent and in order; the result of a row
depends only on that row and its slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine.arithmetic import (
    exp,
    l2_norm,
    lane_sums,
    ordered_sum,
    pairwise_sum,
    rms_norm,
    sigmoid,
    silu,
    softplus,
)
from engine.errors import InputError
from engine.state import Refs
from engine.weights import Weight

L2_EPS = 1e-6
SPLIT = 64
"""Keys of one attention split."""
KEY_LANES = 8
"""Lanes into which a split's keys are added."""


def embed(weight: Weight, tokens: list[int], out: Tensor) -> None:
    """Write the dequantised rows of `tokens` into out[t, embd]."""
    out.copy_(weight.rows(tokens))


def norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Write the RMS norm of the last axis of x into `out`, weighted."""
    out.copy_(rms_norm(x, weight, eps))


def add_norm(norm: Callable[..., None], x: Tensor, y: Tensor, weight: Tensor, eps: float,
             total: Tensor, out: Tensor) -> None:
    """Write the residual sum x + y into `total` and its norm, computed by `norm`, into `out`."""
    torch.add(x, y, out=total)
    norm(total, weight, eps, out)


def project(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x[t, K] into out[t, N]."""
    out.copy_(weight.product(x))


def project_all(project: Callable[..., None], weights: Sequence[Weight], x: Tensor,
                outs: Sequence[Tensor]) -> None:
    """Write W x for every row of x[t, K] and each matrix W into its own out[t, N]."""
    for weight, out in zip(weights, outs, strict=True):
        project(weight, x, out)


def conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: tuple[int, ...],
              out: Tensor) -> None:
    """Write the SiLU of the causal convolution of x[t, C] into out[t, C]; shift the windows.

    taps is [C, 4]; tap 3 multiplies the present token, window[:, 0] is the oldest.
    """
    at = 0
    for window, count in zip(windows.views, counts, strict=True):
        for _ in range(count):
            a, b, c = window.unbind(1)
            y = ((taps[:, 0] * a + taps[:, 1] * b) + taps[:, 2] * c) + taps[:, 3] * x[at]
            out[at] = silu(y)
            window.copy_(torch.stack([b, c, x[at]], dim=1))
            at += 1


def gates(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor, alpha: Tensor,
          beta: Tensor) -> None:
    """Write EXP(decay * SOFTPLUS(a + dt_bias)) into alpha[t, V], SIGMOID(b) into beta[t, V]."""
    alpha.copy_(exp(decay * softplus(a + dt_bias)))
    beta.copy_(sigmoid(b))


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    q and k are [t, key_heads, 128] as the convolution left them, v is [t, V, 128]; value head h
    uses key head h mod key_heads. Decay first, read after decay, output after write.
    """
    groups = v.shape[1] // k.shape[1]
    scale = float(torch.tensor(q.shape[-1] ** -0.5, dtype=torch.float32))
    q = (l2_norm(q, L2_EPS) * scale).repeat(1, groups, 1)
    k = l2_norm(k, L2_EPS).repeat(1, groups, 1)
    at = 0
    for state, count in zip(states.views, counts, strict=True):
        for _ in range(count):
            s = state * alpha[at, :, None, None]
            read = ordered_sum((s * k[at, :, :, None]).transpose(1, 2))
            v_new = beta[at, :, None] * (v[at] - read)
            s = s + k[at, :, :, None] * v_new[:, None, :]
            state.copy_(s)
            out[at] = ordered_sum((s * q[at, :, :, None]).transpose(1, 2))
            at += 1


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Write the RMS norm of each head of x[t, V, 128] times SILU(z) into `out`."""
    out.copy_(rms_norm(x, weight, eps) * silu(z))


def rotate(x: Tensor, table: Tensor, positions: list[int], out: Tensor) -> None:
    """Write x[t, heads, dim] rotated at each token's own position into `out`.

    table is f32[positions, 2, pairs]; dimension i turns with i + pairs, the rest pass.
    """
    pairs = table.shape[2]
    cos, sin = table[positions, 0].unsqueeze(1), table[positions, 1].unsqueeze(1)
    low, high, rest = x[..., :pairs], x[..., pairs:2 * pairs], x[..., 2 * pairs:]
    out.copy_(torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1))


def norm_rotate(norm: Callable[..., None], rotate: Callable[..., None], xs: Sequence[Tensor],
                weights: Sequence[Tensor], eps: float, table: Tensor,
                positions: Tensor | list[int], normed: Sequence[Tensor],
                outs: Sequence[Tensor]) -> None:
    """Norm each of xs [t, heads, dim] into `normed` with `norm`, then `rotate` that into `outs`.

    Each of xs has its own weight; a token has the same position in all of them.
    """
    for x, weight, middle, out in zip(xs, weights, normed, outs, strict=True):
        norm(x, weight, eps, middle)
        rotate(middle, table, positions, out)


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: tuple[int, ...], counts: tuple[int, ...], out: Tensor) -> None:
    """Append k and v [t, G, 256] to each row's cache and write gated attention into out[t, H, 256].

    lengths[i] is how many rows slot i's cache holds before this step; query head h reads KV head
    h // (H / G). A cache narrower than f32 rounds to nearest even and is widened before use, so
    a token reads its own key and value rounded too.
    """
    at = 0
    for cached_k, cached_v, length, count in zip(keys.views, values.views, lengths, counts,
                                                 strict=True):
        for n in range(length, length + count):
            cached_k[n] = k[at]
            cached_v[n] = v[at]
            seen_k, seen_v = cached_k[:n + 1].float(), cached_v[:n + 1].float()
            out[at] = attend_one(q[at], seen_k, seen_v) * sigmoid(gate[at])
            at += 1


def attend_one(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return softmax(q k / sqrt(dim)) v for one token: q[H, dim], keys and values [n, G, dim].

    Splits of 64 keys; in a split, maximum, EXP against it, sums in 8 lanes (key j to lane j mod 8)
    then adjacent pairs; splits are merged in order against the largest maximum.
    """
    n, kv_heads = keys.shape[:2]
    q = q.unflatten(0, (kv_heads, -1))
    parts = [_attend_split(q, keys[i:i + SPLIT], values[i:i + SPLIT]) for i in range(0, n, SPLIT)]
    top = torch.stack([m for m, _, _ in parts]).amax(0)
    bottom = torch.zeros_like(top)
    total = torch.zeros_like(q)
    for m, low, acc in parts:
        share = exp(m - top)
        bottom = bottom + share * low
        total = total + share.unsqueeze(-1) * acc
    return (total / bottom.unsqueeze(-1)).flatten(0, 1)


def _attend_split(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return one split's maximum [G, R], sum [G, R] and weighted values [G, R, dim]."""
    scores = ordered_sum(q * keys.unsqueeze(2)) * (q.shape[-1] ** -0.5)  # [keys, G, R]
    top = scores.amax(0)
    p = exp(scores - top)
    low = pairwise_sum(lane_sums(p.movedim(0, -1), KEY_LANES))
    weighted = p.unsqueeze(-1) * values.unsqueeze(2)  # [keys, G, R, dim]
    return top, low, pairwise_sum(lane_sums(weighted.movedim(0, -1), KEY_LANES))


def silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> None:
    """Write SILU(gate) * up into `out`."""
    out.copy_(silu(gate) * up)


def argmax(logits: Tensor, out: Tensor, refuse: bool = True) -> None:
    """Write each row's largest index into out[m], the lowest on ties, and -1 for a row with NaN.

    Such a row raises `InputError` unless `refuse` is off; the caller then checks for -1.
    """
    top = logits.amax(-1, keepdim=True)  # NaN if the row has one
    out.copy_((logits == top).to(torch.int8).argmax(-1))
    out.masked_fill_(torch.isnan(logits).any(-1), -1)
    if refuse:
        refuse_nan(out)


def refuse_nan(chosen: Tensor) -> None:
    """Raise `InputError` if one of tokens i64[m] is -1, which marks logits with NaN."""
    tokens = chosen.tolist()
    if -1 in tokens:
        raise InputError(f"logits of row {tokens.index(-1)} hold NaN, so they have no largest "
                         f"value")
