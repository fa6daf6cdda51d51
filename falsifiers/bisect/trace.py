"""Record the tensors of each op of a step, as copies or digests, and compare two such records.

Two steps may report in different orders: one op for all tokens, or one token for all ops.
A trace therefore collects tokens by op and slot, and is read in the order of one of the two.
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
"""Ops that a batched step runs only for the last token of a row."""
OUTPUT = "output"
OpSlot = tuple[str, int]
"""An op's id and its slot."""


def clone_tokens(x: Tensor) -> list[Tensor]:
    """Return a copy of x[token, ...] for each token; a later op may overwrite x."""
    return list(x.detach().clone())


def digest_tokens(x: Tensor) -> list[bytes]:
    """Return a digest of x[token, ...] for each token: dtype, shape and bits."""
    form = f"{x.dtype} {list(x.shape[1:])}".encode()
    bits = as_bits(x)
    bits = bits.to(torch.uint8) if bits.dtype == torch.bool else bits.contiguous()
    return [hashlib.blake2b(form + token.tobytes(), digest_size=16).digest()
            for token in bits.numpy()]


def digest_tensor(x: Tensor) -> bytes:
    """Return one digest of a tensor: dtype, shape and bits."""
    return digest_tokens(x.unsqueeze(0))[0]


@dataclass
class Trace:
    """A sink that stores the tensors of each report."""

    store: Callable[[Tensor], list[Any]] = clone_tokens
    """Turns a tensor into one stored value for each token."""
    only: OpSlot | None = None
    """The one op and slot to store, or None for all."""
    order: list[OpSlot] = field(default_factory=list)
    """Ops and slots, in the order of their first report."""
    reports: dict[OpSlot, dict[str, list[Any]]] = field(default_factory=dict)
    """Stored values by name (`input 0`, `output`), token after token."""

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Store one report."""
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
            self.reports[key].setdefault(name, []).extend(self.store(x))

    def tensors_of(self, key: OpSlot) -> dict[str, list[Any]]:
        """Return the stored values of an op and slot; for `LAST_ONLY` ops, of the last token."""
        cut = slice(-1, None) if key[0] in LAST_ONLY else slice(None)
        return {name: tokens[cut] for name, tokens in self.reports[key].items()}

    def missing_keys(self, other: Trace) -> list[OpSlot]:
        """Return the ops and slots that only the other trace has."""
        return [key for key in other.order if key not in self.reports]


def assert_traces_equal(judge: Judge, got: Trace, want: Trace, **where: int | str) -> None:
    """Compare every op's inputs and output with the other trace's, in the order of `got`.

    The judge raises at the first tensor that differs.
    """
    missing = got.missing_keys(want)
    op, slot = missing[0] if missing else ("", "")
    judge.law(not missing, f"the step reports no {op} for slot {slot}")
    for key in got.order:
        at = {"op": key[0], "slot": key[1], **where}
        judge.law(key in want.reports, f"the step reports {key[0]} for slot {key[1]}, which the "
                  f"other step does not run")
        right = want.tensors_of(key)
        for name, tokens in got.tensors_of(key).items():
            judge.equal(name, torch.stack(tokens), torch.stack(right[name]), rule="truth",
                        **at)  # type: ignore[arg-type]
