"""Runs compute-sanitizer on a phase's device cases: memory errors and races."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from contracts.schema import Contract
from falsifiers.gate.kill_descendants import end_group
from falsifiers.gate.runner import ROOT

TOOLS = ("memcheck", "racecheck")
PROGRAM = "compute-sanitizer"
TIMEOUT_SECONDS = 150
"""Seconds for one tool, which makes kernels many times slower."""
SUMMARY = re.compile(r"^=+ ((?:ERROR|RACECHECK) SUMMARY: .*)$", re.MULTILINE)
PASSED = re.compile(r"^(\d+) passed", re.MULTILINE)


def run_sanitizers(contract: Contract) -> dict[str, str]:
    """Run the contract's `sanitized` falsifiers under each tool; return a summary by tool.

    A summary is `ERROR SUMMARY: 0 errors, 6 cases`, or the reason why it is missing.
    """
    if not contract.sanitized:
        return {}
    if not shutil.which(PROGRAM):
        return dict.fromkeys(TOOLS, f"{PROGRAM} was not found")
    with ThreadPoolExecutor() as pool:
        return dict(zip(TOOLS, pool.map(lambda tool: _summary_line(contract, tool), TOOLS),
                        strict=True))


def _summary_line(contract: Contract, tool: str) -> str:
    folder = contract.package.replace(".", "/")
    chosen = f"cuda and ({' or '.join(contract.sanitized)})"
    command = [PROGRAM, "--tool", tool, "--print-limit", "3", sys.executable, "-m", "pytest", "-q",
               "-p", "no:cacheprovider", f"{folder}/test_falsifier.py", "-k", chosen]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return f"it did not end within {TIMEOUT_SECONDS} s"
        finally:  # pytest under the tool too, which would slow down the next benchmark
            end_group(process)
    summary, passed = SUMMARY.search(out), PASSED.search(out)
    if summary is None or passed is None:
        last = (out + err).strip().splitlines()[-1:]
        return f"it printed no summary of passed cases: {''.join(last)[:200]}"
    return f"{summary[1]}, {passed[1]} cases"
