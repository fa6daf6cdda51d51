"""What stands between two products, where no case of the contract goes: in CUDA C++, on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contracts.load import load_contract
from engine import ops
from falsifiers.judging.judge import Judge
from phases.p4_batched_matmul import attacks
from phases.p4_batched_matmul.increment import path

CONTRACT = Path(__file__).parents[2] / "contracts" / "p4.yaml"
pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated")]


@pytest.mark.parametrize(("m", "n", "kind"), [
    (3, 384, "Q8_0"),  # a group that ends half way, and a head without a neighbour
    (65, 256, "Q4_K")])  # rows past those whose integers stand together
def test_products_take_what_was_made(m: int, n: int, kind: str) -> None:
    case = next(c for c in load_contract(CONTRACT).expand() if c.given.get("op") == "carried")
    judge = Judge(case)
    attacks.check_quantised_reuse(judge, path(), "cpu", m, n, (kind,))
    assert judge.compared > 0


def test_functions_of_the_kernels_are_the_engines() -> None:
    from engine.emulate.fixtures import HEAD, launch
    from engine.kernels.nvrtc import source_of

    def kernel(name: str, x: torch.Tensor, out: torch.Tensor, block: int) -> None:
        launch(f"""{source_of()}{HEAD}const float* x, float* out, int n) {{
            const int i = blockIdx.x * 64 + threadIdx.x;
            if (i < n) out[i] = {name}_of(x[i]);
        }}""", x, out, len(x), grid=(-(-len(x) // 64), 1), block=64)

    case = next(c for c in load_contract(CONTRACT).expand() if c.given.get("op") == "function")
    judge = Judge(case)
    attacks.check_functions(judge, kernel, "cpu")
    assert judge.compared > 0


def test_sum_may_replace_what_it_is_made_of() -> None:
    from phases.p4_batched_matmul.kernel_fused import add_norm
    x, y, weight = (torch.randn(2, 300, generator=torch.Generator().manual_seed(i))
                    for i in range(3))
    want, got = [torch.empty(2, 300) for _ in range(2)], torch.empty(2, 300)
    ops.add_norm(ops.norm, x, y, weight[0], 1e-6, *want)
    add_norm(x, y, weight[0], 1e-6, x, got)
    assert torch.equal(x, want[0])
    assert torch.equal(got, want[1])
