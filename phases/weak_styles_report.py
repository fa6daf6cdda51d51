"""What `rowtwin weak` finds, stored with its conditions, and the page that is printed from it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.verdict import Record
from phases.weak_styles import MissedMutant, format_table, try_styles

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).with_name("weak_styles.json")
PAGE = ROOT / "docs" / "weak-arms.md"
MEASURED_FILES = ("engine", "falsifiers/judging/judge.py", "falsifiers/judging/batch_driver.py",
                  "falsifiers/mutation/wrong_steps.py", "phases/p*_*")
"""The sources that decide the result; the stored commit is the last that touched one of them."""

PAGE_INTRO = """\
# What weak tests let pass

Every mutant of the decode path is a step with one fault. The strict scenario runs it in batches of
two widths. Prompts and lengths differ, slots hold NaN before they are cleared, prompts come in
chunks, and some steps leave a row out. The bits of every row's logits are compared with the same
sequence run by itself. Each style below weakens this scenario in one way, as tests in use do; the
last style combines all of them. A mutant passes a style that sees no difference.

`rowtwin weak` tries the mutants. `rowtwin weak --keep` stores the results and writes this page; a
test repeats a few. A style that a mutant passes cannot detect that fault. A style that detects a
fault may do so by luck, since the rest of its scenario is strict.
"""


class PhaseStyles(Record):
    """Results for one phase's mutants."""

    phase: str
    measured: str
    """The day, `2026-01-31`."""
    commit: str
    """The last commit that touched `MEASURED_FILES`."""
    machine: dict[str, str]
    seconds: float
    shown: dict[str, tuple[str, ...]]
    """By mutant: the styles that it passes."""
    not_shown: tuple[str, ...]
    """Mutants that the strict scenario does not detect."""

    def missed_mutants(self) -> list[MissedMutant]:
        """Return the mutants that the strict scenario detects."""
        return [MissedMutant(self.phase, name, styles) for name, styles in self.shown.items()]


class StyleResults(Record):
    """Results for every phase, as `weak_styles.json` stores them."""

    command: str = "rowtwin weak --keep"
    phases: tuple[PhaseStyles, ...] = ()


def measure_phase(bank: Bank) -> PhaseStyles:
    """Try every style on every mutant of a phase."""
    started = time.perf_counter()
    results = {mutant.name: try_styles(bank, mutant) for mutant in bank.mutants}
    return PhaseStyles(
        phase=bank.contract.phase, commit=_measured_commit(),
        measured=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        machine={"python": platform.python_version(), "torch": torch.__version__,
                 "on": f"the CPU ({platform.machine()}, {os.cpu_count()} threads, one used)"},
        seconds=round(time.perf_counter() - started, 1),
        shown={name: missed.styles for name, missed in results.items() if missed},
        not_shown=tuple(name for name, missed in results.items() if not missed))


def load_results(path: Path = DATA) -> StyleResults:
    """Read the stored results; raise `SuiteError` if the file cannot be read."""
    try:
        return StyleResults.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path.name}: cannot read results of rowtwin weak: "
                         f"{str(error).splitlines()[0]}") from None


def save_results(phase: PhaseStyles, data: Path = DATA, page: Path = PAGE) -> None:
    """Replace the stored results of one phase, and write the page again."""
    stored = load_results(data).phases if data.exists() else ()
    others = [other for other in stored if other.phase != phase.phase]
    results = StyleResults(phases=tuple(sorted([*others, phase], key=lambda other: other.phase)))
    data.write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    page.write_text(page_text(results), encoding="utf-8")


def summary_lines(phases: Sequence[PhaseStyles]) -> Iterator[str]:
    """Yield the lines of the table, and how many mutants it does not count."""
    yield from format_table([missed for phase in phases for missed in phase.missed_mutants()])
    yield ""
    yield (f"Not counted: {sum(len(phase.not_shown) for phase in phases)} mutants whose fault does "
           f"not show in the logits of the strict scenario on a CPU.")


def page_text(results: StyleResults) -> str:
    """Return the page `docs/weak-arms.md`."""
    lines = [PAGE_INTRO, *summary_lines(results.phases), ""]
    for phase in results.phases:
        lines += [f"## {phase.phase}", "", "| mutant | passes |", "|---|---|"]
        lines += [f"| `{name}` | {', '.join(styles) or 'none'} |"
                  for name, styles in phase.shown.items()]
        lines += ["", "Not detected by the strict scenario: "
                  + (", ".join(f"`{name}`" for name in phase.not_shown) or "none") + ".", "",
                  f"{phase.measured}, commit {phase.commit}, {phase.seconds:.0f} s; "
                  + ", ".join(f"{key} {value}" for key, value in phase.machine.items()) + ".", ""]
    return "\n".join(lines[:-1]) + "\n"


def _measured_commit() -> str:
    """Return the last commit that touched the measured files, and whether they have changes."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words, "--", *MEASURED_FILES], cwd=ROOT, capture_output=True,
                              text=True, check=False).stdout.strip()

    try:
        changed = " with changes" if git("status", "--porcelain") else ""
        return (git("log", "-1", "--format=%h") or "unknown") + changed
    except OSError:
        return "unknown"
