"""Writes receipts: judges device cases and stores the verdicts of the phases that pass.

Benchmarks are stored next to the receipts.
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
    """Return whether a phase is built and has cases of the tier cuda."""
    return is_built(contract, ROOT) and any(case.tier == "cuda" for case in contract.expand())


Benchmark = Callable[[Callable[[str], None]], BenchmarkRecord]
"""Returns times; it calls its argument with lines of progress."""


def device_folder(device: str) -> Path:
    """Return the folder of a device's receipts and benchmarks."""
    return ROOT / FOLDER / re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def write_benchmark(name: str, measure: Benchmark, contract: Contract,
                    progress: Callable[[str], None]) -> tuple[list[Path], list[str]]:
    """Time a phase's kernels and write a file; return its path, or the reason why there is none."""
    try:
        record = measure(progress)
    except BitsDifferError as error:
        return [], [f"{name}: not timed, since {error}"]
    device, versions = device_and_versions()
    record = record.model_copy(update={
        "versions": versions, "digest": phase_digest(contract, ROOT), "measured": today()})
    folder = device_folder(device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return [path.relative_to(ROOT)], []


def write_receipts(contracts: Sequence[Contract], banks: Mapping[str, Bank], load_bank: BankLoader,
                   progress: Callable[[str], None]) -> tuple[list[Path], list[str]]:
    """Judge the phases' quick device cases; return receipt paths, and reasons for missing ones."""
    wanted = GateRequest(tuple(c.phase for c in contracts), device="cuda",
                         jobs=min(14, os.cpu_count() or 1))
    gated = run_gate(wanted, on_verdict=lambda verdict: progress(verdict.case),
                     contracts={c.phase: c for c in contracts})
    written: list[Path] = []
    refused = list(gated.run.trouble)
    if not contracts:
        return written, ["the requested phases have no device cases"]
    name, versions = device_and_versions()
    folder = device_folder(name)
    with ThreadPoolExecutor() as pool:
        sanitizers = {c.phase: pool.submit(run_sanitizers, c) for c in contracts}
        for contract in contracts:
            verdicts = tuple(v for v in gated.run.verdicts if v.phase == contract.phase)
            if not verdicts_prove(contract, verdicts):
                bad = [v.case for v in verdicts if v.outcome in ("failed", "error")]
                first = f"; the first is {bad[0]}" if bad else ""
                refused.append(f"{contract.phase}: no receipt, since its device cases did not all "
                               f"pass{first}")
                continue
            bank = banks[contract.phase]
            results, inconclusive = try_mutants(
                [(bank, m) for m in bank.mutants if m.device == "cuda"], load_bank,
                tiers.select_tiers("cuda"), on_result=lambda result: progress(result.id))
            if inconclusive:
                raise SuiteError(next(iter(inconclusive.values())))
            summaries = sanitizers[contract.phase].result()
            if faults := sanitizer_faults(summaries):
                refused.append(f"{contract.phase}: no receipt, since {faults[0]}")
                continue
            receipt = Receipt(phase=contract.phase, device=name, versions=versions,
                              verdicts=verdicts, measured=today(),
                              digest=phase_digest(contract, ROOT), sanitizer=summaries,
                              mutants=tuple(results.values()))
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{contract.phase}.json"
            path.write_text(receipt.model_dump_json(indent=1) + "\n", encoding="utf-8")
            written.append(path.relative_to(ROOT))
    return written, refused


def today() -> str:
    """Return the day, `2026-01-31`."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()


def device_and_versions() -> tuple[str, dict[str, str]]:
    """Return the device's name and the versions of driver and packages."""
    import torch
    driver = Path("/proc/driver/nvidia/version")
    text = driver.read_text(encoding="utf-8") if driver.exists() else ""
    found = re.search(r"\d+\.\d+\.\d+", text)
    versions = {"python": platform.python_version(), "torch": torch.__version__,
                "cuda": str(torch.version.cuda), "triton": tiers.version_of("triton") or "none",
                "driver": found[0] if found else "unknown"}
    return torch.cuda.get_device_name(), versions
