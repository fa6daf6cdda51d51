"""Wrong CUDA C++: `gdn.cu` with one string replaced, compiled and run on a device."""

from __future__ import annotations

from functools import cache
from typing import Any
from unittest.mock import patch

from engine.kernels.nvrtc import Kernel, compile_source, source_of
from falsifiers.judging.subject import Builder
from falsifiers.mutation.mutants import replace_source
from phases.p5_batched_gdn import kernel_gdn_cuda as right
from phases.wrong_refs import with_ops

SHUFFLES = "sum, {});\n  sum = sum + __shfl_xor_sync(~0u, sum, {});"
STORE = "state_in_memory[i * (DIM / COLUMNS_PER_THREAD)]"
FAULTS = {
    "follows_the_first_pointer": ("delta_step", "states[blockIdx.y]", "states[0]"),
    "works_on_pads": ("delta_step", "if (index >= row_end) return;", ""),
    "shares_heads_side_by_side": ("delta_step", "head % key_heads", "head / (heads / key_heads)"),
    "pairs_distant_lanes_first": ("delta_step", SHUFFLES.format(4, 8), SHUFFLES.format(8, 4)),
    "begins_sums_with_a_key": ("delta_step", "return sum + 0.0f;", "return sum;"),
    "scales_the_norm": ("delta_step", "(token.q[i] * inverse_norm_q) * scale",
                        "token.q[i] * (inverse_norm_q * scale)"),
    "saves_one_key_late": ("delta_step", f"{STORE} = state[i];",
                           f"{STORE} = state[(i + 1) % KEYS_PER_THREAD];"),
    "stops_after_a_tile": ("conv_step", "token += TOKENS_PER_LOAD", "token += row_end"),
    "spans_begin_with_zeros": ("conv_step", "span ? previous(token, 1)", "span ? 0.0f"),
    "saves_the_first_span": ("conv_step", "more_spans ? previous(row_end, 1)",
                             "more_spans ? c"),
    "loads_the_token_again": ("delta_step", "min(index + 1, row_end - 1)",
                              "min(index, row_end - 1)"),
    "window_backwards": ("conv_step", "(w.x * a + w.y * b) + w.z * c",
                         "(w.x * c + w.y * b) + w.z * a"),
    "takes_the_token_for_the_head": ("gates", "neg_exp_a[head]",
                                     "neg_exp_a[token % heads]"),
}
"""For each mutant: the kernel, the source string to replace, and its replacement."""


@cache
def _compile_kernel(old: str, new: str, name: str, how: tuple[Any, ...],
                    contracted: bool) -> Kernel:
    options = (*right.options(*how), *(("-fmad=true",) if contracted else ()))
    return Kernel(compile_source(faulty_source(old, new), options), name)


def faulty_source(old: str, new: str) -> str:
    """Return the CUDA source with one string replaced by another."""
    return replace_source(source_of(right.SOURCE), old, new)


def with_cuda_fault(fault: str) -> Builder:
    """Return a builder whose CUDA kernel has the named fault."""
    return _build_mutant(*FAULTS[fault], contracted=False)


def with_contraction(name: str) -> Builder:
    """Return a builder whose CUDA kernel is compiled with contraction."""
    return _build_mutant(name, "", "", contracted=True)


def _build_mutant(name: str, old: str, new: str, contracted: bool) -> Builder:
    def wrong(*args: Any) -> None:
        def function(kernel: str, *how: Any) -> Kernel:
            return _compile_kernel(old, new, kernel, how or (4,), contracted)

        with patch.object(right, "_function", function):
            getattr(right, name)(*args)

    return with_ops(**{name: wrong})
