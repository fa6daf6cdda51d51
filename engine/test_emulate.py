"""CUDA C++ on the CPU: it rounds as a device does and reports faults that a device ignores."""

from __future__ import annotations

from functools import cache
from platform import machine

import pytest
import torch
from torch import Tensor

import rowtwin
from engine import emulate
from engine.emulate import emulator
from engine.emulate.emulator import KernelFault
from engine.emulate.fixtures import HEAD, lane_results, launch
from engine.errors import InputError
from engine.kernels.nvrtc import CudaError
from falsifiers.gate.runner import contracts_by_phase, find_case

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated")]


@pytest.mark.parametrize("flag", ["", "-DSIMT_PORTABLE"])
@pytest.mark.parametrize("backwards", [False, True])
def test_threads_of_a_block_meet(monkeypatch: pytest.MonkeyPatch, flag: str,
                                 backwards: bool) -> None:
    monkeypatch.setattr(emulator, "FLAGS", (*emulator.FLAGS, *([flag] if flag else ())))
    monkeypatch.setattr(emulate, "backwards", backwards)
    out = torch.empty(3, 2, 64)
    launch(f"""{HEAD}float* out) {{
        __shared__ float tile[64];
        extern __shared__ float more[];
        const int t = threadIdx.x, other = 63 - t;
        tile[t] = t * 2;
        more[t] = __shfl_xor_sync(~0u, (float)t, 1);
        __syncthreads();
        const int odd = __syncthreads_count(t % 2);
        out[(blockIdx.x * gridDim.y + blockIdx.y) * 64 + t] =
            tile[other] + 1000 * more[other] + 100000 * odd + blockIdx.x * 0.25f;
    }}""", out, grid=(3, 2), block=64, shared=256)
    t = torch.arange(64)
    other = 63 - t
    want = (2 * other + 1000 * (other ^ 1) + 3200000).float()
    assert torch.equal(out, want + torch.arange(3).mul(0.25)[:, None, None].expand(3, 2, 1))


@pytest.mark.parametrize(("body", "sentence"), [
    ("if (threadIdx.x < 16) __syncwarp(); else x[0] = __shfl_xor_sync(~0u, x[0], 1);",
     "some threads wait at __syncwarp and others at __shfl_xor_sync"),
    ('asm volatile("bar.sync %0, %1;" :: "r"(1), "r"(64));',
     "deadlock: 32 threads wait")])
def test_threads_that_never_meet_are_reported(body: str, sentence: str) -> None:
    x = torch.zeros(1)
    with pytest.raises(CudaError, match=sentence):
        launch(f"{HEAD}float* x) {{ {body} }}", x)
    launch(f"{HEAD}float* x) {{ if (threadIdx.x == 31) x[0] = 5; }}", x)
    assert x.item() == 5  # a launch after a failed one works


@pytest.mark.parametrize(("body", "sentence"), [
    ("if (blockIdx.x && threadIdx.x == 3) *(volatile int*)8 = 1;",
     r"thread 3 of block \(1, 0\) accessed unmapped memory"),
    ("if (blockIdx.x) x[0] = ((const float4*)(x + 1))->x;",
     "used a misaligned address"),
    ("__shared__ float some[32]; some[threadIdx.x + blockIdx.x] = 1; x[0] = some[0];",
     r"thread 31 of block \(1, 0\) used .* an index out of bounds"),
    ("if (blockIdx.x) __trap();", "a trap"),
    ("extern __shared__ float more[]; more[threadIdx.x + blockIdx.x] = 1;",
     "byte 128 was written, past the 128 bytes of dynamic shared memory"),
    ("volatile int never = 0; x[0] = blockIdx.x % never;", "divided an integer by zero"),
    ("if (threadIdx.x) __syncwarp(1);",
     "a lane calls __syncwarp with a mask that does not include it"),
    ("if (threadIdx.x < 8) __syncwarp(0xffff); else __syncthreads();",
     "deadlock: .* threads wait")])
def test_fault_of_a_kernel_ends_only_its_launch(monkeypatch: pytest.MonkeyPatch, body: str,
                                                sentence: str) -> None:
    monkeypatch.setattr(emulator, "FLAGS", (*emulator.FLAGS, "-DSIMT_TIMEOUT=1"))
    x = torch.zeros(8)
    with pytest.raises(KernelFault, match=f"^emulated kernel k: .*{sentence}"):
        launch(f"{HEAD}float* x, int go) {{ if (go) return; {body} }}", x, 0, grid=(2, 1),
               shared=128)
    launch(f"{HEAD}float* x, int go) {{ if (go) {{ x[0] = 5; return; }} {body} }}", x, 1,
           shared=128)
    assert x[0] == 5


ILLEGAL_INSTRUCTION = """typedef void (*Code)();
    unsigned char* code = (unsigned char*)mmap(nullptr, 4096, 7, 0x22, -1, 0);
    code[0] = 0x06; ((Code)code)();"""


@pytest.mark.parametrize(("body", "sentence"), [
    ("volatile int never = 0; while (!never);",
     "did not end in time; a loop that waits for another thread is not emulated"),
    ("if (!threadIdx.x) { simt::mbarrier_init(0, 1); simt::mbarrier_expect(0, 0); "
     "simt::mbarrier_try_wait(0, 0); simt::mbarrier_expect(0, 0); }",
     "is used for a second phase, which is not emulated"),
    *([(ILLEGAL_INSTRUCTION, "needs an instruction that this processor does not have")]
      if machine() == "x86_64" else [])])
def test_limits_of_the_emulator_are_no_faults_of_the_kernel(
        monkeypatch: pytest.MonkeyPatch, body: str, sentence: str) -> None:
    monkeypatch.setattr(emulator, "FLAGS", (*emulator.FLAGS, "-DSIMT_TIMEOUT=1"))
    with pytest.raises(CudaError, match=f"^emulated kernel k: .*{sentence}") as caught:
        launch(f"{HEAD}float* x) {{ {body} }}", torch.zeros(1), shared=64)
    assert not isinstance(caught.value, KernelFault)


def test_thread_can_use_as_much_memory_as_on_a_device() -> None:
    out = torch.zeros(64)
    launch(f"""{HEAD}float* out) {{
        volatile float own[120000];
        for (int i = 0; i < 120000; i += 500) own[i] = threadIdx.x;
        __syncthreads();
        for (int i = 0; i < 120000; i += 500) out[threadIdx.x] += own[i];
    }}""", out, block=64)
    assert out.tolist() == [240 * thread for thread in range(64)]


def test_only_kernel_faults_fail_a_case_in_the_emulator() -> None:
    case = find_case("p3/rows_equal_alone[emulate-exact-23-Q4_K-k256]", contracts_by_phase())
    assert rowtwin.subject_for(case).faults == (KernelFault,)
    assert rowtwin.subject_for(case.model_copy(update={"tier": "cpu"})).faults == ()


@pytest.mark.parametrize("args", [(), (0, 0)])
def test_launch_with_a_wrong_number_of_arguments_is_refused(args: tuple[int, ...]) -> None:
    with pytest.raises(KernelFault, match=f"it takes 2 arguments, but was given {1 + len(args)}"):
        launch(f"{HEAD}float* x, int y) {{ x[0] = y; }}", torch.zeros(1), *args)


SHUFFLE_CALLS: dict[str, list[float]] = {
    "__shfl_sync(~0u, l, 5)": [5] * 32,
    "__shfl_sync(~0u, l, 9, 8)": [lane // 8 * 8 + 1 for lane in range(32)],
    "__shfl_xor_sync(~0u, l, 9)": [lane ^ 9 for lane in range(32)],
    "__shfl_xor_sync(~0u, l, 8, 8)": [lane ^ 8 if lane & 8 else lane for lane in range(32)],
    "__shfl_up_sync(~0u, l, 3)": [lane - 3 if lane > 2 else lane for lane in range(32)],
    "__shfl_up_sync(~0u, l, 3, 8)": [lane - 3 if lane % 8 > 2 else lane for lane in range(32)],
    "__shfl_down_sync(~0u, l, 3)": [lane + 3 if lane < 29 else lane for lane in range(32)],
    "__shfl_down_sync(~0u, l, 3, 8)": [lane + 3 if lane % 8 < 5 else lane for lane in range(32)],
    "__popc(__ballot_sync(~0u, l < 7))": [7] * 32,
    "__ballot_sync(~0u, l < 7) >> l & 1": [1.0] * 7 + [0.0] * 25,
    "__any_sync(~0u, l == 7)": [1] * 32, "__any_sync(~0u, l == 32)": [0] * 32,
    "__all_sync(~0u, l < 31)": [0] * 32, "__all_sync(~0u, l < 32)": [1] * 32,
    "__syncthreads_or(l == 7)": [1] * 32, "__syncthreads_and(l < 31)": [0] * 32,
    "__reduce_add_sync(~0u, l)": [496] * 32, "__reduce_max_sync(~0u, l - 40)": [-9] * 32,
    "__reduce_min_sync(~0u, (unsigned)l - 40)": [2.0**32] * 32,
    "__reduce_xor_sync(~0u, 1u << l % 3)": [3] * 32}


@cache
def run_shuffle_calls() -> Tensor:
    """Return what each lane gets of every call, f32[calls, 32]; l is the lane."""
    out = torch.full((len(SHUFFLE_CALLS), 32), -7.0)
    calls = "".join(f"out[{32 * i} + l] = {call};" for i, call in enumerate(SHUFFLE_CALLS))
    launch(f"{HEAD}float* out) {{ const int l = threadIdx.x; {calls} }}", out)
    return out


@pytest.mark.parametrize("call", SHUFFLE_CALLS)
def test_shuffles_and_votes_return_the_values_of_other_lanes(call: str) -> None:
    assert run_shuffle_calls()[list(SHUFFLE_CALLS).index(call)].tolist() == SHUFFLE_CALLS[call]


def test_lanes_of_different_masks_meet_separately() -> None:
    body = """
        if (l < 16) for (int i = 0; i < 3; i++) y = __shfl_xor_sync(0xffff, l + i, 1);
        else if (l & 1) y = __reduce_add_sync(0xaaaa0000, l);
        else y = __popc(__ballot_sync(0x55550000, l < 20));
        y += 100 * __shfl_sync(~0u, l, 31);"""
    odd = sum(range(17, 32, 2))
    assert lane_results(body) == [
        3100 + ((lane ^ 1) + 2 if lane < 16 else odd if lane & 1 else 2) for lane in range(32)]


def test_shuffle_from_an_absent_lane_returns_nan() -> None:
    got = lane_results(
        "if (l >= 16) return; y = __shfl_xor_sync(~0u, (float)l, l < 8 ? 1 : 16);", "float")
    assert got[:8] == [1, 0, 3, 2, 5, 4, 7, 6]
    assert all(value != value for value in got[8:16])
    assert got[16:] == [-7] * 16


FUNCTION_CALLS: dict[str, float] = {
    "__clz(1)": 31, "__clz(0)": 32, "__ffs(8)": 4, "__popc(255u)": 8, "__brev(1)": 2.0**31,
    "__dp4a(0x01ff7f80, 0x02028080, 5)": 5 + 128 * 128 - 127 * 128 - 2 + 2,
    "__dp4a(0x01ff7f80u, 0x02028080u, 5u)": 5 + 128 * 128 + 127 * 128 + 510 + 2,
    "__umulhi(1u << 31, 6u)": 3, "__mulhi(-1, 6)": -1,
    "__funnelshift_l(1u << 31, 1u, 1)": 3, "__funnelshift_r(2u, 1u, 1) >> 30": 2,
    "max(0.25f, 0.5f)": 0.5, "min(0.25f, 0.5f)": 0.25, "max(-1, 3u)": 2.0**32,
    "fmaxf(NAN, 2.0f)": 2, "fminf(2.0f, NAN)": 2, "1 / fmaxf(-0.0f, 0.0f)": float("inf"),
    "1 / fmaxf(0.0f, -0.0f)": float("inf"), "1 / fminf(0.0f, -0.0f)": -float("inf"),
    "1 / fminf(-0.0f, 0.0f)": -float("inf"), "__float_as_uint(fmaxf(NAN, NAN))": 2.0**31,
    "__saturatef(NAN)": 0, "__saturatef(3.0f)": 1, "__frcp_rn(8.0f)": 0.125,
    "__float2int_rz(-2.7f)": -2, "__float2int_rd(-2.2f)": -3, "__float2int_ru(2.2f)": 3,
    "__float2int_rn(2.5f)": 2, "__float2int_rz(1e30f)": 2.0**31, "one * warpSize": 32,
    "make().w": 4, "__CUDA_ARCH__ / 10": 90}


@cache
def run_function_calls() -> Tensor:
    """Return the result of every call, f32[calls]."""
    out = torch.zeros(len(FUNCTION_CALLS))
    calls = "".join(f"out[{i}] = {call};" for i, call in enumerate(FUNCTION_CALLS))
    launch(f"""#define NAN __int_as_float(0x7fc00000)
    __constant__ float one = 1;
    __device__ __noinline__ int4 make() {{ return make_int4(1, 2, 3, 4); }}
    {HEAD}float* out) {{ {calls} }}""", out)
    return out


@pytest.mark.parametrize("call", FUNCTION_CALLS)
def test_function_returns_what_a_device_returns(call: str) -> None:
    assert run_function_calls()[list(FUNCTION_CALLS).index(call)].item() == FUNCTION_CALLS[call]


@pytest.mark.parametrize(("kind", "dtype"), [("int", torch.int32), ("unsigned", torch.uint32),
                                             ("unsigned long long", torch.uint64)])
def test_atomics_of_integers_return_what_was_there(kind: str, dtype: torch.dtype) -> None:
    out = torch.tensor([0, 9, 9, 15, 0, 0, 3, 3], dtype=dtype)
    launch(f"""{HEAD}{kind}* x) {{
        const int l = threadIdx.x;
        atomicAdd(x, 2), atomicMin(x + 1, l + 4), atomicMax(x + 2, l), atomicAnd(x + 3, ~(l & 4));
        atomicOr(x + 4, l), atomicXor(x + 5, 1 << l % 3), atomicCAS(x + 6, 3, 8);
        if (l == 5) x[7] = atomicExch(x + 7, 4) + 10;
    }}""", out)
    assert out.tolist() == [64, 4, 31, 11, 31, 3, 8, 13]


def run_instruction(instruction: str, kinds: tuple[str, str], x: Tensor, out: Tensor) -> Tensor:
    """Apply an instruction to every value, one thread each, and return `out`."""
    source, target = ({"h": "unsigned short", "f": "float"}[kind] for kind in kinds)
    launch(f"""{HEAD}const {source}* x, {target}* out, int n) {{
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        {target} y;
        asm("{instruction} %0, %1;" : "={kinds[1]}"(y) : "{kinds[0]}"(x[i]));
        out[i] = y;
    }}""", x, out, x.numel(), grid=((x.numel() + 1023) // 1024, 1), block=1024)
    return out


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_narrow_types_are_read_and_rounded_as_torch_does(name: str, dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    wide = run_instruction(f"cvt.f32.{name}", ("h", "f"), every, torch.empty(1 << 16))
    assert torch.equal(wide.nan_to_num(7), every.view(dtype).float().nan_to_num(7))
    values = wide[~wide.isnan()]
    between = torch.cat([values, values * 1.001, values * 0.9995,
                         values.view(torch.int32).add(1 << 12).view(torch.float32)])
    between = between[~between.isnan()]
    near = run_instruction(f"cvt.rn.{name}.f32", ("f", "h"), between, torch.empty_like(
        between, dtype=torch.int16))
    assert torch.equal(near.view(dtype), between.to(dtype))
    zero = run_instruction(f"cvt.rz.{name}.f32", ("f", "h"), between, torch.empty_like(
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


def test_nothing_is_emulated_on_a_machine_with_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(InputError, match="a device is here"), emulator.emulated():
        pass


@pytest.mark.parametrize(("grid", "block", "shared", "sentence"), [
    ((1, 1), 1025, 0, "the launch is too large: .*1025 threads each.*too many threads a block"),
    ((1, 65536), 32, 0, "the launch is too large: .*; too many blocks"),
    ((1, 1), 32, 227 * 1024 + 1, "the launch is too large: .*; too many bytes of shared memory"),
    ((0, 1), 32, 0, "the launch is empty: a grid of 0 by 1 blocks"),
    ((1, 1), 0, 0, "the launch is empty: .*0 threads each")])
def test_launch_that_no_device_accepts_is_refused(grid: tuple[int, int], block: int, shared: int,
                                                  sentence: str) -> None:
    with pytest.raises(CudaError, match=sentence):
        launch(f"{HEAD}float* x) {{}}", torch.zeros(1), grid=grid, block=block, shared=shared)
