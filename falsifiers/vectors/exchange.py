"""Export and check directories of vectors; both run a phase's falsifiers.

Export runs the falsifiers over a correct candidate and records every call. Check runs them over a
candidate that reads each call's answer from the directory. Both compute the inputs of a call again
and name it by their digest, so only the outputs of a directory are trusted.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
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
from falsifiers.tensor_files.safetensors_file import (
    UnreadableError,
    byte_count,
    dtype_name,
    write_tensors,
)
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
"""Bytes of an answer that is read only for its declared arithmetic."""


@dataclass(frozen=True)
class VectorSet:
    """The cases of a phase for programs in other languages."""

    contract: Contract
    cases: tuple[Case, ...]
    attacks: Mapping[str, Attack]
    """The phase's falsifiers, by id."""
    reference_answer: Callable[[Call], dict[str, Tensor]]
    """Answers a call as the engine does."""
    arithmetic: str
    """The arithmetic of those answers."""
    subject: Subject
    """The phase's path, into which a candidate's functions are put, and the test models."""
    ops_class: type[ExternalOps] = ExternalOps
    """The candidate class whose functions make the phase's calls."""


class VectorDirectory:
    """An answerer that reads answers from the outputs of a directory of vectors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.outputs = folder, folder / OUTPUTS
        self.manifest = forms.load_manifest(folder)
        self.names = {entry.name for entry in self.manifest.calls}
        if self.outputs.is_symlink():
            raise SuiteError(f"{self.outputs} is a symbolic link, which is not followed")
        if not self.outputs.is_dir() or not any(self.outputs.iterdir()):
            raise SuiteError(f"{self.outputs} is empty: run a program that answers the calls of "
                             f"{folder / INPUTS} first")
        extra = {path.stem for path in self.outputs.glob(tensor_file_name("*"))} - self.names
        if extra:
            raise SuiteError(f"{self.outputs} answers {shorten_name(min(extra))}, which is no call "
                             f"of the manifest: remove that file")

    @cached_property
    def arithmetic(self) -> str:
        """The arithmetic of the first answer that can be read and is not declined."""
        for entry in self.manifest.calls:
            path = self.outputs / tensor_file_name(entry.name)
            size = sum(byte_count("F32", form.shape) for form in entry.outputs.values())
            try:
                declared = read_arithmetic(path, min(size, MAX_PROBE_BYTES))
            except UnreadableError:
                continue
            if declared is not None:
                return declared
        return OWN_ARITHMETIC

    def answer(self, call: Call) -> dict[str, Tensor]:
        """Return a call's outputs from the directory; raise as `read_answer` does."""
        if call.name not in self.names:
            raise SuiteError(f"{self.folder} does not have the call {call.name}: it is from "
                             f"another version, so export a new one")
        return read_answer(call, self.outputs / tensor_file_name(call.name), self.arithmetic)


def tensor_file_name(name: str) -> str:
    """Return the file name of a call's tensors."""
    return f"{name}.safetensors"


def export(folder: Path, vectors: VectorSet) -> Manifest:
    """Write every call of the cases and its expected outputs into a new or empty directory."""
    with write_atomically(folder, MANIFEST_NAME) as directory:
        recorded = record_calls(vectors)
        for name in (INPUTS, EXPECTED, OUTPUTS):
            (directory / name).mkdir()
        for name, entry in recorded.items():
            file_name = tensor_file_name(name)
            write_tensors(directory / INPUTS / file_name, entry.call.inputs, entry.call.metadata)
            write_tensors(directory / EXPECTED / file_name, entry.outputs,
                          {calls.ARITHMETIC: vectors.arithmetic, **entry.answer_metadata})
        for file in {file for entry in recorded.values() for file in entry.call.files}:
            shutil.copyfile(file, directory / INPUTS / file.name)
        manifest = build_manifest(recorded, vectors)
        (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=1) + "\n",
                                               encoding="utf-8")
    return manifest


def record_calls(vectors: VectorSet) -> dict[str, RecordedCall]:
    """Run the cases over reference answers, declared and as `own`; return every call by name."""
    recorded: dict[str, RecordedCall] = {}
    for arithmetic in (vectors.arithmetic, OWN_ARITHMETIC):
        recorder = RecordingAnswerer(arithmetic, vectors.reference_answer)
        recorder.calls = recorded
        candidate = Candidate("the engine", vectors.ops_class(recorder))
        for case in vectors.cases:
            recorder.case = case.id
            verdict = judge_case(case, candidate, vectors, "")
            if verdict.outcome != "passed" and not (
                    arithmetic == OWN_ARITHMETIC and verdict.outcome == "declined"):
                reason = verdict.finding.sentence if verdict.finding else verdict.reason
                raise SuiteError(f"{case.id} does not pass over the engine's answers: {reason}")
    return recorded


def build_manifest(recorded: Mapping[str, RecordedCall], vectors: VectorSet) -> Manifest:
    """Return the manifest of recorded calls."""
    parity = vectors.contract.parity
    entries = tuple(
        forms.CallEntry(name=name, op=entry.call.op, facts=dict(entry.call.facts),
                        cases=tuple(entry.cases), inputs=_tensor_forms(entry.call.inputs),
                        outputs=_tensor_forms(entry.outputs))
        for name, entry in recorded.items())
    return Manifest(phase=vectors.contract.phase, claim=vectors.contract.claim.strip(),
                    arithmetic=vectors.arithmetic, calls=entries,
                    rules=forms.Rules(twin=parity.twin, truth=_to_bounds(parity.truth),
                                      own=None if parity.own is None else _to_bounds(parity.own)))


def _tensor_forms(tensors: Mapping[str, Tensor]) -> dict[str, forms.TensorForm]:
    return {name: forms.TensorForm.model_validate(
        {"dtype": dtype_name(x), "shape": tuple(x.shape)}) for name, x in tensors.items()}


def _to_bounds(rule: Any) -> Any:
    return forms.Bounds(cosine=rule.cosine, norm=rule.norm) if isinstance(rule, Budget) else rule


def check(folder: Path, vectors: VectorSet,
          show_progress: Callable[[str], None] = lambda case: None) -> list[Verdict]:
    """Judge the outputs of a directory; return one verdict for each case."""
    name = escape_non_utf8(str(folder))  # a verdict must be UTF-8
    candidate = Candidate(f"vectors:{name}", vectors.ops_class(VectorDirectory(folder)))
    check_arithmetic(candidate.name, candidate.arithmetic)
    repro = f"rowtwin vectors check {shlex.quote(name)}"
    verdicts = []
    for case in vectors.cases:
        verdicts.append(judge_case(case, candidate, vectors, repro))
        show_progress(case.id)
    return verdicts


def judge_case(case: Case, candidate: Candidate, vectors: VectorSet, repro: str) -> Verdict:
    """Run one case over a candidate and return the verdict."""
    judge, started, error = Judge(case), time.perf_counter(), None
    path = vectors.subject.path
    ops = {f.name: op for f in fields(path) if (op := candidate.op(f.name))}
    subject = replace(vectors.subject, name=candidate.name, path=replace(path, **ops),
                      candidate=candidate)
    before = candidate.target.call_count
    try:
        vectors.attacks[case.falsifier](case=case, subject=subject, judge=judge)
        if candidate.target.call_count == before:
            raise SuiteError("the case made no call")
    except Exception as exception:
        error = exception
    return make_verdict(case, error, judge, subject=candidate.name, repro=repro,
                                seconds=time.perf_counter() - started)
