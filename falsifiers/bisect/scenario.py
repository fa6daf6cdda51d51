"""Planned steps in a form that can be reduced: sequences, and which step feeds which of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from falsifiers.bisect.paired_runs import IDLE_SLOTS, Step

Feed = tuple[int, int]
"""A sequence's index, and how many of its tokens one step takes."""


@dataclass(frozen=True)
class TokenSequence:
    """One sequence: its slot and its tokens."""

    slot: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Scenario:
    """The input of a bisection: the feeds of each step, in the order of rows, over some layers."""

    sequences: tuple[TokenSequence, ...]
    steps: tuple[tuple[Feed, ...], ...]
    layers: tuple[int, ...]
    """Indices of the model's layers that run."""
    slots: int
    """Slots of the pool."""

    @staticmethod
    def from_steps(steps: Sequence[Step], layers: int, slots: int) -> Scenario:
        """Return planned steps as a scenario."""
        texts: list[tuple[int, list[int]]] = []
        current: dict[int, int] = {}
        fed: list[tuple[Feed, ...]] = []
        for step in steps:
            for slot in step.joins:
                current[slot] = len(texts)
                texts.append((slot, []))
            for slot, _, tokens in step.spans():
                texts[current[slot]][1].extend(tokens)
            fed.append(tuple((current[slot], count) for slot, count
                             in zip(step.slots, step.counts, strict=True)))
        sequences = tuple(TokenSequence(slot, tuple(tokens)) for slot, tokens in texts)
        return Scenario(sequences, tuple(fed), tuple(range(layers)), slots)

    def to_steps(self) -> list[Step]:
        """Return the steps; a sequence's slot is cleared before its first feed."""
        done = [0] * len(self.sequences)
        steps = []
        for feeds in self.steps:
            joins = tuple(self.sequences[i].slot for i, _ in feeds if not done[i])
            tokens = tuple(t for i, count in feeds
                           for t in self.sequences[i].tokens[done[i]:done[i] + count])
            steps.append(Step(tuple(self.sequences[i].slot for i, _ in feeds),
                              tuple(done[i] for i, _ in feeds),
                              tuple(count for _, count in feeds), tokens, joins))
            for i, count in feeds:
                done[i] += count
        return steps

    @property
    def m(self) -> int:
        """The most rows of any step."""
        return max(map(len, self.steps), default=0)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """Tokens fed, rows, steps and layers; scenarios are ordered by it."""
        fed = [count for feeds in self.steps for _, count in feeds]
        return sum(fed), len(fed), len(self.steps), len(self.layers)

    def describe(self) -> str:
        """Return the scenario's sizes as a phrase."""
        tokens, rows, steps, layers = self.size
        shown = ", ".join(map(str, self.layers[:8])) + (", ..." if layers > 8 else "")
        used = _format_count(len({text.slot for text in self.sequences}), "slot")
        return (f"{_format_count(tokens, 'token')} in {_format_count(rows, 'row')} of "
                f"{_format_count(steps, 'step')} (m = {self.m}), in {used} of {self.slots}, "
                f"over layer{'' if layers == 1 else 's'} {shown}")

    def feed_positions(self) -> list[tuple[int, int]]:
        """Return the step and the row of every feed."""
        return [(step, row) for step, feeds in enumerate(self.steps) for row in range(len(feeds))]

    def with_feeds(self, positions: Iterable[tuple[int, int]]) -> Scenario:
        """Return the scenario with only these feeds; steps and sequences without any are gone."""
        selected = set(positions)
        steps = [tuple(feed for row, feed in enumerate(feeds) if (step, row) in selected)
                 for step, feeds in enumerate(self.steps)]
        used = sorted({feed[0] for feeds in steps for feed in feeds})
        number = {old: new for new, old in enumerate(used)}
        return replace(self, sequences=tuple(self.sequences[old] for old in used), steps=tuple(
            tuple((number[old], count) for old, count in feeds) for feeds in steps if feeds))

    def with_steps(self, steps: Iterable[int]) -> Scenario:
        """Return the scenario with only these steps."""
        selected = set(steps)
        return self.with_feeds(at for at in self.feed_positions() if at[0] in selected)

    def with_sequences(self, sequences: Iterable[int]) -> Scenario:
        """Return the scenario with only these sequences."""
        selected = set(sequences)
        return self.with_feeds((step, row) for step, row in self.feed_positions()
                               if self.steps[step][row][0] in selected)

    def with_count(self, step: int, row: int, count: int) -> Scenario:
        """Return the scenario with another number of tokens in one feed."""
        steps = [list(feeds) for feeds in self.steps]
        steps[step][row] = (steps[step][row][0], count)
        return replace(self, steps=tuple(map(tuple, steps)))

    def drop_unused_tokens(self) -> Scenario:
        """Return the scenario without tokens that no step feeds."""
        fed = [sum(count for feeds in self.steps for i, count in feeds if i == text)
               for text in range(len(self.sequences))]
        return replace(self, sequences=tuple(
            replace(text, tokens=text.tokens[:count])
            for text, count in zip(self.sequences, fed, strict=True)))

    def repeat_first_token(self, sequence: int) -> Scenario:
        """Return the scenario with one sequence's tokens all equal to its first."""
        texts = list(self.sequences)
        tokens = texts[sequence].tokens
        texts[sequence] = replace(texts[sequence], tokens=tokens[:1] * len(tokens))
        return replace(self, sequences=tuple(texts))

    def renumber_slots(self) -> Scenario:
        """Return the scenario on the lowest slots, in their order, with `IDLE_SLOTS` more."""
        used = sorted({text.slot for text in self.sequences})
        number = {old: new for new, old in enumerate(used)}
        return replace(self, slots=len(used) + IDLE_SLOTS, sequences=tuple(
            replace(text, slot=number[text.slot]) for text in self.sequences))

    def sort_rows_by_slot(self) -> Scenario:
        """Return the scenario with every step's rows in the order of their slots."""
        return replace(self, steps=tuple(
            tuple(sorted(feeds, key=lambda feed: self.sequences[feed[0]].slot))
            for feeds in self.steps))

    def smaller_scenarios(self) -> Iterator[Scenario]:
        """Yield every scenario with one step, sequence, layer, feed or token less."""
        for count, select in ((len(self.steps), self.with_steps),
                              (len(self.sequences), self.with_sequences)):
            for gone in range(count) if count > 1 else ():
                yield select(i for i in range(count) if i != gone)
        for layer in self.layers if len(self.layers) > 1 else ():
            yield replace(self, layers=tuple(i for i in self.layers if i != layer))
        every = self.feed_positions()
        for at in every if len(every) > 1 else ():
            yield self.with_feeds(other for other in every if other != at)
        for step, row in every:
            if (count := self.steps[step][row][1]) > 1:
                yield self.with_count(step, row, count - 1)


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
