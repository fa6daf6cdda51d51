"""Taking a witness: one prompt alone, then many requests at once, against one server."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from falsifiers.witness.band_checks import Arm, Taken, band, parts
from falsifiers.witness.client import DIALECTS, Client
from falsifiers.witness.index import add_to
from falsifiers.witness.rules import FLOOR
from falsifiers.witness.sources import Source
from falsifiers.witness.stream import Hostile, Stream

PROMPT = "Write down, in plain words, how a river finds its way from a spring to the sea."
REFUSED = (400, 422)
"""Statuses by which servers refuse a field that they do not know."""


@dataclass(frozen=True)
class Plan:
    """What is asked of the server."""

    widths: tuple[int, ...] = (1, 4, 8, 16)
    prompt: str = PROMPT
    n_predict: int = 128
    declared_min: int = FLOOR
    replicates: int = 1
    """How often each width's identical requests are sent; speeds are medians over them."""
    mixed: bool = True
    """Whether different prompts are sent too, which alone show slots that are mixed up."""
    identity: dict[str, Any] = field(default_factory=dict)
    """Host, commit, digests and versions, for the witness."""

    def different(self, i: int) -> str:
        """Return the i-th of the different prompts."""
        return f"Item {i + 1}. {self.prompt}"


@dataclass
class Taking:
    """A witness in the making; `witness` is whole and honest after every step."""

    plan: Plan
    client: Client
    source: Source
    witness: dict[str, Any] = field(default_factory=dict)
    solos: list[Stream] = field(default_factory=list)

    async def run(self, on_band: Callable[[dict[str, Any]], None]) -> None:
        """Take every band, narrow first, and tell each as soon as it is known."""
        reference, again = await self._reference()
        why = self._begin(reference, again)
        for c in sorted(set(self.plan.widths)):
            taken = Taken(c, self.plan.declared_min, reference, [])
            if why is None:
                await self._arms(taken)
            found = band(taken)
            if why is not None:
                found |= {"result": "UNMEASURABLE", "reason": why}
            self.witness["bands"].append(found)
            add_to(self.witness["bands"], [s.ended - s.started for s in (reference, again)])
            on_band(found)
            why = why or _gone(taken)

    async def _reference(self) -> tuple[Stream, Stream]:
        """Return the witness prompt's stream alone, twice, in a form that the server takes."""
        first = Stream()
        for dialect in DIALECTS:
            self.client.left_out = dialect
            first = await self._alone(self.plan.prompt)
            if first.status not in REFUSED:
                break
        return first, first if first.trouble else await self._alone(self.plan.prompt)

    async def _alone(self, prompt: str) -> Stream:
        return await self.client.complete(prompt, self.plan.n_predict)

    def _begin(self, reference: Stream, again: Stream) -> str | None:
        """Write what is known before the bands; return why no band can be measured, if so."""
        plan, at = self.plan, parts(again, reference)
        unstable = at is not None and at < plan.declared_min
        trouble = reference.trouble or again.trouble
        self.witness |= {
            "witness_version": 2, "probe": "perf041", **plan.identity,
            "prompt_sha256": hashlib.sha256(plan.prompt.encode()).hexdigest(),
            "sampler": {"temperature": 0.0, "seed": 0, "n_predict": plan.n_predict,
                        "ignore_eos": True, "left_out": sorted(self.client.left_out)},
            "m_formed_from": self.source.name, "server": self.client.server,
            "reference": {"tokens": min(len(reference.tokens), len(again.tokens)),
                          "stable": None if trouble else not unstable,
                          "self_divergence_at": at},
            "bands": []}
        if trouble:
            return f"the prompt alone: {trouble}"
        return f"the prompt alone parts from itself at token {at}" if unstable else None

    async def _arms(self, taken: Taken) -> None:
        """Send the width's arms, until one shows that the server answers no more."""
        c = taken.c
        wanted = [("identical", [-1] * c)] * self.plan.replicates
        if c > 1 and self.plan.mixed:
            wanted += [("forward", list(range(c))), ("reversed", list(reversed(range(c))))]
        for name, prompts in wanted:
            if name == "forward" and not await self._know(c):
                taken.solos = self.solos[:c]
                return
            taken.solos = self.solos[:c]
            taken.arms.append(await self._arm(name, prompts))
            if _gone(taken):
                return

    async def _know(self, count: int) -> bool:
        """Take as many different prompts alone; return whether all came back."""
        while len(self.solos) < count and not (self.solos and self.solos[-1].trouble):
            self.solos.append(await self._alone(self.plan.different(len(self.solos))))
        return len(self.solos) >= count and not any(s.trouble for s in self.solos[:count])

    async def _arm(self, name: str, prompts: Sequence[int]) -> Arm:
        texts = [self.plan.prompt if p < 0 else self.plan.different(p) for p in prompts]
        trouble = None
        try:
            await self.source.begin()
        except Hostile as why:
            trouble = str(why)
        started = self.client.clock()
        streams = await asyncio.gather(*map(self._alone, texts))
        arm = Arm(name, prompts, list(streams), started, self.client.clock(), trouble=trouble)
        try:
            arm.m_formed = await self.source.end(streams) if trouble is None else None
        except Hostile as why:
            arm.trouble = str(why)
        return arm


def _gone(taken: Taken) -> str | None:
    """Return why nothing more is to be had, when a whole arm got not one token."""
    if not taken.arms or any(stream.tokens for stream in taken.arms[-1].streams):
        return None
    return f"the server answers no more: {taken.arms[-1].streams[0].trouble}"
