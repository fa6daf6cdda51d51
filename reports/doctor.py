"""What can be proven on this machine, and by which command; nothing is judged."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from contracts.schema import Contract
from falsifiers.gate import receipts, tiers

EXTRAS = {"golden": "golden logits by transformers", "test": "all of `make test`",
            "lint": "`make lint`, and checks of CUDA C++ without a GPU"}
"""Extras of pyproject.toml, and what they are for."""


@dataclass(frozen=True)
class Check:
    """A package, device, tool or kind of proof that was looked for."""

    what: str
    there: bool
    found: str
    """What was found, or why it is missing."""
    so: str = ""
    """What needs it, or the command that uses it."""


@dataclass(frozen=True)
class Findings:
    """Everything that `examine` looked for."""

    packages: tuple[Check, ...]
    machine: tuple[Check, ...]
    tools: tuple[Check, ...]
    provable: tuple[Check, ...]
    phases: tuple[tuple[str, ...], ...]
    """Phase, quick cases by tier, and the state of its receipts."""
    broken: tuple[str, ...]
    """A sentence for each missing requirement, with the command that installs it."""


def examine(root: Path, contracts: Mapping[str, Contract],
            nvrtc: Callable[[], str | None]) -> Findings:
    """Return what this machine has, and which proofs are possible with it.

    `nvrtc` returns why NVRTC cannot be used, or None.
    """
    packages, broken = check_packages(root)
    torch = _import_error("torch")
    machine = tuple(_check_devices(torch))
    tools = {line.what: line for line in _check_tools(nvrtc if torch is None else lambda: torch)}
    proofs = {phase: receipts.device_proof(contract, root)
              for phase, contract in contracts.items()
              if any(case.tier == "cuda" for case in contract.expand())}
    if torch is not None and not broken:
        broken = (f"torch is installed but cannot be used: {torch}",)
    return Findings(packages, machine, tuple(tools.values()),
                    tuple(_check_proofs(tools, torch, proofs)),
                    tuple(_phase_rows(contracts, proofs)), broken)


def check_packages(root: Path) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """Return every package of pyproject.toml, and a sentence for each missing requirement.

    A missing package of an extra is not an error.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines, broken = [_check_python(project["requires-python"])], []
    if not lines[0].there:
        broken.append(f"{lines[0].found} is here, but {lines[0].so}")
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    for extra, wanted in groups.items():
        for requirement in map(Requirement, wanted):
            if requirement.marker is not None and not requirement.marker.evaluate():
                continue
            line = _check_package(requirement, extra)
            lines.append(line)
            if not line.there and not extra:
                broken.append(f"{requirement} is needed, but {line.found}: pip install -e . "
                              f"-c constraints.txt")
    return tuple(lines), tuple(broken)


def _check_python(wanted: str) -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    fits = Requirement(f"python{wanted}").specifier.contains(found, prereleases=True)
    return Check("python", fits, f"python {found}", f"python {wanted} is needed")


def _check_package(requirement: Requirement, extra: str) -> Check:
    version = tiers.version_of(requirement.name)
    fits = version is not None and requirement.specifier.contains(version, prereleases=True)
    so = f"{requirement.specifier} is needed" if not extra else \
        f"{requirement.specifier or 'any'}, for {EXTRAS.get(extra, extra)}"
    return Check(requirement.name, fits, version or "not installed", so)


def _import_error(name: str) -> str | None:
    """Return why a package cannot be imported, or None; a broken build may raise anything."""
    try:
        importlib.import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None


def _check_devices(torch_broken: str | None) -> Iterator[Check]:
    yield Check("processor", True, f"{os.cpu_count()} threads", "rowtwin gate --device cpu")
    why = tiers.cuda_missing() or torch_broken
    if why is None:
        import torch
        for number in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(number)
            yield Check(f"GPU {number}", True, f"{about.name}, sm_{about.major}{about.minor}, "
                        f"{about.total_memory / 2**30:.0f} GiB", "rowtwin gate --device cuda")
        why = None if torch.cuda.device_count() else "torch finds no usable CUDA device"
    if why is not None:
        yield Check("GPU", False, why, "receipts are the only device proof")


def _check_tools(nvrtc: Callable[[], str | None]) -> Iterator[Check]:
    version = tiers.version_of("triton")
    yield Check("Triton", version is not None, version or "not installed",
                "interprets kernels here; compiled kernels need a GPU")
    why = nvrtc()
    yield Check("NVRTC", why is None, why or "loaded", "compiles CUDA C++ for sm_90 without a GPU")
    for what, names, so in (
        ("C++ compiler", (tiers.find_compiler(),), "runs CUDA C++ on the CPU (docs/emulated.md)"),
        ("ncu", ("ncu",), "counts on a GPU how often weights are read"),
    ):
        path = next(filter(None, map(shutil.which, names)), None)
        yield Check(what, path is not None, path or f"no {' or '.join(names)} on the PATH", so)


def _phase_rows(contracts: Mapping[str, Contract],
                proofs: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    for phase, contract in contracts.items():
        counts = Counter(case.tier for case in contract.expand() if case.quick)
        yield (phase, *(str(counts[tier] or "-") for tier in tiers.TIERS),
               proofs.get(phase, "no device case"))


def _check_proofs(tools: Mapping[str, Check], torch: str | None,
                  proofs: Mapping[str, str]) -> Iterator[Check]:
    """Yield every kind of proof, whether it is possible here, and its command."""
    gpu = torch or tiers.cuda_missing()
    yield _make_proof_check("each row's bits on the CPU", torch, "rowtwin gate --device cpu")
    yield _make_proof_check("the Triton kernels' source, op by op, in the interpreter",
                            torch or tiers.interpret_missing(), "rowtwin gate --device interpret")
    yield _make_proof_check("the CUDA C++ kernels' source on an emulated device",
                            torch or tiers.emulate_missing(),
                            "rowtwin gate --phase 5 --device emulate")
    yield _make_proof_check("that the suite detects mutants", torch, "rowtwin mutants")
    yield _make_proof_check("the kernels' machine code", gpu, "rowtwin gate --device cuda")
    yield _make_proof_check("the same, stored for machines without a GPU", gpu, "rowtwin receipt")
    old = [phase for phase, proof in proofs.items() if proof != "fresh"]
    yield _make_proof_check("that this code passed on a device",
                            f"no fresh receipt of {', '.join(old)}" if old else None,
                            "rowtwin gate --require-device")
    yield _make_proof_check("how often a device reads weights",
                            gpu or _missing_reason(tools["ncu"]),
                            "rowtwin gate --phase 3 --device cuda")
    yield _make_proof_check("times next to the memory floor", gpu, "rowtwin bench gemv")
    yield _make_proof_check("that kernels compile for sm_90 without contraction or spills",
                            torch or _missing_reason(tools["Triton"])
                            or _missing_reason(tools["NVRTC"]),
                            "pytest engine phases -k compile")
    yield _make_proof_check("that the reference engine equals transformers' Qwen3.5",
                            torch or _missing_package("transformers"), "rowtwin golden check")


def _missing_package(package: str) -> str | None:
    return None if tiers.version_of(package) else f"{package} is not installed"


def _missing_reason(check: Check) -> str | None:
    return None if check.there else check.found


def _make_proof_check(what: str, missing: str | None, command: str) -> Check:
    return Check(what, missing is None, missing or "", command)
