"""Faults of a batch to be planted in a stub, each a choice of a seat's next token."""

from __future__ import annotations

from falsifiers.meta.witness.stub_server import Seat, StubServer, rival_token

FAULT_POSITION = 9
"""The token that is wrong, where only one is."""


def repeat_one_token(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Give a batch one token for ever."""
    return " the" if len(batch) > 1 else stub.right_token(seat)


def swap_first_two(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Give the first two seats each other's tokens."""
    at = batch.index(seat)
    other = batch[1 - at] if at < 2 and len(batch) > 1 else seat
    return stub.right_token(unfaulted_seat(other))


def swap_every_pair(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Swap every pair of seats: the reversed order is mixed up in the same way."""
    at = batch.index(seat) ^ 1
    return stub.right_token(unfaulted_seat(batch[at] if at < len(batch) else seat))


def unfaulted_seat(seat: Seat) -> Seat:
    """Return a seat with the correct tokens of its own prompt."""
    other, plain = Seat(seat.prompt, seat.limit, 0), StubServer()
    for _ in seat.tokens:
        other.tokens.append(plain.right_token(other))
    return other


def leak_neighbour(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Let the neighbour's prompt reach a row, which identical prompts cannot show."""
    if len(seat.tokens) == FAULT_POSITION and len({s.prompt for s in batch}) > 1:
        return " bled"
    return stub.right_token(seat)


def fail_when_last(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Give wrong tokens to the first prompt when it is sent last, in the reversed order."""
    mine = [body["prompt"] for body in stub.requests].count(seat.prompt)
    wrong = seat.prompt.startswith("Item 1.") and mine == 3 and len(seat.tokens) == FAULT_POSITION
    return " odd" if wrong else stub.right_token(seat)


def fail_third_seat(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Get the third seat wrong, at one place."""
    wrong = len(batch) > 2 and batch.index(seat) == 2 and len(seat.tokens) == FAULT_POSITION
    return " odd" if wrong else stub.right_token(seat)


def take_rival(stub: StubServer, seat: Seat, batch: list[Seat]) -> str:
    """Choose the second likeliest token at one position, only in a batch."""
    right = stub.right_token(seat)
    return rival_token(right) if len(batch) > 1 and len(seat.tokens) == FAULT_POSITION else right
