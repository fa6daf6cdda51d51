"""The environment of a run: machine, versions, devices, and the cases that were not run."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from contracts.schema import Contract
from falsifiers.gate import receipts, tiers
from falsifiers.gate.tiers import TierSelection
from reports.evidence import SkippedCases

PACKAGES = ("torch", "triton", "numpy", "gguf", "hypothesis", "pytest", "transformers")
NOT_QUICK = "not in the quick selection"
TIER_WORDS = {"cpu": "PyTorch on the CPU", "interpret": "Triton's interpreter", "cuda": "a GPU",
              "emulate": "a GPU emulated on the CPU"}


def describe_machine(root: Path, chosen: TierSelection) -> dict[str, str]:
    """Return the facts of this machine and checkout, in print order."""
    run = [tier for tier in chosen.run if tier not in chosen.absent]
    facts = {"tiers run": ", ".join(f"{tier} ({TIER_WORDS[tier]})" for tier in run) or "none",
             "processor": f"{_cpu_name()}, {os.cpu_count()} threads", "memory": _memory(),
             "system": platform.platform(), "python": platform.python_version()}
    facts |= {name: tiers.version_of(name) or "not installed" for name in PACKAGES}
    unused = tiers.cuda_missing() or "present, not requested"
    facts["GPU"] = (_gpu_names() if "cuda" in run else "") or unused
    return {**facts, "checkout": _checkout(root)}


def list_skipped_cases(contracts: Mapping[str, Contract], judged: Set[str],
                       device: str) -> list[SkippedCases]:
    """Return the contracts' cases whose ids are not in `judged`, grouped by reason."""
    chosen = tiers.select_tiers(device)
    counts: dict[tuple[str, str], Counter[str]] = {}
    for case in (case for contract in contracts.values() for case in contract.expand()):
        if case.id not in judged:
            why = chosen.left_out.get(case.tier) or chosen.absent.get(case.tier)
            key = (case.tier, f"tier {case.tier}: {why}") if why else ("", NOT_QUICK)
            counts.setdefault(key, Counter())[case.phase] += 1
    return [SkippedCases(
        f"{count.total()} cases: " + ", ".join(f"{p} {n}" for p, n in count.items()), why,
        f"rowtwin report --device {tier}" if tier else "rowtwin report --thorough")
        for (tier, why), count in counts.items()]


def receipt_devices(phases: Iterable[str], root: Path) -> dict[str, str]:
    """Return the devices and days of the receipts of every phase that has one."""
    devices = {phase: ", ".join(f"{receipt.device}, {receipt.measured}"
                             for receipt in receipts.load_receipts(phase, root))
            for phase in phases}
    return {phase: words for phase, words in devices.items() if words}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{total / 2**30:.0f} GiB"


def _gpu_names() -> str:
    import torch
    names = Counter(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return ", ".join(f"{n} x {name}" for name, n in names.items())


def _checkout(root: Path) -> str:
    """Return the commit and whether files differ from it, or that there is no git checkout."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        dirty = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout"
    return f"commit {commit}" + (", with changes that are not committed" if dirty else "")
