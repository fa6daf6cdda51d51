"""Planned steps in a form that parts can be taken out of: sequences, and who is fed what when."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from falsifiers.bisect.paired_runs import IDLE, Step

Feed = tuple[int, int]
"""A sequence's number, and how many of its tokens one step takes."""


@dataclass(frozen=True)
class Text:
    """One sequence: the slot that holds it, and its tokens."""

    slot: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """What a bisection runs: who is fed in each step, in the order of rows, over some layers."""

    texts: tuple[Text, ...]
    steps: tuple[tuple[Feed, ...], ...]
    layers: tuple[int, ...]
    """Numbers of the model's layers that are kept."""
    slots: int
    """Slots of the pool."""

    @staticmethod
    def of(steps: Sequence[Step], layers: int, slots: int) -> Scene:
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
        return Scene(tuple(Text(slot, tuple(tokens)) for slot, tokens in texts), tuple(fed),
                     tuple(range(layers)), slots)

    def planned(self) -> list[Step]:
        """Return the steps; a sequence's slot begins anew where it is fed first."""
        done = [0] * len(self.texts)
        made = []
        for feeds in self.steps:
            joins = tuple(self.texts[who].slot for who, _ in feeds if not done[who])
            tokens = tuple(t for who, count in feeds
                           for t in self.texts[who].tokens[done[who]:done[who] + count])
            made.append(Step(tuple(self.texts[who].slot for who, _ in feeds),
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

    def told(self) -> str:
        """Return what the scene is, in words."""
        tokens, rows, steps, layers = self.size
        kept = ", ".join(map(str, self.layers[:8])) + (", ..." if layers > 8 else "")
        return (f"{_count(tokens, 'token')} in {_count(rows, 'row')} of {_count(steps, 'step')} "
                f"(m = {self.m}), in {_count(len({text.slot for text in self.texts}), 'slot')} of "
                f"{self.slots}, over layer{'' if layers == 1 else 's'} {kept}")

    def feeds(self) -> list[tuple[int, int]]:
        """Return the step and the row of every feed."""
        return [(step, row) for step, feeds in enumerate(self.steps) for row in range(len(feeds))]

    def keeping(self, feeds: Iterable[tuple[int, int]]) -> Scene:
        """Return the scene with these feeds alone; steps and sequences without any are gone."""
        kept = set(feeds)
        steps = [tuple(feed for row, feed in enumerate(given) if (step, row) in kept)
                 for step, given in enumerate(self.steps)]
        who = sorted({feed[0] for given in steps for feed in given})
        number = {old: new for new, old in enumerate(who)}
        return replace(self, texts=tuple(self.texts[old] for old in who), steps=tuple(
            tuple((number[old], count) for old, count in given) for given in steps if given))

    def with_steps(self, steps: Iterable[int]) -> Scene:
        """Return the scene with these steps alone."""
        kept = set(steps)
        return self.keeping(at for at in self.feeds() if at[0] in kept)

    def with_texts(self, texts: Iterable[int]) -> Scene:
        """Return the scene with these sequences alone."""
        kept = set(texts)
        return self.keeping((step, row) for step, row in self.feeds()
                            if self.steps[step][row][0] in kept)

    def with_count(self, step: int, row: int, count: int) -> Scene:
        """Return the scene with another number of tokens in one feed."""
        steps = [list(feeds) for feeds in self.steps]
        steps[step][row] = (steps[step][row][0], count)
        return replace(self, steps=tuple(map(tuple, steps)))

    def trimmed(self) -> Scene:
        """Return the scene without tokens that nobody is fed."""
        fed = [sum(count for feeds in self.steps for who, count in feeds if who == text)
               for text in range(len(self.texts))]
        return replace(self, texts=tuple(replace(text, tokens=text.tokens[:count])
                                         for text, count in zip(self.texts, fed, strict=True)))

    def plain(self, who: int) -> Scene:
        """Return the scene with one sequence made of its first token alone."""
        texts = list(self.texts)
        texts[who] = replace(texts[who], tokens=texts[who].tokens[:1] * len(texts[who].tokens))
        return replace(self, texts=tuple(texts))

    def renumbered(self) -> Scene:
        """Return the scene on the lowest slots, in their order, and one idle pool slot or two."""
        used = sorted({text.slot for text in self.texts})
        number = {old: new for new, old in enumerate(used)}
        return replace(self, slots=len(used) + IDLE, texts=tuple(
            replace(text, slot=number[text.slot]) for text in self.texts))

    def in_slot_order(self) -> Scene:
        """Return the scene with every step's rows in the order of their slots."""
        return replace(self, steps=tuple(
            tuple(sorted(feeds, key=lambda feed: self.texts[feed[0]].slot))
            for feeds in self.steps))

    def smaller(self) -> Iterator[Scene]:
        """Yield every scene that is this one less a single part."""
        many = [("steps", len(self.steps)), ("texts", len(self.texts))]
        for what, count in many if self.m else ():
            for gone in range(count) if count > 1 else ():
                rest = [i for i in range(count) if i != gone]
                yield self.with_steps(rest) if what == "steps" else self.with_texts(rest)
        for layer in self.layers if len(self.layers) > 1 else ():
            yield replace(self, layers=tuple(i for i in self.layers if i != layer))
        every = self.feeds()
        for at in every if len(every) > 1 else ():
            yield self.keeping(other for other in every if other != at)
        for step, row in every:
            if (count := self.steps[step][row][1]) > 1:
                yield self.with_count(step, row, count - 1)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
