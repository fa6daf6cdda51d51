"""The page: one HTML file that needs nothing but itself."""

from __future__ import annotations

from typing import Any

from falsifiers.gate.tiers import TIERS
from reports import claims, pages, plots, schemas, speeds, summary_line, views
from reports.evidence import Evidence
from reports.grid import SYMBOLS
from reports.plots import Plot
from reports.views import Section

BESIDE = ("report.md", "verdicts.jsonl", "junit.xml", "run.json", "mutants.json",
          *schemas.RECORDS)
"""The files that lie beside the page."""
TAIL = 60
"""Lines of pytest's output that are shown when the run itself went wrong."""


def page(evidence: Evidence) -> str:
    """Return the report as a self-contained HTML page; everything in it is escaped."""
    return pages.filled("page.html", context(evidence))


def context(evidence: Evidence) -> dict[str, Any]:
    """Return what the templates are filled with."""
    sections, groups, matrix = views.sections(evidence), views.failures(evidence), \
        evidence.kills.matrix
    survivors = [row for row in matrix.mutants if f"{row.phase}/{row.name}" in matrix.survivors]
    untold = evidence.kills.untold
    device = {f"{row.phase}/{row.name}" for row in matrix.mutants if row.device == "cuda"}
    own = evidence.own
    return {
        "word": summary_line.word(evidence), "mark": summary_line.mark(evidence),
        "answer": summary_line.answer(evidence), "facts": summary_line.facts(evidence),
        "ladder": views.ladder(evidence), "sections": sections, "marks": views.MARKS,
        "symbols": SYMBOLS,
        "red": bool(groups or evidence.trouble or survivors or matrix.idle_falsifiers or untold),
        "groups": groups, "trouble": evidence.trouble, "survivors": survivors,
        "output": "\n".join(evidence.output.splitlines()[-TAIL:]),
        "idle": matrix.idle_falsifiers, "untold": untold,
        "away": [name for name in matrix.not_run if name not in untold and name in device],
        "left": sum(name not in untold and name not in device for name in matrix.not_run),
        "devices": evidence.devices, "own": own, "speeds": speeds.views(evidence),
        "speed_head": speeds.HEAD,
        "own_worst": views.worst_of(own.verdicts) if own else (),
        "own_attacks": views.attacks(own.falsifiers, own.cases, own.verdicts) if own else (),
        "plots": pictures(evidence, sections), "time_plot": plots.seconds(evidence.verdicts),
        "claims": evidence.claims, "claimed": claims.sums(evidence.claims), "tiers": TIERS,
        "beside": BESIDE, "not_run": evidence.not_run, "environment": evidence.environment}


def pictures(evidence: Evidence, sections: list[Section]) -> dict[str, Plot]:
    """Return a plot for every phase whose cases were measured against a budget."""
    made = {section.rung.phase: plots.distance(section.rung.phase, evidence.verdicts,
                                               section.budget)
            for section in sections if section.budget}
    return {phase: plot for phase, plot in made.items() if plot is not None}
