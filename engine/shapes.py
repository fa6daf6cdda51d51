"""Shapes of generated models and the weight types of their tensors."""

from __future__ import annotations

from dataclasses import dataclass

from engine.blocks import TYPES
from engine.config import CONV_TAPS, HEAD_DIM, STATE_SIZE
from engine.errors import InputError


@dataclass(frozen=True)
class Shape:
    """The shape of a generated model; released sizes equal the originals."""

    embd: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    key_heads: int
    value_heads: int
    vocab: int = 248320
    tied: bool = True
    context: int = 262144
    attention_interval: int | None = 4
    """Every n-th layer is full attention; None writes a list of layer kinds instead."""
    released: bool = True
    """True for released sizes, whose weights are drawn as block bytes without encoding."""

    @property
    def recurrent(self) -> tuple[bool, ...]:
        """For each layer, True when it is a GDN layer; a list also ends the model with one."""
        if self.attention_interval is None:
            return tuple(i % 3 != 2 and i != self.layers - 1 for i in range(self.layers))
        return tuple((i + 1) % self.attention_interval != 0 for i in range(self.layers))


SHAPES = {
    "nano": Shape(256, 512, 2, 4, 2, 2, 4, vocab=509, tied=False, context=32768,
                  attention_interval=2, released=False),
    "tiny": Shape(512, 768, 5, 2, 1, 2, 4, vocab=1021, tied=False, context=32768,
                  attention_interval=None, released=False),
    "0.8b": Shape(1024, 3584, 24, 8, 2, 16, 16),
    "4b": Shape(2560, 9216, 32, 16, 4, 16, 32),
    "9b": Shape(4096, 12288, 32, 16, 4, 16, 32, tied=False),
}
QUANTS = ("q4_k_m", "f32", "mixed")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to be written: `name` as in the file, `role` without its layer."""

    name: str
    role: str
    layer: int
    """-1 for a tensor of no layer."""
    shape: tuple[int, ...]
    kind: str


def plan_tensors(shape: Shape, quant: str) -> list[TensorSpec]:
    """List every tensor of a model in the order of its file, with its weight type."""
    if quant not in QUANTS:
        raise InputError(f"--quant {quant} is not known; known are {', '.join(QUANTS)}")
    tensors = [_plan_matrix("token_embd", -1, shape.vocab, shape.embd, shape, quant),
               TensorSpec("output_norm.weight", "output_norm", -1, (shape.embd,), "F32")]
    if not shape.tied:
        tensors.append(_plan_matrix("output", -1, shape.vocab, shape.embd, shape, quant))
    for layer in range(shape.layers):
        for role, size in _layer_shapes(shape, shape.recurrent[layer]).items():
            if role in _VECTOR_SUFFIXES or role.endswith("norm"):
                ending = _VECTOR_SUFFIXES.get(role, ".weight")
                tensors.append(TensorSpec(f"blk.{layer}.{role}{ending}", role, layer, size, "F32"))
            else:
                tensors.append(_plan_matrix(role, layer, size[0], size[1], shape, quant))
    return tensors


_VECTOR_SUFFIXES = {"ssm_a": "", "ssm_dt": ".bias", "ssm_conv1d": ".weight"}


def _layer_shapes(shape: Shape, recurrent: bool) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer with their numpy shapes."""
    embd, values, queries = shape.embd, shape.value_heads * STATE_SIZE, shape.heads * HEAD_DIM
    mixing: dict[str, tuple[int, ...]]
    if recurrent:
        conv = 2 * shape.key_heads * STATE_SIZE + values
        mixing = {"attn_qkv": (conv, embd), "attn_gate": (values, embd),
                  "ssm_conv1d": (conv, CONV_TAPS), "ssm_dt": (shape.value_heads,),
                  "ssm_a": (shape.value_heads,), "ssm_alpha": (shape.value_heads, embd),
                  "ssm_beta": (shape.value_heads, embd), "ssm_norm": (STATE_SIZE,),
                  "ssm_out": (embd, values)}
    else:
        keys = shape.kv_heads * HEAD_DIM
        mixing = {
            "attn_q": (2 * queries, embd),
            "attn_k": (keys, embd),
            "attn_v": (keys, embd),
            "attn_q_norm": (HEAD_DIM,),
            "attn_k_norm": (HEAD_DIM,),
            "attn_output": (embd, queries),
        }
    return {"attn_norm": (embd,), **mixing, "post_attention_norm": (embd,),
            "ffn_gate": (shape.ffn, embd), "ffn_up": (shape.ffn, embd),
            "ffn_down": (embd, shape.ffn)}


def _plan_matrix(role: str, layer: int, rows: int, columns: int, shape: Shape,
                 quant: str) -> TensorSpec:
    mix = {"f32": lambda *_: "F32", "mixed": _mixed_kind, "q4_k_m": _q4_k_m_kind}[quant]
    kind = mix(role, layer, shape.layers)
    # As in real quantisers, a row that ends within a block takes a type with smaller blocks.
    for other in (kind, "Q8_0", "F16"):
        if columns % TYPES[other].weights == 0:
            kind = other
            break
    name = f"blk.{layer}.{role}.weight" if layer >= 0 else f"{role}.weight"
    return TensorSpec(name, role, layer, (rows, columns), kind)


def _q4_k_m_kind(role: str, layer: int, layers: int) -> str:
    """Return the type in a released Q4_K_M file of this architecture."""
    if role == "ffn_down":
        eighth = layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        return "Q6_K" if more else "Q4_K"
    return {"token_embd": "Q6_K", "output": "Q6_K", "attn_v": "Q6_K", "attn_qkv": "Q5_K",
            "ssm_out": "Q5_K", "ssm_alpha": "Q8_0", "ssm_beta": "Q8_0"}.get(role, "Q4_K")


def _mixed_kind(role: str, layer: int, layers: int) -> str:
    """Return a type so that every supported type occurs, even in a model of two layers."""
    kinds = {"token_embd": "Q6_K", "output": "Q4_K", "attn_qkv": "Q5_K", "attn_gate": "Q4_K",
             "ssm_alpha": "Q8_0", "ssm_beta": "F32", "ssm_out": "Q5_K", "attn_q": "Q4_K",
             "attn_k": "F16", "attn_v": "Q6_K", "attn_output": "BF16", "ffn_gate": "Q4_K",
             "ffn_up": "Q8_0", "ffn_down": "Q6_K"}
    late = {"ffn_up": "Q4_K", "ffn_down": "Q4_K", "ssm_out": "Q8_0", "attn_gate": "Q6_K",
            "attn_output": "Q4_K", "attn_v": "Q5_K", "ssm_beta": "BF16"}
    return late.get(role, kinds[role]) if layer > layers // 2 else kinds[role]
