"""Runs CUDA C++ kernels on the CPU: the same sources, one thread at a time.

`emulated()` replaces NVRTC by a host compiler and the driver by a launcher, so CUDA kernels take
CPU tensors. It checks results, addresses, and that copies are waited for. It does not replace a
test on a device.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from engine import emulate
from engine.emulate.rewrite import kernel_names, rewrite_source
from engine.errors import InputError
from engine.kernels import nvrtc

HEADER = Path(__file__).with_name("simt.h")
EMULATOR_SOURCES = (*sorted(HEADER.parent.glob("*.h")), HEADER.with_name("rewrite.py"))
"""Files that affect a compiled kernel; part of the cache key."""
CACHE = Path(__file__).parent.parent.parent / ".cache" / "emulated"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-w", "-U_FORTIFY_SOURCE",
         "-Wl,--no-undefined", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error")
NVRTC_MACROS = ("-D__CUDACC__", "-D__CUDACC_RTC__")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"\n]*[>"])', re.MULTILINE)
NO_CONTRACTION, CONTRACTION = ("-ffp-contract=off",), ("-ffp-contract=fast", "-mfma")
COMPILE_TIMEOUT = 300.0
"""Timeout of the host compiler for one source, in seconds."""
MULTIPROCESSORS = 8
"""Multiprocessors of the emulated device; few, so that a block gets several rounds of work."""


class KernelFault(nvrtc.CudaError):
    """The kernel is at fault; the message names the thread and the error.

    An unsupported feature of the emulator raises a plain `CudaError`.
    """


def missing() -> str | None:
    """Return why kernels cannot be emulated here, or None when they can."""
    if torch.cuda.is_available():
        return "a device is here, and kernels run on it"
    return None if _compiler() else "there is no C++ compiler on the PATH (g++)"


@contextmanager
def emulated(backwards: bool = False) -> Iterator[None]:
    """Run CUDA C++ kernels on CPU tensors within the context.

    With `backwards`, blocks and threads run in reverse order; no bit may differ. Raises
    `InputError` if kernels cannot be emulated here.
    """
    reason = missing()
    if reason:
        raise InputError(f"CUDA C++ cannot be emulated: {reason}")
    device = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    with patch.object(nvrtc, "compiled", _compile_emulated), \
            patch.object(nvrtc.Kernel, "__init__", _load_kernel), \
            patch("torch.cuda.current_stream", lambda *_: SimpleNamespace(cuda_stream=0)), \
            patch("torch.cuda.get_device_properties", lambda *_: device), \
            patch("torch.cuda.synchronize", lambda *_: None), \
            patch.object(emulate, "active", True), patch.object(emulate, "backwards", backwards):
        yield


@cache
def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def _compile_emulated(source: str, options: tuple[str, ...], arch: str) -> tuple[str, bytes]:
    """Return no PTX, and in place of the cubin the path of a cached shared object."""
    defines = [option for option in options if option.startswith("-D")]
    rounding = CONTRACTION if "-fmad=true" in options else NO_CONTRACTION
    flags = (*FLAGS, *rounding)
    emulator_sources = [path.read_text(encoding="utf-8") for path in EMULATOR_SOURCES]
    cache_key = repr((emulator_sources, source, defines, flags, arch, _compiler())).encode()
    shared_object = CACHE / f"{hashlib.sha256(cache_key).hexdigest()[:32]}.so"
    if header := INCLUDE.search(source):
        raise InputError(f"the emulator has no header {header[1]}: a kernel is a single source")
    try:
        if not _is_intact(shared_object):
            macros = (*NVRTC_MACROS, f"-D__CUDA_ARCH__={arch.removeprefix('sm_').rstrip('a')}0")
            preprocessed = _run_compiler(("-E", "-P", "-x", "c++", *macros, *defines, "-"), source)
            _build_shared_object(shared_object, preprocessed, flags)
    except OSError as error:
        raise nvrtc.CudaError(f"{CACHE} cannot keep emulated kernels: {error}") from None
    return "", str(shared_object).encode()


def _is_intact(shared_object: Path) -> bool:
    """Return whether a cached object matches its digest: loading a truncated one crashes."""
    data = shared_object.read_bytes() if shared_object.is_file() else b""
    return data[-32:] == hashlib.sha256(data[:-32]).digest()


def _build_shared_object(shared_object: Path, preprocessed: str, flags: tuple[str, ...]) -> None:
    """Compile preprocessed source into a shared object, with its digest appended."""
    names = "".join(f"SIMT_KERNEL({name})\n" for name in kernel_names(preprocessed))
    program = f'#include "{HEADER}"\nnamespace {{\n{rewrite_source(preprocessed)}\n}}\n{names}'
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # other processes may build it too
        file = Path(folder) / shared_object.name
        _run_compiler((*flags, "-x", "c++", "-", "-o", str(file)), program)
        if not file.is_file():
            raise nvrtc.CudaError(f"the host compiler {_compiler()} made no shared object")
        with file.open("r+b") as stream:
            digest = hashlib.sha256(stream.read()).digest()
            stream.write(digest)
        file.replace(shared_object)


def _run_compiler(options: tuple[str, ...], source: str) -> str:
    """Run the compiler and return its output; do not rerun a compiler that timed out."""
    argv = [str(_compiler()), *options]
    if argv[0] in _hung:
        raise nvrtc.CudaError(_hung[argv[0]])
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace", start_new_session=True)
    except OSError as error:
        raise nvrtc.CudaError(f"the host compiler {argv[0]} cannot be run: "
                              f"{error.strerror}") from None
    with process:
        try:
            out, err = process.communicate(source, COMPILE_TIMEOUT)
        except subprocess.TimeoutExpired:
            _hung[argv[0]] = (f"the host compiler {argv[0]} did not end within "
                              f"{COMPILE_TIMEOUT:g} s and was stopped; it is not run again")
            raise nvrtc.CudaError(_hung[argv[0]]) from None
        finally:  # also its children, which would keep the pipe open
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = err.splitlines()
        first = next((line for mark in ("undefined reference", "error") for line in lines
                      if mark in line), lines[0] if lines else "")
        message = re.sub(r"^.*?((?:static assertion|undefined reference))", r"\1", first.strip())
        exit_status = f"was killed by signal {-process.returncode}" if process.returncode < 0 else \
            f"exited {process.returncode} and said nothing"
        raise nvrtc.CudaError(f"the host compiler refused a kernel: "
                              f"{message or f'{argv[0]} {exit_status}'}")
    return out


_hung: dict[str, str] = {}
"""Compilers that timed out, with the error message; they are not run again."""


def _load_kernel(kernel: Any, cubin: bytes, name: str, pdl: bool = False) -> None:
    """Replace `Kernel.__init__`: the cubin is the path of a shared object."""
    try:
        entry = getattr(ctypes.CDLL(cubin.decode()), f"simt_{name}")
    except AttributeError:
        raise nvrtc.CudaError(f'the source has no extern "C" __global__ void {name}') from None
    except OSError as error:  # a C compiler leaves C++ symbols undefined
        raise nvrtc.CudaError(f"what the host compiler {_compiler()} made of a kernel cannot be "
                              f"loaded: {error}") from None
    entry.restype = ctypes.c_char_p
    kernel.pdl, kernel._shared, kernel._function = pdl, 0, entry
    kernel.driver = _Driver(name)


class _Driver:
    """Replaces the CUDA driver in `Kernel.__call__`; a launch is synchronous."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cuFuncSetAttribute(self, *_: object) -> int:  # noqa: N802 (the driver's name)
        return 0

    def cuLaunchKernelEx(self, launch: Any, entry: Any, arguments: Any, _: object) -> int:  # noqa: N802
        config, is_unsupported = launch._obj, ctypes.c_bool()
        shape = (ctypes.c_uint * 6)(config.grid[0], config.grid[1], config.block[0], config.shared,
                                    int(emulate.backwards), len(arguments))
        failure = entry(shape, arguments, ctypes.byref(is_unsupported))
        if failure:
            raise (nvrtc.CudaError if is_unsupported else KernelFault)(
                f"emulated kernel {self.name}: {failure.decode(errors='replace')}")
        return 0
