"""Faulty engines: rows, draws, the session turn and memory; each class has one fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.arithmetic import log_softmax_at
from phases.p0_scheduler.increment import Emitted, Request, Row, Seat
from phases.p2_engine_serve import sampling
from phases.p2_engine_serve.hybrid_engine import HybridEngine, LastSlot, Limits
from phases.p2_engine_serve.sampling import DrawnToken, Sampling


def _replace_all(options: Sequence[Sampling], **changes: Any) -> list[Sampling]:
    return [replace(option, **changes) for option in options]


class GreedyForEveryone(HybridEngine):
    """The step ends in an argmax; no row's options are read."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        return sampling.draw(logits, choices, _replace_all(options, temperature=0.0), numbers)


class FirstRowsOptions(HybridEngine):
    """The first row's options are used for the whole batch."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        changed = [replace(options[0], top=option.top) for option in options]
        return sampling.draw(logits, choices, changed, numbers)


class PlainRowsTakeNoPlace(HybridEngine):
    """Greedy rows have no entry in the list of options, which then shifts under the rows."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        sampled = [option for option in options if option.temperature > 0]
        slid = sampled + [Sampling()] * (len(options) - len(sampled))
        changed = [replace(odd, top=option.top) for odd, option in zip(slid, options, strict=True)]
        return sampling.draw(logits, choices, changed, numbers)


class CountsFallShortOfRows(HybridEngine):
    """A greedy row that joins has no entry in the counts, but one is deleted when it leaves."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: list[int] = []
        self.counts: list[int] = []

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        seat = super()._assign_slot(request, alone=alone)
        self.rows.append(seat.slot)
        if self.tenants[seat.slot].sampling.temperature > 0:
            self.counts.append(0)
        return seat

    def _sample(self, plan: Sequence[Row], logits: Tensor) -> list[Emitted]:
        for slot, count in zip(self.rows, self.counts, strict=False):
            self.tenants[slot].drawn_count = count
        emitted = super()._sample(plan, logits)
        self.counts = [self.tenants[slot].drawn_count
                       for slot, _ in zip(self.rows, self.counts, strict=False)]
        return emitted

    def recycle_slot(self, slot: int) -> None:
        at = self.rows.index(slot)
        del self.rows[at], self.counts[at:at + 1]
        super().recycle_slot(slot)

    def reset(self) -> None:
        self.rows, self.counts = [], []
        super().reset()


class TopKIsDropped(HybridEngine):
    """top_k is not passed to the batch's sampler."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        return sampling.draw(logits, choices, _replace_all(options, top_k=0), numbers)


class TopPIsDropped(HybridEngine):
    """top_p is not passed to the batch's sampler."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        return sampling.draw(logits, choices, _replace_all(options, top_p=1.0), numbers)


class SeedOfTheRow(HybridEngine):
    """The generator is keyed by the row's index in the batch."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        changed = [replace(option, seed=row) for row, option in enumerate(options)]
        return sampling.draw(logits, choices, changed, numbers)


class NumberOfTheBatch(HybridEngine):
    """The generator counts the longest row's tokens, not the row's own."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, choices, options, numbers = rows
        return sampling.draw(logits, choices, options, [max(numbers)] * len(numbers))


class OneGeneratorForAll(HybridEngine):
    """Rows draw from one generator, one after another."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        stream = np.random.default_rng(1)

        def draw(logits: Tensor, choices: Sequence[int], options: Sequence[Sampling],
                 numbers: Sequence[int]) -> list[DrawnToken]:
            changed = [replace(option, seed=int(stream.integers(1 << 30))) for option in options]
            return sampling.draw(logits, choices, changed, numbers)

        self.draw = draw


class NeighboursLogprobs(HybridEngine):
    """Log-probs are one row off."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        drawn = sampling.draw(*rows)
        return [replace(one, logprob=other.logprob)
                for one, other in zip(drawn, drawn[1:] + drawn[:1], strict=True)]


class LogprobsAfterTemperature(HybridEngine):
    """Log-probs are computed from the scaled logits."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, _, options, _ = rows
        return [replace(one, logprob=log_softmax_at(logits[row] / (option.temperature or 1.0),
                                                    one.token))
                for row, (one, option) in enumerate(zip(sampling.draw(*rows), options,
                                                        strict=True))]


class LogitsOfOneRow(HybridEngine):
    """The logits buffer has one row, which every request reads."""

    def _sample(self, plan: Sequence[Row], logits: Tensor) -> list[Emitted]:
        return super()._sample(plan, logits[:1].expand_as(logits))


class AnswersTheNeighbour(HybridEngine):
    """Two rows' tokens are swapped in the answer."""

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        emitted = super().decode_step(plan)
        slots = [one.slot for one in emitted]
        return [replace(one, slot=slot)
                for one, slot in zip(emitted, slots[1:] + slots[:1], strict=True)]


class LoopsOverRows(HybridEngine):
    """The batch is planned, then run row by row."""

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        return [one for row in plan for one in super(LoopsOverRows, self).decode_step([row])]


class SlotIsNotCleared(HybridEngine):
    """A new request starts with the recurrent state of the slot's last one."""

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        get_slot = self.pool.slot
        self.pool.slot = lambda index: _UnclearedState(get_slot(index))  # type: ignore
        try:
            return super()._assign_slot(request, alone=alone)
        finally:
            self.pool.slot = get_slot  # type: ignore[method-assign]


class _UnclearedState:
    def __init__(self, state: Any) -> None:
        self.state = state

    def clear(self) -> None:
        return None


class NeverGoesOn(HybridEngine):
    """Every turn starts cold."""

    def _find_extended_slot(self, request: Request) -> tuple[int, int]:
        return -1, 0


class GoesOnByLength(HybridEngine):
    """A longer prompt with the same beginning counts as the next turn."""

    def _find_extended_slot(self, request: Request) -> tuple[int, int]:
        n = len(self.last_slot.tokens)
        if 0 < n < len(request.tokens) and list(request.tokens[:3]) == self.last_slot.tokens[:3]:
            return self.last_slot.slot, n
        return -1, 0


class GoesOnInCompany(HybridEngine):
    """The last slot is reused while other requests are served."""

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        tenants, last = dict(self.tenants), self.last_slot
        if last.slot not in tenants and last.is_extended_by(request.tokens):
            self.tenants.clear()
            seat = super()._assign_slot(request, alone=True)
            self.tenants.update(tenants)
            return seat
        seat = super()._assign_slot(request, alone=alone)
        if seat.slot != last.slot:
            self.last_slot = last
        return seat


class TurnSurvivesErrors(HybridEngine):
    """The last slot's state is reused after an engine error."""

    def reset(self) -> None:
        self.tenants.clear()

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        last = self.last_slot
        seat = super()._assign_slot(request, alone=alone)
        self.last_slot = last
        return seat


class BudgetForgetsKeys(HybridEngine):
    """Only the recurrent state is compared with the budget."""

    def __init__(self, model: Any, path: Any, limits: Limits) -> None:
        one = model.new_pool(1, 1).nbytes
        fits = limits.budget is None or limits.slots * one <= limits.budget
        super().__init__(model, path, replace(limits, budget=None) if fits else limits)


class TokensAreNotChecked(HybridEngine):
    """A prompt gets its slot before its tokens are checked."""

    def _check_request(self, request: Request) -> None:
        return None


class ChecksWhileSeating(HybridEngine):
    """Of two requests the first already has its slot when the second is refused."""

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        return [super(ChecksWhileSeating, self).start_batch([request])[0] for request in requests]


class ResetKeepsSlots(HybridEngine):
    """After an error the slots stay taken."""

    def reset(self) -> None:
        self.last_slot = LastSlot()


class MemoryIsKept(HybridEngine):
    """The pool is not freed with the engine."""

    def cleanup(self) -> None:
        self.reset()


class DropsTheOddTie(HybridEngine):
    """The greedy choice takes the last of equally likely tokens."""

    @staticmethod
    def draw(*rows: Any) -> list[DrawnToken]:
        logits, _, options, numbers = rows
        last = [int((line == line.max()).nonzero()[-1]) for line in torch.unbind(logits)]
        return sampling.draw(logits, last, options, numbers)
