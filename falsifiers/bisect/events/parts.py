"""Record the components of a stack: engines, the rows they compute, prefix stores, templates.

An event belongs to the scheduler whose step makes the call, or to the case itself.
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
    """Record an event of the request in a slot, or of the one being seated with these tokens."""
    watch = log.watch
    if watch is None:
        log.note(Event(log.runs, step, request, slot, what))
    else:
        watch.note("" if slot is None else watch.owner_of(slot, tokens), slot, what)


def record_engine(log: EventLog, base: type) -> type:
    """Return an engine class that records its construction, its rows and the case's calls."""
    def init(self: Any, model: Any, path: Any, limits: Any, *rest: Any) -> None:
        try:
            with log.nested_call():
                base.__init__(self, model, record_rows(log, path), limits, *rest)  # type: ignore[misc]
        except Exception as error:
            note_event(log, None, f"is not built for {limits}: {format_error(error)}",
                       request="an engine")
            raise
        if not log.is_nested:
            note_event(log, None, f"is built for {limits}", request="an engine")

    return override_methods(
        base, __init__=init, draw=staticmethod(_recorded_draw(log, base)),
        run_single=_recorded_run_single(log, base),
        start_batch=_recorded_start(log, base, "start_batch"),
        add_slot=_recorded_start(log, base, "add_slot"))


def _recorded_start(log: EventLog, base: Any, name: str) -> Callable[..., Any]:
    def start(self: Any, argument: Any) -> Any:
        if log.is_nested:
            return getattr(base, name)(self, argument)
        call = f"{name} of {argument}"
        try:
            with log.nested_call():
                seats = getattr(base, name)(self, argument)
        except Exception as error:
            note_event(log, None, f"is refused {call}: {format_error(error)}"
                                  f"{format_taken_slots(self)}", request="the case")
            raise
        first = seats[0] if isinstance(seats, list) else seats
        note_event(log, first.slot, f"is granted {call}: {seats}{format_taken_slots(self)}",
                   request="the case")
        return seats

    return start


def _recorded_run_single(log: EventLog, base: Any) -> Callable[..., Any]:
    def run_single(self: Any, request: Any) -> Iterator[Any]:
        run = base.run_single(self, request)
        try:
            for step in count(1):
                with log.nested_call():
                    token = next(run, None)
                if token is None:
                    return
                note_event(log, token.slot, f"is given {format_token(token)}", step=step,
                           request=f"request {request.id!r} alone")
                yield token
        finally:
            with log.nested_call():
                run.close()

    return run_single


def _recorded_draw(log: EventLog, base: Any) -> Callable[..., Any]:
    def draw(*rows: Any) -> Any:
        if log.is_nested:
            return base.draw(*rows)
        with log.nested_call():
            tokens = base.draw(*rows)
        for row, token in enumerate(tokens):
            note_event(log, None, f"is drawn {format_token(token)}", request=f"row {row}")
        return tokens

    return draw


def record_rows(log: EventLog, path: Any) -> Any:
    """Return a path that records each row of a step."""
    inner = path.step_rows

    def step_rows(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
                  sink: Any) -> Any:
        m = len(rows.slots)
        for slot, at, row_tokens in rows.spans(tokens):
            note_event(log, slot, f"has {len(row_tokens)} tokens computed from position {at} on, "
                                  f"in a step of {m}")
        return inner(path, model, pool, tokens, rows, sink)

    return replace(path, step_rows=step_rows)


def record_reuse(log: EventLog, base: type) -> type:
    """Return a prefix-reuse class whose steps are recorded."""
    def init(self: Any, store: Any, model: Any, path: Any, *rest: Any) -> None:
        base.__init__(self, store, model, record_rows(log, path), *rest)  # type: ignore[misc]

    return override_methods(base, __init__=init)


def record_store(log: EventLog, base: Any) -> type:
    """Return a store class that records what it stores and restores, and its contents then."""
    def keep(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        stored = base.keep(self, key, tokens, state)
        slot = state.index if log.watch else None
        note_event(log, slot, f"has {len(tokens)} tokens {'stored' if stored else 'not stored'}: "
                              f"{_describe_store(self)}", request="the store")
        return stored

    def restore(self: Any, key: Any, tokens: Sequence[int], state: Any) -> Any:
        slot = state.index if log.watch else None
        try:
            found = base.restore(self, key, tokens, state)
        except Exception as error:
            note_event(log, slot, f"has none of {len(tokens)} tokens restored: "
                                  f"{format_error(error)}", request="the store", tokens=tokens)
            raise
        note_event(log, slot, f"has {found} of {len(tokens)} tokens restored as "
                              f"{_short_state_digest(state, found)}: {_describe_store(self)}",
                   request="the store", tokens=tokens)
        return found

    return override_methods(base, keep=keep, restore=restore)


def _describe_store(store: Any) -> str:
    meter = store.meter
    return (f"{meter.bytes} bytes in {meter.blocks} blocks of checkpoints after "
            f"{[len(tokens) for _, tokens in store.contents()]}, {meter.hits} hits of "
            f"{meter.reused} tokens, {meter.misses} misses")


def _short_state_digest(state: Any, length: int) -> str:
    """Return a digest of a slot's first `length` tokens of state, or of all of it for 0."""
    return state_digest(state.named(length) if length else state.named())[:12]


def record_template(log: EventLog, base: Any) -> type:
    """Return a chat template class that records the text of each chat."""
    def render(self: Any, messages: Any) -> Any:
        try:
            text = base.render(self, messages)
        except Exception as error:
            note_rendering(f"is refused: {format_error(error)}")
            raise
        note_rendering(f"is rendered as {text!r}")
        return text

    def note_rendering(what: str) -> None:
        if (exchange := current_exchange()) is not None:
            exchange.note(f"its chat {what}")
        else:
            note_event(log, None, what, request="a chat")

    return override_methods(base, render=render)


def format_error(error: Exception) -> str:
    """Return an error as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
