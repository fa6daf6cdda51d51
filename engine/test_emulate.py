"""CUDA C++ on the CPU: rounds as a device does, and tells what a device would let pass."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import emulate
from engine.emulate import run
from engine.emulate.rewrite import kernels, rewritten
from engine.errors import InputError
from engine.kernels.nvrtc import CudaError, Kernel, compile_source

pytestmark = pytest.mark.emulated
HEAD = 'extern "C" __global__ void __launch_bounds__(32 * (2), 1) k('


@pytest.fixture(autouse=True)
def emulated() -> Iterator[None]:
    """Run every test of this file where kernels are emulated."""
    with run.emulated():
        yield


def launch(source: str, *args: Any, grid: tuple[int, int] = (1, 1), block: int = 32,
           shared: int = 0, options: tuple[str, ...] = ()) -> None:
    Kernel(compile_source(source, options), "k")(grid, block, shared, *args)


def test_kernels_are_found_by_their_declarations() -> None:
    source = f'{HEAD}int x) {{}}\nextern "C" __global__ void two(int y) {{}}'
    assert kernels(source) == ["k", "two"]


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
    assert rewritten(asm) == call


@pytest.mark.parametrize(("source", "sentence"), [
    ('asm("vote.sync.any.pred %0, %1, %2;" : "=r"(a) : "r"(b), "r"(c));',
     "does not know the instruction vote.sync.any.pred"),
    ('asm("bar.sync 0;', "an asm statement does not end")])
def test_what_is_not_known_is_named(source: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        rewritten(source)


def test_source_that_does_not_compile_says_where() -> None:
    with pytest.raises(CudaError, match=r"refused a kernel: .*nothing"):
        launch(f"{HEAD}float* x) {{ x[0] = nothing; }}", torch.zeros(1))


def compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a program in the host compiler's place, and a folder in that of what it made."""
    program = folder / "cxx"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setattr(run, "_compiler", lambda: str(program))
    monkeypatch.setattr(run, "CACHE", folder / "made")


@pytest.mark.parametrize(("script", "sentence"), [
    ("#!/bin/sh\nexit 3\n", r"refused a kernel: .*/cxx exited 3 and said nothing"),
    ("#!/bin/sh\nkill -9 $$\n", r"refused a kernel: .*/cxx was killed by signal 9"),
    ("#!/bin/sh\nprintf '\\377 error' >&2\nexit 1\n", "refused a kernel: .* error"),
    ("#!/bin/sh\n", r"/cxx made no shared object"),
    ("no program", r"/cxx cannot be run: Exec format error"),
    ("#!/bin/sh\ncase $1 in -E) ;; *) for to; do :; done; echo > $to;; esac\n",
     "made of a kernel cannot be loaded")])
def test_compiler_that_is_none_is_told_in_a_sentence(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, sentence: str) -> None:
    compiler(monkeypatch, tmp_path, script)
    with pytest.raises(CudaError, match=sentence) as refused:
        launch(f"{HEAD}float* x) {{}}", torch.zeros(1))
    assert "\n" not in str(refused.value)


def test_compiler_that_hangs_is_stopped_with_what_it_started(monkeypatch: pytest.MonkeyPatch,
                                                             tmp_path: Path) -> None:
    monkeypatch.setattr(run, "LIMIT", 0.5)
    monkeypatch.setattr(run, "_hung", {})
    compiler(monkeypatch, tmp_path, f"#!/bin/sh\necho >> {tmp_path}/runs\nsleep 60\n")
    for _ in range(2):
        with pytest.raises(CudaError, match=r"did not end within 0.5 s .*; it is not run again"):
            launch(f"{HEAD}float* x) {{}}", torch.zeros(1))
    assert (tmp_path / "runs").read_text() == "\n"


def test_shared_object_that_is_not_whole_or_another_compiler_s_is_made_anew(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "CACHE", tmp_path)
    source = f"{HEAD}float* x) {{ x[0] = 7; }}"
    kept = Path(compile_source(source, ()).decode())
    whole = kept.read_bytes()
    for harm in (lambda: kept.write_bytes(whole[:5000]), lambda: kept.write_bytes(b""),
                 lambda: kept.symlink_to("/nowhere")):
        kept.unlink()  # one that is loaded may not change
        harm()
        x = torch.zeros(1)
        launch(source, x)
        assert x.item() == 7
    kept.unlink()
    kept.mkdir()
    with pytest.raises(CudaError, match="cannot keep emulated kernels"):
        launch(source, torch.zeros(1))
    monkeypatch.setattr(run, "_compiler", lambda: f"{shutil.which('env')}")
    with pytest.raises(CudaError, match="refused a kernel"):
        launch(source, torch.zeros(1))


@pytest.mark.parametrize("flag", ["", "-DSIMT_PORTABLE"])
@pytest.mark.parametrize("backwards", [False, True])
def test_threads_of_a_block_meet(monkeypatch: pytest.MonkeyPatch, flag: str,
                                 backwards: bool) -> None:
    monkeypatch.setattr(run, "FLAGS", (*run.FLAGS, *([flag] if flag else ())))
    monkeypatch.setattr(emulate, "backwards", backwards)
    out = torch.empty(3, 2, 64)
    launch(f"""{HEAD}float* out) {{
        __shared__ float held[64];
        extern __shared__ float more[];
        const int t = threadIdx.x, other = 63 - t;
        held[t] = t * 2;
        more[t] = __shfl_xor_sync(~0u, (float)t, 1);
        __syncthreads();
        const int odd = __syncthreads_count(t % 2);
        out[(blockIdx.x * gridDim.y + blockIdx.y) * 64 + t] =
            held[other] + 1000 * more[other] + 100000 * odd + blockIdx.x * 0.25f;
    }}""", out, grid=(3, 2), block=64, shared=256)
    t = torch.arange(64)
    other = 63 - t
    want = (2 * other + 1000 * (other ^ 1) + 3200000).float()
    assert torch.equal(out, want + torch.arange(3).mul(0.25)[:, None, None].expand(3, 2, 1))


@pytest.mark.parametrize(("body", "sentence"), [
    ("if (threadIdx.x < 16) __syncwarp(); else x[0] = __shfl_xor_sync(~0u, x[0], 1);",
     "some threads wait at __syncwarp and others at __shfl_xor_sync"),
    ('asm volatile("bar.sync %0, %1;" :: "r"(1), "r"(64));',
     "32 threads wait for what never comes")])
def test_threads_that_never_meet_are_told(body: str, sentence: str) -> None:
    x = torch.zeros(1)
    with pytest.raises(CudaError, match=sentence):
        launch(f"{HEAD}float* x) {{ {body} }}", x)
    launch(f"{HEAD}float* x) {{ if (threadIdx.x == 31) x[0] = 5; }}", x)
    assert x.item() == 5  # what comes after a failure is whole again


WAIT = 'asm volatile("cp.async.wait_all;" ::: "memory");'


@pytest.mark.parametrize("waits", [True, False])
def test_copy_arrives_when_it_is_awaited(waits: bool) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(f"""{HEAD}const float* x, float* out) {{
        extern __shared__ float held[];
        if (threadIdx.x) return;
        const unsigned at = (unsigned)__cvta_generic_to_shared(held);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x) : "memory");
        {WAIT if waits else ""}
        for (int i = 0; i < 4; i++) out[i] = held[i];
    }}""", x, out, shared=16)
    assert torch.equal(out, x) if waits else bool(out.isnan().all())


def test_groups_of_copies_arrive_in_their_order() -> None:
    x, out = torch.arange(8.0), torch.zeros(8)
    copy = ('asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at + 16 * {0}), '
            '"l"(x + 4 * {0}), "r"({1}) : "memory");'
            'asm volatile("cp.async.commit_group;" ::: "memory");')
    launch(f"""{HEAD}const float* x, float* out) {{
        extern __shared__ float held[];
        if (threadIdx.x) return;
        const unsigned at = (unsigned)__cvta_generic_to_shared(held);
        {copy.format(0, 8)} {copy.format(1, 16)}
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        for (int i = 0; i < 8; i++) out[i] = held[i];
    }}""", x, out, shared=32)
    assert out[:4].tolist() == [0, 1, 0, 0]  # eight bytes were there, the rest is 0
    assert out[4:].isnan().all()


def test_shared_memory_is_new_for_each_block() -> None:
    out = torch.zeros(2, 2)
    launch(f"""{HEAD}float* out) {{
        __shared__ float fixed[1];
        extern __shared__ float asked[];
        if (threadIdx.x) return;
        out[2 * blockIdx.x] = fixed[0], out[2 * blockIdx.x + 1] = asked[0];
        fixed[0] = asked[0] = 1;
    }}""", out, grid=(2, 1), shared=4)
    assert out.isnan().all()


def converted(instruction: str, kinds: tuple[str, str], x: Tensor, out: Tensor) -> Tensor:
    """Return what an instruction makes of every value, a thread each."""
    given, made = ({"h": "unsigned short", "f": "float"}[kind] for kind in kinds)
    launch(f"""{HEAD}const {given}* x, {made}* out, int n) {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {made} y;
        asm("{instruction} %0, %1;" : "={kinds[1]}"(y) : "{kinds[0]}"(x[i]));
        out[i] = y;
    }}""", x, out, x.numel(), grid=((x.numel() + 1023) // 1024, 1), block=1024)
    return out


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_narrow_types_are_read_and_rounded_as_torch_does(name: str, dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    wide = converted(f"cvt.f32.{name}", ("h", "f"), every, torch.empty(1 << 16))
    assert torch.equal(wide.nan_to_num(7), every.view(dtype).float().nan_to_num(7))
    values = wide[~wide.isnan()]
    between = torch.cat([values, values * 1.001, values * 0.9995,
                         values.view(torch.int32).add(1 << 12).view(torch.float32)])
    between = between[~between.isnan()]
    near = converted(f"cvt.rn.{name}.f32", ("f", "h"), between, torch.empty_like(
        between, dtype=torch.int16))
    assert torch.equal(near.view(dtype), between.to(dtype))
    zero = converted(f"cvt.rz.{name}.f32", ("f", "h"), between, torch.empty_like(
        between, dtype=torch.int16)).view(dtype).float()
    finite = between.isfinite()
    assert (zero.abs() <= between.abs()).all()
    assert zero[finite].isfinite().all()
    assert ((zero == between) | (zero.to(dtype) != near.view(dtype)) |
            (near.view(dtype).float().abs() <= between.abs())).all()


def test_contraction_is_off_unless_it_is_asked_for() -> None:
    x = torch.tensor([1 + 2.0**-12])
    source = f"{HEAD}const float* x, float* out) {{ out[0] = x[0] * x[0] - 1.0f; }}"
    apart, together = torch.zeros(1), torch.zeros(1)
    launch(source, x, apart)
    launch(source, x, together, options=("-fmad=true",))
    assert apart.item() == 2.0**-11
    assert together.item() == 2.0**-11 + 2.0**-24


def test_nothing_is_emulated_beside_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="a device is here"), run.emulated():
        pass


def test_launch_that_no_device_takes_is_refused() -> None:
    with pytest.raises(CudaError, match="the launch is too large"):
        launch(f"{HEAD}float* x) {{}}", torch.zeros(1), block=1025)
