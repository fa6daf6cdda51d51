"""Situations the attacks put a scheduler into, and what is due in them."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.harness import Poisoned, Run, batch_log, request, stopping
from phases.p0_scheduler.mock_engine import Call
from phases.p0_scheduler.protocol import Ending, Request
from phases.p0_scheduler.reference import Served

ENDINGS: tuple[Ending, ...] = ("eos", "length", "stop", "cancel", "disconnect", "error")


def waves(seed: int, count: int) -> list[list[Request]]:
    """Return ragged requests in the waves they arrive in, some waves empty, some with stops."""
    draw = random.Random(seed)
    result: list[list[Request]] = []
    for number in range(count):
        one = request(f"w{number}", draw.randint(1, 30), draw.randint(1, 12), draw.randrange(3))
        if draw.random() < 0.4:
            one = stopping(one, draw.randrange(one.limit))
        if draw.random() < 0.5 or not result:
            result += [[] for _ in range(draw.randrange(4))] + [[]]
        result[-1].append(one)
    return result


def logged_widths(run: Run) -> list[int]:
    """Step until idle; return the rows of each step, and hold the log to each change of them."""
    rows: list[int] = []
    due: list[str] = []
    with batch_log() as lines:
        while not run.scheduler.idle:
            run.step()
            rows.append(len(run.engine.steps()[-1].rows))
            due += [f"Batch m={rows[-1]}"] if rows[-1:] != rows[-2:-1] else []
            run.same("log", lines, due, step=run.clock - 1)
    return rows


def timetable(run: Run, solo: Mapping[str, Served]) -> dict[str, tuple[int, int]]:
    """Return the steps (seat, end) due to each request, from its time alone and the slots.

    The earliest slot to fall free goes to whoever waits longest, from the next step on.
    """
    free = [0] * run.settings.slots
    due: dict[str, tuple[int, int]] = {}
    for id in run.requests:
        seat = max(run.submitted_at[id], heapq.heappop(free))
        end = seat + solo[id].steps(run.settings.chunk) - 1
        heapq.heappush(free, end + 1)
        due[id] = seat, end
    return due


def ending_as(subject: Subject, judge: Judge, plan: Sequence[tuple[Ending, int]]) -> Run:
    """Serve three requests in two slots, each to its planned ending at its planned token.

    A cancel comes inside the step that samples that token, which would stop the request too.
    """
    requests = [request(f"r{number}", 3 + number, 30) for number in range(len(plan))]
    for number, (ending, at) in enumerate(plan):
        if ending == "length":
            requests[number] = replace(requests[number], limit=at + 1)
        elif ending != "error":
            requests[number] = stopping(requests[number], at)
    planned = {one.id: (one, *end) for one, end in zip(requests, plan, strict=True)}
    eos = [one.stop_ids for one, ending, _ in planned.values() if ending == "eos"]
    run = Run(subject, judge, slots=2, eos=frozenset().union(*eos))
    run.engine.trouble = Poisoned(run.engine, {
        id: len(one.tokens) + at - 1 for id, (one, ending, at) in planned.items()
        if ending == "error"})

    def during(call: Call) -> None:
        for id, row in zip(call.ids, call.rows, strict=call.name == "decode_step"):
            one, ending, at = planned[id]
            due = len(one.tokens) + at
            if call.name == "decode_step" and run.engine.owner[row.slot].fed + row.count == due \
                    and ending in ("cancel", "disconnect"):
                run.cancel(id, ending)

    run.engine.during = during
    run.submit(*requests)
    run.until_idle()
    return run


def cancel_inside(run: Run, name: str, nth: int, id: str) -> list[int]:
    """Cancel a request inside the nth call of a name; return where in the log, once it came."""
    seen: list[int] = []
    left = [nth]

    def during(call: Call) -> None:
        left[0] -= call.name == name
        if call.name == name and left[0] == 0:
            seen.append(len(run.engine.log))
            run.cancel(id)

    run.engine.during = during
    return seen


def at_stage(run: Run, stage: str) -> str:
    """Bring a request to a stage, beside others; return its id."""
    run.submit(request("beside", 4, 12))
    if stage == "waiting":
        run.submit(request("also", 4, 12), request("target", 4, 9))
        run.step(2)
    elif stage == "submitted":
        run.submit(request("target", 4, 9))
    elif stage == "prefilling":
        run.submit(request("target", 40, 9), request("next", 4, 3))
        run.step(2)
    elif stage == "decoding":
        run.submit(request("target", 4, 9), request("next", 4, 3))
        run.step(3)
    elif stage == "before_its_last_token":
        run.submit(stopping(request("target", 4, 9), 3), request("next", 4, 3))
        run.step(3)
    else:
        raise SuiteError(f"unknown stage {stage!r}")
    return "target"


def accident(run: Run, name: str, nth: int) -> Callable[[Call], Exception | None]:
    """Return trouble that makes the nth call of a name fail, once."""
    left = [nth]

    def trouble(call: Call) -> Exception | None:
        left[0] -= call.name == name
        if call.name == name and left[0] == -1:
            return RuntimeError("an accident")
        return None

    return trouble


def alone_in_failure(run: Run) -> list[str]:
    """Return the requests that were alone in a failed step or in a failed seating."""
    return [call.ids[0] for call in run.engine.log
            if call.failed and len(call.ids) == 1 and call.name in ("decode_step", "add_slot")]


def dead_from(run: Run, step: int) -> Callable[[Call], Exception | None]:
    """Return trouble that makes every step and reset fail from a step on."""
    def trouble(call: Call) -> Exception | None:
        dead = run.clock >= step and call.name in ("decode_step", "reset")
        return RuntimeError("the device is gone") if dead else None

    return trouble
