"""The judge: a ladder shape -> dtype -> finite -> bits -> budget, and one message template.

A falsifier receives a new `Judge` for its case. Every method raises `ParityBroken` with a
`Finding` when the claim is broken, and otherwise counts the values it compared. A case that
compares nothing does not pass.
"""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from contracts.schema import Budget, Case
from falsifiers.judging.errors import ParityBroken, SuiteError
from falsifiers.judging.verdict import Finding, Rule, Rung, Worst

if TYPE_CHECKING:  # the first comparison of tensors imports torch; laws do not need it
    import torch
    from torch import Tensor

Location = dict[str, int | str]


@cache
def _integer_type() -> dict[torch.dtype, torch.dtype]:
    """Return the integer type of the same width for each float type."""
    import torch
    return {torch.float32: torch.int32, torch.float64: torch.int64,
            torch.float16: torch.int16, torch.bfloat16: torch.int16}


def as_bits(x: Tensor) -> Tensor:
    """Return `x`'s bit patterns as signed integers of its width, with one pattern for NaN."""
    x = x.detach().to("cpu").contiguous()
    as_wide = _integer_type().get(x.dtype)
    return x if as_wide is None else x.masked_fill(x.isnan(), float("nan")).view(as_wide)


def ulps_apart(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of two equal-dtype float tensors in units in the last place."""
    def ordered(x: Tensor) -> Tensor:
        bits = as_bits(x).long()
        low = -(1 << (8 * x.element_size() - 1))
        return (low - bits).where(bits < 0, bits)

    return (ordered(a) - ordered(b)).abs()


def format_bits(x: Tensor) -> str:
    """Return a scalar tensor's bit pattern in hexadecimal, `0x3f800000`."""
    if x.dtype not in _integer_type():
        return str(x.item())
    width = x.element_size()
    return f"0x{int(as_bits(x.reshape(1))[0]) & ((1 << (8 * width)) - 1):0{2 * width}x}"


def _special_value(x: Tensor) -> str:
    """Return ` (NaN)` or ` (infinite)` for such a scalar, otherwise an empty string."""
    if not x.is_floating_point() or bool(x.isfinite()):
        return ""
    return " (NaN)" if bool(x.isnan()) else " (infinite)"


class Judge:
    """Compares the values of a case with the expected ones and counts them."""

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
        """Check that two tensors have the same shape, dtype and bits; `where` locates them.

        With `finite` False, NaN and infinities are allowed: poison is compared that way.
        """
        self._ladder(name, got, want, rule, finite, where)
        bad = (as_bits(got) != as_bits(want)).flatten()
        if bool(bad.any()):
            self._differ(name, got, want, bad, rule, "bits", where)
        self._tally(name, "bits", got.numel())

    def budget(self, name: str, got: Tensor, want: Tensor, budget: Budget, *,
               rule: Rule = "truth", logits: bool = False, **where: int | str) -> None:
        """Check each vector of `got` [.., n] against a budget of cosine and norm ratio.

        With `logits` each argmax must agree too, except at a near-tie, which is counted.
        """
        from falsifiers.judging import tolerance
        self._ladder(name, got, want, rule, True, where)
        got, want = got.reshape(-1, got.shape[-1]), want.reshape(-1, want.shape[-1])
        cosine, ratio = tolerance.cosine_and_norm_ratio(got, want)
        ok = (cosine >= budget.cosine) & ((ratio - 1).abs() <= budget.norm)  # a NaN is not ok
        if not bool(ok.all()):
            at = int((~ok).nonzero()[0, 0])
            where = {**where, "vector": at}
            self._fail(rule, "budget", f"{self._place(name, where)} has cosine "
                       f"{float(cosine[at]):.7f} and norm ratio {float(ratio[at]):.6f}, "
                       f"but should have at least {budget.cosine} and 1 +- {budget.norm}", where)
        if logits:
            self._argmax(name, got, want, budget, rule, where)
        self._tally(name, "budget", got.numel(), int(ulps_apart(got, want).max()),
                    float(cosine.min()), float((ratio - 1).abs().max()))

    def law(self, holds: bool, sentence: str, *, rung: Rung = "law", **where: int | str) -> None:
        """Check a property that needs no second value; `sentence` says how it is broken."""
        if not holds:
            self._fail("law", rung, sentence, where)
        self.compared += 1

    def unchanged(self, name: str, before: str, after: str, **where: int | str) -> None:
        """Check that two digests are the same: the frame condition."""
        if before != after:
            self._fail("law", "frame", f"{self._place(name, where)} was changed by a step that "
                       f"must not write it (digest {before[:12]} -> {after[:12]})", where)
        self.compared += 1

    def engaged(self, **evidence: Any) -> None:
        """Store measurements of what ran in the verdict; raise `SuiteError` if not JSON."""
        try:
            json.dumps(evidence)
        except (TypeError, ValueError) as error:
            raise SuiteError(f"{self.case.id}: evidence cannot be written as JSON: {error}") \
                from None
        self.evidence.update(evidence)

    def _ladder(self, name: str, got: Tensor, want: Tensor, rule: Rule, finite: bool,
                where: Location) -> None:
        place = self._place(name, where)
        if got.shape != want.shape:
            self._fail(rule, "shape", f"{place} has shape {list(got.shape)}, but should have "
                       f"{list(want.shape)}", where)
        if got.dtype != want.dtype:
            self._fail(rule, "dtype", f"{place} has dtype {got.dtype}, but should have "
                       f"{want.dtype}", where)
        if finite and got.is_floating_point() and not bool(got.isfinite().all()):
            self._differ(name, got, want, ~got.isfinite().flatten().cpu(), rule, "finite", where)

    def _argmax(self, name: str, got: Tensor, want: Tensor, budget: Budget, rule: Rule,
                where: Location) -> None:
        from falsifiers.judging import tolerance
        for at in (got.argmax(-1).cpu() != want.argmax(-1).cpu()).nonzero().flatten().tolist():
            margin = tolerance.flip_margin(got[at], want[at])
            if not margin <= budget.near_tie:
                where = {**where, "vector": at}
                self._fail(rule, "budget", f"{self._place(name, where)} has argmax "
                           f"{int(got[at].argmax())}, but should have {int(want[at].argmax())} "
                           f"(margin {margin:.2e} of a standard deviation)", where)
            self.evidence["near_ties"] = self.evidence.get("near_ties", 0) + 1

    def _differ(self, name: str, got: Tensor, want: Tensor, bad: Tensor, rule: Rule, rung: Rung,
                where: Location) -> None:
        import torch
        at = int(bad.nonzero()[0, 0])
        a, b = got.detach().cpu().reshape(-1)[at], want.detach().cpu().reshape(-1)[at]
        floats = a.is_floating_point()
        numbers = floats and bool(a.isfinite()) and bool(b.isfinite())
        ulps = int(ulps_apart(a, b)) if numbers else None
        index = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)]
        where = {**where, "element": str(index)}
        apart = f" ({ulps} ulp)" if ulps is not None else ""
        finite = rung != "finite" or bool(b.isfinite())
        right = f"{format_bits(b)}{_special_value(b)}{apart}" if finite else "finite"
        self._fail(
            rule,
            rung,
            f"{self._place(name, where)}={format_bits(a)}{_special_value(a)}, but should be "
            f"{right}",
            where,
            got=format_bits(a),
            want=format_bits(b),
            ulps=ulps,
            differing=int(bad.sum()),
        )

    def _fail(self, rule: Rule, rung: Rung, sentence: str, where: Location, **values: Any) -> None:
        raise ParityBroken(Finding(rule=rule, rung=rung, where=where,
                                   sentence=f"{sentence} [{self.case.label}]", **values))

    @staticmethod
    def _place(name: str, where: Location) -> str:
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
