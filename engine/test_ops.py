"""The reference ops against plain f64 formulas, where a formula is shorter than the op."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import arithmetic, ops
from engine.errors import InputError
from engine.state import Refs


def _randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 63, 64, 65, 127, 128, 129, 300])
@pytest.mark.parametrize("slope", [-0.2, 0.0, 0.2])
def test_attention_equals_a_two_pass_softmax(n: int, slope: float) -> None:
    q, keys, values = _randn(1, 4, 256), _randn(2, n, 2, 256), _randn(3, n, 2, 256)
    keys = keys + slope * torch.arange(n)[:, None, None] * q[0] / 16
    got = ops.attend_one(q, keys, values).double()
    scores = torch.einsum("hrd,nhd->hrn", q.double().view(2, 2, 256), keys.double()) / 16
    want = torch.einsum("hrn,nhd->hrd", scores.softmax(-1), values.double()).flatten(0, 1)
    assert float((got - want).norm() / want.norm()) < 3e-6


def test_attention_of_one_key_is_its_value() -> None:
    values = _randn(4, 1, 2, 256)
    got = ops.attend_one(_randn(5, 4, 256), _randn(6, 1, 2, 256), values)
    assert torch.equal(got, values[0].repeat_interleave(2, 0))


def test_attention_of_several_rows_takes_their_tokens_in_order() -> None:
    q, k, v, gate = (_randn(seed, 5, heads, 256) for seed, heads in ((30, 4), (31, 2), (32, 2),
                                                                    (33, 4)))
    caches, lengths, counts = [_randn(34 + i, 3, 8, 2, 256) for i in range(2)], (4, 1), (2, 3)
    keys, values = want = [cache.clone() for cache in caches]
    wanted, at = torch.empty(5, 4, 256), 0
    for slot, length, count in zip((2, 0), lengths, counts, strict=True):
        for n in range(length, length + count):
            keys[slot, n], values[slot, n] = k[at], v[at]
            wanted[at] = ops.attend_one(q[at], keys[slot, :n + 1], values[slot, :n + 1])
            at += 1
    out = torch.empty(5, 4, 256)
    held_k, held_v = (Refs(cache, (2, 0)) for cache in caches)
    ops.attend(q, k, v, gate, held_k, held_v, lengths, counts, out)
    assert torch.equal(out, wanted * arithmetic.sigmoid(gate))
    assert all(map(torch.equal, caches, want))


def test_delta_rule_equals_its_equations() -> None:
    q, k, v = _randn(7, 3, 2, 128), _randn(8, 3, 2, 128), _randn(9, 3, 4, 128)
    g, beta = _randn(10, 3, 4).sigmoid(), _randn(11, 3, 4).sigmoid()
    state = _randn(12, 4, 128, 128)
    want_state, wanted = state.double(), []
    for t in range(3):
        kt, qt = ((x[t].double() / (x[t].double().pow(2).sum(-1, keepdim=True) + 1e-6).sqrt())
                  .repeat(2, 1) for x in (k, q))
        want_state = want_state * g[t].double()[:, None, None]
        read = torch.einsum("hkv,hk->hv", want_state, kt)
        change = beta[t].double()[:, None] * (v[t].double() - read)
        want_state = want_state + kt[:, :, None] * change[:, None, :]
        wanted.append(torch.einsum("hkv,hk->hv", want_state, qt) * 128 ** -0.5)
    out = torch.empty(3, 4, 128)
    ops.delta_step(q, k, v, g, beta, Refs(state[None], (0,)), (3,), out)
    assert float((out.double() - torch.stack(wanted)).abs().max()) < 1e-5
    assert float((state.double() - want_state).abs().max()) < 1e-5


def test_several_matrices_use_the_product_that_is_passed() -> None:
    calls: list[tuple[Any, ...]] = []
    weights: Any = ["W", "V"]
    x, outs = _randn(17, 2, 3), [torch.empty(2, 5), torch.empty(2, 7)]
    ops.project_all(lambda *given: calls.append(given), weights, x, outs)
    assert calls == [("W", x, outs[0]), ("V", x, outs[1])]


def test_sum_is_stored_and_normed() -> None:
    x, y, weight, total, out = (_randn(seed, 2, 64) for seed in range(18, 23))
    ops.add_norm(ops.norm, x, y, weight[0], 1e-6, total, out)
    assert torch.equal(total, x + y)
    assert torch.equal(out, arithmetic.rms_norm(total, weight[0], 1e-6))


def test_norm_and_rotation_that_are_passed_run_on_each_operand() -> None:
    calls: list[tuple[Any, ...]] = []
    xs, normed, outs = ([_randn(seed, 3), _randn(seed + 1, 3)] for seed in (23, 25, 27))
    table = _randn(29, 5, 2, 1)
    weights: Any = ["Q", "K"]
    ops.norm_rotate(lambda *given: calls.append(given), lambda *given: calls.append(given),
                    xs, weights, 1e-6, table, [4], normed, outs)
    want: list[tuple[Any, ...]] = []
    for i in range(2):
        want += [(xs[i], weights[i], 1e-6, normed[i]), (normed[i], table, [4], outs[i])]
    assert calls == want


def test_convolution_sees_the_last_three_tokens_and_shifts() -> None:
    taps, window = _randn(13, 6, 4), _randn(14, 6, 3)
    x, past = _randn(15, 5, 6), torch.cat([window.T, _randn(15, 5, 6)])
    out = torch.empty(5, 6)
    ops.conv_step(x, taps, Refs(window[None], (0,)), (5,), out)
    for t in range(5):
        y = (past[t:t + 4].T * taps).double().sum(1)
        assert torch.allclose(out[t].double(), y * y.sigmoid(), atol=1e-6)
    assert torch.equal(window, past[5:8].T)


def test_argmax_takes_the_lowest_index_and_refuses_nan() -> None:
    out = torch.empty(3, dtype=torch.int64)
    ops.argmax(torch.tensor([[1.0, 3, 3, 2], [-5, -4, -4, -9], [-0.0, 0.0, -1, 0]]), out)
    assert out.tolist() == [1, 1, 0]
    with pytest.raises(InputError, match="row 1"):
        ops.argmax(torch.tensor([[0.0, 1], [0, float("nan")], [1, 0]]), out)


def test_rotation_leaves_the_rest_of_a_head_unchanged() -> None:
    from engine.rope import rope_table
    x, out = _randn(16, 2, 3, 256), torch.empty(2, 3, 256)
    ops.rotate(x, rope_table(8, 64, 1e7), [0, 5], out)
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1, :, 64:], x[1, :, 64:])
    assert not torch.equal(out[1, :, :64], x[1, :, :64])


@pytest.mark.parametrize("n", [63, 64, 65, 127, 129, 193, 300])
def test_attention_has_the_written_bits(n: int) -> None:
    q, keys, values = _randn(20, 1, 256), 3 * _randn(21, n, 1, 256), _randn(22, n, 1, 256)
    splits = []
    for first in range(0, n, 64):
        scores = [arithmetic.ordered_sum(q[0] * key[0]) * 0.0625 for key in keys[first:first + 64]]
        top = torch.stack(scores).max()
        p = [arithmetic.exp(score - top) for score in scores]
        low, high = [torch.zeros(()) for _ in range(8)], [torch.zeros(256) for _ in range(8)]
        for j, value in enumerate(values[first:first + 64]):
            low[j % 8] = low[j % 8] + p[j]
            high[j % 8] = high[j % 8] + p[j] * value[0]
        while len(low) > 1:
            low, high = ([x[i] + x[i + 1] for i in range(0, len(x), 2)] for x in (low, high))
        splits.append((top, low[0], high[0]))
    most = torch.stack([top for top, _, _ in splits]).max()
    bottom, total = torch.zeros(()), torch.zeros(256)
    for top, low_sum, high_sum in splits:
        share = arithmetic.exp(top - most)
        bottom, total = bottom + share * low_sum, total + share * high_sum
    assert torch.equal(ops.attend_one(q, keys, values)[0], total / bottom)
