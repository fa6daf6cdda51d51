"""Weight bytes as a tensor on the device where a kernel runs; one cached copy per matrix."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.weights import Weight, tensor_of

_COPIES: WeakKeyDictionary[Weight, dict[torch.device, Tensor]] = WeakKeyDictionary()
_ALIGNED = 16
"""Bytes of the widest load that a kernel may select by the base address."""


def device_bytes(weight: Weight, device: torch.device | str) -> Tensor:
    """Return a matrix's bytes u8[N, row bytes] on a device; the copy is cached per device.

    On the CPU writable memory is shared. A copy has the original's address modulo 16, so
    kernels run with the alignment of the file.
    """
    device = torch.device(device)
    copies = _COPIES.setdefault(weight, {})
    if device not in copies:
        shared = device.type == "cpu" and weight.raw.flags.writeable
        copies[device] = torch.from_numpy(weight.raw) if shared else _copied(weight, device)
    return copies[device]


def _copied(weight: Weight, device: torch.device) -> Tensor:
    raw, offset = tensor_of(weight.raw), weight.raw.ctypes.data % _ALIGNED
    padded = torch.empty(raw.numel() + 2 * _ALIGNED, dtype=torch.uint8, device=device)
    offset += -padded.data_ptr() % _ALIGNED
    return padded[offset:offset + raw.numel()].view(raw.shape).copy_(raw)
