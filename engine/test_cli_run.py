"""What `generate` and `logits` print, write and refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine import testmodels
from engine.cli import app
from engine.errors import InputError

RUN = CliRunner()


def test_generate_streams_text_and_ends_with_a_rate() -> None:
    path = str(testmodels.model_path("nano"))
    got = RUN.invoke(app, ["generate", path, "the time of", "--limit", "8", "--ignore-end"])
    assert got.exit_code == 0
    assert got.stdout.strip()
    assert re.search(r"and 8 new ones in [\d.]+ s: [\d.]+ tokens/s", got.stderr)
    again = RUN.invoke(app, ["generate", path, "the time of", "--limit", "8", "--ignore-end"])
    assert again.stdout == got.stdout
    narrow = RUN.invoke(app, ["generate", path, "the time of", "--limit", "2", "--kv", "bf16"])
    assert narrow.exit_code == 0


@pytest.mark.parametrize(("arguments", "named"), [
    (["generate", "{}", ""], "empty"),
    (["generate", "{}", "x", "--limit", "0"], "0 new"),
    (["generate", "{}", "x", "--limit", "40000"], "context"),
    (["generate", "missing.gguf", "x"], "missing.gguf"),
    (["generate", "{}", "x", "--kv", "f8"], "'f8'"),
    (["logits", "{}", "--tokens", "1,a", "--out", "x"], "'a'"),
    (["logits", "{}", "--tokens", "1,509", "--out", "x"], "509"),
    (["logits", "{}", "--tokens", "-1", "--out", "x"], "-1"),
    (["logits", "{}", "--tokens", "1_0", "--out", "x"], "'1_0'"),
    (["logits", "{}", "--tokens", "\u0661", "--out", "x"], "token id"),
    (["logits", "{}", "--tokens", "9" * 5000, "--out", "x"], "at most 9 digits"),
    (["logits", "{}", "--tokens", "1", "--out", "y" * 300], "cannot be written"),
    (["model", "make", "m", "--layers", "100000000000"], "layers"),
])
def test_bad_input_is_refused_in_one_sentence(arguments: list[str], named: str, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(testmodels.model_path("nano"))
    got = RUN.invoke(app, [part.format(path) for part in arguments])
    assert isinstance(got.exception, InputError)
    assert named in str(got.exception)
    assert "\n" not in str(got.exception)
    assert list(tmp_path.iterdir()) == []
