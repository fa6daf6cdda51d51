"""What the `model` commands print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine import testmodels
from engine.cli import app
from engine.errors import InputError

RUN = CliRunner()


def test_make_writes_a_file_of_the_requested_shape(tmp_path: Path) -> None:
    out = tmp_path / "new.gguf"
    got = RUN.invoke(app, ["model", "make", str(out), "--shape", "nano", "--quant", "q4_k_m",
                           "--seed", "5", "--key-heads", "1", "--value-heads", "3", "--tied"])
    assert got.exit_code == 0
    assert got.stdout == f"{out}: {out.stat().st_size:,} bytes\n"
    shown = json.loads(RUN.invoke(app, ["model", "inspect", str(out), "--json"]).stdout)
    assert (shown["config"]["key_heads"], shown["config"]["value_heads"]) == (1, 3)
    assert shown["config"]["tied"] is True
    assert shown["name"] == "rowtwin nano q4_k_m seed 5"


def test_make_refuses_to_replace_a_file(tmp_path: Path) -> None:
    out = tmp_path / "new.gguf"
    out.touch()
    got = RUN.invoke(app, ["model", "make", str(out)])
    assert isinstance(got.exception, InputError)
    assert RUN.invoke(app, ["model", "make", str(out), "--force"]).exit_code == 0


def test_inspect_as_json_accounts_for_every_byte() -> None:
    path = testmodels.model_path("tiny")
    shown = json.loads(RUN.invoke(app, ["model", "inspect", str(path), "--json"]).stdout)
    assert shown["bytes"] == path.stat().st_size
    assert shown["config"]["recurrent"] == [True, True, False, True, False]
    assert set(shown["types"]) == {"F32", "F16", "BF16", "Q8_0", "Q4_K", "Q5_K", "Q6_K"}
    for key, of in (("bytes", "bytes"), ("tensors", None)):
        total = sum(counts[key] for counts in shown["types"].values())
        assert total == (sum(t[of] for t in shown["tensors"]) if of else len(shown["tensors"]))
    assert shown["parameters"] > 10_000_000


def test_inspect_when_piped_prints_plain_lines() -> None:
    path = testmodels.model_path("nano")
    lines = RUN.invoke(app, ["model", "inspect", str(path)]).stdout.splitlines()
    assert lines[0].startswith(f"{path}: {path.stat().st_size:,} bytes, ")
    assert "recurrent\tGA (G = GDN, A = attention)" in lines
    assert "blk.1.attn_k.weight\tF16\t512x256\t262,144" in lines


def test_inspect_on_a_terminal_draws_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    shown = RUN.invoke(app, ["model", "inspect", str(testmodels.model_path("nano"))]).stdout
    assert "weight types" in shown
    assert "━" in shown


def test_inspect_refuses_a_file_that_is_no_model(tmp_path: Path) -> None:
    got = RUN.invoke(app, ["model", "inspect", str(tmp_path / "none.gguf")])
    assert isinstance(got.exception, InputError)
    assert "No such file" in str(got.exception)


@pytest.mark.parametrize("command", ["make", "inspect"])
def test_help_ends_with_an_example(command: str) -> None:
    shown = RUN.invoke(app, ["model", command, "--help"]).stdout
    assert f"Example: rowtwin model {command} " in shown
