"""What `rowtwin weak` found, kept with its conditions, and the page that is printed from it."""

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
from phases import weak_styles
from phases.weak_styles import MissedMutant

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).with_name("weak_styles.json")
PAGE = ROOT / "docs" / "weak-arms.md"
MEASURED_FILES = (
    "engine",
    "falsifiers/judging/judge.py",
    "falsifiers/judging/batch_driver.py",
    "falsifiers/mutation/wrong_steps.py",
    "phases/p*_*",
)
"""What decides what is found; the commit that is told is the last that touched one of them."""

PAGE_INTRO = """\
# What weak tests let pass

Every mutant of the decode path is a step with one fault. The strict scene runs it in batches whose
rows have prompts and lengths of their own, in slots that dead tenants left full of NaN, at two
widths, with chunks and with rows that sit out, and holds the logits of every row to the bits that
the same sequence gets alone. Each style below is that scene with one part weakened, as tests in use
have it; the last has all of them at once. A mutant passes a style when it sees no difference.

`rowtwin weak` weighs them, `rowtwin weak --keep` writes this page from what it finds, and a test
weighs a few again. A style that lets a mutant pass would not have caught that fault; one that does
not may have seen it by luck, in a scene that is otherwise strict.
"""


class PhaseStyles(Record):
    """What was found of one phase's mutants."""

    phase: str
    measured: str
    """The day, `2026-01-31`."""
    commit: str
    """The last one that touched what was weighed."""
    machine: dict[str, str]
    seconds: float
    shown: dict[str, tuple[str, ...]]
    """By mutant: the styles that let it pass."""
    not_shown: tuple[str, ...]
    """Mutants whose fault the strict scene does not show either."""

    def missed_mutants(self) -> list[MissedMutant]:
        """Return the mutants that the strict scene shows."""
        return [MissedMutant(self.phase, name, styles) for name, styles in self.shown.items()]


class StyleResults(Record):
    """What was found of every phase, as it stands in the tree."""

    command: str = "rowtwin weak --keep"
    phases: tuple[PhaseStyles, ...] = ()


def measure_phase(bank: Bank) -> PhaseStyles:
    """Weigh a phase's mutants, here and now."""
    started = time.perf_counter()
    found, quiet = weak_styles.try_banks([bank])
    return PhaseStyles(
        phase=bank.contract.phase, commit=_measured_commit(),
        measured=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        machine={"python": platform.python_version(), "torch": torch.__version__,
                 "on": f"the CPU ({platform.machine()}, {os.cpu_count()} threads, one used)"},
        seconds=round(time.perf_counter() - started, 1),
        shown={one.name: one.styles for one in found},
        not_shown=tuple(name.split("/")[1] for name in quiet))


def load_results(path: Path = DATA) -> StyleResults:
    """Read what was kept; raise `SuiteError` when it cannot be read."""
    try:
        return StyleResults.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path.name} holds no weighed mutants: "
                         f"{str(error).splitlines()[0]}") from None


def save_results(one: PhaseStyles, data: Path = DATA, page: Path = PAGE) -> None:
    """Put what was found of a phase in place of what was kept of it, and write the page anew."""
    old = load_results(data).phases if data.exists() else ()
    new = sorted([*(other for other in old if other.phase != one.phase), one],
                 key=lambda other: other.phase)
    kept = StyleResults(phases=tuple(new))
    data.write_text(kept.model_dump_json(indent=1) + "\n", encoding="utf-8")
    page.write_text(page_text(kept), encoding="utf-8")


def summary_lines(phases: Sequence[PhaseStyles]) -> Iterator[str]:
    """Yield the lines of the table, and what it does not count."""
    yield from weak_styles.format_table([one for phase in phases for one in phase.missed_mutants()])
    yield ""
    yield (f"Not counted: {sum(len(phase.not_shown) for phase in phases)}, whose faults are not in "
           f"the logits of the strict scene on a CPU.")


def page_text(kept: StyleResults) -> str:
    """Return the page."""
    lines = [PAGE_INTRO, *summary_lines(kept.phases), ""]
    for phase in kept.phases:
        lines += [f"## {phase.phase}", "", "| mutant | passes |", "|---|---|"]
        lines += [f"| `{name}` | {', '.join(styles) or 'none'} |"
                  for name, styles in phase.shown.items()]
        lines += ["", "Not shown by the strict scene: "
                  + (", ".join(f"`{name}`" for name in phase.not_shown) or "none") + ".", "",
                  f"{phase.measured}, commit {phase.commit}, {phase.seconds:.0f} s; "
                  + ", ".join(f"{key} {value}" for key, value in phase.machine.items()) + ".", ""]
    return "\n".join(lines[:-1]) + "\n"


def _measured_commit() -> str:
    """Return the last commit of what was weighed, and say if the files are not as it left them."""
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words, "--", *MEASURED_FILES], cwd=ROOT, capture_output=True,
                              text=True, check=False)
        return done.stdout.strip()

    try:
        changed = " with changes" if git("status", "--porcelain") else ""
        return (git("log", "-1", "--format=%h") or "unknown") + changed
    except OSError:
        return "unknown"
