"""Names of another engine's ops: an invalid file of names is refused in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from falsifiers.bisect import trace_names
from falsifiers.judging.errors import SuiteError


@pytest.mark.parametrize(("text", "sentence"), [
    ("ops: [a]", "ops: Input should be a valid dictionary"), ("more: {}", "more: Extra inputs"),
    ("ops: {a: {b: c}}", "ops.a: Input should be a valid string"), ("ops: {", "is not YAML"),
    ("ops: {'{layer}.{layer}': a}", "may occur once"), ("ops: {a: '{layer}'}", "may occur once"),
    ("ops: {a: b, a: c}", "duplicate key 'a'"), ("ops: {a: ''}", "ops.a: "),
    ('ops: {a: "\\e[2J"}', "ops.a: "), ("- a", "top level: "),
    ("!!python/object:os.system {}", "is not YAML")])
def test_invalid_names_are_refused_in_one_sentence(tmp_path: Path, text: str,
                                                   sentence: str) -> None:
    path = tmp_path / "names.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=re.escape(sentence)) as refused:
        trace_names.load_names(path)
    assert "\n" not in str(refused.value)
