"""Shared memory in the emulator: poisoned for each block, filled when a copy is awaited."""

from __future__ import annotations

import pytest
import torch

from engine.emulate.fixtures import HEAD, lane_results, launch

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated")]


@pytest.mark.parametrize("writer", [0, 63])
def test_missing_barrier_is_found_in_either_order_of_threads(writer: int) -> None:
    out = torch.zeros(2, 64)
    launch(f"""{HEAD}float* out) {{
        __shared__ float tile;
        if (threadIdx.x == {writer}) tile = 5;
        out[blockIdx.x * 64 + threadIdx.x] = tile;
    }}""", out, grid=(2, 1), block=64)
    assert out.isnan().any()


@pytest.mark.parametrize("declared", ["extern __shared__ __align__(16) unsigned char tile[];",
                                      "extern __shared__ unsigned long long tile[];",
                                      "extern __shared__ alignas(16) float tile[];"])
def test_dynamic_shared_memory_is_found_however_it_is_declared(declared: str) -> None:
    body = f"{declared} if (0) tile[0] = 1; y = __cvta_generic_to_shared(tile);"
    assert lane_results(body) == [0] * 32


def test_shared_memory_of_a_template_is_new_for_each_block() -> None:
    out = torch.zeros(2)
    launch(f"""namespace some {{ template <int N> __device__ float last() {{
        __shared__ float tile[N];
        const float was = tile[0];
        tile[0] = 1;
        return was;
    }} }}
    {HEAD}float* out) {{ if (!threadIdx.x) out[blockIdx.x] = some::last<4>(); }}""", out,
           grid=(2, 1))
    assert out.isnan().all()


def test_shared_memory_is_new_for_each_block() -> None:
    out = torch.zeros(2, 2)
    launch(f"""{HEAD}float* out) {{
        __shared__ float fixed[1];
        extern __shared__ float dynamic[];
        if (threadIdx.x) return;
        out[2 * blockIdx.x] = fixed[0], out[2 * blockIdx.x + 1] = dynamic[0];
        fixed[0] = dynamic[0] = 1;
    }}""", out, grid=(2, 1), shared=4)
    assert out.isnan().all()


WAIT = 'asm volatile("cp.async.wait_all;" ::: "memory");'


@pytest.mark.parametrize("waits", [True, False])
def test_copy_arrives_when_it_is_awaited(waits: bool) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(f"""{HEAD}const float* x, float* out) {{
        extern __shared__ float tile[];
        if (threadIdx.x) return;
        const unsigned at = (unsigned)__cvta_generic_to_shared(tile);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x) : "memory");
        {WAIT if waits else ""}
        for (int i = 0; i < 4; i++) out[i] = tile[i];
    }}""", x, out, shared=16)
    assert torch.equal(out, x) if waits else bool(out.isnan().all())


def test_groups_of_copies_arrive_in_their_order() -> None:
    x, out = torch.arange(8.0), torch.zeros(8)
    copy = ('asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at + 16 * {0}), '
            '"l"(x + 4 * {0}), "r"({1}) : "memory");'
            'asm volatile("cp.async.commit_group;" ::: "memory");')
    launch(f"""{HEAD}const float* x, float* out) {{
        extern __shared__ float tile[];
        if (threadIdx.x) return;
        const unsigned at = (unsigned)__cvta_generic_to_shared(tile);
        {copy.format(0, 8)} {copy.format(1, 16)}
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        for (int i = 0; i < 8; i++) out[i] = tile[i];
    }}""", x, out, shared=32)
    assert out[:4].tolist() == [0, 1, 0, 0]  # eight bytes were there, the rest is 0
    assert out[4:].isnan().all()
