"""Tests of batch parity: the judge, the gate, the mutants, and one call to run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from falsifiers.gate.phase_status import PhaseResult


def run(phase: int | str, candidate: str | None = None, *, device: str = "auto",
        thorough: bool = False) -> PhaseResult:
    """Judge one phase of the repository, or a candidate such as `file:mine.py`.

    Pytest runs in a new process. Raises `ContractError` or `SuiteError` on bad use.
    """
    from falsifiers.gate.runner import GateRequest, parse_phase, run_gate
    from falsifiers.vectors import candidate_kinds  # noqa: F401 (registers cmd: and vectors:)
    return run_gate(GateRequest((parse_phase(str(phase)),), candidate=candidate, device=device,
                                thorough=thorough)).results[0]
