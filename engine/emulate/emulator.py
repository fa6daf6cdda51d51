"""CUDA C++ kernels on the CPU, without a device: the same sources, one thread after another.

`emulated()` puts a host compiler in NVRTC's place and a launcher in the driver's, so that kernels
which call themselves CUDA C++ take tensors of the CPU. It proves what they compute, where they read
and write and that they wait for their copies; a device alone proves the device.
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
from engine.emulate.rewrite import kernels, rewritten
from engine.errors import InputError
from engine.kernels import nvrtc

HEADER = Path(__file__).with_name("simt.h")
OURS = (*sorted(HEADER.parent.glob("*.h")), HEADER.with_name("rewrite.py"))
"""What makes a shared object of a source, beside the compiler."""
CACHE = Path(__file__).parent.parent.parent / ".cache" / "emulated"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-w", "-U_FORTIFY_SOURCE",
         "-Wl,--no-undefined", "-fsanitize=alignment,bounds", "-fsanitize-undefined-trap-on-error")
COMPILING = ("-D__CUDACC__", "-D__CUDACC_RTC__")
INCLUDED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"\n]*[>"])', re.MULTILINE)
ROUNDED, CONTRACTED = ("-ffp-contract=off",), ("-ffp-contract=fast", "-mfma")
LIMIT = 300.0
"""Seconds that the compiler may take for one source; it takes a few."""
MULTIPROCESSORS = 8
"""Of the device that is emulated: few, so that a block has more than one round to do."""


class KernelFault(nvrtc.CudaError):
    """A kernel did what no kernel may; the message says which thread did what.

    What a kernel may do and the emulator cannot is a plain `CudaError`.
    """


def missing() -> str | None:
    """Return why kernels cannot be emulated here, or None when they can."""
    if torch.cuda.is_available():
        return "a device is here, and kernels run on it"
    return None if _compiler() else "there is no C++ compiler on the PATH (g++)"


@contextmanager
def emulated(backwards: bool = False) -> Iterator[None]:
    """Run kernels in CUDA C++ on tensors of the CPU.

    Run `backwards`, blocks and their threads take turns in reverse; no bit may tell. Raises
    `InputError` where no kernel can be emulated.
    """
    reason = missing()
    if reason:
        raise InputError(f"CUDA C++ cannot be emulated: {reason}")
    device = SimpleNamespace(multi_processor_count=MULTIPROCESSORS)
    with patch.object(nvrtc, "compiled", _compiled), \
            patch.object(nvrtc.Kernel, "__init__", _load), \
            patch("torch.cuda.current_stream", lambda *_: SimpleNamespace(cuda_stream=0)), \
            patch("torch.cuda.get_device_properties", lambda *_: device), \
            patch("torch.cuda.synchronize", lambda *_: None), \
            patch.object(emulate, "active", True), patch.object(emulate, "backwards", backwards):
        yield


@cache
def _compiler() -> str | None:
    return shutil.which(os.environ.get("CXX", "g++"))


def _compiled(source: str, options: tuple[str, ...], arch: str) -> tuple[str, bytes]:
    """Return no PTX, and in a cubin's place the path of a shared object, which is kept."""
    defines = [option for option in options if option.startswith("-D")]
    rounding = CONTRACTED if "-fmad=true" in options else ROUNDED
    flags = (*FLAGS, *rounding)
    ours = [path.read_text(encoding="utf-8") for path in OURS]
    what = repr((ours, source, defines, flags, arch, _compiler())).encode()
    made = CACHE / f"{hashlib.sha256(what).hexdigest()[:32]}.so"
    if header := INCLUDED.search(source):
        raise InputError(f"the emulator has no header {header[1]}: a kernel is one text")
    try:
        if not _is_whole(made):
            own = (*COMPILING, f"-D__CUDA_ARCH__={arch.removeprefix('sm_').rstrip('a')}0")
            text = _run_compiler(("-E", "-P", "-x", "c++", *own, *defines, "-"), source)
            _make(made, text, flags)
    except OSError as error:
        raise nvrtc.CudaError(f"{CACHE} cannot keep emulated kernels: {error}") from None
    return "", str(made).encode()


def _is_whole(made: Path) -> bool:
    """Return whether a shared object is as it was made: one cut short would end the process."""
    data = made.read_bytes() if made.is_file() else b""
    return data[-32:] == hashlib.sha256(data[:-32]).digest()


def _make(made: Path, text: str, flags: tuple[str, ...]) -> None:
    """Compile preprocessed text into a shared object, with a digest of it behind its end."""
    names = "".join(f"SIMT_KERNEL({name})\n" for name in kernels(text))
    program = f'#include "{HEADER}"\nnamespace {{\n{rewritten(text)}\n}}\n{names}'
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:  # another process may make it too
        file = Path(folder) / made.name
        _run_compiler((*flags, "-x", "c++", "-", "-o", str(file)), program)
        if not file.is_file():
            raise nvrtc.CudaError(f"the host compiler {_compiler()} made no shared object")
        with file.open("r+b") as whole:
            digest = hashlib.sha256(whole.read()).digest()
            whole.write(digest)
        file.replace(made)


def _run_compiler(options: tuple[str, ...], source: str) -> str:
    """Run the compiler and return what it prints; one that hung is not run again."""
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
            out, err = process.communicate(source, LIMIT)
        except subprocess.TimeoutExpired:
            _hung[argv[0]] = (f"the host compiler {argv[0]} did not end within {LIMIT:g} s and was "
                              f"stopped; it is not run again")
            raise nvrtc.CudaError(_hung[argv[0]]) from None
        finally:  # also what it started, which would hold its output open
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        lines = err.splitlines()
        first = next((line for mark in ("undefined reference", "error") for line in lines
                      if mark in line), lines[0] if lines else "")
        said = re.sub(r"^.*?((?:static assertion|undefined reference))", r"\1", first.strip())
        ended = f"was killed by signal {-process.returncode}" if process.returncode < 0 else \
            f"exited {process.returncode} and said nothing"
        raise nvrtc.CudaError(f"the host compiler refused a kernel: "
                              f"{said or f'{argv[0]} {ended}'}")
    return out


_hung: dict[str, str] = {}
"""Compilers that hung once and would at every kernel, with what is said of them."""


def _load(kernel: Any, cubin: bytes, name: str, early: bool = False) -> None:
    """Take the place of `Kernel.__init__`: the cubin is the path of a shared object."""
    try:
        entry = getattr(ctypes.CDLL(cubin.decode()), f"simt_{name}")
    except AttributeError:
        raise nvrtc.CudaError(f'the source has no extern "C" __global__ void {name}') from None
    except OSError as error:  # a compiler of C alone leaves symbols undefined
        raise nvrtc.CudaError(f"what the host compiler {_compiler()} made of a kernel cannot be "
                              f"loaded: {error}") from None
    entry.restype = ctypes.c_char_p
    kernel.early, kernel._shared, kernel._function = early, 0, entry
    kernel.driver = _Driver(name)


class _Driver:
    """Takes the driver's place under `Kernel.__call__`: a launch has ended when it returns."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cuFuncSetAttribute(self, *_: object) -> int:  # noqa: N802 (the driver's name)
        return 0

    def cuLaunchKernelEx(self, launch: Any, entry: Any, arguments: Any, _: object) -> int:  # noqa: N802
        asked, unable = launch._obj, ctypes.c_bool()
        shape = (ctypes.c_uint * 6)(asked.grid[0], asked.grid[1], asked.block[0], asked.shared,
                                    int(emulate.backwards), len(arguments))
        failure = entry(shape, arguments, ctypes.byref(unable))
        if failure:
            raise (nvrtc.CudaError if unable else KernelFault)(
                f"emulated kernel {self.name}: {failure.decode(errors='replace')}")
        return 0
