"""The record of a run in a report's folder, and a reader for folders from any source."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from contracts.schema import Contract, Tier
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.gate.tiers import TIERS
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import KillMatrix
from falsifiers.judging.verdict import Record, Verdict
from falsifiers.tensor_files.safetensors_file import UnreadableError, read_bytes
from reports.evidence import Evidence

Parsed = TypeVar("Parsed", bound=BaseModel)
MAX_BYTES = 1 << 28
"""A larger file is refused unread."""


class RunRecord(Record):
    """One run of `rowtwin report`: what was judged, where, by which contracts, and the words."""

    format: Literal["rowtwin-run-1"] = "rowtwin-run-1"
    subject: str
    """`in-tree`, or the candidate as it was named."""
    command: str
    made: str
    exit_code: int = Field(ge=0, le=2)
    tiers: tuple[Tier, ...]
    """The tiers that left a verdict."""
    gpu: str = ""
    """The devices of the cuda tier, or empty where it left no verdict."""
    code: str = ""
    """The sha256 of the sources that decide a verdict."""
    contracts: dict[str, str]
    """By phase that was judged, the sha256 of the contract that judged it."""
    model: str = ""
    """The user's own file that was judged too, with its size, or empty."""
    results: tuple[PhaseResult, ...]
    environment: dict[str, str]


@dataclass(frozen=True)
class SavedRun:
    """A run as its folder keeps it."""

    name: str
    """The folder, as it was given."""
    run: RunRecord
    verdicts: Mapping[str, Verdict]
    """By case."""
    matrix: KillMatrix


def make_record(evidence: Evidence) -> RunRecord:
    """Return the record of a run."""
    found = {verdict.tier for verdict in evidence.verdicts}
    contracts = {result.phase: contract_digest(evidence.contracts[result.phase])
                 for result in evidence.results if result.phase in evidence.contracts}
    user_model = evidence.user_model
    return RunRecord(
        subject=_utf8_text(evidence.subject),
        command=_utf8_text(evidence.command),
        made=evidence.made,
        exit_code=evidence.exit_code,
        tiers=tuple(tier for tier in TIERS if tier in found),
        gpu=evidence.environment.get("GPU", "") if "cuda" in found else "",
        contracts=contracts,
        code=evidence.code,
        model=_utf8_text(f"{user_model.name}, {user_model.facts.get('size', '?')}")
        if user_model else "",
        results=tuple(evidence.judged_results),
        environment={key: _utf8_text(value) for key, value in evidence.environment.items()},
    )


def contract_digest(contract: Contract) -> str:
    """Return the digest of a contract's content, which ignores its file's layout."""
    return hashlib.sha256(contract.model_dump_json().encode()).hexdigest()


def _utf8_text(words: str) -> str:
    """Return a text with bytes that are not UTF-8 escaped."""
    return words.encode("utf-8", "backslashreplace").decode("utf-8")


def load_run(folder: Path) -> SavedRun:
    """Read a report's folder; raise `SuiteError` if it is no report or incomplete."""
    run = _parse_json(RunRecord, folder / "run.json", _read_file(folder / "run.json"))
    matrix = _parse_json(KillMatrix, folder / "mutants.json", _read_file(folder / "mutants.json"))
    path = folder / "verdicts.jsonl"
    lines = _read_file(path).split(b"\n")
    if lines.pop():
        raise SuiteError(f"{path}: its last line is cut off")
    verdicts: dict[str, Verdict] = {}
    for number, line in enumerate(lines, 1):
        verdict = _parse_json(Verdict, f"{path}:{number}", line)
        if verdict.case in verdicts:
            raise SuiteError(f"{path}:{number}: {verdict.case} is repeated")
        verdicts[verdict.case] = verdict
    _check_counts(folder, run.results, verdicts)
    return SavedRun(str(folder), run, verdicts, matrix)


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise SuiteError(f"{path.parent}: is no report, since it has no {path.name}: run "
                             f"rowtwin report --out {path.parent}")
        return read_bytes(path, MAX_BYTES)
    except UnreadableError as error:
        raise SuiteError(str(error)) from None
    except OSError as error:
        raise SuiteError(f"{path}: cannot be read: {error.strerror}") from None


def _parse_json(kind: type[Parsed], where: Path | str, data: bytes) -> Parsed:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise SuiteError(f"{where}: is not what a report wrote: {f'{at}: ' if at else ''}"
                         f"{first['msg']}") from None


def _check_counts(
    folder: Path, results: Sequence[PhaseResult], verdicts: Mapping[str, Verdict]
) -> None:
    """Refuse results that contradict the verdicts."""
    counts: dict[str, Counter[str]] = {result.phase: Counter() for result in results}
    for verdict in verdicts.values():
        counts.setdefault(verdict.phase, Counter())[verdict.outcome] += 1
    by_phase = {result.phase: result for result in results}
    for phase, found in counts.items():
        result = by_phase.get(phase)
        if result is None or any(getattr(result, word) != found[word] for word in (
                "passed", "failed", "error", "declined", "unmeasurable")):
            raise SuiteError(f"{folder}: run.json and verdicts.jsonl contradict each other on "
                             f"{phase}, so they are not of one run")
