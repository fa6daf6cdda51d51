"""P3's kernels as machine code, and how few of them there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOME = ["ordered-Q4_K-1", "ordered-Q5_K-4", "ordered-Q6_K-16", "ordered-Q8_0-64", "ordered-F32-4",
        "ordered-F16-16", "ordered-BF16-1", "exact-Q6_K-16"]


def compiled(*names: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run([sys.executable, "-m", "phases.p3_row_twin.compile", *names], cwd=ROOT,
                          text=True, capture_output=True, env=environment, check=False)


def test_kernels_compile_without_contraction_or_spills() -> None:
    done = compiled(*SOME)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name}: clean" for name in SOME]


@pytest.mark.tier("interpret")
def test_variants_are_few_and_each_has_a_name_of_its_own() -> None:
    from phases.p3_row_twin.compile import variants
    names = [variant.name for variant in variants()]
    assert set(SOME) <= set(names)
    assert len(names) == len(set(names)) <= 60


@pytest.mark.tier("interpret")
def test_spills_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from phases.p3_row_twin import compile as check
    for usage, found in ((" REG:64 STACK:0 SHARED:1024 LOCAL:0", []),
                         (" REG:255 STACK:88 SHARED:0 LOCAL:16",
                          ["88 bytes of stack", "16 bytes of local"]),
                         ("", ["no resource usage told"])):
        told = subprocess.CompletedProcess([], 0, stdout=usage)
        monkeypatch.setattr(subprocess, "run", lambda *args, told=told, **options: told)
        assert check.spilled(b"") == found
