"""Faults of a batch to be planted in a stub, each a choice of a seat's next token."""

from __future__ import annotations

from falsifiers.meta.witness.stub_server import Seat, Stub, rival

PLACE = 9
"""The token that is wrong, where only one is."""


def constant(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Give a batch one token for ever."""
    return " the" if len(batch) > 1 else stub.right(seat)


def first_two(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Give the first two seats each other's tokens."""
    at = batch.index(seat)
    other = batch[1 - at] if at < 2 and len(batch) > 1 else seat
    return stub.right(shadow(other))


def every_two(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Swap every pair of seats: the reversed order is mixed up in the same way."""
    at = batch.index(seat) ^ 1
    return stub.right(shadow(batch[at] if at < len(batch) else seat))


def shadow(seat: Seat) -> Seat:
    """Return a seat as it would be, had its own right tokens been written to it."""
    made, plain = Seat(seat.prompt, seat.limit, 0), Stub()
    for _ in seat.tokens:
        made.tokens.append(plain.right(made))
    return made


def bleeding(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Let the neighbour's prompt reach a row, which identical prompts cannot show."""
    if len(seat.tokens) == PLACE and len({s.prompt for s in batch}) > 1:
        return " bled"
    return stub.right(seat)


def late(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Get the first prompt wrong when it is sent last: it is alone, forward, then reversed."""
    mine = [body["prompt"] for body in stub.asked].count(seat.prompt)
    wrong = seat.prompt.startswith("Item 1.") and mine == 3 and len(seat.tokens) == PLACE
    return " odd" if wrong else stub.right(seat)


def one_slot(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Get the third seat wrong, at one place."""
    wrong = len(batch) > 2 and batch.index(seat) == 2 and len(seat.tokens) == PLACE
    return " odd" if wrong else stub.right(seat)


def flipped(stub: Stub, seat: Seat, batch: list[Seat]) -> str:
    """Take the rival at one place, in a batch alone."""
    right = stub.right(seat)
    return rival(right) if len(batch) > 1 and len(seat.tokens) == PLACE else right
