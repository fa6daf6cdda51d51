"""Generated models: complete GGUF files of random weights, the same bytes on every machine."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

from engine import draw
from engine.blocks import TYPES, Bytes, Floats
from engine.config import CONV_TAPS, HEAD_DIM, MAX_SIZES, STATE_SIZE, Config
from engine.encode import encode
from engine.errors import InputError
from engine.shapes import SHAPES, Shape, TensorSpec, plan_tensors
from engine.vocabulary import CHAT_TEMPLATE, END_TOKEN, PAD_TOKEN, build_vocabulary

EPS, ROPE_BASE, ROPE_DIM, ROPE_SECTIONS = 1e-6, 1e7, 64, (11, 11, 10, 0)
DEFAULT_SEED = 1
FAINT_SCALE = 1e-4
"""Factor of one GDN layer's q and k channels: so small that the l2 epsilon matters."""
GAINS = {"attn_output": 5.0, "ssm_out": 2.5}
"""Deviation of a matrix times the root of its columns, 1 where a role is not named.

Mixing must outweigh the feed-forward part, or a damaged state would change no token.
"""
QUIET_GAIN = 0.03
"""Gain of an embedding with a head of its own: so small that the first norm's epsilon matters.

A tied head uses 1, so that logits are of order 1 and the token just read seldom wins again.
"""
Progress = Callable[[int, int], None]
"""Receives the bytes written and the total bytes."""


def make_model(out: str | os.PathLike[str], shape: str, quant: str, seed: int = DEFAULT_SEED, *,
               force: bool = False, progress: Progress | None = None, **overrides: Any) -> Path:
    """Write a complete model file and return its path.

    `shape` and `quant` are names of `engine.shapes`; `overrides` change fields of the shape. The
    file is written atomically and replaces another only with `force`.
    """
    out, chosen = Path(out), _resolve_shape(shape, overrides)
    if out.is_dir():
        raise InputError(f"{out} is a directory")
    if os.path.lexists(out) and (out.is_symlink() or not out.is_file()):
        raise InputError(f"{out} is not a regular file and is not replaced")
    if out.exists() and not force:
        raise InputError(f"{out} exists; --force replaces it")
    if not 0 <= seed < 1 << 63:
        raise InputError(f"a seed must lie between 0 and 2^63 - 1, but is {seed}")
    tensors = plan_tensors(chosen, quant)
    try:
        with tempfile.TemporaryDirectory(prefix=".making-", dir=out.parent) as folder:
            unfinished = Path(folder) / "model.gguf"
            _write_model(unfinished, f"{shape} {quant} seed {seed}", chosen, quant, seed, tensors,
                   progress)
            os.replace(unfinished, out)
    except OSError as error:
        raise InputError(f"cannot write {out}: {error.strerror}") from None
    return out


def _resolve_shape(name: str, overrides: dict[str, Any]) -> Shape:
    """Return a named shape with changes; raise `InputError` if a config refuses it."""
    if name not in SHAPES:
        raise InputError(f"--shape {name} is not known; known are {', '.join(SHAPES)}")
    changes = {key: value for key, value in overrides.items() if value is not None}
    shape = dataclasses.replace(SHAPES[name], **changes)
    if not 0 < shape.layers <= MAX_SIZES["layers"]:
        raise InputError(f"layers must lie between 1 and {MAX_SIZES['layers']}, but is "
                         f"{shape.layers}")
    build_vocabulary(max(0, min(shape.vocab, 1024)))
    Config(layers=shape.layers, recurrent=shape.recurrent, embd=shape.embd, ffn=shape.ffn,
           vocab=shape.vocab, context=shape.context, heads=shape.heads, kv_heads=shape.kv_heads,
           head_dim=HEAD_DIM, rope_dim=ROPE_DIM, rope_base=ROPE_BASE, rope_sections=ROPE_SECTIONS,
           eps=EPS, conv_kernel=CONV_TAPS, key_heads=shape.key_heads, value_heads=shape.value_heads,
           state_size=STATE_SIZE, tied=shape.tied)
    return shape


def _write_model(path: Path, title: str, shape: Shape, quant: str, seed: int,
                 tensors: list[TensorSpec], progress: Progress | None) -> None:
    writer = GGUFWriter(path, "qwen35")
    try:
        _add_metadata(writer, title, shape, quant)
        _add_tokenizer(writer, shape.vocab)
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32),
                                   _tensor_bytes(tensor), GGMLQuantizationType[tensor.kind])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        _write_tensors(writer.fout[0], shape, seed, tensors, progress)
    finally:
        writer.close()


def _add_metadata(writer: GGUFWriter, title: str, shape: Shape, quant: str) -> None:
    writer.add_type("model")
    writer.add_name(f"rowtwin {title}")
    writer.add_description("Random weights for tests: says nothing, computes everything")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.embd)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(ROPE_DIM)
    writer.add_rope_dimension_sections(ROPE_SECTIONS)
    writer.add_ssm_conv_kernel(CONV_TAPS)
    writer.add_ssm_state_size(STATE_SIZE)
    writer.add_ssm_group_count(shape.key_heads)
    writer.add_ssm_time_step_rank(shape.value_heads)
    writer.add_ssm_inner_size(shape.value_heads * STATE_SIZE)
    if shape.attention_interval is None:
        writer.add_array("qwen35.attention.recurrent_layers", list(shape.recurrent))
    else:
        writer.add_uint32("qwen35.full_attention_interval", shape.attention_interval)
    writer.add_file_type(LlamaFileType.ALL_F32 if quant == "f32" else
                         LlamaFileType.MOSTLY_Q4_K_M)
    writer.add_quantization_version(2)


def _add_tokenizer(writer: GGUFWriter, size: int) -> None:
    words = build_vocabulary(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(words.tokens)
    writer.add_token_types(words.types)
    writer.add_token_merges(words.merges)
    writer.add_eos_token_id(words.tokens.index(END_TOKEN))
    writer.add_pad_token_id(words.tokens.index(PAD_TOKEN))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensor_bytes(tensor: TensorSpec) -> int:
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    return rows * TYPES[tensor.kind].row_bytes(tensor.shape[-1])


def _write_tensors(file: BinaryIO, shape: Shape, seed: int, tensors: list[TensorSpec],
                   progress: Progress | None) -> None:
    """Write every tensor at its aligned place; threads draw ahead by a few chunks."""
    total, done = sum(_tensor_bytes(t) for t in tensors), 0
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[bool, Future[Bytes]]] = deque()
        jobs = _draw_jobs(shape, seed, tensors)
        for first, job in jobs:
            ahead.append((first, pool.submit(job)))
            if len(ahead) > 2 * threads:
                done += _write_chunk(file, *ahead.popleft())
                if progress is not None:
                    progress(done, total)
        while ahead:
            done += _write_chunk(file, *ahead.popleft())
    file.write(bytes(-file.tell() % 32))
    if progress is not None:
        progress(done, total)


def _write_chunk(file: BinaryIO, first: bool, chunk: Future[Bytes]) -> int:
    if first:
        file.write(bytes(-file.tell() % 32))
    return file.write(chunk.result().reshape(-1).data)


def _draw_jobs(shape: Shape, seed: int,
               tensors: list[TensorSpec]) -> Iterator[tuple[bool, Callable[[], Bytes]]]:
    """Yield a function that draws each chunk, and whether it is its tensor's first."""
    for tensor in tensors:
        key = f"{seed}/{tensor.name}"
        if tensor.kind == "F32" and (tensor.role in _VECTOR_DRAWS or tensor.role.endswith("norm")):
            yield True, partial(_draw_vector, shape, key, tensor)
            continue
        rows, columns = tensor.shape
        gain = GAINS.get(tensor.role, 1.0)
        if tensor.role == "token_embd" and not shape.tied:
            gain = QUIET_GAIN
        std = gain / float(np.sqrt(columns))
        method = draw.random_blocks if shape.released else draw.encoded_gaussian
        span = max(1, draw.CHUNK // columns)
        for start in range(0, rows, span):
            yield start == 0, partial(method, tensor.kind, f"{key}/{start}",
                                      min(span, rows - start), columns, std)


def _draw_vector(shape: Shape, key: str, tensor: TensorSpec) -> Bytes:
    values = _VECTOR_DRAWS.get(tensor.role, _draw_norm)(shape, key, tensor)
    return encode("F32", values.reshape(-1, tensor.shape[-1]))


def _draw_norm(shape: Shape, key: str, tensor: TensorSpec) -> Floats:
    return draw.uniform(key, 1, tensor.shape[0], 0.5, 1.5)


def _draw_sharp_norm(shape: Shape, key: str, tensor: TensorSpec) -> Floats:
    """Keep attention from spreading evenly over all keys."""
    return draw.uniform(key, 1, tensor.shape[0], 0.8, 2.2)


def _draw_decay(shape: Shape, key: str, tensor: TensorSpec) -> Floats:
    """Draw decays of four strengths in turn, from slow to immediate forgetting."""
    base = np.array([-0.02, -0.1, -0.6, -4.0], np.float32)
    spread = draw.uniform(key, 1, shape.value_heads, 0.6, 1.8)
    return np.resize(base, (1, shape.value_heads)) * spread


def _draw_step_bias(shape: Shape, key: str, tensor: TensorSpec) -> Floats:
    return draw.uniform(key, 1, shape.value_heads, -2.0, 1.0)


def _draw_taps(shape: Shape, key: str, tensor: TensorSpec) -> Floats:
    """Draw the convolution; in the first GDN layer its q and k channels are nearly silent."""
    taps = draw.gaussian(key, *tensor.shape) * np.float32(0.8)
    if tensor.layer == shape.recurrent.index(True):
        taps[:2 * shape.key_heads * STATE_SIZE] *= np.float32(FAINT_SCALE)
    return taps


_VECTOR_DRAWS: dict[str, Callable[[Shape, str, TensorSpec], Floats]] = {
    "ssm_a": _draw_decay, "ssm_dt": _draw_step_bias, "ssm_conv1d": _draw_taps,
    "attn_q_norm": _draw_sharp_norm, "attn_k_norm": _draw_sharp_norm}
