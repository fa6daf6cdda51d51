"""The published schemas of a report's files; `python -m reports.schemas` writes them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from falsifiers.judging.matrix import KillMatrix
from falsifiers.judging.verdict import Verdict
from reports.run_metadata import RunRecord

FOLDER = Path(__file__).parent / "schema"
SCHEMA_MODELS: dict[str, type[BaseModel]] = {
    "verdict.schema.json": Verdict, "run.schema.json": RunRecord, "mutants.schema.json": KillMatrix}
"""By file: one line of verdicts.jsonl, run.json, mutants.json."""
DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXTRA_RULES: tuple[dict[str, Any], ...] = (
    {"if": {"properties": {"outcome": {"const": "failed"}}},
     "then": {"properties": {"finding": {"type": "object"}}},
     "else": {"properties": {"finding": {"type": "null"}}}},
    {"if": {"properties": {"outcome": {"const": "passed"}}},
     "then": {"properties": {"compared": {"minimum": 1}}}},
    {"if": {"properties": {"outcome": {"enum": ["declined", "unmeasurable", "error"]}}},
     "then": {"properties": {"reason": {"type": "string", "minLength": 1}}}})
"""Rules for a verdict that its record checks in Python."""


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON schema of a report's file."""
    record = SCHEMA_MODELS[name]
    schema = {"$schema": DRAFT, **record.model_json_schema(mode="serialization")}
    return {**schema, "allOf": list(EXTRA_RULES)} if record is Verdict else schema


def schema_text(name: str) -> str:
    """Return a schema as the text of its file."""
    return json.dumps(schema_of(name), indent=2) + "\n"


if __name__ == "__main__":
    for name in SCHEMA_MODELS:
        (FOLDER / name).write_text(schema_text(name), encoding="utf-8")
