"""Every faulty stub server gets its verdict, and the correct one passes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from falsifiers.meta.witness import stub_faults as faults
from falsifiers.meta.witness.stub_faults import FAULT_POSITION
from falsifiers.meta.witness.stub_server import (
    MODEL_NAME,
    STEP_SECONDS,
    Seat,
    StubServer,
    serve_stub,
)
from falsifiers.witness import file, rules
from falsifiers.witness.run import WitnessRequest, exit_code, run
from falsifiers.witness.sources import SourceOptions
from falsifiers.witness.take import Plan

SHORT = Plan(widths=(1, 4), n_predict=24, declared_min=20)
"""A short plan for tests that judge neither the floor nor a rate."""


@pytest.fixture
def take(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a function that takes the witness of a stub and reads its file."""
    def take_from(stub: StubServer, plan: Plan = SHORT, named: SourceOptions | None = None,
                  **more: Any) -> dict[str, Any]:
        model = tmp_path / MODEL_NAME
        model.write_bytes(b"weights")
        out = tmp_path / "witness.json"
        lines: list[str] = []
        with serve_stub(stub) as url:
            run(WitnessRequest(url, out, plan, named or SourceOptions(), model_file=model,
                               binary=model, commit="abc", clock=stub.clock,
                               **{"timeout": 60, **more}), lines.append)
        witness = file.read_witness(out)
        assert "Traceback" not in "\n".join(lines)
        assert_no_speed_of_a_wrong_band(witness, lines)
        return witness

    return take_from


def assert_no_speed_of_a_wrong_band(witness: dict[str, Any], lines: list[str]) -> None:
    """Assert that a band whose correctness is not shown has no time anywhere."""
    for band, line in zip(witness["bands"], lines, strict=True):
        keys = set(keys_of(band))
        timed = {"times_ms", "wall_s", "index", "agg_tok_s"} & keys
        if rules.is_correct(band):
            assert "wall_s" in timed
        else:
            assert (timed, band["decode_tok_s"]) == (set(), None)
            assert "INVALID-CORRECTNESS" in line
            assert "tokens/s" not in line


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def broken_rules(witness: dict[str, Any]) -> list[str]:
    """Return the broken rules of a witness, without those for widths outside the plan."""
    absent = {f"c={c} was not measured" for c in rules.WIDTHS}
    return [reason.rule for reason in rules.judge_witness(witness, "qwen3.5-4b")
            if reason.sentence not in absent and reason.rule != "floor"]


def results(witness: dict[str, Any]) -> list[str]:
    return [band["result"] for band in witness["bands"]]


def of(witness: dict[str, Any], c: int) -> dict[str, Any]:
    (found,) = [band for band in witness["bands"] if band["c"] == c]
    return dict(found)


def test_server_that_batches_is_admissible(take: Any) -> None:
    witness = take(StubServer(), Plan(n_predict=64))
    assert rules.judge_witness(witness, "qwen3.5-4b") == []
    assert [(b["c"], b["m_formed"], b["divergence_at"], b["intra_agree_to"])
            for b in witness["bands"]] == [(c, c, 64, 64) for c in (1, 4, 8, 16)]
    assert witness["reference"] == {"tokens": 64, "stable": True, "self_divergence_at": None}
    assert witness["m_formed_from"] == "histogram rowtwin_batch_size"
    wide = of(witness, 16)
    assert [slot["i"] for slot in wide["slots"]] == list(range(16))
    assert [(m["order"], m["prompt"]) for m in wide["mixed"]] == [
        *(("forward", i) for i in range(16)), *(("reversed", 15 - i) for i in range(16))]
    assert {(m["closest"], m["agree_to"]) for m in wide["mixed"]} == {(None, 64)}
    for band in witness["bands"]:
        index = band["index"]
        assert index["serialization_index"] == pytest.approx(
            index["path_penalty"] * index["scaling_index"], rel=1e-3)
        assert all(slot["times_ms"] == sorted(slot["times_ms"]) for slot in band["slots"])
        assert all(len(slot["times_ms"]) == 64 for slot in band["slots"])


def test_loop_over_states_is_refused_only_by_its_rate(take: Any) -> None:
    witness = take(StubServer(looped=True))
    assert results(witness) == ["PASS", "PASS"]
    assert of(witness, 4)["m_formed"] == 4
    assert broken_rules(witness) == ["S7"]
    assert of(witness, 4)["index"]["serialization_index"] == pytest.approx(4, rel=0.2)


def test_server_that_never_batches_proves_nothing(take: Any) -> None:
    witness = take(StubServer(slots=1))
    assert results(witness) == ["PASS", "UNMEASURABLE"]
    assert of(witness, 4)["m_formed"] == 1
    assert of(witness, 4)["reason"] == "the identical requests formed batches of 1, not of 4"
    assert broken_rules(witness) == ["S3", "S6", "S7"]


@pytest.mark.parametrize(("metric", "page", "formed"), [
    ("vllm:num_requests_running", b"vllm:num_requests_running 0\n", 0),
    (None, b"# nothing here\n", None), (None, None, None)])
def test_width_is_never_inferred_from_what_was_sent(take: Any, metric: str | None,
                                                    page: bytes | None, formed: int | None) -> None:
    witness = take(StubServer(metric=metric, page=page))
    assert [band["m_formed"] for band in witness["bands"]] == [formed, formed]
    assert results(witness) == ["UNMEASURABLE", "UNMEASURABLE"]
    assert broken_rules(witness)[:2] == ["S3", "S3"]


def test_constant_token_fails_though_every_slot_agrees(take: Any) -> None:
    witness = take(StubServer(token=faults.repeat_one_token))
    band = of(witness, 4)
    assert (band["result"], band["intra_agree_to"], band["max_constant_run"]) == ("FAIL", 24, 24)
    assert band["reason"] == "slot 0 of the identical requests repeats one token 24 times"
    assert exit_code(witness["bands"]) == 1


def test_constant_token_fails_even_in_a_short_stream(take: Any) -> None:
    assert of(take(StubServer(token=faults.repeat_one_token, length=17)), 4)["result"] == "FAIL"


@pytest.mark.parametrize("swap", [faults.swap_first_two, faults.swap_every_pair])
def test_swapped_slots_fail_though_identical_prompts_hide_them(take: Any, swap: Any) -> None:
    band = of(take(StubServer(token=swap)), 4)
    assert (band["result"], band["intra_agree_to"]) == ("FAIL", 24)
    found = re.fullmatch(r"slot (.) of the (forward|reversed) prompts got the tokens of prompt "
                         r"(.), but had prompt (.)", band["reason"])
    assert found is not None
    assert found[3] != found[4]


def test_swapped_slots_are_not_seen_without_different_prompts(take: Any) -> None:
    band = of(take(StubServer(token=faults.swap_first_two), replace(SHORT, mixed=False)), 4)
    assert (band["result"], band["mixed"]) == ("PASS", [])


def test_neighbour_that_reaches_a_row_is_refused(take: Any) -> None:
    witness = take(StubServer(token=faults.leak_neighbour))
    band = of(witness, 4)
    assert (band["result"], band["divergence_at"], band["intra_agree_to"]) == (
        "PASS", FAULT_POSITION, 24)
    assert broken_rules(witness) == ["S5", "S7"]  # a refused band has no speed


def test_prompt_that_gets_other_tokens_in_another_order_fails(take: Any) -> None:
    band = of(take(StubServer(token=faults.fail_when_last)), 4)
    assert (band["result"], band["reason"]) == (
        "FAIL", f"prompt 0 gets another token {FAULT_POSITION} when the prompts' order is reversed")


def test_slot_that_differs_from_slot_0_fails(take: Any) -> None:
    band = of(take(StubServer(token=faults.fail_third_seat)), 4)
    assert (band["result"], band["intra_agree_to"], band["divergence_at"]) == (
        "FAIL", FAULT_POSITION, FAULT_POSITION)
    assert re.fullmatch(rf"slot . differs from slot 0 at token {FAULT_POSITION}, though .*",
                        band["reason"])
    assert sorted(slot["agree_to"] for slot in band["slots"]) == [FAULT_POSITION, 24, 24, 24]


def test_short_streams_prove_nothing(take: Any) -> None:
    witness = take(StubServer(length=12))
    assert results(witness) == ["UNMEASURABLE", "UNMEASURABLE"]
    assert of(witness, 1)["reason"] == "slot 0 of the identical requests has 12 tokens, " \
        "fewer than 20"
    assert exit_code(witness["bands"]) == 2


def test_wrong_model_is_refused_by_the_server_s_own_word(take: Any) -> None:
    witness = take(StubServer(name="/models/Llama-3-8B.gguf"))
    assert witness["model"]["path"] == "Llama-3-8B.gguf"
    assert broken_rules(witness) == ["S1", "S1"]


@pytest.mark.parametrize(("margin", "logprobs", "expected", "refused"), [
    (0.01, True, 0.01, []), (0.2, True, 0.2, ["S5"]), (0.01, False, None, ["S5"])])
def test_only_a_near_tie_excuses_a_divergence(take: Any, margin: float, logprobs: bool,
                                              expected: float | None, refused: list[str]) -> None:
    stub = StubServer(token=faults.take_rival, logprobs=logprobs, margins={FAULT_POSITION: margin})
    witness = take(stub)
    band = of(witness, 4)
    assert (band["result"], band["divergence_at"]) == ("PASS", FAULT_POSITION)
    assert band["top2_margin_at_divergence"] == (
        expected if expected is None else pytest.approx(expected))
    assert [rule for rule in broken_rules(witness) if rule != "S7"] == refused


def test_missing_logprobs_leave_agreement_provable(take: Any) -> None:
    witness = take(StubServer(logprobs=False))
    assert results(witness) == ["PASS", "PASS"]
    assert of(witness, 4)["divergence_at"] == 24


def test_server_that_dies_half_way_leaves_what_was_proved(take: Any) -> None:
    def dies(batch: list[Seat]) -> bool:
        return len(batch) == 4 and len(batch[0].tokens) == 10

    witness = take(StubServer(dies_at=dies), replace(SHORT, widths=(1, 4, 8, 16)))
    assert results(witness) == ["PASS", *["UNMEASURABLE"] * 3]
    assert of(witness, 4)["reason"] == \
        "slot 0 of the identical requests: the stream broke off after 11 tokens"
    assert of(witness, 4)["divergence_at"] == 11
    assert of(witness, 16)["reason"].startswith("the server no longer answers: ")
    assert broken_rules(witness)[:4] == ["S3", "S3", "S3", "S5"]


def test_unstable_reference_is_never_a_failure(take: Any) -> None:
    def second(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
        wrong = seat.order == 1 and len(seat.tokens) == FAULT_POSITION
        return " odd" if wrong else stub.right_token(seat)

    stub = StubServer(token=second)
    witness = take(stub)
    assert witness["reference"] == {"tokens": 24, "stable": False,
                                    "self_divergence_at": FAULT_POSITION}
    assert results(witness) == ["UNMEASURABLE", "UNMEASURABLE"]
    assert "the prompt by itself gives another token" in of(witness, 1)["reason"]
    assert stub.request_count == 2


def test_prompts_with_the_same_continuation_cannot_show_a_swap(take: Any) -> None:
    def deaf(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
        return f" t{len(seat.tokens)}"

    band = of(take(StubServer(token=deaf)), 4)
    assert (band["result"], band["reason"].partition(",")[0]) == (
        "UNMEASURABLE", "prompts 0 and 1 have the same continuation")


@pytest.mark.parametrize("refused", [{"stream_options"}, {"logprobs"},
                                     {"stream_options", "logprobs"}])
def test_field_that_a_server_refuses_is_omitted_and_recorded(take: Any, refused: set[str]) -> None:
    witness = take(StubServer(refuses=frozenset(refused), usage="stream_options" not in refused),
                   replace(SHORT, widths=(1,)))
    assert witness["sampler"]["left_out"] == sorted(refused)
    assert results(witness) == ["PASS"]


@pytest.mark.parametrize("metric", ["vllm:num_requests_running", "llamacpp:requests_processing"])
def test_gauges_of_other_servers_are_known(take: Any, metric: str) -> None:
    witness = take(StubServer(metric=metric, step=4 * STEP_SECONDS), replace(SHORT, widths=(4,)))
    assert witness["m_formed_from"] == f"gauge {metric}"
    assert [band["m_formed"] for band in witness["bands"]] == [4]


def test_width_is_read_from_a_field_of_the_response(take: Any) -> None:
    witness = take(StubServer(metric=None), named=SourceOptions(field="m"))
    assert [band["m_formed"] for band in witness["bands"]] == [1, 4]
    assert results(witness) == ["PASS", "PASS"]


def test_medians_are_over_replicates(take: Any) -> None:
    witness = take(StubServer(), replace(SHORT, widths=(1,), replicates=3))
    (band,) = witness["bands"]
    assert (len(band["wall_s"]), band["index"]["replicates"]) == (3, 3)


def test_request_asks_for_a_greedy_stream_of_fixed_length(take: Any) -> None:
    stub = StubServer()
    take(stub, replace(SHORT, widths=(1,)))
    assert stub.requests[0] == {
        "model": MODEL_NAME, "prompt": Plan().prompt, "max_tokens": 24, "temperature": 0, "seed": 0,
        "stream": True, "ignore_eos": True, "logprobs": 5,
        "stream_options": {"include_usage": True}}


def test_key_is_sent_and_never_written(take: Any, tmp_path: Path) -> None:
    witness = take(StubServer(), replace(SHORT, widths=(1,)), api_key="s3cret")
    assert "s3cret" not in json.dumps(witness)
