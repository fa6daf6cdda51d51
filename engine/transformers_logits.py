"""Teacher-forced logits of the `transformers` Qwen3.5 implementation on a GGUF file's weights.

Nothing here uses the engine: the `gguf` package reads and dequantises the file. The changes of the
conversion to GGUF (one added to norms, value heads reordered, -exp(A_log)) are undone.
Needs the extra `golden`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

GLOBAL_NAMES = {"token_embd.weight": "model.embed_tokens.weight",
          "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
BLOCK_NAMES = {"attn_norm.weight": "input_layernorm.weight",
         "post_attention_norm.weight": "post_attention_layernorm.weight",
         "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
         "ffn_down.weight": "mlp.down_proj.weight", "attn_q.weight": "self_attn.q_proj.weight",
         "attn_k.weight": "self_attn.k_proj.weight", "attn_v.weight": "self_attn.v_proj.weight",
         "attn_output.weight": "self_attn.o_proj.weight",
         "attn_q_norm.weight": "self_attn.q_norm.weight",
         "attn_k_norm.weight": "self_attn.k_norm.weight",
         "attn_qkv.weight": "linear_attn.in_proj_qkv.weight",
         "attn_gate.weight": "linear_attn.in_proj_z.weight",
         "ssm_alpha.weight": "linear_attn.in_proj_a.weight",
         "ssm_beta.weight": "linear_attn.in_proj_b.weight",
         "ssm_conv1d.weight": "linear_attn.conv1d.weight", "ssm_dt.bias": "linear_attn.dt_bias",
         "ssm_a": "linear_attn.A_log", "ssm_norm.weight": "linear_attn.norm.weight",
         "ssm_out.weight": "linear_attn.out_proj.weight"}


class GgufConverter:
    """A GGUF file, read only with the `gguf` package."""

    def __init__(self, path: Path) -> None:
        self.reader = gguf.GGUFReader(path)
        self.key_heads, self.value_heads = (int(self.value("ssm.group_count")),
                                            int(self.value("ssm.time_step_rank")))

    def value(self, key: str, default: Any = None) -> Any:
        """Return one metadata value of the architecture as plain Python."""
        found = self.reader.fields.get(f"qwen35.{key}")
        return found.contents() if found is not None else default

    def weights(self) -> dict[str, Tensor]:
        """Return every tensor dequantised, by its name in `transformers`, conversion undone."""
        state = {}
        for tensor in self.reader.tensors:
            array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            name, kind = self._rename(tensor.name)
            original = self._undo_conversion(kind, array.astype(np.float64))
            state[name] = torch.from_numpy(original.copy())
        state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
        return state

    def _rename(self, name: str) -> tuple[str, str]:
        if name in GLOBAL_NAMES:
            return GLOBAL_NAMES[name], name
        _, layer, kind = name.split(".", 2)
        return f"model.layers.{layer}.{BLOCK_NAMES[kind]}", kind

    def _undo_conversion(self, kind: str, x: np.ndarray) -> np.ndarray:
        if kind.endswith("norm.weight") and kind != "ssm_norm.weight":
            return x - 1
        if kind == "ssm_a":
            return self._reorder_heads(np.log(-x), 1)
        if kind in ("ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
            return self._reorder_heads(x, 1)
        if kind == "attn_gate.weight":
            return self._reorder_heads(x, 128)
        if kind in ("attn_qkv.weight", "ssm_conv1d.weight"):
            qk = 2 * self.key_heads * 128
            x = np.concatenate([x[:qk], self._reorder_heads(x[qk:], 128)])
            return x[:, None, :] if kind == "ssm_conv1d.weight" else x
        if kind == "ssm_out.weight":
            return self._reorder_heads(x.T, 128).T
        return x

    def _reorder_heads(self, x: np.ndarray, width: int) -> np.ndarray:
        """Return value heads of `width` rows in the original order.

        GGUF head h is head (h % K) * (V / K) + h // K.
        """
        heads = x.reshape(self.value_heads, width, *x.shape[1:])
        out = np.empty_like(heads)
        for h in range(self.value_heads):
            groups = self.value_heads // self.key_heads
            out[(h % self.key_heads) * groups + h // self.key_heads] = heads[h]
        return out.reshape(x.shape)


def build_model(path: Path) -> Any:
    """Return a float64 `Qwen3_5ForCausalLM` that holds the file's weights."""
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    file = GgufConverter(path)
    weights = file.weights()
    vocab, embd = weights["model.embed_tokens.weight"].shape
    layers = int(file.value("block_count"))
    interval = int(file.value("full_attention_interval", 4))
    kinds = file.value("attention.recurrent_layers", [(i + 1) % interval != 0
                                                      for i in range(layers)])
    width = int(file.value("attention.key_length"))
    config = Qwen3_5TextConfig(
        vocab_size=vocab,
        hidden_size=embd,
        num_hidden_layers=layers,
        head_dim=width,
        intermediate_size=int(file.value("feed_forward_length")),
        num_attention_heads=int(file.value("attention.head_count")),
        num_key_value_heads=int(file.value("attention.head_count_kv")),
        max_position_embeddings=int(file.value("context_length")),
        rms_norm_eps=float(file.value("attention.layer_norm_rms_epsilon")),
        linear_num_key_heads=file.key_heads,
        linear_num_value_heads=file.value_heads,
        tie_word_embeddings=False,
        layer_types=["linear_attention" if k else "full_attention" for k in kinds],
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(file.value("rope.freq_base")),
            "partial_rotary_factor": int(file.value("rope.dimension_count")) / width,
            "mrope_section": list(file.value("rope.dimension_sections"))[:3],
        },
    )
    model = Qwen3_5ForCausalLM(config).double().eval()
    model.load_state_dict(weights, strict=True)
    return model


def compute_logits(path: Path, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Return teacher-forced logits f32[prompts, tokens, vocab] of prompts of one length."""
    model = build_model(path)
    with torch.no_grad():
        return torch.stack([model(torch.tensor([list(prompt)]), use_cache=False).logits[0].float()
                            for prompt in prompts])
