"""Block bytes as kernels see them: a tensor where the kernel runs, made once a matrix."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.weights import Weight, tensor_of

_COPIES: WeakKeyDictionary[Weight, dict[torch.device, Tensor]] = WeakKeyDictionary()
_ALIGNED = 16
"""Bytes of the widest load that a kernel may choose by a base's alignment."""


def device_bytes(weight: Weight, device: torch.device | str) -> Tensor:
    """Return a matrix's block bytes u8[N, bytes of a row] on a device; one copy a device is kept.

    On the CPU writable memory is shared, not copied. A copy begins where the original begins
    modulo 16 bytes, so that a kernel meets the alignment that the file has.
    """
    device = torch.device(device)
    copies = _COPIES.setdefault(weight, {})
    if device not in copies:
        shared = device.type == "cpu" and weight.raw.flags.writeable
        copies[device] = torch.from_numpy(weight.raw) if shared else _copied(weight, device)
    return copies[device]


def _copied(weight: Weight, device: torch.device) -> Tensor:
    raw, first = tensor_of(weight.raw), weight.raw.ctypes.data % _ALIGNED
    room = torch.empty(raw.numel() + 2 * _ALIGNED, dtype=torch.uint8, device=device)
    first += -room.data_ptr() % _ALIGNED
    return room[first:first + raw.numel()].view(raw.shape).copy_(raw)
