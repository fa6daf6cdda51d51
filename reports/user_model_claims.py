"""The falsifiers for the user's own model, and the streams that fit the time."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.schema import Falsifier

MAX_TOKENS = 12
"""Tokens of the longest stream."""
FIRST_TOKEN_SHARE = 0.4
"""If the first token takes a larger share of the time, no second is measured."""
STREAM_SHARE = 0.7
"""The share of the time for streams; sampled products get the rest."""

FALSIFIERS = (
    Falsifier(
        id="alone_equals_oracle", attacks="A step of one row differs from the oracle.",
        if_fails="A row at m = 1 already differs from forward_single on this file, so batching is "
                 "not the cause: compare op by op, starting with the type of the first op."),
    Falsifier(
        id="streams_equal_solo",
        attacks="Rows of a batch of three differ from the same sequences at m = 1, or an idle slot "
                "is written.",
        if_fails="A row's result depends on the batch around it. Look for a kernel, tile or "
                 "arithmetic chosen from m or from a shape that the small test models lack."),
    Falsifier(
        id="products_equal_integer_arithmetic",
        attacks="A product with one of this file's matrices differs from integer arithmetic.",
        if_fails="A scale, high bit, minimum, limb or rounding step of this type is wrong, or an "
                 "offset into a large matrix is; the row and element are in the message."))


@dataclass(frozen=True)
class StreamPlan:
    """How many tokens each stream gets."""

    single: int = 0
    """Tokens of the stream that is compared with the oracle; 0 skips it."""
    batch: int = 0
    """Tokens of the longest of three streams; 0 skips them."""
    left_out: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that go through the model, those of the references included."""
        three = 3 * self.batch - 3 if self.batch else 0
        return 2 * self.single + 2 * three


def plan_streams(seconds: float, left: float, minutes: float) -> StreamPlan:
    """Return the longest streams that fit `STREAM_SHARE` of `left` seconds, `seconds` a token."""
    for length in range(MAX_TOKENS, 2, -1):
        both = StreamPlan(length, length)
        if both.tokens * seconds <= STREAM_SHARE * left:
            return both
    cost = StreamPlan(3, 3).tokens * seconds
    wide = f"m = 3: the shortest streams take about {cost:.0f} s, past --minutes {minutes:g}"
    single = min(MAX_TOKENS, int(STREAM_SHARE * left / (2 * seconds)))
    if single:
        return StreamPlan(single, 0, (wide,))
    return StreamPlan(0, 0, (f"m = 1: two tokens take about {2 * seconds:.0f} s, past --minutes "
                       f"{minutes:g}", wide))
