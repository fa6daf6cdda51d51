"""The shape of a model, read from a file's metadata and checked on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from engine.errors import InputError
from engine.metadata import MetadataReader, check_int, recurrent_layers

HEAD_DIM = 256
"""Width of an attention head; no other is supported."""
STATE_SIZE = 128
"""Width of a GDN key or value head; no other is supported."""
CONV_TAPS = 4
"""Taps of the causal convolution; no other length is supported."""
MAX_SIZES = {"layers": 4096, "embd": 1 << 20, "ffn": 1 << 22, "vocab": 1 << 24, "context": 1 << 31,
           "heads": 4096, "kv_heads": 4096, "key_heads": 4096, "value_heads": 4096}
"""Largest sizes; a file with a larger one is refused before anything is allocated."""


@dataclass(frozen=True, slots=True)
class Config:
    """The shape of a Qwen3.5 hybrid: Gated DeltaNet (GDN) and gated full-attention layers."""

    layers: int
    """Blocks of the trunk, without multi-token-prediction blocks."""
    recurrent: tuple[bool, ...]
    """For each layer, True when it is a GDN layer."""
    embd: int
    """Width of the residual stream."""
    ffn: int
    """Width inside the feed-forward part."""
    vocab: int
    """Rows of the embedding, the number of token ids."""
    context: int
    """The most tokens a sequence may have."""
    heads: int
    """Query heads of an attention layer."""
    kv_heads: int
    """Key and value heads of an attention layer; query head h uses h // (heads / kv_heads)."""
    head_dim: int
    """Width of an attention head: 256."""
    rope_dim: int
    """Leading dimensions of a head that are rotated."""
    rope_base: float
    """The angle of pair i is position * base^(-2i / rope_dim)."""
    rope_sections: tuple[int, ...]
    """Pairs turned by each kind of position; for text the first three are the same."""
    eps: float
    """Added to the mean square in every rms norm, and to the sum of squares of q and k."""
    conv_kernel: int
    """Taps of the causal convolution: 4."""
    key_heads: int
    """Query and key heads of a GDN layer; value head h uses key head h % key_heads."""
    value_heads: int
    """Value heads of a GDN layer, each with a state of [state_size, state_size]."""
    state_size: int
    """Width of a GDN key and of a GDN value head: 128."""
    tied: bool
    """True when the output head is the embedding."""

    def __post_init__(self) -> None:
        for name, most in MAX_SIZES.items():
            check_int(name.replace("_", " "), getattr(self, name), most)
        if len(self.recurrent) != self.layers:
            raise InputError(f"the model has {self.layers} layers, but its list of layer kinds "
                             f"has {len(self.recurrent)} entries")
        self._check_attention()
        self._check_rope()
        self._check_gdn()
        if not (math.isfinite(self.eps) and 0 < self.eps < 1):
            raise InputError(f"the norms' epsilon must lie between 0 and 1, but is {self.eps}")

    def _check_attention(self) -> None:
        if self.head_dim != HEAD_DIM:
            raise InputError(f"attention heads of width {self.head_dim} are not supported, "
                             f"only {HEAD_DIM}")
        if self.heads % self.kv_heads:
            raise InputError(f"{self.heads} query heads cannot share {self.kv_heads} key-value "
                             f"heads evenly")

    def _check_rope(self) -> None:
        if self.rope_dim < 2 or self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise InputError(f"the rotated width must be even and between 2 and {self.head_dim}, "
                             f"but is {self.rope_dim}")
        if not (math.isfinite(self.rope_base) and self.rope_base > 1):
            raise InputError(f"the rope base must be finite and above 1, but is {self.rope_base}")
        sections = list(self.rope_sections)
        if len(sections) not in (3, 4) or any(s < 0 for s in sections):
            raise InputError(f"rope sections must be three or four counts, but are {sections}")
        if not _covers_text_pairs(sections, self.rope_dim // 2):
            raise InputError(f"rope sections {sections} do not put all {self.rope_dim // 2} pairs "
                             f"of a text position into the first three sections, which is not "
                             f"supported")

    def _check_gdn(self) -> None:
        if self.conv_kernel != CONV_TAPS:
            raise InputError(f"a convolution of {self.conv_kernel} taps is not supported, "
                             f"only {CONV_TAPS}")
        if self.state_size != STATE_SIZE:
            raise InputError(f"GDN heads of width {self.state_size} are not supported, "
                             f"only {STATE_SIZE}")
        if self.value_heads % self.key_heads:
            raise InputError(f"{self.value_heads} value heads cannot share {self.key_heads} key "
                             f"heads evenly")

    @property
    def key_dim(self) -> int:
        """Width of all GDN keys (and of all GDN queries) together."""
        return self.key_heads * self.state_size

    @property
    def value_dim(self) -> int:
        """Width of all GDN values together."""
        return self.value_heads * self.state_size

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_dim + self.value_dim

    @property
    def query_dim(self) -> int:
        """Width of all attention queries together, without their gates."""
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all attention keys (and of all attention values) together."""
        return self.kv_heads * self.head_dim

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        """The numbers of the GDN layers, in order."""
        return tuple(i for i, r in enumerate(self.recurrent) if r)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """The numbers of the full-attention layers, in order."""
        return tuple(i for i, r in enumerate(self.recurrent) if not r)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], vocab: int, tied: bool) -> Config:
        """Return the shape in a file's metadata; raise `InputError` if a key is missing or wrong.

        `vocab` is the number of embedding rows; `tied` says that the file has no output head.
        """
        keys = MetadataReader(metadata)
        blocks = keys.read_int("block_count", MAX_SIZES["layers"])
        extra = keys.read_int("nextn_predict_layers", MAX_SIZES["layers"], default=0)
        if extra >= blocks:
            raise InputError(f"block_count is {blocks}, but {extra} of them are prediction blocks, "
                             f"which leaves no layer")
        recurrent = recurrent_layers(keys, blocks, extra)
        state, value_heads = keys.read_int("ssm.state_size"), keys.read_int("ssm.time_step_rank")
        keys.check_equal("ssm.inner_size", value_heads * state,
                         f"ssm.time_step_rank x ssm.state_size = {value_heads} x {state}")
        width = keys.read_int("attention.key_length")
        keys.check_equal("attention.value_length", width, "attention.key_length")
        attention = [i for i, r in enumerate(recurrent) if not r]
        return cls(layers=blocks - extra, recurrent=recurrent, vocab=vocab, tied=tied,
                   embd=keys.read_int("embedding_length"), context=keys.read_int("context_length"),
                   ffn=keys.read_per_layer("feed_forward_length", range(blocks - extra)),
                   heads=keys.read_per_layer("attention.head_count", attention),
                   kv_heads=keys.read_per_layer("attention.head_count_kv", attention),
                   head_dim=width, rope_dim=keys.read_int("rope.dimension_count"),
                   rope_base=keys.read_float("rope.freq_base"),
                   eps=keys.read_float("attention.layer_norm_rms_epsilon"),
                   rope_sections=keys.read_ints("rope.dimension_sections"),
                   conv_kernel=keys.read_int("ssm.conv_kernel"),
                   key_heads=keys.read_int("ssm.group_count"), value_heads=value_heads,
                   state_size=state)


def _covers_text_pairs(sections: list[int], pairs: int) -> bool:
    """Return whether interleaved sections give every pair one of the three text positions.

    Pair i belongs to section i % 3 while i < 3 * that section's count, as in the released
    models; a pair that no section takes would get the fourth position, which is zero in a text.
    """
    return sum(sections) == pairs and all(i < 3 * sections[i % 3] for i in range(pairs))
