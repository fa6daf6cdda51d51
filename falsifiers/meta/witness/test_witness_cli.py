"""The commands `witness` and `witness check`: quick, plain, and never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rowtwin
from falsifiers.meta.console.command import Main, make_main
from falsifiers.meta.witness.stub_faults import repeat_one_token
from falsifiers.meta.witness.stub_server import StubServer, serve_stub
from falsifiers.meta.witness.witness_files import WITNESS_TABLE, make_witness

LOADED = """\
import sys
import rowtwin
sys.argv[1:] = {argv!r}
try:
    rowtwin.main()
except SystemExit as end:
    code = end.code
heavy = {{"torch", "triton", "numpy", "yaml", "pytest", "httpx", "jinja2", "prometheus_client",
         "asyncio.runners"}}
print("\\nloaded", sorted(heavy & set(sys.modules)), code)
"""


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys, "witness")


@pytest.mark.parametrize(("argv", "code"), [
    (["witness", "--help"], 0), (["witness", "check", "--help"], 0),
    (["witness", "check", "FILE"], 1)])
def test_check_and_help_load_nothing_heavy(argv: list[str], code: int, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_text('{"bands": [{"c": 4}]}')
    argv = [str(tmp_path / part) if part == "FILE" else part for part in argv]
    out = subprocess.run([sys.executable, "-c", LOADED.format(argv=argv)], cwd=rowtwin.ROOT,
                         capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == f"loaded [] {code}"
    assert ("Example: rowtwin witness" in out) == (code == 0)


@pytest.mark.parametrize("name", ["good", "never batched", "everything"])
def test_check_prints_every_reason_and_exits_with_its_code(main: Main, name: str,
                                                           tmp_path: Path) -> None:
    witness, broken = WITNESS_TABLE[name]
    (tmp_path / "w.json").write_text(json.dumps(witness))
    code, out, err = main("check", tmp_path / "w.json")
    assert (code, err) == (1 if broken else 0, "")
    word, *lines = out.splitlines()
    assert word == ("NOT ADMISSIBLE" if broken else "ADMISSIBLE")
    assert [line.partition(": ")[0] for line in lines] == broken
    code, out, _ = main("check", tmp_path / "w.json", "--json")
    printed = json.loads(out)
    assert (code, printed["verdict"]) == (1 if broken else 0, word)
    assert [reason["rule"] for reason in printed["reasons"]] == broken
    assert [f"{r['rule']}: {r['sentence']}" for r in printed["reasons"]] == lines


def test_prefix_is_the_user_s(main: Main, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(make_witness(model={"path": "Tiny.gguf", "sha256": "m"})))
    assert main("check", path, "--model-prefix", "tiny")[0] == 0
    assert main("check", path)[0] == 1
    assert main("check", path, "--model-prefix", " ") == (
        2, "", "rowtwin: --model-prefix is empty, which would admit every model: pass a name\n")


@pytest.mark.parametrize("text", [None, "", "[1]", '{"bands": []}', '{"bands": [{"c": true}]}'])
def test_malformed_witness_is_red(main: Main, text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "w.json").write_text(text)
    code, out, err = main("check", tmp_path / "w.json")
    assert (code, out.splitlines()[0], err) == (2, "RED", "")
    assert len(out.splitlines()) == 2
    printed = json.loads(main("check", tmp_path / "w.json", "--json")[1])
    assert (printed["verdict"], [r["rule"] for r in printed["reasons"]]) == ("RED", [None])


def test_witness_page_starts_a_server_before_it_asks_it() -> None:
    text = (rowtwin.ROOT / "docs" / "witness.md").read_text(encoding="utf-8")
    lines = text.split("```")[1].splitlines()
    (server,) = [line for line in lines if "rowtwin serve" in line]
    (command,) = [line for line in lines if "rowtwin witness" in line]
    assert lines.index(server) < lines.index(command)
    assert server.endswith("&")
    assert f":{server.split('--port ')[1].split()[0]} " in command
    assert "--wait " in command


SHORT = ("--c", "1,4", "--n-predict", "24", "--declared-min", "20", "--replicates", "1",
         "--timeout", "20")


def test_witness_is_taken_written_drawn_and_checked(main: Main, tmp_path: Path) -> None:
    out, drawn, weights = (tmp_path / name for name in ("w.json", "w.html", "Qwen3.5-4B.gguf"))
    weights.write_bytes(b"weights")
    with serve_stub(StubServer(name="qwen")) as url:
        code, printed, err = main(f"{url}/v1", "--out", out, *SHORT, "--html", drawn,
                                  "--model-file", weights, "--commit", "abc", "--binary", weights)
    assert (code, err) == (0, "")
    assert [line[:9] for line in printed.splitlines()[:2]] == ["c=1   PAS", "c=4   PAS"]
    assert drawn.read_text().lstrip().startswith("<!doctype html>")
    code, printed, _ = main("check", out)
    rules = [line.partition(":")[0] for line in printed.splitlines()[1:]]
    assert (code, [rule for rule in rules if rule != "S7"]) == (1, ["S2", "S2", "floor", "floor"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "Qwen3.5-4B.gguf", "w.html", "w.json"]


@pytest.mark.parametrize(("fault", "code"), [
    ({"token": repeat_one_token}, 1), ({"slots": 1}, 2), ({"metric": None}, 2)])
def test_exit_code_is_that_of_the_worst_band(main: Main, fault: dict[str, Any], code: int,
                                             tmp_path: Path) -> None:
    with serve_stub(StubServer(**fault)) as url:
        assert main(url, "--out", tmp_path / "w.json", *SHORT)[0] == code


def test_log_file_is_evidence_of_the_batch(main: Main, tmp_path: Path) -> None:
    log, out = tmp_path / "server.log", tmp_path / "w.json"
    log.touch()

    class Written(list[str]):
        def append(self, line: str) -> None:
            with log.open("a") as end:
                end.write(f"INFO {line}\n")

    with serve_stub(StubServer(metric=None, log=Written())) as url:
        assert main(url, "--out", out, *SHORT, "--log-file", log)[0] == 0
    witness = json.loads(out.read_text())
    assert [band["m_formed"] for band in witness["bands"]] == [1, 4]
    assert witness["m_formed_from"] == r"log lines with Batch m=(\d+)"


@pytest.mark.parametrize(("argv", "sentence"), [
    (["127.0.0.1:1"], "is not an address"), (["http://h", "--c", "x"], "is not a list of widths"),
    (["http://127.0.0.1:99999"], "a port is 0 to 65535"),
    (["http://h", "--metrics-url", "http://h:99999/metrics"], "a port is 0 to 65535"),
    (["http://h", "--metrics-url", "ftp://h"], "is not an address"),
    (["http://h", "--n-predict", "63"], "--declared-min 64 is more than the 63 tokens of"),
    (["http://h", "--prompt", ""], "the prompt is empty"),
    (["http://h", "--prompt", "a", "--prompt-file", "b"], "give one of --prompt"),
    (["http://h", "--prompt-file", "/nowhere"], "--prompt-file /nowhere: no such file"),
    (["http://h", "--binary", "/nowhere"], "--binary /nowhere: this is not a file"),
    (["http://h", "--model-file", "/"], "--model-file /: this is not a file"),
    (["http://h", "--field", "m", "--metric", "m"], "give one source of evidence"),
    (["http://h", "--api-key", "a\nb"], "--api-key holds characters"),
    (["http://h", "--model", " "], "--model is not a name"),
    (["http://h", "--out", "/nowhere/at/all"], "/nowhere/at/all cannot be written")])
def test_mistake_is_one_sentence(main: Main, argv: list[str], sentence: str,
                                 tmp_path: Path) -> None:
    out = [] if "--out" in argv else ["--out", tmp_path / "w.json"]
    code, printed, err = main(*argv, *out)
    assert (code, printed) == (2, "")
    assert err.startswith("rowtwin: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("argv", [[], ["http://h"], ["http://h", "--out", "x", "--n-predict", "0"],
                                  ["check"], ["http://h", "--out", "x", "--timeout", "0"],
                                  ["http://h", "--out", "x", "--timeout", "nan"]])
def test_bad_usage_prints_the_usage(main: Main, argv: list[str]) -> None:
    code, out, err = main(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: rowtwin witness")
    assert "Traceback" not in err


def test_older_witness_does_not_outlive_a_run_that_dies(main: Main, tmp_path: Path) -> None:
    out = tmp_path / "w.json"
    out.write_text(json.dumps(make_witness()))
    assert main("http://h", "--out", out, "--model", "x", "--api-key", "\n")[0] == 2
    assert main("check", out)[0] == 2
