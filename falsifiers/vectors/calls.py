"""A call of an op as input and output tensors, and a candidate that sends calls to an answerer.

A falsifier calls a function of the candidate. The function builds a call, named by its content,
and an answerer (a directory of files, or a program) returns the output tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import torch
from torch import Tensor

from falsifiers.console.cli_app import escape_non_utf8
from falsifiers.judging.errors import Declined, ParityBroken, shorten_name
from falsifiers.judging.verdict import Finding, Rung
from falsifiers.tensor_files.safetensors_file import UnreadableError, read_tensors

ARITHMETIC, DECLINED, REFUSED = "arithmetic", "declined", "refused"
"""Keys of an answer's metadata: its arithmetic, why it has no tensors, and why the call is
invalid."""
OWN_ARITHMETIC = "own"
Outputs = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Call:
    """One call of an op; calls with the same content have the same name."""

    op: str
    label: str
    """Its sizes, as a part of the name."""
    facts: Mapping[str, str]
    """What the op needs besides tensors, such as a weight's type."""
    inputs: Mapping[str, Tensor]
    outputs: Outputs
    """Shapes of the outputs, all f32."""
    files: tuple[Path, ...] = ()
    """Files next to its own; the facts have their names and digests."""
    refusable: bool = False
    """Whether an answer may refuse the call as invalid."""

    @cached_property
    def name(self) -> str:
        """The name of its files: the op, its sizes and a digest of all inputs."""
        digest = hashlib.sha256(repr((self.op, sorted(self.facts.items()),
                                      sorted(self.outputs.items()))).encode())
        for name, x in self.inputs.items():
            digest.update(f"{name} {x.dtype} {list(x.shape)}".encode())
            digest.update(x.contiguous().view(torch.uint8).numpy().tobytes())
        return f"{self.op}-{self.label}-{digest.hexdigest()[:12]}"

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of its input file."""
        return {"op": self.op, **self.facts}

    @property
    def answer_bytes(self) -> int:
        """Bytes that its outputs take."""
        return sum(4 * torch.Size(shape).numel() for shape in self.outputs.values())


class CallRefused(Exception):
    """An answer refuses a call as invalid; the message is its reason."""


class Answerer(Protocol):
    """Answers calls."""

    @property
    def arithmetic(self) -> str:
        """The arithmetic it declares, else `own`."""

    def answer(self, call: Call) -> Mapping[str, Tensor]:
        """Return the call's outputs.

        Raises `ParityBroken` or `Declined` when there are none, and `CallRefused` when a refusable
        call is refused.
        """


class ExternalOps:
    """A candidate with the functions of a phase, each of which sends a call to an answerer."""

    probe: ClassVar[Call] = Call(
        "gemv_rows", "probe", {"type": "Q4_K"},
        {"weights": torch.zeros(1, 144, dtype=torch.uint8), "x": torch.zeros(1, 256)},
        {"out": (1, 1)})
    """A call whose answer is read only for its declared arithmetic."""
    no_program_reason: ClassVar[str] = ""
    """Why a program that starts for every call cannot be judged; empty if it can."""

    def __init__(self, answerer: Answerer) -> None:
        self.answerer = answerer
        self.call_count = 0
        """Calls so far."""

    @property
    def ARITHMETIC(self) -> str:  # noqa: N802 - the name that candidates define
        """The answerer's arithmetic."""
        return self.answerer.arithmetic

    def _answer(self, call: Call) -> Mapping[str, Tensor]:
        self.call_count += 1
        return self.answerer.answer(call)

    def gemv_rows(self, weight: Any, x: Tensor, out: Tensor) -> None:
        """Write W x for every row of x f32[m, K] into out f32[m, N]."""
        label = f"{weight.kind}-n{weight.n}-k{weight.k}-m{len(x)}"
        inputs = {"weights": torch.tensor(weight.raw), "x": as_storable(x)}
        call = Call("gemv_rows", label, {"type": weight.kind}, inputs, {"out": tuple(out.shape)})
        out.copy_(self._answer(call)["out"])

    def conv_step(self, x: Tensor, taps: Tensor, windows: Any, counts: Sequence[int],
                  out: Tensor) -> None:
        """Write the convolution of x[t, C] into out[t, C] and shift each row's window."""
        self._call_recurrent("conv_step", {"x": x, "taps": taps}, windows, counts, out)

    def delta_step(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Any,
                   counts: Sequence[int], out: Tensor) -> None:
        """Advance each row's state by its tokens; write the outputs into out[t, V, 128]."""
        inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        self._call_recurrent("delta_step", inputs, states, counts, out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Any, values: Any,
               lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
        """Append k and v to each row's cache and write gated attention into out[t, H, D]."""
        ends = [length + count if count else 0
                for length, count in zip(lengths, counts, strict=True)]
        inputs = as_storables(q=q, k=k, v=v, gate=gate)
        inputs |= {"lengths": as_int32(lengths), "counts": as_int32(counts),
                   "keys": _stack_caches(keys, ends), "values": _stack_caches(values, ends)}
        label = f"h{q.shape[1]}-g{k.shape[1]}-m{len(ends)}-t{len(out)}"
        shape = tuple(inputs["keys"].shape)
        call = Call("attend", label, {}, inputs,
                    {"out": tuple(out.shape), "keys": shape, "values": shape})
        answer = self._answer(call)
        out.copy_(answer["out"])
        for refs, caches in ((keys, answer["keys"]), (values, answer["values"])):
            for slot, cache, n in zip(refs.slots, caches, ends, strict=True):
                if n:
                    refs.all_slots[slot][:n].copy_(cache[:n])

    def _call_recurrent(self, op: str, tensors: Mapping[str, Tensor], refs: Any,
                        counts: Sequence[int], out: Tensor) -> None:
        """Call a recurrent op with the rows' states, and write back the states it returns."""
        views = refs.views
        states = as_storable(torch.stack(views))
        inputs = as_storables(**tensors) | {"counts": as_int32(counts), "states": states}
        label = f"{'x'.join(map(str, states.shape[1:]))}-m{len(views)}-t{len(out)}"
        call = Call(op, label, {}, inputs, {"out": tuple(out.shape), "states": tuple(states.shape)})
        answer = self._answer(call)
        out.copy_(answer["out"])
        for view, state in zip(views, answer["states"], strict=True):
            view.copy_(state)


def as_storable(x: Tensor) -> Tensor:
    """Return a tensor as safetensors can store it."""
    return x.detach().cpu().contiguous()


def as_storables(**tensors: Tensor) -> dict[str, Tensor]:
    """Return tensors by name, as safetensors can store them."""
    return {name: as_storable(x) for name, x in tensors.items()}


def as_int32(numbers: Sequence[int]) -> Tensor:
    """Return numbers as a tensor i32[n]."""
    return torch.tensor(numbers, dtype=torch.int32)


def _stack_caches(refs: Any, lengths: Sequence[int]) -> Tensor:
    """Return rows' caches [m, longest, ...] up to each length, with NaN after it."""
    caches = torch.full((len(lengths), max(1, *lengths), *refs.all_slots.shape[2:]), torch.nan)
    for slot, cache, n in zip(refs.slots, caches, lengths, strict=True):
        if n:  # a row without tokens may have no valid slot
            cache[:n] = refs.all_slots[slot][:n].cpu()
    return caches


def read_arithmetic(path: Path, most: int) -> str | None:
    """Return the arithmetic that an answer declares; None for a declined one that declares none.

    Raises `UnreadableError` when there is no readable answer.
    """
    metadata = read_tensors(path, most)[1]
    return metadata.get(ARITHMETIC, None if DECLINED in metadata else OWN_ARITHMETIC)


def read_answer(call: Call, path: Path, arithmetic: str) -> dict[str, Tensor]:
    """Return the outputs of a call from a file, after checking shapes and types.

    Raises `Declined` when the file declines the call, and `CallRefused` when it refuses a refusable
    call. Raises `ParityBroken` for a file that is missing or unreadable, that has other tensors
    than expected, or that declares another arithmetic than the first answer.
    """
    try:
        tensors, metadata = read_tensors(path, call.answer_bytes)
    except UnreadableError as error:
        raise_broken("crash", str(error))
    if DECLINED in metadata:
        raise Declined(f"{path.name}: {shorten_name(metadata[DECLINED]) or 'no reason given'}")
    if (other := metadata.get(ARITHMETIC, OWN_ARITHMETIC)) != arithmetic:
        raise_broken("law", f"{path} declares the arithmetic '{shorten_name(other)}', but the "
                            f"first answer declares '{shorten_name(arithmetic)}'")
    if REFUSED in metadata:
        reason = shorten_name(metadata[REFUSED])
        if call.refusable:
            raise CallRefused(reason)
        raise_broken("law", f"{path} refuses a valid call: {reason}")
    for name, shape in call.outputs.items():
        if name not in tensors:
            raise_broken("shape", f"{path} has no tensor {name!r}")
        x = tensors[name]
        if tuple(x.shape) != shape:
            raise_broken("shape", f"{path}: {name} has shape {list(x.shape)}, but should have "
                                  f"{list(shape)}")
        if x.dtype != torch.float32:
            raise_broken("dtype", f"{path}: {name} has dtype {x.dtype}, but should have "
                                  f"{torch.float32}")
    if extra := tensors.keys() - call.outputs.keys():
        raise_broken("shape", f"{path} has an unexpected tensor {shorten_name(min(extra))}")
    return {name: tensors[name] for name in call.outputs}


def raise_broken(rung: Rung, sentence: str) -> NoReturn:
    """Raise `ParityBroken` for an answer that cannot be compared."""
    raise ParityBroken(Finding(rule="law", rung=rung, sentence=escape_non_utf8(sentence)))


class RecordingAnswerer:
    """A correct answerer that records every call and the cases that make it."""

    def __init__(self, arithmetic: str,
                 reference_answer: Callable[[Call], dict[str, Tensor]]) -> None:
        self.arithmetic, self.reference_answer = arithmetic, reference_answer
        self.case = ""
        """The case that runs now."""
        self.calls: dict[str, RecordedCall] = {}

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Return the reference outputs of a call."""
        if call.name not in self.calls:
            self.calls[call.name] = self._record_call(call)
        recorded = self.calls[call.name]
        recorded.cases[self.case] = None
        if REFUSED in recorded.answer_metadata:
            raise CallRefused(recorded.answer_metadata[REFUSED])
        return recorded.outputs

    def _record_call(self, call: Call) -> RecordedCall:
        try:
            return RecordedCall(call, self.reference_answer(call))
        except CallRefused as refused:
            return RecordedCall(call, {}, {REFUSED: str(refused)})


@dataclass(frozen=True)
class RecordedCall:
    """A call, its reference outputs, and the cases that make it."""

    call: Call
    outputs: dict[str, Tensor]
    answer_metadata: dict[str, str] = field(default_factory=dict)
    """The answer's metadata besides its arithmetic."""
    cases: dict[str, None] = field(default_factory=dict)
