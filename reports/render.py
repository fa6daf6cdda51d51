"""Renders the page, one self-contained HTML file."""

from __future__ import annotations

from typing import Any

from falsifiers.gate.tiers import TIERS
from reports import claims, pages, plots, schemas, speeds, summary_line, views
from reports.evidence import Evidence
from reports.grid import SYMBOLS
from reports.plots import Plot
from reports.views import Section

SIDE_FILES = ("report.md", "verdicts.jsonl", "junit.xml", "run.json", "mutants.json",
          *schemas.SCHEMA_MODELS)
"""The files in the page's folder."""
OUTPUT_LINES = 60
"""Lines of pytest's output that are shown after an error of the run."""


def page(evidence: Evidence) -> str:
    """Return the report as a self-contained HTML page; everything in it is escaped."""
    return pages.fill_template("page.html", context(evidence))


def context(evidence: Evidence) -> dict[str, Any]:
    """Return the values of the templates."""
    sections, groups, matrix = views.sections(evidence), views.group_failures(evidence), \
        evidence.kills.matrix
    survivors = [row for row in matrix.mutants if f"{row.phase}/{row.name}" in matrix.survivors]
    inconclusive = evidence.kills.inconclusive
    device = {f"{row.phase}/{row.name}" for row in matrix.mutants if row.device == "cuda"}
    user_model = evidence.user_model
    return {
        "word": summary_line.verdict_word(evidence),
        "mark": summary_line.verdict_mark(evidence),
        "answer": summary_line.answer(evidence),
        "facts": summary_line.facts(evidence),
        "ladder": views.summarise_phases(evidence),
        "sections": sections,
        "marks": views.MARKS,
        "symbols": SYMBOLS,
        "red": bool(groups or evidence.trouble or survivors or matrix.idle_falsifiers
                    or inconclusive),
        "groups": groups,
        "trouble": evidence.trouble,
        "survivors": survivors,
        "output": "\n".join(evidence.output.splitlines()[-OUTPUT_LINES:]),
        "idle": matrix.idle_falsifiers,
        "inconclusive": inconclusive,
        "away": [name for name in matrix.not_run if name not in inconclusive and name in device],
        "left": sum(name not in inconclusive and name not in device for name in matrix.not_run),
        "devices": evidence.devices,
        "own": user_model,
        "speeds": speeds.speed_views(evidence),
        "speed_head": speeds.HEADER,
        "own_worst": views.worst_by_op(user_model.verdicts) if user_model else (),
        "own_attacks": views.group_by_falsifier(
            user_model.falsifiers, user_model.cases, user_model.verdicts) if user_model else (),
        "plots": budget_plots(evidence, sections),
        "time_plot": plots.time_plot(evidence.verdicts),
        "claims": evidence.claims,
        "claimed": claims.count_by_tier(evidence.claims),
        "tiers": TIERS,
        "side_files": SIDE_FILES,
        "not_run": evidence.not_run,
        "environment": evidence.environment,
    }


def budget_plots(evidence: Evidence, sections: list[Section]) -> dict[str, Plot]:
    """Return a plot for every phase whose cases were compared within a budget."""
    by_phase = {section.rung.phase: plots.distance_plot(section.rung.phase, evidence.verdicts,
                                               section.budget)
            for section in sections if section.budget}
    return {phase: plot for phase, plot in by_phase.items() if plot is not None}
