"""The first wrong event of a serving stack is named by request, slot and step."""

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
    first_wrong_event,
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
    """Take every mutant in a thorough run, and a drawn dozen in a quick one."""
    thorough = metafunc.config.getoption(THOROUGH)
    swift = [
        name
        for name, (id, _) in LOCATION_BY_MUTANT.items()
        if not id[3:].startswith(SLOW_FALSIFIERS)
    ]
    for fixture, names in (
        ("located", LOCATION_BY_MUTANT if thorough else drawn(swift, QUICK)),
        ("unseen", EVENTLESS_MUTANTS if thorough else ["p7/keeps_one_large_copy"]),
    ):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(names))


@cache
def right(id: str) -> ReferenceRun:
    """Return what the tree's own stack does on a case, run once for all mutants."""
    bank = rowtwin.phase_bank(id.split("/")[0])
    (case,) = [one for one in bank.contract.expand() if one.id == id]
    return ReferenceRun(case, bank.falsifiers[case.falsifier], bank.subject_for(case))


def parted(id: str, name: str) -> EventDivergence | None:
    known = right(id)
    bank = rowtwin.phase_bank(known.case.phase)
    return known.find_divergence(bank.mutant(name).build(bank.subject_for(known.case)))


def test_every_mutant_of_a_stack_is_located_or_told_why_not() -> None:
    lists = [set(one) for one in (LOCATION_BY_MUTANT, EVENTLESS_MUTANTS, RACY_MUTANTS)]
    assert set().union(*lists) == NAMED
    assert sum(map(len, lists)) == len(NAMED), "a mutant stands in two lists"
    assert all(len(why) > 10 for why in (*EVENTLESS_MUTANTS.values(), *RACY_MUTANTS.values()))
    for name, (id, _) in LOCATION_BY_MUTANT.items():
        phase, mutant = name.split("/")
        assert id.split("/")[1].split("[")[0] in rowtwin.phase_bank(phase).mutant(mutant).killers


def test_first_wrong_event_is_named(located: str) -> None:
    id, place = LOCATION_BY_MUTANT[located]
    found = parted(id, located.split("/")[1])
    assert found is not None
    assert (found.place.request, found.place.slot, found.place.step) == place


def test_fault_that_shows_in_no_event_is_said_to_be_none(unseen: str) -> None:
    phase, mutant = unseen.split("/")
    bank, refusals = rowtwin.phase_bank(phase), list[str]()
    for case in relevant_cases(bank, mutant):
        try:
            assert find_wrong_case([case], bank, bank.subject_for, mutant) is None
        except SuiteError as error:
            refusals.append(str(error))
            break
    assert refusals, f"no case breaks over {unseen}"
    assert "though every event up to there is the tree's own" in refusals[0]


def test_stack_that_is_right_has_no_wrong_event() -> None:
    known = right(STOPS)
    assert known.find_divergence(rowtwin.phase_bank("p0").subject_for(known.case)) is None


def test_case_that_is_never_twice_the_same_tells_nothing() -> None:
    bank = rowtwin.phase_bank("p0")
    (case,) = [one for one in bank.contract.expand() if one.id == STOPS]
    own, calls = bank.subject_for(case), list[int]()

    def restless(case: Any, subject: Any, judge: Any) -> None:
        calls.append(0)
        for _ in calls:
            bank.falsifiers[case.falsifier](case=case, subject=subject, judge=judge)

    with pytest.raises(SuiteError, match="does not give the same events twice"):
        first_wrong_event(case, restless, own, own)
    with pytest.raises(SuiteError, match="asks nothing of a stack"):
        first_wrong_event(case, lambda **_: None, own, own)


class Restless:
    """A scheduler over an engine that is quicker than the calls which it answers."""

    def __init__(self, engine: Any, settings: Any) -> None:
        self.engine = engine

    def step(self) -> list[Any]:
        """Do something that is noted."""
        self.engine.recycle_slot(0)
        return []

    def submit(self, request: Any) -> None:
        """Take the request, and a step before the caller goes on."""
        self.step()

    def cancel(self, id: str) -> bool:
        """Take a step before the caller goes on."""
        self.step()
        return True


def test_call_is_noted_where_it_began_though_the_engine_steps_meanwhile() -> None:
    log, idle = EventLog(), SimpleNamespace(recycle_slot=lambda slot: None)
    request = SimpleNamespace(id="a", tokens=(1,), limit=1, stop_ids=(), sampler=None)
    scheduler = record_scheduler(log, Restless)(idle, None)
    scheduler.submit(request)
    scheduler.cancel("a")
    told = [(one.tick, one.event.step, one.event.what.split(" with")[0])
            for one in log.channels()[ENGINE_CHANNEL]]
    assert told == [(0, 0, "is accepted"), (0, 0, "is drawn by None"),
                    (1, 1, "gives its slot back"), (1, 1, "is cancelled"),
                    (2, 2, "gives its slot back")]


def test_missing_event_is_told_apart_from_one_too_many() -> None:
    late = Event(1, 3, "request 2", 0, "hears token 1: 7")
    due = replace(late, request="request 1", slot=1)
    missing, extra = EventDivergence(4, late, due, True), EventDivergence(4, late, due, False)
    assert (missing.place, extra.place) == (due, late)
    assert missing.describe() == (
        "request 1, slot 1, step 3: it should: request 1 hears token 1: 7 in "
        "slot 1 at step 3; instead request 2 hears token 1: 7 in slot 0 at "
        "step 3"
    )
    assert extra.describe().startswith("request 2, slot 0, step 3: request 2 hears token 1: 7")
    assert EventDivergence(4, late, None, False).describe().endswith("due was nothing more")


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    known = {"p0": rowtwin.phase_contract("p0")}
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: known)

    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


def test_command_names_the_first_wrong_event(bisect: Main) -> None:
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all")
    assert code == 1
    assert out.startswith("request 2, slot 1, step 1: ")
    code, out, _ = bisect("--case", STOPS, "--mutant", "stops_for_all", "--json")
    told = json.loads(out)
    assert (code, told["diverged"], told["place"]["request"]) == (1, True, "request 2")
    code, out, _ = bisect("--case", STOPS, "--mutant", "queue_without_bound")
    assert (code, out) == (0, f"every event of {STOPS} is the tree's own\n")
    assert bisect("--case", STOPS)[0] == 2


def test_command_finds_the_case_by_itself(bisect: Main) -> None:
    code, out, _ = bisect("--phase", "0", "--mutant", "queue_without_bound")
    assert code == 1
    assert out.startswith("p0/a_full_queue_refuses_and_keeps_others[cpu-slots1-queue0]\n"
                          "  request 2, step 0: request 2 is accepted")
    told = json.loads(bisect("--phase", "0", "--mutant", "queue_without_bound", "--json")[1])
    assert (told["case"], told["got"]["request"]) == (out.split()[0], "request 2")
    for argv, sentence in ((("--phase", "0"), "give --candidate or --mutant"),
                           (("--phase", "0", "--mutant", "nobody"), "p0 has no mutant 'nobody'")):
        code, out, err = bisect(*argv)
        assert (code, out) == (2, "")
        assert sentence in err
