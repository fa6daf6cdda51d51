"""Verdicts as a JUnit file, for CI systems that show one."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from falsifiers.judging.verdict import Verdict
from reports.evidence import Evidence

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(evidence: Evidence) -> str:
    """Return one test case for each verdict, a suite for each phase."""
    root = ElementTree.Element("testsuites", name="rowtwin")
    phases = dict.fromkeys(verdict.phase for verdict in evidence.every_verdict)
    for phase in phases:
        mine = [v for v in evidence.every_verdict if v.phase == phase]
        outcomes = [v.outcome for v in mine]
        suite = ElementTree.SubElement(
            root, "testsuite", name=phase, tests=str(len(mine)),
            failures=str(outcomes.count("failed")), errors=str(outcomes.count("error")),
            skipped=str(outcomes.count("declined") + outcomes.count("unmeasurable")),
            time=f"{sum(v.seconds for v in mine):.3f}")
        for verdict in mine:
            _add_case(suite, verdict)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, verdict: Verdict) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=f"{verdict.phase}.{verdict.falsifier}",
        name=_strip_illegal(verdict.case), time=f"{verdict.seconds:.3f}")
    message = verdict.finding.sentence if verdict.finding else verdict.reason or ""
    tag = {"failed": "failure", "error": "error", "declined": "skipped",
           "unmeasurable": "skipped"}.get(verdict.outcome)
    if tag:
        bad = ElementTree.SubElement(case, tag, message=_strip_illegal(message))
        bad.text = _strip_illegal(f"{message}\nrun it: {verdict.repro}")


def _strip_illegal(text: str) -> str:
    """Return a text without the characters that XML cannot hold."""
    return _ILLEGAL.sub("?", text)
