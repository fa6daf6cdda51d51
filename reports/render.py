"""The page: one HTML file that needs nothing but itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from reports import headline, plots, speeds, views
from reports.evidence import Evidence
from reports.grid import SYMBOLS
from reports.plots import Plot
from reports.views import Section

TEMPLATES = Path(__file__).parent / "templates"
TAIL = 60
"""Lines of pytest's output that are shown when the run itself went wrong."""


def page(evidence: Evidence) -> str:
    """Return the report as a self-contained HTML page; everything in it is escaped."""
    text = environment().get_template("page.html").render(context(evidence))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may hold any bytes


def environment() -> Environment:
    """Return what the pages are made with: everything is escaped, and nothing is left undefined."""
    made = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True,
                       undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"prose": prose, "breakable": breakable}
    return made


def prose(text: str) -> Markup:
    """Return a contract's text with what stands between backticks set as code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part
                           for i, part in enumerate(parts))


def breakable(name: str) -> Markup:
    """Return a long name that may be broken after its underscores."""
    return Markup("_<wbr>").join(name.split("_"))


def context(evidence: Evidence) -> dict[str, Any]:
    """Return what the templates are filled with."""
    sections, groups, matrix = views.sections(evidence), views.failures(evidence), \
        evidence.kills.matrix
    survivors = [row for row in matrix.mutants if f"{row.phase}/{row.name}" in matrix.survivors]
    untold = evidence.kills.untold
    own = evidence.own
    return {
        "word": headline.word(evidence), "mark": headline.mark(evidence),
        "answer": headline.answer(evidence), "facts": headline.facts(evidence),
        "ladder": views.ladder(evidence), "sections": sections, "marks": views.MARKS,
        "symbols": SYMBOLS,
        "red": bool(groups or evidence.trouble or survivors or matrix.idle_falsifiers or untold),
        "groups": groups, "trouble": evidence.trouble, "survivors": survivors,
        "output": "\n".join(evidence.output.splitlines()[-TAIL:]),
        "idle": matrix.idle_falsifiers, "untold": untold,
        "away": [name for name in matrix.not_run if name not in untold],
        "devices": evidence.devices, "own": own, "speeds": speeds.views(evidence),
        "speed_head": speeds.HEAD,
        "own_worst": views.worst_of(own.verdicts) if own else (),
        "own_attacks": views.attacks(own.falsifiers, own.cases, own.verdicts) if own else (),
        "plots": pictures(evidence, sections), "time_plot": plots.seconds(evidence.verdicts),
        "not_run": evidence.not_run, "environment": evidence.environment}


def pictures(evidence: Evidence, sections: list[Section]) -> dict[str, Plot]:
    """Return a plot for every phase whose cases were measured against a budget."""
    made = {section.rung.phase: plots.distance(section.rung.phase, evidence.verdicts,
                                               section.budget)
            for section in sections if section.budget}
    return {phase: plot for phase, plot in made.items() if plot is not None}
