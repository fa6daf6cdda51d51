"""The first wrong event of a serving stack is located by request, slot and step."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import rowtwin
from falsifiers.bisect.events.event_search import (
    EventDivergence,
    ReferenceRun,
    find_wrong_case,
    relevant_cases,
)
from falsifiers.bisect.events.log import ENGINE_CHANNEL, Event, EventLog
from falsifiers.bisect.events.scheduler import record_scheduler
from falsifiers.gate import runner
from falsifiers.gate.pytest_plugin import THOROUGH
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.bisect.expected_event_locations import LOCATION_BY_MUTANT
from falsifiers.meta.bisect.expected_locations import (
    EVENTLESS_MUTANTS,
    RACY_MUTANTS,
    SLOW_FALSIFIERS,
)
from falsifiers.meta.bisect.test_expected_locations import drawn
from falsifiers.meta.console.command import Main, make_main

STOPS = "p0/stops_are_each_requests_own[cpu-eos-at0]"
PHASES = ("p0", "p2", "p7")
QUICK = 12
NAMED = {f"{phase}/{name}" for phase in PHASES for name in rowtwin.phase_contract(phase).mutant_ids}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every mutant in a thorough run, and a drawn dozen in a quick one."""
    thorough = metafunc.config.getoption(THOROUGH)
    fast = [name for name, (id, _) in LOCATION_BY_MUTANT.items()
            if not id[3:].startswith(SLOW_FALSIFIERS)]
    for fixture, names in (
            ("located", LOCATION_BY_MUTANT if thorough else drawn(fast, QUICK)),
            ("unseen", EVENTLESS_MUTANTS if thorough else ["p7/keeps_one_large_copy"])):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(names))


@cache
def reference_run(id: str) -> ReferenceRun:
    """Return the reference stack's run of a case, shared by all mutants."""
    bank = rowtwin.phase_bank(id.split("/")[0])
    (case,) = [case for case in bank.contract.expand() if case.id == id]
    return ReferenceRun(case, bank.falsifiers[case.falsifier], bank.subject_for(case))


def test_every_mutant_of_a_stack_is_listed_once() -> None:
    tables = [set(table) for table in (LOCATION_BY_MUTANT, EVENTLESS_MUTANTS, RACY_MUTANTS)]
    assert set().union(*tables) == NAMED
    assert sum(map(len, tables)) == len(NAMED), "a mutant is in two tables"
    assert all(len(why) > 10 for why in (*EVENTLESS_MUTANTS.values(), *RACY_MUTANTS.values()))
    for name, (id, _) in LOCATION_BY_MUTANT.items():
        phase, mutant = name.split("/")
        assert id.split("/")[1].split("[")[0] in rowtwin.phase_bank(phase).mutant(mutant).killers


def test_first_wrong_event_is_located(located: str) -> None:
    id, place = LOCATION_BY_MUTANT[located]
    reference = reference_run(id)
    bank = rowtwin.phase_bank(reference.case.phase)
    wrong = bank.mutant(located.split("/")[1]).build(bank.subject_for(reference.case))
    found = reference.find_divergence(wrong)
    assert found is not None
    assert (found.place.request, found.place.slot, found.place.step) == place


def test_fault_that_shows_in_no_event_is_a_suite_error(unseen: str) -> None:
    phase, mutant = unseen.split("/")
    bank, refusals = rowtwin.phase_bank(phase), list[str]()
    for case in relevant_cases(bank, mutant):
        try:
            assert find_wrong_case([case], bank, bank.subject_for, mutant) is None
        except SuiteError as error:
            refusals.append(str(error))
            break
    assert refusals, f"no case fails with {unseen}"
    assert "but every event before the failure equals the reference's" in refusals[0]


def test_right_stack_has_no_wrong_event() -> None:
    reference = reference_run(STOPS)
    assert reference.find_divergence(rowtwin.phase_bank("p0").subject_for(reference.case)) is None


def test_case_whose_events_do_not_repeat_is_refused() -> None:
    bank = rowtwin.phase_bank("p0")
    (case,) = [case for case in bank.contract.expand() if case.id == STOPS]
    subject, calls = bank.subject_for(case), list[int]()

    def once_more_each_time(case: Any, subject: Any, judge: Any) -> None:
        calls.append(0)
        for _ in calls:
            bank.falsifiers[case.falsifier](case=case, subject=subject, judge=judge)

    with pytest.raises(SuiteError, match="does not give the same events twice"):
        ReferenceRun(case, once_more_each_time, subject)
    with pytest.raises(SuiteError, match="calls no stack"):
        ReferenceRun(case, lambda **_: None, subject)


class SteppingScheduler:
    """A scheduler that runs a step inside each call of a caller."""

    def __init__(self, engine: Any, settings: Any) -> None:
        self.engine = engine

    def step(self) -> list[Any]:
        """Free a slot, which is an event."""
        self.engine.recycle_slot(0)
        return []

    def submit(self, request: Any) -> None:
        """Run a step before returning."""
        self.step()

    def cancel(self, id: str) -> bool:
        """Run a step before returning."""
        self.step()
        return True


def test_call_is_recorded_at_its_start_even_if_steps_run_before_its_end() -> None:
    log, idle = EventLog(), SimpleNamespace(recycle_slot=lambda slot: None)
    request = SimpleNamespace(id="a", tokens=(1,), limit=1, stop_ids=(), sampler=None)
    scheduler = record_scheduler(log, SteppingScheduler)(idle, None)
    scheduler.submit(request)
    scheduler.cancel("a")
    events = [(timed.tick, timed.event.step, timed.event.what.split(" with")[0])
              for timed in log.channels()[ENGINE_CHANNEL]]
    assert events == [(0, 0, "is accepted"), (0, 0, "is drawn by None"),
                      (1, 1, "gives its slot back"), (1, 1, "is cancelled"),
                      (2, 2, "gives its slot back")]


def test_message_distinguishes_a_missing_event_from_an_extra_one() -> None:
    got = Event(1, 3, "request 2", 0, "gets token 1: 7")
    want = replace(got, request="request 1", slot=1)
    missing, extra = EventDivergence(4, got, want, True), EventDivergence(4, got, want, False)
    assert (missing.place, extra.place) == (want, got)
    assert missing.describe() == (
        "request 1, slot 1, step 3: missing: request 1 gets token 1: 7 in slot 1 at step 3; got "
        "request 2 gets token 1: 7 in slot 0 at step 3")
    assert extra.describe().startswith("request 2, slot 0, step 3: request 2 gets token 1: 7")
    assert EventDivergence(4, got, None, False).describe().endswith("expected nothing more")


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    contracts = {"p0": rowtwin.phase_contract("p0")}
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: contracts)
    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


def test_command_prints_the_first_wrong_event(bisect: Main) -> None:
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all")
    assert code == 1
    assert out.startswith("request 2, slot 1, step 1: ")
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all", "--json")
    report = json.loads(out)
    assert (code, report["diverged"], report["place"]["request"]) == (1, True, "request 2")
    code, out, _ = bisect("--case", STOPS, "--mutant", "queue_without_bound")
    assert (code, out) == (0, f"every event of {STOPS} equals the reference stack's\n")
    assert bisect("--case", STOPS)[0] == 2


def test_command_finds_the_case_by_itself(bisect: Main) -> None:
    code, out, _ = bisect("--phase", "0", "--mutant", "queue_without_bound")
    assert code == 1
    assert out.startswith("p0/a_full_queue_refuses_and_keeps_others[cpu-slots1-queue0]\n"
                          "  request 2, step 0: request 2 is accepted")
    report = json.loads(bisect("--phase", "0", "--mutant", "queue_without_bound", "--json")[1])
    assert (report["case"], report["got"]["request"]) == (out.split()[0], "request 2")
    for argv, sentence in ((("--phase", "0"), "give --candidate or --mutant"),
                           (("--phase", "0", "--mutant", "nobody"), "p0 has no mutant 'nobody'")):
        code, out, err = bisect(*argv)
        assert (code, out) == (2, "")
        assert sentence in err
