"""Directories of vectors: written by running a phase's falsifiers, and judged by the same.

Export runs the falsifiers over a right candidate and keeps every call they make. Check runs them
over a candidate that finds each call's answer in the directory. What a call is given is made anew
both times and named by its content, so nothing in the directory but its outputs is believed.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from torch import Tensor

from contracts.schema import Budget, Case, Contract
from falsifiers.console.atomic_directory import write_atomically
from falsifiers.console.cli_app import escape_non_utf8
from falsifiers.gate.candidates import Candidate, check_arithmetic
from falsifiers.judging.errors import SuiteError, shorten_name
from falsifiers.judging.judge import Judge
from falsifiers.judging.matrix import Attack
from falsifiers.judging.subject import Subject
from falsifiers.judging.verdict import Verdict, make_verdict
from falsifiers.tensor_files.safetensors_file import UnreadableError, write_tensors
from falsifiers.vectors import calls
from falsifiers.vectors import manifest as forms
from falsifiers.vectors.calls import (
    OWN_ARITHMETIC,
    Call,
    ExternalOps,
    RecordedCall,
    RecordingAnswerer,
    read_answer,
    read_arithmetic,
)
from falsifiers.vectors.manifest import EXPECTED, INPUTS, MANIFEST_NAME, OUTPUTS, Manifest

MAX_PROBE_BYTES = 1 << 28
"""Bytes of an answer that is read only for what it declares."""


@dataclass(frozen=True)
class VectorSet:
    """What a phase asks of programs in other languages; whoever wires the suite hands it over."""

    contract: Contract
    cases: tuple[Case, ...]
    attacks: Mapping[str, Attack]
    """The phase's falsifiers, by id."""
    reference_answer: Callable[[Call], dict[str, Tensor]]
    """Answers a call as the engine does."""
    arithmetic: str
    """The arithmetic of those answers."""
    subject: Subject
    """The phase's own path, in which a candidate's functions stand, and the test models."""
    ops_class: type[ExternalOps] = ExternalOps
    """Has the functions that the phase's calls are made through."""


class VectorDirectory:
    """An answerer that finds answers among the outputs of a directory of vectors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outputs = folder, folder / OUTPUTS
        self.manifest = forms.load_manifest(folder)
        self.names = {entry.name for entry in self.manifest.calls}
        if self.outputs.is_symlink():
            raise SuiteError(f"{self.outputs} is a symbolic link, which is not followed")
        if not self.outputs.is_dir() or not any(self.outputs.iterdir()):
            raise SuiteError(f"{self.outputs} is empty: nothing has answered these calls yet")
        strays = {path.stem for path in self.outputs.glob(tensor_file_name("*"))} - self.names
        if strays:
            raise SuiteError(f"{self.outputs} answers a call that was not asked, "
                             f"{shorten_name(min(strays))}")

    @cached_property
    def arithmetic(self) -> str:
        """The arithmetic that the first answer that was made and can be read declares."""
        for entry in self.manifest.calls:
            size = sum(4 * prod(max(0, n) for n in form.shape) for form in entry.outputs.values())
            try:
                told = read_arithmetic(
                    self.outputs / tensor_file_name(entry.name), min(size, MAX_PROBE_BYTES)
                )
            except UnreadableError:
                continue
            if told is not None:
                return told
        return OWN_ARITHMETIC

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Return what the directory holds for a call."""
        if call.name not in self.names:
            raise SuiteError(f"{self.folder} does not hold the call {call.name}; `rowtwin vectors "
                             f"check` asks only for what a directory of this version holds")
        return read_answer(call, self.outputs / tensor_file_name(call.name), self.arithmetic)


def tensor_file_name(name: str) -> str:
    """Return the file name of a call's tensors."""
    return f"{name}.safetensors"


def export(folder: Path, wanted: VectorSet) -> Manifest:
    """Write every call of the cases and its expected outputs into a new or empty directory."""
    with write_atomically(folder, MANIFEST_NAME) as part:
        kept = record_calls(wanted)
        for name in (INPUTS, EXPECTED, OUTPUTS):
            (part / name).mkdir()
        for name, one in kept.items():
            write_tensors(
                part / INPUTS / tensor_file_name(name), one.call.inputs, one.call.metadata
            )
            write_tensors(part / EXPECTED / tensor_file_name(name), one.outputs,
                  {calls.ARITHMETIC: wanted.arithmetic, **one.answer_metadata})
        for file in {file for one in kept.values() for file in one.call.files}:
            shutil.copyfile(file, part / INPUTS / file.name)
        made = build_manifest(kept, wanted)
        (part / MANIFEST_NAME).write_text(made.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return made


def record_calls(wanted: VectorSet) -> dict[str, RecordedCall]:
    """Run the cases over right answers, declared and as somebody's own; return every call."""
    kept: dict[str, RecordedCall] = {}
    for arithmetic in (wanted.arithmetic, OWN_ARITHMETIC):
        recorder = RecordingAnswerer(arithmetic, wanted.reference_answer)
        recorder.calls = kept
        for case in wanted.cases:
            recorder.case = case.id
            verdict = judge_case(
                case, Candidate("the engine", wanted.ops_class(recorder)), wanted, ""
            )
            if verdict.outcome != "passed" and not (
                    arithmetic == OWN_ARITHMETIC and verdict.outcome == "declined"):
                told = verdict.finding.sentence if verdict.finding else verdict.reason
                raise SuiteError(f"{case.id} does not pass over the engine's answers: {told}")
    return kept


def build_manifest(kept: Mapping[str, RecordedCall], wanted: VectorSet) -> Manifest:
    """Return the manifest of calls that were kept."""
    parity = wanted.contract.parity
    entries = tuple(
        forms.CallEntry(
            name=name,
            op=one.call.op,
            facts=dict(one.call.facts),
            cases=tuple(one.cases),
            inputs={key: _tensor_form(x) for key, x in one.call.inputs.items()},
            outputs={key: _tensor_form(x) for key, x in one.outputs.items()},
        )
        for name, one in kept.items()
    )
    return Manifest(phase=wanted.contract.phase, claim=wanted.contract.claim.strip(),
                    arithmetic=wanted.arithmetic, calls=entries,
                    rules=forms.Rules(twin=parity.twin, truth=_to_bounds(parity.truth),
                                      own=None if parity.own is None else _to_bounds(parity.own)))


def _tensor_form(x: Tensor) -> forms.TensorForm:
    names = {"torch.uint8": "U8", "torch.int32": "I32", "torch.float32": "F32"}
    return forms.TensorForm.model_validate({"dtype": names[str(x.dtype)], "shape": tuple(x.shape)})


def _to_bounds(rule: Any) -> Any:
    return forms.Bounds(cosine=rule.cosine, norm=rule.norm) if isinstance(rule, Budget) else rule


def check(folder: Path, wanted: VectorSet,
          tell: Callable[[str], None] = lambda case: None) -> list[Verdict]:
    """Judge what a directory's outputs hold; one verdict a case."""
    name = escape_non_utf8(str(folder))  # a verdict keeps no bytes that are not UTF-8
    held = Candidate(f"vectors:{name}", wanted.ops_class(VectorDirectory(folder)))
    check_arithmetic(held.name, held.arithmetic)
    repro = f"rowtwin vectors check {shlex.quote(name)}"
    verdicts = []
    for case in wanted.cases:
        verdicts.append(judge_case(case, held, wanted, repro))
        tell(case.id)
    return verdicts


def judge_case(case: Case, candidate: Candidate, wanted: VectorSet, repro: str) -> Verdict:
    """Run one case over a candidate and return the verdict."""
    judge, started, error = Judge(case), time.perf_counter(), None
    path = wanted.subject.path
    own = {f.name: op for f in fields(path) if (op := candidate.op(f.name))}
    subject = replace(wanted.subject, name=candidate.name, path=replace(path, **own),
                      candidate=candidate)
    before = candidate.target.call_count
    try:
        wanted.attacks[case.falsifier](case=case, subject=subject, judge=judge)
        if candidate.target.call_count == before:
            raise SuiteError("it asked for no call")
    except Exception as ended:
        error = ended
    return make_verdict(case, error, judge, subject=candidate.name, repro=repro,
                            seconds=time.perf_counter() - started)
