"""CUDA C++ compiled at run time by NVRTC and launched through the driver, without a host compiler.

Contraction is off (`-fmad=false`), denormals are preserved, division and square roots are correctly
rounded.
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


DEVICE_HEADER = Path(__file__).with_name("device.cuh")


class CudaError(RuntimeError):
    """NVRTC or the CUDA driver returned an error."""


def _library_folders() -> list[str]:
    torch_folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    roots = [*site.getsitepackages(), *sys.path]
    return [torch_folder, *(d for p in roots for d in sorted(glob.glob(f"{p}/nvidia/*/lib")))]


@cache
def load_nvrtc() -> ctypes.CDLL:
    """Load NVRTC from torch's lib folder or the nvidia-* packages."""
    for folder in _library_folders():
        for path in sorted(glob.glob(f"{folder}/libnvrtc.so.*")):
            return ctypes.CDLL(path)
    try:
        return ctypes.CDLL("libnvrtc.so")
    except OSError:
        raise CudaError("NVRTC was not found: install a CUDA build of torch or the package "
                        "nvidia-cuda-nvrtc") from None


def _check(code: int, what: str) -> None:
    if code:
        raise CudaError(f"{what} failed with code {code}")


def source_of(*paths: Path) -> str:
    """Return the concatenated sources, after the common header device.cuh."""
    return "".join(path.read_text(encoding="utf-8") for path in (DEVICE_HEADER, *paths))


def compile_source(source: str, options: tuple[str, ...], arch: str = "sm_90") -> bytes:
    """Return a cubin of CUDA C++ source for an architecture; needs no GPU."""
    return compiled(source, options, arch)[1]


def compiled(source: str, options: tuple[str, ...], arch: str = "sm_90") -> tuple[str, bytes]:
    """Return the PTX and the cubin of a source; needs no GPU."""
    lib, program = load_nvrtc(), ctypes.c_void_p()
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
    outputs = [_program_output(program, what) for what in ("PTX", "CUBIN")]
    lib.nvrtcDestroyProgram(ctypes.byref(program))
    return outputs[0].decode(), outputs[1]


def _program_output(program: ctypes.c_void_p, what: str) -> bytes:
    lib, size = load_nvrtc(), ctypes.c_size_t()
    _check(lib[f"nvrtcGet{what}Size"](program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    buffer = ctypes.create_string_buffer(size.value)
    _check(lib[f"nvrtcGet{what}"](program, buffer), f"nvrtcGet{what}")
    return buffer.raw


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: its id, and a value of 64 bytes."""

    _fields_ = (("number", ctypes.c_int), ("_pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
                ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.POINTER(_LaunchAttribute)), ("count", ctypes.c_uint))


_PDL = _LaunchAttribute(6, 0, (ctypes.c_int * 16)(1))  # PROGRAMMATIC_STREAM_SERIALIZATION: 1


class Kernel:
    """One function of a loaded cubin.

    With `pdl` (programmatic dependent launch) it may start before the previous kernel ends. It must
    then execute `griddepcontrol.wait` before it touches memory that another kernel writes or reads.
    """

    def __init__(self, cubin: bytes, name: str, pdl: bool = False) -> None:
        self.pdl = pdl
        torch.cuda.current_stream()  # makes the primary context current
        self.driver = ctypes.CDLL("libcuda.so.1")
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        _check(self.driver.cuModuleLoadData(ctypes.byref(self._module), cubin), "cuModuleLoadData")
        _check(self.driver.cuModuleGetFunction(ctypes.byref(self._function), self._module,
                                               name.encode()), f"finding {name}")
        self._shared = 0

    def __call__(self, grid: tuple[int, int], block: int, shared: int, *args: object) -> None:
        """Launch on torch's current stream. Tensors pass their address, ints i32, ctypes as is."""
        if shared > max(40960, self._shared):  # static shared memory counts towards 48 KiB too
            _check(self.driver.cuFuncSetAttribute(self._function, 8, shared), "shared memory")
            self._shared = shared
        values = [_value(arg) for arg in args]
        pointers = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        config = _LaunchConfig((grid[0], grid[1], 1), (block, 1, 1), shared,
                               torch.cuda.current_stream().cuda_stream, ctypes.pointer(_PDL),
                               int(self.pdl))
        _check(self.driver.cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None),
               "cuLaunchKernelEx")


def _value(arg: object) -> ctypes._SimpleCData:
    if isinstance(arg, torch.Tensor):
        return ctypes.c_void_p(arg.data_ptr())
    return ctypes.c_int(arg) if isinstance(arg, int) else arg
