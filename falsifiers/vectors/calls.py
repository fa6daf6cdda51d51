"""A call of an op as tensors in and out, and a candidate whose every call is asked of someone.

What stands between a falsifier and a program in another language is this alone: the falsifier
calls a function, the function names the call by its content, and whoever answers hands tensors
back.
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
"""What an answer's metadata may say: the arithmetic it keeps, why it was not made, and why a call
cannot be made by anyone."""
OWN_ARITHMETIC = "own"
Outputs = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Call:
    """One call of an op; two calls with the same content are the same call."""

    op: str
    label: str
    """Its sizes in short, a part of its name."""
    facts: Mapping[str, str]
    """What an op needs to know beside tensors, such as a weight's type."""
    inputs: Mapping[str, Tensor]
    outputs: Outputs
    """Shapes of what it must answer, all f32."""
    files: tuple[Path, ...] = ()
    """Files that stand beside its own, named with their digests among the facts."""
    refusable: bool = False
    """Whether an answer may say why nobody could make it."""

    @cached_property
    def name(self) -> str:
        """The name of its files: the op, its sizes and a digest of all that it is given."""
        digest = hashlib.sha256(repr((self.op, sorted(self.facts.items()),
                                      sorted(self.outputs.items()))).encode())
        for name, x in self.inputs.items():
            digest.update(f"{name} {x.dtype} {list(x.shape)}".encode())
            digest.update(x.contiguous().view(torch.uint8).numpy().tobytes())
        return f"{self.op}-{self.label}-{digest.hexdigest()[:12]}"

    @property
    def metadata(self) -> dict[str, str]:
        """What the file of its inputs says beside tensors."""
        return {"op": self.op, **self.facts}

    @property
    def answer_bytes(self) -> int:
        """Bytes that its outputs take."""
        return sum(4 * torch.Size(shape).numel() for shape in self.outputs.values())


class CallRefused(Exception):
    """An answer says that a call cannot be made by anyone, and why."""


class Answerer(Protocol):
    """Whoever answers calls."""

    @property
    def arithmetic(self) -> str:
        """The arithmetic it declares; `own` when it says nothing."""

    def answer(self, call: Call) -> Mapping[str, Tensor]:
        """Return the call's outputs.

        Raises `ParityBroken` or `Declined` when there are none, `Refused` where the call may be.
        """


class ExternalOps:
    """A candidate with the functions of a phase, each call put to an answerer."""

    probe: ClassVar[Call] = Call(
        "gemv_rows", "probe", {"type": "Q4_K"},
        {"weights": torch.zeros(1, 144, dtype=torch.uint8), "x": torch.zeros(1, 256)},
        {"out": (1, 1)})
    """A call whose answer is read only for the arithmetic that it declares."""
    no_program_reason: ClassVar[str] = ""
    """Why a program that is started for every call cannot be judged; empty where it can."""

    def __init__(self, answerer: Answerer) -> None:
        self.answerer = answerer
        self.call_count = 0
        """Calls that were put so far."""

    @property
    def ARITHMETIC(self) -> str:  # noqa: N802 - a candidate's own word
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
        """Advance each row's state by its tokens; write what is read into out[t, V, 128]."""
        inputs = {"q": q, "k": k, "v": v, "g": g, "beta": beta}
        self._call_recurrent("delta_step", inputs, states, counts, out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Any, values: Any,
               lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
        """Append k and v to each row's cache and write gated attention into out[t, H, D]."""
        reach = [held + count if count else 0 for held, count in zip(lengths, counts, strict=True)]
        tensors = {"q": q, "k": k, "v": v, "gate": gate}
        given = {name: as_storable(x) for name, x in tensors.items()}
        given |= {"lengths": torch.tensor(lengths, dtype=torch.int32),
                  "counts": torch.tensor(counts, dtype=torch.int32),
                  "keys": _stack_caches(keys, reach), "values": _stack_caches(values, reach)}
        label = f"h{q.shape[1]}-g{k.shape[1]}-m{len(reach)}-t{len(out)}"
        shape = tuple(given["keys"].shape)
        call = Call("attend", label, {}, given,
                    {"out": tuple(out.shape), "keys": shape, "values": shape})
        answer = self._answer(call)
        out.copy_(answer["out"])
        for refs, caches in ((keys, answer["keys"]), (values, answer["values"])):
            for slot, held, n in zip(refs.slots, caches, reach, strict=True):
                if n:
                    refs.whole[slot][:n].copy_(held[:n])

    def _call_recurrent(
        self, op: str, inputs: Mapping[str, Tensor], refs: Any, counts: Sequence[int], out: Tensor
    ) -> None:
        """Put a call of a recurrent op, whose rows' states go along and come back."""
        views = refs.views
        states = as_storable(torch.stack(views))
        given = {name: as_storable(x) for name, x in inputs.items()}
        given |= {"counts": torch.tensor(counts, dtype=torch.int32), "states": states}
        label = f"{'x'.join(map(str, states.shape[1:]))}-m{len(views)}-t{len(out)}"
        call = Call(op, label, {}, given, {"out": tuple(out.shape), "states": tuple(states.shape)})
        answer = self._answer(call)
        out.copy_(answer["out"])
        for view, state in zip(views, answer["states"], strict=True):
            view.copy_(state)


def as_storable(x: Tensor) -> Tensor:
    """Return a tensor as a file can hold it."""
    return x.detach().cpu().contiguous()


def _stack_caches(refs: Any, reach: Sequence[int]) -> Tensor:
    """Return rows' caches [m, longest, ...] as far as each reaches, and poison beyond."""
    room = (len(reach), max(1, *reach), *refs.whole.shape[2:])
    caches = torch.full(room, torch.nan)
    for slot, held, n in zip(refs.slots, caches, reach, strict=True):
        if n:  # a row of no tokens has no slot to look at
            held[:n] = refs.whole[slot][:n].cpu()
    return caches


def read_arithmetic(path: Path, most: int) -> str | None:
    """Return the arithmetic that an answer declares, None for a declined one that declares none.

    Raises `UnreadableError` when there is no such answer.
    """
    told = read_tensors(path, most)[1]
    return told.get(ARITHMETIC, None if DECLINED in told else OWN_ARITHMETIC)


def read_answer(call: Call, path: Path, arithmetic: str) -> dict[str, Tensor]:
    """Return the outputs that a file holds for a call, held to their shapes and to f32.

    Raises `Declined` when the file says why it was not made, `Refused` when it says why a call that
    may be refused cannot be, and `ParityBroken` for a file that is missing, cannot be read, holds
    other tensors than were asked for, or was made in another arithmetic than the first was.
    """
    try:
        tensors, told = read_tensors(path, call.answer_bytes)
    except UnreadableError as error:
        raise_broken("crash", str(error))
    if DECLINED in told:
        raise Declined(f"{path.name}: {shorten_name(told[DECLINED]) or 'no reason given'}")
    if (other := told.get(ARITHMETIC, OWN_ARITHMETIC)) != arithmetic:
        raise_broken(
            "law",
            f"{path} declares the arithmetic '{shorten_name(other)}', but the first answer "
            f"declares '{shorten_name(arithmetic)}'",
        )
    if REFUSED in told:
        if call.refusable:
            raise CallRefused(shorten_name(told[REFUSED]))
        raise_broken(
            "law", f"{path} refuses a call that can be made: {shorten_name(told[REFUSED])}"
        )
    for name, shape in call.outputs.items():
        if name not in tensors:
            raise_broken("shape", f"{path} has no tensor {name!r}")
        if tuple(tensors[name].shape) != shape:
            raise_broken(
                "shape",
                f"{path}: {name} has shape {list(tensors[name].shape)}, but should "
                f"have {list(shape)}",
            )
        if tensors[name].dtype != torch.float32:
            raise_broken(
                "dtype",
                f"{path}: {name} has dtype {tensors[name].dtype}, but should have {torch.float32}",
            )
    if strays := tensors.keys() - call.outputs.keys():
        raise_broken(
            "shape", f"{path} has a tensor {shorten_name(min(strays))} that was not asked for"
        )
    return {name: tensors[name] for name in call.outputs}


def raise_broken(rung: Rung, sentence: str) -> NoReturn:
    """Raise the verdict on an answer that cannot be compared at all."""
    raise ParityBroken(Finding(rule="law", rung=rung, sentence=escape_non_utf8(sentence)))


class RecordingAnswerer:
    """An answerer that is right, and keeps what it was asked and by which case."""

    def __init__(self, arithmetic: str, right: Callable[[Call], dict[str, Tensor]]) -> None:
        self.arithmetic, self.reference_answer = arithmetic, right
        self.case = ""
        """The case that asks now."""
        self.calls: dict[str, RecordedCall] = {}

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Return the right outputs of a call."""
        kept = self.calls.setdefault(
            call.name, self.calls.get(call.name) or self._record_call(call)
        )
        kept.cases[self.case] = None
        if REFUSED in kept.answer_metadata:
            raise CallRefused(kept.answer_metadata[REFUSED])
        return kept.outputs

    def _record_call(self, call: Call) -> RecordedCall:
        try:
            return RecordedCall(call, self.reference_answer(call))
        except CallRefused as refused:
            return RecordedCall(call, {}, {REFUSED: str(refused)})


@dataclass(frozen=True)
class RecordedCall:
    """A call that was asked for, its right outputs, and the cases that asked."""

    call: Call
    outputs: dict[str, Tensor]
    answer_metadata: dict[str, str] = field(default_factory=dict)
    """What the answer says beside its arithmetic."""
    cases: dict[str, None] = field(default_factory=dict)
