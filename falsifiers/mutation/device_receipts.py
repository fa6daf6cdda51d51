"""Issuing receipts: device cases judged here and now, written only when they prove a phase.

Times are measured after them, and only when every phase was proved.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contracts.schema import Contract
from falsifiers.gate import tiers
from falsifiers.gate.benchmark_records import BenchmarkRecord, BitsDifferError
from falsifiers.gate.compute_sanitizer import run_sanitizers
from falsifiers.gate.receipts import FOLDER, Receipt, phase_digest, sanitizer_faults, verdicts_prove
from falsifiers.gate.runner import ROOT, GateRequest, is_built, run_gate
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.mutation.mutant_runner import BankLoader, try_mutants


def has_device_cases(contract: Contract) -> bool:
    """Tell whether a phase is built and has cases that only a device can judge."""
    return is_built(contract, ROOT) and any(case.tier == "cuda" for case in contract.expand())


Benchmark = Callable[[Callable[[str], None]], BenchmarkRecord]
"""Measures times, telling how far it has come."""


def device_folder(device: str) -> Path:
    """Return where what was measured on a device is kept."""
    return ROOT / FOLDER / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def write_benchmark(name: str, measure: Benchmark, contract: Contract,
            tell: Callable[[str], None]) -> tuple[list[Path], list[str]]:
    """Measure times of a phase's kernels; return the file written, or the reason for none."""
    try:
        found = measure(tell)
    except BitsDifferError as broken:
        return [], [f"{name}: no figures, since {broken}"]
    device, versions = device_and_versions()
    kept = found.model_copy(update={
        "versions": versions, "digest": phase_digest(contract, ROOT), "measured": today()})
    folder = device_folder(device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return [path.relative_to(ROOT)], []


def write_receipts(contracts: Sequence[Contract], banks: Mapping[str, Bank], load_bank: BankLoader,
             tell: Callable[[str], None]) -> tuple[list[Path], list[str]]:
    """Judge the phases' quick device cases; return receipts written and reasons for none."""
    wanted = GateRequest(tuple(c.phase for c in contracts), device="cuda",
                    jobs=min(14, os.cpu_count() or 1))
    gated = run_gate(wanted, on_verdict=lambda verdict: tell(verdict.case),
                     contracts={c.phase: c for c in contracts})
    written: list[Path] = []
    refused = list(gated.run.trouble)
    if not contracts:
        return written, ["no phase that was asked for has device cases"]
    name, versions = device_and_versions()
    folder = device_folder(name)
    with ThreadPoolExecutor() as several:
        asked = {c.phase: several.submit(run_sanitizers, c) for c in contracts}
        for contract in contracts:
            mine = tuple(v for v in gated.run.verdicts if v.phase == contract.phase)
            if not verdicts_prove(contract, mine):
                bad = [v.case for v in mine if v.outcome in ("failed", "error")]
                first = f"; the first is {bad[0]}" if bad else ""
                refused.append(f"{contract.phase}: no receipt, since its device cases did not all "
                               f"pass{first}")
                continue
            bank = banks[contract.phase]
            results, inconclusive = try_mutants(
                [(bank, m) for m in bank.mutants if m.device == "cuda"], load_bank,
                tiers.select_tiers("cuda"), on_result=lambda result: tell(result.id))
            if inconclusive:
                raise SuiteError(next(iter(inconclusive.values())))
            said = asked[contract.phase].result()
            if faults := sanitizer_faults(said):
                refused.append(f"{contract.phase}: no receipt, since {faults[0]}")
                continue
            receipt = Receipt(phase=contract.phase, device=name, versions=versions, verdicts=mine,
                              measured=today(), digest=phase_digest(contract, ROOT),
                              mutants=tuple(results.values()), sanitizer=said)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{contract.phase}.json"
            path.write_text(receipt.model_dump_json(indent=1) + "\n", encoding="utf-8")
            written.append(path.relative_to(ROOT))
    return written, refused


def today() -> str:
    """Return the day, `2026-01-31`."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def device_and_versions() -> tuple[str, dict[str, str]]:
    """Return the device's own name and the versions that were measured with."""
    import torch
    driver = Path("/proc/driver/nvidia/version")
    text = driver.read_text(encoding="utf-8") if driver.exists() else ""
    found = re.search(r"\d+\.\d+\.\d+", text)
    versions = {"python": platform.python_version(), "torch": torch.__version__,
                "cuda": str(torch.version.cuda), "triton": tiers.version_of("triton") or "none",
                "driver": found[0] if found else "unknown"}
    return torch.cuda.get_device_name(), versions
