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
from phases.p0_scheduler.harness import (
    SEATING_CALLS,
    FailAfterTokens,
    Harness,
    make_request,
    with_stop_at,
)
from phases.p0_scheduler.mock_engine import EngineCall
from phases.p0_scheduler.protocol import FromOutside

CANCEL_REASONS = st.sampled_from(["cancel", "disconnect"])
ENGINE_CALLS = ("decode_step", "recycle_slot", *SEATING_CALLS)


class Histories(RuleBasedStateMachine):
    """Any order of joins, endings and failures; each history ends idle and is accounted for."""

    def __init__(self, subject: Subject, judge: Judge, slots: int) -> None:
        super().__init__()
        self.harness = Harness(subject, judge, slots=slots, chunk=4)
        self.fail_after = FailAfterTokens(self.harness.engine, {})
        self.harness.engine.fail_call = self._fail_call
        self.harness.engine.on_call = self._on_call
        self.pending_failures = 0
        """Steps yet to fail through no request's fault."""
        self.failed_alone: set[str] = set()
        """Requests that such an accident met alone, and so may be blamed for it."""
        self.pending_cancels: list[tuple[str, str, FromOutside]] = []
        """Cancels to come inside the next call of a name."""

    @rule(length=st.integers(1, 11), limit=st.integers(1, 6), stop=st.none() | st.integers(0, 6))
    def submit(self, length: int, limit: int, stop: int | None) -> None:
        """Submit a request that may emit a stop token, at or beyond its limit too."""
        one = make_request(f"r{len(self.harness.requests)}", length, limit)
        self.harness.submit(one if stop is None else with_stop_at(one, stop))

    @rule(length=st.integers(1, 11), beyond=st.integers(-1, 12))
    def submit_poison(self, length: int, beyond: int) -> None:
        """Submit a request that cannot be seated or makes a step fail."""
        one = make_request(f"r{len(self.harness.requests)}", length, 6)
        self.fail_after.token_limits[one.id] = beyond
        self.harness.submit(one)

    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        """Let time pass."""
        self.harness.step(times)

    @precondition(lambda self: self.harness.requests)
    @rule(pick=st.integers(0, 99), reason=CANCEL_REASONS)
    def cancel(self, pick: int, reason: FromOutside) -> None:
        """Cancel any request ever seen, ended ones too."""
        id = f"r{pick % len(self.harness.requests)}"
        gone = id in self.harness.ended or id in self.harness.cancelled_at
        self.harness.check_equal("cancel taken", self.harness.cancel(id, reason), not gone,
                                 request=id)

    @precondition(lambda self: self.harness.requests)
    @rule(pick=st.integers(0, 99), reason=CANCEL_REASONS, call=st.sampled_from(ENGINE_CALLS))
    def cancel_inside(self, pick: int, reason: FromOutside, call: str) -> None:
        """Cancel while the engine works."""
        self.pending_cancels.append((call, f"r{pick % len(self.harness.requests)}", reason))

    @rule()
    def accident(self) -> None:
        """Make the next step fail."""
        self.pending_failures = 1

    @rule(named=st.booleans())
    def engine_names_the_row(self, named: bool) -> None:
        """Let the engine say, or not, whose row made a step fail."""
        self.fail_after.names_row = named

    def teardown(self) -> None:
        """Serve the rest and hold the history to the laws."""
        self.harness.run_until_idle()
        self.harness.check_accounting()
        endings = {id: ended.reason for id, ended in self.harness.ended.items()}
        for id in self.harness.cancelled_at:
            self.harness.law(endings[id] in ("cancel", "disconnect"),
                         f"request {id!r} was cancelled, but ended with {endings[id]}", request=id)
        for id in [id for id, reason in endings.items() if reason == "error"]:
            self.harness.law(id in self.fail_after.token_limits or id in self.failed_alone,
                         f"request {id!r} ended with an error that was not its own", request=id)
        early = {*self.harness.cancelled_at, *self.fail_after.token_limits, *self.failed_alone}
        self.harness.check_streams_equal_solo(but=sorted(early))

    def _fail_call(self, call: EngineCall) -> Exception | None:
        if self.pending_failures and call.name == "decode_step":
            self.pending_failures = 0
            if len(call.rows) == 1:
                self.failed_alone.add(call.ids[0])
            return RuntimeError("an accident")
        return self.fail_after(call)

    def _on_call(self, call: EngineCall) -> None:
        due = [one for one in self.pending_cancels if one[0] == call.name]
        self.pending_cancels = [one for one in self.pending_cancels if one[0] != call.name]
        for _, id, reason in due:
            self.harness.cancel(id, reason)


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
