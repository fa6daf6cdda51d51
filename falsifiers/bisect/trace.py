"""What a step reported, op by op, kept whole or as digests, and held to another step's report.

Two steps may report in different orders: one op for all tokens, or one token for all ops. So a
trace is gathered by op and slot, token by token, and read in the order of one of the two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from falsifiers.judging.judge import Judge, as_bits

LAST_ONLY = ("output_norm", "head")
"""Ops that a batched step runs for the last token of a row alone."""
OUTPUT = "output"
OpSlot = tuple[str, int]
"""An op's id and its slot."""


def clone_tokens(x: Tensor) -> list[Tensor]:
    """Return a copy of each token's part of x[tokens, ...]; an op may overwrite what it read."""
    return list(x.detach().clone())


def digest_tokens(x: Tensor) -> list[bytes]:
    """Return a digest of each token's part of x[tokens, ...]: dtype, shape and bits."""
    form = f"{x.dtype} {list(x.shape[1:])}".encode()
    return [hashlib.blake2b(form + part.tobytes(), digest_size=16).digest()
            for part in _hashable_bits(as_bits(x)).numpy()]


def digest_tensor(x: Tensor) -> bytes:
    """Return the digest of a tensor as one thing."""
    return digest_tokens(x.unsqueeze(0))[0]


def _hashable_bits(bits: Tensor) -> Tensor:
    return bits.contiguous() if bits.dtype != torch.bool else bits.to(torch.uint8)


@dataclass
class Trace:
    """A sink that keeps what it is told, `keep` saying how."""

    keep: Callable[[Tensor], list[Any]] = clone_tokens
    only: OpSlot | None = None
    """The one op and slot to keep, or None for all."""
    order: list[OpSlot] = field(default_factory=list)
    """Ops and slots, in the order of their first report."""
    reports: dict[OpSlot, dict[str, list[Any]]] = field(default_factory=dict)
    """What was kept: by name (`input 0`, `output`), token after token."""

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take one report."""
        key = (op, slot)
        if self.only not in (None, key):
            return
        if key not in self.reports:
            self.order.append(key)
            self.reports[key] = {}
        if op.endswith(".gates"):  # decay and strength, then tokens
            output = output.transpose(0, 1)
        named = {**{f"input {i}": x for i, x in enumerate(inputs)}, OUTPUT: output}
        for name, x in named.items():
            self.reports[key].setdefault(name, []).extend(self.keep(x))

    def tensors_of(self, key: OpSlot) -> dict[str, list[Any]]:
        """Return what was kept of an op and slot, of the last token alone where only it counts."""
        cut = slice(-1, None) if key[0] in LAST_ONLY else slice(None)
        return {name: tokens[cut] for name, tokens in self.reports[key].items()}

    def missing_keys(self, other: Trace) -> list[OpSlot]:
        """Return what the other trace has and this one has not."""
        return [key for key in other.order if key not in self.reports]


def assert_traces_equal(judge: Judge, got: Trace, want: Trace, **where: int | str) -> None:
    """Hold every op's inputs and output to the other trace's, in the order of `got`.

    The first that differs is the first place where the two steps part.
    """
    lost = got.missing_keys(want)
    judge.law(not lost, f"the step reports no {lost[0][0] if lost else ''} for slot "
              f"{lost[0][1] if lost else ''}")
    for key in got.order:
        at = {"op": key[0], "slot": key[1], **where}
        judge.law(key in want.reports, f"the step reports {key[0]} for slot {key[1]}, which the "
                  f"other step does not run")
        right = want.tensors_of(key)
        for name, tokens in got.tensors_of(key).items():
            judge.equal(name, torch.stack(tokens), torch.stack(right[name]), rule="truth",
                        **at)  # type: ignore[arg-type]
