"""Memory that ends where a tensor does: what reads or writes a byte further is stopped there.

A device's own tools see such an access where no other allocation lies behind; a kernel that is
emulated takes addresses of the CPU, whose pages tell.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor


def copy_before_guard_page(x: Tensor) -> Tensor:
    """Return a copy of a tensor, dense, with memory behind its last byte that nobody may touch."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    room = mmap.mmap(-1, size + page)
    behind = ctypes.addressof(ctypes.c_char.from_buffer(room)) + size
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(behind), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "a page of memory cannot be protected")
    held = torch.frombuffer(room, dtype=x.dtype, count=x.numel(), offset=size - x.nbytes)
    return held.view(x.shape).copy_(x)
