"""Random histories: a Hypothesis state machine that submits, cancels, steps and injects errors."""

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
    """Any order of joins, endings and failures; every history ends idle and is then checked."""

    def __init__(self, subject: Subject, judge: Judge, slots: int) -> None:
        super().__init__()
        self.harness = Harness(subject, judge, slots=slots, chunk=4)
        self.fail_after = FailAfterTokens(self.harness.engine, {})
        self.harness.engine.fail_call = self._fail_call
        self.harness.engine.on_call = self._on_call
        self.pending_failures = 0
        """Steps that will fail, caused by no request."""
        self.failed_alone: set[str] = set()
        """Requests that were the only row of such a step, so they may end with its error."""
        self.pending_cancels: list[tuple[str, str, FromOutside]] = []
        """Cancels to make inside the next call of a name: (call, request, reason)."""

    @rule(length=st.integers(1, 11), limit=st.integers(1, 6), stop=st.none() | st.integers(0, 6))
    def submit(self, length: int, limit: int, stop: int | None) -> None:
        """Submit a request whose stop token may come before, at or after its limit."""
        one = make_request(f"r{len(self.harness.requests)}", length, limit)
        self.harness.submit(one if stop is None else with_stop_at(one, stop))

    @rule(length=st.integers(1, 11), beyond=st.integers(-1, 12))
    def submit_poison(self, length: int, beyond: int) -> None:
        """Submit a request that makes `add_slot` or a step fail."""
        one = make_request(f"r{len(self.harness.requests)}", length, 6)
        self.fail_after.token_limits[one.id] = beyond
        self.harness.submit(one)

    @rule(times=st.integers(1, 3))
    def step(self, times: int) -> None:
        """Step."""
        self.harness.step(times)

    @precondition(lambda self: self.harness.requests)
    @rule(pick=st.integers(0, 99), reason=CANCEL_REASONS)
    def cancel(self, pick: int, reason: FromOutside) -> None:
        """Cancel any request, including ended ones."""
        id = f"r{pick % len(self.harness.requests)}"
        gone = id in self.harness.ended or id in self.harness.cancelled_at
        self.harness.check_equal("cancel accepted", self.harness.cancel(id, reason), not gone,
                                 request=id)

    @precondition(lambda self: self.harness.requests)
    @rule(pick=st.integers(0, 99), reason=CANCEL_REASONS, call=st.sampled_from(ENGINE_CALLS))
    def cancel_inside(self, pick: int, reason: FromOutside, call: str) -> None:
        """Cancel inside an engine call."""
        self.pending_cancels.append((call, f"r{pick % len(self.harness.requests)}", reason))

    @rule()
    def accident(self) -> None:
        """Make the next step fail."""
        self.pending_failures = 1

    @rule(named=st.booleans())
    def engine_names_the_row(self, named: bool) -> None:
        """Choose whether the engine names the row that made a step fail."""
        self.fail_after.names_row = named

    def teardown(self) -> None:
        """Serve the remaining requests and check the history."""
        self.harness.run_until_idle()
        self.harness.check_accounting()
        endings = {id: ended.reason for id, ended in self.harness.ended.items()}
        for id in self.harness.cancelled_at:
            self.harness.law(endings[id] in ("cancel", "disconnect"),
                             f"request {id!r} was cancelled, but ended with {endings[id]}",
                             request=id)
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
        pending = [one for one in self.pending_cancels if one[0] == call.name]
        self.pending_cancels = [one for one in self.pending_cancels if one[0] != call.name]
        for _, id, reason in pending:
            self.harness.cancel(id, reason)


def run_histories(make: Callable[[], Histories], examples: int, steps: int,
                  shrink: bool) -> None:
    """Run `examples` histories, always the same ones; raise what the first failing one raised.

    With `shrink`, Hypothesis shortens a failing history and prints it.
    """
    run_state_machine_as_test(cast("type[RuleBasedStateMachine]", make), settings=profile(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None,
        deadline=None, print_blob=False, report_multiple_bugs=False,
        verbosity=Verbosity.normal if shrink else Verbosity.quiet,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck)))
