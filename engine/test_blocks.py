"""The block decoders equal the `gguf` package bit for bit on random and extreme bytes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from engine import blocks
from engine.blocks import TYPES, Bytes, dequantize, has_finite_scales, unpack_blocks
from engine.errors import InputError

QUANTISED = ("Q4_K", "Q5_K", "Q6_K", "Q8_0")
EXTREMES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF)


def random_rows(kind: str, rows: int, count: int, seed: int = 0) -> Bytes:
    """Make [rows, count blocks] of random bytes whose scales are finite."""
    size = TYPES[kind].bytes
    raw = np.random.default_rng(seed).integers(0, 256, (rows, count, size), np.uint8)
    for at in scale_offsets(kind):
        odd = raw[..., at + 1]
        odd[(odd & 0x7C) == 0x7C] &= 0x83
    return raw.reshape(rows, count * size)


def scale_offsets(kind: str) -> tuple[int, ...]:
    """Return where a block's f16 scales lie."""
    return {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}[kind]


def matches_gguf(kind: str, raw: Bytes) -> bool:
    """Compare with the package to the bit."""
    want = gguf.dequantize(raw, GGMLQuantizationType[kind])
    return np.array_equal(dequantize(kind, raw).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_has_the_size_the_package_gives_it(kind: str) -> None:
    number = GGMLQuantizationType[kind]
    assert TYPES[kind].ggml == number
    assert (TYPES[kind].weights, TYPES[kind].bytes) == gguf.GGML_QUANT_SIZES[number]


@pytest.mark.parametrize("kind", QUANTISED)
def test_random_blocks_decode_to_the_packages_bits(kind: str) -> None:
    assert matches_gguf(kind, random_rows(kind, 200, 12))


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("fill", [0x00, 0x0F, 0x3F, 0x55, 0x80, 0xAA, 0xC0, 0xF0, 0xFF])
def test_extreme_scales_over_one_filling_decode_to_the_packages_bits(kind: str, fill: int) -> None:
    size = TYPES[kind].bytes
    raw = np.full((len(EXTREMES), len(EXTREMES), size), fill, np.uint8)
    halves = np.array(EXTREMES, "<u2").view(np.uint8).reshape(-1, 2)
    raw[..., scale_offsets(kind)[0]:][..., :2] = halves[:, None]
    raw[..., scale_offsets(kind)[-1]:][..., :2] = halves[None] if len(scale_offsets(kind)) > 1 \
        else halves[:, None]
    assert matches_gguf(kind, raw.reshape(len(EXTREMES), -1))


@pytest.mark.parametrize("kind", QUANTISED)
def test_every_bit_of_a_block_reaches_the_weights_as_in_the_package(kind: str) -> None:
    bits = TYPES[kind].bytes * 8
    raw = np.repeat(random_rows(kind, 1, 1, seed=3), bits, axis=0)
    for at in scale_offsets(kind):
        raw[:, at:at + 2] = (0x34, 0x2E)
    raw[np.arange(bits), np.arange(bits) // 8] ^= (1 << np.arange(bits) % 8).astype(np.uint8)
    assert matches_gguf(kind, raw)
    assert len(np.unique(dequantize(kind, raw), axis=0)) == bits


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_every_finite_narrow_float_widens_exactly(kind: str) -> None:
    raw = np.arange(65536, dtype="<u2").view(np.uint8).reshape(1, -1)
    want = gguf.dequantize(raw, GGMLQuantizationType[kind]).reshape(1, -1)
    got = dequantize(kind, raw)
    finite = np.isfinite(want)
    assert np.array_equal(got.view(np.uint32)[finite], want.view(np.uint32)[finite])
    assert np.array_equal(np.isnan(got), np.isnan(want))


def test_f32_rows_come_back_as_they_are() -> None:
    raw = np.random.default_rng(1).integers(0, 256, (3, 40), np.uint8)
    assert dequantize("F32", raw).view(np.uint8).tobytes() == raw.tobytes()


@pytest.mark.parametrize("kind", QUANTISED)
def test_parts_lie_in_their_ranges_and_shapes(kind: str) -> None:
    parts = unpack_blocks(kind, random_rows(kind, 2, 8))
    columns = 8 * TYPES[kind].weights
    low, high = {"Q4_K": (0, 15), "Q5_K": (0, 31), "Q6_K": (-32, 31), "Q8_0": (-128, 127)}[kind]
    assert parts.q.shape == (2, columns)
    assert parts.q.dtype == np.int16
    assert (parts.q.min(), parts.q.max()) == (low, high)
    assert parts.d.shape == (2, 8)
    if parts.scale is not None:
        assert parts.scale.shape == (2, columns // (16 if kind == "Q6_K" else 32))
    if parts.minimum is not None and parts.dmin is not None:
        assert parts.minimum.shape == (2, columns // 32)
        assert parts.dmin.shape == parts.d.shape


@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00])
def test_a_scale_that_is_not_finite_is_found_at_any_place(kind: str, half: int) -> None:
    clean = random_rows(kind, 3, 4)
    assert has_finite_scales(kind, clean)
    for at in scale_offsets(kind):
        raw = clean.copy()
        raw.reshape(3, 4, -1)[2, 3, at:at + 2] = np.array([half], "<u2").view(np.uint8)
        assert not has_finite_scales(kind, raw)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_plain_weight_that_is_not_finite_is_found(kind: str) -> None:
    raw = np.zeros((2, 8 * TYPES[kind].bytes), np.uint8)
    assert has_finite_scales(kind, raw)
    raw[1, -2:] = {"F32": (0x80, 0x7F), "F16": (0x00, 0xFC), "BF16": (0x80, 0xFF)}[kind]
    assert not has_finite_scales(kind, raw)


def test_rows_that_end_within_a_block_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 144"):
        dequantize("Q4_K", np.zeros((1, 143), np.uint8))
    with pytest.raises(InputError, match="300 weights is not a multiple of 256, the weights of a "
                                         "Q6_K block"):
        TYPES["Q6_K"].row_bytes(300)


def test_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="Q3_K"):
        dequantize("Q3_K", np.zeros((1, 110), np.uint8))
    with pytest.raises(InputError, match="F16 tensor has no quantised blocks"):
        unpack_blocks("F16", np.zeros((1, 2), np.uint8))


def test_the_subtraction_of_the_minimum_is_the_only_rounding() -> None:
    raw = random_rows("Q5_K", 20, 4, seed=9)
    parts = unpack_blocks("Q5_K", raw)
    assert parts.scale is not None
    assert parts.minimum is not None
    assert parts.dmin is not None
    first = np.repeat(parts.d.astype(float), 256, 1) * np.repeat(parts.scale, 32, 1) * parts.q
    second = np.repeat(parts.dmin.astype(float), 256, 1) * np.repeat(parts.minimum, 32, 1)
    assert np.array_equal(first, first.astype(np.float32))
    assert np.array_equal(blocks.dequantize("Q5_K", raw), (first - second).astype(np.float32))
