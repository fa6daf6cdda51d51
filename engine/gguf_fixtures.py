"""GGUF files packed by hand, and the invalid ones with the sentence that refuses each."""

from __future__ import annotations

import struct


def pack_string(value: str | bytes) -> bytes:
    """Pack a string as the format has it."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pack_tensor_info(name: str | bytes, dims: tuple[int, ...], kind: int = 0,
                     offset: int = 0) -> bytes:
    """Pack one tensor's entry."""
    return pack_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def pack_file(keys: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), *, version: int = 3,
              data: int = 256) -> bytes:
    """Pack a file with `data` zero bytes after the header."""
    raw = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    raw += b"".join(keys) + b"".join(tensors)
    return raw + bytes(-len(raw) % 32) + bytes(data)


ONE_TENSOR = (pack_tensor_info("a", (32, 2)),)
FLAG_KEY = pack_string("flag") + struct.pack("<I?", 7, True)


def with_key(value: bytes) -> bytes:
    """Pack a file with a key `k` and one tensor."""
    return pack_file((pack_string("k") + value,), ONE_TENSOR)


def with_tensor(info: bytes) -> bytes:
    """Pack a file of one tensor."""
    return pack_file(tensors=(info,))


REFUSED_FILES: dict[str, tuple[bytes, str]] = {
    "another-format": (b"PK\x03\x04" + bytes(64), "starts with b'PK"),
    "version-1": (pack_file(tensors=ONE_TENSOR, version=1), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 0) + bytes(64), "big-endian"),
    "huge-tensor-count": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors, over"),
    "huge-key-count": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 63), "metadata keys, over"),
    "no-tensors": (pack_file((FLAG_KEY,)), "no tensors"),
    "key-past-the-end": (pack_file((struct.pack("<Q", 1 << 62),), ONE_TENSOR), "the file ends"),
    "key-not-utf8": (
        pack_file((pack_string(b"\xff\xfe") + struct.pack("<I?", 7, True),), ONE_TENSOR),
        "not UTF-8",
    ),
    "value-not-utf8": (with_key(struct.pack("<I", 8) + pack_string(b"\xff")), "not UTF"),
    "duplicate-key": (pack_file((FLAG_KEY, FLAG_KEY), ONE_TENSOR), "key flag occurs twice"),
    "unknown-value-type": (with_key(struct.pack("<I", 13)), "value type 13"),
    "list-of-lists": (with_key(struct.pack("<IIQ", 9, 9, 1)), "list of lists"),
    "list-past-the-end": (with_key(struct.pack("<IIQ", 9, 4, 1 << 20)), "ends"),
    "list-of-too-many": (with_key(struct.pack("<IIQ", 9, 8, 1 << 61)), "over"),
    "bool-that-is-two": (with_key(struct.pack("<IB", 7, 2)), "neither true"),
    "alignment-of-three": (
        pack_file((pack_string("general.alignment") + struct.pack("<II", 4, 3),), ONE_TENSOR),
        "power of two",
    ),
    "alignment-text": (
        pack_file((pack_string("general.alignment") + struct.pack("<I", 8) + pack_string("x"),),
                  ONE_TENSOR),
        "power of two",
    ),
    "duplicate-tensor": (
        pack_file(tensors=(*ONE_TENSOR, pack_tensor_info("a", (32,), offset=256)), data=512),
        "tensor a occurs twice",
    ),
    "tensor-not-utf8": (with_tensor(pack_tensor_info(b"\xc3", (32,))), "not UTF-8"),
    "no-dimensions": (with_tensor(pack_tensor_info("a", ())), "0 dimensions"),
    "five-dimensions": (with_tensor(pack_tensor_info("a", (1, 1, 1, 1, 1))), "5 dimensions"),
    "many-dimensions": (pack_file(tensors=(pack_string("a") + struct.pack("<I", 1 << 31),)),
                        "dimensions"),
    "zero-dimension": (with_tensor(pack_tensor_info("a", (32, 0))), "cannot be in a file"),
    "negative-dimension": (with_tensor(pack_tensor_info("a", (2**64 - 1,))), "cannot be in a file"),
    "element-overflow": (with_tensor(pack_tensor_info("a", (1 << 32, 1 << 32))), "cannot be in a"),
    "unsupported-type": (with_tensor(pack_tensor_info("blk.3.attn_k.weight", (256,), 11)),
                         r"blk\.3\.attn_k\.weight has type Q3_K"),
    "unknown-type": (with_tensor(pack_tensor_info("a", (32,), 9999)), "a has type number 9999"),
    "row-that-ends-within-a-block": (with_tensor(pack_tensor_info("a", (300,), 12)),
                         "the weights of a Q4_K block"),
    "unaligned": (with_tensor(pack_tensor_info("a", (32,), offset=8)), "not a multiple of 32"),
    "data-past-the-end": (with_tensor(pack_tensor_info("a", (32, 3))), "tensor a ends at byte"),
    "offset-past-the-end": (with_tensor(pack_tensor_info("a", (32,), offset=2**64 - 32)),
                            "ends at"),
    "overlap": (pack_file(tensors=(*ONE_TENSOR, pack_tensor_info("b", (32,), offset=128))),
                "a and b overlap"),
    "a-tensor-too-many": (b"GGUF" + struct.pack("<IQQ", 3, 65537, 0), "65537 tensors, over 65536"),
    "as-many-tensors-as-may-be": (b"GGUF" + struct.pack("<IQQ", 3, 65536, 0), "tensor 0 needs 8"),
    "an-entry-too-many": (
        with_key(struct.pack("<IIQ", 9, 0, 8388609)),
        "list entries to 8388609, over 8388608",
    ),
    "as-many-entries-as-may-be": (
        with_key(struct.pack("<IIQ", 9, 0, 8388608)),
        "k needs 8388608 bytes",
    ),
    "long-name-of-nonsense": (
        pack_file((pack_string("k\n" * 999) + struct.pack("<I", 99),), ONE_TENSOR),
        "99$",
    ),
}
