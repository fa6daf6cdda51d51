"""The encoders have small round-trip errors, complete blocks and fixed bytes."""

from __future__ import annotations

import hashlib

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine.blocks import TYPES, Floats, dequantize, has_finite_scales, unpack_blocks
from engine.encode import encode
from engine.errors import InputError

RELATIVE_ERROR = {"F16": 2.0**-11, "BF16": 2.0**-8}
STEPS = {"Q4_K": 15, "Q5_K": 31, "Q6_K": 63, "Q8_0": 254}


def gaussian(rows: int, columns: int, seed: int = 0) -> Floats:
    """Make normal weights [rows, columns] of standard deviation 0.05."""
    return np.random.default_rng(seed).normal(0, 0.05, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("kind", STEPS)
def test_a_round_trip_errs_by_about_half_a_step(kind: str) -> None:
    x = gaussian(40, 1024)
    sub = {"Q6_K": 16}.get(kind, 32)
    got = dequantize(kind, encode(kind, x))
    groups = x.reshape(-1, sub)
    reach = 2 * np.abs(groups).max(1) if kind in ("Q6_K", "Q8_0") else np.ptp(groups, axis=1)
    error = np.abs(got.reshape(-1, sub) - groups).max(1)
    # Half a step, and what rounding the six-bit scales and minima may add.
    assert np.all(error <= reach * (0.5 / STEPS[kind] + {"Q8_0": 0.001}.get(kind, 0.06)))
    # The rounding error of a uniform quantiser is its step over the square root of 12.
    assert np.sqrt(np.mean((got - x) ** 2)) < 0.4 * np.mean(reach) / STEPS[kind]


@pytest.mark.parametrize("kind", RELATIVE_ERROR)
def test_a_narrow_float_is_the_nearest(kind: str) -> None:
    x = np.concatenate([gaussian(8, 64), gaussian(8, 64) * np.float32(1e4)])
    got = dequantize(kind, encode(kind, x))
    assert np.all(
        np.abs(got - x) <= np.abs(x) * np.float32(RELATIVE_ERROR[kind]) + np.float32(2.0**-25)
    )


def test_a_tie_between_two_narrow_floats_goes_to_the_even_one() -> None:
    bits = np.array([[0x3F808000, 0x3F818000, 0x3F808001, 0xBF818000]], np.uint32)
    got = encode("BF16", bits.view(np.float32)).view("<u2")
    assert got.tolist() == [[0x3F80, 0x3F82, 0x3F81, 0xBF82]]


def test_f32_rows_are_unchanged() -> None:
    x = gaussian(3, 40)
    assert np.array_equal(dequantize("F32", encode("F32", x)), x)


@pytest.mark.parametrize("kind", TYPES)
def test_the_package_reads_what_is_written(kind: str) -> None:
    raw = encode(kind, gaussian(5, 512))
    want = gguf.dequantize(raw, GGMLQuantizationType[kind]).reshape(5, 512)
    assert np.array_equal(dequantize(kind, raw), want)


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e-9, -3e4])
def test_a_constant_row_comes_back_close_and_finite(kind: str, value: float) -> None:
    x = np.full((2, 256), value, np.float32)
    raw = encode(kind, x)
    assert has_finite_scales(kind, raw)
    assert np.all(np.abs(dequantize(kind, raw) - x) <= abs(value) * 0.04 + 1e-6)


def test_weights_on_one_grid_are_encoded_exactly() -> None:
    y = ((np.arange(256) % 255) - 127).astype(np.float32).reshape(1, 256)
    y[0, 31::32] = 127
    assert np.array_equal(dequantize("Q8_0", encode("Q8_0", y)), y)


def test_both_signs_of_scale_occur_in_q6_k() -> None:
    scale = unpack_blocks("Q6_K", encode("Q6_K", gaussian(4, 1024))).scale
    assert scale is not None
    assert scale.min() < -20
    assert scale.max() > 20


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K"])
def test_scales_and_minima_fill_their_six_bits(kind: str) -> None:
    x = gaussian(4, 1024) * np.repeat(np.linspace(0.05, 1, 32), 32).astype(np.float32)
    parts = unpack_blocks(kind, encode(kind, x))
    for part in (parts.scale, parts.minimum):
        assert part is not None
        assert part.max() == 63
        assert part.min() < 16


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_is_refused(kind: str, bad: float) -> None:
    x = gaussian(2, 256)
    x[1, 7] = bad
    with pytest.raises(InputError, match="finite"):
        encode(kind, x)


@pytest.mark.parametrize(("kind", "value"), [("F16", 65520), ("Q8_0", 1e7), ("Q4_K", 3e8),
                                             ("BF16", 3.4e38)])
def test_a_weight_too_large_for_its_type_is_refused(kind: str, value: float) -> None:
    with pytest.raises(InputError, match="too large"):
        encode(kind, np.full((1, 256), value, np.float32))


def test_rows_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(InputError, match="float64"):
        encode("F32", np.zeros((1, 4)))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the weights of a Q4_K block"):
        encode("Q4_K", np.zeros((1, 100), np.float32))
    with pytest.raises(InputError, match="Q2_K"):
        encode("Q2_K", np.zeros((1, 256), np.float32))


DIGESTS = {
    "F32": "4b3a2dbebd73faad", "F16": "cf8def4fd16f9b9b", "BF16": "7d0d609fcb962892",
    "Q8_0": "5bcfca0e98caf639", "Q4_K": "0f6af78149812f58", "Q5_K": "299987052eababcf",
    "Q6_K": "9f0e00dc65c20431"}


@pytest.mark.parametrize("kind", TYPES)
def test_the_bytes_are_the_ones_written_down(kind: str) -> None:
    n = np.arange(4 * 512, dtype=np.int64)
    x = ((n * n * 7919 + n * 104729) % 65521 - 32760).astype(np.float32) / np.float32(49157)
    raw = encode(kind, x.reshape(4, 512))
    assert hashlib.sha256(raw.tobytes()).hexdigest()[:16] == DIGESTS[kind]
