"""Takes a witness of one server: one prompt by itself, then many requests at once."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from falsifiers.witness.band_checks import Arm, BandRun, build_band, find_divergence
from falsifiers.witness.client import OMITTED_FIELDS, Client
from falsifiers.witness.index import add_indices
from falsifiers.witness.rules import FLOOR
from falsifiers.witness.sources import Source
from falsifiers.witness.stream import BadResponse, Stream

PROMPT = "Write down, in plain words, how a river finds its way from a spring to the sea."
REFUSAL_STATUSES = (400, 422)
"""HTTP statuses by which servers refuse an unknown field."""


@dataclass(frozen=True)
class Plan:
    """The requests to send."""

    widths: tuple[int, ...] = (1, 4, 8, 16)
    prompt: str = PROMPT
    n_predict: int = 128
    declared_min: int = FLOOR
    replicates: int = 1
    """Repetitions of each width's identical requests; speeds are medians over them."""
    mixed: bool = True
    """Whether to send different prompts too; only these show swapped slots."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Host, commit, digests and versions, for the witness."""

    def prompt_variant(self, i: int) -> str:
        """Return the i-th of the different prompts."""
        return f"Item {i + 1}. {self.prompt}"


@dataclass
class WitnessTaker:
    """Takes the bands in turn; `witness` is valid after every band."""

    plan: Plan
    client: Client
    source: Source
    witness: dict[str, Any] = field(default_factory=dict)
    solo_streams: list[Stream] = field(default_factory=list)

    async def run(self, on_band: Callable[[dict[str, Any]], None]) -> None:
        """Take every band, narrow ones first, and call `on_band` with each."""
        reference, again = await self._reference()
        why = self._start_witness(reference, again)
        for c in sorted(set(self.plan.widths)):
            taken = BandRun(c, self.plan.declared_min, reference, [])
            if why is None:
                await self._send_arms(taken)
            found = build_band(taken)
            if why is not None:
                found |= {"result": "UNMEASURABLE", "reason": why}
            self.witness["bands"].append(found)
            add_indices(self.witness["bands"], [s.ended - s.started for s in (reference, again)])
            on_band(found)
            why = why or _why_unreachable(taken)

    async def _reference(self) -> tuple[Stream, Stream]:
        """Return two streams of the witness prompt by itself, in a form that the server accepts."""
        first = Stream()
        for fields in OMITTED_FIELDS:
            self.client.omitted_fields = fields
            first = await self._complete(self.plan.prompt)
            if first.status not in REFUSAL_STATUSES:
                break
        return first, first if first.trouble else await self._complete(self.plan.prompt)

    async def _complete(self, prompt: str) -> Stream:
        return await self.client.complete(prompt, self.plan.n_predict)

    def _start_witness(self, reference: Stream, again: Stream) -> str | None:
        """Store everything but the bands; return why no band can be measured, or None."""
        plan, at = self.plan, find_divergence(again, reference)
        unstable = at is not None and at < plan.declared_min
        trouble = reference.trouble or again.trouble
        self.witness |= {
            "witness_version": 2, "probe": "perf041", **plan.identity,
            "prompt_sha256": hashlib.sha256(plan.prompt.encode()).hexdigest(),
            "sampler": {"temperature": 0.0, "seed": 0, "n_predict": plan.n_predict,
                        "ignore_eos": True, "left_out": sorted(self.client.omitted_fields)},
            "m_formed_from": self.source.name, "server": self.client.server,
            "reference": {"tokens": min(len(reference.tokens), len(again.tokens)),
                          "stable": None if trouble else not unstable,
                          "self_divergence_at": at},
            "bands": []}
        if trouble:
            return f"the prompt by itself: {trouble}"
        return (f"the prompt by itself gives another token {at} the second time" if unstable
                else None)

    async def _send_arms(self, taken: BandRun) -> None:
        """Send the arms of a width; stop if the server no longer answers."""
        c = taken.c
        wanted = [("identical", [-1] * c)] * self.plan.replicates
        if c > 1 and self.plan.mixed:
            wanted += [("forward", list(range(c))), ("reversed", list(reversed(range(c))))]
        for name, prompts in wanted:
            if name == "forward" and not await self._take_solos(c):
                taken.solo_streams = self.solo_streams[:c]
                return
            taken.solo_streams = self.solo_streams[:c]
            taken.arms.append(await self._send_arm(name, prompts))
            if _why_unreachable(taken):
                return

    async def _take_solos(self, count: int) -> bool:
        """Send `count` different prompts, each by itself; return whether all were answered."""
        streams = self.solo_streams
        while len(streams) < count and not (streams and streams[-1].trouble):
            streams.append(await self._complete(self.plan.prompt_variant(len(streams))))
        return len(streams) >= count and not any(s.trouble for s in streams[:count])

    async def _send_arm(self, name: str, prompts: Sequence[int]) -> Arm:
        texts = [self.plan.prompt if p < 0 else self.plan.prompt_variant(p) for p in prompts]
        trouble = None
        try:
            await self.source.begin()
        except BadResponse as why:
            trouble = str(why)
        started = self.client.clock()
        streams = await asyncio.gather(*map(self._complete, texts))
        arm = Arm(name, prompts, list(streams), started, self.client.clock(), trouble=trouble)
        try:
            arm.m_formed = await self.source.end(streams) if trouble is None else None
        except BadResponse as why:
            arm.trouble = str(why)
        return arm


def _why_unreachable(taken: BandRun) -> str | None:
    """Return why the server is unreachable, if the last arm got no token; else None."""
    if not taken.arms or any(stream.tokens for stream in taken.arms[-1].streams):
        return None
    return f"the server no longer answers: {taken.arms[-1].streams[0].trouble}"
