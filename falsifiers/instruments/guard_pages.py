"""Places a tensor at the end of its memory, so that an access past its end raises SIGSEGV.

compute-sanitizer misses such an access if another allocation follows the tensor. An emulated
kernel uses addresses of the CPU, where a protected page catches it.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor


def copy_before_guard_page(x: Tensor) -> Tensor:
    """Return a dense copy of a tensor that is followed by a protected page."""
    page = mmap.PAGESIZE
    size = -(-x.nbytes // page) * page
    room = mmap.mmap(-1, size + page)
    guard = ctypes.addressof(ctypes.c_char.from_buffer(room)) + size
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0):
        raise OSError(ctypes.get_errno(), "a page of memory cannot be protected")
    copy = torch.frombuffer(room, dtype=x.dtype, count=x.numel(), offset=size - x.nbytes)
    return copy.view(x.shape).copy_(x)
