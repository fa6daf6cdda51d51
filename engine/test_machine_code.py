"""Machine code is searched for contraction, approximation, flushing and spills."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

from engine.kernels import machine_code, nvrtc

KERNEL_TEMPLATE = 'extern "C" __global__ void f(float* a, int i) {{ {} }}'
CLEAN_KERNEL = KERNEL_TEMPLATE.format("a[0] = a[1] * a[2] + a[3] / a[4] + sqrtf(a[5]);")


def test_separate_roundings_are_clean() -> None:
    assert machine_code.faults_of(CLEAN_KERNEL) == []


@pytest.mark.parametrize(("body", "options", "fault"), [
    ("a[0] = a[1] * a[2] + a[3];", ("-fmad=true",), "fused multiply-add"),
    ("a[0] = __fmaf_rn(a[1], a[2], a[3]);", (), "fused multiply-add"),
    ("a[0] = __fdividef(a[1], a[2]);", (), "approximate division"),
    ("a[0] = __expf(a[1]);", (), "approximation"),
    ("a[0] = a[1] + a[2];", ("-ftz=true",), "flush to zero"),
    ("float v[64]; for (int j = 0; j < i; j++) v[j * i % 64] = a[j]; a[0] = v[i];", (),
     "bytes of stack")])
def test_forbidden_instructions_are_named(body: str, options: tuple[str, ...], fault: str) -> None:
    assert any(
        fault in found for found in machine_code.faults_of(KERNEL_TEMPLATE.format(body), options)
    )


def test_source_without_a_kernel_is_not_clean() -> None:
    assert machine_code.faults_of("__device__ int f(int a) { return a; }") == ["no kernel"]


def test_source_that_cannot_be_compiled_is_an_error_with_the_compiler_s_words() -> None:
    with pytest.raises(nvrtc.CudaError, match="expected a"):
        machine_code.faults_of(KERNEL_TEMPLATE.format("a[0] = ;"))


def test_absent_compiler_is_an_error_that_says_how_to_get_one(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> ctypes.CDLL:
        raise OSError(name)

    monkeypatch.setattr(nvrtc, "_library_folders", list)
    monkeypatch.setattr(ctypes, "CDLL", absent)
    with pytest.raises(nvrtc.CudaError, match="nvidia-cuda-nvrtc"):
        nvrtc.load_nvrtc.__wrapped__()


def test_spills_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for usage, found in ((" REG:64 STACK:0 SHARED:1024 LOCAL:0", []),
                         (" REG:255 STACK:88 SHARED:0 LOCAL:16",
                          ["88 bytes of stack", "16 bytes of local"]),
                         ("", ["no resource usage found"])):
        result = subprocess.CompletedProcess([], 0, stdout=usage)
        monkeypatch.setattr(subprocess, "run", lambda *args, result=result, **options: result)
        assert machine_code.spilled(b"") == found
