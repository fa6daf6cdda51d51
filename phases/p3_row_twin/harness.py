"""How P3's attack runs a product: memory laid out with poison and guards, every stray write seen.

What is judged is the in-tree reference on the CPU, the in-tree kernel of the case's arithmetic
under the interpreter and on a device, or a candidate's `gemv_rows` everywhere. Cases of the
`portable` kernel run on a device what the interpreter runs: Triton's text, not the tensor cores'.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.load import load_contract
from contracts.schema import Budget, Case
from engine.kernels.device_bytes import device_bytes
from engine.weights import EXACT, ORDERED, Weight
from falsifiers.gate.candidates import Candidate
from falsifiers.instruments.bounds_checker import BoundsChecker, check_bounds
from falsifiers.instruments.deterministic_dot import deterministic_dots
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.judging.judge import Judge, as_bits
from falsifiers.judging.poison import poison
from falsifiers.judging.subject import Subject
from phases.p3_row_twin.data import blocks
from phases.p3_row_twin.increment import gemv_rows, gemv_rows_all, kernel
from phases.p3_row_twin.weights import load_rows

CONTRACT = Path(__file__).parents[2] / "contracts" / "p3.yaml"


@dataclass(frozen=True)
class Layout:
    """Where rows of x and out lie in a larger buffer; everything between them is poison."""

    skew: int = 0
    """Values before the first row, so that bases are not aligned."""
    rows_before: int = 0
    """Rows before the first row."""
    gap: int = 0
    """Values between rows of x; out has 3 more, so that no stride fits both."""

    def allocate(self, m: int, width: int, gap: int, dtype: torch.dtype, device: str) -> Tensor:
        """Return m rows as a view into a new buffer of NaN."""
        stride = width + gap
        size = self.skew + (self.rows_before + m + 1) * stride + 64  # room to stray into
        buffer = poison(torch.empty(size, dtype=dtype, device=device))
        return buffer[self.skew + self.rows_before * stride:].as_strided((m, width), (stride, 1))


@dataclass(frozen=True)
class Matrix:
    """A weight as the engine has it, and as the product under test wants it."""

    weight: Weight
    candidate_weight: Any


def select_gemv_rows_all(candidate: Candidate | None) -> Any:
    """Return what makes the products of several matrices and the same rows in the engine's bits."""
    if candidate is None:
        return gemv_rows_all
    run = candidate.op("gemv_rows_all")
    if run is None or not candidate.bitwise:
        raise Declined("it offers no gemv_rows_all(weights, x, outs) in the engine's bits")
    return run


class Harness:
    """The product that a case judges, and the rule of truth for its arithmetic."""

    def __init__(self, case: Case, subject: Subject, judge: Judge) -> None:
        self.judge, self.device, self.candidate = judge, subject.device, subject.candidate
        self.arithmetic, self.bitwise, self.dtype = case["arithmetic"], True, torch.float32
        self.interpreted, self.case = case.tier == "interpret", case
        self._function: Any = gemv_rows
        if self.candidate is not None:
            self._use_candidate(case, self.candidate)
        elif case.tier != "cpu":
            portable = case.given.get("kernel") == "portable"
            interpreted = portable or case.tier == "interpret"
            self._function = kernel(self.arithmetic, "cpu" if interpreted else "cuda")

    def _use_candidate(self, case: Case, candidate: Candidate) -> None:
        candidate.refuse(case)
        if "kernel" in case.given:
            raise Declined("the case is about one of the tree's own kernels")
        run = candidate.op("gemv_rows")
        if run is None:
            raise Declined("it offers no gemv_rows(weight, x, out)")
        self._function, self.bitwise = run, candidate.bitwise
        self.dtype = candidate.io_dtype or torch.float32
        self.arithmetic = candidate.arithmetic if candidate.bitwise else EXACT
        if self.arithmetic not in (EXACT, ORDERED):
            raise SuiteError(f"candidate {candidate.name} declares {self.arithmetic!r}, but the "
                             f"engine has {EXACT} and {ORDERED}")

    def build_matrix(self, kind: str, n: int, k: int, flavour: str = "plain", skew: int = 0,
               copies: int = 1) -> Matrix:
        """Return a matrix, its n rows so many times over; bad scales surround its bytes.

        The matrix is random, or rows of the file that the case names. `skew` bytes put its base off
        alignment.
        """
        real = "tensor" in self.case.given
        source = load_rows(self.case, kind, n, k) if real else blocks(kind, n, k, flavour)
        raw = np.tile(source, (copies, 1))
        padded = np.full(raw.size + 512, 0xFF, np.uint8)
        first = 256 - padded.ctypes.data % 16 + skew
        inside = padded[first:first + raw.size].reshape(raw.shape)
        inside[:] = raw
        weight = Weight(self.case.given.get("tensor", "random"), kind, inside, self.arithmetic)
        return Matrix(weight, self.candidate.prepare(weight) if self.candidate else weight)

    def __call__(self, matrix: Matrix, x: Tensor, layout: Layout | None = None) -> Tensor:
        """Return the product f32[m, N] of rows f32[m, K], on the CPU; judge what it left behind."""
        layout = layout or Layout()
        m, gap = len(x), layout.gap
        rows = layout.allocate(m, x.shape[1], gap, self.dtype, self.device).copy_(x)
        out = layout.allocate(m, matrix.weight.n, gap and gap + 3, self.dtype, self.device)
        poison(_buffer(out), sentinel=True)
        before_bits = [as_bits(_buffer(t)) for t in (rows, out)]
        self.run(matrix, rows, poison(out))
        result = out.clone().cpu()
        poison(out, sentinel=True)
        for name, before, after in zip(("x", "out"), before_bits, (rows, out), strict=True):
            self._check_unchanged(name, before, as_bits(_buffer(after)))
        return result

    def compute_on_device(self, matrix: Matrix, x: Tensor) -> Tensor:
        """Return the product of rows that lie on the device, in a new tensor there."""
        out = poison(torch.empty(len(x), matrix.weight.n, dtype=self.dtype, device=x.device))
        self.run(matrix, x, out)
        return out

    def run(self, matrix: Matrix, x: Tensor, out: Tensor) -> None:
        """Write the product into `out`; what a candidate or numpy warns of is no parity fault."""
        with warnings.catch_warnings(), np.errstate(all="ignore"), deterministic_dots():
            warnings.simplefilter("ignore")
            self._function(matrix.candidate_weight, x, out)

    def _check_unchanged(self, name: str, before: Tensor, after: Tensor) -> None:
        bad = (before != after).nonzero().flatten()
        at = int(bad[0]) if len(bad) else 0
        what = "an input was written" if name == "x" else "memory outside the rows was written"
        self.judge.law(not len(bad), f"{name}[value {at} of its buffer] changed: {what}",
                       rung="frame")

    def engine_product(self, matrix: Matrix, x: Tensor) -> Tensor:
        """Return what the engine says the product is, f32[m, N]."""
        return matrix.weight.product(x.to(self.dtype).float()).to(self.dtype)

    def check_truth(self, got: Tensor, want: Tensor, **where: int | str) -> None:
        """Hold results to the engine's: in bits, or to the budget of an arithmetic of its own."""
        if self.bitwise:
            self.judge.equal("out", got, want, rule="truth", finite=False, **where)
        else:
            self.judge.budget("out", got.float(), want.float(), own_budget(),
                              **where)  # type: ignore[arg-type]

    def weight_tensors(self, matrix: Matrix) -> dict[str, Tensor]:
        """Return the tensors that hold the weights under the interpreter, by name.

        A candidate whose `prepare` does not return tensors declines.
        """
        prepared = matrix.candidate_weight
        if prepared is matrix.weight and (self.candidate is None or self.candidate.op("prepare")):
            return {"the weights": device_bytes(matrix.weight, "cpu")}
        parts = prepared if isinstance(prepared, tuple | list) else (prepared,)
        tensors = [part for part in parts if isinstance(part, Tensor)]
        if not tensors:
            raise Declined("its prepare(weight) returns no tensor, so where weights are read from "
                           "is unknown")
        return {f"weight tensor {i}": part for i, part in enumerate(tensors)}

    @contextmanager
    def watch_bounds(self, matrix: Matrix, x: Tensor, out: Tensor) -> Iterator[BoundsChecker]:
        """Watch what a launch on these tensors touches."""
        with check_bounds({"x": x, **self.weight_tensors(matrix)}, {"out": out}) as fence:
            yield fence


def _buffer(view: Tensor) -> Tensor:
    """Return the buffer in which the rows lie."""
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0)


@cache
def own_budget() -> Budget:
    """Return the contract's budget for candidates with an arithmetic of their own."""
    budget = load_contract(CONTRACT).parity.own
    if budget is None:
        raise SuiteError(f"{CONTRACT.name} has no budget for an arithmetic of one's own")
    return budget
