"""The report as under 60 lines of Markdown, for a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterator

from falsifiers.console.cli_app import escape_control
from reports import summary_line, views
from reports.evidence import Evidence
from reports.views import FailureGroup

MAX_FAILURES = 5
"""Falsifiers printed with an example; the others are counted."""


def format_brief(evidence: Evidence) -> str:
    """Return verdicts, the first failures with their repro lines, kills, and what was not run."""
    return "\n".join(_brief_lines(evidence)) + "\n"


def _brief_lines(evidence: Evidence) -> Iterator[str]:
    yield f"## {summary_line.verdict_mark(evidence)} {summary_line.verdict_word(evidence)}: " \
          f"{escape_text(summary_line.answer(evidence))}"
    yield ""
    facts = summary_line.facts(evidence)
    yield f"Cases: {facts['cases']}. Mutants: {facts['mutants']}. Judged: " \
          f"{code_span(evidence.subject)}, {escape_text(evidence.made)}, in {facts['took']}."
    yield ""
    yield "| phase | verdict | cases | device proof |"
    yield "|---|---|---|---|"
    for rung in views.summarise_phases(evidence):
        yield (f"| {rung.phase} {escape_text(rung.title)} | {rung.mark} {rung.word} | "
               f"{rung.counts} | {rung.proof} |")
    groups = views.group_failures(evidence)
    for group in groups[:MAX_FAILURES]:
        yield from _failure_lines(group)
    if len(groups) > MAX_FAILURES:
        yield from ("", f"and {len(groups) - MAX_FAILURES} more falsifiers with failures")
    yield from _mutant_lines(evidence)
    lines = evidence.not_run
    if lines:
        yield from ("", "Not run: " + "; ".join(f"{escape_text(n.what)} ({escape_text(n.why)})"
                                               for n in lines) + ".")


def _failure_lines(group: FailureGroup) -> Iterator[str]:
    first, count = group.failures[0], len(group.failures)
    yield ""
    cases = "case" if count == 1 else "cases"
    yield (f"**{group.phase} {escape_text(group.name)}**, {count} {cases}: "
           f"{code_span(first.sentence)}")
    if group.falsifier:
        yield f"Likely: {escape_text(group.falsifier.if_fails)}"
    yield f"Run it: {code_span(first.verdict.repro)}"


def _mutant_lines(evidence: Evidence) -> Iterator[str]:
    matrix = evidence.kills.matrix
    for what, names in (("Survived", matrix.survivors), ("Killed none", matrix.idle_falsifiers),
                        ("No result for", tuple(evidence.kills.inconclusive))):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            yield from ("", f"{what}: {', '.join(code_span(name) for name in names[:8])}{more}")


def escape_text(text: str) -> str:
    """Return a text on one line, escaped for Markdown, HTML and terminals."""
    text = escape_control(" ".join(text.split()))
    return re.sub(r"[\\`*<>|#&@~]|\b_|_\b|(?<=\])[(\[:]|!(?=\[)",
                  lambda found: f"&#{ord(found[0])};", text)


def code_span(text: str) -> str:
    """Return a text as a code span on one line, however many backticks it holds."""
    text = escape_control(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
