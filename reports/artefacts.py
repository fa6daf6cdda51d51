"""Writes the files of a report, and removes those of an older one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from falsifiers.judging.errors import SuiteError
from reports import schemas, summary_line, views
from reports.evidence import Evidence
from reports.junit import junit_xml
from reports.markdown import format_brief
from reports.render import SIDE_FILES, page
from reports.run_metadata import make_record

FILE_NAMES = ("index.html", *SIDE_FILES)


def prepare_folder(folder: Path) -> Path:
    """Make the folder and remove an older report, so that an aborted run leaves no old page.

    Raises `SuiteError` if the folder is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILE_NAMES:
            (folder / name).unlink(missing_ok=True)
        probe = folder / FILE_NAMES[0]
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SuiteError(f"--out {folder}: cannot be written: {error.strerror}") from None
    return folder


def write_report(folder: Path, evidence: Evidence) -> None:
    """Write every file of a report."""
    lines = [verdict.model_dump_json() for verdict in evidence.every_verdict]
    texts = {
        "verdicts.jsonl": "".join(f"{line}\n" for line in lines), "junit.xml": junit_xml(evidence),
        "report.md": format_brief(evidence), "index.html": page(evidence),
        "run.json": make_record(evidence).model_dump_json(indent=2) + "\n",
        **{name: schemas.schema_text(name) for name in schemas.SCHEMA_MODELS},
        "mutants.json": json.dumps(evidence.kills.matrix.model_dump(), indent=2) + "\n"}
    for name in FILE_NAMES:
        (folder / name).write_text(texts[name], encoding="utf-8", errors="backslashreplace")


def summary_lines(folder: Path, evidence: Evidence) -> Iterator[str]:
    """Yield the terminal's lines: one for each phase, the first failures, and the page's path."""
    for rung in views.summarise_phases(evidence):
        if rung.result:
            yield f"{rung.phase:<7}{rung.word:<13}{rung.counts}, {rung.result.seconds:.0f} s"
    for group in views.group_failures(evidence)[:5]:
        first = group.failures[0]
        yield f"\n{first.sentence}\n    run it: {first.verdict.repro}"
    facts = summary_line.facts(evidence)
    yield f"\n{summary_line.answer(evidence)} Mutants: {facts['mutants']}. It took {facts['took']}."
    yield f"{folder / 'index.html'}"
