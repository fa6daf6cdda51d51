"""The first wrong event of a serving stack is named by request, slot and step."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import rowtwin
from falsifiers import session
from falsifiers.errors import SuiteError
from falsifiers.events import Happened, Parting, first_wrong
from falsifiers.meta.command import Main, main_of

STOPS = "p0/stops_are_each_requests_own[cpu-eos-at0]"
BAD = "p0/bad_requests_change_nothing[cpu-join0]"
REUSED = "p0/reused_tokens_are_skipped[cpu-reused1]"
ERRORS = "p0/errors_stay_with_their_request[cpu-named-beyond0-0]"

# As the fault and the case's own lines say: which request, in which slot, at which step.
DECLARED: list[tuple[str, str, str, int | None, int]] = [
    # the stop id is the first token's; 1 and 3 stop there, 2 and 4 ignore it
    (STOPS, "stops_for_all", "request 2", 1, 1),
    (STOPS, "length_beats_stop", "request 3", 0, 1),
    (STOPS, "swallows_the_stop_token", "request 1", 3, 1),
    # 1 fits the context to the token; 3 needs one more; 5 has the id of one that is served
    (BAD, "last_token_needs_room", "request 1", None, 0),
    (BAD, "context_is_not_checked", "request 3", None, 0),
    (BAD, "same_id_replaces", "request 5", None, 0),
    # 1 has a single token, so 2 is the first that reuses one; it ends with its third token
    (REUSED, "computes_reused_tokens_again", "request 2", 0, 1),
    (REUSED, "tells_no_reuse", "request 2", 0, 3),
    # the engine names the row of 1 as the one that failed, beside 2
    (ERRORS, "error_ends_the_whole_step", "request 2", 1, 1),
    (ERRORS, "named_row_is_ignored", "request 1", 3, 1),
    (ERRORS, "no_reset", "", None, 1),
    ("p0/a_full_queue_refuses_and_keeps_others[cpu-slots1-queue0]", "queue_without_bound",
     "request 2", None, 0),
    ("p0/admission_is_first_come_first_served[cpu-slots1-seed1]", "newest_first",
     "request 2", 0, 1),
    ("p0/drain_serves_what_was_accepted[cpu-accepted1-steps0-abort-True]", "abort_spares_the_queue",
     "request 1", 1, 1),
    # the first request of another model, which finds the prefix of the first one's
    ("p7/models_never_share[cpu-model]", "shares_among_models", "request 1", 0, 1),
    # the first request samples greedily; the second's options are its own
    ("p2/rows_are_drawn_alone[cpu-late0]", "greedy_for_everyone", "request 2", 1, 1),
    # the second request begins as the first one's turn ended
    ("p2/one_live_request_keeps_its_turn[cpu-goes-on]", "never_goes_on", "request 2", 0, 5)]


def parted(id: str, name: str) -> Parting | None:
    bank = rowtwin.bank(id.split("/")[0])
    (case,) = [one for one in bank.contract.expand() if one.id == id]
    (wrong,) = [one for one in bank.mutants if one.name == name]
    right = bank.subject_for(case)
    return first_wrong(case, bank.falsifiers[case.falsifier], right, wrong.build(right))


@pytest.mark.parametrize(("id", "name", "request_", "slot", "step"), DECLARED,
                         ids=[f"{row[0].split('/')[0]}-{row[1]}" for row in DECLARED])
def test_first_wrong_event_is_named(id: str, name: str, request_: str, slot: int | None,
                                    step: int) -> None:
    found = parted(id, name)
    assert found is not None
    assert (found.place.request, found.place.slot, found.place.step) == (request_, slot, step)


def test_fault_that_is_no_event_is_said_to_be_none() -> None:
    with pytest.raises(SuiteError, match="though every event up to there is the tree's own"):
        parted("p0/batch_forms_at_every_width[cpu-c4-ragged]", "logs_every_step")


def test_stack_that_is_right_has_no_wrong_event() -> None:
    bank = rowtwin.bank("p0")
    (case,) = [one for one in bank.contract.expand() if one.id == STOPS]
    right = bank.subject_for(case)
    assert first_wrong(case, bank.falsifiers[case.falsifier], right, right) is None


def test_case_that_is_never_twice_the_same_tells_nothing() -> None:
    bank = rowtwin.bank("p0")
    (case,) = [one for one in bank.contract.expand() if one.id == STOPS]
    right, calls = bank.subject_for(case), list[int]()

    def restless(case: Any, subject: Any, judge: Any) -> None:
        calls.append(0)
        for _ in calls:
            bank.falsifiers[case.falsifier](case=case, subject=subject, judge=judge)

    with pytest.raises(SuiteError, match="does not give the same events twice"):
        first_wrong(case, restless, right, right)
    with pytest.raises(SuiteError, match="drives no scheduler"):
        first_wrong(case, lambda **_: None, right, right)


def test_missing_event_is_told_apart_from_one_too_many() -> None:
    late = Happened(1, 3, "request 2", 0, "hears token 1: 7")
    due = replace(late, request="request 1", slot=1)
    missing, extra = Parting(4, late, due, True), Parting(4, late, due, False)
    assert (missing.place, extra.place) == (due, late)
    assert missing.line() == ("request 1, slot 1, step 3: it should: request 1 hears token 1: 7 in "
                              "slot 1 at step 3; instead request 2 hears token 1: 7 in slot 0 at "
                              "step 3")
    assert extra.line().startswith("request 2, slot 0, step 3: request 2 hears token 1: 7")
    assert Parting(4, late, None, False).line().endswith("due was nothing more")


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    known = {"p0": rowtwin.contract_of("p0")}
    monkeypatch.setattr(session, "contracts_of", lambda: known)

    return main_of(rowtwin.main, monkeypatch, capsys, "bisect")


def test_command_names_the_first_wrong_event(bisect: Main) -> None:
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all")
    assert code == 1
    assert out.startswith("request 2, slot 1, step 1: ")
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all", "--json")
    told = json.loads(out)
    assert (code, told["diverged"], told["place"]["request"]) == (1, True, "request 2")
    code, out, _ = bisect("--case", STOPS, "--mutant", "logs_every_step")
    assert (code, out) == (0, f"every event of {STOPS} is the tree's own\n")
    assert bisect("--case", STOPS)[0] == 2
