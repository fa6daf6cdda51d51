"""CUDA C++ sources in the emulator: rewritten, refused with one sentence, compiled once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from engine.emulate import emulator
from engine.emulate.fixtures import HEAD, launch
from engine.emulate.rewrite import kernel_names, rewrite_source
from engine.errors import InputError
from engine.kernels.nvrtc import CudaError, compile_source

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated")]


def test_kernels_are_found_by_their_declarations() -> None:
    source = f'{HEAD}int x) {{}}\nextern "C" __global__ void two(int y) {{}}'
    assert kernel_names(source) == ["k", "two"]


@pytest.mark.parametrize(("asm", "call"), [
    ('asm volatile("griddepcontrol.wait;" ::: "memory");', "(void)0;"),
    ('asm volatile("" : "+r"(x[0].y), "+r"(x[1].z));', "(void)0;"),
    ('asm volatile("bar.sync %0, %1;" :: "r"(team + 1), "n"(4 * 32) : "memory");',
     "simt::bar_sync(team + 1, 4 * 32);"),
    ('asm("cvt.rn." "bf16" ".f32 %0, %1;" : "=h"(y) : "f"(x));', "simt::cvt_rn_bf16_f32(y, x);"),
    ('asm("{.reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(f(a, b)));',
     "simt::cvt_f32_f16(f, f(a, b));"),
    ('asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(a), "l"(b));',
     "simt::cp_async(a, b, 16, 16);"),
    ('asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(a), "l"(b), "r"(n));',
     "simt::cp_async(a, b, 8, n);"),
    ('asm volatile("cp.async.wait_group 1;" ::: "memory");', "simt::cp_async_wait_group(1);")])
def test_instructions_become_calls(asm: str, call: str) -> None:
    assert rewrite_source(asm) == call


@pytest.mark.parametrize(("source", "sentence"), [
    ('asm("vote.sync.any.pred %0, %1, %2;" : "=r"(a) : "r"(b), "r"(c));',
     "does not know the instruction vote.sync.any.pred"),
    ('asm("bar.sync 0;', "unclosed bracket before")])
def test_unknown_instructions_are_named(source: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        rewrite_source(source)


@pytest.mark.parametrize("declared", [
    '__global__ void __launch_bounds__(128) {}',
    '__global__ __launch_bounds__(32 * (2), 1) void {}',
    '__launch_bounds__(128) __global__ void {}', 'void __global__ {}'])
def test_kernels_are_found_however_they_are_declared(declared: str) -> None:
    one, two = (f"{declared.format(name)}(int x) {{}}" for name in ("one", "two"))
    assert kernel_names(f'extern "C" {one}') == ["one"]
    source = f'extern "C" {{ {one} {two} }} __global__ void three() {{}}'
    assert kernel_names(source) == ["one", "two"]


@pytest.mark.parametrize(("body", "sentence"), [
    ("x[0] = __expf(x[0]);", "refuses __expf: its bits on a device differ from a host's"),
    ("x[0] = tanhf (x[0]);", "refuses tanhf: its bits on a device differ from a host's"),
    ("x[0] = rsqrtf(x[0]);", "refuses rsqrtf: its bits on a device differ from a host's"),
    ("x[0] = clock64();", "refuses clock64: only a device can answer it"),
    ("x[0] = __activemask();", "refuses __activemask: only a device can answer it")])
def test_function_of_other_bits_on_a_device_is_refused(body: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        launch(f"{HEAD}float* x) {{ {body} }}", torch.zeros(1))


@pytest.mark.parametrize(("source", "sentence"), [
    ("#include <cuda_fp16.h>\n", "has no header <cuda_fp16.h>"),
    (' #  include "mine.h"\n', 'has no header "mine.h"')])
def test_header_is_refused_by_name(source: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        launch(f"{source}{HEAD}float* x) {{}}", torch.zeros(1))


@pytest.mark.parametrize(("source", "sentence"), [
    ("__global__ void k(float* x) {}", 'has no extern "C" __global__ void k'),
    (f"__device__ float of(float);\n{HEAD}float* x) {{ x[0] = of(x[0]); }}",
     "^the host compiler refused a kernel: undefined reference to .*of"),
    (f"{HEAD}float* x) {{ atomicAdd(x, 1.0f); }}",
     "^the host compiler refused a kernel: .*atomicAdd of floats adds in no defined order"),
    (f"{HEAD}float* x) {{ float4 y; __shfl_sync(~0u, y, 0); }}", "a shuffle takes a number")])
def test_meaningless_source_is_refused_in_one_sentence(source: str, sentence: str) -> None:
    with pytest.raises(CudaError, match=sentence) as caught:
        launch(source, torch.zeros(1))
    assert len(str(caught.value).splitlines()) == 1


def test_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(CudaError, match=r"refused a kernel: .*nothing"):
        launch(f"{HEAD}float* x) {{ x[0] = nothing; }}", torch.zeros(1))


def test_every_array_declared_in_a_template_is_poisoned() -> None:
    source = "template <int N> void f() { __shared__ __align__(16) P<int, 3> a[N][2], b; }"
    assert rewrite_source(source).endswith(
        "b; simt::poison_static(&a, sizeof a); simt::poison_static(&b, sizeof b); }")


def fake_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Replace the host compiler by a script, and the cache of its output by a folder."""
    program = folder / "cxx"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(emulator, "_compiler", lambda: str(program))
    monkeypatch.setattr(emulator, "CACHE", folder / "cache")


@pytest.mark.parametrize(("script", "sentence"), [
    ("#!/bin/sh\nexit 3\n", r"refused a kernel: .*/cxx exited 3 and said nothing"),
    ("#!/bin/sh\nkill -9 $$\n", r"refused a kernel: .*/cxx was killed by signal 9"),
    ("#!/bin/sh\nprintf '\\377 error' >&2\nexit 1\n", "refused a kernel: .* error"),
    ("#!/bin/sh\n", r"/cxx made no shared object"),
    ("no program", r"/cxx cannot be run: Exec format error"),
    ("#!/bin/sh\ncase $1 in -E) ;; *) for to; do :; done; echo > $to;; esac\n",
     "made of a kernel cannot be loaded")])
def test_broken_compiler_is_reported_in_one_sentence(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, sentence: str) -> None:
    fake_compiler(monkeypatch, tmp_path, script)
    with pytest.raises(CudaError, match=sentence) as refused:
        launch(f"{HEAD}float* x) {{}}", torch.zeros(1))
    assert "\n" not in str(refused.value)


def test_compiler_that_hangs_is_stopped_with_what_it_started(monkeypatch: pytest.MonkeyPatch,
                                                             tmp_path: Path) -> None:
    monkeypatch.setattr(emulator, "COMPILE_TIMEOUT", 0.5)
    monkeypatch.setattr(emulator, "_hung", {})
    fake_compiler(monkeypatch, tmp_path, f"#!/bin/sh\necho >> {tmp_path}/runs\nsleep 60\n")
    for _ in range(2):
        with pytest.raises(CudaError, match=r"did not end within 0.5 s .*; it is not run again"):
            launch(f"{HEAD}float* x) {{}}", torch.zeros(1))
    assert (tmp_path / "runs").read_text() == "\n"


def test_damaged_shared_object_is_compiled_again(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(emulator, "CACHE", tmp_path)
    source = f"{HEAD}float* x) {{ x[0] = 7; }}"
    library = Path(compile_source(source, ()).decode())
    original = library.read_bytes()
    for damage in (lambda: library.write_bytes(original[:5000]), lambda: library.write_bytes(b""),
                 lambda: library.symlink_to("/nowhere")):
        library.unlink()  # a loaded file must not change
        damage()
        x = torch.zeros(1)
        launch(source, x)
        assert x.item() == 7
    library.unlink()
    library.mkdir()
    with pytest.raises(CudaError, match="cannot keep emulated kernels"):
        launch(source, torch.zeros(1))
    monkeypatch.setattr(emulator, "_compiler", lambda: f"{shutil.which('env')}")
    with pytest.raises(CudaError, match="refused a kernel"):
        launch(source, torch.zeros(1))
