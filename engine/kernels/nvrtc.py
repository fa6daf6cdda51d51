"""CUDA C++ compiled at run time by NVRTC and launched through the driver, without a host compiler.

Contraction is off (`-fmad=false`), denormals are kept, division and roots are correctly rounded.
"""

from __future__ import annotations

import ctypes
import glob
import os
import site
import sys
from functools import cache

import torch

OPTIONS = ("--std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true",
           "-default-device")


class CudaError(RuntimeError):
    """NVRTC or the driver refused; the message is theirs."""


def _folders() -> list[str]:
    beside = os.path.join(os.path.dirname(torch.__file__), "lib")
    places = [*site.getsitepackages(), *sys.path]
    return [beside, *(d for p in places for d in sorted(glob.glob(f"{p}/nvidia/*/lib")))]


@cache
def library() -> ctypes.CDLL:
    """Return NVRTC, from torch's own folder or the packages beside it."""
    for folder in _folders():
        for path in sorted(glob.glob(f"{folder}/libnvrtc.so.*")):
            return ctypes.CDLL(path)
    try:
        return ctypes.CDLL("libnvrtc.so")
    except OSError:
        raise CudaError("NVRTC was not found: a CUDA build of torch brings it, or the package "
                        "nvidia-cuda-nvrtc") from None


def _check(code: int, what: str) -> None:
    if code:
        raise CudaError(f"{what} failed with code {code}")


def compile_source(source: str, options: tuple[str, ...], arch: str = "sm_90") -> bytes:
    """Return a cubin of CUDA C++ source for an architecture; needs no GPU."""
    return compiled(source, options, arch)[1]


def compiled(source: str, options: tuple[str, ...], arch: str = "sm_90") -> tuple[str, bytes]:
    """Return PTX and the cubin made of it; needs no GPU."""
    lib, program = library(), ctypes.c_void_p()
    _check(lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"rowtwin.cu", 0, None,
                                  None), "nvrtcCreateProgram")
    texts = [text.encode() for text in (*OPTIONS, f"--gpu-architecture={arch}", *options)]
    code = lib.nvrtcCompileProgram(program, len(texts), (ctypes.c_char_p * len(texts))(*texts))
    if code:
        size = ctypes.c_size_t()
        lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        lib.nvrtcGetProgramLog(program, log)
        raise CudaError(f"NVRTC: {log.value.decode(errors='replace')}")
    made = [_taken(program, what) for what in ("PTX", "CUBIN")]
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return made[0].decode(), made[1]


def _taken(program: ctypes.c_void_p, what: str) -> bytes:
    lib, size = library(), ctypes.c_size_t()
    _check(lib[f"nvrtcGet{what}Size"](program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    made = ctypes.create_string_buffer(size.value)
    _check(lib[f"nvrtcGet{what}"](program, made), f"nvrtcGet{what}")
    return made.raw


class Kernel:
    """One function of a loaded cubin."""

    def __init__(self, cubin: bytes, name: str) -> None:
        torch.cuda.current_stream()  # makes sure that the primary context is current
        self.driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.driver.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        _check(self.driver.cuModuleGetFunction(ctypes.byref(self._function), self._module,
                                               name.encode()), f"finding {name}")
        self._shared = 0

    def __call__(self, grid: tuple[int, int], block: int, shared: int, *args: object) -> None:
        """Launch on torch's current stream; tensors by address, ints as i32, c_* as they are."""
        if shared > max(49152, self._shared):
            _check(self.driver.cuFuncSetAttribute(self._function, 8, shared), "shared memory")
            self._shared = shared
        values = [_value(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(self.driver.cuLaunchKernel(self._function, grid[0], grid[1], 1, block, 1, 1, shared,
                                          stream, pointers, None), "cuLaunchKernel")


def _value(arg: object) -> ctypes._SimpleCData:
    if isinstance(arg, torch.Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int(arg) if isinstance(arg, int) else arg
