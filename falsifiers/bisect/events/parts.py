"""What the parts of a stack do: engines, the rows they compute, stores of prefixes, templates.

A part is noted where it is called by the case itself, or under the scheduler whose step it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from falsifiers.bisect.events.http import current_exchange
from falsifiers.bisect.events.log import Event, EventLog, override_methods
from falsifiers.bisect.events.scheduler import format_taken_slots, format_token
from falsifiers.judging.batch_driver import state_digest


def note_event(log: EventLog, slot: int | None, what: str, *, request: str = "",
             step: int | None = None, tokens: Sequence[int] = ()) -> None:
    """Note an event of whoever has the slot, or is being seated with these tokens."""
    watch = log.watch
    if watch is None:
        log.note(Event(log.runs, step, request, slot, what))
    else:
        watch.note("" if slot is None else watch.owner_of(slot, tokens), slot, what)


def record_engine(log: EventLog, part: type) -> type:
    """Return an engine that notes how it is made, what it computes, and what a case asks of it."""
    def made(self: Any, model: Any, path: Any, limits: Any, *rest: Any) -> None:
        try:
            with log.nested_call():
                part.__init__(self, model, record_rows(log, path), limits, *rest)  # type: ignore[misc]
        except Exception as error:
            note_event(
                log, None, f"is not made for {limits}: {format_error(error)}", request="an engine"
            )
            raise
        if not log.is_nested:
            note_event(log, None, f"is made for {limits}", request="an engine")

    return override_methods(
        part,
        __init__=made,
        draw=staticmethod(_recorded_draw(log, part)),
        run_single=_recorded_run_single(log, part),
        start_batch=_recorded_start(log, part, "start_batch"),
        add_slot=_recorded_start(log, part, "add_slot"),
    )


def _recorded_start(log: EventLog, part: Any, name: str) -> Callable[..., Any]:
    def start(self: Any, given: Any) -> Any:
        if log.is_nested:
            return getattr(part, name)(self, given)
        asked = f"{name} of {given}"
        try:
            with log.nested_call():
                seats = getattr(part, name)(self, given)
        except Exception as error:
            note_event(
                log,
                None,
                f"is refused {asked}: {format_error(error)}{format_taken_slots(self)}",
                request="the case",
            )
            raise
        first = seats[0] if isinstance(seats, list) else seats
        note_event(
            log,
            first.slot,
            f"is granted {asked}: {seats}{format_taken_slots(self)}",
            request="the case",
        )
        return seats

    return start


def _recorded_run_single(log: EventLog, part: Any) -> Callable[..., Any]:
    def run_single(self: Any, request: Any) -> Iterator[Any]:
        run = part.run_single(self, request)
        try:
            for step in count(1):
                with log.nested_call():
                    one = next(run, None)
                if one is None:
                    return
                note_event(log, one.slot, f"is given {format_token(one)}", step=step,
                         request=f"request {request.id!r} alone")
                yield one
        finally:
            with log.nested_call():
                run.close()

    return run_single


def _recorded_draw(log: EventLog, part: Any) -> Callable[..., Any]:
    def draw(*rows: Any) -> Any:
        if log.is_nested:
            return part.draw(*rows)
        with log.nested_call():
            all_drawn = part.draw(*rows)
        for row, one in enumerate(all_drawn):
            note_event(log, None, f"is drawn {format_token(one)}", request=f"row {row}")
        return all_drawn

    return draw


def record_rows(log: EventLog, path: Any) -> Any:
    """Return a path that notes each row of a step."""
    inner = path.step_rows

    def step_rows(own: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
                  sink: Any) -> Any:
        m = len(rows.slots)
        for slot, at, own in rows.spans(tokens):
            note_event(log, slot, f"has {len(own)} tokens computed from position {at} on, in a step "
                                f"of {m}")
        return inner(own, model, pool, tokens, rows, sink)

    return replace(path, step_rows=step_rows)


def record_reuse(log: EventLog, part: type) -> type:
    """Return a use of a store whose own steps are noted."""
    def made(self: Any, store: Any, model: Any, path: Any, *rest: Any) -> None:
        part.__init__(self, store, model, record_rows(log, path), *rest)  # type: ignore[misc]

    return override_methods(part, __init__=made)


def record_store(log: EventLog, part: Any) -> type:
    """Return a store that notes what it keeps and restores, and what it holds then."""
    def keep(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        kept = part.keep(self, key, tokens, state)
        where = state.index if log.watch else None
        note_event(log, where, f"has {len(tokens)} tokens {'kept' if kept else 'not kept'}: "
                             f"{_describe_store(self)}", request="the store")
        return kept

    def restore(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        where = state.index if log.watch else None
        try:
            found = part.restore(self, key, tokens, state)
        except Exception as error:
            note_event(
                log,
                where,
                f"has none of {len(tokens)} tokens restored: {format_error(error)}",
                request="the store",
                tokens=tokens,
            )
            raise
        note_event(
            log,
            where,
            f"has {found} of {len(tokens)} tokens restored as "
            f"{_short_state_digest(state, found)}: {_describe_store(self)}",
            request="the store",
            tokens=tokens,
        )
        return found

    return override_methods(part, keep=keep, restore=restore)


def _describe_store(store: Any) -> str:
    meter = store.meter
    return (f"{meter.bytes} bytes in {meter.blocks} blocks of checkpoints after "
            f"{[len(tokens) for _, tokens in store.contents()]}, {meter.hits} hits of "
            f"{meter.reused} tokens, {meter.misses} misses")


def _short_state_digest(state: Any, length: int) -> str:
    """Return the digest of what a slot holds after so many tokens; all of it after none."""
    return state_digest(state.named(length) if length else state.named())[:12]


def record_template(log: EventLog, part: Any) -> type:
    """Return a chat template that notes what it makes of each chat."""
    def render(self: Any, messages: Any) -> Any:
        try:
            text = part.render(self, messages)
        except Exception as error:
            _rendered(f"is refused: {format_error(error)}")
            raise
        _rendered(f"is made {text!r}")
        return text

    def _rendered(what: str) -> None:
        if (asking := current_exchange()) is not None:
            asking.note(f"its chat {what}")
        else:
            note_event(log, None, what, request="a chat")

    return override_methods(part, render=render)


def format_error(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
