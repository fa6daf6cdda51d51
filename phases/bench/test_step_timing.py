"""Steps with other bits are not timed, and kernels are counted under the correct op."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as FilePath
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from engine import ops, testmodels
from engine.errors import InputError
from engine.path import Path, one_by_one
from engine.weights import Weight
from falsifiers.gate.benchmark_records import BitsDifferError, StepTimes
from falsifiers.meta.console.command import command_entry, make_main
from phases.bench import cli, time_by_op
from phases.bench.memory_floor import step_bytes
from phases.bench.step_parity import check_equal
from phases.bench.step_tables import report_lines
from phases.bench.step_timing import StepBenchmark, TimingOptions, make_benchmark
from phases.bench.time_by_op import DeviceEvent, device_events, match_ops, split_by_op
from phases.p1_looped_step import increment as p1
from phases.p4_batched_matmul import increment as p4
from phases.p4_batched_matmul.batched_step import step_rows
from phases.p8_decode_graph import increment as p8


def bench(*paths: Path, **options: Any) -> StepBenchmark:
    """Return a benchmark of `nano` with the smallest number of steps."""
    chosen = {"ms": (1, 3), "contexts": (5,), "seconds": 0.0, **options}
    return StepBenchmark(testmodels.load("nano"), p1.path(), paths, TimingOptions(**chosen), 1e9)


def test_every_width_and_context_has_a_figure_of_equal_bits() -> None:
    steps = bench(p4.path(), ms=(1, 6), contexts=(5, 66), prefill=9).run()
    assert [(f.m, f.context) for f in steps.figures] == [(1, 5), (6, 5), (1, 66), (6, 66)]
    for f in steps.figures:
        assert f.steps == 3
        assert f.fastest <= f.milliseconds <= f.slowest
        assert {"conv_step", "attend", "head", "argmax", "project.ffn_up"} <= set(f.split)
        assert f.clock == "host"
    one, six = (steps.at("p4", m, 5) for m in (1, 6))
    assert one is not None
    assert six is not None
    assert six.equal_values == 6 * one.equal_values > 2 * testmodels.load("nano").new_pool(
        1, 5).nbytes // 4
    assert steps.prefill[0].equal_steps == 9
    assert StepTimes.model_validate_json(steps.model_dump_json()) == steps
    assert not any("p4, context 66" in line for line in report_lines(steps))  # no m = 4, no m = 8


@pytest.mark.parametrize("other", [p1, p8])
def test_two_paths_are_measured_in_one_run(other: ModuleType) -> None:
    steps = bench(p4.path(), other.path(), ms=(2,)).run()
    assert [f.path for f in steps.figures] == ["p4", other.path().name]
    assert all({"head", "attend"} <= set(f.split) for f in steps.figures)
    assert sum(line.endswith("ms by op on the host") for line in report_lines(steps)) == 2


def last_row_rounded(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Multiply the last row with bfloat16 activations, as a fast kernel might."""
    ops.project(weight, x, out)
    if len(x) > 1:
        ops.project(weight, x[-1:].bfloat16().float(), out[-1:])


def last_logit_off(*args: Any) -> Tensor:
    """Run a step, then change a bit of the last row's last logit."""
    logits = step_rows(*args)
    if len(logits) > 1:
        logits[-1, -1] *= 1.0000002
    return logits


def neighbour_in_the_cache(*args: Any) -> None:
    """Attend correctly, then change a bit in the last row's cached keys."""
    ops.attend(*args)
    keys, lengths = args[4], args[6]
    if len(lengths) > 1:
        keys.views[-1][0] *= 1.0000001


@pytest.mark.parametrize(("wrong", "message"), [
    ({"project": last_row_rounded}, r"0\.conv\[row 2, slot 0\] of p4, m = 3, context 5"),
    ({"step_rows": last_logit_off}, r"logits\[row 2, slot 0\] of p4, m = 3, context 5, value 508"),
    ({"attend": neighbour_in_the_cache}, r"1\.k\[row 2, slot 0\] of p4, m = 3, context 5")])
def test_step_with_other_bits_is_not_timed(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BitsDifferError, match=message):
        bench(replace(p4.path(), **wrong)).run()


def test_greedy_step_with_another_token_is_not_timed() -> None:
    def off(*args: Any) -> list[list[int]]:
        return [[(row[0] + 1) % 509] for row in one_by_one(*args)]

    with pytest.raises(BitsDifferError, match=r"the greedy token\[row 0, slot 0\] of p4, m = 1"):
        bench(replace(p4.path(), greedy_rows=off)).run()


def test_prompt_with_other_bits_is_not_timed() -> None:
    def forgets(*args: Any) -> None:
        ops.conv_step(*args)
        windows, counts = args[2:4]
        if counts[0] > 1:
            windows.views[0].zero_()

    with pytest.raises(BitsDifferError, match="after a prompt of 7 tokens"):
        bench(replace(p4.path(), conv_step=forgets), ms=(1,), prefill=7).run()


def test_prompt_that_would_take_too_long_is_listed_as_left_out() -> None:
    steps = bench(p4.path(), ms=(1,), prefill=500, patience=0.0).run()
    assert steps.prefill == ()
    assert "no prompt of 500 tokens, which would take about" in steps.left_out[0]


@pytest.mark.parametrize(("got", "want", "equal"), [
    ([1.0, float("nan")], [1.0, -float("nan")], True), ([0.0], [-0.0], False),
    ([1.0, 2.0], [1.0, float("nan")], False), ([1.0], [1.0, 1.0], False)])
def test_values_are_compared_bit_for_bit(got: list[float], want: list[float], equal: bool) -> None:
    if equal:
        assert check_equal("x", torch.tensor(got), torch.tensor(want)) == len(got)
        return
    with pytest.raises(BitsDifferError, match="x"):
        check_equal("x", torch.tensor(got), torch.tensor(want))


def test_steps_over_narrow_caches_are_compared_and_say_so() -> None:
    narrow = testmodels.load("nano").with_kv("bf16")
    steps = StepBenchmark(
        narrow, p1.path(), (p4.path(),), TimingOptions((2,), (5,), seconds=0.0), 1e9
    ).run()
    assert steps.model.endswith("keys and values in bf16")
    assert 2 * step_bytes(narrow).cache == step_bytes(testmodels.load("nano")).cache


def test_floor_counts_every_byte_that_a_step_must_move() -> None:
    model = testmodels.load("nano")
    sizes, pool = step_bytes(model), model.new_pool(1, 10)
    assert pool.nbytes == sizes.state + 10 * sizes.cache
    matrices = sum(w.raw.nbytes for w in model.weights.matrices())
    assert matrices - model.weights.embedding.raw.nbytes < sizes.weights < matrices
    tied = testmodels.load("nano-tied")
    assert step_bytes(tied).weights > sum(w.raw.nbytes for w in tied.weights.matrices())


def kernel(name: str, launch: float, start: float, number: int) -> list[dict[str, Any]]:
    """Return a launch and its kernel as events of a profile."""
    return [{"cat": "cuda_driver", "name": "cuLaunchKernel", "ts": launch,
             "args": {"correlation": number}},
            {"cat": "kernel", "name": name, "ts": start, "dur": 2000.0,
             "args": {"correlation": number}}]


def marked_profile() -> list[dict[str, Any]]:
    """Return a profile of two marks, with kernels launched before, between and after them."""
    def run() -> None:
        time_by_op.mark_op("0.project.attn_q")
        torch.ones(3).sum()
        time_by_op.mark_op("head")

    events = time_by_op.profile_run(run)
    first, second = (next(e["ts"] for e in events if e.get("name") == time_by_op.MARK_PREFIX + op)
                     for op in ("0.project.attn_q", "head"))
    late = second + 1e6
    return [*events, *kernel("a", first - 1, late, 1),
            *kernel("b", (first + second) / 2, late + 9, 2), *kernel("a", second + 1, late + 20, 3)]


def test_kernel_goes_to_the_op_that_was_marked_after_its_launch() -> None:
    found = device_events(marked_profile())
    assert [(r.name, r.op) for r in found] == [("a", "0.project.attn_q"), ("b", "head"),
                                               ("a", "argmax")]
    assert time_by_op.count_launches(marked_profile()) == 3
    assert all(r.op == time_by_op.UNKNOWN_OP for r in device_events(kernel("a", 1.0, 2.0, 3)))


def test_kernels_of_a_replayed_graph_get_their_ops_by_their_order() -> None:
    marked = device_events(marked_profile())
    plain = [DeviceEvent(name, 1.0, time_by_op.UNKNOWN_OP, True) for name in ("a", "b", "a")]
    assert [r.op for r in match_ops(plain, marked)] == ["0.project.attn_q", "head", "argmax"]
    more = [DeviceEvent("fill", 1.0, time_by_op.UNKNOWN_OP, False), *plain]
    assert [r.op for r in match_ops(more, marked)] == [time_by_op.UNKNOWN_OP, "0.project.attn_q",
                                                     "head", "argmax"]


def test_split_counts_time_by_op_and_kernels_by_kind_of_layer() -> None:
    config = testmodels.load("tiny").config
    gdn, attention = config.gdn_layers, config.attention_layers
    found = [*(DeviceEvent("k", 1.0, f"{i}.gates", True) for i in gdn),
             *(DeviceEvent("k", 2.0, f"{i}.attend", True) for i in attention),
             DeviceEvent("copy", 0.5, f"{gdn[0]}.gates", False),
             DeviceEvent("k", 4.0, "head", True)]
    split = split_by_op(found, 7, config)
    assert split.milliseconds == {"gates": len(gdn) + 0.5, "attend": 2.0 * len(attention),
                                  "head": 4.0}
    assert split.kernels_per_layer == {"gdn": 1.0, "attention": 1.0, "outside": 1.0}
    assert (split.kernels, split.launches) == (len(gdn) + len(attention) + 1, 7)


@pytest.mark.parametrize(("text", "message"), [
    ("1,x", "is not a list of numbers"), ("0", "outside 1 to 64"), ("65", "outside 1 to 64")])
def test_bad_widths_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cli._parse_numbers("--m", text, 64)


def test_command_prints_only_json_and_writes_the_same(
        tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    paths = {"p1": p1.path(), "p4": p4.path()}
    monkeypatch.setattr("rowtwin.decode_path", paths.__getitem__)
    run = make_main(command_entry(cli.bench_app, InputError), monkeypatch, capsys, "app", "step")
    out = tmp_path / "step.json"
    code, printed, err = run("--model", testmodels.model_path("nano"), "--m", "1,4",
                             "--context", "3", "--path", "p4", "--json", "--out", out)
    assert code == 0, err
    steps = StepTimes.model_validate_json(printed)
    assert StepTimes.model_validate_json(out.read_text()) == steps
    assert "S7 asks for 0.50" in steps.verdicts()[0]


@pytest.mark.parametrize(("file", "options", "message"), [
    ("/nowhere/x.gguf", {}, "/nowhere/x.gguf"),
    ("", {"contexts": (40000,)}, "40,000 tokens do not fit the model's context of 32,768"),
    ("", {"prefill": -1}, "--prefill -1 is refused")])
def test_impossible_measurements_are_refused(file: str, options: dict[str, Any],
                                             message: str) -> None:
    chosen = {"ms": (1,), "contexts": (4,), "prefill": 0, "tell": print, **options}
    with pytest.raises(InputError, match=message):
        make_benchmark(FilePath(file) if file else testmodels.model_path("nano"), p1.path(),
                       [p4.path()], **chosen)
