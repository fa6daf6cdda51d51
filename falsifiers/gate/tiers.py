"""Selects the tiers: cpu (PyTorch), interpret (Triton's interpreter), cuda (a device), emulate.

Triton's mode is fixed when kernels are first imported. It is therefore selected before torch or
triton is imported, from the driver's files and the installed packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import get_args

from contracts.schema import Contract, Tier
from falsifiers.judging.errors import SuiteError

TIERS: tuple[Tier, ...] = get_args(Tier)
DEVICES = ("auto", *TIERS)


@dataclass(frozen=True)
class TierSelection:
    """The tiers of one process."""

    run: tuple[Tier, ...]
    """Tiers whose cases run."""
    absent: dict[Tier, str]
    """Requested tiers that are not available, with the reason: their cases are UNMEASURABLE."""
    left_out: dict[Tier, str]
    """Tiers that were not requested, with the reason; they are listed, not judged."""

    def tiers_for(self, contract: Contract) -> tuple[Tier, ...]:
        """Return the tiers for a phase's cases.

        With `--device cuda` or `--device emulate`, a phase without such cases is judged on the
        CPU, so that it does not block its successors.
        """
        cases = {"cuda": any("cuda" in row.tier for row in contract.cases),
                 "emulate": bool(contract.emulated)}
        none = len(self.run) == 1 and not self.absent and not cases.get(self.run[0], True)
        return ("cpu",) if none else self.run


def version_of(package: str) -> str | None:
    """Return an installed package's version without importing it, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cuda_missing() -> str | None:
    """Return why no CUDA device is available, or None."""
    torch = version_of("torch")
    if torch is None or "+cpu" in torch:
        return "torch is built only for the CPU" if torch else "torch is not installed"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every device"
    marks = ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/dxg")
    if any(Path(mark).exists() for mark in marks):
        return None
    tool = shutil.which("nvidia-smi")
    if tool and subprocess.run([tool, "-L"], capture_output=True, check=False).returncode == 0:
        return None
    return "no CUDA device was found"


def interpret_missing() -> str | None:
    """Return why Triton's interpreter is not available, or None."""
    return None if version_of("triton") else "triton is not installed"


def emulate_missing() -> str | None:
    """Return why the tier emulate is not available, or None."""
    if cuda_missing() is None:
        return "a CUDA device is available: use --device cuda"
    compiler = find_compiler()
    return interpret_missing() or (
        None if shutil.which(compiler) else f"no C++ compiler {compiler} on the PATH")


def find_compiler() -> str:
    """Return the C++ compiler for the tier emulate."""
    return os.environ.get("CXX", "g++")


def select_tiers(device: str) -> TierSelection:
    """Return the tiers of a `--device` value; raise `SuiteError` for an unknown one."""
    if device not in DEVICES:
        raise SuiteError(f"unknown device {device!r}: choose one of {', '.join(DEVICES)}")
    missing: dict[Tier, str | None] = {"cpu": None, "interpret": interpret_missing(),
                                       "cuda": cuda_missing(), "emulate": emulate_missing()}
    if device != "auto":
        others = {tier: f"only {device} was requested" for tier in TIERS if tier != device}
        absent = {tier: why for tier, why in missing.items() if tier == device and why}
        return TierSelection(tuple(t for t in TIERS if t == device), absent, others)
    left_out = {tier: why for tier, why in missing.items() if why}
    left_out.setdefault("emulate", "use --device emulate")
    if "cuda" not in left_out:
        left_out["interpret"] = "Triton runs in one mode in a process, and a device is available"
    return TierSelection(tuple(t for t in TIERS if t not in left_out), {}, left_out)


def fix_triton_mode(tiers: TierSelection) -> None:
    """Set or clear TRITON_INTERPRET for this process and its children."""
    if "cuda" in tiers.run and not tiers.absent:
        os.environ.pop("TRITON_INTERPRET", None)
    elif {"interpret", "emulate"} & {*tiers.run} or cuda_missing():
        os.environ["TRITON_INTERPRET"] = "1"


def limit_torch_threads() -> None:
    """Limit this process and its children to one torch thread.

    On small tensors several threads are slower than one, and more so next to other processes.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, here or in a child
    if "torch" in sys.modules:
        import torch
        torch.set_num_threads(1)


def device_passes(device: str) -> tuple[str, ...]:
    """Return the `--device` values of the processes that cover the requested one."""
    if device == "auto" and "cuda" in select_tiers(device).run and interpret_missing() is None:
        return ("auto", "interpret")
    return (device,)


def describe_tiers(tiers: TierSelection) -> str:
    """Return a line for a header: tiers that run, tiers that cannot, and versions."""
    parts = [" + ".join(tiers.run)]
    parts += [f"{tier} cannot be measured ({why})" for tier, why in tiers.absent.items()]
    versions = ", ".join(f"{name} {version_of(name) or 'absent'}" for name in ("torch", "triton"))
    return f"{'; '.join(parts)}; {versions}"
