"""The written arithmetic of every op, in PyTorch: the same bits on any machine and at any width.

`contracts/arithmetic.md` is the normative text; the numbers in brackets below are its items. Only
f32 add, subtract, multiply, divide and a square root taken through f64 are used, each rounded
once in the written order. Float `torch.sigmoid`, `sum` and `matmul` are not used: their bits
change with an element's position, the layout or the thread count.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NORM_LANES = 128
"""Lanes of SUM [11]."""
DOT_LANES = 256
"""Lanes of the ordered product [10], and the width of an activation group [1]."""
GROUP = 256
SEGMENT = 4
"""Groups added in order before segments are [6]."""


def f32_from_bits(bits: int) -> float:
    """Return the value of an f32 bit pattern."""
    return torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32).item()


_LOG2E, _ROUND = f32_from_bits(0x3FB8AA3B), 12582912.0
_LN2_HIGH, _LN2_LOW = f32_from_bits(0x3F318000), f32_from_bits(0xB95E8083)
_EXP = [f32_from_bits(b) for b in (0x394F83AF, 0x3AB6C737, 0x3C08893A, 0x3D2AAA46, 0x3E2AAAAA,
                                   0x3F000000)]
_LOG1P = [f32_from_bits(b) for b in (0x3DF8E5E4, 0x3DDB67D5, 0x3E1284DE, 0x3E4CCB53, 0x3EAAAAAC)]


def divide(x: Tensor, by: float) -> Tensor:
    """Return x / by, DIV [13]; for a scalar, a device would multiply by its inverse."""
    return x / torch.full_like(x, by)


def pairwise_sum(x: Tensor) -> Tensor:
    """Add adjacent pairs of the last axis (a power of two wide) until one is left."""
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0]


def lane_sums(x: Tensor, width: int) -> Tensor:
    """Add the last axis into `width` lanes, element k to lane k mod width, in order from +0."""
    short = -x.shape[-1] % width
    if short:
        x = torch.nn.functional.pad(x, (0, short))
    columns = x.unflatten(-1, (-1, width)).unbind(-2)
    total = torch.zeros_like(columns[0])
    for column in columns:
        total = total + column
    return total


def ordered_sum(x: Tensor) -> Tensor:
    """Return SUM of the last axis [11]: 128 lanes in order, then adjacent pairs."""
    return pairwise_sum(lane_sums(x, NORM_LANES))


def sqrt(x: Tensor) -> Tensor:
    """Return the correctly rounded f32 square root [13]; torch's own is wrong for one in six."""
    return x.double().sqrt().float()


def rsqrt(x: Tensor) -> Tensor:
    """Return RSQRT, 1 over the square root, each rounded once [12]."""
    return 1.0 / sqrt(x)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return (x * RSQRT(mean square + eps)) * weight over the last axis [12]."""
    mean = divide(ordered_sum(x * x), x.shape[-1])
    return (x * rsqrt(mean + eps).unsqueeze(-1)) * weight


def l2_norm(x: Tensor, eps: float) -> Tensor:
    """Return x * RSQRT(sum of squares + eps) over the last axis [12]; eps is added to the sum."""
    return x * rsqrt(ordered_sum(x * x) + eps).unsqueeze(-1)


def _horner(coefficients: list[float], t: Tensor) -> Tensor:
    p = torch.full_like(t, coefficients[0])
    for c in coefficients[1:]:
        p = p * t + c
    return p


def exp(x: Tensor) -> Tensor:
    """Return EXP [14]: within 0.97 ulp, +0 below -87, +inf above 88, NaN stays NaN."""
    y = x.clamp(-87.0, 88.0)
    n = (y * _LOG2E + _ROUND) - _ROUND
    t = (y - n * _LN2_HIGH) - n * _LN2_LOW
    p = _horner(_EXP, t)
    n = torch.nan_to_num(n)
    power = ((n.to(torch.int32) + 127) << 23).view(torch.float32)
    e = ((((p * t) * t) + t) + 1.0) * power
    e = torch.where(x < -87.0, 0.0, e)
    return torch.where(x > 88.0, torch.inf, e)


def log1p(t: Tensor) -> Tensor:
    """Return LOG1P for 0 <= t <= 1 [15], within 2 ulp."""
    u = t / (t + 2.0)
    z = u * u
    w = u + u
    return w + w * (z * _horner(_LOG1P, z))


def softplus(x: Tensor) -> Tensor:
    """Return SOFTPLUS [16]: max(x, 0) + LOG1P(EXP(-|x|))."""
    y = torch.where(x > 0, x, 0.0) + log1p(exp(-x.abs()))
    return torch.where(torch.isnan(x), x, y)


def sigmoid(x: Tensor) -> Tensor:
    """Return SIGMOID [16]; DIV(t if x < 0 else 1, t + 1) with t = EXP(-|x|)."""
    t = exp(-x.abs())
    y = torch.where(x < 0, t, 1.0) / (t + 1.0)
    return torch.where(torch.isnan(x), x, y)


def silu(x: Tensor) -> Tensor:
    """Return SILU [16], x * SIGMOID(x)."""
    return x * sigmoid(x)


def fixed_point(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return quantised activations: integers and their scales [1-4].

    Args:
        x: f32[t, K].

    Returns:
        a, f64[t, G, 256], integers of at most 8,355,711 in size, and s, f32[t, G], with
        a * s close to x. A group with a value that is not finite has a = 0 and s = NaN.
    """
    short = -x.shape[-1] % GROUP
    if short:
        x = torch.nn.functional.pad(x, (0, short))
    x = x.unflatten(-1, (-1, GROUP))
    size = (x.view(torch.int32) & 0x7FFFFFFF).amax(-1)
    broken = size >= 0x7F800000
    e = (((size + 0x010101) >> 23) - 126).clamp(min=-77)
    e = torch.where(broken, 0, e)
    s = ((e + 104) << 23).view(torch.float32)
    r = ((150 - e) << 23).view(torch.float32)
    y = x * r.unsqueeze(-1)
    a = (y.abs() + 8388608.0).view(torch.int32) & 0x7FFFFF
    a = torch.where(y < 0, -a, a)
    a = torch.where(broken.unsqueeze(-1), 0, a)
    return a.double(), torch.where(broken, torch.nan, s)


def segment_sum(v: Tensor) -> Tensor:
    """Add values over the group axis 0: four in order from +0, then those in order [6]."""
    short = -v.shape[0] % SEGMENT
    if short:
        v = torch.cat([v, v.new_zeros(short, *v.shape[1:])])
    parts = v.unflatten(0, (-1, SEGMENT))
    s = torch.zeros_like(parts[:, 0])
    for i in range(SEGMENT):
        s = s + parts[:, i]
    y = torch.zeros_like(s[0])
    for part in s:
        y = y + part
    return y


def ordered_dot(x: Tensor, w: Tensor) -> Tensor:
    """Return the ordered product [10] of x f32[K] with each row of w f32[N, K]: f32[N]."""
    return pairwise_sum(lane_sums(x * w, DOT_LANES))


def log_softmax_at(logits: Tensor, token: int) -> float:
    """Return the log-probability of one token under f32[vocab] logits, as an f32 value.

    The sum of exponentials is SUM over EXP, so only the last logarithm runs on the host, in f64,
    and is rounded to f32.
    """
    top = logits.max()
    log_total = math.log(float(ordered_sum(exp(logits - top))))
    return float(torch.tensor(float(logits[token] - top) - log_total, dtype=torch.float32))
