"""Bytes that a product on a device reads from its memory, by the device's own counters.

`bytes_read` starts Nsight Compute (`ncu`) over this module, which makes one matrix larger than the
L2 cache and multiplies it a few times under the profiler's eye. Caches are flushed before every
launch, so a matrix that is read again by another launch is counted again.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contracts.schema import Case
from falsifiers.gate.candidates import make_absolute
from falsifiers.judging.errors import Unmeasurable

ROOT = Path(__file__).parents[2]
METRIC = "dram__bytes_read.sum"
REPEATS = 3
"""Products under the profiler; another process at work on the device can only add to one."""
TIMEOUT_SECONDS = 300
"""Seconds that one profiled process may take."""


def measure_bytes_read(case: Case, spec: str, m: int) -> int:
    """Return the bytes that one product of m rows reads: the least of a few, all its launches.

    `spec` names the candidate, or is empty. Raises `Unmeasurable` where no profiler may count.
    """
    tool = shutil.which("ncu")
    if tool is None:
        raise Unmeasurable("ncu, Nsight Compute's command, is not on the PATH")
    command = [
        tool,
        "--csv",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--profile-from-start",
        "off",
        "--metrics",
        METRIC,
        sys.executable,
        "-m",
        "phases.p3_row_twin.device_counters",
        case.model_dump_json(),
        make_absolute(spec),
        str(m),
    ]
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False,
                              timeout=TIMEOUT_SECONDS, env={**os.environ, "LC_ALL": "C"})
    except subprocess.TimeoutExpired:
        raise Unmeasurable(f"ncu did not end within {TIMEOUT_SECONDS} seconds") from None
    counted = parse_counts(done.stdout)
    if not counted or len(counted) % REPEATS:
        raise Unmeasurable(f"ncu counted {len(counted)} launches of {REPEATS} products: "
                           f"{find_error_line(done.stdout + done.stderr)}")
    launches = len(counted) // REPEATS
    return min(sum(counted[i:i + launches]) for i in range(0, len(counted), launches))


def parse_counts(output: str) -> list[int]:
    """Return the metric of every launch, in order, from ncu's CSV among other lines."""
    lines = output.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('"ID",')), len(lines))
    table = csv.DictReader(line for line in lines[first:] if line.startswith('"'))
    values = [row["Metric Value"] for row in table if row.get("Metric Name") == METRIC]
    plain = [(value or "").replace(",", "") for value in values]
    return [int(float(value)) for value in plain if re.fullmatch(r"\d+(\.\d+)?", value)]


def find_error_line(output: str) -> str:
    """Return the line of ncu's output that says best why it could not count."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("==ERROR==")]
    return (errors or lines[-1:] or ["it said nothing"])[0][:200]


def main(given: Sequence[str]) -> None:
    """Multiply the case's matrix by m rows a few times, watched; once before, to compile."""
    import torch

    from falsifiers.gate.candidates import load_candidate
    from falsifiers.judging.judge import Judge
    from falsifiers.judging.subject import Subject
    from phases.p3_row_twin.data import activations
    from phases.p3_row_twin.harness import Harness

    case, m = Case.model_validate_json(given[0]), int(given[2])
    candidate = load_candidate(given[1]) if given[1] else None
    subject = Subject("profiled", models=str, device="cuda", candidate=candidate)
    product = Harness(case, subject, Judge(case))
    matrix = product.build_matrix(case["kind"], case["n"], case["k"], copies=case["copies"])
    x = activations(m, case["k"]).to(product.device, product.dtype)
    out = torch.empty(m, matrix.weight.n, dtype=product.dtype, device=product.device)
    product.run(matrix, x, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(REPEATS):
        product.run(matrix, x, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
