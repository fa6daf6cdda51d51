"""Planned steps in a form that parts can be taken out of: sequences, and who is fed what when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from falsifiers.bisect.paired_runs import IDLE_SLOTS, Step

Feed = tuple[int, int]
"""A sequence's number, and how many of its tokens one step takes."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence: the slot that holds it, and its tokens."""

    slot: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Scenario:
    """What a bisection runs: who is fed in each step, in the order of rows, over some layers."""

    sequences: tuple[TokenSequence, ...]
    steps: tuple[tuple[Feed, ...], ...]
    layers: tuple[int, ...]
    """Numbers of the model's layers that are kept."""
    slots: int
    """Slots of the pool."""

    @staticmethod
    def from_steps(steps: Sequence[Step], layers: int, slots: int) -> Scenario:
        """Return planned steps as a scene."""
        texts: list[tuple[int, list[int]]] = []
        now: dict[int, int] = {}
        fed: list[tuple[Feed, ...]] = []
        for step in steps:
            for slot in step.joins:
                now[slot] = len(texts)
                texts.append((slot, []))
            for slot, _, tokens in step.spans():
                texts[now[slot]][1].extend(tokens)
            fed.append(tuple((now[slot], count) for slot, count
                             in zip(step.slots, step.counts, strict=True)))
        return Scenario(
            tuple(TokenSequence(slot, tuple(tokens)) for slot, tokens in texts),
            tuple(fed),
            tuple(range(layers)),
            slots,
        )

    def to_steps(self) -> list[Step]:
        """Return the steps; a sequence's slot begins anew where it is fed first."""
        done = [0] * len(self.sequences)
        made = []
        for feeds in self.steps:
            joins = tuple(self.sequences[who].slot for who, _ in feeds if not done[who])
            tokens = tuple(t for who, count in feeds
                           for t in self.sequences[who].tokens[done[who]:done[who] + count])
            made.append(Step(tuple(self.sequences[who].slot for who, _ in feeds),
                             tuple(done[who] for who, _ in feeds),
                             tuple(count for _, count in feeds), tokens, joins))
            for who, count in feeds:
                done[who] += count
        return made

    @property
    def m(self) -> int:
        """The most rows of any step."""
        return max(map(len, self.steps), default=0)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Tokens fed, rows, steps and layers: what is larger is the larger scene."""
        fed = [count for feeds in self.steps for _, count in feeds]
        return sum(fed), len(fed), len(self.steps), len(self.layers)

    def describe(self) -> str:
        """Return what the scene is, in words."""
        tokens, rows, steps, layers = self.size
        kept = ", ".join(map(str, self.layers[:8])) + (", ..." if layers > 8 else "")
        return (
            f"{_format_count(tokens, 'token')} in {_format_count(rows, 'row')} of {_format_count(steps, 'step')} "
            f"(m = {self.m}), in {_format_count(len({text.slot for text in self.sequences}), 'slot')} of "
            f"{self.slots}, over layer{'' if layers == 1 else 's'} {kept}"
        )

    def feed_positions(self) -> list[tuple[int, int]]:
        """Return the step and the row of every feed."""
        return [(step, row) for step, feeds in enumerate(self.steps) for row in range(len(feeds))]

    def with_feeds(self, feeds: Iterable[tuple[int, int]]) -> Scenario:
        """Return the scene with these feeds alone; steps and sequences without any are gone."""
        kept = set(feeds)
        steps = [tuple(feed for row, feed in enumerate(given) if (step, row) in kept)
                 for step, given in enumerate(self.steps)]
        who = sorted({feed[0] for given in steps for feed in given})
        number = {old: new for new, old in enumerate(who)}
        return replace(self, sequences=tuple(self.sequences[old] for old in who), steps=tuple(
            tuple((number[old], count) for old, count in given) for given in steps if given))

    def with_steps(self, steps: Iterable[int]) -> Scenario:
        """Return the scene with these steps alone."""
        kept = set(steps)
        return self.with_feeds(at for at in self.feed_positions() if at[0] in kept)

    def with_sequences(self, texts: Iterable[int]) -> Scenario:
        """Return the scene with these sequences alone."""
        kept = set(texts)
        return self.with_feeds((step, row) for step, row in self.feed_positions()
                            if self.steps[step][row][0] in kept)

    def with_count(self, step: int, row: int, count: int) -> Scenario:
        """Return the scene with another number of tokens in one feed."""
        steps = [list(feeds) for feeds in self.steps]
        steps[step][row] = (steps[step][row][0], count)
        return replace(self, steps=tuple(map(tuple, steps)))

    def drop_unused_tokens(self) -> Scenario:
        """Return the scene without tokens that nobody is fed."""
        fed = [sum(count for feeds in self.steps for who, count in feeds if who == text)
               for text in range(len(self.sequences))]
        return replace(self, sequences=tuple(replace(text, tokens=text.tokens[:count])
                                         for text, count in zip(self.sequences, fed, strict=True)))

    def repeat_first_token(self, who: int) -> Scenario:
        """Return the scene with one sequence made of its first token alone."""
        texts = list(self.sequences)
        texts[who] = replace(texts[who], tokens=texts[who].tokens[:1] * len(texts[who].tokens))
        return replace(self, sequences=tuple(texts))

    def renumber_slots(self) -> Scenario:
        """Return the scene on the lowest slots, in their order, and one idle pool slot or two."""
        used = sorted({text.slot for text in self.sequences})
        number = {old: new for new, old in enumerate(used)}
        return replace(self, slots=len(used) + IDLE_SLOTS, sequences=tuple(
            replace(text, slot=number[text.slot]) for text in self.sequences))

    def sort_rows_by_slot(self) -> Scenario:
        """Return the scene with every step's rows in the order of their slots."""
        return replace(self, steps=tuple(
            tuple(sorted(feeds, key=lambda feed: self.sequences[feed[0]].slot))
            for feeds in self.steps))

    def smaller_scenarios(self) -> Iterator[Scenario]:
        """Yield every scene that is this one less a single part."""
        many = [("steps", len(self.steps)), ("texts", len(self.sequences))]
        for what, count in many if self.m else ():
            for gone in range(count) if count > 1 else ():
                rest = [i for i in range(count) if i != gone]
                yield self.with_steps(rest) if what == "steps" else self.with_sequences(rest)
        for layer in self.layers if len(self.layers) > 1 else ():
            yield replace(self, layers=tuple(i for i in self.layers if i != layer))
        every = self.feed_positions()
        for at in every if len(every) > 1 else ():
            yield self.with_feeds(other for other in every if other != at)
        for step, row in every:
            if (count := self.steps[step][row][1]) > 1:
                yield self.with_count(step, row, count - 1)


def _format_count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
