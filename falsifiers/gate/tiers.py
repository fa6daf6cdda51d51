"""Which tiers run here: cpu (PyTorch), interpret (Triton's interpreter), cuda (a device), emulate.

Triton's mode is fixed when its kernels are first imported, so it is decided before torch or
triton is loaded, from the driver's files and the installed packages' names alone.
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
    """What one process runs."""

    run: tuple[Tier, ...]
    """Tiers whose cases are selected."""
    absent: dict[Tier, str]
    """Tiers asked for by name that cannot be had, with the reason: their cases are UNMEASURABLE."""
    left_out: dict[Tier, str]
    """Tiers that nobody asked for here, with the reason; they are listed, not judged."""

    def of(self, contract: Contract) -> tuple[Tier, ...]:
        """Return the tiers that a phase's cases are judged in.

        Where a device is asked for, or one emulated, and can be had, a phase without a case for it
        is judged on the CPU: nothing of that phase runs elsewhere, and a ladder of phases must not
        break there.
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
    """Return why no CUDA device can be used here, or None when one can."""
    torch = version_of("torch")
    if torch is None or "+cpu" in torch:
        return "torch is built for the CPU alone" if torch else "torch is not installed"
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
    """Return why Triton's interpreter cannot be used here, or None when it can."""
    return None if version_of("triton") else "triton is not installed"


def emulate_missing() -> str | None:
    """Return why a device cannot be emulated here, or None when it can."""
    if cuda_missing() is None:
        return "a device is here, and kernels run on it"
    here = shutil.which(find_compiler())
    return interpret_missing() or (
        None if here else f"no C++ compiler {find_compiler()} on the PATH"
    )


def find_compiler() -> str:
    """Return the C++ compiler that takes kernels where a device is emulated."""
    return os.environ.get("CXX", "g++")


def select_tiers(device: str) -> TierSelection:
    """Resolve a `--device` value; raise `SuiteError` naming the known ones when it is none."""
    if device not in DEVICES:
        raise SuiteError(f"unknown device {device!r}: choose one of {', '.join(DEVICES)}")
    missing: dict[Tier, str | None] = {"cpu": None, "interpret": interpret_missing(),
                                       "cuda": cuda_missing(), "emulate": emulate_missing()}
    if device != "auto":
        others = {tier: f"only {device} was asked for" for tier in TIERS if tier != device}
        absent = {tier: why for tier, why in missing.items() if tier == device and why}
        return TierSelection(tuple(t for t in TIERS if t == device), absent, others)
    left_out = {tier: why for tier, why in missing.items() if why}
    left_out.setdefault("emulate", "--device emulate runs it")
    if "cuda" not in left_out:
        left_out["interpret"] = "one process runs one Triton mode, and a device is here"
    return TierSelection(tuple(t for t in TIERS if t not in left_out), {}, left_out)


def fix_triton_mode(tiers: TierSelection) -> None:
    """Set or clear TRITON_INTERPRET for this process and its children."""
    if "cuda" in tiers.run and not tiers.absent:
        os.environ.pop("TRITON_INTERPRET", None)
    elif {"interpret", "emulate"} & {*tiers.run} or cuda_missing():
        os.environ["TRITON_INTERPRET"] = "1"


def limit_torch_threads() -> None:
    """Give this process one torch thread.

    On tensors of test size two threads wait for each other longer than they work, and beside
    other processes far longer; processes are what runs side by side here.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # for a torch that is still to be loaded, and for children
    if "torch" in sys.modules:
        import torch
        torch.set_num_threads(1)


def device_passes(device: str) -> tuple[str, ...]:
    """Return the `--device` values of the processes that together cover what was asked for."""
    if device == "auto" and "cuda" in select_tiers(device).run and interpret_missing() is None:
        return ("auto", "interpret")
    return (device,)


def describe_tiers(tiers: TierSelection) -> str:
    """Return one line for a header: what runs, what cannot, and the versions that matter."""
    parts = [" + ".join(tiers.run)]
    parts += [f"{tier} cannot be measured ({why})" for tier, why in tiers.absent.items()]
    versions = ", ".join(f"{name} {version_of(name) or 'absent'}" for name in ("torch", "triton"))
    return f"{'; '.join(parts)}; {versions}"
