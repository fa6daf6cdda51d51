"""Scenarios for the attacks on a scheduler, and their expected results."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.harness import (
    FailAfterTokens,
    Harness,
    capture_batch_log,
    make_request,
    with_stop_at,
)
from phases.p0_scheduler.mock_engine import EngineCall
from phases.p0_scheduler.protocol import Ending, Request
from phases.p0_scheduler.reference import Served

ENDINGS: tuple[Ending, ...] = ("eos", "length", "stop", "cancel", "disconnect", "error")


def request_waves(seed: int, count: int) -> list[list[Request]]:
    """Return waves of requests of random sizes; some waves are empty, some requests have stops."""
    draw = random.Random(seed)
    result: list[list[Request]] = []
    for number in range(count):
        one = make_request(f"w{number}", draw.randint(1, 30), draw.randint(1, 12),
                           draw.randrange(3))
        if draw.random() < 0.4:
            one = with_stop_at(one, draw.randrange(one.limit))
        if draw.random() < 0.5 or not result:
            result += [[] for _ in range(draw.randrange(4))] + [[]]
        result[-1].append(one)
    return result


def step_widths(run: Harness) -> list[int]:
    """Step until idle and return the rows of each step; the log must report every change."""
    rows: list[int] = []
    expected: list[str] = []
    with capture_batch_log() as lines:
        while not run.scheduler.idle:
            run.step()
            rows.append(len(run.engine.steps()[-1].rows))
            expected += [f"Batch m={rows[-1]}"] if rows[-1:] != rows[-2:-1] else []
            run.check_equal("log", lines, expected, step=run.clock - 1)
    return rows


def expected_times(run: Harness, solo: Mapping[str, Served]) -> dict[str, tuple[int, int]]:
    """Return the expected steps (seat, end) of each request, from its solo time and the slots.

    The slot that is freed first goes to the longest waiting request, from the next step on.
    """
    free = [0] * run.settings.slots
    expected: dict[str, tuple[int, int]] = {}
    for id in run.requests:
        seat = max(run.submitted_at[id], heapq.heappop(free))
        end = seat + solo[id].steps(run.settings.chunk) - 1
        heapq.heappush(free, end + 1)
        expected[id] = seat, end
    return expected


def run_to_endings(subject: Subject, judge: Judge, plan: Sequence[tuple[Ending, int]]) -> Harness:
    """Serve three requests in two slots, each to its planned ending at its planned token.

    A cancel arrives inside the step that samples the token, which is also a stop token.
    """
    requests = [make_request(f"r{number}", 3 + number, 30) for number in range(len(plan))]
    for number, (ending, at) in enumerate(plan):
        if ending == "length":
            requests[number] = replace(requests[number], limit=at + 1)
        elif ending != "error":
            requests[number] = with_stop_at(requests[number], at)
    planned = {one.id: (one, *end) for one, end in zip(requests, plan, strict=True)}
    eos = [one.stop_ids for one, ending, _ in planned.values() if ending == "eos"]
    run = Harness(subject, judge, slots=2, eos=frozenset().union(*eos))
    run.engine.fail_call = FailAfterTokens(run.engine, {
        id: len(one.tokens) + at - 1 for id, (one, ending, at) in planned.items()
        if ending == "error"})

    def during(call: EngineCall) -> None:
        for id, row in zip(call.ids, call.rows, strict=call.name == "decode_step"):
            one, ending, at = planned[id]
            expected = len(one.tokens) + at
            if call.name == "decode_step" and ending in ("cancel", "disconnect") \
                    and run.engine.owners[row.slot].fed + row.count == expected:
                run.cancel(id, ending)

    run.engine.on_call = during
    run.submit(*requests)
    run.run_until_idle()
    return run


def cancel_inside(run: Harness, name: str, nth: int, id: str) -> list[int]:
    """Cancel a request inside the nth call of a name; the list gets the call's place in the log."""
    seen: list[int] = []
    left = [nth]

    def during(call: EngineCall) -> None:
        left[0] -= call.name == name
        if call.name == name and left[0] == 0:
            seen.append(len(run.engine.log))
            run.cancel(id)

    run.engine.on_call = during
    return seen


def bring_to_stage(run: Harness, stage: str) -> str:
    """Bring a request to a stage, next to others; return its id."""
    run.submit(make_request("other", 4, 12))
    if stage == "waiting":
        run.submit(make_request("also", 4, 12), make_request("target", 4, 9))
        run.step(2)
    elif stage == "submitted":
        run.submit(make_request("target", 4, 9))
    elif stage == "prefilling":
        run.submit(make_request("target", 40, 9), make_request("next", 4, 3))
        run.step(2)
    elif stage == "decoding":
        run.submit(make_request("target", 4, 9), make_request("next", 4, 3))
        run.step(3)
    elif stage == "before_its_last_token":
        run.submit(with_stop_at(make_request("target", 4, 9), 3), make_request("next", 4, 3))
        run.step(3)
    else:
        raise SuiteError(f"unknown stage {stage!r}")
    return "target"


def fail_nth_call(run: Harness, name: str, nth: int) -> Callable[[EngineCall], Exception | None]:
    """Return a `fail_call` that makes the nth call of a name fail, once."""
    left = [nth]

    def trouble(call: EngineCall) -> Exception | None:
        left[0] -= call.name == name
        if call.name == name and left[0] == -1:
            return RuntimeError("an accident")
        return None

    return trouble


def solo_failures(run: Harness) -> list[str]:
    """Return the requests that were the only one in a failed step or `add_slot`."""
    return [call.ids[0] for call in run.engine.log
            if call.failed and len(call.ids) == 1 and call.name in ("decode_step", "add_slot")]


def fail_from_step(run: Harness, step: int) -> Callable[[EngineCall], Exception | None]:
    """Return a `fail_call` that makes every step and reset fail from a step on."""
    def trouble(call: EngineCall) -> Exception | None:
        dead = run.clock >= step and call.name in ("decode_step", "reset")
        return RuntimeError("the device is gone") if dead else None

    return trouble
