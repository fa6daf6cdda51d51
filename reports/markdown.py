"""The report in brief, as Markdown for a pull request: under 60 lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

from falsifiers.console.cli_app import told
from reports import summary_line, views
from reports.evidence import Evidence
from reports.views import FailureGroup

MOST = 5
"""Falsifiers that are told with an example; the others are counted."""


def brief(evidence: Evidence) -> str:
    """Return verdicts, the first failures with their repro lines, kills, and what was not run."""
    return "\n".join(_lines(evidence)) + "\n"


def _lines(evidence: Evidence) -> Iterator[str]:
    yield f"## {summary_line.mark(evidence)} {summary_line.word(evidence)}: " \
          f"{plain(summary_line.answer(evidence))}"
    yield ""
    facts = summary_line.facts(evidence)
    yield f"Cases: {facts['cases']}. Mutants: {facts['mutants']}. Judged: " \
          f"{code(evidence.subject)}, {plain(evidence.made)}, in {facts['took']}."
    yield ""
    yield "| phase | verdict | cases | device proof |"
    yield "|---|---|---|---|"
    for rung in views.ladder(evidence):
        yield f"| {rung.phase} {plain(rung.title)} | {rung.mark} {rung.word} | {rung.counts} " \
              f"| {rung.proof} |"
    groups = views.failures(evidence)
    for group in groups[:MOST]:
        yield from _group(group)
    if len(groups) > MOST:
        yield from ("", f"and {len(groups) - MOST} more falsifiers with failures")
    yield from _power(evidence)
    lines = evidence.not_run
    if lines:
        yield from ("", "Not run: " + "; ".join(f"{plain(n.what)} ({plain(n.why)})"
                                               for n in lines) + ".")


def _group(group: FailureGroup) -> Iterator[str]:
    first, count = group.failures[0], len(group.failures)
    yield ""
    yield f"**{group.phase} {plain(group.name)}**, {count} {'case' if count == 1 else 'cases'}: " \
          f"{code(first.sentence)}"
    if group.falsifier:
        yield f"Likely: {plain(group.falsifier.if_fails)}"
    yield f"Run it alone: {code(first.verdict.repro)}"


def _power(evidence: Evidence) -> Iterator[str]:
    matrix = evidence.kills.matrix
    for what, names in (("Survived", matrix.survivors), ("Killed none", matrix.idle_falsifiers),
                        ("Nothing can be told about", tuple(evidence.kills.untold))):
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            yield from ("", f"{what}: {', '.join(code(name) for name in names[:8])}{more}")


def plain(text: str) -> str:
    """Return a text on one line, with nothing that Markdown, HTML or a terminal would act on."""
    text = told(" ".join(text.split()))
    return re.sub(r"[\\`*<>|#&@~]|\b_|_\b|(?<=\])[(\[:]|!(?=\[)",
                  lambda found: f"&#{ord(found[0])};", text)


def code(text: str) -> str:
    """Return a text as a code span on one line, however many backticks it holds."""
    text = told(" ".join(text.split()))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"
