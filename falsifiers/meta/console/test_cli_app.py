"""The command line imports only what it needs and prints a mistake in one sentence."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import rowtwin
from contracts.load import ContractError
from engine.errors import InputError
from falsifiers.console.cli_app import EXIT_SIGPIPE
from falsifiers.console.table import color_status, print_table
from falsifiers.gate import runner
from falsifiers.gate.phase_status import judge_phase
from falsifiers.gate.runner import GateRequest, GateResult, PytestRun
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.console.command import Main, make_main
from falsifiers.meta.judging.factories import FINDING, judged_verdict

LOADED = """\
import sys
import rowtwin
sys.argv[1:] = {argv!r}
try:
    rowtwin.main()
except SystemExit as end:
    code = end.code
heavy = {{"torch", "triton", "numpy", "yaml", "pytest"}} & set(sys.modules)
print("\\nloaded", sorted(heavy), code)
"""


@pytest.mark.parametrize("argv", [["--help"], ["gate", "--help"], ["mutants", "--help"]])
def test_help_loads_nothing_heavy(argv: list[str]) -> None:
    out = subprocess.run([sys.executable, "-c", LOADED.format(argv=argv)], cwd=rowtwin.ROOT,
                         capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "loaded [] 0"
    assert "Example: rowtwin" in out
    if argv == ["--help"]:
        assert all(name in out for name in rowtwin.COMMANDS)


def test_closed_pipe_exits_without_a_message() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    argv = [sys.executable, "rowtwin.py", "witness", "check",
            "reports/receipts/nvidia-h200/witness-p8.json"]
    done = subprocess.run(argv, cwd=rowtwin.ROOT, stdout=writer, stderr=subprocess.PIPE, text=True,
                          check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (EXIT_SIGPIPE, "")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line and returns its code, stdout and stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Replace the gate: it takes an outcome from the list and appends its arguments."""
    plan: list[Any] = []

    def stand_in(wanted: GateRequest, **options: Any) -> GateResult:
        outcome = plan.pop()
        plan.append((wanted, options))
        if isinstance(outcome, BaseException):
            raise outcome
        book = [judged_verdict("a", outcome, phase=phase, falsifier="streams_equal_solo")
                for phase in wanted.phases]
        return GateResult([judge_phase(phase, book) for phase in wanted.phases], PytestRun(book))

    monkeypatch.setattr(runner, "run_gate", stand_in)
    return plan


@pytest.mark.parametrize(("outcome", "code", "word"), [
    ("passed", 0, "PASS"), ("failed", 1, "FAIL"), ("error", 2, "UNMEASURABLE")])
def test_exit_code_of_the_gate_follows_its_status(
        main: Main, gated: list[Any], outcome: str, code: int, word: str) -> None:
    gated.append(outcome)
    got, out, _ = main("gate", "--phase", "1")
    assert got == code
    assert f"p1     {word}" in out
    assert "a pass does not say:" in out
    assert (FINDING.sentence in out) == (outcome == "failed")


def test_json_is_one_object_for_a_phase_and_a_list_for_a_ladder(main: Main,
                                                                gated: list[Any]) -> None:
    gated.append("passed")
    one = json.loads(main("gate", "--phase", "p1", "--json")[1])
    assert {"phase", "verdict", "cases", "passed", "failed", "unmeasurable", "declined",
            "device_proof", "seconds"} <= set(one)
    gated[:] = ["passed"]
    ladder = json.loads(main("gate", "--through", "1", "--json")[1])
    assert [result["phase"] for result in ladder] == ["engine", "p0", "p1"]
    assert gated[0][1]["through"] is True


def test_options_reach_the_gate(main: Main, gated: list[Any]) -> None:
    gated.append("passed")
    main("gate", "--phase", "1", "--candidate", "file:x.py", "--device", "cpu", "--thorough",
         "--jobs", "3", "--require-device")
    wanted, options = gated[0]
    assert (wanted.phases, wanted.candidate, wanted.device, wanted.thorough, wanted.jobs) == (
        ("p1",), "file:x.py", "cpu", True, 3)
    assert options["require_device"] is True


@pytest.mark.parametrize("mistake", [
    SuiteError("it is broken"), ContractError("it is broken"), InputError("it is broken")])
def test_user_s_mistake_is_one_sentence(main: Main, gated: list[Any], mistake: Exception) -> None:
    gated.append(mistake)
    assert main("gate", "--phase", "1") == (2, "", "rowtwin: it is broken\n")


def test_control_characters_of_a_message_are_escaped(main: Main, gated: list[Any]) -> None:
    gated.append(SuiteError("a\x1b[2J\u202eb\udcff"))
    assert main("gate", "--phase", "1") == (2, "", "rowtwin: a\\x1b[2J\\u202eb\\xff\n")


@pytest.mark.parametrize("argv", [
    ["vectors", "check"], ["vectors", "export", "--phase", "3"], ["trace", "nano", "--out"],
    ["bisect", "--trace", "x", "--trace"], ["gate", "--phase", "3", "--candidate"]])
def test_path_that_is_too_long_is_one_sentence(main: Main, argv: list[str]) -> None:
    long = "a" * 300
    code, out, err = main(*argv, f"vectors:{long}" if argv[0] == "gate" else long)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rowtwin: ")


@pytest.mark.parametrize("error", [
    PermissionError(13, "Permission denied", "/no/rights"), OSError(5, "I/O error", "/bad/disk"),
    OSError(28, "No space left on device", "/full/disk")])
def test_error_about_a_file_is_one_sentence(main: Main, gated: list[Any], error: OSError) -> None:
    gated.append(error)
    assert main("gate", "--phase", "1") == (
        2, "", f"rowtwin: {error.filename} cannot be used: {error.strerror}\n")


def test_interrupt_exits_without_a_traceback(main: Main, gated: list[Any]) -> None:
    gated.append(KeyboardInterrupt())
    code, _, err = main("gate", "--phase", "1")
    assert code == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("argv", "sentence"), [
    (["gate", "--phase", "9"], "unknown phase '9'"),
    (["gate", "--phase", "1", "--through", "3"], "give one of --phase, --through and --case"),
    (["gate", "--case", "p1/streams_equal_solo[cpu-nano-m99]"], "did you mean p1/"),
    (["gate", "--phase", "1", "--device", "tpu"], "unknown device 'tpu'"),
    (["gate", "--phase", "1", "--jobs", "0"], "--jobs must be 1 or more, but is 0"),
    (["golden", "check", "nope"], "golden: there are no goldens of nope; create those of a test"),
    (["model", "inspect", "/no\udcff.gguf"], r"cannot read /no\xff.gguf: No such file"),
    (["gate", "--phase", "4", "--weights", "x.gguf"], "is judged by phase 3: add --phase 3"),
    (["gate", "--weights", "x.gguf"], "is judged by phase 3: add --phase 3"),
    (["gate", "--phase", "3", "--weights", "x.gguf", "--tensors", "0"], "--tensors must be 1"),
    (["gate", "--phase", "3", "--weights", "x.gguf", "--thorough"], "use --tensors N"),
    (["gate", "--phase", "3", "--weights", "no.gguf"], "cannot read no.gguf: No such file"),
    (["gate", "--phase", "3", "--tensor", "blk.0.w"], "--tensor needs a file: add --weights FILE"),
    (["gate", "--phase", "1", "--candidate", "mine"], "unknown candidate 'mine'"),
    (["gate", "--phase", "1", "--candidate", ""], "unknown candidate ''"),
    (["bisect", "nano", "--phase", "5", "--candidate", ""], "unknown candidate ''"),
    (["trace", "nano", "--candidate", "", "--out", "x"], "unknown candidate ''"),
    (["bench", "step", "--model", "x.gguf", "--path", ""], "unknown candidate ''"),
    (["bench", "step", "--model", "x.gguf", "--path", "p9"], "unknown candidate 'p9'"),
    (["paths", "--phase", "9"], "'9' is no phase of the decode path"),
    (["mutants", "--phase", "9"], "unknown phase '9'"),
    (["mutants", "--device", "tpu"], "unknown device 'tpu'")])
def test_bad_usage_names_the_wrong_value(main: Main, argv: list[str], sentence: str) -> None:
    code, out, err = main(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("rowtwin: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_paths_prints_the_kernel_of_each_op_and_tier(main: Main) -> None:
    code, out, _ = main("paths", "--phase", "5")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("conv_step "))
    assert line.split()[1:] == [f"p5_batched_gdn.{name}.conv_step" for name in (
        "reference", "kernel_conv", "kernel_gdn_cuda")]
    shown = json.loads(main("paths", "--json")[1])
    assert shown["path"] == "p8"
    assert shown["ops"]["attend"]["cuda"].endswith("kernel_attend_cuda.attend")


def test_unknown_command_is_bad_usage(main: Main) -> None:
    assert main("gat")[0] == 2


def commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and object of every command."""
    inside = getattr(command, "commands", {})
    if not inside or getattr(command, "invoke_without_command", False):
        yield name, command
    for word, subcommand in inside.items():
        yield from commands(f"{name} {word}", subcommand)


@pytest.mark.parametrize("name", rowtwin.COMMANDS)
def test_every_command_has_an_example_with_options_that_it_knows(name: str) -> None:
    app = importlib.import_module(rowtwin.COMMANDS[name][0]).app
    for typed, command in commands(name, typer.main.get_group(app).commands[name]):
        example = (command.epilog or "").removeprefix("Example: ").split("; ")[0]
        assert example.startswith(f"rowtwin {typed.removesuffix(' take')}"), typed
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"(?<= )--[a-z-]+", example)) <= known


@pytest.mark.parametrize(("terminal", "no_color", "expected"), [
    (False, "", "FAIL  "), (True, "", "\x1b[31mFAIL  \x1b[0m"), (True, "1", "FAIL  ")])
def test_colour_is_only_for_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool,
                                       no_color: str, expected: str) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("NO_COLOR", no_color)
    assert color_status("FAIL  ") == expected
    assert color_status("other") == "other"


def test_table_is_plain_columns_in_a_pipe_and_drawn_at_a_terminal(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("p1", "PASS"), ("p10", "[bold]x")]
    print_table(("phase", "word"), rows, "Title")
    assert capsys.readouterr().out == "Title\nphase  word\np1     PASS\np10    [bold]x\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_table(("phase", "word"), rows, "Title")
    assert "[bold]x" in capsys.readouterr().out  # a cell is never markup
