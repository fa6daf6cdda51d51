"""Random histories: a Hypothesis state machine that submits, cancels, steps and breaks things."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.harness import SEATING, Poisoned, Run, request, stopping
from phases.p0_scheduler.mock_engine import Call
from phases.p0_scheduler.protocol import FromOutside

Outside = st.sampled_from(["cancel", "disconnect"])
CALLS = ("decode_step", "recycle_slot", *SEATING)


class Histories(RuleBasedStateMachine):
    """Any order of joins, endings and failures; each history ends idle and is accounted for."""

    def __init__(self, subject: Subject, judge: Judge, slots: int) -> None:
        super().__init__()
        self.run = Run(subject, judge, slots=slots, chunk=4)
        self.poisoned = Poisoned(self.run.engine, {})
        self.run.engine.trouble = self._trouble
        self.run.engine.during = self._during
        self.accidents = 0
        """Steps yet to fail through no request's fault."""
        self.alone: set[str] = set()
        """Requests that such an accident met alone, and so may be blamed for it."""
        self.surprises: list[tuple[str, str, FromOutside]] = []
        """Cancels to come inside the next call of a name."""

    @rule(length=st.integers(1, 11), limit=st.integers(1, 6), stop=st.none() | st.integers(0, 6))
    def submit(self, length: int, limit: int, stop: int | None) -> None:
        """Submit a request that may emit a stop token, at or beyond its limit too."""
        one = request(f"r{len(self.run.requests)}", length, limit)
        self.run.submit(one if stop is None else stopping(one, stop))

    @rule(length=st.integers(1, 11), beyond=st.integers(-1, 12))
    def submit_poison(self, length: int, beyond: int) -> None:
        """Submit a request that cannot be seated or makes a step fail."""
        one = request(f"r{len(self.run.requests)}", length, 6)
        self.poisoned.beyond[one.id] = beyond
        self.run.submit(one)

    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        """Let time pass."""
        self.run.step(times)

    @precondition(lambda self: self.run.requests)
    @rule(pick=st.integers(0, 99), reason=Outside)
    def cancel(self, pick: int, reason: FromOutside) -> None:
        """Cancel any request ever seen, ended ones too."""
        id = f"r{pick % len(self.run.requests)}"
        gone = id in self.run.ended or id in self.run.silenced
        self.run.same("cancel taken", self.run.cancel(id, reason), not gone, request=id)

    @precondition(lambda self: self.run.requests)
    @rule(pick=st.integers(0, 99), reason=Outside, call=st.sampled_from(CALLS))
    def cancel_inside(self, pick: int, reason: FromOutside, call: str) -> None:
        """Cancel while the engine works."""
        self.surprises.append((call, f"r{pick % len(self.run.requests)}", reason))

    @rule()
    def accident(self) -> None:
        """Make the next step fail."""
        self.accidents = 1

    @rule(named=st.booleans())
    def engine_names_the_row(self, named: bool) -> None:
        """Let the engine say, or not, whose row made a step fail."""
        self.poisoned.named = named

    def teardown(self) -> None:
        """Serve the rest and hold the history to the laws."""
        self.run.until_idle()
        self.run.account()
        endings = {id: ended.reason for id, ended in self.run.ended.items()}
        for id in self.run.silenced:
            self.run.law(endings[id] in ("cancel", "disconnect"),
                         f"request {id!r} was cancelled, but ended with {endings[id]}", request=id)
        for id in [id for id, reason in endings.items() if reason == "error"]:
            self.run.law(id in self.poisoned.beyond or id in self.alone,
                         f"request {id!r} ended with an error that was not its own", request=id)
        early = {*self.run.silenced, *self.poisoned.beyond, *self.alone}
        self.run.streams_equal_solo(but=sorted(early))

    def _trouble(self, call: Call) -> Exception | None:
        if self.accidents and call.name == "decode_step":
            self.accidents = 0
            if len(call.rows) == 1:
                self.alone.add(call.ids[0])
            return RuntimeError("an accident")
        return self.poisoned(call)

    def _during(self, call: Call) -> None:
        due = [one for one in self.surprises if one[0] == call.name]
        self.surprises = [one for one in self.surprises if one[0] != call.name]
        for _, id, reason in due:
            self.run.cancel(id, reason)


def run_histories(make: Callable[[], Histories], examples: int, steps: int,
                  shrink: bool) -> None:
    """Run that many histories, always the same ones; raises what the first bad one raised.

    With `shrink` a bad history is made as short as it can be, and printed.
    """
    run_state_machine_as_test(cast("type[RuleBasedStateMachine]", make), settings=profile(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None,
        deadline=None, print_blob=False, report_multiple_bugs=False,
        verbosity=Verbosity.normal if shrink else Verbosity.quiet,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck)))
