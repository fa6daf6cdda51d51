"""The report of a bisection: where a batch first differs from its solo rows, and the values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from falsifiers.bisect.trace import digest_tokens
from falsifiers.judging.judge import as_bits, format_bits, ulps_apart

Mode = Literal["reported", "silent", "greedy"]
"""How steps run: reporting their ops, silently, or silently with greedy runs after each."""
MODES: tuple[Mode, ...] = get_args(Mode)
STATE_WRITERS = {"conv": "conv_step", "delta": "delta_step", "k": "attend", "v": "attend"}
"""The op that writes each kind of state."""
CONTEXT_VALUES = 2
"""Values shown on either side of the first that differs."""


@dataclass(frozen=True)
class Location:
    """Where digests first differ."""

    step: int
    kind: str
    """`output`, `input`, `state`, `stray`, `logits`, `handed`, `choice`, `run` or `refusal`.

    `stray`: the step wrote a slot that it does not name. `handed`: the step overwrote logits that
    an earlier step returned. The last three are checked after the step: argmax, a greedy run from
    there, and input that must be refused.
    """
    op: str
    """Its id (`3.project.attn_qkv`)."""
    slot: int
    name: str
    """The tensor: `output`, `input 0`, a state's name (`3.delta`) or `logits of step 2`."""


@dataclass(frozen=True)
class ValueDiff:
    """The first element that differs, and the values around it."""

    element: list[int]
    """Its index; for inputs and outputs the first number is the token within the row."""
    got: str
    want: str
    ulps: int | None
    differing: int
    of: int
    first_shown: int
    """The flat index of the first value in `got_around`."""
    got_around: list[float]
    want_around: list[float]


@dataclass(frozen=True)
class Report:
    """The result of a bisection."""

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
    """None when the divergence did not repeat, or when the shapes differ."""
    note: str = ""
    stray: list[str] = field(default_factory=list)
    """State that the step wrote in slots that it does not name."""
    healed_by: list[str] = field(default_factory=list)
    """Ops that, swapped back together, leave no divergence."""
    seen: Mode = "reported"
    """The mode in which the steps differ; they agree in the modes before it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        flat = asdict(self)
        if self.place is not None:
            layer, op = split_op_id(self.place.op)
            flat["place"] |= {"layer": layer, "op": op, "id": self.place.op}
        if self.values is not None:
            for name in ("got_around", "want_around"):  # JSON has no NaN and no infinity
                flat["values"][name] = [x if math.isfinite(x) else str(x)
                                        for x in getattr(self.values, name)]
        return {"diverged": self.place is not None, **flat}


@dataclass(frozen=True)
class ReturnedLogits:
    """The logits f32[m, vocab] that a step returned (no copy), and their digests at that time."""

    step: int
    slots: tuple[int, ...]
    logits: Tensor
    digests: list[bytes]

    def find_overwritten(self, number: int) -> Location | None:
        """Return the first row whose logits changed, seen after step `number`."""
        rows = zip(self.slots, digest_tokens(self.logits), self.digests, strict=True)
        return next((Location(number, "handed", "logits", slot, f"logits of step {self.step}")
                     for slot, got, want in rows if got != want), None)


def split_op_id(op: str) -> tuple[int | None, str]:
    """Return an op's layer, None outside the layers, and its name without the layer."""
    head, _, rest = op.partition(".")
    return (int(head), rest) if head.isdigit() else (None, op)


def state_writer(name: str) -> str:
    """Return the id of the op that writes a state, `3.delta` -> `3.delta_step`."""
    layer, kind = name.rsplit(".", 1)
    return f"{layer}.{STATE_WRITERS.get(kind, kind)}"


def suspect_ops(op: str) -> tuple[str, ...]:
    """Return the fields of a path that run an op of that id."""
    name = split_op_id(op)[1]
    if name.endswith("_norm") and name != "gated_norm":
        return ("add_norm", "norm")
    return {"project": ("project", "project_all"), "head": ("project",),
            "norm": ("norm_rotate", "norm"), "rotate": ("norm_rotate", "rotate")}.get(
        name.split(".")[0], (name.split(".")[0],))


def diff_values(got: Tensor, want: Tensor) -> tuple[ValueDiff | None, str]:
    """Return the first element that differs, or None and the reason why there is none."""
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.shape != want.shape or got.dtype != want.dtype:
        return None, (f"it is {got.dtype} {list(got.shape)}, but should be {want.dtype} "
                      f"{list(want.shape)}")
    bad = (as_bits(got) != as_bits(want)).flatten()
    if not bool(bad.any()):
        return None, "a second run from the start did not differ: state survives between runs"
    at = int(bad.nonzero()[0, 0])
    a, b = got.reshape(-1), want.reshape(-1)
    low, high = max(0, at - CONTEXT_VALUES), at + CONTEXT_VALUES + 1
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), got.shape)]
    return ValueDiff(index, format_bits(a[at]), format_bits(b[at]),
                     int(ulps_apart(a[at], b[at])) if a.is_floating_point() else None,
                     int(bad.sum()), len(bad), low, a[low:high].tolist(), b[low:high].tolist()), ""
