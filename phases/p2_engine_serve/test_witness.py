"""A witness of this server, and a count of weight reads, which a witness can only time.

No test depends on time: no step begins before all requests of an arm have arrived, and the rates
in a witness are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from threading import Condition
from typing import Any

import pytest
from torch import Tensor

from contracts.schema import Case
from engine import testmodels
from engine.weights import Weight
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.meta.console.command import Main, command_entry, make_main
from falsifiers.witness import cli as witness_cli
from falsifiers.witness import file, index
from phases.p2_engine_serve.client_reply import ClientRequest
from phases.p2_engine_serve.harness import Harness
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.increment import stack
from phases.p2_engine_serve.wrong_rows import AnswersTheNeighbour, LoopsOverRows
from phases.p2_engine_serve.wrong_serving import ReturnsEarlyForOne

TOKENS, WIDEST = 12, 4
ARMS = (1, 1, 1, 4, 1, 1, 1, 1, 4, 4)
"""How many requests a witness at c = 1 and 4 sends at once: the reference twice, c = 1, four equal
requests, four different prompts by themselves, and these together in both orders."""
NOT_AT_ONCE = "the streams do not show that the requests were served at the same time"


@pytest.fixture
def witness_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs `rowtwin witness` in this process: exit code, stdout, stderr."""
    return make_main(command_entry(witness_cli.app, SuiteError), monkeypatch, capsys, "app",
                     "witness")


def make_harness(path: Any, model: str = "nano", **parts: Any) -> Harness:
    """Return a server of a model on a path, with parts of its stack replaced."""
    subject = Subject("this server", testmodels.load, path, replace(stack(), **parts))
    case = Case(phase="p2", falsifier="witness", tier="cpu", name="served", given={}, quick=True,
                must_claim=False)
    return Harness(subject, Judge(case), model=model)


@contextmanager
def wait_for_arms(harness: Harness, arms: tuple[int, ...]) -> Iterator[None]:
    """Block steps until every request of the arm was accepted."""
    scheduler, changed = harness.service.scheduler, Condition()
    step, submit, totals, accepted = scheduler.step, scheduler.submit, list(accumulate(arms)), [0]

    def met() -> bool:
        ended = sum(scheduler.counts.ended.values())
        return accepted[0] >= next((n for n in totals if n > ended), 0)

    def stepped() -> Any:
        with changed:
            changed.wait_for(met, 60.0)
        return step()

    def submitted(request: Any) -> None:
        submit(request)
        with changed:
            accepted[0] += 1
            changed.notify_all()

    scheduler.step, scheduler.submit = stepped, submitted
    try:
        yield
    finally:
        with changed:  # release a step that waits for requests that will not arrive
            totals.clear()
            changed.notify_all()


def take_witness(witness_main: Main, harness: Harness, out: Path) -> tuple[int, Any]:
    """Return the exit code of `rowtwin witness` and the file that it wrote."""
    code, _, err = witness_main(harness.url, "--out", out, "--c", "1,4", "--replicates", 1,
                                "--n-predict", TOKENS, "--declared-min", TOKENS, "--commit",
                                "c0ffee", "--model-file", harness.weights.path, "--binary",
                                __file__, "--prompt", "the")
    assert "Traceback" not in err
    return code, file.read_witness(out)


def test_this_server_is_witnessed_and_checked(witness_main: Main, path: Any,
                                              tmp_path: Path) -> None:
    out = tmp_path / "witness.json"
    with make_harness(path) as harness, wait_for_arms(harness, ARMS):
        code, witness = take_witness(witness_main, harness, out)
        harness.idle()
    assert witness["reference"] == {"tokens": TOKENS, "stable": True, "self_divergence_at": None}
    assert witness["m_formed_from"] == "histogram rowtwin_batch_size"
    assert [band["c"] for band in witness["bands"]] == [1, 4]
    for band in witness["bands"]:
        c = band["c"]
        assert (band["m_formed"], band["divergence_at"], band["intra_agree_to"]) == (
            c, TOKENS, TOKENS)
        assert [(slot["agree_to"], slot["completion_tokens"], slot["finish_reason"])
                for slot in band["slots"]] == [(TOKENS, TOKENS, "length")] * c
        assert {(one["agree_to"], one["closest"]) for one in band["mixed"]} <= {(TOKENS, None)}
        assert len(band["mixed"]) == (2 * c if c > 1 else 0)
        # a descheduled client receives a stream all at once; that is no fault of the batch
        assert band["reason"] in (None, NOT_AT_ONCE)
        assert (band["result"] == "PASS") == ("wall_s" in band) == (band["reason"] is None)
    assert code == (0 if all(band["result"] == "PASS" for band in witness["bands"]) else 2)
    check_indices(witness["bands"])
    checked = json.loads(witness_main("check", out, "--json", "--model-prefix",
                                      harness.weights.path.stem)[1])
    rules = [reason["rule"] for reason in checked["reasons"]]
    assert [rule for rule in rules if rule not in ("S6", "S7")] == ["S2", "S2", "floor", "floor"]


def check_indices(bands: list[Any]) -> None:
    """Check that every reported index is the product of its two factors."""
    indices = [band["index"] for band in bands if "index" in band]
    assert all(set(found) == set(index.decompose(1, {1: [1.0]}, [1.0], {1: 1}) or {})
               for found in indices)
    for found in indices:
        product = found["path_penalty"] * found["scaling_index"]
        assert product == pytest.approx(found["serialization_index"], rel=0.01)


@pytest.mark.parametrize(("part", "result", "reason"), [
    ({"engine": AnswersTheNeighbour}, "FAIL", "the tokens of"),
    ({"scheduler": ReturnsEarlyForOne}, "UNMEASURABLE", "formed batches of 1, not of 4")],
    ids=["answers-the-neighbour", "returns-early-for-one"])
def test_witness_reports_a_faulty_server(part: dict[str, type], result: str, reason: str,
                                         witness_main: Main, path: Any, tmp_path: Path) -> None:
    with make_harness(path, model="", **part) as harness, wait_for_arms(harness, ARMS):
        code, witness = take_witness(witness_main, harness, tmp_path / "witness.json")
    band = witness["bands"][1]
    assert (band["result"], code) == (result, 1 if result == "FAIL" else 2)
    assert reason in band["reason"]
    assert "wall_s" not in band


class ReadCounter:
    """Counts the weight bytes of every product; that a product reads them once is P3's claim."""

    def __init__(self) -> None:
        self.bytes = 0

    def count_reads(self, ops: Any) -> Any:
        """Return ops whose products are counted."""
        def project(weight: Weight, x: Tensor, out: Tensor) -> None:
            self.bytes += weight.raw.nbytes
            ops.project(weight, x, out)

        return replace(ops, project=project)


@pytest.mark.parametrize(("name", "engine", "times"), [
    ("looped_path", None, WIDEST), ("path", None, 1), ("path", LoopsOverRows, WIDEST)],
    ids=["p1", "newest", "newest-looped-over"])
def test_looped_server_reads_its_weights_once_a_row(
        name: str, engine: type[HybridEngine] | None, times: int,
        request: pytest.FixtureRequest) -> None:
    reads, model = ReadCounter(), testmodels.load("nano")
    parts: dict[str, Any] = {"engine": engine} if engine else {}
    harness = make_harness(reads.count_reads(request.getfixturevalue(name)), **parts)
    harness.subject = replace(harness.subject, models=lambda _: replace(
        model, ops=reads.count_reads(model.ops)))
    asks = [ClientRequest("completions", True,
                          {"prompt": [5 + i], "max_tokens": 3, "ignore_eos": True})
            for i in range(WIDEST)]
    with harness:
        harness.ask_all(asks)  # a path of graphs captures now, which reads once more
        reads.bytes, before = 0, harness.service.scheduler.counts.steps
        harness.ask_all(asks)
        counts = harness.service.scheduler.counts
    weights = model.weights
    every = sum(weight.raw.nbytes for weight in [weights.head, *(
        matrix for layer in weights.layers for matrix in layer.matrices.values())])
    # the server reports the same counts in all three cases
    assert (counts.formed, counts.batch, counts.steps - before) == (WIDEST, WIDEST, 3)
    assert reads.bytes == times * 3 * every
