"""Load weights: each tensor of a file is used once or ignored by name, none is defaulted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.blocks import dequantize, has_finite_scales
from engine.config import Config
from engine.errors import InputError
from engine.gguf_file import GgufFile, TensorEntry
from engine.weights import EXACT, Weight


@dataclass(frozen=True)
class Layer:
    """One block's parameters by their GGUF names, `ssm_dt.bias` as `ssm_dt`."""

    matrices: dict[str, Weight]
    vectors: dict[str, Tensor]
    """f32: norms, `ssm_a`, `ssm_dt` and the taps of `ssm_conv1d` [conv_dim, 4]."""


@dataclass(frozen=True)
class Weights:
    """Every parameter of the trunk, and the names of the file's other tensors."""

    embedding: Weight
    layers: tuple[Layer, ...]
    output_norm: Tensor
    head: Weight
    ignored_names: tuple[str, ...] = field(default=())
    """Tensors of the file that text decoding does not use."""

    def matrices(self) -> Iterator[Weight]:
        """Yield every matrix once; a tied head is the embedding."""
        yield self.embedding
        for layer in self.layers:
            yield from layer.matrices.values()
        if self.head is not self.embedding:
            yield self.head

    def like(self, arithmetic: str | None = None, device: str | None = None) -> Weights:
        """Return the same weights in another arithmetic or on another device."""
        embedding = self.embedding.like(arithmetic, device)
        head = embedding if self.head is self.embedding else self.head.like(arithmetic, device)
        layers = tuple(Layer({k: w.like(arithmetic, device) for k, w in layer.matrices.items()},
                             {k: v.to(device or v.device) for k, v in layer.vectors.items()})
                       for layer in self.layers)
        norm = self.output_norm.to(device or self.output_norm.device)
        return Weights(embedding, layers, norm, head, self.ignored_names)


def matrix_shapes(config: Config, recurrent: bool) -> dict[str, tuple[int, int]]:
    """Return the shapes (N, K) of one block's matrices by name."""
    ffn = {"ffn_gate": (config.ffn, config.embd), "ffn_up": (config.ffn, config.embd),
           "ffn_down": (config.embd, config.ffn)}
    if recurrent:
        inner = config.value_heads * config.state_size
        return {"attn_qkv": (config.conv_dim, config.embd), "attn_gate": (inner, config.embd),
                "ssm_alpha": (config.value_heads, config.embd),
                "ssm_beta": (config.value_heads, config.embd),
                "ssm_out": (config.embd, inner), **ffn}
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {"attn_q": (2 * q, config.embd), "attn_k": (kv, config.embd),
            "attn_v": (kv, config.embd), "attn_output": (config.embd, q), **ffn}


def vector_shapes(config: Config, recurrent: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one block's f32 parameters by name."""
    norms: dict[str, tuple[int, ...]] = {"attn_norm": (config.embd,),
                                         "post_attention_norm": (config.embd,)}
    if recurrent:
        return {**norms, "ssm_conv1d": (config.conv_dim, config.conv_kernel),
                "ssm_a": (config.value_heads,), "ssm_dt": (config.value_heads,),
                "ssm_norm": (config.state_size,)}
    return {**norms, "attn_q_norm": (config.head_dim,), "attn_k_norm": (config.head_dim,)}


class TensorReader:
    """Returns each tensor of a file once and records which remain."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.remaining = dict(file.tensors)

    def take(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        """Return one tensor; raise `InputError` if it is missing or of another shape."""
        entry = self.remaining.pop(name, None)
        if entry is None:
            raise InputError(f"{self.file.path}: tensor {name} is missing")
        if tuple(entry.shape) != shape:
            raise InputError(f"{self.file.path}: tensor {name} has shape {list(entry.shape)}, but "
                             f"the metadata imply {list(shape)}")
        self.file.check_size()
        if not has_finite_scales(entry.kind, entry.data):
            raise InputError(f"{self.file.path}: tensor {name} holds values that are not finite")
        return entry

    def read_matrix(self, name: str, shape: tuple[int, int]) -> Weight:
        """Return one matrix [N, K] of any supported type."""
        entry = self.take(name, shape)
        return Weight(name, entry.kind, entry.data, EXACT)

    def read_vector(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return one parameter as f32; raise `InputError` if it is quantised."""
        entry = self.take(name, shape)
        if entry.kind not in ("F32", "F16", "BF16"):
            raise InputError(f"{self.file.path}: tensor {name} has type {entry.kind}, but a norm, "
                             f"gate or convolution parameter must be F32, F16 or BF16")
        return torch.from_numpy(dequantize(entry.kind, entry.data).reshape(shape).copy())

    def ignore_rest(self, layers: int) -> tuple[str, ...]:
        """Return the remaining names; raise `InputError` if text decoding needs one of them."""
        for name in self.remaining:
            block = name.split(".")[1] if name.startswith("blk.") else ""
            predicted = block.isdigit() and int(block) >= layers
            if not (predicted or name.startswith(("v.", "mm.", "mtp."))):
                raise InputError(f"{self.file.path}: tensor {name} is not one that a qwen35 model "
                                 f"of {layers} layers has, so it cannot be ignored safely")
        return tuple(self.remaining)


def load_weights(
        file: GgufFile, reader: Callable[[GgufFile], TensorReader] = TensorReader,
) -> tuple[Config, Weights]:
    """Return the configuration and weights of an open file; raise `InputError` if one is wrong."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise InputError(f"{file.path}: tensor token_embd.weight is missing")
    tied = "output.weight" not in file.tensors
    config = Config.from_metadata(file.metadata, embedding.shape[0], tied)
    tensors = reader(file)
    embed = tensors.read_matrix("token_embd.weight", (config.vocab, config.embd))
    layers = tuple(_read_layer(tensors, config, i) for i in range(config.layers))
    norm = tensors.read_vector("output_norm.weight", (config.embd,))
    head = embed if tied else tensors.read_matrix("output.weight", (config.vocab, config.embd))
    return config, Weights(embed, layers, norm, head, tensors.ignore_rest(config.layers))


def _read_layer(tensors: TensorReader, config: Config, index: int) -> Layer:
    recurrent = config.recurrent[index]
    matrices = {name: tensors.read_matrix(f"blk.{index}.{name}.weight", shape)
                for name, shape in matrix_shapes(config, recurrent).items()}
    suffix = {"ssm_a": "", "ssm_dt": ".bias"}
    vectors = {name: tensors.read_vector(f"blk.{index}.{name}{suffix.get(name, '.weight')}", shape)
               for name, shape in vector_shapes(config, recurrent).items()}
    return Layer(matrices, vectors)
