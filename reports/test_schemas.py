"""A report's files satisfy the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from jsonschema import Draft202012Validator

from falsifiers.judging.verdict import Verdict
from reports import artefacts, fake_evidence, schemas
from reports.evidence import Evidence

PAGES = {
    "green": fake_evidence.evidence(),
    "red": fake_evidence.failing_evidence(),
    "hostile": fake_evidence.failing_evidence(fake_evidence.HOSTILE_TEXT),
    "empty": fake_evidence.empty_evidence(),
}


@pytest.fixture(autouse=True)
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no page: it takes longer than all else, and has no schema."""
    monkeypatch.setattr(artefacts, "page", lambda evidence: "")


@pytest.fixture(params=PAGES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    evidence: Evidence = PAGES[request.param]
    artefacts.write_report(tmp_path, evidence)
    return tmp_path


@pytest.mark.parametrize("name", schemas.SCHEMA_MODELS)
def test_published_schema_is_the_record_s(name: str) -> None:
    stored = json.loads((schemas.FOLDER / name).read_text())
    assert stored == schemas.schema_of(name), "python -m reports.schemas writes them again"
    Draft202012Validator.check_schema(stored)


def parse_strict(text: str) -> Any:
    """Parse JSON as the standard has it, in which there is no NaN."""
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_every_file_validates_against_the_schema_beside_it(folder: Path) -> None:
    stored = {name: parse_strict((folder / name).read_text()) for name in schemas.SCHEMA_MODELS}
    for line in (folder / "verdicts.jsonl").read_text().splitlines():
        Draft202012Validator(stored["verdict.schema.json"]).validate(parse_strict(line))
    for name in ("run", "mutants"):
        Draft202012Validator(stored[f"{name}.schema.json"]).validate(
            parse_strict((folder / f"{name}.json").read_text()))
    xmlschema.XMLSchema(schemas.FOLDER / "junit.xsd").validate(folder / "junit.xml")


def verdict_line(outcome: str = "passed") -> dict[str, Any]:
    case = next(fake_evidence.contract().expand())
    result: dict[str, Any] = json.loads(fake_evidence.verdict(case, outcome).model_dump_json())
    return result


@pytest.mark.parametrize(("outcome", "change"), [
    ("passed", {"compared": 0}), ("passed", {"finding": {}}), ("passed", {"outcome": "skipped"}),
    ("failed", {"finding": None}), ("failed", {"outcome": "passed"}), ("error", {"reason": None}),
    ("declined", {"reason": ""}), ("passed", {"unknown": 1}), ("passed", {"tier": "tpu"}),
    ("passed", {"seconds": "1"})])
def test_schema_refuses_what_the_record_refuses(outcome: str, change: dict[str, Any]) -> None:
    schema = Draft202012Validator(schemas.schema_of("verdict.schema.json"))
    assert schema.is_valid(verdict_line(outcome))
    assert not schema.is_valid({**verdict_line(outcome), **change})
    with pytest.raises(ValueError, match="validation error"):
        Verdict.model_validate_json(json.dumps({**verdict_line(outcome), **change}), strict=True)


@pytest.mark.parametrize(("old", "new"), [
    ('failures="1"', 'failures="many"'), ("failure", "fault"), ('name="p1"', 'name="p9"'),
    (' message="', ' sentence="')])
def test_junit_schema_can_fail(tmp_path: Path, old: str, new: str) -> None:
    artefacts.write_report(tmp_path, fake_evidence.evidence(("failed",) + ("passed",) * 6))
    text = (tmp_path / "junit.xml").read_text()
    assert old in text
    schema = xmlschema.XMLSchema(schemas.FOLDER / "junit.xsd")
    assert schema.is_valid(text)
    assert not schema.is_valid(text.replace(old, new))
