"""What the parts of a stack do: engines, the rows they compute, stores of prefixes, templates.

A part is noted where it is called by the case itself, or under the scheduler whose step it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from falsifiers.bisect.events.http import talk
from falsifiers.bisect.events.log import Happened, Log, over
from falsifiers.bisect.events.scheduler import drawn, taken
from falsifiers.judging.batch_driver import state_digest


def happened(log: Log, slot: int | None, what: str, *, request: str = "",
             step: int | None = None, tokens: Sequence[int] = ()) -> None:
    """Note an event of whoever has the slot, or is being seated with these tokens."""
    watch = log.watch
    if watch is None:
        log.note(Happened(log.runs, step, request, slot, what))
    else:
        watch.note("" if slot is None else watch.of(slot, tokens), slot, what)


def engine(log: Log, part: type) -> type:
    """Return an engine that notes how it is made, what it computes, and what a case asks of it."""
    def made(self: Any, model: Any, path: Any, limits: Any, *rest: Any) -> None:
        try:
            with log.within():
                part.__init__(self, model, rows_noted(log, path), limits, *rest)  # type: ignore[misc]
        except Exception as error:
            happened(log, None, f"is not made for {limits}: {told(error)}", request="an engine")
            raise
        if not log.inside:
            happened(log, None, f"is made for {limits}", request="an engine")

    return over(part, __init__=made, draw=staticmethod(_draw(log, part)),
                run_single=_run_single(log, part), start_batch=_start(log, part, "start_batch"),
                add_slot=_start(log, part, "add_slot"))


def _start(log: Log, part: Any, name: str) -> Callable[..., Any]:
    def start(self: Any, given: Any) -> Any:
        if log.inside:
            return getattr(part, name)(self, given)
        asked = f"{name} of {given}"
        try:
            with log.within():
                seats = getattr(part, name)(self, given)
        except Exception as error:
            happened(log, None, f"is refused {asked}: {told(error)}{taken(self)}",
                     request="the case")
            raise
        first = seats[0] if isinstance(seats, list) else seats
        happened(log, first.slot, f"is granted {asked}: {seats}{taken(self)}", request="the case")
        return seats

    return start


def _run_single(log: Log, part: Any) -> Callable[..., Any]:
    def run_single(self: Any, request: Any) -> Iterator[Any]:
        run = part.run_single(self, request)
        try:
            for step in count(1):
                with log.within():
                    one = next(run, None)
                if one is None:
                    return
                happened(log, one.slot, f"is given {drawn(one)}", step=step,
                         request=f"request {request.id!r} alone")
                yield one
        finally:
            with log.within():
                run.close()

    return run_single


def _draw(log: Log, part: Any) -> Callable[..., Any]:
    def draw(*rows: Any) -> Any:
        if log.inside:
            return part.draw(*rows)
        with log.within():
            all_drawn = part.draw(*rows)
        for row, one in enumerate(all_drawn):
            happened(log, None, f"is drawn {drawn(one)}", request=f"row {row}")
        return all_drawn

    return draw


def rows_noted(log: Log, path: Any) -> Any:
    """Return a path that notes each row of a step."""
    inner = path.step_rows

    def step_rows(own: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
                  sink: Any) -> Any:
        m = len(rows.slots)
        for slot, at, fed in zip(rows.slots, rows.positions, rows.counts, strict=True):
            happened(log, slot, f"has {fed} tokens computed from position {at} on, in a step "
                                f"of {m}")
        return inner(own, model, pool, tokens, rows, sink)

    return replace(path, step_rows=step_rows)


def reuse(log: Log, part: type) -> type:
    """Return a use of a store whose own steps are noted."""
    def made(self: Any, store: Any, model: Any, path: Any, *rest: Any) -> None:
        part.__init__(self, store, model, rows_noted(log, path), *rest)  # type: ignore[misc]

    return over(part, __init__=made)


def store(log: Log, part: Any) -> type:
    """Return a store that notes what it keeps and restores, and what it holds then."""
    def keep(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        kept = part.keep(self, key, tokens, state)
        where = state.index if log.watch else None
        happened(log, where, f"has {len(tokens)} tokens {'kept' if kept else 'not kept'}: "
                             f"{_held(self)}", request="the store")
        return kept

    def restore(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        where = state.index if log.watch else None
        try:
            found = part.restore(self, key, tokens, state)
        except Exception as error:
            happened(log, where, f"has none of {len(tokens)} tokens restored: {told(error)}",
                     request="the store", tokens=tokens)
            raise
        happened(log, where, f"has {found} of {len(tokens)} tokens restored as "
                             f"{_state(state, found)}: {_held(self)}", request="the store",
                 tokens=tokens)
        return found

    return over(part, keep=keep, restore=restore)


def _held(store: Any) -> str:
    meter = store.meter
    return (f"{meter.bytes} bytes in {meter.blocks} blocks of checkpoints after "
            f"{[len(tokens) for _, tokens in store.contents()]}, {meter.hits} hits of "
            f"{meter.reused} tokens, {meter.misses} misses")


def _state(state: Any, length: int) -> str:
    """Return the digest of what a slot holds after so many tokens; all of it after none."""
    return state_digest(state.named(length) if length else state.named())[:12]


def template(log: Log, part: Any) -> type:
    """Return a chat template that notes what it makes of each chat."""
    def render(self: Any, messages: Any) -> Any:
        try:
            text = part.render(self, messages)
        except Exception as error:
            _rendered(f"is refused: {told(error)}")
            raise
        _rendered(f"is made {text!r}")
        return text

    def _rendered(what: str) -> None:
        if (asking := talk()) is not None:
            asking.note(f"its chat {what}")
        else:
            happened(log, None, what, request="a chat")

    return over(part, render=render)


def told(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
