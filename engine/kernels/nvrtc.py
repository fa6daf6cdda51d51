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
from pathlib import Path

import torch

OPTIONS = ("--std=c++17", "-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true",
           "-default-device")


DEVICE = Path(__file__).with_name("device.cuh")


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


def source_of(*paths: Path) -> str:
    """Return the text of sources, one behind the other, with what every one begins with."""
    return "".join(path.read_text(encoding="utf-8") for path in (DEVICE, *paths))


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


class _Attribute(ctypes.Structure):
    """A launch attribute of the driver: its number, and a value of 64 bytes."""

    _fields_ = (("number", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Launch(ctypes.Structure):
    """The driver's description of a launch."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_Attribute)), ("count", ctypes.c_uint))


_EARLY = _Attribute(6, 0, (ctypes.c_int * 16)(1))  # programmatic stream serialization is allowed


class Kernel:
    """One function of a loaded cubin.

    An `early` one may start before the kernel launched before it has ended: it must execute
    `griddepcontrol.wait` before it reads or writes what another kernel writes or reads.
    """

    def __init__(self, cubin: bytes, name: str, early: bool = False) -> None:
        self.early = early
        torch.cuda.current_stream()  # makes sure that the primary context is current
        self.driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.driver.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        _check(self.driver.cuModuleGetFunction(ctypes.byref(self._function), self._module,
                                               name.encode()), f"finding {name}")
        self._shared = 0

    def __call__(self, grid: tuple[int, int], block: int, shared: int, *args: object) -> None:
        """Launch on torch's current stream; tensors by address, ints as i32, c_* as they are."""
        if shared > max(40960, self._shared):  # a kernel has some of the first 48 KiB itself
            _check(self.driver.cuFuncSetAttribute(self._function, 8, shared), "shared memory")
            self._shared = shared
        values = [_value(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        launch = _Launch((grid[0], grid[1], 1), (block, 1, 1), shared,
                         torch.cuda.current_stream().cuda_stream, ctypes.pointer(_EARLY),
                         int(self.early))
        _check(self.driver.cuLaunchKernelEx(ctypes.byref(launch), self._function, pointers, None),
               "cuLaunchKernelEx")


def _value(arg: object) -> ctypes._SimpleCData:
    if isinstance(arg, torch.Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int(arg) if isinstance(arg, int) else arg
