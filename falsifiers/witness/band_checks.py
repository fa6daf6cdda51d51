"""Judges a band by its streams: agreement, repeated tokens, margins, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median
from typing import Any

from falsifiers.witness.rules import CONSTANT_RUN, is_correct
from falsifiers.witness.stream import Stream, Token

MIXED_UP_TOKENS = 8
"""So many tokens of another prompt's stream are no chance."""


@dataclass
class Arm:
    """Requests that were sent at the same time."""

    name: str
    """identical, forward or reversed."""
    prompts: Sequence[int]
    """The number of each request's prompt; -1 is the witness prompt."""
    streams: list[Stream]
    started: float
    ended: float
    m_formed: int | None = None
    trouble: str | None = None
    """Why the evidence of the batch could not be read, or None."""

    @property
    def wall_seconds(self) -> float:
        """Return the seconds until the last request was served."""
        return self.ended - self.started


@dataclass
class BandRun:
    """All streams of one width."""

    c: int
    declared_min: int
    reference: Stream
    solo_streams: Sequence[Stream]
    """The streams of the different prompts, each sent by itself."""
    arms: list[Arm] = field(default_factory=list)

    @property
    def identical(self) -> list[Arm]:
        """Return the arms of identical requests, one a replicate."""
        return [arm for arm in self.arms if arm.name == "identical"]

    @property
    def mixed(self) -> list[Arm]:
        """Return the arms of different prompts, forward first."""
        return [arm for arm in self.arms if arm.name != "identical"]

    def solo_stream(self, prompt: int) -> Stream:
        """Return the stream of a prompt by itself."""
        return self.reference if prompt < 0 else self.solo_streams[prompt]

    def stream_pairs(self) -> Iterator[tuple[Stream, Stream]]:
        """Yield every stream with that of the same prompt by itself."""
        for arm in self.arms:
            for prompt, stream in zip(arm.prompts, arm.streams, strict=True):
                yield stream, self.solo_stream(prompt)


def agreed_tokens(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the common start of two streams, in tokens."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
                min(len(left), len(right)))


def find_divergence(stream: Stream, solo: Stream) -> int | None:
    """Return the first differing token, or None if one stream starts with the other."""
    at = agreed_tokens(stream.names, solo.names)
    return at if at < min(len(stream.tokens), len(solo.tokens)) else None


def longest_constant_run(tokens: Sequence[str]) -> int:
    """Return the longest run of one token."""
    return max((sum(1 for _ in run) for _, run in groupby(tokens)), default=0)


def token_margin(solo: Token, taken: Token) -> float | None:
    """Return the difference in log-probability between the solo token and the one taken.

    None if the server does not report it. The margin of the two likeliest tokens if they swapped
    places, and larger if the token taken was not second.
    """
    rival = solo.top.get(taken.name)
    return None if solo.logprob is None or rival is None else abs(solo.logprob - rival)


def worst_margin(taken: BandRun) -> float | None:
    """Return the largest margin of the divergences before `declared_min`, else of the first.

    None without a divergence, or if a margin is unknown: one near-tie does not excuse another
    divergence.
    """
    found = [(at, token_margin(solo.tokens[at], stream.tokens[at]))
             for stream, solo in taken.stream_pairs()
             if (at := find_divergence(stream, solo)) is not None]
    early = [value for at, value in found if at < taken.declared_min]
    margins = early or [value for at, value in found if at == min(at for at, _ in found)]
    return max((value for value in margins if value is not None), default=None) \
        if None not in margins else None


def find_failures(taken: BandRun) -> Iterator[str]:
    """Yield proofs that the server is wrong, the plainest first."""
    for arm in taken.arms:
        for i, stream in enumerate(arm.streams):
            run = longest_constant_run(stream.names)
            if run >= CONSTANT_RUN:
                yield f"slot {i} of the {arm.name} requests repeats one token {run} times"
    for arm in taken.identical:
        for i, stream in enumerate(arm.streams[1:], 1):
            at = find_divergence(stream, arm.streams[0])
            if at is not None and at < taken.declared_min:
                yield f"slot {i} differs from slot 0 at token {at}, though their prompts are equal"
    for arm in taken.mixed:
        for i, stream in enumerate(arm.streams):
            other = find_other_prompt(taken, arm.prompts[i], stream)
            if other is not None:
                yield (f"slot {i} of the {arm.name} prompts got the tokens of prompt {other}, but "
                       f"had prompt {arm.prompts[i]}")
    yield from _find_order_effects(taken)


def find_other_prompt(taken: BandRun, prompt: int, stream: Stream) -> int | None:
    """Return the other prompt whose tokens a stream has, or None."""
    agree = [agreed_tokens(stream.names, solo.names) for solo in taken.solo_streams]
    best = max(range(len(agree)), key=agree.__getitem__)
    is_strange = agree[best] > agree[prompt] and agree[prompt] < taken.declared_min
    return best if is_strange and agree[best] >= MIXED_UP_TOKENS else None


def _find_order_effects(taken: BandRun) -> Iterator[str]:
    if len(taken.mixed) == 2:
        forward, reverse = taken.mixed
        for prompt, stream in zip(forward.prompts, forward.streams, strict=True):
            at = find_divergence(stream, reverse.streams[list(reverse.prompts).index(prompt)])
            if at is not None and at < taken.declared_min:
                yield f"prompt {prompt} gets another token {at} when the prompts' order is reversed"


def find_doubts(taken: BandRun) -> Iterator[str]:
    """Yield the reasons why agreement proves nothing."""
    least = taken.declared_min
    for arm in taken.arms:
        for i, stream in enumerate(arm.streams):
            if stream.trouble:
                yield f"slot {i} of the {arm.name} requests: {stream.trouble}"
            elif len(stream.tokens) < least:
                yield (f"slot {i} of the {arm.name} requests has {len(stream.tokens)} tokens, "
                       f"fewer than {least}")
    for prompt, solo in enumerate(taken.solo_streams):
        if solo.trouble or len(solo.tokens) < least:
            yield f"prompt {prompt} by itself: {solo.trouble or f'fewer than {least} tokens'}"
        for other, earlier in enumerate(taken.solo_streams[:prompt]):
            if agreed_tokens(solo.names, earlier.names) >= least:
                yield (f"prompts {other} and {prompt} have the same continuation, so a swap cannot "
                       f"be detected: pass another --prompt")
    for arm in taken.arms:
        if arm.trouble:
            yield arm.trouble
        elif arm.m_formed != taken.c:
            yield (f"the {arm.name} requests formed {_describe_batches(arm.m_formed)}, "
                   f"not of {taken.c}")
    for arm in taken.identical:
        if not streams_overlap(arm.streams):
            yield "the streams do not show that the requests were served at the same time"


def _describe_batches(m: int | None) -> str:
    return "no batch that the server reports" if m is None else f"batches of {m}"


def streams_overlap(streams: Sequence[Stream]) -> bool:
    """Return whether live streams show a moment when all requests were being served."""
    if len(streams) < 2:
        return True
    return all(stream.is_live for stream in streams) and \
        max(stream.times[0] for stream in streams) < min(stream.times[-1] for stream in streams)


def build_band(taken: BandRun) -> dict[str, Any]:
    """Return a band's record, with speeds only if its correctness is shown."""
    failing, doubts = next(find_failures(taken), None), next(find_doubts(taken), None)
    streams = [stream for arm in taken.arms for stream in arm.streams]
    agreed = [agreed_tokens(stream.names, solo.names) for stream, solo in taken.stream_pairs()
              if stream.tokens]
    found: dict[str, Any] = {
        "c": taken.c, "m_formed": m_formed(taken),
        "result": "FAIL" if failing else "UNMEASURABLE" if doubts else "PASS",
        "declared_min": taken.declared_min, "divergence_at": min(agreed, default=None),
        "intra_agree_to": min((_intra_agreement(arm, stream) for arm in taken.identical
                               for stream in arm.streams), default=None),
        "max_constant_run": max((longest_constant_run(s.names) for s in streams), default=None),
        "top2_margin_at_divergence": worst_margin(taken), "decode_tok_s": None,
        "reason": failing or doubts}
    worst = min(taken.identical, key=lambda arm: min(
        agreed_tokens(s.names, taken.reference.names) for s in arm.streams), default=None)
    found["slots"] = _slot_records(taken, worst) if worst else []
    found["mixed"] = [
        {"order": arm.name, "i": i, "prompt": prompt,
         "closest": find_other_prompt(taken, prompt, stream),
         "agree_to": agreed_tokens(stream.names, taken.solo_streams[prompt].names)}
        for arm in taken.mixed
        for i, (prompt, stream) in enumerate(zip(arm.prompts, arm.streams, strict=True))]
    if is_correct(found):
        found |= _measure_speed(taken)
        if worst:
            for slot, stream in zip(found["slots"], worst.streams, strict=True):
                slot["times_ms"] = [round(1e3 * (t - worst.started), 2) for t in stream.times]
    return found


def m_formed(taken: BandRun) -> int | None:
    """Return the width that every arm formed, else the first other width."""
    widths = [arm.m_formed for arm in taken.arms]
    return next((m for m in widths if m != taken.c), taken.c) if widths else None


def _intra_agreement(arm: Arm, stream: Stream) -> int:
    return agreed_tokens(stream.names, arm.streams[0].names)


def _slot_records(taken: BandRun, arm: Arm) -> list[dict[str, Any]]:
    return [{"i": i, "agree_to": agreed_tokens(stream.names, taken.reference.names),
             "intra_agree_to": _intra_agreement(arm, stream),
             "constant_run": longest_constant_run(stream.names),
             "completion_tokens": len(stream.tokens), "finish_reason": stream.finish_reason}
            for i, stream in enumerate(arm.streams)]


def _measure_speed(taken: BandRun) -> dict[str, Any]:
    rates = [stream.tokens_per_second for arm in taken.identical for stream in arm.streams]
    known = [rate for rate in rates if rate is not None]
    return {"decode_tok_s": round(median(known), 3) if len(known) == len(rates) else None,
            "wall_s": [round(arm.wall_seconds, 6) for arm in taken.identical],
            "tokens": sum(len(s.tokens) for s in taken.identical[0].streams)}
