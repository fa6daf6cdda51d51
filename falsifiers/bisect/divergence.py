"""What a bisection tells: the place where a batch parts from its rows alone, and its values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from falsifiers.judging.judge import as_bits, format_bits, ulps_apart

Mode = Literal["reported", "silent", "greedy"]
"""Steps report their ops, do not, or do not and are followed by greedy runs."""
MODES: tuple[Mode, ...] = get_args(Mode)
CONTEXT_VALUES = 2
"""Values shown on either side of the first that differs."""


@dataclass(frozen=True)
class Location:
    """Where digests first differ."""

    step: int
    kind: str
    """`output`, `input`, `state`, `stray`, `logits`, `handed`, `choice`, `run` or `refusal`.

    A slot that the step does not name is `stray`; `handed` is what an earlier step returned and
    this one overwrote. The last three stand behind the step: argmax chooses, a greedy run goes on
    from there, and what cannot run is refused.
    """
    op: str
    """Its id (`3.project.attn_qkv`)."""
    slot: int
    name: str
    """What of it: `output`, `input 0`, a state's name (`3.delta`) or `logits of step 2`."""


@dataclass(frozen=True)
class ValueDiff:
    """The first element that differs, and what stands around it."""

    element: list[int]
    """Its index; of inputs and outputs the first is the token of the row."""
    got: str
    want: str
    ulps: int | None
    differing: int
    of: int
    first_shown: int
    """The flat index of the first of the values around."""
    got_around: list[float]
    want_around: list[float]


@dataclass(frozen=True)
class Report:
    """What a bisection found."""

    path: str
    against: str
    steps: int
    compared: int
    """Digests compared."""
    not_compared: list[str]
    """Ops that only one of the two reports."""
    place: Location | None = None
    row: int | None = None
    values: ValueDiff | None = None
    """None when it did not repeat, or when the shapes differ."""
    note: str = ""
    stray: list[str] = field(default_factory=list)
    """State of slots not named in the step, written by it all the same."""
    healed_by: list[str] = field(default_factory=list)
    """Ops that, swapped back together, leave no divergence."""
    seen: Mode = "reported"
    """How the steps were run in which it parts; all ways before it agree."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON would have it."""
        flat = asdict(self)
        if self.place is not None:
            layer, op = split_op_id(self.place.op)
            flat["place"] |= {"layer": layer, "op": op, "id": self.place.op}
        if self.values is not None:
            for name in ("got_around", "want_around"):  # JSON has no NaN and no infinity
                flat["values"][name] = [x if math.isfinite(x) else str(x)
                                        for x in getattr(self.values, name)]
        return {"diverged": self.place is not None, **flat}


def split_op_id(op: str) -> tuple[int | None, str]:
    """Return the layer of an op's id, None outside the layers, and the rest of it."""
    head, _, rest = op.partition(".")
    return (int(head), rest) if head.isdigit() else (None, op)


def diff_values(got: Tensor, want: Tensor) -> tuple[ValueDiff | None, str]:
    """Return the first element that differs, or None and why there is none to show."""
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.shape != want.shape or got.dtype != want.dtype:
        return None, (f"it is {got.dtype} {list(got.shape)}, but should be {want.dtype} "
                      f"{list(want.shape)}")
    bad = (as_bits(got) != as_bits(want)).flatten()
    if not bool(bad.any()):
        return None, "run again from the start it did not repeat: something is kept between runs"
    at = int(bad.nonzero()[0, 0])
    a, b = got.reshape(-1), want.reshape(-1)
    low, high = max(0, at - CONTEXT_VALUES), at + CONTEXT_VALUES + 1
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)]
    return ValueDiff(index, format_bits(a[at]), format_bits(b[at]),
                  int(ulps_apart(a[at], b[at])) if a.is_floating_point() else None,
                  int(bad.sum()), len(bad), low, a[low:high].tolist(), b[low:high].tolist()), ""
