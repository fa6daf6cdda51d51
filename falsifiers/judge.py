"""The judge: a ladder shape -> dtype -> finite -> bits -> budget, and one message template.

A falsifier receives a fresh `Judge` for its case. Every method raises `ParityBroken` with a
located `Finding` when the claim does not hold, and otherwise counts what it compared; a case
that ends with nothing compared is not a pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contracts.schema import Budget, Case
from falsifiers.errors import ParityBroken
from falsifiers.verdict import Finding, Rule, Rung, Worst

_INT = {torch.float32: torch.int32, torch.float64: torch.int64,
        torch.float16: torch.int16, torch.bfloat16: torch.int16}


def as_bits(x: Tensor) -> Tensor:
    """Return `x`'s bit patterns as signed integers of its width, every NaN made the same."""
    x = x.detach().to("cpu").contiguous()
    if x.dtype not in _INT:
        return x
    return torch.where(torch.isnan(x), torch.full_like(x, float("nan")), x).view(_INT[x.dtype])


def ulps_apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of two equal-dtype float tensors in units in the last place."""
    def ordered(x: Tensor) -> Tensor:
        bits = as_bits(x).to(torch.int64)
        low = -(1 << (8 * x.element_size() - 1))
        return torch.where(bits < 0, low - bits, bits)

    return (ordered(a) - ordered(b)).abs()


def hex_of(x: Tensor) -> str:
    """Return a scalar tensor's bit pattern in hexadecimal, `0x3f800000`."""
    if x.dtype not in _INT:
        return str(x.item())
    width = x.element_size()
    return f"0x{int(as_bits(x.reshape(1))[0]) & ((1 << (8 * width)) - 1):0{2 * width}x}"


class Judge:
    """Compares what a case got with what it should be, on the ladder, and keeps the tally."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.compared = 0
        self.evidence: dict[str, Any] = {}
        self._worst: dict[str, Worst] = {}

    @property
    def worst(self) -> tuple[Worst, ...]:
        """The largest deviation seen for each op."""
        return tuple(self._worst.values())

    def equal(self, name: str, got: Tensor, want: Tensor, *, rule: Rule = "twin",
              finite: bool = True, **where: int | str) -> None:
        """Hold two tensors to the same shape, dtype and bits; `where` locates them.

        `finite` False lets NaN and infinities stand, as poison must when it is compared.
        """
        self._ladder(name, got, want, rule, finite, where)
        bad = (as_bits(got) != as_bits(want)).flatten()
        if bool(bad.any()):
            self._differ(name, got, want, int(bad.nonzero()[0, 0]), rule, "bits", where)
        self._tally(name, "bits", got.numel())

    def budget(self, name: str, got: Tensor, want: Tensor, budget: Budget, *,
               rule: Rule = "truth", **where: int | str) -> None:
        """Hold each row of `got` [rows, n] to a budget of cosine and norm ratio; worst row counts."""
        self._ladder(name, got, want, rule, True, where)
        a, b = got.double().reshape(-1, got.shape[-1]), want.double().reshape(-1, want.shape[-1])
        na, nb = a.norm(dim=1), b.norm(dim=1)
        cosine = (a * b).sum(1) / (na * nb)
        off = (na / nb - 1).abs()
        ok = (cosine >= budget.cosine) & (off <= budget.norm)  # a NaN is not ok
        if not bool(ok.all()):
            row = int((~ok).nonzero()[0, 0])
            self._fail(rule, "budget", f"{self._place(name, {'row': row, **where})} has cosine "
                       f"{float(cosine[row]):.7f} and norm ratio {float(na[row] / nb[row]):.6f}, "
                       f"but should have at least {budget.cosine} and 1 +- {budget.norm}",
                       {"row": row, **where})
        ulps = int(ulps_apart(got, want).max()) if got.dtype == want.dtype else 0
        self._tally(name, "budget", got.numel(), ulps, float(cosine.min()), float(off.max()))

    def law(self, holds: bool, sentence: str, *, rung: Rung = "law", **where: int | str) -> None:
        """Hold a property that has no peer to compare with; `sentence` says how it was broken."""
        if not holds:
            self._fail("law", rung, f"{sentence} [{self.case.label}]", where)
        self.compared += 1

    def unchanged(self, name: str, before: str, after: str, **where: int | str) -> None:
        """Hold a digest taken before and after to be the same: the frame condition."""
        if before != after:
            self._fail("law", "frame", f"{self._place(name, where)} was changed by a step that was "
                       f"not asked to write it (digest {before[:12]} -> {after[:12]})", where)
        self.compared += 1

    def engaged(self, **evidence: Any) -> None:
        """Keep measured evidence of what ran; it travels with the verdict."""
        self.evidence.update(evidence)

    def _ladder(self, name: str, got: Tensor, want: Tensor, rule: Rule, finite: bool,
                where: dict[str, int | str]) -> None:
        place = self._place(name, where)
        if got.shape != want.shape:
            self._fail(rule, "shape", f"{place} has shape {list(got.shape)}, but should have "
                       f"{list(want.shape)}", where)
        if got.dtype != want.dtype:
            self._fail(rule, "dtype", f"{place} has dtype {got.dtype}, but should have "
                       f"{want.dtype}", where)
        if finite and got.is_floating_point() and not bool(torch.isfinite(got).all()):
            at = int((~torch.isfinite(got)).flatten().nonzero()[0, 0])
            self._differ(name, got, want, at, rule, "finite", where)

    def _differ(self, name: str, got: Tensor, want: Tensor, at: int, rule: Rule, rung: Rung,
                where: dict[str, int | str]) -> None:
        a, b = got.detach().cpu().reshape(-1)[at], want.detach().cpu().reshape(-1)[at]
        ulps = int(ulps_apart(a, b)) if a.is_floating_point() else None
        index = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)]
        place = self._place(name, {**where, "element": str(index)})
        apart = f" ({ulps} ulp)" if ulps is not None else ""
        finding = Finding(rule=rule, rung=rung, where={**where, "element": str(index)},
                          got=hex_of(a), want=hex_of(b), ulps=ulps,
                          sentence=f"{place}={hex_of(a)}, but should be {hex_of(b)}{apart} "
                                   f"[{self.case.label}]")
        raise ParityBroken(finding)

    def _fail(self, rule: Rule, rung: Rung, sentence: str, where: dict[str, int | str]) -> None:
        if self.case.label not in sentence:
            sentence = f"{sentence} [{self.case.label}]"
        raise ParityBroken(Finding(rule=rule, rung=rung, sentence=sentence, where=where))

    @staticmethod
    def _place(name: str, where: dict[str, int | str]) -> str:
        inside = ", ".join(f"{key} {value}" for key, value in where.items())
        return f"{name}[{inside}]" if inside else name

    def _tally(self, op: str, rung: Rung, compared: int, ulps: int = 0,
               cosine: float | None = None, norm: float | None = None) -> None:
        self.compared += compared
        old = self._worst.get(op)
        if old is not None:
            compared += old.compared
            ulps = max(ulps, old.ulps)
            cosine = min((c for c in (cosine, old.cosine) if c is not None), default=None)
            norm = max((n for n in (norm, old.norm_error) if n is not None), default=None)
        self._worst[op] = Worst(op=op, rung=rung, ulps=ulps, cosine=cosine, norm_error=norm,
                                compared=compared)
